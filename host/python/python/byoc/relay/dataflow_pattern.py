"""Patterns of data flow: matching, partitioning and rewriting of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _byoc
from .._errors import ModelError
from ._core import (
    Array,
    Call,
    Constant,
    Expr,
    Function,
    If,
    IRModule,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Type,
    Var,
    _dim,
    as_expr,
    dtype_name,
    native_attrs,
)
from ._core import const as _const
from ._user import checked, failure

__all__ = [
    "AltPattern", "AttrPattern", "CallPattern", "ConstantPattern", "DFPattern", "DFPatternCallback", "DataTypePattern",
    "DominatorPattern", "ExprPattern", "FunctionPattern", "IfPattern", "LetPattern", "ShapePattern",
    "TupleGetItemPattern", "TuplePattern", "TypePattern", "VarPattern", "WildcardPattern", "deduplicate", "dominates",
    "has_attr", "has_dtype", "has_shape", "has_type", "is_constant", "is_expr", "is_if", "is_let", "is_op", "is_tuple",
    "is_tuple_get_item", "is_var", "partition", "rewrite", "wildcard",
]  # fmt: skip


class DFPattern:
    """Pattern. The same object in two places matches the same expression in both."""

    def __call__(self, *args: Any) -> CallPattern:
        args = args[0] if len(args) == 1 and args[0] is None else list(args)
        return CallPattern(self, args)

    def __or__(self, other: DFPattern) -> AltPattern:
        return AltPattern(self, other)

    def __add__(self, other: DFPattern) -> CallPattern:
        return is_op("add")(self, other)

    def __sub__(self, other: DFPattern) -> CallPattern:
        return is_op("subtract")(self, other)

    def __mul__(self, other: DFPattern) -> CallPattern:
        return is_op("multiply")(self, other)

    def __truediv__(self, other: DFPattern) -> CallPattern:
        return is_op("divide")(self, other)

    def has_attr(self, attrs: Mapping[str, Any]) -> AttrPattern:
        return AttrPattern(self, attrs)

    def has_type(self, ttype: Type) -> TypePattern:
        return TypePattern(self, ttype)

    def has_dtype(self, dtype: str) -> DataTypePattern:
        return DataTypePattern(self, dtype)

    def has_shape(self, shape: list) -> ShapePattern:
        return ShapePattern(self, shape)

    def optional(self, option_constructor: Callable[[DFPattern], DFPattern]) -> AltPattern:
        """Returns a pattern that matches this one, or what `option_constructor` makes of it."""
        return self | option_constructor(self)

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DominatorPattern:
        return DominatorPattern(parent, wildcard() if path is None else path, self)

    def match(self, expr: Expr) -> bool:
        """Returns true if the pattern matches at the expression."""
        if isinstance(expr, Op):
            return _matches_op(self, expr)
        return _byoc.match_pattern(as_expr(expr), native(self)[0]) is not None

    def partition(self, expr: Expr, attrs: Mapping[str, Any] | None = None, check: Callable = lambda _: True) -> Expr:
        """Moves each match for which `check` returns true into a function."""
        return _byoc.partition_expr(expr, native(self)[0], dict(attrs or {}), checked("check of the pattern", check))

    def _operands(self) -> list[DFPattern]:
        return []

    def _node(self, index: Callable[[DFPattern], int]) -> tuple:
        raise NotImplementedError


def _pattern(value: Any) -> DFPattern:
    if isinstance(value, DFPattern):
        return value
    if isinstance(value, (Expr, Op)):
        return ExprPattern(value)
    raise ModelError(
        f"expected a pattern, found {type(value).__name__}", "E0310", "begin with wildcard(), is_op(NAME) or is_var()"
    )


def _patterns(values: Iterable | None) -> Array | None:
    return None if values is None else Array(_pattern(value) for value in values)


def native(root: DFPattern) -> tuple[list[tuple], list[DFPattern]]:
    """Returns the nodes of a pattern for the native functions, operands before users, and their objects."""
    nodes: list[tuple] = []
    objects: list[DFPattern] = []
    index: dict[int, int] = {}
    stack = [(_pattern(root), False)]
    while stack:
        pattern, is_exit = stack.pop()
        if id(pattern) in index:
            continue
        if not is_exit:
            stack.append((pattern, True))
            stack.extend((operand, False) for operand in reversed(pattern._operands()))
            continue
        node = pattern._node(lambda operand: index[id(operand)])
        if node[0] == "expr":
            nodes.extend(_nodes_of(node[1], len(nodes)))
            objects.extend([pattern] * (len(nodes) - len(objects)))
        else:
            nodes.append(node)
            objects.append(pattern)
        index[id(pattern)] = len(nodes) - 1
        if not stack:
            # The targets of redirections, which may be recursive.
            targets = [node[1] for node in nodes if node[0] == "redirect"]
            stack.extend((target, False) for target in targets if id(target) not in index)
    nodes = [("redirect", index[id(node[1])]) if node[0] == "redirect" else node for node in nodes]
    if index[id(root)] != len(nodes) - 1:
        nodes.append(("root", index[id(root)]))
    return nodes, objects


def _nodes_of(root: Expr, base: int) -> list[tuple]:
    """Returns the nodes of a pattern that matches expressions equal to `root`."""
    nodes: list[tuple] = []
    index: dict[Expr, int] = {}

    def add(*node: Any) -> int:
        nodes.append(node)
        return base + len(nodes) - 1

    for expr in root.post_order():
        if isinstance(expr, Constant):
            index[expr] = add("literal", expr)
        elif isinstance(expr, Var):
            index[expr] = add("var", expr.name_hint)
        elif isinstance(expr, Tuple):
            index[expr] = add("tuple", [index[field] for field in expr.fields])
        elif isinstance(expr, TupleGetItem):
            index[expr] = add("project", index[expr.tuple_value], expr.index)
        elif isinstance(expr, If):
            index[expr] = add("if", index[expr.cond], index[expr.true_branch], index[expr.false_branch])
        elif isinstance(expr, Let):
            index[expr] = add("let", index[expr.var], index[expr.value], index[expr.body])
        elif isinstance(expr, Function):
            index[expr] = add("function", [index[param] for param in expr.params], index[expr.body])
        elif isinstance(expr, Call):
            callee = add("op", expr.op.name) if isinstance(expr.op, Op) else index[expr.op]
            index[expr] = add("call", callee, [index[arg] for arg in expr.args])
            if expr.attrs:
                index[expr] = add("attrs", index[expr], native_attrs(expr.attrs))
        else:
            raise ModelError(f"is_expr: expected data flow, found {type(expr).__name__}", "E0310", "use a wildcard")
    return nodes


def _matches_op(pattern: DFPattern, op: Op) -> bool:
    """Returns true if a pattern matches an operator that is no callee."""
    if isinstance(pattern, AltPattern):
        return _matches_op(pattern.left, op) or _matches_op(pattern.right, op)
    if isinstance(pattern, AttrPattern):
        is_equal = all(op.get_attr(key) == value for key, value in pattern.attrs.items())
        return is_equal and _matches_op(pattern.pattern, op)
    return isinstance(pattern, WildcardPattern) or isinstance(pattern, ExprPattern) and pattern.expr is op


class NotationPattern(DFPattern):
    """Pattern in the notation of pattern files and plugins."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()

    def _node(self, index):
        return "notation", self.text


class ExprPattern(DFPattern):
    """Pattern that matches an expression, or an operator."""

    def __init__(self, expr: Expr | Op) -> None:
        self.expr = expr

    def _node(self, index):
        return ("op", self.expr.name) if isinstance(self.expr, Op) else ("expr", self.expr)


class VarPattern(DFPattern):
    """Pattern that matches a variable."""

    def __init__(self, name_hint: str = "") -> None:
        self.name = name_hint

    def _node(self, index):
        return "var", self.name or None


class ConstantPattern(DFPattern):
    """Pattern that matches a constant."""

    def _node(self, index):
        return ("constant",)


class WildcardPattern(DFPattern):
    """Pattern that matches any expression."""

    _redirect: DFPattern | None = None

    def redirect_to(self, pat: DFPattern) -> None:
        self._redirect = pat

    def _node(self, index):
        return ("wildcard",) if self._redirect is None else ("redirect", self._redirect)


class CallPattern(DFPattern):
    """Pattern that matches a call; None as arguments matches any."""

    def __init__(self, op: DFPattern, args: Iterable | None) -> None:
        self.op = _pattern(op)
        self.args = _patterns(args)

    def _operands(self):
        return [self.op, *(self.args or ())]

    def _node(self, index):
        return "call", index(self.op), None if self.args is None else [index(arg) for arg in self.args]


class FunctionPattern(DFPattern):
    """Pattern that matches a function literal."""

    def __init__(self, params: Iterable | None, body: DFPattern) -> None:
        self.params = _patterns(params)
        self.body = _pattern(body)

    def _operands(self):
        return [*(self.params or ()), self.body]

    def _node(self, index):
        return "function", None if self.params is None else [index(p) for p in self.params], index(self.body)


class IfPattern(DFPattern):
    """Pattern that matches a conditional expression."""

    def __init__(self, cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> None:
        self.cond, self.true_branch, self.false_branch = map(_pattern, (cond, true_branch, false_branch))

    def _operands(self):
        return [self.cond, self.true_branch, self.false_branch]

    def _node(self, index):
        return ("if", *map(index, self._operands()))


class LetPattern(DFPattern):
    """Pattern that matches a let."""

    def __init__(self, var: DFPattern, value: DFPattern, body: DFPattern) -> None:
        self.var, self.value, self.body = map(_pattern, (var, value, body))

    def _operands(self):
        return [self.var, self.value, self.body]

    def _node(self, index):
        return ("let", *map(index, self._operands()))


class TuplePattern(DFPattern):
    """Pattern that matches a tuple; None as fields matches any."""

    def __init__(self, fields: Iterable | None) -> None:
        self.fields = _patterns(fields)

    def _operands(self):
        return list(self.fields or ())

    def _node(self, index):
        return "tuple", None if self.fields is None else [index(field) for field in self.fields]


class TupleGetItemPattern(DFPattern):
    """Pattern that matches a field of a tuple; None as index matches any."""

    def __init__(self, tuple_value: DFPattern, index: int | None = None) -> None:
        self.tuple = _pattern(tuple_value)
        self.index = -1 if index is None else index

    def _operands(self):
        return [self.tuple]

    def _node(self, index):
        return "project", index(self.tuple), None if self.index < 0 else self.index


class AltPattern(DFPattern):
    """Pattern that matches one of two."""

    def __init__(self, left: DFPattern, right: DFPattern) -> None:
        self.left, self.right = _pattern(left), _pattern(right)

    def _operands(self):
        return [self.left, self.right]

    def _node(self, index):
        return "alt", index(self.left), index(self.right)


class AttrPattern(DFPattern):
    """Pattern with conditions on attributes."""

    def __init__(self, pattern: DFPattern, attrs: Mapping[str, Any]) -> None:
        self.pattern = _pattern(pattern)
        self.attrs = dict(attrs)

    def _operands(self):
        return [self.pattern]

    def _node(self, index):
        return "attrs", index(self.pattern), self.attrs


class TypePattern(DFPattern):
    """Pattern with a condition on the type."""

    def __init__(self, pattern: DFPattern, ttype: Type) -> None:
        self.pattern = _pattern(pattern)
        self.type = ttype

    def _operands(self):
        return [self.pattern]

    def _node(self, index):
        return "typed", index(self.pattern), self.type


class DataTypePattern(DFPattern):
    """Pattern with a condition on the element type."""

    def __init__(self, pattern: DFPattern, dtype: str) -> None:
        self.pattern = _pattern(pattern)
        self.dtype = dtype

    def _operands(self):
        return [self.pattern]

    def _node(self, index):
        return "dtype", index(self.pattern), dtype_name(self.dtype)


class ShapePattern(DFPattern):
    """Pattern with a condition on the shape."""

    def __init__(self, pattern: DFPattern, shape: list) -> None:
        self.pattern = _pattern(pattern)
        self.shape = Array(shape)

    def _operands(self):
        return [self.pattern]

    def _node(self, index):
        return "shape", index(self.pattern), [_dim(dim) for dim in self.shape]


class DominatorPattern(DFPattern):
    """Pattern that matches `child` if all its paths end at the same `parent`, with only `path` in between."""

    def __init__(self, parent: DFPattern, path: DFPattern, child: DFPattern) -> None:
        self.parent, self.path, self.child = _pattern(parent), _pattern(path), _pattern(child)

    def _operands(self):
        return [self.parent, self.path, self.child]

    def _node(self, index):
        return ("dominates", *map(index, self._operands()))


def is_var(name: str = "") -> VarPattern:
    return VarPattern(name)


def is_constant() -> ConstantPattern:
    return ConstantPattern()


def is_expr(expr: Expr) -> ExprPattern:
    return ExprPattern(expr if isinstance(expr, (Expr, Op)) else _const(expr))


def is_op(op_name: str) -> ExprPattern:
    return ExprPattern(Op.get(op_name))


def is_tuple(fields: Iterable | None = None) -> TuplePattern:
    return TuplePattern(fields)


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> TupleGetItemPattern:
    return TupleGetItemPattern(tuple_value, index)


def is_if(cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> IfPattern:
    return IfPattern(cond, true_branch, false_branch)


def is_let(var: DFPattern, value: DFPattern, body: DFPattern) -> LetPattern:
    return LetPattern(var, value, body)


def wildcard() -> WildcardPattern:
    return WildcardPattern()


def has_type(ttype: Type, pattern: DFPattern | None = None) -> TypePattern:
    return TypePattern(wildcard() if pattern is None else pattern, ttype)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DataTypePattern:
    return DataTypePattern(wildcard() if pattern is None else pattern, dtype)


def has_shape(shape: list, pattern: DFPattern | None = None) -> ShapePattern:
    return ShapePattern(wildcard() if pattern is None else pattern, shape)


def has_attr(attrs: Mapping[str, Any], pattern: DFPattern | None = None) -> AttrPattern:
    return AttrPattern(wildcard() if pattern is None else pattern, attrs)


def dominates(parent: DFPattern, path: DFPattern, child: DFPattern) -> DominatorPattern:
    return DominatorPattern(parent, path, child)


def deduplicate(*_: Any) -> None:
    raise NotImplementedError("patterns share nodes by identity; use one object in both places")


def partition(pattern: DFPattern, expr: Expr, attrs: Mapping | None = None, check: Callable = lambda _: True) -> Expr:
    """Moves each match of the pattern for which `check` returns true into a function."""
    return _pattern(pattern).partition(expr, attrs, check)


class DFPatternCallback:
    """Rewrite rule: `pattern`, and `callback`, which returns the replacement of a match."""

    def __init__(self, require_type: bool = False, rewrite_once: bool = False) -> None:
        self.pattern: DFPattern | None = None
        self.require_type = require_type
        self.rewrite_once = rewrite_once

    def rewrite(self, expr: Expr) -> Expr:
        return rewrite(self, expr)

    def callback(self, pre: Expr, post: Expr, node_map: Mapping[DFPattern, list]) -> Expr:
        """Returns the replacement; `post` keeps the match."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method callback(pre, post, node_map)")


MAX_ROUNDS = 100


def rewrite(
    callbacks: DFPatternCallback | Iterable[DFPatternCallback], expr: Expr, mod: IRModule | None = None
) -> Expr:
    """Rewrites the matches of each callback's pattern, one callback after the other, until nothing changes."""
    rules = [callbacks] if isinstance(callbacks, DFPatternCallback) else list(callbacks)
    finished: set[int] = set()
    current = as_expr(expr)
    for _ in range(MAX_ROUNDS):
        before = current
        for number, rule in enumerate(rules):
            if number in finished:
                continue
            if rule.require_type:
                current = current.infer_type()
            rewritten = _apply(rule, current)
            if rule.rewrite_once and rewritten.difference(current, True) is not None:
                finished.add(number)
            current = rewritten
        if current == before or current.difference(before, True) is None:
            return current
    raise ModelError(
        f"the expression still changes after {MAX_ROUNDS} rounds of rewriting",
        "E0317",
        "return a match unchanged if it is already rewritten, or set rewrite_once",
    )


def _apply(rule: DFPatternCallback, expr: Expr) -> Expr:
    nodes, objects = native(rule.pattern)

    def callback(pre: Expr, post: Expr, bindings: list[tuple[int, Any]]) -> Expr:
        node_map: dict[DFPattern, Array] = {}
        for index, value in bindings:
            found = node_map.setdefault(objects[index], Array())
            value = Op.get(value) if isinstance(value, str) else value
            if value not in found:
                found.append(value)
        try:
            return as_expr(rule.callback(pre, post, node_map))
        except ModelError:
            raise
        except Exception as cause:
            raise failure("rewrite callback", rule.callback, cause) from cause

    return _byoc.rewrite_once(expr, nodes, callback)
