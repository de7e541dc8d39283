"""Throughput by batch size, threads and instances on one machine: in one process, and behind the server.

Run it on an idle machine: cargo xtask bench scaling [--model FILE] [--backend NAME,...] [--rounds N] [--seconds S]

Prints Markdown tables. Each round measures all settings in sequence; a figure is the median over the rounds. The
default model is ResNet-50 with seeded weights and an open batch size. Inputs are random.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import numpy as np

import byoc

BATCHES = (1, 2, 4, 8, 16)
# Threads, instances and maximum batch size of the server.
SERVERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 4), (2, 1, 8), (1, 2, 4))
CLIENTS = (1, 4, 16)


def open_batch(path: str, to: str) -> str:
    """Writes an ONNX model with a symbolic first dimension of its inputs and outputs."""
    import onnx

    model = onnx.load(path)
    for port in [*model.graph.input, *model.graph.output]:
        port.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, to)
    return to


def feeds(model: byoc.Model, rows: int) -> dict[str, np.ndarray]:
    """Returns random inputs with the given number of rows."""
    random = np.random.default_rng(0)
    made = {}
    for port in model.inputs:
        shape = [rows, *(size if isinstance(size, int) else 1 for size in port.shape[1:])]
        made[port.name] = random.random(shape).astype(port.dtype)
    return made


def repeated(call: Callable[[], object], seconds: float, callers: int = 1) -> tuple[float, list[float]]:
    """Calls a function repeatedly on several threads. Returns the calls per second, and the duration of each call."""
    durations: list[float] = []
    end = time.perf_counter() + seconds

    def work() -> None:
        own = []
        while True:
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
            if start + own[-1] >= end:
                break
        durations.extend(own)

    start = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(durations) / (time.perf_counter() - start), durations


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table."""
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def in_process(path: str, options: dict, rounds: int, seconds: float) -> None:
    """Measures runs with several batch sizes, on one thread and on all threads, and concurrent runs."""
    cpus = os.cpu_count() or 1
    counts = sorted({1, cpus})
    models = {}
    for threads in counts:
        dims = {"batch": list(BATCHES)}
        models[threads] = byoc.compile(path, dims=dims, session=byoc.Session(threads=threads), **options)
    settings = [(threads, 1, rows) for threads in counts for rows in BATCHES]
    # One concurrent run per processor, each on one thread.
    settings += [(1, cpus, rows) for rows in BATCHES[:3]]
    found: dict[tuple, list[tuple[float, float]]] = {setting: [] for setting in settings}
    for _ in range(rounds):
        for setting in settings:
            threads, callers, rows = setting
            model = models[threads]
            values = feeds(model, rows)
            model.run(values)
            rate, durations = repeated(lambda model=model, values=values: model.run(values), seconds, callers)
            found[setting].append((rate * rows, statistics.median(durations) * 1e3))
    rows = []
    for (threads, callers, size), results in found.items():
        rate, latency = (statistics.median(column) for column in zip(*results))
        rows.append((str(size), str(threads), str(callers), f"{rate:.1f}", f"{latency:.2f}"))
    table("In one process", ("batch", "threads", "runs at once", "items/s", "ms per run"), rows)


@contextmanager
def served(path: str, words: Sequence[str]):  # noqa: ANN201
    """Runs a server for a model, and yields its port."""
    command = [sys.executable, "-m", "byoc", "serve", f"model={path}", "--http=0", "--grpc=none", *words]
    process = subprocess.Popen([*command, "--log-format=json"], stderr=subprocess.PIPE, text=True)
    try:
        port = None
        for line in process.stderr:
            event = json.loads(line) if line.startswith("{") else {}
            if "http" in event:
                port = int(event["http"].rpartition(":")[2])
            if event.get("message") == "started":
                break
        if port is None:
            raise SystemExit("expected a running server, found an exited process")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield port
    finally:
        process.terminate()
        process.wait()


def request(values: dict[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """Returns the body and the headers of a request with binary tensors."""
    names = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "uint8": "UINT8"}
    inputs = [
        {
            "name": name,
            "datatype": names[array.dtype.name],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in values.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(array.tobytes() for array in values.values())
    return body, {"Inference-Header-Content-Length": str(len(head))}


def load(port: int, clients: int, body: bytes, headers: dict[str, str], seconds: float) -> tuple[float, list[float]]:
    """Sends requests on the given number of connections."""
    local = threading.local()

    def call() -> None:
        connection = getattr(local, "connection", None)
        if connection is None:
            connection = local.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v2/models/model/infer", body, headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"expected status 200, found {response.status}: {text[:200]!r}")

    return repeated(call, seconds, clients)


def behind_server(path: str, backend: str | None, rounds: int, seconds: float) -> None:
    """Measures server settings for several numbers of clients, each with one request in flight."""
    body, headers = request(feeds(byoc.compile(path), 1))
    found: dict[tuple, list[tuple[float, float, float]]] = {(s, c): [] for s in SERVERS for c in CLIENTS}
    for _ in range(rounds):
        for setting in SERVERS:
            threads, instances, batch = setting
            words = [f"--threads={threads}", f"--instances={instances}", f"--max-batch-size={batch}"]
            words += [f"--dim=batch={','.join(str(n) for n in range(1, batch + 1))}"] if batch > 1 else []
            words += [f"--backend={backend}"] if backend else []
            with served(path, words) as port:
                load(port, 1, body, headers, seconds / 4)
                for clients in CLIENTS:
                    rate, durations = load(port, clients, body, headers, seconds)
                    cuts = statistics.quantiles(durations, n=100) if len(durations) > 1 else durations * 99
                    found[setting, clients].append((rate, cuts[49] * 1e3, cuts[98] * 1e3))
    rows = []
    for ((threads, instances, batch), clients), results in found.items():
        rate, middle, late = (statistics.median(column) for column in zip(*results))
        settings = (str(threads), str(instances), str(batch), str(clients))
        rows.append((*settings, f"{rate:.1f}", f"{middle:.1f}", f"{late:.1f}"))
    table("Behind the server", ("threads", "instances", "max batch", "clients", "requests/s", "p50 ms", "p99 ms"), rows)


def main() -> None:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="ONNX model with a symbolic first dimension")
    parser.add_argument("--backend", default="dnnl" if os.environ.get("BYOC_DNNL_LIB") else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.model
        if path is None:
            original = byoc.zoo("resnet50", os.path.join(folder, "resnet50.onnx"))
            path = open_batch(original, os.path.join(folder, "open.onnx"))
        print(f"{os.path.basename(chosen.model or 'resnet50')}, {chosen.backend or 'the host'}, {os.cpu_count()} cores")
        options = {} if chosen.backend is None else {"backend": chosen.backend}
        in_process(path, options, chosen.rounds, chosen.seconds)
        behind_server(path, chosen.backend, chosen.rounds, chosen.seconds)


if __name__ == "__main__":
    main()
