"""Compares `byoc.onnxruntime` with ONNX Runtime on what conversions of scikit-learn need: support vector machines,
tokens, the first version of LabelEncoder, and weights in blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as native
import pytest
from onnx import TensorProto, helper
from test_onnxruntime_values import FLOAT, INT64, ML, STRING, agree, node, value

from byoc.onnxruntime.capi import onnxruntime_pybind11_state as ours

COUNTS = [3, 2, 4]


def learner(op: str, **attributes: Any) -> bytes:
    """Returns a model of one operator on rows of numbers, with labels that are words."""
    outputs = ["label", "scores"] if op == "SVMClassifier" else ["scores"]
    kinds = {"label": STRING, "scores": FLOAT}
    ports = [value(name, kinds[name], None) for name in outputs]
    return whole([node(op, ["x"], outputs, domain=ML, **attributes)], [value("x", FLOAT, ["n", 3])], ports)


def whole(nodes: list[Any], inputs: list[Any], outputs: list[Any], ml: int = 1) -> bytes:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, ml), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((7, 3)).astype(np.float32)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("counts", [COUNTS, COUNTS[:2]], ids=str)
@pytest.mark.parametrize("probabilities", [True, False])
def test_support_vector_classifier(kernel: str, counts: list[int], probabilities: bool) -> None:
    random = np.random.default_rng(len(counts))
    total, pairs = sum(counts), len(counts) * (len(counts) - 1) // 2
    chosen = {"prob_a": random.uniform(-2, -1, pairs), "prob_b": random.uniform(-0.5, 0.5, pairs)}
    data = learner(
        "SVMClassifier", classlabels_strings=["a", "b", "c"][: len(counts)], kernel_type=kernel,
        kernel_params=[0.4, 0.2, 2.0], vectors_per_class=counts, rho=random.standard_normal(pairs).tolist(),
        support_vectors=random.standard_normal(total * 3).tolist(),
        coefficients=random.standard_normal(total * (len(counts) - 1)).tolist(),
        **{name: values.tolist() for name, values in chosen.items() if probabilities},
    )  # fmt: skip
    agree(data, [{"x": rows(seed)} for seed in (0, 1)])


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("count", [0, 4])
def test_support_vector_regressor(one_class: int, count: int) -> None:
    random = np.random.default_rng(count)
    attributes: dict[str, Any] = {"coefficients": random.standard_normal(count or 3).tolist(), "rho": [0.3]}
    if count:
        attributes["support_vectors"] = random.standard_normal(count * 3).tolist()
    data = learner("SVMRegressor", kernel_type="LINEAR", kernel_params=[1.0, 0.0, 3.0], n_supports=count,
                   one_class=one_class, **attributes)  # fmt: skip
    agree(data, [{"x": rows(seed)} for seed in (0, 1)])


TOKENIZERS = (
    {"separators": [" "], "mincharnum": 1}, {"separators": [" ", "-"], "mincharnum": 2, "mark": 1},
    {"separators": [""], "mincharnum": 1}, {"tokenexp": "[a-zA-Z0-9_]+", "mincharnum": 2},
    {"tokenexp": "[a-z]+", "mincharnum": 1, "mark": 1},
)  # fmt: skip
TEXTS = np.array(["one two-three", "", "Four  five!", "zürich € x", "---"], object)


@pytest.mark.parametrize("attributes", TOKENIZERS, ids=str)
def test_tokenizer(attributes: dict[str, Any]) -> None:
    chosen = {"pad_value": "#", "mark": 0, **attributes}
    made = node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **chosen)
    data = whole([made], [value("x", STRING, None)], [value("y", STRING, None)])
    agree(data, [{"x": TEXTS}, {"x": TEXTS[:4].reshape(2, 2)}, {"x": TEXTS[1:2]}, {"x": TEXTS[3:]}])


@pytest.mark.parametrize("kinds", [(STRING, INT64), (INT64, STRING)])
def test_first_label_encoder(kinds: tuple[int, int]) -> None:
    made = node("LabelEncoder", ["x"], ["y"], domain=ML, classes_strings=["a", "b", "c"], default_int64=-7,
                default_string="none")  # fmt: skip
    data = whole([made], [value("x", kinds[0], ["n"])], [value("y", kinds[1], ["n"])])
    x = np.array(["c", "a", "?"], object) if kinds[0] == STRING else np.array([2, 0, 9, -1])
    agree(data, [{"x": x}])


def test_linear_classifier_reads_as_many_coefficients_as_there_are_features() -> None:
    made = node("LinearClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=["a", "b", "c"],
                coefficients=np.arange(12, dtype=np.float32).tolist(), intercepts=[0.1, 0.2, -0.3])  # fmt: skip
    ports = [value("label", STRING, None), value("scores", FLOAT, None)]
    agree(whole([made], [value("x", FLOAT, [2, 2])], ports), [{"x": np.array([[1, -2], [0.5, 3]], np.float32)}])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("shape", [(64, 5), (52, 8)])
def test_weights_in_blocks(bits: int, is_symmetric: bool, shape: tuple[int, int]) -> None:
    matrix, (count, columns) = np.random.default_rng(bits).standard_normal(shape).astype(np.float32), shape
    blocks = math.ceil(count / 16)
    found = []
    for module in (native, ours):
        packed = np.zeros((columns, blocks, 2 * bits), np.uint8)
        scales = np.zeros((columns, blocks), np.float32)
        zeros = np.zeros((columns, math.ceil(blocks * bits / 8)), np.uint8)
        quantize = getattr(module, f"quantize_matmul_{bits}bits")
        quantize(packed, matrix, scales, zeros, 16, columns, count, is_symmetric)
        found.append((packed, scales, zeros))
    for one, other in zip(*found):
        assert (one == other).all()


def test_weights_of_other_forms() -> None:
    matrix = np.random.default_rng(3).standard_normal((32, 6)).astype(np.float32)
    matrix[:16, 0] = 0
    for is_symmetric in (True, False):
        found = []
        for module in (native, ours):
            packed, scales, zeros = np.zeros(96, np.uint8), np.zeros((2, 6), np.float32), np.zeros(6, np.uint8)
            signed = module.quantize_qdq_matmul_4bits(packed, matrix, scales, zeros, 16, 6, 32, is_symmetric)
            found.append((signed, packed.tolist(), scales.tolist(), zeros.tolist()))
        assert found[0] == found[1]
    for kind in (0, 1):
        found = []
        for module in (native, ours):
            packed, largest = np.zeros(96, np.uint8), np.zeros(12, np.float32)
            module.quantize_matmul_bnb4(packed, matrix, largest, 16, kind, 32, 6)
            found.append((packed.tolist(), largest.tolist()))
        assert found[0] == found[1]


def test_native_names() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = helper.make_graph([node("Neg", ["x"], ["y"])], "g", [value("x", FLOAT, [2, 3])], [value("y", FLOAT, [2, 3])])
    data = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    for module, state in ((onnxruntime, native), (__import__("byoc.onnxruntime").onnxruntime, ours)):
        device = state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
        session = module.InferenceSession(data)
        binding = state.SessionIOBinding(session._sess)
        bound = state.OrtValue.ortvalue_from_numpy(x, device)
        binding.bind_ortvalue_input("x", bound)
        binding.bind_output("y", device)
        session._sess.run_with_iobinding(binding, None)
        assert (binding.get_outputs()[0].numpy() == -x).all()
        assert [port.name for port in session._sess.inputs_meta] == ["x"]
        (result,) = session._sess.run_with_ort_values({"x": bound}, ["y"], None)
        copied = state.OrtValue.from_dlpack(result.to_dlpack())
        assert copied.data_ptr() == result.data_ptr() and (copied.numpy() == -x).all()
        assert session._model_bytes == data and session._model_path is None
        assert result.element_type() == TensorProto.FLOAT
