"""Plugin of pytest that runs TVM's own tests on byoc: `pytest -p byoc.tvm._pytest FILE`.

BYOC_TVM_SOURCE names a checkout of TVM, whose reference implementations in NumPy the tests import.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from . import _absent, _finder, cpu, install
from ._testing import GROUPS

install()

# Seconds after which a test counts as failed.
LIMIT = int(os.environ.get("BYOC_TVM_LIMIT", "20"))


def _load_references(source: str) -> None:
    """Loads the modules of `tvm.topi` that compute with NumPy only."""
    folder = os.path.join(source, "python", "tvm", "topi")
    topi = sys.modules["tvm.topi"]
    topi.__path__ = [folder]  # type: ignore[attr-defined]
    for name in ("utils", "testing", "nn"):
        package = types.ModuleType(f"tvm.topi.{name}")
        package.__path__ = [os.path.join(folder, name)]  # type: ignore[attr-defined]
        sys.modules[f"tvm.topi.{name}"] = package
        setattr(topi, name, package)
    sys.modules["tvm.topi.utils"].get_const_tuple = lambda shape: tuple(int(d) for d in shape)  # type: ignore[attr-defined]
    files = [("nn.utils", "nn/utils.py")]
    testing = os.path.join(folder, "testing")
    files += [
        (f"testing.{name[:-3]}", f"testing/{name}") for name in sorted(os.listdir(testing)) if name.endswith(".py")
    ]
    for _ in range(3):
        # The files import each other.
        files = [(name, path) for name, path in files if not _load(name, os.path.join(folder, path))]


def _load(name: str, path: str) -> bool:
    full = f"tvm.topi.{name}" if not name.endswith("__init__") else "tvm.topi.testing"
    if full == "tvm.topi.testing":
        return True
    spec = importlib.util.spec_from_file_location(full, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[full]
        return False
    package = sys.modules[full.rpartition(".")[0]]
    for key, value in vars(module).items():
        if not key.startswith("_"):
            setattr(package, key, value)
    return True


class _Lenient:
    """Finder of modules that byoc lacks: tests that use their names fail, the others of the file run."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("tvm."):
            return None
        found = _absent.Module(name, "byoc has no counterpart")
        found.__path__ = []  # type: ignore[attr-defined]

        class Loader:
            create_module = staticmethod(lambda spec: found)
            exec_module = staticmethod(lambda module: None)

        return importlib.machinery.ModuleSpec(name, Loader(), is_package=True)  # type: ignore[arg-type]


# The finder of the package raises for what is missing, so this one comes first for names that no module has.
def _find(name: str, path: Any = None, target: Any = None) -> Any:
    try:
        return _finder.find_spec(name, path, target)
    except ModuleNotFoundError:
        return _Lenient.find_spec(name, path, target)


sys.meta_path.insert(0, types.SimpleNamespace(find_spec=_find))  # type: ignore[arg-type]
for _module in ("tvm.relay.testing", "tvm.relay.analysis", "tvm.contrib"):
    sys.modules[_module].__getattr__ = lambda name, prefix=_module: _absent.Absent(  # type: ignore[attr-defined]
        f"{prefix}.{name}", "byoc has no counterpart"
    )


if source := os.environ.get("BYOC_TVM_SOURCE"):
    _load_references(source)


def pytest_generate_tests(metafunc: Any) -> None:
    """Gives tests of rows of parameters one row at a time."""
    owners = [metafunc.module, *(metafunc.cls.__mro__ if metafunc.cls else ())]
    groups: dict[int, list[tuple[str, int]]] = {}
    rows_of: dict[int, tuple] = {}
    for name in metafunc.fixturenames:
        for owner in owners:
            group = GROUPS.get(id(vars(owner).get(name)))
            if group is not None:
                groups.setdefault(id(group[0]), []).append((name, group[1]))
                rows_of[id(group[0])] = group
    for key, members in groups.items():
        rows, _, ids, _ = rows_of[key]
        values = [tuple(row[index] for _, index in members) for row in rows]
        values = values if len(members) > 1 else [value for (value,) in values]
        names = [name for name, _ in members]
        metafunc.parametrize(",".join(names), values, indirect=names, ids=None if ids is None else list(ids))


@pytest.fixture
def target() -> str:
    """The host, unless a test names its targets."""
    return "llvm"


@pytest.fixture
def dev() -> Any:
    """The host."""
    return cpu(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Ends a test that takes too long."""

    def expire(*_: Any) -> None:
        raise TimeoutError(f"the test took more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(LIMIT)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
