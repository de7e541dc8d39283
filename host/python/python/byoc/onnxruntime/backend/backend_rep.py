"""Prepared models."""

from __future__ import annotations

from typing import Any

from onnx.backend.base import BackendRep

from .._options import RunOptions
from .._session import InferenceSession


class OnnxRuntimeBackendRep(BackendRep):
    """Session behind ONNX's backend interface."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """Runs the model on a list of inputs in order, or on the only input. Keywords are run options."""
        options = with_attributes(RunOptions(), kwargs)
        names = [port.name for port in self._session.get_inputs()]
        if not isinstance(inputs, list):
            if len(names) != 1:
                raise RuntimeError(f"Model expect {len(names)} inputs")
            inputs = [inputs]
        return self._session.run(None, dict(zip(names, inputs)), options)


def with_attributes(options: Any, values: dict[str, Any]) -> Any:
    """Sets the attributes that the options have, and returns the options."""
    for name, value in values.items():
        if hasattr(options, name):
            setattr(options, name, value)
    return options
