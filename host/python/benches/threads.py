"""Soak test: 8 threads run one model 20,000 times each. Results must be equal, and memory must not grow.

Run it with the installed wheel: python host/python/benches/threads.py MODEL.onnx
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
from pathlib import Path

import numpy as np

import byoc

THREADS, RUNS, SAMPLES = 8, 20_000, 400


def resident() -> int:
    """Returns the resident memory of the process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def main() -> int:
    """Runs the test; returns 1 if a result differs or memory grows by more than 1 %."""
    if len(sys.argv) != 2:
        print("usage: threads.py MODEL.onnx", file=sys.stderr)
        return 2
    model = byoc.compile(sys.argv[1])
    rng = np.random.default_rng(0)
    feeds = {
        port.name: rng.random([d if isinstance(d, int) else 1 for d in port.shape], np.float32) for port in model.inputs
    }
    expected = model.run(feeds)
    wrong: list[int] = []
    memory: list[int] = []

    def work(first: bool) -> None:
        for index in range(RUNS):
            found = model.run(feeds)
            if any((found[name] != value).any() for name, value in expected.items()):
                wrong.append(index)
            if first and index % (RUNS // SAMPLES) == 0:
                memory.append(resident())

    threads = [threading.Thread(target=work, args=(index == 0,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    quarter = SAMPLES // 4
    second, last = (statistics.median(memory[n * quarter : (n + 1) * quarter]) for n in (1, 3))
    print(f"{THREADS} threads, {RUNS} runs each: {len(wrong)} wrong results")
    print(
        f"resident: {second / 1e6:.2f} MB in the second quarter, {last / 1e6:.2f} MB in the last, "
        f"{last / second - 1:+.2%}"
    )
    return int(bool(wrong) or last > 1.01 * second)


if __name__ == "__main__":
    sys.exit(main())
