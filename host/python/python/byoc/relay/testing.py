"""Helpers of Relay's tests and tutorials."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _ndarray, transform
from ._core import Call, Expr, Function, IRModule, Op, as_expr


def run_opt_pass(expr: Any, opt_pass: Any, import_prelude: bool = False) -> Expr:
    """Runs a pass, or several, on an expression as the function `main`."""
    if isinstance(opt_pass, (list, tuple)):
        opt_pass = transform.Sequential(opt_pass)
    mod = IRModule.from_expr(as_expr(expr))
    mod = opt_pass(transform.InferType()(mod))
    entry = mod["main"]
    return entry if isinstance(expr, Function) else entry.body


def run_infer_type(expr: Any) -> Expr:
    """Returns the expression with its types."""
    return run_opt_pass(expr, transform.InferType())


def create_workload(net: Any, initializer: Any = None, seed: int = 0) -> tuple[IRModule, dict[str, Any]]:
    """Returns a module of a network and values for its parameters, all but `data` and labels."""
    mod = transform.InferType()(IRModule.from_expr(net))
    rng = np.random.RandomState(seed)
    params = {}
    for param in mod["main"].params:
        name, kind = param.name_hint, param.checked_type
        if name == "data" or name.endswith("label"):
            continue
        shape = [int(dim) for dim in kind.shape]
        fan = np.prod(shape[1:]) if len(shape) > 1 else 1.0
        value = rng.uniform(-1, 1, shape) * np.sqrt(3.0 / fan) if len(shape) > 1 else rng.uniform(0.5, 1, shape)
        params[name] = _ndarray.array(value.astype(kind.dtype))
    return mod, params


def count_calls(expr: Expr, name: str) -> int:
    """Returns the number of calls of an operator."""
    return sum(isinstance(item, Call) and item.op == Op.get(name) for item in expr.post_order())
