"""Preparation of models."""

from __future__ import annotations

import os
import unittest
from typing import Any

from onnx import ModelProto, checker, helper
from onnx.backend.base import Backend

from .._options import SessionOptions
from .._runtime import get_device
from .._session import InferenceSession
from .backend_rep import OnnxRuntimeBackendRep, with_attributes


class OnnxRuntimeBackend(Backend):
    """ONNX's backend interface."""

    #: True to skip models whose operator sets are not released.
    allowReleasedOpsetsOnly = os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"  # noqa: N815

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Returns True if the device is supported."""
        return cls.supports_device(device or get_device())

    @classmethod
    def is_opset_supported(cls, model: ModelProto) -> tuple[bool, str]:
        """Returns True and "", or False and the reason."""
        for opset in model.opset_import if cls.allowReleasedOpsetsOnly else ():
            if (opset.domain or "ai.onnx", opset.version) not in helper.OP_SET_ID_VERSION_MAP:
                return False, (
                    f"expected a released operator set, found version {opset.version} of the domain "
                    f"'{opset.domain}'; set ALLOW_RELEASED_ONNX_OPSET_ONLY=0 to run the model all the same"
                )
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns True for the CPU."""
        return device in get_device()

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Loads a model: a ModelProto, a path, bytes, or a session. Keywords are session options."""
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if isinstance(model, ModelProto):
            checker.check_model(model)
            is_supported, reason = cls.is_opset_supported(model)
            if not is_supported:
                raise unittest.SkipTest(reason)
            model = model.SerializeToString()
        session = InferenceSession(model, with_attributes(SessionOptions(), kwargs))
        session.disable_fallback()
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected '{device}', got '{get_device()}'")
        return OnnxRuntimeBackendRep(session)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> list[Any]:
        """Prepares a model, and runs it."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str | None = None, outputs_info: Any = None, **kwargs: Any
    ) -> Any:
        """Not available, as in ONNX Runtime: models run as a whole."""
        raise NotImplementedError("It is much more efficient to run a whole model than every node independently.")


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
