"""Test of a backend: each operator that it accepts, on random values, against the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _cases() -> list[tuple[str, Callable[[], tuple[Any, list[Any]]]]]:
    """Returns a name and a builder of an expression and its parameters for each case."""
    from . import relay
    from .relay import nn
    from .relay._core import Op, TupleWrapper

    cases: list[tuple[str, Callable]] = []

    def case(name: str, shapes: list[tuple], build: Callable[..., Any]) -> None:
        def create() -> tuple[Any, list[Any]]:
            params = [relay.var(f"x{i}", shape=shape) for i, shape in enumerate(shapes)]
            made = build(*params)
            return (made[0] if isinstance(made, TupleWrapper) else made), params

        cases.append((name, create))

    for name in Op.list_op_names():
        inputs, needed = Op.get(name)._row[1], [attr for attr in Op.get(name)._row[3] if attr[2]]
        if not needed and "." not in name and len(inputs) in (1, 2):
            for shape in ((2, 3), (1, 4, 5, 6)):
                case(name, [shape] * len(inputs), lambda *args, name=name: relay.Call(Op.get(name), args))
    for name in (
        "relu",
        "softmax",
        "log_softmax",
        "batch_flatten",
        "leaky_relu",
        "global_avg_pool2d",
        "global_max_pool2d",
    ):
        case(f"nn.{name}", [(1, 4, 6, 6)], getattr(nn, name))
    for pads, strides, groups in (((0, 0), (1, 1), 1), ((1, 1), (2, 2), 1), ((1, 1), (1, 1), 4)):
        options = {"padding": pads, "strides": strides, "groups": groups, "kernel_size": (3, 3), "channels": 4}
        case(
            "nn.conv2d",
            [(1, 4, 7, 7), (4, 4 // groups, 3, 3)],
            lambda x, w, options=options: nn.conv2d(x, w, **options),
        )
    for rows in (1, 3):
        case("nn.dense", [(rows, 8), (5, 8)], lambda x, w: nn.dense(x, w))
    for pool in (nn.max_pool2d, nn.avg_pool2d):
        case("nn.pool2d", [(1, 2, 6, 6)], lambda x, pool=pool: pool(x, pool_size=(2, 2), strides=(2, 2)))
    case("nn.bias_add", [(1, 4, 3, 3), (4,)], lambda x, b: nn.bias_add(x, b))
    return cases


def run(name: str, rtol: float = 1e-4, atol: float = 1e-5, seed: int = 0) -> dict[str, Any]:
    """Runs the cases. Returns how many passed, those that the backend refused, and the failures with their reasons."""
    import warnings

    from . import compile, relay
    from ._errors import CompilationWarning, Error

    rng = np.random.RandomState(seed)
    report: dict[str, Any] = {"passed": 0, "refused": [], "failed": []}
    for label, create in _cases():
        expr, params = create()
        try:
            module = relay.transform.InferType()(relay.IRModule.from_expr(relay.Function(params, expr)))
        except Error:
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CompilationWarning)
            model = compile(module, backend=name)
        regions = [region for region in model.explain().regions if region["backend"].partition("@")[0] == name]
        if not regions:
            faults = [str(item.message) for item in caught if "E0404" not in str(item.message)]
            if faults:
                report["failed"].append((label, faults[0]))
            elif label not in report["refused"]:
                report["refused"].append(label)
            continue
        values = [rng.uniform(0.1, 0.9, [int(d) for d in p.checked_type.shape]).astype("float32") for p in params]
        try:
            found = model.run(values)
            expected = compile(module).run(values)
            for key in expected:
                np.testing.assert_allclose(found[key], expected[key], rtol=rtol, atol=atol)
            report["passed"] += 1
        except (Error, AssertionError) as cause:
            report["failed"].append((label, str(cause).strip().splitlines()[0]))
    return report
