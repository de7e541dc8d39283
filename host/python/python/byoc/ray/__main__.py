"""The command `python -m byoc.ray`: classifies the images in a directory with Ray."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from .._errors import Error
from ._images import classify_folder
from ._require import require

COLUMNS = ("path", "label", "score", "error")


def parser() -> argparse.ArgumentParser:
    """Returns the command-line parser."""
    made = argparse.ArgumentParser(
        prog="python -m byoc.ray",
        description="Classify the images in a directory with Ray: one line per file, in no particular order.",
    )
    made.add_argument("folder", metavar="FOLDER", help="Directory of images, readable by every node")
    made.add_argument("model", metavar="MODEL", help="Model: an .onnx, .relay or .byoc file")
    made.add_argument("--labels", metavar="FILE", help="Class names, one per line")
    made.add_argument("--mean", metavar="R,G,B", type=_numbers, help="Mean subtracted from the pixels in [0, 1]")
    made.add_argument("--std", metavar="R,G,B", type=_numbers, help="Divisor of the pixels after the subtraction")
    made.add_argument("--backend", metavar="NAME,...", help="Backends in priority order [default: the host]")
    made.add_argument("--workers", metavar="N", type=int, help="Number of workers [default: as many as fit]")
    made.add_argument("--num-cpus", metavar="N", type=float, default=1, help="Processors per worker [default: 1]")
    made.add_argument("--batch-size", metavar="N", type=int, default=8, help="Images per batch [default: 8]")
    made.add_argument(
        "--address", metavar="ADDR", default="local", help='Cluster; "auto" joins a running cluster [default: local]'
    )
    made.add_argument(
        "--output", metavar="FILE", help="Output file, .csv or .jsonl [default: JSON lines on standard output]"
    )
    return made


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0 for success, 1 for a user error, 2 for invalid usage."""
    command = parser()
    chosen = command.parse_args(arguments)
    if chosen.output and not chosen.output.endswith((".csv", ".jsonl")):
        command.error(f"argument --output: expected a name that ends in .csv or .jsonl, found {chosen.output}")
    try:
        rows = _rows(chosen)
        if chosen.output:
            _write(chosen.output, rows)
        else:
            _write_lines(sys.stdout, rows)
    except Exception as error:
        found = _cause(error)
        if found is None:
            raise
        code = f"[{found.code}]" if isinstance(found, Error) and found.code else ""
        print(f"error{code}: {found}", file=sys.stderr)
        return 1
    return 0


def _cause(error: BaseException | None) -> Exception | None:
    """Returns the user error that Ray has wrapped in its own exceptions; None for a bug."""
    found = None
    while error is not None:
        inner = getattr(error, "cause", None) or error.__cause__
        if isinstance(error, (Error, ValueError, OSError)) and not isinstance(inner, Error):
            found = error
        error = inner if isinstance(inner, BaseException) else None
    return found


def _rows(chosen: argparse.Namespace) -> Iterable[dict[str, Any]]:
    labels = None
    if chosen.labels:
        with open(chosen.labels, encoding="utf-8") as file:
            labels = [line.strip() for line in file]
    local = {}
    if chosen.address == "local":
        # Restricts a local cluster to the loopback interface.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        local["include_dashboard"] = False
    ray = require()
    options = {} if chosen.backend is None else {"backend": chosen.backend}
    ray.init(address=chosen.address, log_to_driver=False, logging_level="error", **local)
    require("ray.data").DataContext.get_current().enable_progress_bars = False
    dataset = classify_folder(
        chosen.folder,
        chosen.model,
        labels=labels,
        mean=chosen.mean,
        std=chosen.std,
        workers=chosen.workers,
        num_cpus=chosen.num_cpus,
        batch_size=chosen.batch_size,
        **options,
    )
    return dataset.iter_rows()


def _write(path: str, rows: Iterable[dict[str, Any]]) -> None:
    """Writes a file atomically: the file appears once it is complete."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8", newline="") as file:
        try:
            if path.endswith(".csv"):
                table = csv.DictWriter(file, COLUMNS)
                table.writeheader()
                table.writerows({name: row[name] for name in COLUMNS} for row in rows)
            else:
                _write_lines(file, rows)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _write_lines(file: TextIO, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        fields = {"path": str(row["path"]), "label": str(row["label"])}
        if row["error"]:
            fields["error"] = str(row["error"])
        else:
            fields["score"] = float(row["score"])
        file.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    sys.exit(main())
