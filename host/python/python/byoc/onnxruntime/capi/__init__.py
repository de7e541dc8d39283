"""Modules of `onnxruntime.capi` that scripts import."""

from . import _pybind_state, onnxruntime_inference_collection, onnxruntime_pybind11_state
