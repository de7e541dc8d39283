"""Runs the packaged models of models.json on ONNX Runtime and on byoc: models.py CACHE [--backend NAMES] [NAME..]

Each model runs in a process of its own per runtime, on the same seeded inputs. The table has a row per model: the
verdict on each backend, and the ratio of the median times, byoc's to ONNX Runtime's. A verdict is `identical`,
`different` with the relative difference, or `error` with the message. ONNX Runtime's optimizer rounds quantized
operators elsewhere than the model says: a result that it gives without optimizations is identical as well. The exit
code is 1 if a verdict is not `identical`, or not the one that `known` in the list begins with, before the reason.

A model of the list has a path, and as far as needed: `dims`, sizes of symbolic dimensions by name (others are 1);
`shapes` of inputs; `values` of inputs; `below`, exclusive maxima of inputs with whole numbers >= 0 (of integers 2, if
nothing is said); `random`, true if its results are random; `with`, other files that it reads.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import fetch
import numpy as np

FOLDER = pathlib.Path(__file__).parent
LIMIT = 5e-4
REFERENCE, UNOPTIMIZED = "onnxruntime", "onnxruntime without optimizations"
TIMEOUT = 600
# Total time of the timed runs of a model, in seconds.
SECONDS = 1.5

TYPES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32,
    "int16": np.int16, "int8": np.int8, "uint8": np.uint8, "uint16": np.uint16, "bool": np.bool_,
}  # fmt: skip


def inputs(ports, model):
    """Returns seeded values for the inputs of a session."""
    random = np.random.default_rng(0)
    feeds = {}
    for port in ports:
        kind = port.type[len("tensor(") : -1]
        if port.name in model.get("values", {}):
            value = np.array(model["values"][port.name])
            feeds[port.name] = value.astype(object if kind == "string" else TYPES[kind])
            continue
        dims = model.get("dims", {})
        shape = model.get("shapes", {}).get(port.name)
        if shape is None:
            shape = [size if isinstance(size, int) else dims.get(size, 1) for size in port.shape]
        dtype = np.dtype(TYPES[kind])
        below = model.get("below", {})
        if dtype.kind == "f" and port.name not in below:
            feeds[port.name] = np.asarray(random.standard_normal(shape)).astype(dtype)
        else:
            feeds[port.name] = random.integers(0, below.get(port.name, 2), shape).astype(dtype)
    return feeds


def threads():
    return len(os.sched_getaffinity(0))


def open_session(file, model, backend):
    """Returns a session of a model, and its inputs."""
    if backend in (REFERENCE, UNOPTIMIZED):
        import onnxruntime as runtime
    else:
        import byoc.onnxruntime as runtime
    options = runtime.SessionOptions()
    if backend == UNOPTIMIZED:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = threads()
    if backend not in (REFERENCE, UNOPTIMIZED, "host"):
        options.add_session_config_entry("byoc.backend", backend)
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return session, inputs(session.get_inputs(), model)


def run_one(file, model, backend, out):
    """Runs a model in this process, and writes the results and the median time."""
    session, feeds = open_session(file, model, backend)
    results = session.run(None, feeds)
    times = []
    while sum(times) < SECONDS and len(times) < 100:
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    np.savez(out, time=np.median(times), **{f"result_{index}": plain(value) for index, value in enumerate(results)})


def plain(value):
    """Returns a result as an array; sequences and maps as their text."""
    if isinstance(value, np.ndarray):
        return value.astype(str) if value.dtype.kind == "O" else value
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return np.array([[float(number) for number in one.values()] for one in value])
    return np.array(repr(value))


def start(file, model, backend, out):
    """Runs a model in another process. Returns None, or the error."""
    words = [sys.executable, __file__, "--one", file, json.dumps(model), backend, out]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, cwd=out.parent)
    except subprocess.TimeoutExpired:
        return f"no result after {TIMEOUT} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "ONNXRuntimeError" in line]
    return (named or lines or [f"exit code {done.returncode}"])[-1].strip()


def difference(found, expected):
    """Returns the relative difference of two results, or a description of other types or shapes."""
    if found.shape != expected.shape or found.dtype.kind != expected.dtype.kind:
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if found.dtype.kind not in "fc":
        return 0.0 if (found == expected).all() else f"{(found != expected).mean():.1%} of the elements"
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(found) == np.isfinite(expected)).all():
        return "other elements are finite"
    finite = np.isfinite(expected)
    scale = np.abs(expected[finite]).max(initial=0) or 1.0
    return float(np.abs(found - expected)[finite].max(initial=0) / scale)


def statistics(found, expected):
    """Returns the difference of two random results in mean and deviation."""
    if found.shape != expected.shape:
        return difference(found, expected)
    scale = float(expected.std()) or 1.0
    return max(abs(float(found.mean() - expected.mean())), abs(float(found.std() - expected.std()))) / scale


def verdict(found, expected, model):
    if len(found.files) != len(expected.files):
        return f"different: {len(found.files) - 1} results instead of {len(expected.files) - 1}"
    compare, limit = (statistics, 0.1) if model.get("random") else (difference, LIMIT)
    worst = 0.0
    for name in expected.files:
        if name == "time":
            continue
        found_difference = compare(found[name], expected[name])
        if isinstance(found_difference, str):
            return f"different: {found_difference}"
        worst = max(worst, found_difference)
    return "identical" if worst <= limit else f"different: {worst:.1e}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=pathlib.Path)
    parser.add_argument("--backend", default="host,dnnl,ccompiler")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_intermixed_args()
    backends = chosen.backend.split(",")
    packages = json.loads((FOLDER / "models.json").read_text())
    unexpected, counts = [], {backend: 0 for backend in backends}
    total = 0
    print(f"{'model':<58} {'ms':>8}  " + "  ".join(f"{backend:<24}" for backend in backends))
    for package in packages:
        if chosen.names and not any(name in package["name"] for name in chosen.names):
            continue
        cache = chosen.cache.resolve()
        try:
            file = fetch.archive(package, cache)
        except RuntimeError as error:
            unexpected.append(str(error))
            continue
        for model in package["models"]:
            label = f"{package['name']} {pathlib.PurePath(model['path']).name}"
            total += 1
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                names = [model["path"], *model.get("with", [])]
                path = fetch.unpack(file, names, cache / "files" / file.name)[0]
                error = start(path, model, REFERENCE, folder / "expected.npz")
                if error is not None:
                    print(f"{label:<58} ONNX Runtime: {error}")
                    unexpected.append(f"{label}: ONNX Runtime: {error}")
                    continue
                expected = np.load(folder / "expected.npz")
                cells = []
                for backend in backends:
                    error = start(path, model, backend, folder / f"{backend}.npz")
                    if error is None:
                        found = np.load(folder / f"{backend}.npz")
                        text = verdict(found, expected, model)
                        unoptimized = folder / "unoptimized.npz"
                        if text != "identical" and start(path, model, UNOPTIMIZED, unoptimized) is None:
                            other = verdict(found, np.load(unoptimized), model)
                            text = other if other == "identical" else text
                        ratio = f" {float(found['time'] / expected['time']):.2f}"
                    else:
                        text, ratio = f"error: {error}", ""
                    counts[backend] += text == "identical"
                    known = model.get("known", "identical")
                    if not text.startswith(known.split(":")[0]):
                        unexpected.append(f"{label} on {backend}: expected {known}, found {text}")
                    cells.append(f"{text.split(':')[0] + ratio:<24}")
                print(f"{label:<58} {1e3 * float(expected['time']):>8.2f}  {'  '.join(cells)}", flush=True)
    print(f"{total} models: " + ", ".join(f"{count} identical on {backend}" for backend, count in counts.items()))
    for line in unexpected:
        print(line)
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        file, model, backend, out = sys.argv[2:]
        run_one(file, json.loads(model), backend, out)
    else:
        main()
