"""Expressions of lets and branches, written as statements."""

from __future__ import annotations

from typing import Any

from ._core import Expr, If, Let, Type, Var, as_expr


class _Scope:
    """Context of a branch."""

    def __init__(self, enter: Any, leave: Any) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._leave()


class ScopeBuilder:
    """Builds an expression of lets and branches."""

    def __init__(self) -> None:
        self._bindings: list[list[tuple[Var, Expr]]] = [[]]
        self._results: list[Expr | None] = [None]

    def _enter(self) -> None:
        self._bindings.append([])
        self._results.append(None)

    def _leave(self) -> Expr:
        bindings, result = self._bindings.pop(), self._results.pop()
        if result is None:
            raise RuntimeError("expected ret(value) in the scope, found none")
        for var, value in reversed(bindings):
            result = Let(var, value, result)
        return result

    def let(self, var: Any, value: Any) -> Var:
        """Binds a value to a variable, given as such, by name, or as a pair of name and type."""
        if isinstance(var, tuple):
            name, kind = var
            var = Var(name, kind if isinstance(kind, Type) else None)
        elif isinstance(var, str):
            var = Var(var)
        self._bindings[-1].append((var, as_expr(value)))
        return var

    def if_scope(self, cond: Expr) -> _Scope:
        """Context of the branch for a true condition."""

        return _Scope(self._enter, lambda: self._set_branch(cond))

    def _set_branch(self, cond: Expr) -> None:
        branch = self._leave()
        self._results[-1] = (cond, branch)  # type: ignore[assignment]

    def else_scope(self) -> _Scope:
        """Context of the branch for a false condition."""

        def leave() -> None:
            otherwise = self._leave()
            pending: Any = self._results[-1]
            if not isinstance(pending, tuple):
                raise RuntimeError("expected an if_scope before the else_scope, found none")
            self._results[-1] = If(pending[0], pending[1], otherwise)

        return _Scope(self._enter, leave)

    def type_of(self, expr: Expr) -> Type | None:
        return expr.type_annotation if isinstance(expr, Var) else expr.known_type

    def ret(self, value: Any) -> None:
        """Sets the result of the scope."""
        self._results[-1] = as_expr(value)

    def get(self) -> Expr:
        """Returns the expression."""
        if len(self._bindings) != 1:
            raise RuntimeError("expected the end of all branches, found an open one")
        result = self._leave()
        self._enter()
        return result
