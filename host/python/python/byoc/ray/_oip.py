"""Requests and responses of the Open Inference Protocol v2 as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .._errors import InputError
from .._model import Model, Port

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
# NumPy kinds of JSON elements accepted for each kind of input.
_KINDS = {"b": "b", "u": "ui", "i": "ui", "f": "fui"}
_WITHOUT_JSON = ("FP16", "BF16")


class Call(NamedTuple):
    """Request: its id, the inputs by name, and the requested outputs."""

    id: str | None
    feeds: dict[str, np.ndarray]
    outputs: list[str]


def metadata(name: str, model: Model) -> dict[str, Any]:
    """Returns the model metadata."""
    return {"name": name, "platform": "byoc", "inputs": _ports(model.inputs), "outputs": _ports(model.outputs)}


def _ports(ports: list[Port]) -> list[dict[str, Any]]:
    return [
        {
            "name": port.name,
            "datatype": DATATYPES.get(port.dtype, port.dtype),
            "shape": [size if isinstance(size, int) else -1 for size in port.shape],
        }
        for port in ports
    ]


def _wrong(message: str) -> InputError:
    return InputError(message, "E0804")


def parse(body: bytes, inputs: Mapping[str, Port]) -> Call:
    """Parses a request.

    Raises InputError if the request is malformed, or does not match the inputs.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as cause:
        raise _wrong(f"expected a JSON object, found {_shortened(str(cause) or type(cause).__name__)}") from cause
    if not isinstance(request, dict) or not isinstance(request.get("inputs"), list):
        raise _wrong('expected a JSON object with a list "inputs", found none')
    feeds: dict[str, np.ndarray] = {}
    for tensor in request["inputs"]:
        if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
            raise _wrong(f'inputs: expected objects with a string "name", found {_shortened(repr(tensor))}')
        name = tensor["name"]
        if name not in inputs:
            known = ", ".join(f'"{one}"' for one in inputs)
            raise InputError(f'expected inputs {known}, found "{_shortened(name)}"', "E0805")
        if name in feeds:
            raise _wrong(f'expected each input once, found "{name}" twice')
        feeds[name] = _array(tensor, inputs[name])
    missing = [name for name in inputs if name not in feeds]
    if missing:
        raise InputError(f'expected an input "{missing[0]}", found none', "E0805")
    outputs = request.get("outputs") or []
    if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
        raise _wrong(f"outputs: expected a list of objects, found {_shortened(repr(outputs))}")
    identifier = request.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise _wrong(f"id: expected a string, found {type(identifier).__name__}")
    return Call(identifier, feeds, [str(one.get("name")) for one in outputs])


def _array(tensor: Mapping[str, Any], port: Port) -> np.ndarray:
    name, expected = port.name, DATATYPES.get(port.dtype, port.dtype)
    datatype, shape, data = tensor.get("datatype"), tensor.get("shape"), tensor.get("data")
    if datatype != expected:
        raise InputError(f'input "{name}": expected the datatype {expected}, found {datatype!r}', "E0805")
    if expected in _WITHOUT_JSON:
        raise InputError(f'input "{name}": expected a datatype with a JSON representation, found {expected}', "E0805")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise _wrong(f'input "{name}": expected a shape of integers >= 0, found {_shortened(str(shape))}')
    if not isinstance(data, list):
        raise _wrong(f'input "{name}": expected a list "data", found {type(data).__name__}')
    wanted = np.dtype(port.dtype)
    try:
        found = np.asarray(data) if data else np.zeros(0, wanted)
        if found.dtype == object and wanted.kind == "f":
            # JSON null represents NaN.
            found = np.asarray(data, np.float64)
        if found.dtype.kind not in _KINDS[wanted.kind]:
            raise ValueError(f"found elements of {found.dtype}")
        with np.errstate(over="ignore"):
            array = found.astype(wanted)
        if wanted.kind in "ui" and (array != found).any():
            raise ValueError("found values out of range")
        return array.reshape(shape)
    except (ValueError, TypeError, OverflowError) as cause:
        message = f'input "{name}": expected elements of {expected} for the shape {_shortened(str(shape))}'
        raise InputError(f"{message}: {_shortened(str(cause))}", "E0805") from cause


def response(name: str, call: Call, results: Mapping[str, np.ndarray]) -> str:
    """Returns a response as JSON."""
    unknown = [output for output in call.outputs if output not in results]
    if unknown:
        known = ", ".join(f'"{one}"' for one in results)
        raise InputError(f'expected outputs {known}, found "{_shortened(unknown[0])}"', "E0805")
    tensors = []
    for output in call.outputs or results:
        array = results[output]
        datatype = DATATYPES.get(array.dtype.name, array.dtype.name)
        if datatype in _WITHOUT_JSON:
            message = f'output "{output}": expected a datatype with a JSON representation, found {datatype}'
            raise InputError(message, "E0805")
        data = array.ravel().tolist()
        tensors.append({"name": output, "datatype": datatype, "shape": list(array.shape), "data": data})
    start = {} if call.id is None else {"id": call.id}
    return json.dumps({**start, "model_name": name, "outputs": tensors})


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "..."
