"""TVM's names for byoc: a script with `import tvm` runs unchanged by `python -m byoc.tvm SCRIPT`.

`install()` puts this package in place of `tvm` for the process; importing it alone changes nothing.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from .. import relay
from .._errors import Error, ModelError
from ..relay import _core, _ndarray, _registry, transform
from ..relay._ndarray import Device, NDArray
from . import _absent, _runtime, _testing
from ._functions import get_global_func, register_func, register_object
from ._target import Target

IRModule = _core.IRModule
TVMError = Error
DiagnosticError = ModelError
__version__ = "0.14.0"


def cpu(index: int = 0) -> Device:
    """Returns the host."""
    return Device("cpu", index)


def device(kind: str = "cpu", index: int = 0) -> Device:
    """Returns a device; the host is the only one."""
    kind = str(kind).partition(" ")[0]
    return Device("cpu" if kind in ("llvm", "c", "cpu") else kind, index)


context = device


def _absent_device(kind: str) -> Any:
    def create(index: int = 0) -> Device:
        found = Device(kind, index)
        found.exist = False  # type: ignore[misc]
        return found

    return create


cuda = gpu = _absent_device("cuda")
opencl, vulkan, metal, rocm, hexagon, ext_dev = map(
    _absent_device, ("opencl", "vulkan", "metal", "rocm", "hexagon", "ext_dev")
)


def module(name: str, doc: str = "", **members: Any) -> types.ModuleType:
    """Creates a module of names."""
    found = types.ModuleType(f"byoc.tvm.{name}", doc)
    vars(found).update(members)
    return found


def _public(source: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(source).items() if not name.startswith("__")}


error = module("error", "Errors.", TVMError=Error, DiagnosticError=ModelError, OpError=ModelError, InternalError=Error)
nd = module("nd", "Arrays.", **_public(_ndarray), device=device, cpu=cpu)
ir = module(
    "ir",
    "Modules, types and attributes.",
    **{name: value for name, value in _public(_core).items() if not name.startswith("_")},
    RelayExpr=_core.Expr,
    BaseExpr=_core.Expr,
    register_op_attr=_registry.register_op_attr,
    register_intrin_lowering=_registry.register_op_attr,
    save_json=_testing.save_json,
    load_json=_testing.load_json,
    make_node=_testing.make_node,
    TypeKind=relay.TypeKind,
    TypeRelation=relay.TypeRelation,
    Span=relay.Span,
    SourceName=relay.SourceName,
    PassContext=transform.PassContext,
    transform=transform,
    Node=_core.Expr,
)
ir.op = module("ir.op", Op=_core.Op, register_op_attr=_registry.register_op_attr)
ir.module = module("ir.module", IRModule=IRModule)
ir.tensor_type = module("ir.tensor_type", TensorType=_core.TensorType)
ir.instrument = module(
    "ir.instrument",
    PassTimingInstrument=transform.PassTimingInstrument,
    PrintAfterAll=transform.PrintAfterAll,
    PrintBeforeAll=transform.PrintBeforeAll,
    pass_instrument=transform.pass_instrument,
    PassInstrument=object,
)
ir.EnvFunc = module("ir.EnvFunc", get=lambda name: name)
instrument = ir.instrument
tir = module(
    "tir",
    "Numbers and names of dimensions.",
    IntImm=_core.IntImm,
    FloatImm=_core.FloatImm,
    StringImm=_core.StringImm,
    Var=_core.SizeVar,
    SizeVar=_core.SizeVar,
    Any=_core.Any,
    const=lambda value, dtype="int32": _core.IntImm(dtype, value),
    indexdiv=lambda a, b: a // b,
)
tir.expr = tir
ir.container = module("ir.container", Array=_core.Array)
te = _absent.Module(
    "byoc.tvm.te",
    "byoc has no tensor expressions: the host runs precompiled kernels, and a backend generates its own code",
    var=_core.SizeVar,
    size_var=_core.SizeVar,
)
topi = _absent.Module("byoc.tvm.topi", "byoc has no schedules: compute the expected values with NumPy")
autotvm = _absent.Module("byoc.tvm.autotvm", "byoc does not tune: its kernels are measured ahead of time")
auto_scheduler = _absent.Module("byoc.tvm.auto_scheduler", "byoc does not tune: its kernels are measured ahead of time")
meta_schedule = _absent.Module("byoc.tvm.meta_schedule", "byoc does not tune: its kernels are measured ahead of time")
micro = _absent.Module("byoc.tvm.micro", "export a model as C with `byoc export`")
rpc = _absent.Module("byoc.tvm.rpc", "serve a model with `byoc-serve`")
target = _absent.Module(
    "byoc.tvm.target",
    "the host is the only target",
    Target=Target,
    create=Target,
    VirtualDevice=lambda *_: None,
    codegen=module("target.codegen", llvm_version_major=lambda: 0),
)
target.target = target
runtime = _runtime.runtime
contrib = _runtime.contrib
testing = _testing.testing
parser = module("parser", parse=relay.parse, fromtext=relay.parse, parse_expr=relay.parse_expr)
support = module("support", libinfo=lambda: {"USE_MICRO": "OFF", "USE_LLVM": "OFF"})
_ffi = module("_ffi", get_global_func=get_global_func, register_func=register_func, register_object=register_object)
_ffi.base = module("_ffi.base", TVMError=Error)
array, convert = nd.array, _testing.convert


_MODULES = (
    "relay", "ir", "te", "topi", "autotvm", "auto_scheduler", "meta_schedule", "micro", "rpc", "target", "runtime",
    "contrib", "testing", "parser", "support", "nd", "error", "_ffi", "instrument",
)  # fmt: skip
_RELAY_MODULES = (
    "transform", "dataflow_pattern", "expr_functor", "analysis", "testing", "op", "qnn", "expr", "ty", "adt",
    "function", "nn", "image", "vision", "frontend", "backend", "vm", "scope_builder", "base", "prelude",
)  # fmt: skip


def modules() -> dict[str, types.ModuleType]:
    """Returns the modules by their names in TVM."""
    op = relay.op
    backend = module("relay.backend", Runtime=_runtime.Runtime, Executor=_runtime.Executor)
    backend.runtime = module("relay.backend.runtime", Runtime=_runtime.Runtime)
    backend.executor = module("relay.backend.executor", Executor=_runtime.Executor)
    backend.te_compiler = module("relay.backend.te_compiler", get=_runtime.compile_engine)
    relay.backend = backend
    op.annotation.annotation = op.annotation
    relay.frontend = _runtime.frontend
    relay.vm = _runtime.vm
    relay.testing.byoc = _testing.byoc
    relay.loops = _runtime.loops
    relay.op_contrib = op.contrib
    found = {
        "tvm": sys.modules[__name__],
        "tvm.relay.qnn.op": relay.qnn.op,
        "tvm.relay.qnn.transform": relay.qnn.transform,
        "tvm.relay.op.op": op,
        "tvm.relay.op.tensor": op,
        "tvm.relay.op.transform": op,
        "tvm.relay.op.reduce": op,
        "tvm.relay.op.nn.nn": op.nn,
        "tvm.relay.op.annotation.annotation": op.annotation,
        "tvm.relay.op.contrib.register": op.contrib.register,
        "tvm.relay.analysis.analysis": relay.analysis,
        "tvm.relay.build_module": relay.build_module,
        "tvm.tir.expr": tir,
        "tvm.tir": tir,
        "tvm.runtime.vm": runtime.vm,
        "tvm.runtime.container": runtime.container,
        "tvm.runtime.ndarray": nd,
        "tvm.ir.module": ir.module,
        "tvm.ir.instrument": ir.instrument,
        "tvm.ir.transform": transform,
        "tvm._ffi.base": _ffi.base,
        "tvm.relay.backend.runtime": backend.runtime,
        "tvm.relay.backend.executor": backend.executor,
        "tvm.relay.backend.te_compiler": backend.te_compiler,
        "tvm.contrib.graph_executor": contrib.graph_executor,
        "tvm.contrib.utils": contrib.utils,
        "tvm.contrib.debugger": contrib.debugger,
        "tvm.contrib.debugger.debug_executor": contrib.debugger.debug_executor,
        "tvm.contrib.download": contrib.download,
        "tvm.relay.testing.byoc": _testing.byoc,
        "tvm.relay.testing.temp_op_attr": relay.testing.temp_op_attr,
        "tvm.relay.frontend.common": relay.frontend.common,
        "tvm.testing.utils": testing,
    }
    for name in _MODULES:
        found[f"tvm.{name}"] = globals()[name]
    found["tvm.transform"] = transform
    for name in _RELAY_MODULES:
        found[f"tvm.relay.{name}"] = getattr(relay, name)
    for name in ("nn", "image", "vision", "annotation", "contrib", "random"):
        found[f"tvm.relay.op.{name}"] = getattr(op, name)
    return found


def install() -> None:
    """Puts this package in place of `tvm` for this process.

    Raises ImportError if TVM itself has been imported.
    """
    loaded = sys.modules.get("tvm")
    if loaded is not None and loaded is not sys.modules[__name__]:
        raise ImportError("expected a process without TVM, found the package tvm imported; call install() first")
    sys.modules.update(modules())
    for name in list(sys.modules):
        # Packages need a path, without which `import tvm.relay.op` finds no parent package.
        if name == "tvm" or name.startswith("tvm."):
            found = sys.modules[name]
            if not hasattr(found, "__path__"):
                found.__path__ = []  # type: ignore[attr-defined]
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Finder of modules of TVM that this package has as attributes only, or lacks."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        import importlib.machinery

        if not name.startswith("tvm."):
            return None
        parent, _, last = name.rpartition(".")
        found = getattr(sys.modules.get(parent), last, None)
        if isinstance(found, _absent.Absent):
            found = _absent.Module(found._name, found._use)
        if not isinstance(found, types.ModuleType):
            raise ModuleNotFoundError(f"byoc has no counterpart of {name}", name=name)

        class Loader:
            create_module = staticmethod(lambda spec: found)
            exec_module = staticmethod(lambda module: None)

        return importlib.machinery.ModuleSpec(name, Loader(), is_package=True)  # type: ignore[arg-type]


_finder = _Finder()
