"""Binding of a session's inputs and outputs to memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _exceptions
from ._exceptions import InvalidArgument
from ._options import RunOptions
from ._runtime import check_device
from ._types import dtype_of
from ._value import OrtValue, OrtValueVector


class IOBinding:
    """Inputs and outputs of a session, bound to memory."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    @property
    def _iobinding(self) -> SessionIOBinding:
        native = SessionIOBinding(self._session)
        native.__dict__ = self.__dict__
        return native

    def _check_input(self, name: str) -> None:
        if name not in self._session._input_names and name not in self._session._overridable_names:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an input to an array."""
        import numpy as np

        if not isinstance(arr_on_cpu, np.ndarray):
            raise RuntimeError("Only binding Tensors is currently supported")
        self._check_input(name)
        if any(port.name == name and port.type == "tensor(string)" for port in self._session._inputs):
            raise RuntimeError("Only binding non-string Tensors is currently supported")
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds an input to memory."""
        _require_cpu(device_type, "input")
        self._check_input(name)
        self._inputs[name] = _memory(element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to a value."""
        value = ortvalue._get_c_value()._value
        self._check_input(name)
        self._inputs[name] = value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to memory, or to memory allocated by each run."""
        _require_cpu(device_type, "output")
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._outputs[name] = None if buffer_ptr is None else _memory(element_type, shape or (), buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to a value."""
        value = ortvalue._get_c_value()
        # Each run creates new sequences and maps.
        self._outputs[name] = value.numpy() if value.is_tensor() else None

    def synchronize_inputs(self) -> None:
        """Does nothing: host memory needs no synchronization."""

    def synchronize_outputs(self) -> None:
        """Does nothing: host memory needs no synchronization."""

    def _run(self, run_options: RunOptions | None) -> None:
        import numpy as np

        try:
            if not self._outputs:
                raise InvalidArgument.of("At least one output should be requested.")
            missing = self._session._required_names - self._inputs.keys()
            if missing:
                raise InvalidArgument.of(f"Missing Input: {sorted(missing)[0]}")
            results = self._session._run(list(self._outputs), self._inputs, run_options)
            for (name, memory), result in zip(
                self._outputs.items(), self._session._select(list(self._outputs), results)
            ):
                if memory is None:
                    self._results[name] = result
                    continue
                if memory.shape != result.shape or memory.dtype != result.dtype:
                    raise InvalidArgument.of(
                        f"The output OrtValue provided for output '{name}' has type {memory.dtype} and shape "
                        f"{list(memory.shape)} but the computed output has type {result.dtype} and shape "
                        f"{list(result.shape)}."
                    )
                np.copyto(memory, result)
                self._results[name] = memory
        except tuple(_exceptions.ALL) as error:
            detail = str(error).split(" : ", 3)[-1].replace("output name:", "output name: ")
            raise RuntimeError(f"Error in execution: {detail}") from error

    def get_outputs(self) -> list[OrtValue]:
        """Returns the bound outputs as values."""
        return [self._session._value(name, self._results[name]) for name in self._outputs if name in self._results]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Returns the bound outputs as values."""
        return OrtValueVector(self.get_outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Returns the bound outputs as arrays."""
        return [value._value for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Removes the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Removes the outputs."""
        self._outputs.clear()
        self._results.clear()


class SessionIOBinding(IOBinding):
    """The same with the signatures of ONNX Runtime's native class, which takes devices instead of their names."""

    def bind_input(self, name: str, *place: Any) -> None:
        """Binds an input to an array, or to memory: device, element type, shape, address."""
        if len(place) == 1:
            self.bind_cpu_input(name, place[0])
        else:
            device, *memory = place
            super().bind_input(name, device, 0, *memory)

    def bind_output(self, name: str, device: Any = "cpu", *memory: Any) -> None:
        """Binds an output to memory (element type, shape, address), or to memory allocated by each run."""
        super().bind_output(name, device, 0, *memory)

    def get_outputs(self) -> OrtValueVector:
        """Returns the bound outputs as values."""
        return self.get_outputs_as_ortvaluevector()

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Returns the bound outputs as values."""
        return OrtValueVector(super().get_outputs())


def _require_cpu(device_type: Any, what: str) -> None:
    try:
        check_device(device_type)
    except RuntimeError as error:
        raise RuntimeError(f"Error when binding {what}: There's no data transfer registered: {error}") from None


def _memory(element_type: Any, shape: Sequence[int], pointer: int) -> Any:
    """Returns an array over caller-provided memory, which must outlive the array."""
    import ctypes

    import numpy as np

    dtype = dtype_of(element_type) if isinstance(element_type, int) else np.dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64))
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(buffer, dtype=dtype, count=count).reshape(tuple(shape))
