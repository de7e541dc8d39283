"""Helpers of Relay's tests and tutorials."""

from __future__ import annotations

import os
import tempfile
import types
from typing import Any

import numpy as np

from . import _ndarray, transform
from ._core import Call, Expr, Function, IRModule, Op, as_expr, var


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


def _network(*architectures: str) -> types.ModuleType:
    """Returns a module with `get_workload`, which reads a network of the zoo."""

    def get_workload(batch_size: int = 1, num_layers: int | None = None, dtype: str = "float32", **_: Any):
        wanted = [name for name in architectures if num_layers is None or name.endswith(str(num_layers))]
        if not wanted or dtype != "float32":
            raise NotImplementedError(
                f"expected one of {', '.join(architectures)} in float32, found num_layers={num_layers}, dtype={dtype}"
            )
        from .._tools import zoo
        from .build_module import from_onnx

        with tempfile.TemporaryDirectory() as folder:
            path = zoo(wanted[0], os.path.join(folder, "model.onnx"))
            with open(path, "rb") as file:
                return from_onnx(file.read())

    module = types.ModuleType(f"byoc.relay.testing.{architectures[0]}")
    module.get_workload = get_workload  # type: ignore[attr-defined]
    return module


resnet = _network("resnet18", "resnet50")
mobilenet = _network("mobilenet_v2")
vgg = _network("vgg16")


def _mlp(batch_size: int = 1, num_classes: int = 10, image_shape: tuple = (1, 28, 28), dtype: str = "float32"):
    """Returns a network of three dense layers, and values for its parameters."""
    net = Call("nn.batch_flatten", [var("data", shape=(batch_size, *image_shape), dtype=dtype)])
    for index, units in enumerate((128, 64, num_classes), 1):
        weight, bias = var(f"fc{index}_weight"), var(f"fc{index}_bias")
        net = Call("nn.bias_add", [Call("nn.dense", [net, weight], {"units": units}), bias], {"axis": -1})
        net = Call("nn.relu", [net]) if units != num_classes else net
    net = Call("nn.softmax", [net])
    return create_workload(Function(net.free_vars(), net))


mlp = types.ModuleType("byoc.relay.testing.mlp")
mlp.get_workload = _mlp  # type: ignore[attr-defined]


def count_calls(expr: Expr, name: str) -> int:
    """Returns the number of calls of an operator."""
    return sum(isinstance(item, Call) and item.op == Op.get(name) for item in expr.post_order())
