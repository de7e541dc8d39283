"""Compiled models in Ray's object store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._model import Model, compile, load
from .._session import Session
from ._require import require


class Artifact:
    """Compiled model in the object store of a Ray cluster, created by `byoc.ray.put`.

    Workers receive it as an argument. Its bytes are transferred to a node once, and stay in the store as long as this
    object, or a model loaded from it, is alive.
    """

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def load(self, session: Session | None = None) -> Model:
        """Loads the model. Its weights stay in the store, which is shared by all workers of a node."""
        return load(require().get(self.reference), session=session)

    def __repr__(self) -> str:
        return f"<byoc.ray.Artifact {self.reference}>"


def put(model: Any, *args: Any, **options: Any) -> Artifact:
    """Puts a compiled model into the object store.

    Accepts a compiled model, the path or the bytes of an artifact, or a model that `byoc.compile` accepts, with its
    options. Starts Ray if it is not running.
    """
    artifact = artifact_bytes(model, *args, **options)
    return Artifact(require().put(artifact))


def artifact_bytes(model: Any, *args: Any, **options: Any) -> np.ndarray:
    """Returns the bytes of an artifact as an array, which Ray shares without a copy."""
    if isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith(".byoc"):
        return np.memmap(model, np.uint8, mode="r").view(np.ndarray)
    if is_artifact(model):
        return np.frombuffer(model, np.uint8)
    if not isinstance(model, Model):
        model = compile(model, *args, **options)
    return np.frombuffer(model.to_bytes(), np.uint8)


def is_artifact(model: Any) -> bool:
    """Tests for the bytes of an artifact, which is a ZIP file."""
    return isinstance(model, (bytes, bytearray, memoryview)) and bytes(model[:2]) == b"PK"


def load_model(model: Any, session: Session, options: Mapping[str, Any]) -> Model:
    """Loads a model in a worker, or compiles it with options."""
    if isinstance(model, Artifact):
        return model.load(session)
    if isinstance(model, Model) or is_artifact(model):
        return load(artifact_bytes(model), session=session)
    if isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith(".byoc"):
        return load(model, session=session)
    return compile(model, session=session, **options)
