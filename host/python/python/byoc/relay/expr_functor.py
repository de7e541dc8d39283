"""Visitors and mutators of expressions."""

from __future__ import annotations

import sys
from typing import Any

from ._core import (
    Call,
    Clause,
    Constant,
    Constructor,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Match,
    Op,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    TupleWrapper,
    Var,
)

_METHODS = {
    Function: "visit_function",
    Call: "visit_call",
    Let: "visit_let",
    Var: "visit_var",
    GlobalVar: "visit_global_var",
    If: "visit_if",
    Tuple: "visit_tuple",
    TupleGetItem: "visit_tuple_getitem",
    Constant: "visit_constant",
    RefCreate: "visit_ref_create",
    RefRead: "visit_ref_read",
    RefWrite: "visit_ref_write",
    Constructor: "visit_constructor",
    Match: "visit_match",
    Op: "visit_op",
}

# Frames of Python that one level of an expression takes at most, with overridden methods.
_FRAMES = 12


class ExprFunctor:
    """Calls the method of an expression's kind, once for each expression."""

    def __init__(self) -> None:
        self.memo_map: dict[Any, Any] = {}
        self._depth = 0

    def visit(self, expr: Any) -> Any:
        """Visits an expression. Visiting it again returns the same result."""
        if isinstance(expr, TupleWrapper):
            expr = expr.tuple_value
        memo = self.memo_map
        if expr in memo:
            return memo[expr]
        if not getattr(self, "_depth", 0) and isinstance(expr, Expr):
            # A method of the user visits the operands by recursion, so the limit has to allow for the depth.
            needed = _FRAMES * len(expr.post_order()) + 1000
            if sys.version_info >= (3, 11) and needed > sys.getrecursionlimit():
                sys.setrecursionlimit(needed)
        self._depth = getattr(self, "_depth", 0) + 1
        try:
            method = _METHODS.get(type(expr))
            if method is None:
                raise TypeError(f"expected an expression, found {type(expr).__name__}")
            result = getattr(self, method)(expr)
        finally:
            self._depth -= 1
        memo[expr] = result
        return result


def _unvisited(kind: str):
    def visit(self: ExprFunctor, expr: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method visit_{kind}")

    return visit


for _method in _METHODS.values():
    setattr(ExprFunctor, _method, _unvisited(_method.removeprefix("visit_")))


def _pattern_vars(pattern: Any) -> list[Var]:
    if isinstance(pattern, PatternVar):
        return [pattern.var]
    return [var for inner in getattr(pattern, "patterns", ()) for var in _pattern_vars(inner)]


class ExprVisitor(ExprFunctor):
    """Visits the operands of every expression."""

    def _leaf(self, expr: Any) -> None:
        return None

    visit_var = visit_constant = visit_global_var = visit_op = visit_constructor = _leaf

    def visit_tuple(self, tup: Tuple) -> None:
        for field in tup.fields:
            self.visit(field)

    def visit_call(self, call: Call) -> None:
        self.visit(call.op)
        for arg in call.args:
            self.visit(arg)

    def visit_if(self, if_expr: If) -> None:
        self.visit(if_expr.cond)
        self.visit(if_expr.true_branch)
        self.visit(if_expr.false_branch)

    def visit_function(self, func: Function) -> None:
        for param in func.params:
            self.visit(param)
        self.visit(func.body)

    def visit_let(self, let: Let) -> None:
        self.visit(let.var)
        self.visit(let.value)
        self.visit(let.body)

    def visit_tuple_getitem(self, item: TupleGetItem) -> None:
        self.visit(item.tuple_value)

    def visit_ref_create(self, ref: RefCreate) -> None:
        self.visit(ref.value)

    def visit_ref_read(self, ref: RefRead) -> None:
        self.visit(ref.ref)

    def visit_ref_write(self, ref: RefWrite) -> None:
        self.visit(ref.ref)
        self.visit(ref.value)

    def visit_match(self, match: Match) -> None:
        self.visit(match.data)
        for clause in match.clauses:
            for var in _pattern_vars(clause.lhs):
                self.visit(var)
            self.visit(clause.rhs)


class ExprMutator(ExprFunctor):
    """Rebuilds every expression from its visited operands; an expression with the same operands stays the same."""

    def _leaf(self, expr: Any) -> Any:
        return expr

    visit_var = visit_constant = visit_global_var = visit_op = visit_constructor = _leaf

    def visit_function(self, fn: Function) -> Expr:
        params = [self.visit(param) for param in fn.params]
        body = self.visit(fn.body)
        if params == fn.params and body == fn.body:
            return fn
        return Function(params, body, fn.ret_type, fn.type_params, fn.attrs)

    def visit_let(self, let: Let) -> Expr:
        parts = [self.visit(let.var), self.visit(let.value), self.visit(let.body)]
        return let if parts == [let.var, let.value, let.body] else Let(*parts)

    def visit_call(self, call: Call) -> Expr:
        op = self.visit(call.op)
        args = [self.visit(arg) for arg in call.args]
        return call if op == call.op and args == call.args else Call(op, args, call.attrs)

    def visit_if(self, ite: If) -> Expr:
        parts = [self.visit(ite.cond), self.visit(ite.true_branch), self.visit(ite.false_branch)]
        return ite if parts == [ite.cond, ite.true_branch, ite.false_branch] else If(*parts)

    def visit_tuple(self, tup: Tuple) -> Expr:
        fields = [self.visit(field) for field in tup.fields]
        return tup if fields == tup.fields else Tuple(fields)

    def visit_tuple_getitem(self, op: TupleGetItem) -> Expr:
        tuple_value = self.visit(op.tuple_value)
        return op if tuple_value == op.tuple_value else TupleGetItem(tuple_value, op.index)

    def visit_ref_create(self, ref: RefCreate) -> Expr:
        value = self.visit(ref.value)
        return ref if value == ref.value else RefCreate(value)

    def visit_ref_read(self, ref: RefRead) -> Expr:
        cell = self.visit(ref.ref)
        return ref if cell == ref.ref else RefRead(cell)

    def visit_ref_write(self, ref: RefWrite) -> Expr:
        cell, value = self.visit(ref.ref), self.visit(ref.value)
        return ref if cell == ref.ref and value == ref.value else RefWrite(cell, value)

    def visit_pattern(self, pattern: Any) -> Any:
        if isinstance(pattern, PatternVar):
            return PatternVar(self.visit(pattern.var))
        if isinstance(pattern, PatternConstructor):
            return PatternConstructor(pattern.constructor, [self.visit_pattern(p) for p in pattern.patterns])
        if isinstance(pattern, PatternTuple):
            return PatternTuple([self.visit_pattern(p) for p in pattern.patterns])
        return pattern

    def visit_match(self, match: Match) -> Expr:
        clauses = [Clause(self.visit_pattern(clause.lhs), self.visit(clause.rhs)) for clause in match.clauses]
        return Match(self.visit(match.data), clauses, match.complete)


MixedModeVisitor = ExprVisitor


class MixedModeMutator(ExprMutator):
    """Mutator with a hook after the operands of a call or a tuple were visited."""

    def visit_call(self, call: Call) -> Expr:
        return self.rewrite_call(call, super().visit_call(call))

    def visit_tuple(self, tup: Tuple) -> Expr:
        return self.rewrite_tuple(tup, super().visit_tuple(tup))

    def rewrite_call(self, pre: Call, post: Expr) -> Expr:
        return post

    def rewrite_tuple(self, pre: Tuple, post: Expr) -> Expr:
        return post
