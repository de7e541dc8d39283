"""Element types of inputs and outputs as NumPy, PyTorch and ONNX have them."""

from __future__ import annotations

from typing import Any

from .._types import NUMBER_OF_NAME, NUMPY_OF, dtype_of, number_of

_PREFIX = "tensor("


def _number(ort_type: str) -> int:
    """Returns the ONNX type number of a tensor type such as "tensor(float)"."""
    number = NUMBER_OF_NAME.get(ort_type[len(_PREFIX) : -1]) if ort_type.startswith(_PREFIX) else None
    if number is None:
        raise ValueError(f"{ort_type} not found in map")
    return number


def _port(ports: list[Any], kind: str, name: str) -> str:
    found = next((port.type for port in ports if port.name == name), None)
    if found is None:
        raise ValueError(f"{kind} name {name} not found")
    return found


class TypeHelper:
    """Conversions between type names."""

    @staticmethod
    def get_input_type(ort_session: Any, name: str) -> str:
        """Returns the type of an input."""
        return _port(ort_session.get_inputs(), "input", name)

    @staticmethod
    def get_output_type(ort_session: Any, name: str) -> str:
        """Returns the type of an output."""
        return _port(ort_session.get_outputs(), "output", name)

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        """Returns the NumPy type of a tensor type."""
        try:
            return dtype_of(_number(ort_type)).type
        except (RuntimeError, ImportError) as cause:
            raise ValueError(f"{ort_type} not found in map") from cause

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """Returns the PyTorch type of a tensor type."""
        import torch

        found = getattr(torch, NUMPY_OF[_number(ort_type)], None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{ort_type} not found in map")
        return found

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """Returns the ONNX type number of a tensor type."""
        return _number(ort_type)

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """Returns the PyTorch type of a NumPy type."""
        import numpy as np
        import torch

        number = number_of(np.dtype(numpy_type))
        found = getattr(torch, NUMPY_OF.get(number, ""), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{numpy_type} not found in map")
        return found

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> Any:
        """Returns the NumPy type of a PyTorch type."""
        import numpy as np

        try:
            return np.dtype(str(torch_type).removeprefix("torch.")).type
        except TypeError as cause:
            raise ValueError(f"{torch_type} not found in map") from cause

    @staticmethod
    def get_io_onnx_type_map(ort_session: Any) -> dict[str, int]:
        """Returns the ONNX type number of each input and output."""
        return _each(ort_session, TypeHelper.ort_type_to_onnx_type)

    @staticmethod
    def get_io_numpy_type_map(ort_session: Any) -> dict[str, Any]:
        """Returns the NumPy type of each input and output."""
        return _each(ort_session, TypeHelper.ort_type_to_numpy_type)

    @staticmethod
    def get_io_torch_type_map(ort_session: Any) -> dict[str, Any]:
        """Returns the PyTorch type of each input and output."""
        return _each(ort_session, TypeHelper.ort_type_to_torch_type)


def _each(session: Any, convert: Any) -> dict[str, Any]:
    return {port.name: convert(port.type) for port in (*session.get_inputs(), *session.get_outputs())}
