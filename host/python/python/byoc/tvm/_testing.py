"""Helpers of TVM's tests."""

from __future__ import annotations

import inspect
import json
import types
from typing import Any

import numpy as np

from ..relay import _core
from ..relay import testing as _relay_testing
from ..relay._core import Array, Call, Expr, IRModule, Op, Var
from ..relay.expr_functor import ExprMutator


def save_json(node: Any) -> str:
    """Returns a value as JSON that holds its text."""
    if isinstance(node, IRModule):
        return json.dumps({"module": node.astext()})
    if isinstance(node, Expr):
        return json.dumps({"expr": _core._VERSION + node.text_with_constants()})
    if isinstance(node, _core.Type):
        return json.dumps({"type": str(node)})
    if isinstance(node, Op):
        return json.dumps({"op": node.name})
    if isinstance(node, (list, tuple)):
        return json.dumps({"array": [save_json(item) for item in node]})
    if hasattr(node, "source_name"):
        return json.dumps({"span": [node.line, node.end_line, node.column, node.end_column]})
    return json.dumps({"value": node})


def load_json(text: str) -> Any:
    """Returns the value of `save_json`."""
    ((kind, value),) = json.loads(text).items()
    if kind == "module":
        return _core.parse(value)
    if kind == "expr":
        return _core.parse_expr(value)
    if kind == "type":
        return _core._parse_type(value)
    if kind == "op":
        return Op.get(value)
    if kind == "array":
        return Array(load_json(item) for item in value)
    if kind == "span":
        from ..relay import Span

        return Span(None, *value)
    return value


def make_node(kind: str, **members: Any) -> Any:
    """Returns attributes of a dictionary."""
    return dict(members)


def convert(value: Any) -> Any:
    """Returns a value in the form of the IR: a list as an Array."""
    return Array(convert(item) for item in value) if isinstance(value, (list, tuple)) else value


# Fixtures of `parameters`, whose values belong together: the rows, the position in a row, and the names of the rows.
GROUPS: dict[int, tuple] = {}


def _testing() -> types.ModuleType:
    module = types.ModuleType("byoc.tvm.testing")

    def assert_allclose(
        actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7, verbose: bool = True
    ) -> None:
        actual, desired = np.asarray(actual), np.asarray(desired)
        np.testing.assert_allclose(actual.shape, desired.shape)
        np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol, verbose=verbose)

    def enabled_targets() -> list[tuple[str, Any]]:
        from . import cpu

        return [("llvm", cpu(0))]

    def same(function: Any = None, *_: Any, **__: Any) -> Any:
        return function if callable(function) else lambda item: item

    def skip(reason: str) -> Any:
        def mark(*args: Any, **__: Any) -> Any:
            import pytest

            if args and callable(args[0]):
                return pytest.mark.skip(reason=reason)(args[0])
            return pytest.mark.skip(reason=reason)

        return mark

    def parameter(*values: Any, ids: Any = None, by_dict: Any = None) -> Any:
        import pytest

        if by_dict is not None:
            ids, values = list(by_dict), tuple(by_dict.values())

        @pytest.fixture(params=values, ids=ids)
        def value(*_: Any, request: Any) -> Any:
            return request.param

        return value

    def parameters(*rows: Any, ids: Any = None) -> tuple:
        import pytest

        def fixture(index: int) -> Any:
            @pytest.fixture
            def value(*_: Any, request: Any) -> Any:
                return request.param

            GROUPS[id(value)] = (rows, index, ids, value)
            return value

        return tuple(fixture(index) for index in range(len(rows[0])))

    def fixture(function: Any = None, *, cache_return_value: bool = False) -> Any:
        import pytest

        return pytest.fixture(function) if function else lambda item: pytest.fixture(item)

    def parametrize_targets(*targets: Any) -> Any:
        import pytest

        def mark(function: Any) -> Any:
            from . import cpu

            names = [t for t in targets if isinstance(t, str) and t.partition(" ")[0] in ("llvm", "c")] or ["llvm"]
            values = {"target": names[0], "dev": cpu(0)}
            for name in values.keys() & inspect.signature(function).parameters.keys():
                function = pytest.mark.parametrize(name, [values[name]])(function)
            return function

        return mark(targets[0]) if targets and callable(targets[0]) else mark

    def main() -> None:
        import sys

        import pytest

        sys.exit(pytest.main([sys.argv[0]]))

    vars(module).update(
        assert_allclose=assert_allclose,
        enabled_targets=enabled_targets,
        device_enabled=lambda target: str(target).partition(" ")[0] in ("llvm", "c"),
        uses_gpu=same,
        requires_llvm=same,
        requires_x86=same,
        requires_package=lambda *_: same,
        known_failing_targets=lambda *_: same,
        exclude_targets=lambda *_: same,
        requires_gpu=skip("no GPU"),
        requires_cuda=skip("no CUDA"),
        requires_arm_dot=skip("no schedules"),
        requires_cmsisnn=skip("no CMSIS-NN"),
        requires_hexagon=skip("no Hexagon"),
        parameter=parameter,
        parameters=parameters,
        fixture=fixture,
        parametrize_targets=parametrize_targets,
        main=main,
    )

    def missing(name: str) -> Any:
        if name.startswith("requires_"):
            return skip(f"byoc has no counterpart of {name}")
        raise AttributeError(f"byoc has no counterpart of tvm.testing.{name}")

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


testing = _testing()


class CcompilerAnnotator(ExprMutator):
    """Annotates sums, differences and products for ccompiler, from an `add` to a `multiply`."""

    def __init__(self) -> None:
        super().__init__()
        self.in_compiler = 0

    def visit_call(self, call: Call) -> Expr:
        name = call.op.name if isinstance(call.op, Op) else ""
        if name == "multiply" and not self.in_compiler:
            self.in_compiler = 1
        if name == "add" and self.in_compiler == 1:
            self.in_compiler = 2
        is_root, is_leaf = name == "multiply", name == "add"
        compiler = {"compiler": "ccompiler"}
        was_in = bool(self.in_compiler)
        args = [super(CcompilerAnnotator, self).visit(arg) for arg in call.args]
        if was_in:
            begin = [isinstance(arg, Var) for arg in args]
            args = [Call("annotation.compiler_begin", [a], compiler) if b else a for a, b in zip(args, begin)]
        result = Call(call.op, args, call.attrs)
        if is_leaf:
            self.in_compiler = 1 if self.in_compiler else 0
        if is_root and was_in:
            self.in_compiler = 0
            return Call("annotation.compiler_end", [result], compiler)
        return result


byoc = types.ModuleType("byoc.tvm.relay.testing.byoc")
byoc.CcompilerAnnotator = CcompilerAnnotator  # type: ignore[attr-defined]


class TempOpAttr:
    """Context in which an operator has another attribute."""

    def __init__(self, op_name: str, attr_key: str, attr_value: Any) -> None:
        self.op, self.key, self.value = Op.get(op_name), attr_key, attr_value

    def __enter__(self) -> None:
        self.before = self.op.get_attr(self.key)
        self.op.set_attr(self.key, self.value)

    def __exit__(self, *_: Any) -> None:
        self.op.reset_attr(self.key)
        if self.before is not None:
            self.op.set_attr(self.key, self.before)


temp_op_attr = types.ModuleType("byoc.tvm.relay.testing.temp_op_attr")
temp_op_attr.TempOpAttr = TempOpAttr  # type: ignore[attr-defined]
_relay_testing.temp_op_attr = temp_op_attr  # type: ignore[attr-defined]
