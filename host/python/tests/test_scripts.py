"""Runs typical ONNX Runtime scripts with ONNX Runtime, and with byoc: with one changed import, and in its place."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CASES
from onnx import TensorProto, helper, numpy_helper

import byoc.onnxruntime

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the models that the scripts load."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("digits", "bert_small"):
        (folder / f"{name}.onnx").write_bytes(CASES[name]().bytes)
        np.savez(folder / f"{name}.npz", **CASES[name]().feeds)

    def write(name: str, nodes: list, inputs: list, outputs: list, weights: list, **properties: str) -> None:
        graph = helper.make_graph(nodes, name, inputs, outputs, initializer=weights)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 3)],
            ir_version=9,
            producer_name="tests",
            model_version=2,
        )
        helper.set_model_props(model, properties)
        onnx.save(model, folder / f"{name}.onnx")

    value = helper.make_tensor_value_info
    weight = np.random.default_rng(1).standard_normal((4, 2)).astype(np.float16)
    write(
        "half", [helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", TensorProto.FLOAT16, ["n", 4])],
        [value("y", TensorProto.FLOAT16, ["n", 2])], [numpy_helper.from_array(weight, "w")],
        labels="cat,dog", author="somebody",
    )  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
        helper.make_node("Relu", ["f"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.float32(0.5), "s"), numpy_helper.from_array(np.int8(3), "z")]
    write("int8", nodes, [value("x", TensorProto.INT8, ["n", 4])], [value("y", TensorProto.INT8, ["n", 4])], weights)
    shares = onnx.ValueInfoProto(name="probabilities")
    shares.type.sequence_type.elem_type.map_type.key_type = TensorProto.STRING
    shares.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    labels = {"classlabels_strings": ["no", "yes"]}
    nodes = [
        helper.make_node(
            "LabelEncoder",
            ["words"],
            ["ids"],
            domain="ai.onnx.ml",
            keys_strings=["good", "bad"],
            values_int64s=[1, 2],
            default_int64=0,
        ),
        helper.make_node("Gather", ["table", "ids"], ["vectors"]),
        helper.make_node(
            "LinearClassifier",
            ["vectors"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            multi_class=1,
            coefficients=[1.0, -0.5, 0.25, 2.0],
            intercepts=[0.1, -0.1],
            post_transform="SOFTMAX",
            **labels,
        ),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", **labels),
        helper.make_node("SplitToSequence", ["vectors"], ["rest"], axis=0),
    ]
    rest = helper.make_tensor_sequence_value_info("rest", TensorProto.FLOAT, None)
    table = np.array([[0, 0], [1, 3], [2, -1]], np.float32)
    write(
        "words",
        nodes,
        [value("words", TensorProto.STRING, ["n"])],
        [value("label", TensorProto.STRING, ["n"]), shares, rest],
        [numpy_helper.from_array(table, "table")],
    )
    return folder


def printed(source: str, folder: Path) -> list[str]:
    """Runs a script in the directory of the models, and returns the lines of its output."""
    output = io.StringIO()
    with contextlib.chdir(folder) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        with contextlib.redirect_stdout(output):
            exec(compile(source, "script", "exec"), {"__name__": "__main__", "FOLDER": str(folder)})  # noqa: S102
    return output.getvalue().splitlines()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path, models: Path) -> None:
    source = script.read_text()
    changed = re.sub(r"^import onnxruntime as ort$", "import byoc.onnxruntime as ort", source, flags=re.M)
    assert changed != source
    expected, found = printed(source, models), printed(changed, models)
    assert expected and found == expected
    byoc.onnxruntime.install()
    try:
        assert printed(source, models) == expected
    finally:
        byoc.onnxruntime.uninstall()


def test_there_are_ten() -> None:
    assert len(SCRIPTS) >= 10
