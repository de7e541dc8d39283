"""Partitioning of PyTorch graphs: byoc runs the parts that it can compile, and PyTorch runs the remaining operators."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ._export import export
from ._model import compile

# Verdicts by operator target and argument kinds: None if byoc can compile the operator, otherwise the reason.
_verdicts: dict[Any, str | None] = {}
_lock = threading.Lock()

# Nodes that only forward values; a part that contains only such nodes is not profitable.
_PLUMBING = {operator.getitem, "size", "dim", "view", "reshape", "contiguous", "detach", "to"}


def partition(
    graph: fx.GraphModule, build: Callable[[fx.GraphModule, list[fx.Node]], Any], refuse: Callable[[str], None]
) -> fx.GraphModule | None:
    """Partitions a graph. Returns None if byoc cannot run any part of it.

    build: creates the callable of a part.
    refuse: called with the reason for each operator that stays with PyTorch.
    """
    import copy

    divided = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in divided.graph.nodes:
        if _changes_what_others_read(node):
            refuse(f"{_name(node)}: cannot partition the graph: the operator modifies a tensor that others may read")
            return None
    support = _Support(divided)
    proposed = CapabilityBasedPartitioner(divided, support, allows_single_node_partition=True)
    parts = [part for part in proposed.propose_partitions() if _is_worth(list(part.nodes))]
    for reason in dict.fromkeys(support.reasons):
        refuse(reason)
    if not parts:
        return None
    before = {node.name for node in divided.graph.nodes}
    fused = proposed.fuse_partitions(parts)
    for node in list(fused.graph.nodes):
        if node.op == "call_module" and node.name not in before and isinstance(node.target, str):
            part = getattr(fused, node.target)
            given = [argument for argument in node.args if isinstance(argument, fx.Node)]
            setattr(fused, node.target, _Part(build(part, given)))
    fused.recompile()
    return fused


class _Part(torch.nn.Module):
    """Part that byoc runs."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: Any) -> Any:
        return self.call(*inputs)


# Operators whose results are views of an argument.
_VIEWS = _PLUMBING | {
    "T", "chunk", "expand", "expand_as", "flatten", "movedim", "narrow", "permute", "select", "split", "squeeze",
    "swapaxes", "t", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view_as",
}  # fmt: skip

# Functions of the module `operator` that modify their first argument.
_IN_PLACE = {
    "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub", "itruediv",
    "ixor", "setitem",
}  # fmt: skip


def _changes_what_others_read(node: fx.Node) -> bool:
    """Returns True if an operator modifies in place a tensor that other operators may read. The results of a part are
    allocated separately, so that the modification would be lost."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    in_place = in_place or (name in _IN_PLACE and node.target is getattr(operator, name))
    in_place = in_place or bool(node.kwargs.get("inplace")) or node.kwargs.get("out") is not None
    schema = getattr(node.target, "_schema", None)
    if node.op not in ("call_function", "call_method") or not (in_place or getattr(schema, "is_mutable", False)):
        return False
    changed = node.args[0] if node.args else node.kwargs.get("out")
    if not isinstance(changed, fx.Node) or changed.op in ("placeholder", "get_attr") or len(changed.users) > 1:
        return True
    source = changed.target if isinstance(changed.target, str) else getattr(changed.target, "__name__", "")
    return changed.target in _VIEWS or source in _VIEWS


def _is_worth(nodes: Sequence[fx.Node]) -> bool:
    return any(node.target not in _PLUMBING for node in nodes)


def _value(node: fx.Node) -> Any:
    found = node.meta.get("example_value")
    return node.meta.get("val") if found is None else found


def _is_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(isinstance(one, torch.Tensor) for one in value)
    return isinstance(value, torch.Tensor)


class _Support(OperatorSupportBase):
    """Operator support, determined by exporting and compiling each node separately."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self.reasons: list[str] = []
        self._known: dict[fx.Node, bool] = {}

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        if node not in self._known:
            self._known[node] = self._decide(node)
        return self._known[node]

    def _decide(self, node: fx.Node) -> bool:
        if node.op not in ("call_function", "call_method", "call_module"):
            return False
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            source = node.args[0]
            if source.op == "placeholder" or not _is_tensors(_value(source)):
                return False
            if isinstance(_value(source), (tuple, list)):
                return self.is_node_supported(None, source)
        # Size computations stay with PyTorch, which passes the sizes to the parts.
        if not _is_tensors(_value(node)):
            return False
        reason = _verdict(self.graph, node)
        if reason is not None:
            self.reasons.append(f"{_name(node)}: {reason}")
        return reason is None


def _name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, str):
        return f"Tensor.{target}" if node.op == "call_method" else target
    if hasattr(target, "_schema"):
        return str(target)
    return f"{getattr(target, '__module__', None) or 'builtins'}.{getattr(target, '__name__', target)}"


def _verdict(graph: fx.GraphModule, node: fx.Node) -> str | None:
    """Returns None if the node can be exported and compiled, otherwise the reason."""
    kinds: list[Any] = []

    def kind(argument: fx.Node) -> Any:
        value = _value(argument)
        if isinstance(value, torch.Tensor):
            kinds.append((str(value.dtype), value.dim()))
        else:
            kinds.append(type(value).__name__)
        return argument.name if argument.op == "get_attr" else None

    shape = fx.node.map_arg((node.args, node.kwargs), kind)
    key = (node.op, str(node.target), repr(shape), tuple(kinds))
    with _lock:
        if key in _verdicts:
            return _verdicts[key]
    try:
        reason = _try(graph, node)
    except Exception as error:
        text = next((line.strip() for line in _causes(error) if line.strip()), "")
        reason = f"{type(error).__name__}: {text[:300]}"
    with _lock:
        _verdicts[key] = reason
    return reason


def _causes(error: BaseException) -> list[str]:
    """Returns the first line of an exception and of each of its causes, innermost cause first."""
    lines = []
    cause: BaseException | None = error
    while cause is not None:
        lines.insert(0, str(cause).split("\n", 1)[0])
        cause = cause.__cause__
    return lines


def _try(graph: fx.GraphModule, node: fx.Node) -> str | None:
    alone = fx.Graph()
    examples: list[torch.Tensor] = []
    places: dict[fx.Node, Any] = {}

    def place(argument: fx.Node) -> Any:
        if argument not in places:
            value = _value(argument)
            if isinstance(value, (tuple, list)) and _is_tensors(value):
                places[argument] = tuple(feed(one) for one in value)
            elif isinstance(value, torch.Tensor):
                places[argument] = feed(value)
            else:
                places[argument] = _hint(value)
        return places[argument]

    def feed(value: torch.Tensor) -> fx.Node:
        examples.append(torch.zeros([_hint(size) for size in value.shape], dtype=value.dtype))
        return alone.placeholder(f"x{len(examples)}")

    # The first traversal creates the placeholders, which must precede the node.
    fx.node.map_arg((node.args, node.kwargs), place)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), place)
    result: Any = alone.create_node(node.op, node.target, args, kwargs)
    if isinstance(_value(node), (tuple, list)):
        result = tuple(alone.call_function(operator.getitem, (result, index)) for index in range(len(_value(node))))
    alone.output(result)
    if not examples:
        return "the operator has no tensor argument"
    compile(export(fx.GraphModule(graph, alone), examples), progress=False)
    return None


def _hint(size: Any) -> Any:
    """Returns the value of a symbolic size in the example."""
    hint = getattr(getattr(size, "node", None), "hint", None)
    return size if hint is None else hint
