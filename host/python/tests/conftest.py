"""Test models and helpers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "tests" / "digits" / "digits.onnx"

# Background jobs of a shell inherit an ignored SIGINT, which the tests of interruption would hand on.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Case:
    """Recorded model: its file, and its inputs and outputs by name."""

    def __init__(self, name: str, file: Path, feeds: dict[str, np.ndarray]) -> None:
        self.name, self.file, self.feeds = name, file, feeds

    @property
    def bytes(self) -> bytes:
        return self.file.read_bytes()

    @property
    def path(self) -> str:
        return os.fspath(self.file)


def _recorded(name: str) -> Case:
    folder = ROOT / "tests" / "models" / name
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    initialized = {tensor.name for tensor in model.graph.initializer}
    names = [port.name for port in model.graph.input if port.name not in initialized]
    feeds = {}
    for index, port in enumerate(names):
        data = (folder / "test_data_set_0" / f"input_{index}.pb").read_bytes()
        feeds[port] = numpy_helper.to_array(onnx.TensorProto.FromString(data))
    return Case(name, folder / "model.onnx", feeds)


def _digits() -> Case:
    images = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    return Case("digits", DIGITS, {"image": images})


CASES = {"digits": _digits, "gru": lambda: _recorded("gru"), "bert_small": lambda: _recorded("bert_small")}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    """Each of the three models in turn."""
    return CASES[request.param]()


@pytest.fixture
def digits() -> Case:
    """Convolutional network with an open batch size."""
    return _digits()


@pytest.fixture
def relu(tmp_path: Path) -> str:
    """Path of a model with one operator."""
    file = tmp_path / "relu.relay"
    file.write_text('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }\n')
    return os.fspath(file)


def close(found: np.ndarray, expected: np.ndarray, limit: float = 5e-4) -> bool:
    """Returns True if the results of a model agree within the tolerance."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind not in "fV":
        return bool((found == expected).all())
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    scale = np.abs(expected).max(initial=0) or 1
    return bool(np.abs(found - expected).max(initial=0) <= limit * scale)


def resident() -> int:
    """Returns the resident memory of the process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
