"""Operators on strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ._operators import Call, Invalid, Node, operator, texts
from ._types import dtype_of

# Prefixes that C's strtod and strtoll parse.
_FLOAT = re.compile(
    r"\s*[+-]?(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)",
    re.IGNORECASE,
)
_INTEGER = re.compile(r"\s*([+-]?\d+)")


def strings(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """Returns a string tensor as an object array."""
    import numpy as np

    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(tuple(shape))


def _each(call: Callable[[Any], Any], data: Any) -> Any:
    return strings([call(value) for value in data.reshape(-1)], data.shape)


def _to_text(data: Any) -> Any:
    if data.dtype.kind in "fV" or data.dtype.name == "bfloat16":
        return _each(_float_text, data)
    return _each(lambda value: str(int(value)), data)


def _float_text(value: Any) -> str:
    number = float(value)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "INF" if number > 0 else "-INF"
    return f"{number:.8g}"


def _parse_float(text: str) -> float:
    found = _FLOAT.match(text)
    if found is None:
        raise ValueError("stod")
    read = found.group(0).strip()
    return float.fromhex(read) if "x" in read.lower() else float(read)


def _parse_integer(text: str, low: int, high: int, name: str) -> int:
    found = _INTEGER.match(text)
    if found is None or not low <= int(found.group(1)) <= high:
        raise ValueError(name)
    return int(found.group(1))


@operator("Cast", lambda node, kinds: ["text" if node.attributes.get("to") == 8 else None])
def _cast(call: Call, data: Any) -> Any:
    import numpy as np

    to = call.get("to")
    is_text = data.dtype.kind == "O"
    if to == 8:
        return data.copy() if is_text else _to_text(data)
    dtype = dtype_of(to)
    if not is_text:
        return data.astype(dtype)
    values = [str(value) for value in data.reshape(-1)]
    if dtype.kind in "fV" or dtype.name == "bfloat16":
        return np.array([_parse_float(value) for value in values], np.float64).astype(dtype).reshape(data.shape)
    if dtype.kind == "i":
        parsed = [_parse_integer(value, -(2**63), 2**63 - 1, "stoll") for value in values]
        return np.array(parsed, np.int64).astype(dtype).reshape(data.shape)
    parsed = [_parse_integer(value, -(2**64) + 1, 2**64 - 1, "stoull") % 2**64 for value in values]
    return np.array(parsed, np.uint64).astype(dtype).reshape(data.shape)


@operator("StringNormalizer", texts)
def _string_normalizer(call: Call, data: Any) -> Any:
    if data.ndim not in (1, 2) or (data.ndim == 2 and data.shape[0] != 1) or data.size == 0:
        raise Invalid("Input dimensions are either[C > 0] or [1][C > 0] allowed")
    change, sensitive = call.get("case_change_action", "NONE"), call.get("is_case_sensitive", 0)
    stops = call.get("stopwords") or []
    fold = str if sensitive else (str.upper if change == "UPPER" else str.lower)
    unwanted = {fold(word) for word in stops}
    kept = [value for value in data.reshape(-1) if not unwanted or fold(value) not in unwanted]
    changed = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[change]
    found = [changed(value) for value in kept] or [""]
    return strings(found, (len(found),) if data.ndim == 1 else (1, len(found)))


@operator("StringConcat", texts)
def _string_concat(call: Call, one: Any, other: Any) -> Any:
    import numpy as np

    one, other = np.broadcast_arrays(one, other)
    return strings([a + b for a, b in zip(one.reshape(-1), other.reshape(-1))], one.shape)


@operator("StringSplit", texts)
def _string_split(call: Call, data: Any) -> Any:
    import numpy as np

    most = call.get("maxsplit")
    parts = [_split(value, call.get("delimiter") or None, -1 if most is None else most) for value in data.reshape(-1)]
    width = max((len(part) for part in parts), default=0)
    flat = [text for part in parts for text in (*part, *[""] * (width - len(part)))]
    counts = np.array([len(part) for part in parts], np.int64).reshape(data.shape)
    return strings(flat, (*data.shape, width)), counts


def _split(text: str, delimiter: str | None, most: int) -> list[str]:
    return text.split(delimiter, most) if delimiter is None or text else []


@operator("RegexFullMatch", lambda node, kinds: [None])
def _regex_full_match(call: Call, data: Any) -> Any:
    import numpy as np

    pattern = re.compile(call.get("pattern", ""))
    found = [pattern.fullmatch(value) is not None for value in data.reshape(-1)]
    return np.array(found, np.bool_).reshape(data.shape)


@operator("TfIdfVectorizer", lambda node, kinds: [None])
def _tf_idf_vectorizer(call: Call, data: Any) -> Any:
    import numpy as np

    if data.ndim not in (1, 2):
        raise Invalid("Input shape must have either [C] or [B,C] dimensions where C > 0 and B > 0")
    node: Node = call.node
    pool = node.attributes.get("pool_strings") or node.attributes.get("pool_int64s") or []
    starts, places = call.get("ngram_counts"), call.get("ngram_indexes")
    weights = call.get("weights") or [1.0] * len(places)
    grams: dict[tuple[Any, ...], int] = {}
    index = 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        for at in range(start, end, length):
            if call.get("min_gram_length") <= length <= call.get("max_gram_length"):
                grams[tuple(pool[at : at + length])] = index
            index += 1
    rows = data.reshape(1, -1) if data.ndim == 1 else data
    counts = np.zeros((len(rows), max(places, default=-1) + 1), np.float32)
    weight = np.zeros(counts.shape[1], np.float32)
    for gram in grams.values():
        weight[places[gram]] = weights[gram]
    for row, words in zip(counts, rows.tolist()):
        for length in sorted({len(gram) for gram in grams}):
            # An n-gram of one item has no gaps.
            for skip in range(1, (call.get("max_skip_count") if length > 1 else 0) + 2):
                for start in range(len(words) - (length - 1) * skip):
                    found = grams.get(tuple(words[start : start + (length - 1) * skip + 1 : skip]))
                    if found is not None:
                        row[places[found]] += 1
    mode = call.get("mode")
    if mode == "IDF":
        counts = (counts > 0) * weight
    elif mode == "TFIDF":
        counts = counts * weight
    counts = counts.astype(np.float32)
    return counts[0] if data.ndim == 1 else counts


@operator("Tokenizer", texts, "com.microsoft")
def _tokenizer(call: Call, data: Any) -> Any:
    if data.ndim not in (1, 2):
        raise Invalid("Input dimensions are either [C] or [N][C] allowed")
    tokens_of = call.node.once("tokens_of", lambda: _tokens_of(call))
    parts = [tokens_of(text) for text in data.reshape(-1)]
    # Without any token, there are no marks either.
    if call.get("mark", 0) and any(parts):
        parts = [["\x02", *part, "\x03"] for part in parts]
    width, pad = max(map(len, parts), default=0), call.get("pad_value", "")
    flat = [text for part in parts for text in (*part, *[pad] * (width - len(part)))]
    return strings(flat, (*data.shape, width))


def _tokens_of(call: Call) -> Any:
    """Returns the function from a text to its tokens."""
    least = call.get("mincharnum", 1)
    expression, separators = call.get("tokenexp"), call.get("separators") or []
    if expression:
        pattern = re.compile(expression)
        return lambda text: [found.group() for found in pattern.finditer(text) if len(found.group()) >= least]
    if separators == [""]:
        return list
    patterns = [re.compile(separator) for separator in separators]

    def split(text: str) -> list[str]:
        parts = [text]
        for pattern in patterns:
            parts = [piece for part in parts for piece in _outside(pattern, part)]
        return [part for part in parts if len(part) >= least]

    return split


def _outside(pattern: re.Pattern[str], text: str) -> list[str]:
    """Returns the parts of a text between the matches of a pattern."""
    ends = [0, *(place for found in pattern.finditer(text) for place in found.span()), len(text)]
    return [text[start:end] for start, end in zip(ends[::2], ends[1::2])]
