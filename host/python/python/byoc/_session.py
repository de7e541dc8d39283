"""Sessions: threads, plugins and limits shared by models."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Union

from . import _byoc, _place

PathLike = Union[str, "os.PathLike[str]"]


class _Default:
    def __repr__(self) -> str:
        return "<the user's cache folder>"


DEFAULT = _Default()


def _cache_folder() -> str | None:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "byoc") if os.path.isabs(root) else None


class Session(_byoc.Session):
    """Threads, plugins and limits shared by models.

    plugin_dirs: plugin directories, searched first.
    search: True to also search the default directories: BYOC_PLUGIN_PATH, the package's plugins, the user's plugins.
    threads: number of threads; 0 for the value of BYOC_THREADS, or by default the number of processors.
    max_memory: limit in bytes on the memory of tensors, for the entire process.
    cache_dir: cache directory of the backends; None for no cache.
    allow_native: True if artifacts may contain native code, which runs with the privileges of the process.
    devices: device per backend, for backends with several devices.
    """

    def __new__(
        cls,
        *,
        plugin_dirs: Sequence[PathLike] = (),
        search: bool = True,
        threads: int = 0,
        max_memory: int | None = None,
        cache_dir: PathLike | None | _Default = DEFAULT,
        allow_native: bool = True,
        devices: Mapping[str, str] | None = None,
    ) -> Session:
        _place.find_onednn()
        _byoc.set_folder(_place.FOLDER, _place.command())
        return super().__new__(
            cls,
            [os.fspath(folder) for folder in plugin_dirs],
            search,
            threads or _threads_of_environment(),
            max_memory,
            _cache_folder() if cache_dir is DEFAULT else cache_dir,
            allow_native,
            [(backend, str(device)) for backend, device in (devices or {}).items()],
        )

    def __init__(self, **_options) -> None:
        super().__init__()

    def __repr__(self) -> str:
        return f"<byoc.Session threads={self.threads}>"


def _threads_of_environment() -> int:
    text = os.environ.get("BYOC_THREADS", "")
    return int(text) if text.isdecimal() else 0


_lock = threading.Lock()
_default: tuple[int, Session] | None = None


def default_session() -> Session:
    """Returns the default session; a forked process gets a new one."""
    global _default
    with _lock:
        if _default is None or _default[0] != os.getpid():
            _default = (os.getpid(), Session())
        return _default[1]


def configure(**options) -> Session:
    """Replaces the default session, and returns the new one. Accepts the options of Session."""
    global _default
    session = Session(**options)
    with _lock:
        _default = (os.getpid(), session)
    return session


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
