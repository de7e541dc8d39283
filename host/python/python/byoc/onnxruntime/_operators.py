"""Operators on sequences, maps and optional values, with the results of ONNX Runtime's CPU provider. String tensors are
object arrays, sequences are lists, maps are dictionaries, and an absent optional value is None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Kind of a value: None for a numeric tensor, "text", ("seq", kind), ("optional", kind), ("map", None).
Kind = str | tuple[str, Any] | None


def kind_of(declared: tuple[Any, ...]) -> Kind:
    """Returns the kind of a declared type."""
    wrappers = []
    while declared[0] in ("seq", "optional"):
        wrappers.append(declared[0])
        declared = declared[1]
    kind: Kind = ("map", None) if declared[0] == "map" else "text" if declared[1] == 8 else None
    for wrapper in reversed(wrappers):
        kind = (wrapper, kind)
    return kind


class Invalid(ValueError):
    """Error for an argument that ONNX Runtime rejects as invalid."""


class Node:
    """Graph node, with its attributes and subgraphs."""

    def __init__(
        self,
        op: str,
        domain: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
        captured: Sequence[str],
    ) -> None:
        self.op, self.domain, self.name = op, domain, name
        self.inputs, self.outputs, self.captured = list(inputs), list(outputs), list(captured)
        self.attributes = dict(attributes)
        self.bodies: dict[str, Any] = {}
        self._made: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, cached under `name`."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


class Call:
    """Execution of a node."""

    def __init__(self, node: Node, nested: Callable[[Any, Sequence[Any]], list[Any]]) -> None:
        self.node, self._nested = node, nested

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute."""
        return self.node.attributes.get(name, default)

    def body(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Runs a subgraph."""
        return self._nested(self.node.bodies[name], values)


@dataclass
class Operator:
    """Operator: its computation, and a function from input kinds to result kinds."""

    run: Callable[..., Any]
    makes: Callable[[Node, Mapping[str, Kind]], Sequence[Kind]]


OPERATORS: dict[tuple[str, str], Operator] = {}


def numbers(node: Node, kinds: Mapping[str, Kind]) -> Sequence[Kind]:
    """Returns the kinds for numeric results."""
    return [None] * len(node.outputs)


def same(node: Node, kinds: Mapping[str, Kind]) -> Sequence[Kind]:
    """Returns the kind of the first input for each result."""
    return [kinds.get(node.inputs[0])] * len(node.outputs)


def operator(name: str, makes: Callable[[Node, Mapping[str, Kind]], Sequence[Kind]], domain: str = "") -> Any:
    """Returns a decorator that adds an operator to the table."""

    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[domain, name] = Operator(run, makes)
        return run

    return add


def _inner(node: Node, kinds: Mapping[str, Kind]) -> Sequence[Kind]:
    """Returns the kind of a sequence element or of an optional value."""
    kind = kinds.get(node.inputs[0])
    return [kind[1] if isinstance(kind, tuple) and kind[0] != "map" else kind]


def _sequence_of(place: int) -> Callable[[Node, Mapping[str, Kind]], Sequence[Kind]]:
    return lambda node, kinds: [("seq", kinds.get(node.inputs[place]) if len(node.inputs) > place else None)]


# Sequences


@operator("SequenceEmpty", lambda node, kinds: [("seq", "text" if node.attributes.get("dtype") == 8 else None)])
def _sequence_empty(call: Call) -> Any:
    return []


@operator("SequenceConstruct", _sequence_of(0))
def _sequence_construct(call: Call, *elements: Any) -> Any:
    return list(elements)


def _position(given: Any, count: int, bound: int) -> int:
    position = int(given)
    resolved = position + count if position < 0 else position
    if not 0 <= resolved < bound:
        raise Invalid(f"Invalid sequence index ({position}) specified for sequence of size ({count})")
    return resolved


@operator("SequenceInsert", _sequence_of(1))
def _sequence_insert(call: Call, sequence: list[Any], element: Any, position: Any = None) -> Any:
    if sequence and sequence[0].dtype != element.dtype:
        raise ValueError("Data type of the input tensor MUST be same as that of the input sequence")
    at = len(sequence) if position is None else _position(position, len(sequence), len(sequence) + 1)
    return [*sequence[:at], element, *sequence[at:]]


@operator("SequenceErase", same)
def _sequence_erase(call: Call, sequence: list[Any], position: Any = None) -> Any:
    at = _position(-1 if position is None else position, len(sequence), len(sequence))
    return sequence[:at] + sequence[at + 1 :]


@operator("SequenceAt", _inner)
def _sequence_at(call: Call, sequence: list[Any], position: Any) -> Any:
    return sequence[_position(position, len(sequence), len(sequence))]


@operator("SequenceLength", numbers)
def _sequence_length(call: Call, sequence: list[Any]) -> Any:
    import numpy as np

    return np.array(len(sequence), np.int64)


@operator("ConcatFromSequence", _inner)
def _concat_from_sequence(call: Call, sequence: list[Any]) -> Any:
    import numpy as np

    join = np.stack if call.get("new_axis", 0) else np.concatenate
    return join(sequence, axis=call.get("axis", 0))


@operator("SplitToSequence", _sequence_of(0))
def _split_to_sequence(call: Call, data: Any, sizes: Any = None) -> Any:
    import numpy as np

    axis, keep = call.get("axis", 0), call.get("keepdims", 1)
    length = data.shape[axis]
    if sizes is None:
        parts = [np.take(data, [at], axis) for at in range(length)]
        return parts if keep else [part.squeeze(axis) for part in parts]
    if sizes.ndim == 0:
        if int(sizes) <= 0:
            raise ValueError(f"Split size {int(sizes)} must be positive")
        ends = [*range(int(sizes), length, int(sizes)), length]
    else:
        ends = np.cumsum(sizes).tolist()
        if (sizes < 0).any() or not ends or ends[-1] != length:
            raise ValueError(f"split_size_sum ({int(sizes.sum())}) != split_dim_size ({length})")
    starts = [0, *ends[:-1]]
    return [np.take(data, range(start, end), axis) for start, end in zip(starts, ends)]


@operator("SequenceMap", lambda node, kinds: [
    ("seq", node.bodies["body"].kinds.get(name)) for name in node.bodies["body"].outputs
])  # fmt: skip
def _sequence_map(call: Call, sequence: list[Any], *others: Any) -> Any:
    rounds = [
        call.body("body", [element, *(other[at] if isinstance(other, list) else other for other in others)])
        for at, element in enumerate(sequence)
    ]
    return tuple(list(results) for results in zip(*rounds)) if rounds else tuple([] for _ in call.node.outputs)


# Optional values


@operator("Optional", lambda node, kinds: [("optional", kinds.get(node.inputs[0]) if node.inputs else None)])
def _optional(call: Call, value: Any = None) -> Any:
    return value


@operator("OptionalHasElement", numbers)
def _optional_has_element(call: Call, value: Any = None) -> Any:
    import numpy as np

    return np.array(value is not None)


@operator("OptionalGetElement", lambda node, kinds: _element_of_optional(kinds.get(node.inputs[0])))
def _optional_get_element(call: Call, value: Any) -> Any:
    if value is None:
        raise ValueError("Trying to use OptionalGetElement on an optional type OrtValue which contains no data")
    return value


def _element_of_optional(kind: Kind) -> Sequence[Kind]:
    return [kind[1] if isinstance(kind, tuple) and kind[0] == "optional" else kind]


# Control flow


@operator("If", lambda node, kinds: [
    node.bodies["then_branch"].kinds.get(name) for name in node.bodies["then_branch"].outputs
])  # fmt: skip
def _if(call: Call, condition: Any) -> Any:
    return tuple(call.body("then_branch" if bool(condition.reshape(-1)[0]) else "else_branch", ()))


@operator("Loop", lambda node, kinds: [
    node.bodies["body"].kinds.get(name) for name in node.bodies["body"].outputs[1:]
])  # fmt: skip
def _loop(call: Call, limit: Any, condition: Any, *states: Any) -> Any:
    import numpy as np

    rounds = None if limit is None else int(limit.reshape(-1)[0])
    going, step = condition is None or bool(condition.reshape(-1)[0]), 0
    kept: list[Any] = list(states)
    scanned: list[list[Any]] = [[] for _ in call.node.outputs[len(states) :]]
    while going and (rounds is None or step < rounds):
        given = [np.array(step, np.int64), np.array(going), *kept]
        next_condition, *results = call.body("body", given)
        kept = results[: len(states)]
        for column, result in zip(scanned, results[len(states) :]):
            column.append(result)
        going, step = bool(next_condition.reshape(-1)[0]), step + 1
    return (*kept, *(np.stack(column) if column else np.zeros(0, np.float32) for column in scanned))


@operator("Identity", same)
def _identity(call: Call, value: Any) -> Any:
    return list(value) if isinstance(value, list) else value.copy() if hasattr(value, "copy") else value
