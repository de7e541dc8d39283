"""Modules of TVM's runtime: executors, containers, helpers of scripts."""

from __future__ import annotations

import os
import tempfile
import types
from typing import Any

from ..relay import _core, _ndarray
from ..relay import build_module as _build
from ._testing import convert


def _module(name: str, **members: Any) -> types.ModuleType:
    found = types.ModuleType(f"byoc.tvm.{name}")
    vars(found).update(members)
    return found


class Runtime(str):
    """Kind of runtime; byoc has one."""

    def __new__(cls, name: str = "cpp", options: Any = None) -> Runtime:
        return super().__new__(cls, name)

    @property
    def name(self) -> str:
        return str(self)


class Executor(str):
    """Kind of executor; byoc has one."""

    def __new__(cls, name: str = "graph", options: Any = None) -> Executor:
        return super().__new__(cls, name)

    @property
    def name(self) -> str:
        return str(self)


class compile_engine:  # noqa: N801
    """Cache of compiled functions; byoc keeps none."""

    def clear(self) -> None:
        """Does nothing."""


class TempDirectory:
    """Directory that is removed with the object."""

    def __init__(self, custom_path: str | None = None) -> None:
        self._held = None if custom_path else tempfile.TemporaryDirectory()
        self.temp_dir = custom_path or self._held.name  # type: ignore[union-attr]
        self.path = self.temp_dir

    def relpath(self, name: str) -> str:
        return os.path.join(self.temp_dir, name)

    def listdir(self) -> list[str]:
        return os.listdir(self.temp_dir)

    def remove(self) -> None:
        if self._held:
            self._held.cleanup()


def _graph_executor() -> types.ModuleType:
    return _module("contrib.graph_executor", GraphModule=_build.GraphModule, create=_build.create_graph_module)


contrib = _module("contrib", graph_executor=_graph_executor())
contrib.graph_runtime = contrib.graph_executor
contrib.utils = _module("contrib.utils", tempdir=TempDirectory, TempDirectory=TempDirectory)
contrib.debugger = _module("contrib.debugger")
contrib.debugger.debug_executor = contrib.graph_executor
contrib.download = _module("contrib.download")
contrib.cc = _module("contrib.cc")

vm = _module("relay.vm", compile=_build.compile_vm, VMExecutor=_build.create_executor)
loops = _module("relay.loops")
runtime = _module(
    "runtime",
    load_module=_build.load_module,
    convert=convert,
    ndarray=_ndarray,
    NDArray=_ndarray.NDArray,
    ShapeTuple=tuple,
    String=str,
    Module=_build.Library,
    save_param_dict=_build.save_params,
    load_param_dict=_build.load_params,
    container=_module("runtime.container", ADT=_build.Results, String=str),
    DataType=str,
)
runtime.vm = _module(
    "runtime.vm",
    VirtualMachine=_build.VirtualMachine,
    Executable=_build.VmExecutable,
    VMExecutor=_build.create_executor,
)

frontend = _module("relay.frontend", from_onnx=_build.from_onnx)
frontend.common = _module("relay.frontend.common", infer_type=lambda expr, mod=None: _core.as_expr(expr).infer_type())
frontend.common.infer_shape = lambda expr, mod=None: tuple(
    int(d) for d in _core.as_expr(expr).infer_type().checked_type.shape
)
