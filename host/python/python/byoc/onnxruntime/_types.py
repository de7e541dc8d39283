"""Element types by ONNX type number, ONNX Runtime name and NumPy name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# ONNX type number, name in ONNX Runtime, name in NumPy or ml_dtypes.
_ROWS = (
    (1, "float", "float32"),
    (2, "uint8", "uint8"),
    (3, "int8", "int8"),
    (4, "uint16", "uint16"),
    (5, "int16", "int16"),
    (6, "int32", "int32"),
    (7, "int64", "int64"),
    (8, "string", "object"),
    (9, "bool", "bool"),
    (10, "float16", "float16"),
    (11, "double", "float64"),
    (12, "uint32", "uint32"),
    (13, "uint64", "uint64"),
    (14, "complex64", "complex64"),
    (15, "complex128", "complex128"),
    (16, "bfloat16", "bfloat16"),
    (17, "float8e4m3fn", "float8_e4m3fn"),
    (18, "float8e4m3fnuz", "float8_e4m3fnuz"),
    (19, "float8e5m2", "float8_e5m2"),
    (20, "float8e5m2fnuz", "float8_e5m2fnuz"),
    (21, "uint4", "uint4"),
    (22, "int4", "int4"),
    (23, "float4e2m1", "float4_e2m1fn"),
    (24, "float8e8m0", "float8_e8m0fnu"),
    (25, "uint2", "uint2"),
    (26, "int2", "int2"),
)
NAME_OF = {number: name for number, name, _ in _ROWS}
NUMPY_OF = {number: name for number, _, name in _ROWS}
NUMBER_OF_NAME = {name: number for number, name, _ in _ROWS}
NUMBER_OF = {name: number for number, _, name in _ROWS}


def type_name(number: int, kind: str = "tensor") -> str:
    """Returns the name of a tensor type, such as "tensor(float)"."""
    return f"{kind}({NAME_OF.get(number, 'undefined')})"


def render(declared: tuple[Any, ...]) -> str:
    """Returns the name of a declared type, such as "seq(map(string,tensor(float)))"."""
    kind = declared[0]
    if kind == "map":
        return f"map({NAME_OF.get(declared[1], 'undefined')},{render(declared[2])})"
    if kind in ("seq", "optional"):
        return f"{kind}({render(declared[1])})"
    return type_name(declared[1], kind)


def number_of(dtype: Any) -> int | None:
    """Returns the ONNX type number of a NumPy element type."""
    if dtype.kind in "OSUT":
        return 8
    return NUMBER_OF.get(dtype.name)


def dtype_of(number: int) -> Any:
    """Returns the NumPy element type of an ONNX type number."""
    import numpy

    name = NUMPY_OF.get(number)
    if name is None or number in (8,):
        raise RuntimeError(f"tensor type {number} is not supported")
    try:
        return numpy.dtype(name)
    except TypeError:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))


def strings(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """Returns a string tensor as an object array."""
    import numpy as np

    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(tuple(shape))
