"""Relay for Python programs: expressions, operators, patterns and passes over the compiler's IR.

from byoc import relay
x = relay.var("x", shape=(1, 4))
module = relay.transform.InferType()(relay.IRModule.from_expr(relay.nn.relu(x)))
print(module)
"""

from __future__ import annotations

import sys as _sys
import types as _types
from typing import Any as _AnyValue

from . import _core, _ops, analysis, build_module, dataflow_pattern, expr_functor, prelude, testing, transform
from ._core import (
    Any,
    BaseFunc,
    Call,
    Clause,
    Constant,
    Constructor,
    Expr,
    Function,
    FuncType,
    GlobalTypeVar,
    GlobalVar,
    If,
    IncompleteType,
    IRModule,
    Let,
    Match,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    RefCreate,
    RefRead,
    RefType,
    RefWrite,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    TupleWrapper,
    Type,
    TypeCall,
    TypeData,
    TypeVar,
    Var,
    assert_structural_equal,
    bind,
    const,
    parse,
    parse_expr,
    scalar_type,
    structural_equal,
    structural_hash,
    var,
)
from ._registry import get_pattern_table, register_op_attr, register_pattern_table
from .build_module import build, create_executor
from .expr_functor import ExprFunctor, ExprMutator, ExprVisitor, MixedModeMutator, MixedModeVisitor
from .scope_builder import ScopeBuilder
from .transform import build_config

RelayExpr = Expr
fromtext = parse
TypeConstraint = object


class TypeKind:
    """Kinds of types."""

    Type, ShapeVar, BaseType, Constraint, AdtHandle, TypeData = range(6)


class TypeRelation:
    """Relation between types; those of the operator table apply by themselves."""

    def __init__(self, func: _AnyValue, args: _AnyValue, num_inputs: int, attrs: _AnyValue) -> None:
        self.func, self.args, self.num_inputs, self.attrs = func, _core.Array(args), num_inputs, attrs


class Span:
    """Place in a source text."""

    def __init__(self, source_name: _AnyValue, line: int, end_line: int, column: int, end_column: int) -> None:
        self.source_name, self.line, self.end_line = source_name, line, end_line
        self.column, self.end_column = column, end_column

    def same_as(self, other: object) -> bool:
        return self is other


class SourceName(str):
    """Name of a source text."""

    @property
    def name(self) -> str:
        return str(self)


def _namespaces() -> None:
    found = _ops.namespaces()
    module = globals()
    op = _types.ModuleType("byoc.relay.op")
    for name in found[""].__all__:
        function = getattr(found[""], name)
        setattr(op, name, function)
        module.setdefault(name, function)
    for prefix in found.keys() - {"", "qnn"}:
        setattr(op, prefix, found[prefix])
        module.setdefault(prefix, found[prefix])
    qnn = _types.ModuleType("byoc.relay.qnn")
    qnn.op = found["qnn"]  # type: ignore[attr-defined]
    qnn.transform = _types.ModuleType("byoc.relay.qnn.transform")  # type: ignore[attr-defined]
    qnn.transform.CanonicalizeOps = transform.QnnCanonicalize  # type: ignore[attr-defined]
    qnn.transform.Legalize = transform.Legalize  # type: ignore[attr-defined]
    module["op"], module["qnn"] = op, qnn
    from . import _registry

    _registry.fill(op)
    expr = _types.ModuleType("byoc.relay.expr")
    ty = _types.ModuleType("byoc.relay.ty")
    for name in dir(_core):
        if not name.startswith("_"):
            setattr(expr, name, getattr(_core, name))
            setattr(ty, name, getattr(_core, name))
    expr.RelayExpr = Expr  # type: ignore[attr-defined]
    module["expr"], module["ty"] = expr, ty
    module["function"] = module["adt"] = expr
    module["base"] = _sys.modules[__name__]


_namespaces()
