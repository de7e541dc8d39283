"""Session options that a model has in its metadata, which ONNX Runtime reads if an environment variable says so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from ._enums import ExecutionMode, GraphOptimizationLevel
from ._options import SessionOptions

_VARIABLE = "ORT_LOAD_CONFIG_FROM_MODEL"
_KEY = "ort_config"


def _threads(value: int) -> int:
    if value < 0:
        raise ValueError(value)
    return value


def _flag(value: int) -> bool:
    return (False, True)[_threads(value)]


# Options by name, with the conversion of the number in the metadata. ONNX Runtime ignores others.
_OPTIONS: dict[str, Callable[[int], Any]] = {
    "intra_op_num_threads": _threads,
    "inter_op_num_threads": _threads,
    "execution_mode": ExecutionMode,
    "graph_optimization_level": GraphOptimizationLevel,
    "enable_profiling": _flag,
}


def _refused(reason: str) -> RuntimeError:
    return RuntimeError(
        f"Could not finalize session options while constructing the inference session. Error Message: {reason}"
    )


def options_of_model(properties: Mapping[str, str], options: SessionOptions) -> SessionOptions:
    """Returns the options in the metadata of a model instead of the attributes of `options`, if the environment
    variable ORT_LOAD_CONFIG_FROM_MODEL is 1; otherwise `options`."""
    wanted = os.environ.get(_VARIABLE, "0")
    if wanted not in ("0", "1"):
        raise _refused(
            f"The only supported values for the environment variable {_VARIABLE} are '0' and '1'. "
            f"The environment variable contained the value: {wanted}"
        )
    if wanted == "0":
        return options
    found = options._copy()
    found._values = {name: _value(name, value) for name, value in _entries(properties).items() if name in _OPTIONS}
    return found


def _entries(properties: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        config = json.loads(properties.get(_KEY, "{}"))
    except ValueError as cause:
        raise _refused(f"Json stored in the `{_KEY}` key cannot be parsed. Error message: {cause}") from cause
    found = config.get("session_options", {}) if isinstance(config, dict) else {}
    return found if isinstance(found, dict) else {}


def _value(name: str, value: Any) -> Any:
    if type(value) is not int:
        raise _refused(f"{name} option in the model file must be an integer")
    try:
        return _OPTIONS[name](value)
    except (ValueError, IndexError) as cause:
        raise _refused(f"Unsupported value for {name} option in the model file: {value}") from cause
