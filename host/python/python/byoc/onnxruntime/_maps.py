"""Operators of the domain `ai.onnx.ml` on maps."""

from __future__ import annotations

from typing import Any

from ._operators import Call, operator
from ._types import strings

_ML = "ai.onnx.ml"


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
