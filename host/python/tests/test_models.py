"""Tests of compilation and runs, with results compared with NumPy and ONNX Runtime."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import DIGITS, ROOT, Case, close, resident
from onnx import TensorProto, helper

import byoc
import byoc.onnxruntime

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a separate interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_agrees_with_onnx_runtime(case: Case) -> None:
    expected = onnxruntime.InferenceSession(case.bytes).run(None, case.feeds)
    model = byoc.compile(case.path)
    found = model.run(case.feeds)
    assert list(found) == [port.name for port in model.outputs]
    assert all(close(a, b) for a, b in zip(found.values(), expected, strict=True))


@pytest.mark.parametrize("backend", ["ccompiler", "dnnl"])
def test_runs_on_backends(backend: str, digits: Case) -> None:
    if backend == "dnnl" and not os.environ.get("BYOC_DNNL_LIB"):
        pytest.skip("oneDNN is not installed")
    model = byoc.compile(digits.path, backend=backend, dims={"batch": 3})
    explanation = model.explain()
    assert any(region["backend"] == backend for region in explanation.regions)
    assert f"tvmgen_default_{backend}_main_0" in str(explanation)
    expected = onnxruntime.InferenceSession(digits.bytes).run(None, digits.feeds)
    assert close(model(digits.feeds["image"]), expected[0])
    # A run accepts no compile-time option, and no option of a backend without options.
    with pytest.raises(byoc.BackendError) as raised:
        model.run(digits.feeds, options={f"{backend}.bf16": True})
    assert raised.value.code == "E0427" and (raised.value.hint or "the backend has no options" in str(raised.value))


def test_calls(relu: str) -> None:
    model = byoc.compile(relu)
    expected = np.maximum(X, 0)
    assert (model(X) == expected).all()
    assert (model(x=X) == expected).all()
    assert (model.run({"x": X})["output_0"] == expected).all()
    assert (model.run([X])["output_0"] == expected).all()
    assert (model(X.tolist()) == expected).all()
    assert model.inputs == [byoc.Port("x", "float32", (2, 3))]
    assert "x: float32[2, 3]" in repr(model)


def test_open_dimensions(digits: Case) -> None:
    model = byoc.compile(digits.path)
    assert model.inputs[0].shape == ("batch", 1, 8, 8)
    images = digits.feeds["image"]
    for size in (1, 2, 3, 0):
        assert model(images[:size]).shape == (size, 10)
    fixed = byoc.compile(digits.path, dims={"batch": 2})
    with pytest.raises(byoc.InputError, match="expected"):
        fixed(images)
    several = byoc.compile(digits.path, dims={"batch": [1, 3]})
    assert close(several(images), model(images))
    port = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", port[:1], port[1:])
    # A specialized program for one size; the other dimension stays open.
    both = byoc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), dims={"n": [2]})
    for shape in ((2, 3), (4, 5)):
        assert both(np.ones(shape, np.float32)).shape == shape
    with pytest.raises(byoc.ModelError, match="no symbolic dimension"):
        byoc.compile(digits.path, dims={"bach": 2})


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x.astype(">f4"),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        lambda x: np.broadcast_to(x, x.shape),
        lambda x: type("Sub", (np.ndarray,), {})(x.shape, x.dtype, x.tobytes()),
        lambda x: Exported(x),
        lambda x: Exported(np.asfortranarray(x)),
    ],
    ids=["fortran", "negative", "strided", "big-endian", "misaligned", "read-only", "subclass", "dlpack", "dlpack-f"],
)
def test_layouts(make, relu: str) -> None:  # noqa: ANN001
    assert (byoc.compile(relu)(make(X)) == np.maximum(X, 0)).all()


class Exported:
    """Tensor of an external library that supports only DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OnDevice(Exported):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_results_belong_to_the_caller(relu: str, tmp_path: Path) -> None:
    model = byoc.compile(relu)
    first = model(X)
    second = model(X + 1)
    assert (first == np.maximum(X, 0)).all() and first.flags.writeable
    first[:] = 7
    assert (second == np.maximum(X + 1, 0)).all()
    del model
    gc.collect()
    assert (second == np.maximum(X + 1, 0)).all()
    # Outputs that are an input or a constant are copies.
    same = tmp_path / "same.relay"
    same.write_text('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 3), float32]) { (%x, %x, 1f) }\n')
    model = byoc.compile(same)
    given = X.copy()
    one, two, three = model(given)
    one[:] = 0
    three[...] = 5
    assert (given == X).all() and (two == X).all() and model(given)[2] == 1


def test_dtypes(tmp_path: Path) -> None:
    for dtype in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
                  "float32", "float64", "bfloat16"):  # fmt: skip
        node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
        kind = {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())
        number = getattr(TensorProto, kind)
        graph = helper.make_graph(
            [node], "g", [helper.make_tensor_value_info("x", number, [2])],
            [helper.make_tensor_value_info("y", number, [4])],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        if dtype == "bfloat16":
            import ml_dtypes

            x = np.array([0, 1], ml_dtypes.bfloat16)
        else:
            x = np.array([0, 1], dtype)
        y = byoc.compile(model)(x)
        assert y.dtype == x.dtype and (y == np.concatenate([x, x])).all()


def wrong_calls(model: byoc.Model) -> list[tuple[type[Exception], object]]:
    """Returns invalid calls with their expected exceptions."""
    return [
        (byoc.InputError, lambda: model()),
        (byoc.InputError, lambda: model(X, X)),
        (byoc.InputError, lambda: model(y=X)),
        (byoc.InputError, lambda: model.run({"x": X, "y": X})),
        (byoc.InputError, lambda: model.run({})),
        (byoc.InputError, lambda: model(X[:1])),
        (byoc.InputError, lambda: model(X[0])),
        (byoc.InputError, lambda: model(X.astype(np.float64))),
        (byoc.InputError, lambda: model(X.astype(np.int32))),
        (byoc.InputError, lambda: model(X.astype(object))),
        (byoc.InputError, lambda: model(np.array([["a", "b", "c"]]))),
        (byoc.InputError, lambda: model("text")),
        (byoc.InputError, lambda: model(None)),
        (byoc.InputError, lambda: model([[1, 2], [3]])),
        (byoc.InputError, lambda: model(OnDevice(X))),
        (TypeError, lambda: model(X, x=X)),
        (TypeError, lambda: model.run(3)),
        (ValueError, lambda: model.run([X], timeout=-1)),
        (byoc.TimedOut, lambda: model.run([X], timeout=1e-9)),
        (TypeError, lambda: byoc.compile(3)),
        (byoc.ModelError, lambda: byoc.compile("/nowhere.onnx")),
        (byoc.ModelError, lambda: byoc.compile(b"no model")),
        (byoc.BackendError, lambda: byoc.compile(DIGITS, backend="nobody")),
        (byoc.Error, lambda: byoc.compile(DIGITS, backend="ccompiler", options={"ccompiler.nothing": 1})),
        (ValueError, lambda: byoc.compile(DIGITS, options={"nothing": 1})),
        (ValueError, lambda: byoc.compile(DIGITS, dims={"batch": -1})),
        (TypeError, lambda: byoc.compile(DIGITS, dims={"batch": object()})),
        (byoc.ArtifactError, lambda: byoc.load("/nowhere.byoc")),
        (byoc.ArtifactError, lambda: byoc.load(b"no artifact")),
        (byoc.ArtifactError, lambda: model.save("/nowhere/model.byoc")),
    ]


def test_wrong_calls(relu: str) -> None:
    model = byoc.compile(relu)
    for kind, call in wrong_calls(model):
        with pytest.raises(kind) as raised:
            call()
        if isinstance(raised.value, byoc.Error):
            assert raised.value.code and raised.value.message and raised.value.code in str(raised.value)
            assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args
    codes = {"E0602": {"y": X}, "E0603": {}, "E0604": {"x": X.astype(object)}, "E0622": {"x": OnDevice(X)}}
    for code, feeds in codes.items():
        with pytest.raises(byoc.InputError) as raised:
            model.run(feeds)
        assert raised.value.code == code
    with pytest.raises(byoc.InputError) as raised:
        model(X[:1])
    assert raised.value.code == "E0605" and "expected" in raised.value.message and "found" in raised.value.message


def test_wrong_calls_leak_nothing(relu: str) -> None:
    model = byoc.compile(relu)
    calls = [call for _, call in wrong_calls(model)]

    def rounds(count: int) -> None:
        for _ in range(count):
            for call in calls:
                try:
                    call()
                except (byoc.Error, TypeError, ValueError):
                    pass

    rounds(50)
    before = resident()
    rounds(200)
    assert resident() - before < 2_000_000


def test_sources(digits: Case, tmp_path: Path) -> None:
    expected = byoc.compile(digits.path)(digits.feeds["image"])
    proto = onnx.load(digits.file)
    for source in (digits.file, digits.bytes, bytearray(digits.bytes), proto):
        assert (byoc.compile(source)(digits.feeds["image"]) == expected).all()
    # External data in the directory of the model file, and external data of an in-memory model.
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    external = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert (byoc.compile(external, folder=tmp_path)(digits.feeds["image"]) == expected).all()
    with pytest.raises(byoc.ModelError):
        byoc.compile(external)


def test_artifacts(digits: Case, tmp_path: Path) -> None:
    model = byoc.compile(digits.path, backend="ccompiler", dims={"batch": 3})
    expected = model(digits.feeds["image"])
    model.save(tmp_path / "digits.byoc")
    loaded = [
        byoc.load(tmp_path / "digits.byoc"),
        byoc.load((tmp_path / "digits.byoc").read_bytes()),
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
    ]
    for other in loaded:
        assert (other(digits.feeds["image"]) == expected).all()
        assert other.explain().regions == model.explain().regions
    with pytest.raises(byoc.ArtifactError):
        byoc.load((tmp_path / "digits.byoc").read_bytes()[:-100])


def large(size: int) -> onnx.ModelProto:
    """Dense layer with size x size weights."""
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        initializer=[onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_constants_of_backends_are_kept_in_a_file(tmp_path: Path) -> None:
    x = np.ones((1, 2100), np.float32)
    for folder in (tmp_path / "cache", None):
        session = byoc.Session(cache_dir=folder)
        model = byoc.compile(large(2100), backend="ccompiler", session=session)
        expected = model(x)
        assert model.is_kept_in_file
        # The file has been unlinked.
        assert not list(tmp_path.rglob("model-*.byoc"))
        model.save(tmp_path / "large.byoc")
        assert (byoc.load(tmp_path / "large.byoc")(x) == expected).all()
        assert (pickle.loads(pickle.dumps(model))(x) == expected).all()
    # Small constants, and constants of host operators, are not written to a file.
    assert not byoc.compile(large(2100)).is_kept_in_file
    assert not byoc.compile(large(8), backend="ccompiler").is_kept_in_file


def test_closed_model(relu: str) -> None:
    with byoc.compile(relu) as model:
        model(X)
    with pytest.raises(byoc.ClosedError, match="closed") as raised:
        model(X)
    assert raised.value.code == "E0623" and raised.value.hint
    model.close()


def test_plan(digits: Case) -> None:
    plan = byoc.compile(digits.path, dims={"batch": 3}).plan()
    function = plan["functions"][plan["entry"]]
    names = [step["name"] for step in function["steps"]]
    assert "nn.conv2d" in names and plan["arena_bytes"] == function["arena_bytes"] > 0
    for step in function["steps"]:
        for number in (*step["inputs"], *step["outputs"]):
            assert number < len(function["registers"])
        assert step["kind"] in ("kernel", "alias", "region", "copy", "control")
    conv = next(step for step in function["steps"] if step["name"] == "nn.conv2d")
    result = function["registers"][conv["outputs"][0]]
    assert result["dims"][0] == 3 and result["dtype"] == "float32" and conv["flops"] > 0 and conv["origins"]
    inside = [one for one in function["registers"] if one["place"] == "arena"]
    assert inside and all(one["offset"] + one["bytes"] <= function["arena_bytes"] for one in inside)
    backend = byoc.compile(digits.path, dims={"batch": 3}, backend="ccompiler").plan()
    assert any(step["backend"] == "ccompiler" for step in backend["functions"][backend["entry"]]["steps"])


def test_remedies_name_calls(digits: Case, tmp_path: Path) -> None:
    """Checks that exceptions do not name command-line options."""
    unknown = tmp_path / "rank.onnx"
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [port],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), unknown)
    hints = {
        'backend="ccompiler"': lambda: byoc.compile(digits.path, backend="ccompilr"),
        'input_shapes={"x": SHAPE}': lambda: byoc.compile(unknown),
        "byoc.configure(plugin_dirs=[DIR])": lambda: byoc.compile(
            digits.path, backend="none_such", session=byoc.Session(plugin_dirs=[tmp_path], search=False)
        ),
        'backend="template"': lambda: byoc.compile(digits.path, options={"template.x": 1}),
        "Model.save": lambda: byoc.load(digits.path),
        "convert the elements to float32": lambda: byoc.compile(digits.path)(np.zeros((1, 1, 8, 8))),
        'numpy.asarray(x, "float32")': lambda: byoc.compile(digits.path)("text"),
        "compile the model for its dimensions": lambda: byoc.compile(digits.path)(np.zeros((1, 8, 8), np.float32)),
        "model.run({NAME: ARRAY})": lambda: byoc.compile(digits.path).run({}),
    }
    for hint, call in hints.items():
        with pytest.raises(byoc.Error) as raised:
            call()
        assert hint in (raised.value.hint or ""), (hint, raised.value)
        assert "--" not in str(raised.value), raised.value
    reasons = str(byoc.compile(digits.path, backend="ccompiler").explain())
    assert 'dims={"NAME": N}' in reasons and "--dim" not in reasons


def test_explanation(digits: Case, tmp_path: Path) -> None:
    explanation = byoc.explain(digits.path, backend="template", dims={"batch": 1})
    assert explanation.totals["operators"] == len(explanation.nodes)
    assert "WHY NOT ELSEWHERE" in str(explanation)
    html = explanation._repr_html_()
    assert "<script" not in html and "Conv" in html
    explanation.save_html(tmp_path / "page.html", "digits")
    assert "<html" in (tmp_path / "page.html").read_text()


def test_warnings_name_what_helps(digits: Case) -> None:
    with pytest.warns(byoc.CompilationWarning, match=r"ccompiler accepted no operator.*dims=\{\"NAME\": N\}"):
        byoc.compile(digits.path, backend="ccompiler")


def test_plugins() -> None:
    names = {row["name"]: row["status"] for row in byoc.plugins()}
    assert names["ccompiler"] == "loaded" and names["template"] == "loaded"


def test_sessions(relu: str, tmp_path: Path) -> None:
    session = byoc.Session(plugin_dirs=[tmp_path], search=False, threads=3, cache_dir=None)
    assert session.threads == 3 and byoc.plugins(session) == []
    assert (byoc.compile(relu, session=session)(X) == np.maximum(X, 0)).all()
    with pytest.raises(byoc.BackendError):
        byoc.compile(relu, backend="ccompiler", session=session)


def test_asyncio(digits: Case) -> None:
    model = byoc.compile(digits.path)
    expected = model(digits.feeds["image"])

    async def several() -> list[dict[str, np.ndarray]]:
        return await asyncio.gather(*(model.run_async(digits.feeds) for _ in range(20)))

    assert all((result["logits"] == expected).all() for result in asyncio.run(several()))

    async def wrong() -> None:
        await model.run_async({"image": X})

    with pytest.raises(byoc.InputError):
        asyncio.run(wrong())

    async def cancelled() -> None:
        task = asyncio.ensure_future(model.run_async(digits.feeds))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_threads(digits: Case) -> None:
    model = byoc.compile(digits.path, dims={"batch": 3})
    expected = model(digits.feeds["image"])
    wrong = []

    def work() -> None:
        for _ in range(200):
            if not (model(digits.feeds["image"]) == expected).all():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


LONG = '''
import os, signal, sys, threading, time
import numpy as np
import byoc
open(sys.argv[1], "w").write("""#[version = "0.0.5"]
def @main(%x: Tensor[(), int32]) {
  let %loop = fn (%i: Tensor[(), int32]) -> Tensor[(), int32] {
    if (less(%i, 2000000000)) { %loop(add(%i, 1)) } else { %i }
  };
  %loop(%x)
}
""")
model = byoc.compile(sys.argv[1])
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    model(np.int32(0))
except KeyboardInterrupt:
    print("interrupted")
'''


def test_ctrl_c_ends_a_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LONG, os.fspath(tmp_path / "loop.relay")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "interrupted", done.stderr


def test_fork(relu: str) -> None:
    code = f"""
import os
import numpy as np
import byoc
model = byoc.compile({relu!r})
x = np.ones((2, 3), np.float32)
model(x)
child = os.fork()
if child == 0:
    try:
        model(x)
    except byoc.ForkError as error:
        # A model compiled in the child process works.
        os._exit(7 if error.code == "E0623" and error.hint and byoc.compile({relu!r})(x)[0, 0] == 1 else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code).stdout.strip() == "7"


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a plugin that ends the process: FAULT says how, ENTRY in which entry."""
    folder = tmp_path_factory.mktemp("plugins")
    command = "cc -O0 -shared -fPIC -w -I plugin-api/include tests/hardened/faulty.c -lm -lpthread -o".split()
    subprocess.run([*command, folder / "libbyoc_elementwise.so"], cwd=ROOT, check=True)
    return folder


@pytest.mark.parametrize(
    ("fault", "code", "found"),
    [
        ("segv", -11, "terminated by SIGSEGV"),
        ("abort", -6, "terminated by SIGABRT"),
        ("exit0", 1, "called exit before"),
        ("_exit0", 1, "called _exit before"),
        ("quick_exit", 1, "called quick_exit before"),
        ("exec", 1, "called execl before"),
        ("forkexit0", 1, "called _exit before"),
    ],
)
def test_plugin_that_ends_the_interpreter(relu: str, faulty: Path, fault: str, code: int, found: str) -> None:
    run = f"""
import faulthandler, sys
import numpy as np
import byoc
if sys.argv[1:] == ["before"]: faulthandler.enable()
session = byoc.Session(plugin_dirs=[{os.fspath(faulty)!r}])
if sys.argv[1:] == ["after"]: faulthandler.enable()
byoc.compile({relu!r}, backend="elementwise", session=session)(np.ones((2, 3), np.float32))
"""
    for order in ["none", "before", "after"]:
        done = subprocess.run(
            [sys.executable, "-c", run, order],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "FAULT": fault, "ENTRY": "run"},
        )
        lines = [line for line in done.stderr.splitlines() if "error[E0450]: plugin elementwise: run: region " in line]
        assert done.returncode == code and any(found in line for line in lines), done.stderr
        # The handler of the program runs, too.
        assert ("Fatal Python error" in done.stderr) == (code < 0 and order != "none"), done.stderr


def test_a_program_may_exit_and_crash_by_itself(relu: str) -> None:
    run = f"import byoc, numpy, os, sys; byoc.compile({relu!r})(numpy.ones((2, 3), numpy.float32)); "
    for end, code in [("sys.exit(0)", 0), ("os._exit(3)", 3), ("os.abort()", -6), ("os.kill(os.getpid(), 11)", -11)]:
        done = python(run + end)
        assert done.returncode == code and "E0450" not in done.stderr, done.stderr


def test_messages_have_no_control_characters(tmp_path: Path) -> None:
    name = "x\x1b[2J\n\u202e\u009b"
    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("None" + name, [name], ["y"], name=name)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [value]))
    with pytest.raises(byoc.ModelError) as raised:
        byoc.compile(model.SerializeToString())
    error = raised.value
    for text in [str(error), error.message, *error.context]:
        assert all(character == "\n" or character.isprintable() for character in text), ascii(text)
    assert "\n" not in error.message and "\\u{1b}" in str(error)


def test_import_is_light() -> None:
    done = python("import sys, byoc; print([m for m in ('numpy', 'torch', 'onnx', 'asyncio') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_missing_numpy(relu: str) -> None:
    code = f"""
import sys
sys.modules["numpy"] = None
import byoc
model = byoc.compile({relu!r})
print(model.explain().totals["operators"])
try:
    model([[1, 2, 3], [4, 5, 6]])
except byoc.MissingDependency as error:
    print(error.code, error.hint)
"""
    assert python(code).stdout.split("\n")[:2] == ["1", "E0624 pip install numpy"]


def test_namesake(tmp_path: Path) -> None:
    package = tmp_path / "byoc"
    package.symlink_to(Path(byoc.__file__).parent)
    (tmp_path / "byoc-1.0.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {os.fspath(tmp_path)!r}); import byoc"
    done = python(code, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert "pip uninstall byoc byoc-ml" in done.stderr


def test_progress(digits: Case) -> None:
    stages: list[str] = []
    byoc.compile(digits.path, progress=stages.append)
    assert len(stages) > 2


def test_models_out(tmp_path: Path, digits: Case) -> None:
    written = byoc.export_onnx(digits.path, tmp_path / "digits.onnx", stage="imported", opset=20)
    model = onnx.load(written)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 20
    assert [info.name for info in model.graph.input] == ["image"]
    image = digits.feeds["image"]
    outputs = onnxruntime.InferenceSession(written).run(None, {"image": image})
    assert close(byoc.compile(written)(image), outputs[0])
    byoc.quantize(DIGITS, DIGITS.parent / "calibration.npz", tmp_path / "int8.onnx")
    int8 = onnxruntime.InferenceSession(tmp_path / "int8.onnx").run(None, {"image": image})
    assert (int8[0].argmax(axis=1) == outputs[0].argmax(axis=1)).all()
    with pytest.raises(byoc.ModelError) as caught:
        byoc.export_onnx(digits.path, tmp_path / "x.onnx", opset=12)
    assert caught.value.code == "E0508"


def test_verify_and_quantize(tmp_path: Path, digits: Case) -> None:
    results = byoc.verify(ROOT / "tests" / "models" / "gru", arguments=["--isolate-cases"])
    assert results and results[0]["status"] == "pass", results
    report = byoc.quantize(
        digits.path, {"image": np.random.default_rng(0).random((8, 1, 8, 8), np.float32)}, tmp_path / "q.relay"
    )
    assert report
    quantized = byoc.compile(tmp_path / "q.relay")
    assert quantized(digits.feeds["image"]).shape == (3, 10)
    with pytest.raises(byoc.Error) as raised:
        byoc.quantize("/nowhere.onnx", "random", tmp_path / "q.relay")
    assert raised.value.code == "E0501"


def test_command() -> None:
    command = [sys.executable, "-m", "byoc"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert version.stdout.strip() == f"byoc {byoc.__version__}" and version.returncode == 0
    wrong = subprocess.run([*command, "run", "/nowhere.onnx"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "E0501" in wrong.stderr
    # The conformance run starts its workers with this interpreter.
    tested = subprocess.run([*command, "plugins", "test", "template", "--cases", "1"], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    # A closed pipe terminates the command without an error message.
    piped = subprocess.Popen([*command, "ops"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    piped.stdout.close()
    assert piped.stderr.read() == b"" and piped.wait() == 0


def test_signal_handler_stays() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# End of the interpreter


EXIT_IN_USE = """
import asyncio, random, sys, threading
import numpy as np, byoc

model = byoc.compile(sys.argv[1], backend=sys.argv[2] or None)
runs = 0

def image(number):
    return np.ones((1, 8, 9 + number % 37, 9 + number % 41), np.float32)

def work(first):
    global runs
    for number in range(first, first + 100_000):
        model(image(number))
        runs += 1

async def pending():
    tasks = [asyncio.ensure_future(model.run_async([image(number)])) for number in range(60)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    sys.exit(7)

if sys.argv[3] == "threads":
    for first in (0, 400, 800):
        threading.Thread(target=work, args=(first,), daemon=True).start()
    while runs < 60:
        model(image(runs))
    sys.exit(7)
asyncio.run(pending())
"""


@pytest.mark.parametrize("backend", ["", "dnnl"])
@pytest.mark.parametrize("how", ["threads", "async"])
def test_exit_while_runs_are_in_progress(tmp_path: Path, backend: str, how: str) -> None:
    if backend == "dnnl" and not os.environ.get("BYOC_DNNL_LIB"):
        pytest.skip("oneDNN is not installed")
    file = tmp_path / "conv.relay"
    file.write_text(
        '#[version = "0.0.5"]\n'
        "def @main(%x: Tensor[(1, 8, h, w), float32]) {\n"
        '  nn.relu(nn.conv2d(%x, ones(shape=[16, 8, 3, 3], dtype="float32"), strides=[2, 2], padding=[1, 1, 1, 1],'
        " channels=16, kernel_size=[3, 3]))\n}\n"
    )
    for _ in range(4):
        command = [sys.executable, "-c", EXIT_IN_USE, str(file), backend, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 7, done.stderr


def test_precision_is_the_name_of_a_format(digits: Case) -> None:
    image = digits.feeds["image"]
    expected = byoc.compile(digits.path)(image)
    for precision in ("f32", "tf32", "bf16", "f16"):
        assert close(byoc.compile(digits.path, precision=precision)(image), expected)
    with pytest.raises(ValueError, match='precision: expected one of f32, tf32, bf16, f16, found "half"'):
        byoc.compile(digits.path, precision="half")


def test_shapes_that_come_again_get_a_program(digits: Case) -> None:
    images = digits.feeds["image"]
    general = byoc.compile(digits.path, adapt=False)
    model = byoc.compile(digits.path)
    counts = []
    for size in (1, 2, 2, 2, 3, 1):
        assert close(model(images[:size]), general(images[:size]))
        counts.append(model.adapted)
    assert counts == [0, 0, 1, 1, 1, 1]
    assert general.adapted == 0
    session = byoc.onnxruntime.InferenceSession(digits.path)
    expected = onnxruntime.InferenceSession(digits.bytes).run(None, digits.feeds)
    for _ in range(4):
        assert close(session.run(None, digits.feeds)[0], expected[0])
    assert session._engine.model.adapted == 1


def test_default_values_are_replaced_by_name() -> None:
    x, b = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xb")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    default = helper.make_tensor("b", TensorProto.FLOAT, [2], [10.0, 20.0])
    graph = helper.make_graph([helper.make_node("Add", ["x", "b"], ["y"])], "sum", [x, b], [y], [default])
    model = byoc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    value, other = np.array([1, 2], np.float32), np.array([5, 6], np.float32)
    for made in (model, byoc.load(model.to_bytes())):
        assert made(x=value).tolist() == made(value).tolist() == [11, 22]
        assert made(x=value, b=other).tolist() == made.run({"b": other, "x": value})["y"].tolist() == [6, 8]
        with pytest.raises(byoc.InputError):
            made(b=other)
