"""ONNX's backend interface, as `onnxruntime.backend` has it: prepare a model, then run it."""

from .backend import is_compatible, prepare, run, supports_device
from .backend_rep import OnnxRuntimeBackendRep

__all__ = ["OnnxRuntimeBackendRep", "is_compatible", "prepare", "run", "supports_device"]
