"""Compares `byoc.onnxruntime` with ONNX Runtime on strings, sequences, maps and optional values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import resident
from onnx import TensorProto, helper, numpy_helper

import byoc.onnxruntime

BOTH = (onnxruntime, byoc.onnxruntime)
ML = "ai.onnx.ml"
FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL
node = helper.make_node
value = helper.make_tensor_value_info
sequence = helper.make_tensor_sequence_value_info
X = np.arange(6, dtype=np.float32).reshape(2, 3)
WORDS = np.array([["one", "two"], ["three", ""]], object)


def mapping(name: str, key: int, of: int, many: bool = False) -> onnx.ValueInfoProto:
    port = onnx.ValueInfoProto(name=name)
    kind = port.type.sequence_type.elem_type if many else port.type
    kind.map_type.key_type = key
    kind.map_type.value_type.tensor_type.elem_type = of
    return port


def optional(name: str, many: bool = False) -> onnx.ValueInfoProto:
    port = onnx.ValueInfoProto(name=name)
    kind = port.type.optional_type.elem_type
    if many:
        kind.sequence_type.elem_type.tensor_type.elem_type = FLOAT
    else:
        kind.tensor_type.elem_type = FLOAT
        kind.tensor_type.shape.dim.add().dim_value = 2
    return port


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any] = (), opset: int = 20) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=list(weights))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def constant(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        if not isinstance(found, np.ndarray) or found.dtype != expected.dtype or found.shape != expected.shape:
            return False
        if found.dtype.kind == "O":
            return found.tolist() == expected.tolist()
        return np.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    if type(found) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        keys = list(found) == list(expected)
        return keys and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-5) or (found != found and expected != expected)
    return found == expected


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__} of the call"


def agree(data: bytes, feeds: list[dict[str, Any]]) -> None:
    """Compares ports, results and exceptions; at least one run must succeed."""
    sessions = [ort.InferenceSession(data) for ort in BOTH]
    declared = {port.name: port.type for port in onnx.load_from_string(data).graph.output}
    for one, two in zip(*([*s.get_inputs(), *s.get_outputs()] for s in sessions)):
        assert (two.name, two.type) == (one.name, one.type)
        # ONNX Runtime infers the dimensions of outputs that the model does not declare.
        if one.name not in declared or declared[one.name].tensor_type.HasField("shape"):
            assert str(two) == str(one)
    good = 0
    for feed in feeds:
        expected, found = (outcome(lambda s=s, feed=feed: s.run(None, feed)) for s in sessions)
        good += not isinstance(expected, str)
        assert same(found, expected), (feed, found, expected)
    assert good


def text_node(
    op: str,
    outputs: Any = (("y", STRING),),
    inputs: Any = ("x",),
    domain: str = "",
    held: Any = (),
    of: int = STRING,
    rank: int | None = None,
    **attributes: Any,
) -> bytes:
    made = node(op, list(inputs), [name for name, _ in outputs], domain=domain, **attributes)
    known = {tensor.name for tensor in held}
    shape = None if rank is None else [f"d{axis}" for axis in range(rank)]
    ports = [value(name, of, shape) for name in dict.fromkeys(inputs) if name not in known]
    return model([made], ports, [value(name, kind, None) for name, kind in outputs], held)


V = np.array(["one", "two", "three", "ONE", "", "zürich €"], object)
TEXT_CASES: dict[str, tuple[bytes, list[Any]]] = {
    "identity": (text_node("Identity"), [V, WORDS, V[:0]]),
    "cast to float": (
        text_node("Cast", [("y", FLOAT)], to=FLOAT),
        [["1", "-2.5e3", " 7", "1_0", "0x10", "INF", "-inf", "3abc"], ["abc"], [""], ["nan"]],
    ),
    "cast to int": (
        text_node("Cast", [("y", INT64)], to=INT64),
        [["1", "-3", " 5", "1.9"], ["abc"], ["99999999999999999999"]],
    ),
    "cast to bool": (text_node("Cast", [("y", BOOL)], to=BOOL), [["1", "0", "-1", "0.1"], ["true"]]),
    "cast of floats": (
        text_node("Cast", of=FLOAT, to=STRING),
        [np.array([1, 1.5, -0.0, 1e20, 1e-7, np.nan, np.inf, -np.inf, np.pi, 123456789, 16777217], np.float32)],
    ),
    "cast of ints": (text_node("Cast", of=INT64, to=STRING), [np.array([1, -2, 2**60])]),
    "cast of bools": (text_node("Cast", of=BOOL, to=STRING), [np.array([True, False])]),
    "lower": (text_node("StringNormalizer", locale="C.UTF-8", case_change_action="LOWER"), [V]),
    "stopwords": (
        text_node(
            "StringNormalizer", locale="C.UTF-8", case_change_action="UPPER", is_case_sensitive=1, stopwords=["one", ""]
        ),
        [V, ["one"], V.reshape(1, 6), ["two", "one"]],
    ),
    "stopwords of any case": (text_node("StringNormalizer", locale="C.UTF-8", stopwords=["One"]), [V, ["ONE", "one"]]),
    "concat": (
        text_node("StringConcat", inputs=("x", "w"), held=[constant("w", np.array([["!"], ["?"]], object))]),
        [V, ["a"]],
    ),
    "split": (
        text_node("StringSplit", [("y", STRING), ("n", INT64)], delimiter=",", rank=1),
        [["a,b,c", "d", ",", "", "e,"]],
    ),
    "split at spaces": (text_node("StringSplit", [("y", STRING), ("n", INT64)], rank=1), [[" a  b c", "d", ""]]),
    "split twice": (
        text_node("StringSplit", [("y", STRING), ("n", INT64)], delimiter="-", maxsplit=2, rank=1),
        [["a-b-c-d", "e-f"]],
    ),
    "match": (text_node("RegexFullMatch", [("y", BOOL)], pattern=r"t\w+|one"), [V, WORDS]),
    "equal": (
        text_node("Equal", [("y", BOOL)], ("x", "w"), held=[constant("w", np.array(["one"], object))]),
        [V, WORDS],
    ),
    "labels to numbers": (
        text_node("LabelEncoder", [("y", INT64)], domain=ML, keys_strings=["one", "two"], values_int64s=[5, 6]),
        [V, WORDS],
    ),
    "labels to floats": (
        text_node(
            "LabelEncoder", [("y", FLOAT)], domain=ML, keys_strings=["one"], values_floats=[0.5], default_float=2.5
        ),
        [V],
    ),
    "numbers to labels": (
        text_node("LabelEncoder", domain=ML, of=INT64, keys_int64s=[1, 2], values_strings=["a", "b"]),
        [np.array([[1, 2], [3, 1]])],
    ),
    "labels of tensors": (
        text_node(
            "LabelEncoder",
            [("y", INT64)],
            domain=ML,
            keys_tensor=helper.make_tensor("k", STRING, [2], [b"one", b"two"]),
            values_tensor=constant("v", np.array([7, 8])),
            default_tensor=constant("d", np.array([-9])),
        ),
        [V],
    ),
    "categories": (
        text_node("CategoryMapper", [("y", INT64)], domain=ML, cats_strings=["one", "two"], cats_int64s=[5, 6]),
        [V, WORDS],
    ),
    "categories back": (
        text_node(
            "CategoryMapper", domain=ML, of=INT64, cats_strings=["one", "two"], cats_int64s=[5, 6], default_string="?"
        ),
        [np.array([5, 6, 7])],
    ),
    "one hot": (
        text_node("OneHotEncoder", [("y", FLOAT)], domain=ML, cats_strings=["one", "two", "three"]),
        [V, WORDS],
    ),
    "one hot of known ones": (
        text_node("OneHotEncoder", [("y", FLOAT)], domain=ML, cats_strings=["one", "two"], zeros=0),
        [["two"], V],
    ),
    "columns": (
        text_node(
            "ArrayFeatureExtractor", inputs=("x", "w"), domain=ML, held=[constant("w", np.array([1, 0]))], rank=2
        ),
        [WORDS],
    ),
    "gather": (
        text_node("Gather", inputs=("x", "w"), held=[constant("w", np.array([[0, -1]]))], axis=1, rank=2),
        [WORDS],
    ),
    "reshape": (text_node("Reshape", inputs=("x", "w"), held=[constant("w", np.array([-1, 1]))]), [V, WORDS]),
    "concatenate": (text_node("Concat", inputs=("x", "x"), axis=0), [V, WORDS]),
    "transpose": (text_node("Transpose", perm=[1, 0], rank=2), [WORDS]),
    "unsqueeze": (text_node("Unsqueeze", inputs=("x", "w"), held=[constant("w", np.array([0, 2]))]), [V]),
    "slice": (
        text_node(
            "Slice",
            inputs=("x", "a", "b", "c", "d"),
            held=[
                constant("a", np.array([-1])),
                constant("b", np.array([-100])),
                constant("c", np.array([0])),
                constant("d", np.array([-2])),
            ],
        ),
        [V, WORDS],
    ),
    "where": (
        text_node(
            "Where",
            inputs=("c", "x", "w"),
            held=[constant("c", np.array([True, False])), constant("w", np.array(["no"], object))],
        ),
        [WORDS, ["a", "b"]],
    ),
    "expand": (text_node("Expand", inputs=("x", "w"), held=[constant("w", np.array([2, 6]))]), [V]),
    "tile": (text_node("Tile", inputs=("x", "w"), held=[constant("w", np.array([2]))], rank=1), [V]),
    "shape": (text_node("Shape", [("y", INT64)]), [V, WORDS]),
    "unique": (
        text_node("Unique", [("y", STRING), ("a", INT64), ("b", INT64), ("c", INT64)]),
        [np.array(["b", "a", "b", "c"], object)],
    ),
    "unsorted": (text_node("Unique", [("y", STRING), ("a", INT64)], sorted=0), [["b", "a", "b", "c"]]),
    "tf-idf": (
        text_node(
            "TfIdfVectorizer",
            [("y", FLOAT)],
            mode="TFIDF",
            min_gram_length=1,
            max_gram_length=2,
            max_skip_count=1,
            ngram_counts=[0, 3],
            ngram_indexes=[0, 1, 2, 3, 4],
            pool_strings=["a", "b", "c", "a", "b", "b", "c"],
            weights=[1.0, 0.5, 2.0, 3.0, 0.25],
            rank=2,
        ),
        [[["a", "b", "a", "c"], ["b", "x", "c", "c"]]],
    ),
    "counts of numbers": (
        text_node(
            "TfIdfVectorizer",
            [("y", FLOAT)],
            of=INT64,
            mode="TF",
            min_gram_length=2,
            max_gram_length=2,
            max_skip_count=0,
            ngram_counts=[0, 2],
            ngram_indexes=[0, 1, 2, 3, 4],
            pool_int64s=[7, 8, 1, 2, 2, 3],
            rank=1,
        ),
        [np.array([1, 2, 3, 1, 2]), np.array([7])],
    ),
}


@pytest.mark.parametrize("name", TEXT_CASES)
def test_strings(name: str) -> None:
    data, inputs = TEXT_CASES[name]
    agree(data, [{"x": np.array(x, object) if isinstance(x, list) else x} for x in inputs])


def test_inputs_of_strings() -> None:
    data = model([node("Identity", ["x"], ["y"])], [value("x", STRING, ["n", 2])], [value("y", STRING, ["n", 2])])
    forms = [
        WORDS,
        WORDS.astype(str),
        WORDS.astype(str).astype("S"),
        WORDS.tolist(),
        np.array([[1, None]], object),
        np.array([[b"a", "b"]], object),
        [["a"], ["b", "c"]],
        [["a", 1]],
        "a",
        ("a", "b"),
        np.ones((1, 2), np.float32),
        WORDS[0],
        np.array([["a", "b", "c"]]),
        np.zeros((0, 2), object),
        np.array([["a\0b", "c"]]),
        WORDS.T,
        5,
        {"a": 1.0},
        np.array([[b"\xff", b"b"]]),
    ]
    agree(data, [{"x": form} for form in forms])


def test_sequences_at_the_border() -> None:
    data = model(
        [node("SequenceInsert", ["s", "x"], ["o"]), node("SequenceLength", ["o"], ["n"])],
        [sequence("s", FLOAT, None), value("x", FLOAT, ["a", 3])],
        [sequence("o", FLOAT, None), value("n", INT64, [])],
    )
    forms = [
        [X, X * 2],
        [],
        (X, X),
        X,
        [X.astype(np.float64)],
        [[1.0]],
        [1.0],
        ["a"],
        {"a": 1.0},
        "text",
        [X.T],
        5,
        [X, X.astype(np.int64)],
    ]
    agree(data, [{"s": form, "x": X} for form in forms] + [{"x": X}])


def test_sequences_inside() -> None:
    weights = [
        constant("first", np.array(0)),
        constant("last", np.array(-1)),
        constant("two", np.array(2)),
        constant("w", np.eye(3, dtype=np.float32) * 2),
    ]
    data = model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("SplitToSequence", ["m", "two"], ["s"], axis=0),
            node("SequenceAt", ["s", "first"], ["a"]),
            node("SequenceErase", ["s", "first"], ["e"]),
            node("SequenceInsert", ["e", "a", "first"], ["i"]),
            node("ConcatFromSequence", ["s"], ["c"], axis=0),
            node("Relu", ["c"], ["r"]),
            node("SequenceConstruct", ["a", "r"], ["o"]),
            node("SequenceLength", ["s"], ["n"]),
            node("SequenceAt", ["o", "last"], ["z"]),
        ],
        [value("x", FLOAT, ["batch", 3])],
        [sequence("i", FLOAT, None), sequence("o", FLOAT, None), value("n", INT64, []), value("z", FLOAT, [None, 3])],
        weights,
    )
    agree(data, [{"x": np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)} for n in (5, 4, 1, 5)])


def test_positions_out_of_range() -> None:
    data = model(
        [node("SequenceAt", ["s", "i"], ["y"])],
        [sequence("s", FLOAT, None), value("i", INT64, [])],
        [value("y", FLOAT, None)],
    )
    agree(data, [{"s": [X, X + 1], "i": np.array(i)} for i in (0, 1, -1, -2, 2, -3)])


def test_sequence_map_and_loop() -> None:
    body = helper.make_graph(
        [node("Add", ["e", "x"], ["r"])], "b", [value("e", FLOAT, None)], [value("r", FLOAT, None)]
    )
    mapped = model(
        [node("SequenceMap", ["s"], ["o"], body=body)],
        [sequence("s", FLOAT, None), value("x", FLOAT, [3])],
        [sequence("o", FLOAT, None)],
    )
    agree(mapped, [{"s": [X, X[:1]], "x": X[0]}, {"s": [], "x": X[0]}])
    step = helper.make_graph(
        [
            node("SequenceInsert", ["s_in", "x"], ["s_out"]),
            node("Identity", ["go"], ["on"]),
            node("Mul", ["x", "x"], ["sq"]),
        ],
        "b",
        [value("i", INT64, []), value("go", BOOL, []), sequence("s_in", FLOAT, None)],
        [value("on", BOOL, []), sequence("s_out", FLOAT, None), value("sq", FLOAT, None)],
    )
    loop = model(
        [node("SequenceEmpty", [], ["empty"]), node("Loop", ["n", "", "empty"], ["o", "scan"], body=step)],
        [value("n", INT64, []), value("x", FLOAT, [3])],
        [sequence("o", FLOAT, None), value("scan", FLOAT, None)],
    )
    agree(loop, [{"n": np.array(n), "x": X[1]} for n in (3, 1)])


def test_branches_of_strings() -> None:
    def branch(name: str, op: Any) -> Any:
        return helper.make_graph([op], name, [], [value(f"r{name}", STRING, None)])

    upper = branch("u", node("StringNormalizer", ["w"], ["ru"], locale="C.UTF-8", case_change_action="UPPER"))
    plain = branch("p", node("Identity", ["w"], ["rp"]))
    data = model(
        [node("If", ["c"], ["y"], then_branch=upper, else_branch=plain)],
        [value("c", BOOL, []), value("w", STRING, ["n"])],
        [value("y", STRING, ["n"])],
    )
    agree(data, [{"c": np.array(c), "w": np.array(["a", "b"], object)} for c in (True, False)])


@pytest.mark.parametrize(
    ("labels", "key"), [({"classlabels_strings": ["b", "a", "c"]}, STRING), ({"classlabels_int64s": [5, 7, -2]}, INT64)]
)
def test_maps_of_results(labels: dict[str, Any], key: int) -> None:
    data = model(
        [node("ZipMap", ["x"], ["z"], domain=ML, **labels)],
        [value("x", FLOAT, ["n", 3])],
        [mapping("z", key, FLOAT, many=True)],
    )
    agree(data, [{"x": X}, {"x": X[:0]}, {"x": X[0]}, {"x": X[:, :2]}])


def test_maps_as_inputs() -> None:
    words = model(
        [node("DictVectorizer", ["d"], ["y"], domain=ML, string_vocabulary=["a", "b", "c"])],
        [mapping("d", STRING, FLOAT)],
        [value("y", FLOAT, ["n", 3])],
    )
    forms = [
        {"a": 1.0, "c": 2.0},
        {"q": 1.0},
        {},
        {"a": 1},
        {1: 1.0},
        [{"a": 1.0}],
        {"a": "x"},
        5,
        X,
        {"a": np.float32(3)},
        [],
    ]
    agree(words, [{"d": form} for form in forms])
    codes = model(
        [node("DictVectorizer", ["d"], ["y"], domain=ML, int64_vocabulary=[10, 20])],
        [mapping("d", INT64, FLOAT)],
        [value("y", FLOAT, ["n", 2])],
    )
    agree(codes, [{"d": form} for form in ({10: 1.0}, {"a": 1.0}, {10: 1, 20: 2.5}, {10.5: 1.0})])
    dense = model(
        [node("CastMap", ["d"], ["y"], domain=ML)], [mapping("d", INT64, FLOAT)], [value("y", FLOAT, [1, None])]
    )
    agree(dense, [{"d": {2: 1.0, 0: 3.0}}, {"d": {10: 1.5}}])
    sparse = model(
        [node("CastMap", ["d"], ["y"], domain=ML, cast_to="TO_INT64", map_form="SPARSE", max_map=4)],
        [mapping("d", INT64, FLOAT)],
        [value("y", INT64, [1, None])],
    )
    agree(sparse, [{"d": {2: 1.0, 0: 3.0}}, {"d": {10: 1.5}}])


@pytest.mark.parametrize("many", [False, True])
def test_optional_values(many: bool) -> None:
    data = model(
        [node("OptionalHasElement", ["o"], ["h"]), node("Identity", ["o"], ["c"])],
        [optional("o", many)],
        [value("h", BOOL, []), optional("c", many)],
    )
    pair = np.ones(2, np.float32)
    agree(data, [{"o": form} for form in (None, pair, [pair], [], [1.0, 2.0])] + [{}])


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_classifier(text: bool, transform: str) -> None:
    """Classifier with probabilities by label, as written by the scikit-learn converter."""
    rng = np.random.default_rng(3)
    labels = {"classlabels_strings": ["cat", "dog", "eel"]} if text else {"classlabels_ints": [3, 1, 2]}
    kind = STRING if text else INT64
    zipped = labels if text else {"classlabels_int64s": labels["classlabels_ints"]}
    nodes = [
        node("Scaler", ["x"], ["scaled"], domain=ML, offset=[0.5, 0.0, 1.0], scale=[1.0, 2.0, 0.5]),
        node(
            "LinearClassifier",
            ["scaled"],
            ["label", "scores"],
            domain=ML,
            multi_class=1,
            post_transform=transform,
            coefficients=rng.standard_normal(9).tolist(),
            intercepts=rng.standard_normal(3).tolist(),
            **labels,
        ),
        node("Normalizer", ["scores"], ["shares"], domain=ML, norm="L1"),
        node("ZipMap", ["shares"], ["probabilities"], domain=ML, **zipped),
    ]
    data = model(
        nodes,
        [value("x", FLOAT, ["n", 3])],
        [value("label", kind, ["n"]), mapping("probabilities", kind, FLOAT, many=True)],
    )
    agree(data, [{"x": rng.standard_normal((n, 3)).astype(np.float32)} for n in (1, 4, 2)])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_numbers_of_ml(norm: str) -> None:
    nodes = [
        node(
            "LinearRegressor",
            ["x"],
            ["p"],
            domain=ML,
            coefficients=[1.0, -2.0, 0.5, 0.0, 1.0, 1.0],
            intercepts=[0.5, 1.0],
            targets=2,
        ),
        node("Normalizer", ["p"], ["q"], domain=ML, norm=norm),
        node("FeatureVectorizer", ["q", "x"], ["y"], domain=ML, inputdimensions=[2, 3]),
        node("Relu", ["y"], ["z"]),
    ]
    agree(model(nodes, [value("x", FLOAT, ["n", 3])], [value("z", FLOAT, ["n", 5])]), [{"x": X + 1}, {"x": X[:1]}])


def text_model() -> bytes:
    """Text classifier: a network with strings as input and output."""
    rng = np.random.default_rng(5)
    weights = [
        constant("table", rng.standard_normal((5, 4)).astype(np.float32)),
        constant("w", rng.standard_normal((4, 3)).astype(np.float32)),
        constant("axis", np.array([1])),
        constant("names", np.array(["low", "middle", "high"], object)),
    ]
    nodes = [
        node("StringConcat", ["words", "mark"], ["marked"]),
        node(
            "LabelEncoder",
            ["marked"],
            ["ids"],
            domain=ML,
            keys_strings=["a!", "b!", "c!", "d!"],
            values_int64s=[1, 2, 3, 4],
            default_int64=0,
        ),
        node("Gather", ["table", "ids"], ["vectors"]),
        node("ReduceMean", ["vectors", "axis"], ["mean"], keepdims=0),
        node("MatMul", ["mean", "w"], ["logits"]),
        node("Softmax", ["logits"], ["shares"]),
        node("ArgMax", ["shares"], ["best"], axis=1, keepdims=0),
        node("Gather", ["names", "best"], ["name"]),
        node("SplitToSequence", ["shares"], ["rows"], axis=0, keepdims=0),
    ]
    weights.append(constant("mark", np.array(["!"], object)))
    return model(
        nodes,
        [value("words", STRING, ["n", "length"])],
        [value("name", STRING, ["n"]), value("shares", FLOAT, ["n", 3]), sequence("rows", FLOAT, None)],
        weights,
    )


def test_network_between_strings() -> None:
    feeds = [[["a", "b"], ["c", "?"]], [["d", "d"]], [["a", "b", "c"]], [["b", "a"], ["a", "a"], ["c", "d"]]]
    agree(text_model(), [{"words": np.array(words, object)} for words in feeds])


def test_values_of_each_kind(tmp_path: Path) -> None:
    """Tests OrtValue and IOBinding with strings, sequences and maps."""
    zipped = model(
        [
            node("ZipMap", ["x"], ["z"], domain=ML, classlabels_strings=["a", "b", "c"]),
            node("SequenceConstruct", ["x", "x"], ["s"]),
            node("Cast", ["x"], ["t"], to=STRING),
        ],
        [value("x", FLOAT, ["n", 3])],
        [mapping("z", STRING, FLOAT, many=True), sequence("s", FLOAT, None), value("t", STRING, ["n", 3])],
    )
    insert = model(
        [node("SequenceInsert", ["s", "x"], ["o"])],
        [sequence("s", FLOAT, None), value("x", FLOAT, None)],
        [sequence("o", FLOAT, None)],
    )

    def of(ort: Any) -> Any:
        made = ort.OrtValue.ortvalue_from_numpy
        session, second = ort.InferenceSession(zipped), ort.InferenceSession(insert)
        values = session.run_with_ort_values(None, {"x": made(X)})
        names = (
            "data_type",
            "element_type",
            "is_tensor",
            "is_tensor_sequence",
            "is_sparse_tensor",
            "has_value",
            "device_name",
            "numpy",
            "shape",
            "tensor_size_in_bytes",
            "__dlpack__",
            "__array__",
        )
        found = [[outcome(getattr(one, name)) for name in names] for one in values]
        found += [outcome(lambda one=one: one.update_inplace(X)) for one in values[:2]]
        found.append(outcome(lambda: values[2].update_inplace(WORDS.astype(str))))
        found.append(outcome(lambda: one_pointer(values)))
        for wrong in (WORDS, WORDS.astype(str)):
            found.append(outcome(lambda wrong=wrong: made(wrong)))
        for kind in (8, np.object_, np.str_):
            found.append(outcome(lambda kind=kind: ort.OrtValue.ortvalue_from_shape_and_type([2], kind)))
        found.append(second.run(None, {"s": values[1], "x": X}))
        found.append([one.data_type() for one in second.run_with_ort_values(None, {"s": values[1], "x": made(X)})])
        found.append(outcome(lambda: second.run_with_ort_values(None, {"s": made(X), "x": made(X)})))
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("s")
        session.run_with_iobinding(binding)
        found += [binding.copy_outputs_to_cpu(), [one.data_type() for one in binding.get_outputs()]]
        binding = second.io_binding()
        binding.bind_ortvalue_input("s", values[1])
        binding.bind_cpu_input("x", X)
        binding.bind_output("o")
        second.run_with_iobinding(binding)
        found.append(binding.copy_outputs_to_cpu())
        # A run of ONNX Runtime appends to a sequence that is bound as an output; a run of byoc replaces it.
        binding.bind_ortvalue_output("o", session.run_with_ort_values(["s"], {"x": made(X)})[0])
        second.run_with_iobinding(binding)
        assert len(binding.copy_outputs_to_cpu()[0]) == (5 if ort is onnxruntime else 3)
        found.append(outcome(lambda: binding.bind_cpu_input("s", [X])))
        found.append(outcome(lambda: binding.bind_cpu_input("x", WORDS.astype(str))))
        return found

    def one_pointer(values: Any) -> Any:
        return values[1].data_ptr()

    expected, found = of(onnxruntime), of(byoc.onnxruntime)
    for one, two in zip(found, expected):
        assert same(one, two), (one, two)


MESSAGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("words", lambda s: s.run(None, {"words": np.ones((1, 2), np.float32)})),
    ("words", lambda s: s.run(None, {"words": np.array(["a"])})),
    ("words", lambda s: s.run(None, {"words": "a"})),
    ("words", lambda s: s.run(None, {"words": {"a": 1.0}})),
    ("words", lambda s: s.run(None, {})),
    ("words", lambda s: s.run(None, {"words": WORDS, "x": X})),
    ("words", lambda s: s.run(["nothing"], {"words": WORDS})),
]


@pytest.mark.parametrize("index", range(len(MESSAGES)))
def test_messages(index: int) -> None:
    texts = []
    for ort in BOTH:
        with pytest.raises(Exception) as raised:
            MESSAGES[index][1](ort.InferenceSession(text_model()))
        texts.append(str(raised.value))
    assert texts[1] == texts[0]


def test_profile_and_threads(tmp_path: Path) -> None:
    import json
    from concurrent.futures import ThreadPoolExecutor

    options = byoc.onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = byoc.onnxruntime.InferenceSession(text_model(), options)
    feeds = {"words": np.array([["a", "b"], ["c", "d"]], object)}
    expected = onnxruntime.InferenceSession(text_model()).run(None, feeds)
    with ThreadPoolExecutor(4) as pool:
        assert all(same(found, expected) for found in pool.map(lambda _: session.run(None, feeds), range(40)))
    events = json.loads(Path(session.end_profiling()).read_text())
    assert {"LabelEncoder", "Gather"} <= {event["args"].get("op_name") for event in events}


def test_results_are_not_the_inputs() -> None:
    session = byoc.onnxruntime.InferenceSession(TEXT_CASES["identity"][0])
    words = WORDS.copy()
    session.run(None, {"x": words})[0][...] = "changed"
    assert (words == WORDS).all()


def test_what_is_missing_is_named() -> None:
    session = byoc.onnxruntime.InferenceSession
    missing = byoc.onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented
    data = model([node("Add", ["x", "x"], ["y"])], [value("x", STRING, [2, 2])], [value("y", STRING, [2, 2])])
    with pytest.raises(missing, match="E0524: node .*: input 0: expected numbers, found strings"):
        session(data)


def test_runs_leak_nothing() -> None:
    session = byoc.onnxruntime.InferenceSession(text_model())
    feeds = {"words": np.array([["a", "b"], ["c", "d"]], object)}

    def rounds(count: int) -> None:
        for _ in range(count):
            session.run(None, feeds)
            for _, call in MESSAGES:
                outcome(lambda call=call: call(session))

    rounds(100)
    before = resident()
    rounds(400)
    assert resident() - before < 2_000_000


def trees(
    rng: np.random.Generator, kind: str, outputs: int, one: int | None = None, positive: bool = False
) -> dict[str, Any]:
    """Returns the attributes of four random trees of depth three over three features."""
    found: dict[str, list[Any]] = {}

    def add(**row: Any) -> None:
        for name, one_value in row.items():
            found.setdefault(name, []).append(one_value)

    modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE"]
    for tree in range(4):
        for number in range(15):
            inside = number < 7
            add(nodes_treeids=tree, nodes_nodeids=number, nodes_featureids=int(rng.integers(3)),
                nodes_values=float(rng.standard_normal()), nodes_modes=modes[tree] if inside else "LEAF",
                nodes_truenodeids=2 * number + 1 if inside else 0, nodes_falsenodeids=2 * number + 2 if inside else 0,
                nodes_missing_value_tracks_true=int(rng.integers(2)), nodes_hitrates=1.0)  # fmt: skip
            for output in range(outputs) if one is None else [one]:
                if not inside:
                    weight = float(rng.random() if positive else rng.standard_normal())
                    row = {"treeids": tree, "nodeids": number, "ids": output, "weights": weight}
                    add(**{f"{kind}_{name}": one_value for name, one_value in row.items()})
    return found


ROWS = np.array([[0.5, -1, 2], [np.nan, 0.1, -0.3], [3, np.nan, 0], [-2, 2, np.nan], [0, 0, 0]], np.float32)


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("base", [[], [0.5, -1.0]])
def test_regression_by_trees(how: str, base: list[float]) -> None:
    rng = np.random.default_rng(11)
    extra = {"base_values": base} if base else {}
    made = node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=2, aggregate_function=how,
                **trees(rng, "target", 2), **extra)  # fmt: skip
    data = model([made, node("Relu", ["y"], ["z"])], [value("x", FLOAT, ["n", 3])],
                 [value("y", FLOAT, ["n", 2]), value("z", FLOAT, ["n", 2])])  # fmt: skip
    agree(data, [{"x": ROWS}, {"x": ROWS[:1]}])


# Three classes have separate weights and base values; a binary classifier has a single weight.
CLASSES = [
    (classes, one, base)
    for classes in (2, 3)
    for one in (None, 0, 1)
    for base in ([], [0.25], [0.25, -0.5])
    if classes == 2 or (one is None and len(base) != 1)
]


@pytest.mark.parametrize(("classes", "one", "base"), CLASSES)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_classification_by_trees(
    classes: int, one: int | None, positive: bool, transform: str, base: list[float]
) -> None:
    rng = np.random.default_rng(13)
    names = ["cat", "dog", "eel"][:classes]
    base = [*base, 0.125] if classes == 3 and base else base
    extra = {"base_values": base} if base else {}
    made = node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=names,
                post_transform=transform, **trees(rng, "class", classes, one, positive), **extra)  # fmt: skip
    zipped = node("ZipMap", ["scores"], ["shares"], domain=ML, classlabels_strings=names)
    data = model([made, zipped], [value("x", FLOAT, ["n", 3])],
                 [value("label", STRING, ["n"]), mapping("shares", STRING, FLOAT, many=True)])  # fmt: skip
    agree(data, [{"x": ROWS}, {"x": ROWS[:1]}])
