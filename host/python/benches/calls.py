"""Overhead of a call from Python: one nn.relu of 16 elements, alternating between byoc and ONNX Runtime.

Run it with the installed wheel: python host/python/benches/calls.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import byoc
import byoc.onnxruntime

ROUNDS = 9
CALLS = 50_000


def model() -> bytes:
    """Returns an ONNX model with one Relu of 16 elements."""
    port = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", port[:1], port[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def seconds(call: Callable[[], object]) -> float:
    """Returns the average duration of a call."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    """Prints the median and the range over the rounds for each kind of call."""
    data, x = model(), np.linspace(-1, 1, 16, dtype=np.float32)
    ours = byoc.compile(data)
    theirs = onnxruntime.InferenceSession(data)
    compatible = byoc.onnxruntime.InferenceSession(data)
    calls = {
        "byoc: model(x)": lambda: ours(x),
        "byoc: model.run({'x': x})": lambda: ours.run({"x": x}),
        "byoc.onnxruntime: session.run": lambda: compatible.run(None, {"x": x}),
        "onnxruntime: session.run": lambda: theirs.run(None, {"x": x}),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(call) * 1e6)
    for name, found in times.items():
        print(f"{name:32} {statistics.median(found):6.2f} us ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
