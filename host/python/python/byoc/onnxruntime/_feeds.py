"""Inputs of a run: their conversion to arrays, and what ONNX Runtime raises for wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _exceptions
from ._describe import NodeArg
from ._exceptions import InvalidArgument
from ._types import NUMBER_OF, number_of, type_name
from ._value import OrtValue


def to_array(value: Any, port: NodeArg) -> Any:
    """Converts the value of an input, or raises what ONNX Runtime raises."""
    import numpy as np

    if isinstance(value, OrtValue):
        value = value.numpy()
    if value is None:
        raise _exceptions.Fail.of(f"Missing Input: {port.name}")
    if isinstance(value, (str, bytes)):
        raise RuntimeError(f"Input must be a list of dictionaries or a single numpy array for input '{port.name}'.")
    if isinstance(value, Mapping):
        raise InvalidArgument.of(
            f"Unexpected input data type. Actual: ((map(string,tensor(float)))) , expected: (({port.type}))"
        )
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__"):
            value = np.from_dlpack(value)
        elif isinstance(value, tuple):
            raise RuntimeError(f"Input must be a list of dictionaries or a single numpy array for input '{port.name}'.")
        elif isinstance(value, list):
            try:
                value = np.asarray(value, dtype=_dtype_name(port.type))
            except (ValueError, TypeError):
                raise RuntimeError("Could not create tensor from given input list") from None
        else:
            raise RuntimeError(f"Unable to handle object of type {type(value)}")
    number = number_of(value.dtype)
    if number is None or type_name(number) != port.type:
        actual = type_name(number) if number is not None else f"tensor({value.dtype})"
        raise InvalidArgument.of(f"Unexpected input data type. Actual: ({actual}) , expected: ({port.type})")
    _check_shape(value.shape, port)
    return value


def _dtype_name(type_text: str) -> str:
    return next(name for name, number in NUMBER_OF.items() if type_name(number) == type_text)


def _check_shape(shape: tuple[int, ...], port: NodeArg) -> None:
    if not port.shape and not shape:
        return
    advice = "Please fix either the inputs/outputs or the model."
    if len(shape) != len(port.shape):
        raise InvalidArgument.of(
            f"Invalid rank for input: {port.name} Got: {len(shape)} Expected: {len(port.shape)} {advice}"
        )
    wrong = [
        f" index: {index} Got: {found} Expected: {expected}\n"
        for index, (found, expected) in enumerate(zip(shape, port.shape))
        if isinstance(expected, int) and expected != found
    ]
    if wrong:
        raise InvalidArgument.of(
            f"Got invalid dimensions for input: {port.name} for the following indices\n{''.join(wrong)} {advice}"
        )
