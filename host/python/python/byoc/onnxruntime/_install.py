"""byoc in the place of ONNX Runtime: `import onnxruntime` gives this package, in this process alone.

An import finder resolves `onnxruntime` and its submodules to the modules of this package. Python modules that this
package lacks, such as `onnxruntime.quantization`, come from an installed ONNX Runtime, whose native library is never
loaded. Nothing outside the process changes, and nothing changes in the process before `install`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ._engine import set_default_backend
from ._runtime import get_version_string

_NAME = "onnxruntime"
_OWN = __package__
_FOLDER = os.path.dirname(os.path.abspath(__file__))

# Package whose modules import each other by their bare names, for which its `__init__` extends the search path.
_BARE = f"{_NAME}.transformers"


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


class _Alias(importlib.abc.Loader):
    """Loader that yields a module under another name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._name)


class _Distribution(importlib.metadata.Distribution):
    """Metadata of the distribution `onnxruntime`, as far as programs ask for it: name, version and module."""

    _FILES = {
        "METADATA": f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {get_version_string()}\n",
        "top_level.txt": f"{_NAME}\n",
    }

    def read_text(self, filename: Any) -> str | None:
        return self._FILES.get(os.fspath(filename))

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent / path


class _Finder(importlib.metadata.DistributionFinder):
    """Finder of the modules and of the distribution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        name = _NAME + fullname[len(_OWN) :] if _is_within(fullname, _OWN) else fullname
        if not _is_within(name, _NAME):
            return None
        own = _OWN + name[len(_NAME) :]
        found = _found(own, [_FOLDER])
        if found is not None:
            return _alias(fullname, own, found) if fullname != own else None
        found = _installed(name)
        # `from onnxruntime import quantization` asks for a module of this package, by whose name it is known.
        return found if fullname == name else _alias(fullname, name, found)

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        wanted = getattr(context, "name", None)
        if wanted is None or wanted.lower() == _NAME:
            yield _Distribution()


def _found(name: str, folders: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    """Returns the specification of a module in the folders of its package, under the module's name."""
    inner = name.removeprefix(_OWN).removeprefix(_NAME).split(".")[1:]
    if not inner:
        return importlib.util.find_spec(_OWN) if name == _OWN else None
    places = [os.path.join(folder, *inner[:-1]) for folder in folders]
    found = importlib.machinery.PathFinder.find_spec(name, places)
    if found is not None and name.startswith(f"{_BARE}."):
        sys.path.extend(place for place in places if place not in sys.path)
    return found


def _installed(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the specification of a Python module of an installed ONNX Runtime, outside of its native part."""
    package = importlib.machinery.PathFinder.find_spec(_NAME)
    if package is None or _is_within(name, f"{_NAME}.capi"):
        return None
    return _found(name, package.submodule_search_locations or ())


def _alias(
    fullname: str, name: str, found: importlib.machinery.ModuleSpec | None
) -> importlib.machinery.ModuleSpec | None:
    if found is None:
        return None
    is_package = found.submodule_search_locations is not None
    return importlib.machinery.ModuleSpec(fullname, _Alias(name), is_package=is_package)


_FINDER = _Finder()
# Modules of an installed ONNX Runtime that were imported before.
_replaced: dict[str, ModuleType] = {}


def install(*, backend: str | None = None) -> None:
    """Puts byoc in the place of ONNX Runtime in this process: from then on, `import onnxruntime` gives
    `byoc.onnxruntime`, and `importlib.metadata` reports the version that it implements. Modules that imported an
    installed ONNX Runtime before keep it.

    backend: backends of sessions without the configuration entry "byoc.backend".
    """
    set_default_backend(backend)
    if _FINDER not in sys.meta_path:
        _replaced.update(_taken_out())
        sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Undoes `install`. Modules that imported byoc under ONNX Runtime's name keep it."""
    set_default_backend(None)
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
        _taken_out()
        sys.modules.update(_replaced)
        _replaced.clear()


def _taken_out() -> dict[str, ModuleType]:
    """Removes ONNX Runtime's modules from the loaded ones and from this package, and returns them."""
    names = [name for name, module in sys.modules.items() if _is_within(name, _NAME) or _is_foreign(name, module)]
    taken = {name: sys.modules.pop(name) for name in names}
    for name in [name for name, value in vars(sys.modules[_OWN]).items() if _is_foreign(f"{_OWN}.{name}", value)]:
        delattr(sys.modules[_OWN], name)
    return taken


def _is_foreign(name: str, module: Any) -> bool:
    """Returns True for a module of an installed ONNX Runtime under a name of this package."""
    return _is_within(name, _OWN) and isinstance(module, ModuleType) and _is_within(module.__name__, _NAME)
