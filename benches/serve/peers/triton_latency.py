"""Latency of tritonclient calls. Arguments: HTTP address, gRPC address, MODEL:INPUT:SHAPE for each model."""

import statistics
import sys
import time

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http


def measure(client, module, model, name, array):
    value = module.InferInput(name, list(array.shape), "FP32")
    value.set_data_from_numpy(array)
    count = 1000 if array.nbytes < 1000 else 100
    rounds = []
    for _ in range(5):
        times = []
        for _ in range(count):
            start = time.perf_counter()
            result = client.infer(model, [value])
            result.as_numpy("output_0")
            times.append((time.perf_counter() - start) * 1e6)
        times.sort()
        rounds.append((times[count // 2], times[count * 99 // 100]))
    assert np.array_equal(result.as_numpy("output_0"), np.maximum(array, 0))
    return [statistics.median(column) for column in zip(*rounds)]


print("| | p50 | p99 |\n|---|---|---|")
for spec in sys.argv[3:]:
    model, name, shape = spec.split(":")
    array = np.random.default_rng(1).standard_normal([int(n) for n in shape.split(",")]).astype(np.float32)
    for label, module, address in [("HTTP", over_http, sys.argv[1]), ("gRPC", over_grpc, sys.argv[2])]:
        p50, p99 = measure(module.InferenceServerClient(address), module, model, name, array)
        print(f"| {label}, {array.nbytes} B | {p50:.0f} | {p99:.0f} |", flush=True)
