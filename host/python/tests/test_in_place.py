"""byoc in the place of ONNX Runtime: programs that import `onnxruntime`, and those that have nothing to do with it."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ROOT, Case
from onnx import TensorProto, helper, numpy_helper

import byoc.onnxruntime

PROGRAM = """
import sys, importlib.metadata, importlib.util
import numpy as np
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as state
from onnxruntime import InferenceSession
from onnxruntime.backend import prepare
from onnxruntime.capi import _pybind_state
from onnxruntime.transformers.io_binding_helper import TypeHelper
import byoc.onnxruntime

assert ort is byoc.onnxruntime and InferenceSession is byoc.onnxruntime.InferenceSession
assert state.SessionIOBinding is ort.SessionIOBinding and _pybind_state.Fail is state.Fail
assert importlib.util.find_spec("onnxruntime").name == "byoc.onnxruntime"
assert importlib.metadata.version("onnxruntime") == ort.__version__
assert "onnxruntime" in importlib.metadata.packages_distributions()["onnxruntime"]
assert TypeHelper.ort_type_to_numpy_type("tensor(float)") is np.float32
session = InferenceSession(sys.argv[1])
assert session._model_path == sys.argv[1]
image = np.ones((2, 1, 8, 8), np.float32)
(result,) = session.run(None, {"image": image})
assert (prepare(sys.argv[1]).run(image)[0] == result).all()
print(__name__, sys.argv[1:], sys.path[0], result.shape)
sys.exit(3)
"""


def python(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


def test_script(program: Path, digits: Case, tmp_path: Path) -> None:
    words = ["-m", "byoc.onnxruntime", program, digits.path, "--backend", "x", "-m"]
    done = python(*words, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    arguments = [digits.path, "--backend", "x", "-m"]
    assert done.stdout.strip() == f"__main__ {arguments} {program.parent} (2, 10)"


def test_module(program: Path, digits: Case) -> None:
    done = python("-m", "byoc.onnxruntime", "-m", "program", digits.path, "-q", cwd=program.parent)
    assert done.returncode == 3, done.stderr
    assert done.stdout.strip() == f"__main__ {[digits.path, '-q']} {program.parent} (2, 10)"


def test_backend_of_the_command_line(digits: Case, tmp_path: Path) -> None:
    code = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.add_free_dimension_override_by_name("batch", 1)
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
session = onnxruntime.InferenceSession(sys.argv[1], options)
print(max(len(group.get_nodes()) for group in session.get_provider_graph_assignment_info()))
"""
    (tmp_path / "p.py").write_text(code)
    sizes = []
    for chosen in ([], ["--backend", "ccompiler"]):
        done = python("-m", "byoc.onnxruntime", *chosen, tmp_path / "p.py", digits.path)
        assert done.returncode == 0, done.stderr
        sizes.append(int(done.stdout))
    assert sizes[0] == 1 < sizes[1]


def test_an_error_of_the_program_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("raise KeyError('missing')\n")
    done = python("-m", "byoc.onnxruntime", tmp_path / "p.py")
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'missing'\n")
    assert python("-m", "byoc.onnxruntime").returncode == 2


UNTOUCHED = """
import importlib.metadata, sys
finders, modules = list(sys.meta_path), set(sys.modules)
import byoc
import byoc.onnxruntime
assert sys.meta_path == finders
assert not [name for name in sys.modules if name.split(".")[0] == "onnxruntime"]
import onnxruntime
assert onnxruntime is not byoc.onnxruntime and onnxruntime.__file__ != byoc.onnxruntime.__file__
assert importlib.metadata.distribution("onnxruntime").files
"""


def test_other_programs_are_unchanged() -> None:
    """The package installs nothing that runs in other programs, and its import changes nothing before `install`."""
    done = python("-c", UNTOUCHED)
    assert done.returncode == 0, done.stderr
    source = ROOT / "host" / "python" / "python"
    assert [path.name for path in source.iterdir() if path.name != "__pycache__"] == ["byoc"]
    assert not list(source.rglob("*.pth")) and not list(source.rglob("sitecustomize.py"))
    settings = (ROOT / "host" / "python" / "pyproject.toml").read_text()
    assert "onnxruntime" not in settings.partition("[project.entry-points")[2].partition("[tool")[0]
    assert ".pth" not in settings


@pytest.fixture
def installed():  # noqa: ANN201
    byoc.onnxruntime.install()
    yield
    byoc.onnxruntime.uninstall()


def test_install_and_uninstall() -> None:
    state = sys.modules["onnxruntime.capi.onnxruntime_pybind11_state"]
    finders = list(sys.meta_path)
    byoc.onnxruntime.install()
    byoc.onnxruntime.install()
    try:
        import onnxruntime as replaced

        assert replaced is byoc.onnxruntime
        assert importlib.metadata.distribution("onnxruntime").metadata["Name"] == "onnxruntime"
        # Python modules of the installed ONNX Runtime see byoc.
        from onnxruntime.quantization import quant_utils

        assert quant_utils.InferenceSession is byoc.onnxruntime.InferenceSession
        from onnxruntime import datasets, quantization

        assert quantization is sys.modules["onnxruntime.quantization"] and datasets.get_example
        for name in ("onnxruntime.nothing", "onnxruntime.capi._ld_preload"):
            with pytest.raises(ModuleNotFoundError, match=name):
                importlib.import_module(name)
    finally:
        byoc.onnxruntime.uninstall()
    import onnxruntime as original

    assert original is onnxruntime and sys.modules["onnxruntime.capi.onnxruntime_pybind11_state"] is state
    assert not hasattr(byoc.onnxruntime, "quantization") and "byoc.onnxruntime.datasets" not in sys.modules
    assert sys.meta_path == finders and "onnxruntime.quantization.quant_utils" not in sys.modules
    byoc.onnxruntime.uninstall()


def test_without_onnx_runtime(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.machinery.PathFinder.find_spec

    def hidden(name: str, *arguments: object) -> object:
        return None if name.split(".")[0] == "onnxruntime" else find(name, *arguments)

    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", hidden)
    import onnxruntime
    from onnxruntime.transformers.io_binding_helper import TypeHelper

    assert onnxruntime is byoc.onnxruntime
    assert TypeHelper.__module__ == "byoc.onnxruntime.transformers.io_binding_helper"
    assert importlib.util.find_spec("onnxruntime.quantization") is None


def test_types(installed: None, digits: Case) -> None:
    from byoc.onnxruntime.transformers.io_binding_helper import TypeHelper

    session = byoc.onnxruntime.InferenceSession(digits.path)
    assert TypeHelper.get_input_type(session, "image") == "tensor(float)"
    assert set(TypeHelper.get_io_onnx_type_map(session).values()) == {TensorProto.FLOAT}
    assert set(TypeHelper.get_io_numpy_type_map(session).values()) == {np.float32}
    assert TypeHelper.ort_type_to_numpy_type("tensor(int64)") == np.int64
    for call in (TypeHelper.ort_type_to_onnx_type, TypeHelper.ort_type_to_numpy_type):
        with pytest.raises(ValueError, match="not found in map"):
            call("seq(tensor(float))")
    with pytest.raises(ValueError, match="nothing not found"):
        TypeHelper.get_output_type(session, "nothing")


def test_backend_interface(digits: Case) -> None:
    from byoc.onnxruntime import backend
    from onnxruntime import backend as theirs

    image = digits.feeds["image"]
    model = onnx.load(digits.path)
    expected = theirs.run(model, image)[0]
    for found in (
        backend.run(model, image), backend.run(digits.bytes, [image]),
        backend.prepare(byoc.onnxruntime.InferenceSession(digits.path)).run(image, logid="name"),
        backend.prepare(digits.path, "CPU", intra_op_num_threads=1).run([image]),
    ):  # fmt: skip
        assert np.allclose(found[0], expected, atol=1e-5)
    assert backend.supports_device("CPU") and not backend.supports_device("GPU")
    assert backend.is_compatible(model) and not backend.is_compatible(model, "GPU")
    with pytest.raises(RuntimeError, match="Incompatible device"):
        backend.prepare(digits.path, "GPU")


def external(folder: Path) -> onnx.ModelProto:
    """Returns a model with two initializers in one file, and writes the file."""
    arrays = {"w": np.arange(4, dtype=np.float32) + 1, "v": np.arange(4, dtype=np.float32) + 9}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    nodes = [helper.make_node("Mul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "v"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], initializer=weights), ir_version=8,
                              opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    onnx.save(model, folder / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    return onnx.load(folder / "a.onnx", load_external_data=False)


@pytest.mark.parametrize("ort", [onnxruntime, byoc.onnxruntime], ids=lambda ort: ort.__name__)
def test_external_data_by_option(ort, tmp_path: Path) -> None:  # noqa: ANN001
    model, x = external(tmp_path).SerializeToString(), np.ones((2, 4), np.float32)
    expected = np.array([[10, 12, 14, 16]] * 2, np.float32)
    data = (tmp_path / "a.data").read_bytes()
    in_memory, in_folder, part = (ort.SessionOptions() for _ in range(3))
    in_memory.add_external_initializers_from_files_in_memory(["a.data"], [data], [len(data)])
    in_folder.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    for options in (in_memory, in_folder):
        assert (ort.InferenceSession(model, options).run(None, {"x": x})[0] == expected).all()
    # Less of the file than the initializers need, and no file at all.
    part.add_external_initializers_from_files_in_memory(["a.data"], [data], [8])
    for options in (part, ort.SessionOptions()):
        with pytest.raises(Exception, match="a.data|External initializer|external"):
            ort.InferenceSession(model, options)
    with pytest.raises(Exception, match="equal length"):
        part.add_external_initializers_from_files_in_memory(["a.data"], [], [8])


def configured(folder: Path, config: str) -> bytes:
    model = external(folder)
    onnx.load_external_data_for_model(model, str(folder))
    helper.set_model_props(model, {"ort_config": config})
    return model.SerializeToString()


CONFIGS = (
    '{"session_options": {"inter_op_num_threads": 5, "intra_op_num_threads": 2, "execution_mode": 1, "other": 3}}',
    '{"session_options": {"graph_optimization_level": 2}}', "{}",
    '{"session_options": {"intra_op_num_threads": "two"}}', '{"session_options": {"execution_mode": 7}}',
    '{"session_options": {"enable_profiling": 2}}', "{",
)  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_options_in_the_model(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = configured(tmp_path, config)
    outcomes = []
    for ort in (onnxruntime, byoc.onnxruntime):
        found = []
        for value in ("0", "1", "2"):
            monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", value)
            options = ort.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 3
            try:
                chosen = ort.InferenceSession(model, options).get_session_options()
            except Exception as error:
                found.append(type(error).__name__)
            else:
                found.append([chosen.inter_op_num_threads, chosen.intra_op_num_threads, chosen.execution_mode.name,
                              chosen.graph_optimization_level.name, chosen.enable_profiling])  # fmt: skip
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


def test_messages_name_their_cause(digits: Case) -> None:
    session = byoc.onnxruntime.InferenceSession(digits.path)
    with pytest.raises(RuntimeError, match="'image': could not convert string to float") as raised:
        session.run(None, {"image": [["a"]]})
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(Exception, match="protobuf parsing failed") as raised:
        byoc.onnxruntime.InferenceSession(b"garbage")
    assert isinstance(raised.value.__cause__, byoc.Error)


def test_children_of_multiprocessing_inherit_by_fork(digits: Case, tmp_path: Path) -> None:
    code = """
import multiprocessing

def work(_):
    import onnxruntime
    return onnxruntime.__name__

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(work, [0])[0])
"""
    (tmp_path / "p.py").write_text(code)
    done = python("-m", "byoc.onnxruntime", tmp_path / "p.py", env={**os.environ})
    assert done.stdout.strip() == "byoc.onnxruntime", done.stderr
