"""Registrations: attributes of operators, tables of patterns, and partitioning for backends."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable
from typing import Any

from .. import _byoc
from .._errors import ModelError
from ._core import IRModule, Op, bind, const

_PATTERN_TABLES: dict[str, Callable[[], list]] = {}


def register_op_attr(op_name: str, attr_key: str, value: Any = None, level: int = 10) -> Any:
    """Sets an attribute of an operator. Without a value it decorates a function, which becomes the value."""

    def register(item: Any) -> Any:
        Op.get(op_name).set_attr(attr_key, item, level)
        return item

    return register if value is None else register(value)


def register_op(name: str, describe: str = "", level: int = 10) -> None:
    """Fails: the operator table is fixed."""
    raise ModelError(
        f"{name}: expected an operator of the table, found a new one",
        "E0204",
        "express the operator by those of the table, as a composite function",
    )


def register_pattern_table(compiler: str, table: Callable[[], list] | None = None) -> Any:
    """Registers the table of patterns of a backend: a function that returns its entries."""

    def register(function: Callable[[], list]) -> Callable[[], list]:
        _PATTERN_TABLES[compiler] = function
        return function

    return register if table is None else register(table)


def get_pattern_table(compiler: str) -> list | None:
    """Returns the entries of the table of a backend, or of the plugin of that name; None if there is none."""
    if compiler in _PATTERN_TABLES:
        return _PATTERN_TABLES[compiler]()
    from .dataflow_pattern import NotationPattern

    found = plugin_description(compiler)
    if found is None:
        return None
    rows = [line.partition(":") for line in entries(found["patterns"])]
    names = [name.strip() if "." in name else f"{compiler}.{name.strip()}" for name, _, _ in rows]
    return [(name, NotationPattern(text.partition(" where ")[0])) for name, (_, _, text) in zip(names, rows)]


def entries(text: str) -> list[str]:
    """Returns the entries of a pattern table in its notation: a line, and the indented lines that continue it."""
    found: list[str] = []
    for line in text.splitlines():
        line = line.partition("#")[0]
        if line[:1].isspace() and found:
            found[-1] += " " + line.strip()
        elif line.strip():
            found.append(line.strip())
    return found


@functools.cache
def plugin_description(name: str) -> dict[str, Any] | None:
    """Returns the description of the plugin that registers a backend; None if there is none."""
    from .._session import default_session

    return json.loads(_byoc.describe_backend(default_session(), name) or "null")


def bind_params_by_name(function: Any, params: dict[str, Any]) -> Any:
    """Replaces parameters of a function with constants, by name."""
    by_name: dict[str, Any] = {}
    for param in function.params:
        if param.name_hint in params:
            if param.name_hint in by_name:
                raise ValueError(f"expected one parameter {param.name_hint}, found several")
            by_name[param.name_hint] = param
    return bind(function, {by_name[name]: const(value) for name, value in params.items() if name in by_name})


def partition_by_table(mod: IRModule, compiler: str, params: dict | None = None, **options: Any) -> IRModule:
    """Partitions a module for a backend of the process: its table of patterns, then its operators."""
    from . import transform

    if params:
        mod = mod.shallow_copy()
        mod["main"] = bind_params_by_name(mod["main"], params)
    passes = [transform.InferType(), transform.SimplifyInference(), transform.FoldConstant()]
    table = get_pattern_table(compiler)
    if table:
        passes.append(transform.MergeComposite(table))
    passes += [
        transform.AnnotateTarget([compiler]),
        transform.MergeCompilerRegions(),
        transform.PartitionGraph(options.get("mod_name", "default")),
    ]
    return transform.Sequential(passes, name=f"partition_for_{compiler}")(mod)


def optimized(mod: IRModule, known: set[str]) -> IRModule:
    """Applies `relay.ext.NAME.optimize` to each new function of the backend NAME."""
    from ..tvm._functions import FUNCTIONS

    for name in mod._native.names():
        function = None if name in known else mod._native.get(name)
        compiler = function.attrs.get("Compiler") if function else None
        optimize = FUNCTIONS.get(f"relay.ext.{compiler}.optimize")
        if optimize is not None:
            # Passes leave functions of targets as they are.
            changed = optimize(IRModule({name: function.without_attr("Compiler")}))
            mod[name] = changed[name].with_attr("Compiler", compiler)
    return mod


class _Contrib(types.ModuleType):
    """Functions `partition_for_NAME` for each backend, and a module for each."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        prefix = "partition_for_"
        if name.startswith(prefix):
            return partition_function(name.removeprefix(prefix))
        module = _Contrib(f"{self.__name__}.{name}")
        module.pattern_table = lambda: get_pattern_table(name)
        setattr(self, name, module)
        return module


def partition_function(compiler: str) -> Callable[..., IRModule]:
    """Returns `partition_for_NAME`: the patterns and verdicts of a plugin, or a table registered in Python."""

    def partition(mod: IRModule, params: dict | None = None, **options: Any) -> IRModule:
        from .build_module import partition_for_plugin

        if compiler in _PATTERN_TABLES or any(key == f"target.{compiler}" for _, key in Op.attributes):
            return partition_by_table(mod, compiler, params, **options)
        return partition_for_plugin(mod, compiler, params, **options)

    partition.__name__ = f"partition_for_{compiler}"
    partition.__doc__ = f"Partitions a module for {compiler}."
    return partition


def _registration(name: str) -> Callable:
    """Returns a registration that has no effect: kernels and layouts are those of byoc."""

    def register(op_name: str, value: Any = None, *_: Any, **__: Any) -> Any:
        Op.get(op_name)
        return value if value is not None else lambda function: function

    register.__name__ = name
    return register


_NO_EFFECT = (
    "alter_op_layout", "legalize", "compute", "strategy", "pattern", "convert_op_layout", "schedule",
    "injective_schedule", "reduce_schedule", "shape_func", "gradient", "mixed_precision_conversion",
)  # fmt: skip


def fill(op: types.ModuleType) -> None:
    """Adds the registrations to the module of operators."""
    op.get = Op.get  # type: ignore[attr-defined]
    op.Op = Op  # type: ignore[attr-defined]
    op.register_op_attr = register_op_attr  # type: ignore[attr-defined]
    op.register = register_op  # type: ignore[attr-defined]
    op.const = const  # type: ignore[attr-defined]
    op._make = op  # type: ignore[attr-defined]
    for name in _NO_EFFECT:
        setattr(op, f"register_{name}", _registration(f"register_{name}"))
    op.op = op  # type: ignore[attr-defined]
    op.contrib = _Contrib("byoc.relay.op.contrib")  # type: ignore[attr-defined]
    register = types.ModuleType("byoc.relay.op.contrib.register")
    register.register_pattern_table = register_pattern_table  # type: ignore[attr-defined]
    register.get_pattern_table = get_pattern_table  # type: ignore[attr-defined]
    op.contrib.register = register  # type: ignore[attr-defined]
    op.contrib.register_pattern_table = register_pattern_table  # type: ignore[attr-defined]
    op.contrib.get_pattern_table = get_pattern_table  # type: ignore[attr-defined]
