"""Operators of the domain `ai.onnx.ml` on labels and maps, and models with labels as results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._operators import Call, Failed, Kind, Node, numbers, operator, same
from ._text import strings

_ML = "ai.onnx.ml"


def _encoded(call: Call, what: str) -> Sequence[Any]:
    for kind in ("strings", "int64s", "floats"):
        found = call.get(f"{what}_{kind}")
        if found is not None:
            return found
    return _elements(call.get(f"{what}_tensor"))


def _elements(tensor: Any) -> Sequence[Any]:
    if tensor is None:
        return []
    return tensor[1] if isinstance(tensor, tuple) else tensor.reshape(-1).tolist()


def _encodes_text(node: Node, kinds: Any) -> Sequence[Kind]:
    if "classes_strings" in node.attributes:
        return _other_kind(node, kinds)
    values = node.attributes.get("values_tensor")
    return ["text" if "values_strings" in node.attributes or isinstance(values, tuple) else None]


def _other_kind(node: Node, kinds: Any) -> Sequence[Kind]:
    """Returns the kind of a result that has numbers for words, and words for numbers."""
    return [None if kinds.get(node.inputs[0]) == "text" else "text"]


def _exchanged(call: Call, data: Any, words: Sequence[str], codes: Sequence[int]) -> Any:
    """Returns the number of each word, or the word of each number."""
    import numpy as np

    values = data.reshape(-1).tolist()
    if data.dtype.kind == "O":
        code_of = dict(zip(words, codes))
        found = [code_of.get(value, call.get("default_int64", -1)) for value in values]
        return np.array(found, np.int64).reshape(data.shape)
    word_of = dict(zip(codes, words))
    return strings([word_of.get(value, call.get("default_string", "_Unused")) for value in values], data.shape)


@operator("LabelEncoder", _encodes_text, _ML)
def _label_encoder(call: Call, data: Any) -> Any:
    import numpy as np

    # Version 1 of the operator numbers the classes in order.
    if (classes := call.get("classes_strings")) is not None:
        return _exchanged(call, data, classes, range(len(classes)))
    tensor = call.get("values_tensor")
    table = {_key(key): value for key, value in zip(_encoded(call, "keys"), _encoded(call, "values"))}
    if call.get("values_strings") is not None or isinstance(tensor, tuple):
        default, dtype = call.get("default_string", "_Unused"), None
    elif call.get("values_int64s") is not None:
        default, dtype = call.get("default_int64", -1), np.int64
    elif call.get("values_floats") is not None:
        default, dtype = call.get("default_float", -0.0), np.float32
    else:
        default, dtype = (-1 if tensor.dtype.kind == "i" else -0.0), tensor.dtype
    default = (_elements(call.get("default_tensor")) or [default])[0]
    found = [table.get(_key(value), default) for value in data.reshape(-1).tolist()]
    return strings(found, data.shape) if dtype is None else np.array(found, dtype).reshape(data.shape)


def _key(value: Any) -> Any:
    # All NaN keys are treated as equal.
    return "NaN of a float" if isinstance(value, float) and value != value else value


@operator("CategoryMapper", _other_kind, _ML)
def _category_mapper(call: Call, data: Any) -> Any:
    return _exchanged(call, data, call.get("cats_strings", []), call.get("cats_int64s", []))


@operator("DictVectorizer", lambda node, kinds: [None], _ML)
def _dict_vectorizer(call: Call, data: dict[Any, Any]) -> Any:
    import numpy as np

    words = call.get("string_vocabulary") or call.get("int64_vocabulary") or []
    values = list(data.values())
    if values and isinstance(values[0], str):
        return strings([data.get(word, "") for word in words], (1, len(words)))
    dtype = np.int64 if values and isinstance(values[0], int) else np.float32
    return np.array([[data.get(word, 0) for word in words]], dtype)


@operator("CastMap", lambda node, kinds: ["text" if node.attributes.get("cast_to") == "TO_STRING" else None], _ML)
def _cast_map(call: Call, data: dict[Any, Any]) -> Any:
    import numpy as np

    to, form = call.get("cast_to", "TO_FLOAT"), call.get("map_form", "DENSE")
    empty, convert = {"TO_FLOAT": (0.0, float), "TO_INT64": (0, int), "TO_STRING": ("0", str)}[to]
    ordered = sorted(data.items())
    if form == "DENSE":
        found = [convert(value) for _, value in ordered]
    else:
        found = [empty] * call.get("max_map", 1)
        for key, value in ordered:
            if key < 0:
                raise ValueError("Negative index values are not permitted.")
            if key < len(found):
                found[key] = convert(value)
    if to == "TO_STRING":
        return strings(found, (1, len(found)))
    return np.array([found], np.float32 if to == "TO_FLOAT" else np.int64)


@operator("ZipMap", lambda node, kinds: [("seq", ("map", None))], _ML)
def _zip_map(call: Call, data: Any) -> Any:
    labels = call.get("classlabels_strings") or call.get("classlabels_int64s") or []
    rows = data.reshape(1, -1) if data.ndim == 1 else data
    if rows.shape[-1] != len(labels):
        raise ValueError(f"Input features_per_batch[{rows.shape[-1]}] != number of classlabels[{len(labels)}]")
    # ONNX Runtime's maps are sorted.
    order = sorted(range(len(labels)), key=lambda index: labels[index])
    return [{labels[index]: row[index] for index in order} for row in rows.tolist()]


@operator("OneHotEncoder", numbers, _ML)
def _one_hot_encoder(call: Call, data: Any) -> Any:
    import numpy as np

    categories = call.get("cats_strings") if data.dtype.kind == "O" else call.get("cats_int64s")
    values = data.reshape(-1).tolist()
    place = {value: index for index, value in enumerate(categories or [])}
    result = np.zeros((len(values), len(place)), np.float32)
    for row, value in zip(result, values):
        at = place.get(value if isinstance(value, str) else int(value))
        if at is not None:
            row[at] = 1
        elif not call.get("zeros", 1):
            raise Failed("Unknown Category and zeros = 0.")
    return result.reshape(*data.shape, len(place))


@operator("ArrayFeatureExtractor", same(), _ML)
def _array_feature_extractor(call: Call, data: Any, places: Any) -> Any:
    chosen = data[..., places.reshape(-1)]
    return chosen.reshape(1, -1) if data.ndim == 1 else chosen


@operator("FeatureVectorizer", numbers, _ML)
def _feature_vectorizer(call: Call, *values: Any) -> Any:
    import numpy as np

    sizes = call.get("inputdimensions")
    rows = max((len(value) for value in values if value.ndim > 1), default=1)
    columns = []
    for value, size in zip(values, sizes):
        flat = value.reshape(rows, -1).astype(np.float32)[:, :size]
        columns.append(np.pad(flat, ((0, 0), (0, size - flat.shape[1]))))
    return np.concatenate(columns, axis=1)


@operator("Normalizer", numbers, _ML)
def _normalizer(call: Call, data: Any) -> Any:
    import numpy as np

    values = data.astype(np.float32)
    kind = call.get("norm", "MAX")
    if kind == "MAX":
        scale = values.max(axis=-1, keepdims=True)
    elif kind == "L1":
        scale = np.abs(values).sum(axis=-1, keepdims=True)
    else:
        scale = np.sqrt((values * values).sum(axis=-1, keepdims=True))
    return np.divide(values, scale, out=values.copy(), where=scale != 0)


def transformed(scores: Any, kind: str) -> Any:
    """Applies the `post_transform` of an operator."""
    import numpy as np

    if kind == "LOGISTIC":
        small = np.exp(-np.abs(scores))
        return np.where(scores >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)
    if kind in ("SOFTMAX", "SOFTMAX_ZERO"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        if kind == "SOFTMAX_ZERO":
            powers = np.where(np.abs(scores) > 1e-7, powers, 0)
        return (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    if kind == "PROBIT":
        raise ValueError("post_transform: expected a supported transformation, found PROBIT")
    return scores


@operator("LinearRegressor", numbers, _ML)
def _linear_regressor(call: Call, data: Any) -> Any:
    import numpy as np

    rows = (data.reshape(1, -1) if data.ndim == 1 else data).astype(np.float32)
    targets = call.get("targets", 1)
    weights = np.array(call.get("coefficients"), np.float32).reshape(targets, -1)
    offset = np.array(call.get("intercepts") or [0] * targets, np.float32)
    return transformed(rows @ weights.T + offset, call.get("post_transform", "NONE"))


def labels_text(node: Node, kinds: Any) -> Sequence[Kind]:
    """Returns the kinds of the results: labels, which are strings or numbers, and scores."""
    return ["text" if node.attributes.get("classlabels_strings") else None, None]


@operator("LinearClassifier", labels_text, _ML)
def _linear_classifier(call: Call, data: Any) -> Any:
    import numpy as np

    rows = (data.reshape(1, -1) if data.ndim == 1 else data).astype(np.float32)
    labels = call.get("classlabels_strings") or call.get("classlabels_ints") or []
    offset = np.array(call.get("intercepts") or [0.0], np.float32)
    # As in ONNX Runtime, the number of features is that of the input, whatever the number of coefficients.
    weights = np.array(call.get("coefficients")[: len(offset) * rows.shape[1]], np.float32)
    scores = rows @ weights.reshape(len(offset), rows.shape[1]).T + offset
    kind = call.get("post_transform", "NONE")
    if scores.shape[1] == 1 and len(labels) == 2:
        chosen = (scores[:, 0] > 0).astype(np.int64)
        scores = transformed(scores, kind) if kind == "PROBIT" else np.concatenate([1 - scores, scores], axis=1)
    else:
        chosen = scores.argmax(axis=1)
        scores = transformed(scores, kind)
    if call.get("classlabels_strings"):
        return strings([labels[index] for index in chosen], (len(rows),)), scores
    return np.array([labels[index] for index in chosen], np.int64), scores
