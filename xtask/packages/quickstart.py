"""Runs the quick start of a package, and writes its result and its time: quickstart.py SCRIPT OUT

A quick start defines `call`, a function without arguments that returns numbers, texts, arrays, and lists, tuples,
dictionaries and objects of them. It knows nothing of byoc: for byoc, this program is started with
`python -m byoc.onnxruntime`.
"""

import json
import runpy
import sys
import time
import warnings

import numpy as np

SECONDS = 3.0


def plain(value):
    """Returns a result as JSON has it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return plain(np.frombuffer(value, np.uint8))
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value).tolist()
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(one) for one in (sorted(value) if isinstance(value, set) else value)]
    if hasattr(value, "__iter__"):
        return [plain(one) for one in value]
    return {name: plain(one) for name, one in vars(value).items() if not name.startswith("_")}


def main():
    warnings.simplefilter("ignore")
    script, out = sys.argv[1:]
    call = runpy.run_path(script)["call"]
    result = plain(call())
    times = []
    while sum(times) < SECONDS and len(times) < 50:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    import onnxruntime

    runtime = "byoc" if hasattr(onnxruntime, "byoc_version") else f"onnxruntime {onnxruntime.__version__}"
    with open(out, "w") as file:
        json.dump({"result": result, "time": float(np.median(times)), "runtime": runtime}, file)


main()
