"""Throughput of one and of two Ray workers on a directory of images.

Run it on an idle machine: cargo xtask bench ray [--model NAME|FILE] [--backend NAME,...] [--pictures N] [--rounds N]

A cluster of three nodes with one processor each runs on the loopback interface. In each round, the directory is
classified by one worker, and then by two; each worker has one thread. The rate counts what was processed while all
workers ran: a batch at either end of this time counts by the part inside it. Prints the rates and their ratio for each
round, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

# Restricts Ray to the loopback interface.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import numpy as np
import ray
import ray.data
from PIL import Image
from ray.cluster_utils import Cluster

import byoc
import byoc.ray


class Timed(byoc.ray.Classifier):
    """Classifier that adds its process id, and the start and end time of each batch."""

    def __call__(self, batch):  # noqa: ANN001, ANN204
        start = time.time()
        found = super().__call__(batch)
        count = len(found["path"])
        times = {"start": start, "end": time.time()}
        return {
            **found,
            "worker": np.full(count, os.getpid()),
            **{key: np.full(count, at) for key, at in times.items()},
        }


def rate(folder: str, artifact: byoc.ray.Artifact, workers: int, batch_size: int) -> float:
    """Returns the images per second while all workers ran."""
    dataset = byoc.ray.classify_folder(
        folder, artifact, workers=workers, num_cpus=1, batch_size=batch_size, classifier=Timed
    )
    rows = dataset.take_all()
    found = {row["worker"] for row in rows}
    if len(found) != workers:
        raise SystemExit(f"expected {workers} workers with images, found {len(found)}")
    start = max(min(row["start"] for row in rows if row["worker"] == worker) for worker in found)
    end = min(max(row["end"] for row in rows if row["worker"] == worker) for worker in found)
    images = 0.0
    for row in rows:
        overlap = min(row["end"], end) - max(row["start"], start)
        images += max(overlap, 0) / (row["end"] - row["start"])
    return images / (end - start)


def main() -> None:
    """Runs the measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", help="architecture of `byoc zoo`, or a file")
    parser.add_argument("--backend", default="dnnl" if os.environ.get("BYOC_DNNL_LIB") else None)
    parser.add_argument("--pictures", type=int, default=960)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    node = {"num_cpus": 1, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Waits until all workers have started before the first images are classified.
    context.wait_for_min_actors_s = 120
    with tempfile.TemporaryDirectory() as work:
        model = chosen.model
        if not os.path.exists(model):
            model = byoc.zoo(model, os.path.join(work, "model.onnx"))
        folder = os.path.join(work, "pictures")
        os.mkdir(folder)
        random = np.random.default_rng(0)
        for index in range(chosen.pictures):
            pixels = random.integers(0, 256, (256, 256, 3), np.uint8)
            Image.fromarray(pixels).save(os.path.join(folder, f"{index:05}.jpg"))
        artifact = byoc.ray.put(model, **({} if chosen.backend is None else {"backend": chosen.backend}))
        ratios = []
        for index in range(chosen.rounds):
            one, two = (rate(folder, artifact, workers, chosen.batch_size) for workers in (1, 2))
            ratios.append(two / one)
            rates = f"one worker {one:.1f}, two {two:.1f} images/s"
            print(f"round {index + 1}: {rates}, ratio {ratios[-1]:.2f}", flush=True)
        print(f"median of the ratios: {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
