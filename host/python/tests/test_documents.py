"""Runs every Python example in the documentation, and every command in docs/scaling.md."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import loopback  # noqa: F401
import numpy as np
import pytest
from conftest import DIGITS, ROOT

SCALING = ROOT / "docs" / "scaling.md"
PAGES = [
    ROOT / "docs" / "python.md",
    ROOT / "docs" / "relay-python.md",
    SCALING,
    ROOT / "host" / "python" / "README.md",
]


def blocks(page: Path, language: str) -> list:
    """Returns the code blocks of a page in a language; blocks that require Ray run on demand."""
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)
    return [
        pytest.param(
            code,
            id=f"{page.parent.name}-{page.stem}-{index}",
            marks=[pytest.mark.ray] if re.search(r"\bbyoc\.ray\b", code) else [],
        )
        for index, code in enumerate(found)
    ]


EXAMPLES = [block for page in PAGES for block in blocks(page, "python")]
COMMANDS = blocks(SCALING, "sh")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Directory with the files that the examples in docs/scaling.md name."""
    from PIL import Image

    shutil.copy(DIGITS, tmp_path)
    (tmp_path / "labels.txt").write_text("\n".join(f"digit {n}" for n in range(10)) + "\n")
    (tmp_path / "pictures").mkdir()
    random = np.random.default_rng(0)
    for index in range(10):
        pixels = random.integers(0, 256, (16, 16), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{index}.png")
    return tmp_path


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code: str, folder: Path) -> None:
    if code.count("\n") == 1:
        pytest.skip("part of another example")
    if "ray" in code:
        # A minimal single-machine cluster.
        start = "ray.init(address='local', num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)"
        code = f"import ray\n{start}\n{code}"
        if "serve.run" in code:
            start = f"serve.start(http_options={{'host': '127.0.0.1', 'port': {free_port()}}})"
            code = code.replace("from ray import serve\n", f"from ray import serve\n\n{start}\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("code", COMMANDS)
def test_command(code: str, folder: Path) -> None:
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, words in (("byoc", "-m byoc "), ("python", "")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (bin_folder / name).chmod(0o755)
    port = free_port()
    code = code.replace("byoc serve", f"byoc serve --http {port}").replace(":8000", f":{port}")
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    words = ["bash", "-e", "-m", "-c", code]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout or (folder / "result.csv").read_text().count("digit ") == 10


def test_tasks_exist() -> None:
    """Checks that the xtask tasks named in docs/scaling.md exist."""
    usage = (ROOT / "xtask" / "src" / "main.rs").read_text()
    tasks = set(re.findall(r"cargo xtask ((?:bench )?[a-z-]+)", SCALING.read_text()))
    assert {"wheel", "bench scaling", "bench ray"} <= tasks
    assert [task for task in tasks if f'    "{task}" ' not in usage] == []


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 9 and len(COMMANDS) >= 2


@pytest.mark.parametrize("script", ["scaling.py"])
def test_measurements_run(script: str, folder: Path) -> None:
    """Runs the benchmark script without checking its figures, which are meaningless on a loaded machine."""
    words = ["--model", "digits.onnx", "--rounds", "1", "--seconds", "0.01"]
    path = ROOT / "host" / "python" / "benches" / script
    done = subprocess.run([sys.executable, path, *words], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("|") and not line.startswith("|---")]
    # Two header rows, and one row per setting.
    assert len(rows) == 2 + 13 + 21 and all("nan" not in row for row in rows)


@pytest.mark.ray
def test_measurement_of_workers_runs(folder: Path) -> None:
    words = ["--model", os.fspath(DIGITS), "--pictures", "64", "--batch-size", "4", "--rounds", "1"]
    path = ROOT / "host" / "python" / "benches" / "ray_workers.py"
    done = subprocess.run([sys.executable, path, *words], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "median of the ratios: " in done.stdout
