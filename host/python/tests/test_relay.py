"""Relay from Python: scripts for TVM, bad input, scale, and backends in Python."""

import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import byoc
from byoc import relay
from byoc.relay import dataflow_pattern as patterns
from byoc.relay import transform

TESTS = Path(__file__).resolve().parent
SCRIPTS = sorted((TESTS / "tvm_scripts").glob("*.py"))
DIGITS = TESTS.parents[2] / "tests" / "digits" / "digits.onnx"


def run_script(path, *arguments, module="byoc.tvm"):
    command = [sys.executable, "-W", "ignore", "-m", module, str(path), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_for_tvm_run_unchanged(script):
    assert "import tvm" in script.read_text()
    done = run_script(script, *([DIGITS] if script.stem == "quantized_network" else []))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_there_are_twelve_scripts():
    assert len(SCRIPTS) >= 12


def test_importing_byoc_leaves_tvm_alone():
    code = "import byoc, byoc.tvm, sys; assert 'tvm' not in sys.modules; byoc.tvm.install(); import tvm.relay.op.nn"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_install_refuses_a_loaded_tvm():
    code = "import sys, types; sys.modules['tvm'] = types.ModuleType('tvm'); import byoc.tvm; byoc.tvm.install()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: expected a process without TVM" in done.stderr


def simple_module():
    x = relay.var("x", shape=(1, 4))
    return relay.IRModule.from_expr(relay.Function([x], relay.nn.relu(relay.add(x, x))))


def error_of(code, function, *arguments):
    with pytest.raises(byoc.Error) as caught:
        function(*arguments)
    assert caught.value.code == code, caught.value
    return caught.value


def test_unknown_operator_suggests_the_nearest():
    error = error_of("E0204", relay.op.get, "nn.conv2")
    assert "nn.conv2d" in error.hint


def test_new_operators_are_refused():
    error_of("E0204", relay.op.register, "my_operator")


def test_bad_attributes_name_what_was_expected():
    x = relay.var("x", shape=(1, 4))
    error_of("E0202", lambda: relay.Call(relay.op.get("clip"), [x], {"a_mn": 0.0}))
    error_of("E0202", lambda: relay.clip(x, 0.0, object()))
    with pytest.raises(TypeError, match="argument b is unknown"):
        relay.add(x, b=x)
    with pytest.raises(TypeError, match="write relay.const"):
        x + 1


def test_a_pattern_that_is_none():
    error_of("E0310", transform.MergeComposite, [("a.b", "nn.relu")])
    error_of("E0310", transform.MergeComposite, [("a.b",)])
    error_of("E0310", lambda: patterns.is_op("add")("x", patterns.wildcard()))


def test_a_check_that_raises_or_returns_no_boolean():
    def raises(call):
        raise KeyError("groups")

    relu = patterns.is_op("nn.relu")(patterns.wildcard())
    error = error_of("E0318", transform.MergeComposite([("a.relu", relu, raises)]), simple_module())
    assert "test_relay.py" in error.message and "KeyError" in error.message
    error = error_of("E0318", transform.MergeComposite([("a.relu", relu, lambda call: "yes")]), simple_module())
    assert "'yes'" in error.message


def test_free_variables_are_errors():
    x, y = relay.var("x", shape=(4,)), relay.var("y", shape=(4,))
    module = relay.IRModule()
    module["main"] = relay.Function([x], relay.add(x, y))
    error_of("E0208", transform.InferType(), module)


def test_a_module_survives_a_failed_pass():
    module = simple_module()
    before = str(module)

    @transform.function_pass(opt_level=0)
    def fails(function, mod, context):
        return 3

    error_of("E0318", fails, module)
    assert str(module) == before
    assert "nn.relu" in str(transform.InferType()(module))


def test_a_target_that_is_a_backend():
    error = error_of("E0403", lambda: relay.build(simple_module(), target="nuc_fpga"))
    assert "partition_for_nuc_fpga" in error.hint


def test_what_byoc_lacks_says_what_to_use():
    with pytest.raises(NotImplementedError, match="runs inference only"):
        transform.gradient()
    done = subprocess.run(
        [sys.executable, "-c", "import byoc.tvm; byoc.tvm.install(); from tvm import te; te.placeholder((1,))"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "byoc has no tensor expressions" in done.stderr


def test_text_and_structure():
    module = transform.InferType()(simple_module())
    again = relay.parse(module.astext())
    assert relay.structural_equal(module, again)
    assert relay.structural_hash(module) == relay.structural_hash(again)
    with pytest.raises(ValueError, match="nn.relu with 1 argument vs. exp"):
        x = relay.var("x", shape=(1, 4))
        relay.assert_structural_equal(relay.nn.relu(x), relay.exp(x))


def test_every_operator_has_a_function_and_a_docstring():
    names = relay.op.Op.list_op_names()
    assert len(names) > 250
    for name in names:
        prefix, _, rest = name.partition(".")
        module = getattr(relay.op, prefix, None) if rest else relay.op
        module = relay.qnn.op if prefix == "qnn" else module
        public = (rest or name).replace(".", "_")
        function = getattr(module, public, None) or getattr(module, public.lower(), None)
        assert callable(function), name


def chain(length):
    value = x = relay.var("x", shape=(4, 4))
    for i in range(length):
        value = relay.nn.relu(value) if i % 2 else relay.add(value, x)
    return relay.IRModule.from_expr(relay.Function([x], value))


def partition(module, targets):
    for target in targets:
        module = transform.AnnotateTarget(target)(module)
    return transform.PartitionGraph()(transform.MergeCompilerRegions()(module))


def test_large_modules_take_linear_time():
    relay.register_op_attr("nn.relu", "target.scale_a", lambda call: True)
    relay.register_op_attr("add", "target.scale_b", lambda call: True)
    times = []
    for length in (2_000, 20_000):
        start = time.perf_counter()
        module = partition(chain(length), ["scale_a", "scale_b"])
        times.append(time.perf_counter() - start)
        assert len(module.get_global_vars()) == length + 1
    assert times[1] < 40 * times[0], times


def test_deep_chains_do_not_recurse():
    module = transform.InferType()(chain(100_000))
    assert str(module).count("nn.relu") == 50_000
    visited = []
    relay.analysis.post_order_visit(module["main"], visited.append)
    assert len(visited) > 100_000


def test_passes_copy_no_weight():
    weight = relay.const(np.ones((1024, 1024), "float32"))
    x = relay.var("x", shape=(1, 1024))
    module = relay.IRModule.from_expr(relay.Function([x], relay.nn.relu(relay.nn.dense(x, weight))))
    tracemalloc.start()
    for _ in range(5):
        module = partition(module, ["scale_a"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.fixture
def numpy_backend():
    operators = {"add": np.add, "multiply": np.multiply, "nn.relu": lambda x: np.maximum(x, np.float32(0))}

    def supports(operator):
        if operator.name not in operators:
            return f"{operator.name} is not elementwise"
        return operator.dtype == "float32" or f"expected float32, found {operator.dtype}"

    def compile(region):
        def run(*inputs):
            values = dict(region.constants) | dict(zip(region.inputs, inputs))
            for operator in region.operators:
                values[operator.outputs[0]] = operators[operator.name](*[values[i] for i in operator.inputs])
            return [values[output] for output in region.outputs]

        return run

    byoc.register_backend("numpychip", supports=supports, compile=compile)
    yield "numpychip"
    byoc.unregister_backend("numpychip")


def test_a_backend_in_thirty_lines(numpy_backend):
    x = relay.var("x", shape=(2, 3))
    module = relay.IRModule.from_expr(relay.Function([x], relay.nn.relu(relay.exp(x) * x + x)))
    model = byoc.compile(module, backend=numpy_backend)
    value = np.random.rand(2, 3).astype("float32") - np.float32(0.5)
    np.testing.assert_allclose(model(value), np.maximum(np.exp(value) * value + value, 0), rtol=1e-5)
    explanation = str(model.explain())
    assert "exp is not elementwise" in explanation and "numpychip" in explanation


def test_a_backend_passes_its_test(numpy_backend):
    report = byoc.test_backend(numpy_backend)
    assert report["failed"] == [] and report["passed"] >= 3


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda x: x.astype("float64"), "output 0: expected float32"),
        (lambda x: (x, x), "expected 1 outputs, found 2"),
        (lambda x: x[:1], "output 0: expected float32 (2, 3), found float32 (1, 3)"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_region_that_breaks_its_contract(result, expected):
    byoc.register_backend("broken", operators=["exp"], compile=lambda region: result)
    x = relay.var("x", shape=(2, 3))
    model = byoc.compile(relay.IRModule.from_expr(relay.Function([x], relay.exp(x))), backend="broken")
    with pytest.raises(byoc.Error) as caught:
        model(np.ones((2, 3), "float32"))
    byoc.unregister_backend("broken")
    assert expected in str(caught.value)


@pytest.mark.parametrize("made", [3, None, "int x = ;"])
def test_a_backend_that_compiles_to_nothing_useful(made):
    byoc.register_backend("useless", operators=["exp"], compile=lambda region: made)
    x = relay.var("x", shape=(2, 3))
    with pytest.warns(byoc.CompilationWarning):
        model = byoc.compile(relay.IRModule.from_expr(relay.Function([x], relay.exp(x))), backend="useless")
    byoc.unregister_backend("useless")
    value = np.ones((2, 3), "float32")
    np.testing.assert_allclose(model(value), np.exp(value), rtol=1e-5)


def test_a_failing_compile_has_a_code():
    from byoc import _backend

    region = _backend._Backend("b", "", [], None, lambda region: 1 / 0, None, "")
    graph = {"symbol": "f", "nodes": [], "inputs": [], "outputs": []}
    error_of("E0460", region.compile, json.dumps(graph), [], "{}")


def test_an_artifact_holds_a_region_of_bytes(tmp_path):
    def load(blob):
        return lambda x: x * np.float32(int(blob.decode()))

    byoc.register_backend("triple", operators=["exp"], compile=lambda region: b"3", load=load)
    x = relay.var("x", shape=(2,))
    model = byoc.compile(relay.IRModule.from_expr(relay.Function([x], relay.exp(x))), backend="triple")
    model.save(tmp_path / "model.byoc")
    again = byoc.load(tmp_path / "model.byoc")
    np.testing.assert_array_equal(again(np.array([1, 2], "float32")), [3, 6])
    byoc.unregister_backend("triple")


def test_threads_may_build_at_the_same_time():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: str(transform.InferType()(chain(500))), range(8)))
    assert len(set(texts)) == 1


def test_a_backend_survives_a_fork(numpy_backend):
    code = os.fork()
    if code == 0:
        x = relay.var("x", shape=(2,))
        os._exit(0 if "add" in str(relay.add(x, x)) else 1)
    assert os.waitpid(code, 0)[1] == 0


def test_options_of_a_backend_come_from_the_context():
    x = relay.var("x", shape=(4, 4))
    module = partition_for("ccompiler", relay.IRModule.from_expr(relay.nn.relu(x + x)))
    with transform.PassContext(opt_level=3, config={"relay.ext.ccompiler.options": {"nonsense": True}}):
        error = error_of("E0427", relay.build, module)
    assert "nonsense" in error.message


def partition_for(backend, module):
    return getattr(relay.op.contrib, f"partition_for_{backend}")(module)


def test_modules_draw_themselves():
    module = simple_module()
    assert "nn.relu" in module._repr_html_()
    assert "<" in relay.build(module)._repr_html_()


def test_a_callback_that_fails():
    class Fails(patterns.DFPatternCallback):
        def __init__(self):
            super().__init__()
            self.pattern = patterns.is_op("nn.relu")(patterns.wildcard())

        def callback(self, pre, post, node_map):
            return node_map["nothing"]

    x = relay.var("x", shape=(2,))
    error = error_of("E0318", patterns.rewrite, Fails(), relay.nn.relu(x))
    assert "KeyError" in error.message and "test_relay.py" in error.message


@pytest.mark.parametrize(
    ("code", "create"),
    [
        ("E0207", lambda x: relay.Function([relay.const(1)], x)),
        ("E0207", lambda x: relay.Function([x, x], x)),
        ("E0207", lambda x: relay.Let(relay.nn.relu(x), relay.const(1), x)),
        ("E0207", lambda x: relay.GlobalVar("missing")(x)),
        ("E0201", lambda x: relay.TupleGetItem(x, -1)),
        ("E0201", lambda x: relay.TupleGetItem(x, 5)),
        ("E0203", lambda x: relay.Call(relay.op.get("add"), [x])),
        ("E0206", lambda x: relay.nn.relu(relay.var("y", shape=(1 << 62, 1 << 62)))),
        ("E0201", lambda x: relay.TensorType((-1,), "float32")),
    ],
)
def test_malformed_expressions_have_codes(code, create):
    error_of(code, lambda: transform.InferType()(relay.IRModule.from_expr(create(relay.var("x", shape=(2, 3))))))
