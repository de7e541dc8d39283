"""Compilation and execution of modules."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _byoc
from .._errors import CompilationWarning, ModelError
from .._model import Model, _options, load
from .._session import default_session
from ._core import Expr, Function, IRModule, as_expr
from ._ndarray import Device, NDArray, array
from ._registry import bind_params_by_name
from .transform import InferType, PassContext


def _regions(mod: IRModule) -> list[str]:
    """Returns the backends of the regions of a module, in order of the names of the functions."""
    found: list[str] = []
    for function in mod.functions.values():
        for expr in [function, *function.post_order()]:
            if isinstance(expr, Function) and "Compiler" in expr.attrs:
                compiler = expr.attrs["Compiler"]
                if compiler not in found and compiler != "default":
                    found.append(compiler)
    return found


def compile_module(mod: IRModule, params: Mapping[str, Any] | None = None) -> Model:
    """Compiles a module for the host, and its regions for their backends."""
    from .. import _backend
    from .transform import OutlineCompilerFunctionsWithExistingGlobalSymbols

    if params:
        mod = mod.shallow_copy()
        mod["main"] = bind_params_by_name(mod["main"], dict(params))
    compilers = _regions(mod)
    if compilers:
        mod = OutlineCompilerFunctionsWithExistingGlobalSymbols()(InferType()(mod))
        mod = _call_codegens(mod, compilers)
    choices = {
        "backends": compilers,
        "options": _backend_options(compilers),
        "fixed_dims": [],
        "open_dims": [],
        "input_shapes": [],
        "adapt": False,
        "precision": "f32",
        "keep_partition": True,
        "host_only": False,
        "on_failure": "next",
        "progress": None,
    }
    with _backend.building(mod):
        made = Model(default_session(), mod._native, None, choices)
    for text in made.warnings:
        warnings.warn(text, CompilationWarning, stacklevel=4)
    return made


def _backend_options(compilers: list[str]) -> list[tuple[str, str, str]]:
    """Returns the options of the backends, from `relay.ext.NAME.options` of the context."""
    config = PassContext.current().config
    return _options(
        {name: config[f"relay.ext.{name}.options"] for name in compilers if f"relay.ext.{name}.options" in config}
    )


def _call_codegens(mod: IRModule, compilers: list[str]) -> IRModule:
    """Registers the code generators `relay.ext.NAME` of the process as backends."""
    from .. import _backend

    for compiler in compilers:
        _backend.use_codegen(compiler)
    return mod


class Library:
    """Compiled module: the host's part and the regions of backends."""

    def __init__(self, model: Model, mod: IRModule | None = None, params: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.ir_mod = mod
        self._params = dict(params or {})
        self.libmod_name = "default"

    def __getitem__(self, name: str) -> Any:
        """Returns the function `default`, which creates the state of an executor on a device."""
        if name != "default":
            raise AttributeError(f'expected the function "default", found "{name}"')
        return lambda *devices: self

    def __iter__(self):
        return iter((self.get_graph_json(), self, self.get_params()))

    def get_graph_json(self) -> str:
        """Returns the plan of a run as JSON."""
        return json.dumps(self.model.plan())

    graph_json = property(get_graph_json)

    def get_executor_config(self) -> str:
        return self.get_graph_json()

    def get_params(self) -> dict[str, NDArray]:
        """Returns no parameters: they are constants of the program."""
        return {}

    @property
    def params(self) -> dict[str, NDArray]:
        return {}

    def get_lib(self) -> Library:
        return self

    lib = property(get_lib)
    module = property(get_lib)

    def get_source(self, fmt: str = "") -> str:
        """Returns the sources of the regions, one after the other."""
        return "\n".join(text for _, _, text in self._sources())

    def _sources(self) -> list[tuple[str, str, str]]:
        return self.model.region_sources()

    @property
    def imported_modules(self) -> list[ImportedModule]:
        """Regions of backends."""
        return [ImportedModule(symbol, language, text) for symbol, language, text in self._sources()]

    @property
    def type_key(self) -> str:
        return "byoc"

    def export_library(self, file_name: str, fcompile: Any = None, addons: Any = None, **_: Any) -> str:
        """Writes the artifact; `tvm.runtime.load_module` reads it."""
        self.model.save(file_name)
        return file_name

    def save(self, file_name: str, fmt: str = "") -> None:
        self.model.save(file_name)

    def time_evaluator(self, func_name: str, dev: Device, number: int = 10, repeat: int = 1, **_: Any) -> Any:
        return GraphModule(self).module.time_evaluator(func_name, dev, number, repeat)

    def explain(self) -> Any:
        return self.model.explain()

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_()


class ImportedModule:
    """Region of a backend."""

    def __init__(self, symbol: str, language: str, text: str) -> None:
        self.symbol, self.type_key, self._text = symbol, language, text
        self.format = language

    def get_source(self, fmt: str = "") -> str:
        return self._text

    @property
    def imported_modules(self) -> list[ImportedModule]:
        return []

    def __repr__(self) -> str:
        return f"Module({self.type_key}, {self.symbol})"


def build(ir_mod: Any, target: Any = None, target_host: Any = None, executor: Any = None, runtime: Any = None,
          workspace_memory_pools: Any = None, constant_memory_pools: Any = None, params: Any = None,
          mod_name: str = "default") -> Library:  # fmt: skip
    """Compiles a module. The host runs what no region of a backend holds."""
    from ..tvm import _target

    if not isinstance(ir_mod, (IRModule, Function)):
        raise ValueError(f"relay.build: expected an IRModule or a Function, found {type(ir_mod).__name__}")
    _target.check("llvm" if target is None else target)
    mod = ir_mod if isinstance(ir_mod, IRModule) else IRModule.from_expr(ir_mod)
    context = PassContext.current()
    for instrument in context.instruments:
        getattr(instrument, "run_before_pass", lambda *_: None)(mod, _INFO)
    library = Library(compile_module(mod, params), mod, params)
    for instrument in context.instruments:
        getattr(instrument, "run_after_pass", lambda *_: None)(mod, _INFO)
    return library


class _Info:
    name, opt_level, required = "Build", 0, ()


_INFO = _Info()


def optimize(mod: IRModule, target: Any = None, params: Any = None) -> tuple[IRModule, dict]:
    """Returns the module after the passes that simplify every module."""
    from . import transform

    if params:
        mod = mod.shallow_copy()
        mod["main"] = bind_params_by_name(mod["main"], dict(params))
    names = (transform.SimplifyInference, transform.FoldConstant, transform.FoldScaleAxis, transform.FoldConstant,
             transform.EliminateCommonSubexpr, transform.DeadCodeElimination)  # fmt: skip
    for create in names:
        mod = create()(mod)
    return mod, {}


class Results(tuple):
    """Results of a run."""

    def numpy(self) -> list[np.ndarray]:
        return [item.numpy() for item in self]


def _wrapped(values: list[Any], is_tuple: bool) -> Any:
    arrays = [NDArray(value, copy=False) for value in values]
    return Results(arrays) if is_tuple or len(arrays) != 1 else arrays[0]


def _plain(value: Any, port: Any = None) -> Any:
    """Returns an array for an input, of the input's element type."""
    value = value._data if isinstance(value, NDArray) else value
    if port is not None and port.dtype != "bfloat16":
        value = np.asarray(value)
        value = value if value.dtype.name == port.dtype else value.astype(port.dtype)
    return value


class GraphModule:
    """Executor with inputs that are set one by one."""

    def __init__(self, module: Library) -> None:
        self.module = self
        self._library = module
        self._model = module.model
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []

    def _input_name(self, key: Any) -> str:
        ports = self._model.inputs
        if isinstance(key, int):
            return ports[key].name
        if key not in [port.name for port in ports]:
            names = ", ".join(port.name for port in ports)
            raise ModelError(f'expected an input of the model, found "{key}"', "E0602", f"its inputs: {names}")
        return key

    def set_input(self, key: Any = None, value: Any = None, **params: Any) -> None:
        """Sets inputs, by name or position. Parameters that the build has bound are ignored."""
        ports = {port.name: port for port in self._model.inputs}
        if key is not None:
            name = self._input_name(key)
            self._inputs[name] = _plain(value, ports[name])
        self._inputs.update((name, _plain(held, ports[name])) for name, held in params.items() if name in ports)

    def set_input_zero_copy(self, key: Any = None, value: Any = None, **params: Any) -> None:
        self.set_input(key, value, **params)

    def load_params(self, params_bytes: bytes) -> None:
        self.set_input(**load_params(params_bytes))

    def run(self, **inputs: Any) -> None:
        """Runs the model on the inputs."""
        self.set_input(**inputs)
        self._outputs = list(self._model.run(self._inputs).values())

    def get_output(self, index: int, out: NDArray | None = None) -> NDArray:
        """Returns a result of the last run, or copies it to `out`."""
        if index >= len(self._outputs):
            problem = "none: call run() first" if not self._outputs else str(index)
            raise IndexError(f"expected an output < {len(self._model.outputs)}, found {problem}")
        found = NDArray(self._outputs[index], copy=False)
        return found if out is None else out.copyfrom(found)

    def get_input(self, key: Any, out: NDArray | None = None) -> NDArray:
        found = array(self._inputs[self._input_name(key)])
        return found if out is None else out.copyfrom(found)

    def get_num_outputs(self) -> int:
        return len(self._model.outputs)

    def get_num_inputs(self) -> int:
        return len(self._model.inputs)

    def get_input_index(self, name: str) -> int:
        return [port.name for port in self._model.inputs].index(name)

    def get_input_info(self) -> tuple[dict, dict]:
        ports = self._model.inputs
        return {port.name: port.shape for port in ports}, {port.name: port.dtype for port in ports}

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def time_evaluator(self, func_name: str, dev: Any = None, number: int = 10, repeat: int = 1, **_: Any) -> Any:
        def measure(*args: Any) -> Timing:
            results = []
            for _ in range(repeat):
                start = time.perf_counter()
                for _ in range(number):
                    self._model.run(self._inputs)
                results.append((time.perf_counter() - start) / number)
            return Timing(results)

        return measure

    def benchmark(self, device: Any = None, func_name: str = "run", repeat: int = 5, number: int = 5,
                  min_repeat_ms: Any = None, end_to_end: bool = False, **inputs: Any) -> Timing:  # fmt: skip
        """Measures runs on the inputs."""
        self.set_input(**inputs)
        return self.time_evaluator("run", device, number, repeat)()


class Timing:
    """Times of runs in seconds."""

    def __init__(self, results: list[float]) -> None:
        self.results = results
        self.mean, self.std = float(np.mean(results)), float(np.std(results))
        self.median, self.min, self.max = float(np.median(results)), min(results), max(results)

    def __repr__(self) -> str:
        return f"mean {self.mean * 1e3:.4f} ms, median {self.median * 1e3:.4f} ms, min {self.min * 1e3:.4f} ms"


def create_graph_module(graph_json: Any, libmod: Library, device: Any = None) -> GraphModule:
    """Creates an executor of a library."""
    return GraphModule(libmod)


class GraphExecutor:
    """Evaluates the main function of a module on values."""

    def __init__(self, mod: IRModule, device: Any = None, target: Any = "llvm") -> None:
        self.mod = mod

    def evaluate(self, expr: Any = None, binds: Mapping | None = None, params: Mapping | None = None) -> Any:
        """Returns a Python function of the module's main function, or the value of an expression."""
        mod = self.mod if self.mod is not None else IRModule()
        function = expr
        if expr is None:
            function = mod["main"]
        elif not isinstance(expr, Function):
            from ._core import GlobalVar

            function = mod[expr] if isinstance(expr, GlobalVar) else Function([], as_expr(expr))
        if binds:
            from ._core import bind

            function = bind(function, {key: _constant(value) for key, value in binds.items()})
        mod = mod.shallow_copy()
        mod["main"] = function
        mod = InferType()(mod)
        names = [param.name_hint for param in mod["main"].params]
        is_tuple = _is_tuple(mod["main"])
        model = compile_module(mod, params)

        def run(*args: Any, **named: Any) -> Any:
            if not named and len(args) == len(model.inputs):
                # Parameters may share a name.
                ordered = [_plain(value, port) for value, port in zip(args, model.inputs)]
                return _wrapped(list(model.run(ordered).values()), is_tuple)
            given = dict(zip([name for name in names if name not in named], args)) | named
            ports = dict(zip([name for name in names if name in given], model.inputs))
            feeds = {name: _plain(value, ports.get(name)) for name, value in given.items()}
            is_complete = len(feeds) == len(model.inputs)
            ordered = [feeds[name] for name in names if name in feeds] if is_complete else feeds
            return _wrapped(list(model.run(ordered).values()), is_tuple)

        is_function = expr is None or isinstance(expr, (Function,)) or function is not None and bool(names)
        return run if is_function else run()


def _is_tuple(function: Function) -> bool:
    from ._core import TupleType

    return isinstance(function.checked_type.ret_type, TupleType)


def _constant(value: Any) -> Expr:
    from ._core import const

    return value if isinstance(value, Expr) else const(_plain(value))


def create_executor(
    kind: str = "debug", mod: Any = None, device: Any = None, target: Any = "llvm", params: Any = None
) -> Any:
    """Returns an executor of a module. All kinds run the same program."""
    from ..tvm import _target

    if kind not in ("graph", "vm", "debug", "aot"):
        raise RuntimeError(f'expected the executor "graph", "vm", "debug" or "aot", found "{kind}"')
    _target.check(target)
    if params:
        mod = IRModule.from_expr(bind_params_by_name(mod["main"], dict(params)))
    return GraphExecutor(mod, device, target)


def load_module(path: str, fmt: str = "") -> Library:
    """Reads the artifact that `export_library` wrote."""
    return Library(load(os.fspath(path)))


def save_params(params: Mapping[str, Any]) -> bytes:
    """Returns parameters as bytes."""
    import io

    buffer = io.BytesIO()
    np.savez(buffer, **{name: _plain(value) for name, value in params.items()})
    return buffer.getvalue()


def load_params(data: bytes) -> dict[str, NDArray]:
    """Returns the parameters of `save_params`."""
    import io

    with np.load(io.BytesIO(bytes(data))) as file:
        return {name: array(file[name]) for name in file.files}


class VmExecutable:
    """Compiled module for the virtual machine, which runs the same program as the graph executor."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.lib = library
        self.mod = library

    def save(self) -> tuple[bytes, Library]:
        return b"", self.library

    @staticmethod
    def load_exec(code: bytes, lib: Library) -> VmExecutable:
        return VmExecutable(lib)


def compile_vm(mod: Any, target: Any = None, target_host: Any = None, params: Any = None) -> VmExecutable:
    """Compiles a module for the virtual machine."""
    return VmExecutable(build(mod, target, params=params))


class VirtualMachine:
    """Runs the main function of a module."""

    def __init__(self, exe: Any, device: Any = None, memory_cfg: Any = None) -> None:
        self._library = exe.library if isinstance(exe, VmExecutable) else exe
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []

    def set_input(self, func_name: str = "main", *args: Any, **named: Any) -> None:
        ports = {port.name: port for port in self._library.model.inputs}
        given = dict(zip(ports, args)) | named
        self._inputs.update((name, _plain(value, ports.get(name))) for name, value in given.items())

    def run(self, *args: Any, **named: Any) -> Any:
        self.set_input("main", *args, **named)
        self._outputs = list(self._library.model.run(self._inputs).values())
        return _wrapped(self._outputs, False)

    def invoke(self, func_name: str = "main", *args: Any, **named: Any) -> Any:
        return self.run(*args, **named)

    def get_outputs(self) -> list[NDArray]:
        return [NDArray(value, copy=False) for value in self._outputs]


def partition_for_plugin(mod: IRModule, compiler: str, params: dict | None = None, **options: Any) -> IRModule:
    """Partitions a module for the backend of a plugin, by its patterns and verdicts."""
    if params:
        mod = mod.shallow_copy()
        mod["main"] = bind_params_by_name(mod["main"], params)
    native, messages = _byoc.partition_module(default_session(), mod._native, [compiler])
    for message in messages:
        warnings.warn(message, CompilationWarning, stacklevel=4)
    return IRModule._of(native, mod._attrs)


def from_onnx(model: Any, shape: Mapping[str, Any] | None = None, dtype: Any = None, opset: int | None = None,
              freeze_params: bool = True, convert_config: Any = None, export_node_renamed_model_path: Any = None
              ) -> tuple[IRModule, dict[str, NDArray]]:  # fmt: skip
    """Reads an ONNX model: its module, and no parameters, because initializers are constants of the module."""
    folder = None
    if isinstance(model, (str, os.PathLike)):
        folder = os.path.dirname(os.path.abspath(model))
        with open(model, "rb") as file:
            data = file.read()
    else:
        data = model if isinstance(model, bytes) else model.SerializeToString()
    shapes = [(name, [int(d) for d in dims]) for name, dims in (shape or {}).items()]
    return IRModule._of(_byoc.read_model(data, folder, shapes)), {}
