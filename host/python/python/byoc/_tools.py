"""Long-running commands as functions. Each runs in a separate process, so that a plugin failure or Ctrl-C terminates
only the command."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Union

from . import _byoc, _errors, _place
from ._session import Session, default_session

PathLike = Union[str, "os.PathLike[str]"]


def plugins(session: Session | None = None) -> list[dict[str, Any]]:
    """Returns the plugins found: file, status, name, version, and the registrations or the reason for rejection."""
    return [json.loads(row) for row in (session or default_session()).plugins()]


def verify(
    folders: PathLike | Sequence[PathLike],
    *,
    backend: str | Sequence[str] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    arguments: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Compares models with their recorded outputs, in directories in ONNX test-data layout. Returns one result per
    directory.

    arguments: additional arguments of `byoc verify`.
    """
    folders = [folders] if isinstance(folders, (str, os.PathLike)) else list(folders)
    words = ["verify", *map(os.fspath, folders), f"--rtol={rtol}", f"--atol={atol}", *_backend(backend), *arguments]
    return [row for row in _run(words, results=len(folders)) if "case" in row]


def quantize(
    model: PathLike,
    calibrate: PathLike | Mapping[str, Any],
    output: PathLike,
    *,
    backend: str | Sequence[str] | None = None,
    scheme: str | None = None,
    labels: Any = None,
    max_loss: float | None = None,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """Quantizes a float model to int8, writes the result as a .onnx or .relay file, and returns the report.

    calibrate: input samples: arrays by name, an .npz file, a directory of images, or "random[:SEED]".
    labels: correct class of each sample, as an array or a file.
    arguments: additional arguments of `byoc quantize`.
    """
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        if isinstance(calibrate, Mapping):
            import numpy

            file = os.path.join(folder, "calibration.npz")
            numpy.savez(file, **calibrate)
            calibrate = file
        words = ["quantize", os.fspath(model), "--calibrate", os.fspath(calibrate), "-o", os.fspath(output)]
        words += _backend(backend)
        if scheme is not None:
            words += ["--scheme", scheme]
        if labels is not None:
            if not isinstance(labels, (str, os.PathLike)):
                file = os.path.join(folder, "labels.txt")
                with open(file, "w", encoding="utf-8") as text:
                    text.writelines(f"{int(label)}\n" for label in labels)
                labels = file
            words += ["--labels", os.fspath(labels)]
        if max_loss is not None:
            words += ["--max-loss", str(max_loss)]
        return _run([*words, *arguments], results=1)[-1]


def export_onnx(
    model: PathLike,
    path: PathLike,
    *,
    stage: str = "simplified",
    opset: int | None = None,
    form: str = "qdq",
    backend: str | Sequence[str] | None = None,
    dims: Mapping[str, int] | None = None,
    arguments: Sequence[str] = (),
) -> str:
    """Writes a model at a stage of its compilation as an ONNX file, and returns the file's path.

    stage: "imported", "quantized", "simplified", or "partitioned" for the regions of `backend` as local functions.
    opset: operator set; by default 17, or the lowest after it that has all operators.
    form: "qdq", or "integer" for ConvInteger and MatMulInteger.
    dims: sizes of dimensions, which stay symbolic otherwise.
    arguments: additional arguments of `byoc compile`.
    """
    words = ["compile", os.fspath(model), "--emit", "onnx", "-o", os.fspath(path), "--stage", stage, "--form", form]
    words += _backend(backend)
    if opset is not None:
        words += ["--opset", str(opset)]
    for name, size in (dims or {}).items():
        words += ["--dim", f"{name}={size}"]
    _run([*words, *arguments], results=0, json_output=False)
    return os.fspath(path)


def zoo(name: str, path: PathLike, *, seed: int = 0) -> str:
    """Writes a standard architecture with seeded weights as an ONNX file, and returns its path."""
    _run(["zoo", name, "-o", os.fspath(path), "--seed", str(seed)], results=0, json_output=False)
    return os.fspath(path)


def _backend(backend: str | Sequence[str] | None) -> list[str]:
    if not backend:
        return []
    return ["--backend", backend if isinstance(backend, str) else ",".join(backend)]


def _run(words: Sequence[str], results: int, json_output: bool = True) -> list[dict[str, Any]]:
    """Runs a command, and returns the JSON objects that it prints. Raises if there are fewer than `results` objects."""
    _place.find_onednn()
    command = [*_place.command(), *words, *(["--json"] if json_output else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    objects = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(objects) < results or (done.returncode != 0 and not objects):
        raise _error(done.stderr, done.returncode)
    return objects


def _error(text: str, code: int) -> _errors.Error:
    """Creates an exception from the output of a command."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("{"):
            found = json.loads(line)
            return _exception(found.get("message", line), found.get("code"), found.get("help"))
        if line.startswith("error[") and "]: " in line:
            number, message = line[len("error[") :].split("]: ", 1)
            hints = [other.split("help:", 1)[1].strip() for other in lines if "help:" in other]
            return _exception(message, number, hints[0] if hints else None)
    return _exception(f"expected results from the command, found exit code {code}: " + " ".join(lines[-3:]), None, None)


# Exception classes by the area of the error code.
_CLASSES = {"E04": _errors.BackendError, "E05": _errors.ModelError, "E07": _errors.ArtifactError}


def _exception(message: str, code: str | None, hint: str | None) -> _errors.Error:
    kind = _CLASSES.get((code or "")[:3], _errors.RunError)
    return kind(_byoc.in_python(message), code, _byoc.in_python(hint) if hint else None)
