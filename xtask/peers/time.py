"""Measures the latency of one model on one peer, in a separate process.

usage: time.py onnxruntime|openvino MODEL THREADS RUNS

Prints one JSON object: {"peer", "version", "median_ms", "min_ms"}. Inputs are ones for floats, zeros for integers.
"""

import json
import statistics
import sys
import time

import numpy as np

KINDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def feed(shape, kind):
    shape = [d if isinstance(d, int) and d > 0 else 1 for d in shape]
    return np.ones(shape, kind) if np.issubdtype(kind, np.floating) else np.zeros(shape, kind)


def onnxruntime(model, threads):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {i.name: feed(i.shape, KINDS[i.type]) for i in session.get_inputs()}
    return ort.__version__, lambda: session.run(None, inputs)


def openvino(model, threads):
    import openvino as ov

    core = ov.Core()
    read = core.read_model(model)
    for port in read.inputs:
        shape = port.get_partial_shape()
        if shape.is_dynamic:
            read.reshape({port.any_name: [d.get_length() if d.is_static else 1 for d in shape]})
    compiled = core.compile_model(
        read, "CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    )
    request = compiled.create_infer_request()
    inputs = {p.any_name: feed(list(p.get_shape()), p.get_element_type().to_dtype().type) for p in compiled.inputs}
    return ov.__version__, lambda: request.infer(inputs)


def main():
    peer, model, threads, runs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    version, run = {"onnxruntime": onnxruntime, "openvino": openvino}[peer](model, threads)
    for _ in range(max(3, runs // 5)):
        run()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"peer": peer, "version": version, "median_ms": statistics.median(times), "min_ms": min(times)}))


main()
