"""Unsupported classes of the interface; each raises an exception with its name."""

from __future__ import annotations

from typing import Any

from ._exceptions import unsupported


class _Unsupported:
    reason = ""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        raise unsupported(f"{type(self).__name__} ({self.reason})")


class LoraAdapter(_Unsupported):
    reason = "LoRA"


class AdapterFormat(_Unsupported):
    reason = "LoRA"

    @staticmethod
    def read_adapter(file_path: Any) -> AdapterFormat:
        """Not available."""
        raise unsupported("AdapterFormat.read_adapter (LoRA)")


class ModelCompiler(_Unsupported):
    reason = "models with precompiled contexts; use byoc.compile and Model.save to create artifacts"


class ModelPackage(_Unsupported):
    reason = "model packages"


class ModelPackageComponentContext(_Unsupported):
    reason = "model packages"


class ModelPackageContext(_Unsupported):
    reason = "model packages"


class ModelPackageOptions(_Unsupported):
    reason = "model packages"


class OrtEpContextData(_Unsupported):
    reason = "models with precompiled contexts"


class OrtEpContextDataBuffer(_Unsupported):
    reason = "models with precompiled contexts"


class OrtExternalInitializerInfo(_Unsupported):
    reason = "models with precompiled contexts"


class OrtSyncStream(_Unsupported):
    reason = "streams of other devices"
