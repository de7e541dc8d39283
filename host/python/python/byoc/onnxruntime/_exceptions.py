"""Exceptions of ONNX Runtime, and conversion of byoc's errors to them."""

from __future__ import annotations

from .. import _byoc, _errors


def _of(cls: type[Exception], detail: str) -> Exception:
    """Creates the exception, with its code and name as a prefix of the detail."""
    return cls(f"[ONNXRuntimeError] : {cls.code} : {cls.label} : {_byoc.escaped(detail)}")


def _define(name: str, code: int, label: str) -> type[Exception]:
    # The base class is `Exception`, as in ONNX Runtime.
    place = "byoc.onnxruntime.capi.onnxruntime_pybind11_state"
    made = type(name, (Exception,), {"code": code, "label": label, "of": classmethod(_of), "__module__": place})
    ALL.append(made)
    return made


ALL: list[type[Exception]] = []
Fail = _define("Fail", 1, "FAIL")
InvalidArgument = _define("InvalidArgument", 2, "INVALID_ARGUMENT")
NoSuchFile = _define("NoSuchFile", 3, "NO_SUCHFILE")
NoModel = _define("NoModel", 4, "NO_MODEL")
EngineError = _define("EngineError", 5, "ENGINE_ERROR")
RuntimeException = _define("RuntimeException", 6, "RUNTIME_EXCEPTION")
InvalidProtobuf = _define("InvalidProtobuf", 7, "INVALID_PROTOBUF")
ModelLoaded = _define("ModelLoaded", 8, "MODEL_LOADED")
NotImplemented = _define("NotImplemented", 9, "NOT_IMPLEMENTED")  # noqa: A001
InvalidGraph = _define("InvalidGraph", 10, "INVALID_GRAPH")
EPFail = _define("EPFail", 11, "EP_FAIL")
ModelLoadCanceled = _define("ModelLoadCanceled", 12, "MODEL_LOAD_CANCELED")
ModelRequiresCompilation = _define("ModelRequiresCompilation", 13, "MODEL_REQUIRES_COMPILATION")
NotFound = _define("NotFound", 14, "NOT_FOUND")
DeviceReset = _define("DeviceReset", 15, "DEVICE_RESET")


def unsupported(what: str) -> Exception:
    """Returns the exception for an unsupported part of the interface."""
    return NotImplemented.of(f"{what} is not available in byoc.onnxruntime, which runs models on the CPU")


def of_model(error: _errors.Error, opsets: dict[str, int]) -> Exception:
    """Converts a compilation error."""
    text = str(error)
    if error.code == "E0503":
        version = opsets.get("", 0)
        return InvalidGraph.of(
            f"This is an invalid model. Error No Op registered for {_operator(error)} with domain_version of "
            f"{version}\n{text}"
        )
    if error.code == "E0521":
        return InvalidArgument.of(f"Invalid model. {text}")
    if error.code in ("E0502", "E0505", "E0523"):
        return InvalidGraph.of(f"This is an invalid model. {text}")
    if error.code in ("E0518", "E0524"):
        return NotImplemented.of(text)
    return Fail.of(text)


def of_run(error: _errors.Error) -> Exception:
    """Converts an error of a run."""
    if error.code == "E0625":
        return InvalidArgument.of(str(error))
    # The conversions of the C library that ONNX Runtime calls throw exceptions.
    return RuntimeException.of(str(error)) if "text.to_numbers" in str(error) else Fail.of(str(error))


def _operator(error: _errors.Error) -> str:
    """Extracts the operator name from the context of an error."""
    import re

    found = re.search(r"^([A-Za-z_][\w.]*)", error.context[0]) if error.context else None
    return found.group(1) if found else "an operator"
