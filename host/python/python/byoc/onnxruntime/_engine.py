"""Compilation of a session's model, once for all sizes if possible, otherwise once per shape."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from .. import _byoc, _errors
from .._model import Model, compile
from .._session import Session, default_session
from . import _exceptions

# Maximum number of cached compilations for input shapes.
_MAX_SHAPES = 32

_threads = 0
_backend: str | None = None
_sessions: dict[tuple[int, int], Session] = {}
_lock = threading.Lock()


def set_default_threads(threads: int) -> None:
    """Sets the default number of threads, for sessions whose options do not specify it."""
    global _threads
    _threads = max(threads, 0)


def set_default_backend(backend: str | None) -> None:
    """Sets the backends of sessions whose options do not name any."""
    global _backend
    _backend = backend


def default_backend() -> str | None:
    """Returns the backends of sessions whose options do not name any."""
    return _backend


def session_of(threads: int) -> Session:
    """Returns the session with a number of threads, shared by all models with that number."""
    threads = threads or _threads
    if threads <= 0:
        return default_session()
    with _lock:
        key = (os.getpid(), threads)
        if key not in _sessions:
            _sessions[key] = Session(threads=threads)
        return _sessions[key]


class Engine:
    """Model of a session."""

    def __init__(
        self,
        source: str | bytes,
        metadata: dict[str, Any],
        session: Session,
        *,
        backend: str | None,
        dims: dict[str, int],
        folder: str | None,
    ) -> None:
        self._source, self._metadata, self._session = source, metadata, session
        self._backend, self._folder = backend, folder
        symbols = {dim for port in metadata["inputs"] for dim in port[2] or () if isinstance(dim, str)}
        self._dims = {name: size for name, size in dims.items() if name in symbols}
        self._sequences = {name for name, declared, _ in metadata["inputs"] if declared[0] in ("seq", "optional")}
        self._by_shape: dict[Any, Model] = {}
        self._by_override: dict[tuple[str, ...], Engine] = {}
        self._lock = threading.Lock()
        # Model for all sizes; None if each shape requires a separate compilation.
        self.model: Model | None = None
        try:
            self.model = self._compile({})
        except _errors.ModelError as error:
            free = symbols - self._dims.keys()
            unsized = any(dims is None or None in dims for _, _, dims in metadata["inputs"])
            if error.code in ("E0503", "E0518", "E0501", "E0506", "E0508", "E0524", "E0525") or not (free or unsized):
                raise
            if not unsized:
                self._try_sizes(free)

    def _try_sizes(self, free: set[str]) -> None:
        """Raises errors that do not depend on the sizes of the dimensions, which are those at each of several sizes.

        At a size of 1, operators such as Squeeze without axes have another rank; some models take batches of 4 or 8
        only.
        """
        for size in (1, 2, 16):
            try:
                self._compile({}, dict.fromkeys(free, size))
                return
            except _errors.ModelError as error:
                found = error
        raise found

    def _compile(self, shapes: dict[str, Sequence[int]], dims: dict[str, int] | None = None) -> Model:
        return compile(
            self._source,
            backend=self._backend,
            dims={**self._dims, **(dims or {})},
            input_shapes=shapes,
            folder=self._folder,
            session=self._session,
            progress=False,
        )

    def model_for(self, feeds: dict[str, Any]) -> Model:
        """Returns the model for the shapes of the input arrays."""
        if self.model is not None:
            return self.model
        key = tuple(self._shapes(feeds))
        with self._lock:
            model = self._by_shape.get(key)
            if model is None:
                model = self._compile(dict(key))
                while len(self._by_shape) >= _MAX_SHAPES:
                    self._by_shape.pop(next(iter(self._by_shape)))
                self._by_shape[key] = model
            return model

    def _shapes(self, feeds: dict[str, Any]) -> list[tuple[str, Any]]:
        """Returns the shapes of the input tensors, and of sequences the rank of their tensors."""
        shapes = []
        for name in sorted({*feeds, *self._sequences}):
            value = feeds.get(name)
            if name not in self._sequences:
                shapes.append((name, value.shape))
                continue
            elements = value if isinstance(value, list) else [] if value is None else [value]
            rank = elements[0].ndim if elements else 0
            shapes.append((f"{name}.shapes", (min(len(elements), 1), rank)))
        return shapes

    def overriding(self, names: tuple[str, ...]) -> Engine:
        """Returns the engine for a variant of the model with the named initializers as inputs."""
        with self._lock:
            if names not in self._by_override:
                self._by_override[names] = self._edited([], list(names))
            return self._by_override[names]

    def _edited(self, tensors: list[Any], names: list[str]) -> Engine:
        data = _byoc.onnx_edited(read(self._source), tensors, names)
        folder = self._folder
        if isinstance(self._source, str):
            folder = os.path.dirname(os.path.abspath(self._source))
        metadata = _byoc.onnx_metadata(data)
        return Engine(data, metadata, self._session, backend=self._backend, dims=self._dims, folder=folder)


def read(source: str | bytes) -> bytes:
    """Returns the contents of a model file."""
    if isinstance(source, bytes):
        return source
    try:
        with open(source, "rb") as file:
            return file.read()
    except FileNotFoundError as cause:
        raise _exceptions.NoSuchFile.of(
            f"Load model from {source} failed:Load model {source} failed. File doesn't exist"
        ) from cause
    except OSError as cause:
        raise _exceptions.Fail.of(f"Load model from {source} failed:{cause}") from cause
