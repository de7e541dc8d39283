"""Passes under their names in Relay."""

from __future__ import annotations

import functools
import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .. import _byoc
from .._errors import CompilationWarning, ModelError
from . import _registry
from ._core import Call, Constant, Expr, Function, IRModule, Op, TensorType
from ._user import checked, failure


class PassInfo:
    """Name, optimization level and requirements of a pass."""

    def __init__(self, opt_level: int, name: str, required: Iterable[str] = (), traceable: bool = False) -> None:
        self.opt_level = opt_level
        self.name = name
        self.required = list(required or ())
        self.traceable = traceable

    def __repr__(self) -> str:
        return f"PassInfo({self.name}, opt_level={self.opt_level}, required={self.required})"


class PassContext:
    """Options of the passes that run inside of a `with` statement."""

    _stack: list[PassContext] = []

    def __init__(
        self, opt_level: int = 2, required_pass=None, disabled_pass=None, instruments=None, config=None, trace=None
    ) -> None:
        for names in (required_pass, disabled_pass):
            if names is not None and not isinstance(names, (list, tuple, set)):
                raise TypeError(f"expected a list of names of passes, found {names!r}")
        self.opt_level = opt_level
        self.required_pass = list(required_pass or ())
        self.disabled_pass = list(disabled_pass or ())
        self.instruments = list(instruments or ())
        self.config = dict(config or {})
        self._trace = trace

    def __enter__(self) -> PassContext:
        PassContext._stack.append(self)
        for instrument in self.instruments:
            _notify(instrument, "enter_pass_ctx")
        return self

    def __exit__(self, *_: Any) -> None:
        PassContext._stack.pop()
        for instrument in self.instruments:
            _notify(instrument, "exit_pass_ctx")

    def override_instruments(self, instruments: Iterable) -> None:
        self.instruments = list(instruments or ())

    def pass_enabled(self, info: PassInfo) -> bool:
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or self.opt_level >= info.opt_level

    @staticmethod
    def current() -> PassContext:
        return PassContext._stack[-1] if PassContext._stack else PassContext()


def _notify(instrument: Any, event: str, *args: Any) -> Any:
    function = getattr(instrument, event, None)
    return function(*args) if function else None


def build_config(opt_level: int = 2, required_pass=None, disabled_pass=None, trace=None) -> PassContext:
    return PassContext(opt_level, required_pass, disabled_pass, trace=trace)


class Pass:
    """Function from a module to a module."""

    def __init__(self, info: PassInfo, run: Callable[[IRModule, PassContext], IRModule]) -> None:
        self.info = info
        self._run = run

    @property
    def pass_info(self) -> PassInfo:
        return self.info

    def __call__(self, mod: IRModule) -> IRModule:
        """Returns the module after the pass."""
        if not isinstance(mod, IRModule):
            raise TypeError(f"{self.info.name}: expected an IRModule, found {type(mod).__name__}")
        context = PassContext.current()
        for instrument in context.instruments:
            if _notify(instrument, "should_run", mod, self.info) is False:
                return mod
        for instrument in context.instruments:
            _notify(instrument, "run_before_pass", mod, self.info)
        result = self._run(mod, context)
        for instrument in context.instruments:
            _notify(instrument, "run_after_pass", result, self.info)
        return result

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.name})"


class ModulePass(Pass):
    """Pass over a whole module."""


class FunctionPass(Pass):
    """Pass over each function of a module."""


class Sequential(Pass):
    """Passes in order. Those that the context disables are left out."""

    def __init__(
        self, passes=None, opt_level: int = 0, name: str = "sequential", required=None, traceable=False
    ) -> None:
        passes = list(passes or ())
        for item in passes:
            if not isinstance(item, Pass):
                raise TypeError(f"{name}: expected passes, found {type(item).__name__}")
        super().__init__(PassInfo(opt_level, name, required), self._run_all)
        self.passes = passes

    def _run_all(self, mod: IRModule, context: PassContext) -> IRModule:
        for item in self.passes:
            if context.pass_enabled(item.info):
                for name in item.info.required:
                    if name in _BY_NAME:
                        mod = _BY_NAME[name]()(mod)
                mod = item(mod)
        return mod


def _is_external(function: Function) -> bool:
    return any(key in function.attrs for key in ("Compiler", "SkipOptimization", "Extern"))


def _user_pass(kind: type[Pass], method: str, pass_func, opt_level, name, required) -> Any:
    if opt_level is None:
        raise ValueError(f"expected opt_level for the pass {name}, found none")

    def create(target: Any) -> Any:
        info = PassInfo(opt_level, name or target.__name__, required)
        if inspect.isclass(target):

            class UserPass(kind):  # type: ignore[misc, valid-type]
                def __init__(self, *args: Any, **named: Any) -> None:
                    self._target = target(*args, **named)
                    super().__init__(info, _user_function(kind, getattr(self._target, method)))

                def __getattr__(self, key: str) -> Any:
                    if key == "_target":
                        raise AttributeError(key)
                    return getattr(self._target, key)

            functools.update_wrapper(UserPass.__init__, target.__init__)
            UserPass.__name__, UserPass.__doc__, UserPass.__module__ = (
                target.__name__,
                target.__doc__,
                target.__module__,
            )
            return UserPass
        if not callable(target):
            raise TypeError(f"expected a function or a class as pass, found {target!r}")
        return kind(info, _user_function(kind, target))

    return create(pass_func) if pass_func else create


def _user_function(kind: type[Pass], function: Callable) -> Callable:
    def run_module(mod: IRModule, context: PassContext) -> IRModule:
        result = function(mod, context)
        if not isinstance(result, IRModule):
            raise failure("pass", function, TypeError(f"expected an IRModule, found {type(result).__name__}"))
        return result

    def run_functions(mod: IRModule, context: PassContext) -> IRModule:
        typed = InferType()(mod) if mod._native.names() else mod
        result = typed.shallow_copy()
        for name in typed._native.names():
            old = typed._native.get(name)
            if _is_external(old):
                continue
            new = function(old, typed, context)
            if not isinstance(new, Function):
                raise failure("pass", function, TypeError(f"expected a Function, found {type(new).__name__}"))
            if new != old:
                result[name] = new
        return InferType()(result)

    return run_module if kind is ModulePass else run_functions


def module_pass(pass_func=None, opt_level=None, name=None, required=None, traceable=False) -> Any:
    """Makes a pass of a function of a module and a context, or of a class with `transform_module`."""
    return _user_pass(ModulePass, "transform_module", pass_func, opt_level, name, required)


def function_pass(pass_func=None, opt_level=None, name=None, required=None, traceable=False) -> Any:
    """Makes a pass of a function of a function, a module and a context, or of a class with `transform_function`."""
    return _user_pass(FunctionPass, "transform_function", pass_func, opt_level, name, required)


DEFAULT_OPTIONS: dict[str, Any] = {
    "include_non_call_ops": True,
    "bind_constants": True,
    "module_name": "default",
    "compiler": None,
    "inline_bound_to": [],
    "layouts": [],
    "annotate": [],
}


def _warn(messages: list[str]) -> None:
    for message in messages:
        warnings.warn(message, CompilationWarning, stacklevel=4)


def run_pass(mod: IRModule, name: str, **options: Any) -> IRModule:
    """Runs a pass of `byoc opt`."""
    native, messages = mod._native.run(name, {**DEFAULT_OPTIONS, **options})
    _warn(messages)
    return IRModule._of(native, mod._attrs)


def _native_pass(name: str, native: str | None, opt_level: int = 0, **options: Any) -> Pass:
    def run(mod: IRModule, _: PassContext) -> IRModule:
        return mod if native is None else run_pass(mod, native, **options)

    return Pass(PassInfo(opt_level, name), run)


def InferType() -> Pass:
    """Infers all types."""
    return Pass(PassInfo(0, "InferType"), lambda mod, _: IRModule._of(mod._native.infer_type(), mod._attrs))


def InferTypeLocal(expr: Expr) -> Any:
    """Returns the type of an expression."""
    return expr.infer_type().checked_type


def FoldConstant(fold_qnn: bool = False) -> Pass:
    """Evaluates what depends on constants and known shapes only."""

    def run(mod: IRModule, _: PassContext) -> IRModule:
        return run_pass(_with_known_shapes(mod), "fold_constant")

    return Pass(PassInfo(2, "FoldConstant"), run)


def FoldConstantExpr(expr: Expr, mod: IRModule | None = None, fold_qnn: bool = False) -> Expr:
    """Returns the expression with what depends on constants evaluated."""
    return _byoc.run_on_expr(expr, "fold_constant", DEFAULT_OPTIONS)


def _with_known_shapes(mod: IRModule) -> IRModule:
    """Replaces shapes and sizes of tensors of known dimensions with constants."""
    operators = (Op.get("shape_of"), Op.get("ndarray_size"))
    result = mod
    for name in mod._native.names():
        function = mod._native.get(name)
        calls = [e for e in function.post_order() if isinstance(e, Call) and e.op in operators]
        found = [(call, const) for call in calls if (const := _known_shape(call)) is not None]
        if found and not _is_external(function):
            result = result.shallow_copy() if result is mod else result
            result[name] = function.substitute(found)
    return result


def _known_shape(call: Call) -> Constant | None:
    known = call.args[0].known_type
    if not isinstance(known, TensorType) or not all(isinstance(dim, int) for dim in known.shape):
        return None
    shape = [int(dim) for dim in known.shape]
    value = shape if call.op.name == "shape_of" else math.prod(shape)
    return Constant(np.array(value, dtype=call.attrs["dtype"] or "int32"))


def SimplifyInference() -> Pass:
    """Rewrites batch normalization, and removes dropout."""
    return _native_pass("SimplifyInference", "simplify_inference")


def FoldScaleAxis() -> Pass:
    """Folds scales into the weights of the preceding operator."""
    return _native_pass("FoldScaleAxis", "fold_scale_axis", 3)


BackwardFoldScaleAxis = FoldScaleAxis


def DeadCodeElimination(inline_once: bool = False, ignore_impurity: bool = False) -> Pass:
    """Removes unused code."""
    return _native_pass("DeadCodeElimination", "dead_code_elimination", 1)


def EliminateCommonSubexpr(fskip: Callable | None = None) -> Pass:
    """Merges equal expressions."""
    if fskip is not None:
        raise NotImplementedError(
            "EliminateCommonSubexpr: byoc merges all equal expressions, without a function that skips some"
        )
    return _native_pass("EliminateCommonSubexpr", "eliminate_common_subexpr", 3)


def CanonicalizeOps() -> Pass:
    """Rewrites nn.bias_add as expand_dims and add."""
    return _native_pass("CanonicalizeOps", "canonicalize_ops", 3)


def ToANormalForm() -> Pass:
    """Binds every intermediate value by a let."""
    return _native_pass("ToANormalForm", "to_a_normal_form")


def ToANormalFormExpr(expr: Expr) -> Expr:
    """Returns the expression with every intermediate value bound by a let."""
    return _byoc.run_on_expr(expr, "to_a_normal_form", DEFAULT_OPTIONS)


def Inline() -> Pass:
    """Inlines functions with Inline=1."""
    return _native_pass("Inline", "inline", 1)


def DefuseOps() -> Pass:
    """Inlines fused functions."""
    return _native_pass("DefuseOps", "defuse_ops")


def FuseOps(fuse_opt_level: int = -1) -> Pass:
    """Groups operators into primitive functions."""
    from ._fuse import fuse

    def run(mod: IRModule, context: PassContext) -> IRModule:
        level = context.opt_level if fuse_opt_level < 0 else fuse_opt_level
        typed = InferType()(mod)
        result = typed.shallow_copy()
        for name in typed._native.names():
            function = typed._native.get(name)
            if not _is_external(function) and "Primitive" not in function.attrs:
                result[name] = fuse(function, level)
        return InferType()(result)

    return Pass(PassInfo(0, "FuseOps"), run)


def FakeQuantizationToInteger(hard_fail: bool = False, use_qat: bool = False, optional_qnn_ops=None) -> Pass:
    """Replaces float operators between dequantize and quantize by integer operators."""
    return _native_pass("FakeQuantizationToInteger", "fake_quantization_to_integer")


def QnnCanonicalize() -> Pass:
    """Lowers the operators of the QNN dialect."""
    return _native_pass("qnn.Canonicalize", "qnn_canonicalize")


def RemoveUnusedFunctions(entry_functions: Iterable[str] = ("main",)) -> Pass:
    """Removes functions that the entry functions do not reach."""

    def run(mod: IRModule, _: PassContext) -> IRModule:
        from ._core import GlobalVar

        reached, stack = set(), [name for name in entry_functions if name in mod]
        while stack:
            name = stack.pop()
            if name not in reached:
                reached.add(name)
                order = mod[name].post_order()
                stack.extend(e.name_hint for e in order if isinstance(e, GlobalVar) and e in mod)
        result = mod.shallow_copy()
        for name in result._native.names():
            if name not in reached:
                result._native.remove(name)
        return result

    return Pass(PassInfo(1, "RemoveUnusedFunctions"), run)


def ConvertLayout(desired_layouts: Mapping[str, Iterable[str]]) -> Pass:
    """Converts convolutions and pooling to layouts: data and weights, by operator."""
    layouts = []
    for operator, wanted in desired_layouts.items():
        data, *kernel = list(wanted)
        kernels = [layout for layout in kernel if layout != "default"]
        layouts.append((operator, data, kernels[0] if kernels else None))
    return _native_pass("ConvertLayout", "convert_layout", 3, layouts=layouts)


def MergeComposite(pattern_table: Iterable[tuple]) -> Pass:
    """Makes each match of a table a function: entries of a name, a pattern, and a check or none."""
    from .dataflow_pattern import DFPattern, native

    rows = []
    for entry in pattern_table:
        if not isinstance(entry, (tuple, list)) or len(entry) not in (2, 3) or not isinstance(entry[0], str):
            raise ModelError(
                f"MergeComposite: expected entries (name, pattern) or (name, pattern, check), found {entry!r}",
                "E0310",
                'write ("chip.conv2d", is_op("nn.conv2d")(wildcard(), wildcard()))',
            )
        name, pattern, *check = entry
        if not isinstance(pattern, DFPattern):
            raise ModelError(
                f"MergeComposite: entry {name}: expected a pattern, found {type(pattern).__name__}", "E0310", None
            )
        rows.append((name, native(pattern)[0], checked(f"check of {name}", check[0]) if check else None))

    def run(mod: IRModule, _: PassContext) -> IRModule:
        merged, messages = mod._native.merge_composite(rows)
        _warn(messages)
        return IRModule._of(merged, mod._attrs)

    return Pass(PassInfo(0, "MergeComposite"), run)


def AnnotateTarget(targets: str | Iterable[str], include_non_call_ops: bool = True) -> Pass:
    """Marks the operators that the targets support, by the operators' attribute `target.NAME`."""
    names = [targets] if isinstance(targets, str) else list(targets)

    def run(mod: IRModule, _: PassContext) -> IRModule:
        rules = []
        for target in names:
            key = f"target.{target}"
            operators = {op: value for (op, attr), value in Op.attributes.items() if attr == key}
            if not operators and (plugin := _registry.plugin_description(target)):
                operators = dict.fromkeys(plugin["operators"], True)
            checks = {
                op: checked(f"target.{target} of {op}", value) if callable(value) else None
                for op, value in operators.items()
                if value is not False
            }
            rules.append((target, checks))
        return IRModule._of(mod._native.annotate_target(rules, include_non_call_ops), mod._attrs)

    return Pass(PassInfo(0, "AnnotateTarget"), run)


def MergeCompilerRegions() -> Pass:
    """Merges adjacent regions of one target."""
    return _native_pass("MergeCompilerRegions", "merge_compiler_regions")


def PartitionGraph(mod_name: str = "default", bind_constants: bool = True) -> Pass:
    """Makes each region a global function of its target."""

    def run(mod: IRModule, _: PassContext) -> IRModule:
        partitioned = run_pass(mod, "partition_graph", module_name=mod_name, bind_constants=bind_constants)
        return _registry.optimized(partitioned, set(mod._native.names()))

    return Pass(PassInfo(0, "PartitionGraph"), run)


def InlineCompilerFunctionsBoundTo(global_vars: Iterable[Any]) -> Pass:
    """Inlines functions of targets."""
    names = [getattr(item, "name_hint", item) for item in global_vars]
    return _native_pass("InlineCompilerFunctionsBoundTo", "inline_compiler_functions_bound_to", inline_bound_to=names)


def OutlineCompilerFunctionsWithExistingGlobalSymbols(compiler_filter: str = "") -> Pass:
    """Makes function literals of targets global functions."""
    return _native_pass(
        "OutlineCompilerFunctionsWithExistingGlobalSymbols",
        "outline_compiler_functions",
        compiler=compiler_filter or None,
    )


def MarkCompilerFunctionsAsExtern(compiler_filter: str = "") -> Pass:
    """Marks functions of targets as external."""
    return _native_pass(
        "MarkCompilerFunctionsAsExtern", "mark_compiler_functions_extern", compiler=compiler_filter or None
    )


def _absent(name: str, use: str) -> Callable[..., Pass]:
    def create(*_: Any, **__: Any) -> Pass:
        raise NotImplementedError(f"byoc has no pass {name}: {use}")

    create.__name__ = name
    return create


def _identity(name: str, opt_level: int, doc: str) -> Callable[..., Pass]:
    def create(*_: Any, **__: Any) -> Pass:
        return _native_pass(name, None, opt_level)

    create.__name__, create.__doc__ = name, doc
    return create


AlterOpLayout = _identity("AlterOpLayout", 3, "Leaves the module unchanged: backends choose layouts in their regions.")
Legalize = _identity("Legalize", 1, "Leaves the module unchanged: the kernels of the host take every operator.")
PlanDevices = _identity("PlanDevices", 0, "Leaves the module unchanged: the host has one device.")
AnnotateSpans = _identity("AnnotateSpans", 0, "Leaves the module unchanged: expressions carry their origins.")
FastMath = _absent("FastMath", "kernels of the host are as exact as their references")
SimplifyExpr = _identity("SimplifyExpr", 0, "Leaves the module unchanged.")
gradient = _absent("gradient", "byoc runs inference only")
FirstOrderGradient = _absent("FirstOrderGradient", "byoc runs inference only")
ToMixedPrecision = _absent("ToMixedPrecision", "convert the model to float16 before it is read")
PartialEvaluate = _absent("PartialEvaluate", "use FoldConstant and Inline")
LambdaLift = _absent("LambdaLift", "closures run as they are")


def PrintIR(header: str = "", show_meta_data: bool = False) -> Pass:
    """Prints the module."""

    def run(mod: IRModule, _: PassContext) -> IRModule:
        print(f"PrintIR({header}):\n{mod.astext(show_meta_data)}")
        return mod

    return Pass(PassInfo(0, "PrintIR"), run)


def recast(expr: Expr, dtype: str, out_dtype: str, ops: Any = None, skip_layers: Any = None) -> Expr:
    raise NotImplementedError("recast: convert the model to the element type before it is read")


class PassTimingInstrument:
    """Times of the passes that ran."""

    def __init__(self) -> None:
        self._running: list[tuple[str, float]] = []
        self._lines: list[str] = []

    def run_before_pass(self, _: IRModule, info: PassInfo) -> None:
        self._running.append((info.name, time.perf_counter()))

    def run_after_pass(self, _: IRModule, info: PassInfo) -> None:
        name, start = self._running.pop()
        indent = "  " * len(self._running)
        self._lines.append(f"{indent}{name}: {(time.perf_counter() - start) * 1e6:.0f}us")

    def render(self) -> str:
        return "\n".join(self._lines)


class PrintBeforeAll:
    """Prints the module before each pass."""

    def run_before_pass(self, mod: IRModule, info: PassInfo) -> None:
        print(f"Before Running Pass: {info.name}\n{mod}")


class PrintAfterAll:
    """Prints the module after each pass."""

    def run_after_pass(self, mod: IRModule, info: PassInfo) -> None:
        print(f"After Running Pass: {info.name}\n{mod}")


def pass_instrument(cls: type) -> type:
    """Marks a class as an instrument; any class with the methods is one."""
    return cls


_BY_NAME: dict[str, Callable[[], Pass]] = {
    "InferType": InferType,
    "FoldConstant": FoldConstant,
    "SimplifyInference": SimplifyInference,
    "FoldScaleAxis": FoldScaleAxis,
    "DeadCodeElimination": DeadCodeElimination,
    "EliminateCommonSubexpr": EliminateCommonSubexpr,
    "CanonicalizeOps": CanonicalizeOps,
    "ToANormalForm": ToANormalForm,
    "Inline": Inline,
}

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]
