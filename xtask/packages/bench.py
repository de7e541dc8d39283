"""Times the packaged models of models.json: bench.py CACHE [--backend NAMES] [--held] [NAME..]

Each model runs in a process of its own per runtime, batch 1, on as many threads as there are processors: runs until
half a second has passed, at least ten, then the median of thirty. The table has the time of ONNX Runtime and the ratio
of byoc's time to it, per backend and for the best of them; the last lines are geometric means and worst ratios. Every
third model of the list is set aside, for a measurement after a change was made: `--held` measures those alone, and
without it they are left out.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

import fetch
import models
import numpy as np

RUNS, WARM_RUNS, WARM_SECONDS = 30, 10, 0.5
# No model is measured for longer, in seconds.
MOST_SECONDS = 20


def measure(file, model, backend):
    """Prints the median time of a model in this process, in seconds."""
    session, feeds = models.open_session(file, model, backend)
    begin, count = time.perf_counter(), 0
    while count < WARM_RUNS or time.perf_counter() - begin < WARM_SECONDS:
        session.run(None, feeds)
        count += 1
        if time.perf_counter() - begin > MOST_SECONDS / 4:
            break
    times = []
    while len(times) < RUNS and sum(times) < MOST_SECONDS:
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    print(np.median(times))


def timed(file, model, backend, folder):
    """Returns the median time, measured in a process of its own; None if the model does not run."""
    words = [sys.executable, __file__, "--one", file, json.dumps(model), backend]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=models.TIMEOUT, cwd=folder)
        return float(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None


def listed(names, held):
    """Returns the chosen models, each as its label, its package, and its entry in the list."""
    entries = []
    for package in json.loads((models.FOLDER / "models.json").read_text()):
        for model in package["models"]:
            label = f"{package['name']} {pathlib.PurePath(model['path']).name}"
            entries.append((label, package, model))
    for index, (label, package, model) in enumerate(entries):
        if (index % 3 == 2) == held and (not names or any(name in label for name in names)):
            yield label, package, model


def unpacked(cache, package, model):
    archive = fetch.archive(package, cache)
    return fetch.unpack(archive, [model["path"], *model.get("with", [])], cache / "files" / archive.name)[0]


def processor():
    """Returns the processor's name and its numbers of family and model, for names of rented machines say little."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    return f"{facts.get('model name')}, family {facts.get('cpu family')}, model {facts.get('model')}"


def summary(name, ratios):
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{name:<12} {len(ratios)} models, geometric mean {mean:.2f}, worst {max(ratios):.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=pathlib.Path)
    parser.add_argument("--backend", default="host,dnnl,ccompiler")
    parser.add_argument("--held", action="store_true")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_intermixed_args()
    backends = chosen.backend.split(",")
    print(f"{processor()}, {models.threads()} threads")
    print(f"{'model':<58} {'ms':>8}  " + "  ".join(f"{name:>10}" for name in [*backends, "best"]))
    ratios = {name: [] for name in [*backends, "best"]}
    for label, package, model in listed(chosen.names, chosen.held):
        file = unpacked(chosen.cache.resolve(), package, model)
        with tempfile.TemporaryDirectory() as folder:
            reference = timed(file, model, models.REFERENCE, folder)
            if reference is None:
                print(f"{label:<58} does not run on ONNX Runtime")
                continue
            found = {name: timed(file, model, name, folder) for name in backends}
        found["best"] = min((one for one in found.values() if one is not None), default=None)
        cells = ["error" if one is None else f"{one / reference:.2f}" for one in found.values()]
        for name, one in found.items():
            ratios[name] += [] if one is None else [one / reference]
        print(f"{label:<58} {1e3 * reference:>8.3f}  {'  '.join(f'{cell:>10}' for cell in cells)}", flush=True)
    for name, found in ratios.items():
        summary(name, found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], json.loads(sys.argv[3]), sys.argv[4])
    else:
        main()
