"""Global functions by name, among them the code generators of backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._errors import BackendError

FUNCTIONS: dict[str, Callable] = {}


def register_func(func_name: Any, f: Callable | None = None, override: bool = False) -> Any:
    """Registers a global function. `relay.ext.NAME` is the code generator of the backend NAME."""
    if callable(func_name):
        return register_func(func_name.__name__, func_name, override)

    def register(function: Callable) -> Callable:
        if func_name in FUNCTIONS and not override:
            raise ValueError(f"{func_name}: expected a new name, found one that is registered; pass override=True")
        if not callable(function):
            raise BackendError(f"{func_name}: expected a function, found {type(function).__name__}", "E0420", None)
        FUNCTIONS[func_name] = function
        return function

    return register if f is None else register(f)


def get_global_func(name: str, allow_missing: bool = False) -> Callable | None:
    """Returns a global function, or one for the code generator of a plugin that is found."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    prefix = "relay.ext."
    if name.startswith(prefix):
        from .. import plugins

        rows = plugins()
        names = {registered for row in rows for registered in row.get("registers", ())}
        if name in names:
            return lambda function: function
    if allow_missing:
        return None
    raise ValueError(f"expected a registered function, found none of the name {name}")


def list_global_func_names() -> list[str]:
    return sorted(FUNCTIONS)


def remove_global_func(name: str) -> None:
    FUNCTIONS.pop(name, None)


def register_object(*_: Any, **__: Any) -> Any:
    return lambda cls: cls
