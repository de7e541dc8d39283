"""Tests of `byoc.ray` on single-machine clusters, run on demand. All traffic stays on the loopback interface."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import loopback  # noqa: F401
import numpy as np
import pytest
from conftest import DIGITS, Case, close

import byoc
import byoc.ray

pytest.importorskip("ray")
import ray  # noqa: E402
import ray.data  # noqa: E402
from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

# Workers cannot import this module, so its classes are sent to them whole.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

STORE = 100_000_000
LOOPBACK = "127.0.0.1"
# A failed node is detected after about a second.
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return found.getsockname()[1]


class Nodes:
    """Cluster of nodes with one processor each."""

    def __init__(self, count: int) -> None:
        node = {"num_cpus": 1, "object_store_memory": STORE}
        head = {**node, "include_dashboard": False, "_system_config": HEALTH}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.others = [self.cluster.add_node(**node) for _ in range(count - 1)]
        ray.init(address=self.cluster.address, log_to_driver=False)
        self.cluster.wait_for_nodes()
        ray.data.DataContext.get_current().enable_progress_bars = False

    def kill(self, names: set[str]) -> None:
        """Kills one of the named nodes that is not the head."""
        found = next(node for node in self.others if node.node_id in names)
        self.others.remove(found)
        self.cluster.remove_node(found, allow_graceful=False)

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture
def nodes():  # noqa: ANN201
    """Three nodes."""
    made = Nodes(3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def machine():  # noqa: ANN201
    """One node with two processors, and the port of its Ray Serve."""
    port = free_port()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE,
        log_to_driver=False,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    serve.start(http_options={"host": LOOPBACK, "port": port})
    yield port
    serve.shutdown()
    ray.shutdown()


def pictures(folder: Path, count: int, size: int = 8) -> dict[str, np.ndarray]:
    """Writes random images, and returns them by path."""
    from PIL import Image

    random = np.random.default_rng(2)
    folder.mkdir()
    made = {}
    for index in range(count):
        path = folder / f"{index:03}.png"
        made[os.fspath(path)] = random.integers(0, 256, (size, size), np.uint8)
        Image.fromarray(made[os.fspath(path)]).save(path)
    return made


class Marking(byoc.ray.Classifier):
    """Classifier that creates a marker file per image, and delays each batch."""

    def __call__(self, batch):  # noqa: ANN001, ANN204
        import time

        found = super().__call__(batch)
        node = ray.get_runtime_context().get_node_id()
        for path in batch["path"]:
            Path(f"{path}.{node}.{os.getpid()}.seen").touch()
        time.sleep(0.1 * len(batch["path"]))
        return found


def test_a_node_is_lost(nodes: Nodes, tmp_path: Path) -> None:
    """Kills the node of one of two workers during the classification; the result contains every image once."""
    folder, count = tmp_path / "pictures", 240
    made = pictures(folder, count)
    (folder / "notes.txt").write_text("no picture by its name")
    (folder / "broken.png").write_text("no picture by its contents")

    def workers() -> list[tuple[str, str]]:
        """Node and process of the worker of each classified image."""
        return [tuple(path.name.split(".")[-3:-1]) for path in folder.glob("*.seen")]

    dataset = byoc.ray.classify_folder(folder, os.fspath(DIGITS), workers=2, batch_size=4, classifier=Marking)
    rows = []
    for row in dataset.iter_rows():
        rows.append(row)
        if len(rows) == 20:
            seen = workers()
            # Both workers have classified some images, and some images remain.
            assert 20 <= len(seen) < count and len(set(seen)) == 2
            nodes.kill({node for node, _ in seen})
    paths = Counter(row["path"] for row in rows)
    assert set(paths) == {*made, os.fspath(folder / "broken.png")} and set(paths.values()) == {1}
    # A third worker replaced the killed one.
    assert len(set(workers())) >= 3
    scores = byoc.compile(DIGITS)(np.stack(list(made.values()))[:, None].astype(np.float32) / 255)
    expected = dict(zip(made, scores))
    for row in rows:
        if row["path"].endswith("broken.png"):
            assert row["label"] == "" and "cannot identify" in row["error"]
        else:
            score = expected[row["path"]]
            assert row["label"] == str(score.argmax()) and abs(row["score"] - score.max()) < 1e-3


def test_processes_that_read_are_limited(
    machine: int,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks that Ray reads files in at most as many processes as the cluster has processors, or as are requested."""
    pictures(tmp_path / "pictures", 4)
    read, limits = ray.data.read_binary_files, []

    def reading(*args, **options):  # noqa: ANN002, ANN003, ANN202
        limits.append(options["concurrency"])
        return read(*args, **options)

    monkeypatch.setattr(ray.data, "read_binary_files", reading)
    for options in ({}, {"readers": 5}):
        dataset = byoc.ray.classify_folder(tmp_path / "pictures", os.fspath(DIGITS), workers=1, **options)
        assert len(dataset.take_all()) == 4
    assert limits == [2, 5]
    with pytest.raises(ValueError, match="readers: expected a number >= 1, found 0"):
        byoc.ray.classify_folder(tmp_path / "pictures", os.fspath(DIGITS), readers=0)


def test_map_batches(machine: int, digits: Case) -> None:  # noqa: ARG001
    images = np.random.default_rng(3).random((50, 1, 8, 8), np.float32)
    model = byoc.compile(digits.path)
    name = model.outputs[0].name
    dataset = ray.data.from_numpy(images).map_batches(
        byoc.ray.Predictor,
        fn_constructor_args=(byoc.ray.put(model),),
        fn_constructor_kwargs={"inputs": {"image": "data"}, "keep": ["data"]},
        batch_size=8,
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
    )
    rows = dataset.take_all()
    assert len(rows) == 50
    for row in rows:
        assert close(row[name], model(row["data"][None])[0])


def test_threads_and_memory_of_workers(machine: int, tmp_path: Path) -> None:  # noqa: ARG001
    """Checks that a worker has `num_cpus` threads, and shares the weights in memory with the node's other workers."""
    from onnx import TensorProto, helper, numpy_helper

    columns = 500_000
    weights = np.random.default_rng(4).random((4, columns), np.float32)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", columns]) for name in "xy"]
    index = helper.make_tensor_value_info("i", TensorProto.INT64, [1])
    rows = [helper.make_node("Gather", ["w", "i"], ["row"]), helper.make_node("Mul", ["x", "row"], ["y"])]
    graph = helper.make_graph(rows, "g", [ports[0], index], [ports[1]], [numpy_helper.from_array(weights, "w")])
    model = byoc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    artifact = byoc.ray.put(model)

    @ray.remote
    class Worker:
        def load(self, artifact: byoc.ray.Artifact) -> tuple[int, int, bool]:
            from byoc.ray._require import worker_threads

            def private() -> int:
                lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_", "Swap:"))) << 10

            session = byoc.Session(threads=worker_threads())
            before = private()
            self.model = artifact.load(session)
            x = np.ones((1, columns), np.float32)
            found = self.model.run({"x": x, "i": np.array([1])})["y"]
            return session.threads, private() - before, bool((found == weights[1]).all())

    for cpus, threads in ((1, 1), (2, 2), (0.5, 1), (0, 1)):
        worker = Worker.options(num_cpus=cpus).remote()
        found, grown, right = ray.get(worker.load.remote(artifact))
        assert (found, right) == (threads, True)
        # The input and the output of the run take 2 MB each.
        assert grown < weights.nbytes, f"expected less than {weights.nbytes} bytes, found {grown}"
        ray.kill(worker)


def test_serve(machine: int, digits: Case) -> None:
    model = byoc.compile(digits.path)
    images = np.random.default_rng(5).random((40, 1, 8, 8), np.float32)
    expected = model(images)
    output = model.outputs[0].name
    application = byoc.ray.deployment(
        model, name="digits", replicas=(1, 2), max_batch_size=4, batch_wait_timeout_s=0.2, num_cpus=0.5
    )
    handle = serve.run(application, name="digits", route_prefix="/digits")
    answers = [handle.remote(images[index : index + 1]) for index in range(40)]
    for answer, score in zip(answers, expected):
        assert close(answer.result(timeout_s=60)[output], score[None])
    # A call by name with several rows.
    assert close(handle.remote({"image": images[:7]}).result(timeout_s=60)[output], expected[:7])
    with pytest.raises(byoc.InputError, match="expected"):
        handle.remote(np.ones((1, 1, 8), np.float32)).result(timeout_s=60)

    def request(body: object = None) -> tuple[int, dict]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{machine}/digits", data, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    assert request()[1]["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    tensor = {"name": "image", "datatype": "FP32", "shape": [2, 1, 8, 8], "data": images[:2].ravel().tolist()}
    status, found = request({"id": "a", "inputs": [tensor]})
    assert status == 200 and found["id"] == "a" and found["model_name"] == "digits"
    data = np.array(found["outputs"][0]["data"], np.float32)
    assert close(data.reshape(found["outputs"][0]["shape"]), expected[:2])
    status, found = request({"inputs": []})
    assert (status, found["code"]) == (400, "E0805")
    serve.delete("digits")


def test_scaling_of_deployments(machine: int, digits: Case) -> None:  # noqa: ARG001
    """Checks that the options of a deployment are passed to Ray Serve."""
    artifact = byoc.ray.put(digits.path)
    made = byoc.ray.deployment(artifact, replicas=(0, 3), max_batch_size=16)._bound_deployment
    scaling = made._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (0, 3, 16)
    assert made.max_ongoing_requests == 32 and made.ray_actor_options["num_cpus"] == 1
    fixed = byoc.ray.deployment(artifact, replicas=2, num_cpus=2, max_ongoing_requests=7)._bound_deployment
    assert (fixed.num_replicas, fixed.max_ongoing_requests, fixed.ray_actor_options["num_cpus"]) == (2, 7, 2)
    for options, message in (
        ({"replicas": 0}, "replicas: expected a number >= 1"),
        ({"replicas": (3, 2)}, "in ascending order"),
        ({"max_batch_size": 0}, "max_batch_size: expected a number >= 1, found 0"),
        ({"batch_wait_timeout_s": -1}, "batch_wait_timeout_s: expected a number >= 0"),
        ({"num_cpus": 0}, "num_cpus: expected a number > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            byoc.ray.deployment(artifact, **options)
    with pytest.raises(ValueError, match="workers: expected two numbers >= 1"):
        byoc.ray.classify_folder(".", artifact, workers=(2, 1))


def test_calls_are_joined(machine: int, tmp_path: Path) -> None:  # noqa: ARG001
    """Checks that calls are batched, unless the results of rows depend on other rows."""
    mean = "subtract(%x, mean(%x, axis=[0], keepdims=True))"
    for name, body in (("apart", "nn.relu(%x)"), ("mixing", mean)):
        file = tmp_path / f"{name}.relay"
        file.write_text(f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(n, 2), float32]) {{ {body} }}\n')
        application = byoc.ray.deployment(
            file, name=name, replicas=1, max_batch_size=4, batch_wait_timeout_s=3600, num_cpus=0.5
        )
        handle = serve.run(application, name=name, route_prefix=f"/{name}")
        first = handle.remote(np.full((1, 2), 0, np.float32))
        if name == "mixing":
            assert (first.result(timeout_s=60)["output_0"] == 0).all()
        else:
            with pytest.raises(TimeoutError):
                first.result(timeout_s=2)
            others = [handle.remote(np.full((1, 2), n, np.float32)) for n in (1, 2, 3)]
            for n, answer in enumerate([first, *others]):
                assert (answer.result(timeout_s=60)["output_0"] == n).all()
        serve.delete(name)


def test_command(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    made = pictures(folder, 12)
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"digit {n}\n" for n in range(10)))
    scores = byoc.compile(DIGITS)(np.stack(list(made.values()))[:, None].astype(np.float32) / 255)
    words = [sys.executable, "-m", "byoc.ray", os.fspath(folder), os.fspath(DIGITS), "--labels", os.fspath(labels)]
    done = subprocess.run([*words, "--workers", "1"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = {row["path"]: row["label"] for row in map(json.loads, done.stdout.splitlines())}
    assert found == {path: f"digit {score.argmax()}" for path, score in zip(made, scores)}
    table = tmp_path / "result.csv"
    done = subprocess.run([*words, "--output", os.fspath(table)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert table.read_text().splitlines()[0] == "path,label,score,error" and table.read_text().count("\n") == 13
    assert [path.name for path in tmp_path.glob("tmp*")] == []
    # The model has no image input: the command reports the error of the worker.
    relu = tmp_path / "relu.relay"
    relu.write_text('#[version = "0.0.5"]\ndef @main(%x: Tensor[(n, 2), float32]) { nn.relu(%x) }\n')
    wrong = [*words[:4], os.fspath(relu)]
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr.startswith("error[E0605]: "), done.stderr
    missing = subprocess.run([*words[:3], "/no/such/folder", *words[4:]], capture_output=True, text=True, timeout=300)
    assert missing.returncode == 1 and missing.stderr.startswith("error")
