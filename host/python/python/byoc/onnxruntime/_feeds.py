"""Conversion of run inputs to arrays, with ONNX Runtime's exceptions for invalid inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._byoc import escaped
from . import _exceptions
from ._describe import NodeArg
from ._exceptions import InvalidArgument
from ._types import NUMBER_OF_NAME, dtype_of, number_of, strings, type_name
from ._value import OrtValue

# Type numbers in messages, for types other than tensors.
_KIND_NUMBERS = {"map": 1, "seq": 3, "optional": 5}


def _no_list(port: NodeArg) -> RuntimeError:
    name = escaped(port.name)
    return RuntimeError(f"Input must be a list of dictionaries or a single numpy array for input '{name}'.")


def to_value(value: Any, port: NodeArg) -> Any:
    """Converts an input value. Invalid values raise ONNX Runtime's exceptions."""
    kind, _, inner = port.type.partition("(")
    inner = inner[:-1]
    if kind == "tensor":
        return to_text(value, port) if inner == "string" else to_array(value, port)
    if isinstance(value, OrtValue):
        value = value._value
    if value is None and kind == "optional":
        return None
    if value is None:
        raise _exceptions.Fail.of(f"Missing Input: {port.name}")
    if isinstance(value, (str, bytes)):
        raise _no_list(port)
    if kind == "optional" and inner.startswith("tensor"):
        return to_value(value, NodeArg(port.name, inner, port.shape, port._has_rank))
    if kind == "optional":
        if _is_array(value):
            raise _tensor_instead(port)
        return to_value(value, NodeArg(port.name, inner, port.shape, port._has_rank))
    if isinstance(value, Mapping):
        return _to_map(value, port)
    if kind == "map":
        if _is_array(value):
            raise _tensor_instead(port)
        if isinstance(value, list):
            raise RuntimeError("The graph is missing type information needed to construct the ORT tensor")
        raise RuntimeError(f"Unable to handle object of type {type(value)}")
    if _is_array(value):
        raise _tensor_instead(port)
    if isinstance(value, tuple):
        first = type(value[0]) if value else type(None)
        raise RuntimeError(f"Iterable of {first} should be given as array for input '{escaped(port.name)}'.")
    if not isinstance(value, list):
        raise RuntimeError(f"Unable to handle object of type {type(value)}")
    return _to_sequence(value, port, inner)


def _is_array(value: Any) -> bool:
    import numpy as np

    return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__dlpack__")


def _tensor_instead(port: NodeArg) -> Exception:
    number = _KIND_NUMBERS[port.type.partition("(")[0]]
    return InvalidArgument.of(f"input with name: '{port.name}' expected to be of type: {number} but received a tensor")


def _to_map(value: Mapping[Any, Any], port: NodeArg) -> dict[Any, Any]:
    if not value:
        raise RuntimeError("Size of dictionary is empty, unable to run the prediction.")
    key = next(iter(value))
    actual = "map(string,tensor(float))" if isinstance(key, str) else "map(int64,tensor(float))"
    if not isinstance(key, (str, int)):
        raise RuntimeError(
            f"Unexpected key type  {type(key)}, it cannot be linked to C type int64_t for input '{escaped(port.name)}'."
        )
    keys, _, values = port.type[len("map(") : -1].partition(",")
    if not port.type.startswith("map(") or keys != ("string" if isinstance(key, str) else "int64"):
        raise InvalidArgument.of(f"Unexpected input data type. Actual: (({actual})) , expected: (({port.type}))")
    convert = {"tensor(int64)": int, "tensor(string)": str}.get(values, float)
    for one in value.values():
        if isinstance(one, str) is not (convert is str) or not (convert is str or hasattr(one, "__float__")):
            raise RuntimeError(
                f"Unexpected value type  {type(one)}, it cannot be linked to C type {keys} for input "
                f"'{escaped(port.name)}'."
            )
    return {key: convert(one) for key, one in value.items()}


def _to_sequence(value: list[Any], port: NodeArg, inner: str) -> list[Any]:
    import numpy as np

    if not inner.startswith("tensor"):
        raise RuntimeError(f"Unable to handle a list for input '{escaped(port.name)}' of the type {port.type}")
    elements = []
    for element in value:
        if isinstance(element, OrtValue):
            element = element._value
        if not isinstance(element, np.ndarray):
            raise RuntimeError("CreateSequenceOfTensors: Input is not a tensor")
        number = number_of(element.dtype)
        if number is None or type_name(number) != inner:
            raise RuntimeError("TensorSeq: tensor to be added has a different data type.")
        elements.append(_as_strings(element) if number == 8 else element)
    return elements


def to_text(value: Any, port: NodeArg) -> Any:
    """Converts the value of a string input: objects with str(), bytes as UTF-8."""
    import numpy as np

    if isinstance(value, OrtValue):
        value = value._value
    if value is None:
        raise _exceptions.Fail.of(f"Missing Input: {port.name}")
    if isinstance(value, (str, bytes, tuple)):
        raise _no_list(port)
    if isinstance(value, Mapping):
        raise InvalidArgument.of(
            f"Unexpected input data type. Actual: ((map(string,tensor(float)))) , expected: (({port.type}))"
        )
    if isinstance(value, list):
        try:
            value = np.array(value, object)
        except ValueError:
            value = _outer(value)
    elif not isinstance(value, np.ndarray):
        raise RuntimeError(f"Unable to handle object of type {type(value)}")
    number = number_of(value.dtype)
    if number != 8:
        actual = type_name(number) if number is not None else f"tensor({value.dtype})"
        raise InvalidArgument.of(f"Unexpected input data type. Actual: ({actual}) , expected: ({port.type})")
    _check_shape(value.shape, port)
    return _as_strings(value)


def _outer(values: list[Any]) -> Any:
    import numpy as np

    array = np.empty(len(values), object)
    array[:] = values
    return array


def _as_strings(array: Any) -> Any:
    if array.dtype.kind == "S":
        return strings([value.decode("utf-8") for value in array.reshape(-1).tolist()], array.shape)
    # ONNX Runtime truncates strings at the first NUL.
    return strings([str(value).partition("\0")[0] for value in array.reshape(-1).tolist()], array.shape)


def to_array(value: Any, port: NodeArg) -> Any:
    """Converts the value of a numeric input."""
    import numpy as np

    if isinstance(value, OrtValue):
        value = value._value
        if isinstance(value, (list, dict)):
            raise InvalidArgument.of(f"input with name: '{port.name}' expected to be a tensor")
    if value is None:
        raise _exceptions.Fail.of(f"Missing Input: {port.name}")
    if isinstance(value, (str, bytes)):
        raise _no_list(port)
    if isinstance(value, Mapping):
        raise InvalidArgument.of(
            f"Unexpected input data type. Actual: ((map(string,tensor(float)))) , expected: (({port.type}))"
        )
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__"):
            value = np.from_dlpack(value)
        elif isinstance(value, tuple):
            raise _no_list(port)
        elif isinstance(value, list):
            try:
                value = np.asarray(value, dtype=dtype_of(NUMBER_OF_NAME[port.type[len("tensor(") : -1]]))
            except (ValueError, TypeError, OverflowError, RuntimeError, ImportError) as cause:
                raise RuntimeError(
                    f"Could not create tensor from given input list for input '{escaped(port.name)}': {cause}"
                ) from cause
        else:
            raise RuntimeError(f"Unable to handle object of type {type(value)}")
    number = number_of(value.dtype)
    if number is None or type_name(number) != port.type:
        actual = type_name(number) if number is not None else f"tensor({value.dtype})"
        raise InvalidArgument.of(f"Unexpected input data type. Actual: ({actual}) , expected: ({port.type})")
    _check_shape(value.shape, port)
    return value


def _check_shape(shape: tuple[int, ...], port: NodeArg) -> None:
    if not port._has_rank or (not port.shape and not shape):
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
