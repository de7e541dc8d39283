"""Tests of the parts of `byoc.ray` that do not require a cluster: rows, columns, images, calls, threads."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Case, close

import byoc
import byoc.ray
from byoc.ray import _oip
from byoc.ray._artifact import artifact_bytes
from byoc.ray._calls import run_calls
from byoc.ray._images import Format
from byoc.ray._require import whole_threads, worker_threads
from byoc.ray._rows import Rows, keeps_rows_apart


def relay(tmp_path: Path, text: str) -> byoc.Model:
    file = tmp_path / f"model_{abs(hash(text))}.relay"
    file.write_text(f'#[version = "0.0.5"]\ndef @main({text}\n')
    return byoc.compile(file)


RELU = "%x: Tensor[({n}, 3), float32]) {{ nn.relu(%x) }}"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter that cannot import Ray."""
    code = "import sys; sys.modules.update({'ray': None, 'ray.data': None, 'ray.serve': None})\n" + code
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


# Threads


@pytest.mark.parametrize(("cpus", "threads"), [(None, 1), (0, 1), (0.5, 1), (1, 1), (1.9, 1), (2, 2), (16.0, 16)])
def test_threads_of_processors(cpus: float | None, threads: int) -> None:
    assert whole_threads(cpus) == threads


def test_threads_outside_of_ray(digits: Case) -> None:
    assert worker_threads() == 0
    assert byoc.ray.Predictor(digits.path).session.threads == byoc.Session().threads
    assert byoc.ray.Predictor(digits.path, threads=1).session.threads == 1
    with pytest.raises(ValueError, match="threads: expected a number >= 1, found 0"):
        byoc.ray.Predictor(digits.path, threads=0)


# Artifacts


def test_artifact_in_memory(digits: Case, tmp_path: Path) -> None:
    model = byoc.compile(digits.path)
    expected = model(digits.feeds["image"])
    path = tmp_path / "digits.byoc"
    model.save(path)
    arrays = [artifact_bytes(model), artifact_bytes(path), artifact_bytes(path.read_bytes())]
    arrays.append(artifact_bytes(digits.path))
    for array in arrays:
        assert array.dtype == np.uint8 and array.ndim == 1 and bytes(array[:2]) == b"PK"
        assert close(byoc.load(array)(digits.feeds["image"]), expected)


def test_array_is_used_in_place(digits: Case) -> None:
    array = artifact_bytes(byoc.compile(digits.path))
    before = sys.getrefcount(array)
    model = byoc.load(array)
    assert sys.getrefcount(array) > before, "expected the model to hold the array"
    model.close()
    del model
    assert sys.getrefcount(array) == before


def test_arrays_that_are_no_artifact() -> None:
    for array in (np.zeros(4, np.float32), np.zeros((2, 2), np.uint8)):
        with pytest.raises(TypeError, match="expected a uint8 array of rank 1"):
            byoc.load(array)
    with pytest.raises(byoc.ArtifactError):
        byoc.load(np.arange(200, dtype=np.uint8))
    with pytest.raises(byoc.ArtifactError):
        byoc.load(np.zeros(0, np.uint8))


# Rows


@pytest.mark.parametrize("size", ["n", 1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_any_number_of_rows(size: str | int, count: int, tmp_path: Path) -> None:
    rows = Rows(relay(tmp_path, RELU.format(n=size)))
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3) - 4
    found = rows.run({"x": x})["output_0"]
    assert found.shape == x.shape and found.dtype == x.dtype and (found == np.maximum(x, 0)).all()


def test_models_without_rows(tmp_path: Path) -> None:
    with pytest.raises(byoc.ModelError, match='input "x": expected a first dimension for rows, found a scalar'):
        Rows(relay(tmp_path, "%x: float32) { add(%x, 1f) }"))
    with pytest.raises(byoc.ModelError, match=r"the same first dimension, found a\[2, 3\], b\[1, 3\]"):
        Rows(relay(tmp_path, "%a: Tensor[(2, 3), float32], %b: Tensor[(1, 3), float32]) { add(%a, %b) }"))
    total = Rows(relay(tmp_path, "%x: Tensor[(n, 3), float32]) { sum(%x) }"))
    with pytest.raises(byoc.RunError, match=r"expected 2 rows, found shape \[\]"):
        total.run({"x": np.ones((2, 3), np.float32)})


def test_elements_of_columns(tmp_path: Path) -> None:
    rows = Rows(relay(tmp_path, RELU.format(n="n")))
    x = np.array([[-1, 2, 3]])
    assert (rows.run({"x": x.astype(np.float64)})["output_0"] == [[0, 2, 3]]).all()
    column = np.empty(2, object)
    column[:] = [np.array([1, 2, 3], np.float32), [4.0, 5.0, 6.0]]
    assert (rows.run({"x": column})["output_0"] == [[1, 2, 3], [4, 5, 6]]).all()
    column[1] = np.ones(2)
    with pytest.raises(byoc.InputError, match=r"rows of equal shape, found \[2\], \[3\]"):
        rows.run({"x": column})
    with pytest.raises(byoc.InputError) as caught:
        rows.run({"x": x.astype(np.int64)})
    assert caught.value.code == "E0604"
    index = "%t: Tensor[(n, 2), float32], %i: Tensor[(n), int32]) { (%t, add(%i, 1)) }"
    pairs = Rows(relay(tmp_path, index))
    t = np.zeros((2, 2), np.float32)
    assert (pairs.run({"t": t, "i": np.array([1, 2])})["output_1"] == [2, 3]).all()
    with pytest.raises(byoc.InputError, match="int64"):
        pairs.run({"t": t, "i": np.array([1, 1 << 40])})
    with pytest.raises(byoc.InputError, match="the same number of rows for each input, found t: 2, i: 1"):
        pairs.run({"t": t, "i": np.array([1])})


def test_rows_that_depend_on_each_other(tmp_path: Path) -> None:
    assert keeps_rows_apart(Rows(relay(tmp_path, RELU.format(n="n"))))
    mixing = "%x: Tensor[(n, 4), float32]) { subtract(%x, mean(%x, axis=[0], keepdims=True)) }"
    assert not keeps_rows_apart(Rows(relay(tmp_path, mixing)))


# Calls


def test_calls_run_together(tmp_path: Path) -> None:
    class Counted(Rows):
        runs: list[int] = []

        def run(self, feeds):  # noqa: ANN001, ANN202
            self.runs.append(len(next(iter(feeds.values()))))
            return super().run(feeds)

    rows = Counted(relay(tmp_path, RELU.format(n="n")))
    calls = [{"x": np.full((n, 3), n, np.float32)} for n in (1, 2, 1, 4, 5, 0)]
    calls.insert(2, {"x": np.ones((1, 2), np.float32)})
    calls.insert(4, {"y": np.ones((1, 3), np.float32)})
    results = run_calls(rows, calls, 4)
    for call, result in zip(calls, results):
        x = call.get("x")
        if x is None or x.shape[1] == 2:
            assert isinstance(result, byoc.InputError)
        else:
            assert (result["output_0"] == x).all() and result["output_0"].shape == x.shape
    # Calls with 1, 2 and 1 rows form one run of 4 rows; calls that do not match the model run separately.
    assert sorted(rows.runs) == [0, 1, 1, 4, 4, 5]
    assert run_calls(rows, [], 4) == []


def test_a_call_that_fails_fails_alone(tmp_path: Path) -> None:
    table = "%x: Tensor[(n), int64]) { take(const, %x) }"
    rows = Rows(relay(tmp_path, "%x: Tensor[(n, 3), float32]) { nn.relu(%x) }"))

    class Failing(Rows):
        def run(self, feeds):  # noqa: ANN001, ANN202
            if (feeds["x"] == 13).any():
                raise byoc.RunError(table)
            return super().run(feeds)

    rows = Failing(rows.model)
    calls = [{"x": np.full((1, 3), value, np.float32)} for value in (1, 13, 2)]
    results = run_calls(rows, calls, 8)
    assert isinstance(results[1], byoc.RunError)
    assert (results[0]["output_0"] == 1).all() and (results[2]["output_0"] == 2).all()


# Predictor


def test_columns(digits: Case) -> None:
    images = digits.feeds["image"]
    expected = byoc.compile(digits.path)(images)
    output = byoc.compile(digits.path).outputs[0].name
    predict = byoc.ray.Predictor(digits.path)
    found = predict({"image": images, "id": np.arange(3)})
    assert sorted(found) == sorted(["id", output]) and close(found[output], expected)
    # The only column provides the only input, regardless of its name.
    assert list(predict({"data": images})) == [output]
    with pytest.raises(byoc.InputError, match='expected a column "image", found "a", "b"') as caught:
        predict({"a": images, "b": images})
    assert caught.value.code == "E0603" and 'inputs={"image": COLUMN}' in caught.value.hint
    chosen = byoc.ray.Predictor(
        byoc.compile(digits.path),
        inputs={"image": "a"},
        outputs={output: "scores"},
        keep=["a"],
        preprocess=lambda batch: {**batch, "a": batch["a"] / 2},
        postprocess=lambda batch: {**batch, "best": batch["scores"].argmax(axis=1)},
    )
    found = chosen({"a": images * 2, "b": images})
    assert sorted(found) == ["a", "best", "scores"] and close(found["scores"], expected)
    for options, message in (
        ({"inputs": {"img": "a"}}, 'inputs: expected names of inputs of the model ("image"), found "img"'),
        ({"outputs": ["probs"]}, f'outputs: expected names of outputs of the model ("{output}"), found "probs"'),
    ):
        with pytest.raises(byoc.InputError) as caught:
            byoc.ray.Predictor(digits.path, **options)
        assert message in str(caught.value) and caught.value.code == "E0602"


def test_batches_of_other_formats(digits: Case) -> None:
    with pytest.raises(TypeError, match=r'batch_format="numpy"\), found builtins.list'):
        byoc.ray.Predictor(digits.path)([1])


def test_read_only_batches(digits: Case) -> None:
    images = digits.feeds["image"].copy()
    images.flags.writeable = False
    assert byoc.ray.Predictor(digits.path)({"image": images})


# Pictures


def png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_classifier(digits: Case) -> None:
    random = np.random.default_rng(1)
    pictures = [random.integers(0, 256, (8, 8), np.uint8) for _ in range(3)]
    files = [png(pictures[0]), b"no picture", png(pictures[1]), png(np.stack([pictures[2]] * 3, -1))]
    batch = {"path": np.array(["a", "b", "c", "d"]), "bytes": np.array(files, object)}
    x = np.stack(pictures)[:, None].astype(np.float32) / 255
    scores = byoc.compile(digits.path)(x)
    found = byoc.ray.Classifier(digits.path)(batch)
    assert found["path"].tolist() == ["a", "b", "c", "d"]
    assert found["label"].tolist() == [str(scores[0].argmax()), "", *map(str, scores[1:].argmax(axis=1))]
    assert close(found["score"][[0, 2, 3]], scores.max(axis=1)) and np.isnan(found["score"][1])
    assert found["error"][1].startswith("cannot identify image file") and not any(found["error"][[0, 2, 3]])
    labels = [f"digit {n}" for n in range(10)]
    named = byoc.ray.Classifier(digits.path, labels=labels, mean=0.5, std=[0.5])(batch)
    assert named["label"][0] == labels[byoc.compile(digits.path)((x - 0.5) / 0.5)[0].argmax()]
    with pytest.raises(byoc.ModelError, match="number of labels: expected at least"):
        byoc.ray.Classifier(digits.path, labels=["zero"])(batch)
    nothing = byoc.ray.Classifier(digits.path)({"path": np.array(["b"]), "bytes": np.array([b""], object)})
    assert nothing["label"].tolist() == [""] and nothing["error"][0]


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((1, 3, 224, 200), "float32", Format(False, 3, 224, 200)),
        (("n", 1, 8, 8), "float32", Format(False, 1, 8, 8)),
        ((None, 224, 200, 3), "uint8", Format(True, 3, 224, 200)),
        (("n", 3, "h", "w"), "float32", Format(False, 3, 32, 48)),
    ],
)
def test_formats(shape: tuple, dtype: str, expected: Format) -> None:
    assert Format.of(byoc.Port("x", dtype, shape), (32, 48)) == expected


def test_models_for_no_pictures() -> None:
    for shape in ((1, 4), (1, 4, 8, 8), (1, 3, 8)):
        with pytest.raises(byoc.ModelError, match="expected images with 1 or 3 channels"):
            Format.of(byoc.Port("x", "float32", shape))
    with pytest.raises(byoc.ModelError, match="expected a height and a width") as caught:
        Format.of(byoc.Port("x", "float32", (1, 3, "h", "w")))
    assert caught.value.hint == "pass size=(HEIGHT, WIDTH)"


# The protocol over HTTP


PORTS = {
    "x": byoc.Port("x", "float32", ("n", 2)),
    "i": byoc.Port("i", "int8", ("n",)),
}
GOOD = {
    "id": "7",
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [None, 4]]},
        {"name": "i", "datatype": "INT8", "shape": [2], "data": [-128, 127]},
    ],
}


def test_requests() -> None:
    call = _oip.parse(json.dumps(GOOD).encode(), PORTS)
    assert call.id == "7" and call.feeds["x"].dtype == np.float32 and call.feeds["i"].dtype == np.int8
    assert np.array_equal(call.feeds["x"], np.array([[1, 2.5], [np.nan, 4]], np.float32), equal_nan=True)
    assert call.feeds["i"].tolist() == [-128, 127]
    results = {"y": np.array([[0.5]], np.float32), "z": np.array([True])}
    assert json.loads(_oip.response("m", call, results)) == {
        "id": "7",
        "model_name": "m",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [0.5]},
            {"name": "z", "datatype": "BOOL", "shape": [1], "data": [True]},
        ],
    }
    chosen = call._replace(id=None, outputs=["z"])
    assert [one["name"] for one in json.loads(_oip.response("m", chosen, results))["outputs"]] == ["z"]
    with pytest.raises(byoc.InputError, match='expected outputs "y", "z", found "q"'):
        _oip.response("m", call._replace(outputs=["q"]), results)
    with pytest.raises(byoc.InputError, match="expected a datatype with a JSON representation, found FP16"):
        _oip.response("m", call, {"h": np.zeros(1, np.float16)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("inputs"), 'a list "inputs"'),
        (lambda r: r["inputs"].pop(), 'expected an input "i", found none'),
        (lambda r: r["inputs"].append(r["inputs"][0]), 'found "x" twice'),
        (lambda r: r["inputs"].append(3), 'objects with a string "name"'),
        (lambda r: r["inputs"][0].update(name="q" * 1000), r'expected inputs "x", "i", found "q{100}\.\.\."'),
        (lambda r: r["inputs"][0].update(datatype="FP64"), "expected the datatype FP32, found 'FP64'"),
        (lambda r: r["inputs"][0].update(shape=[2, 3]), "elements of FP32 for the shape"),
        (lambda r: r["inputs"][0].update(shape=[-1, 2]), "a shape of integers >= 0"),
        (lambda r: r["inputs"][0].update(shape=[1 << 62, 1 << 62]), "elements of FP32 for the shape"),
        (lambda r: r["inputs"][0].update(data="1"), 'expected a list "data"'),
        (lambda r: r["inputs"][0].update(data=["1", "2", "3", "4"]), "elements of FP32"),
        (lambda r: r["inputs"][0].update(data=[[1, 2], [3]]), "elements of FP32"),
        (lambda r: r["inputs"][0].update(data=[True] * 4), "elements of FP32"),
        (lambda r: r["inputs"][1].update(data=[1, 128]), "values out of range"),
        (lambda r: r["inputs"][1].update(data=[1, 1 << 70]), "elements of INT8"),
        (lambda r: r["inputs"][1].update(data=[1, 1.5]), "elements of float64"),
        (lambda r: r["inputs"][1].update(data=[1, None]), "elements of INT8"),
        (lambda r: r.update(outputs=3), "outputs: expected a list"),
        (lambda r: r.update(id=3), "id: expected a string"),
    ],
)
def test_requests_that_do_not_fit(change, message: str) -> None:  # noqa: ANN001
    request = json.loads(json.dumps(GOOD))
    change(request)
    with pytest.raises(byoc.InputError, match=message) as caught:
        _oip.parse(json.dumps(request).encode(), PORTS)
    assert caught.value.code in ("E0804", "E0805")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b'{"inputs": {}}'])
def test_bodies_that_are_no_requests(body: bytes) -> None:
    with pytest.raises(byoc.InputError, match="expected a JSON object"):
        _oip.parse(body, PORTS)


# Without Ray


@pytest.mark.parametrize("call", ["put(sys.argv[1])", "deployment(sys.argv[1])", "classify_folder('.', sys.argv[1])"])
def test_ray_is_missing(call: str, digits: Case) -> None:
    code = f"""
import byoc, byoc.ray
try:
    byoc.ray.{call}
except byoc.MissingDependency as error:
    print(error.code, error.hint)
"""
    done = python(code, digits.path)
    assert done.stdout == 'E0624 pip install "ray[data,serve]"\n', done.stderr


def test_command_without_ray(digits: Case, tmp_path: Path) -> None:
    code = "from byoc.ray.__main__ import main; sys.exit(main(sys.argv[1:]))"
    assert python(code, "--help").returncode == 0
    assert python(code, "folder", digits.path, "--output=x.parquet").returncode == 2
    done = python(code, os.fspath(tmp_path), digits.path)
    assert done.returncode == 1 and done.stderr.startswith("error[E0624]: cannot import the package ray"), done.stderr
    assert 'help: pip install "ray[data,serve]"' in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected a number >= 1, found 0"),
        ({"num_cpus": 0}, "num_cpus: expected a number > 0, found 0"),
    ],
)
def test_arguments(options: dict, message: str, digits: Case) -> None:
    with pytest.raises(ValueError, match=message):
        byoc.ray.classify_folder(".", digits.path, **options)
