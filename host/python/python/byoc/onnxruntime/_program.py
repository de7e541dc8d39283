"""Models with operators that the engine lacks: on maps, and on sequences and optional values in forms that it does not
support. They run in Python, and the parts of the graph between them are compiled, each once its inputs are known."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _byoc, _errors
from . import _exceptions, _maps, _vectors  # noqa: F401  (they add their operators to the table)
from ._engine import Engine, read
from ._operators import OPERATORS, Call, Invalid, Kind, Node, kind_of
from ._types import number_of

# Maximum number of cached compilations of a part for different values of its small inputs.
_MAX_VALUES = 32
# Maximum number of elements of an integer input that is compiled as a constant of a part.
_MAX_FROZEN = 64


class Program:
    """Model whose graph is executed in parts."""

    #: None, because no single model represents the entire graph.
    model = None

    def __init__(self, source: str | bytes, metadata: Mapping[str, Any], session: Any, *, backend: str | None,
                 dims: dict[str, int], folder: str | None) -> None:  # fmt: skip
        if folder is None and isinstance(source, str):
            folder = os.path.dirname(os.path.abspath(source))
        self._arguments = (session, backend, dims, folder)
        self._source, self._metadata = source, metadata
        self._by_override: dict[tuple[str, ...], Program] = {}
        self._lock = threading.Lock()
        self._graph = Stages(_byoc.Graph(read(source)), self)

    @property
    def is_needed(self) -> bool:
        """True if an operator runs in Python."""
        return any(isinstance(stage, Node) for stage in self._graph.stages)

    def engine(self, part: bytes) -> Engine:
        """Compiles a part of the graph."""
        session, backend, dims, folder = self._arguments
        return Engine(part, _byoc.onnx_metadata(part), session, backend=backend, dims=dims, folder=folder)

    @property
    def folder(self) -> str | None:
        """Directory of the model's external data."""
        return self._arguments[3]

    def overriding(self, names: tuple[str, ...]) -> Program:
        """Returns the program for a variant of the model with the named initializers as inputs."""
        with self._lock:
            if names not in self._by_override:
                data = _byoc.onnx_edited(read(self._source), [], list(names))
                session, backend, dims, folder = self._arguments
                metadata = _byoc.onnx_metadata(data)
                self._by_override[names] = Program(data, metadata, session, backend=backend, dims=dims, folder=folder)
            return self._by_override[names]

    def run(self, feeds: Mapping[str, Any], cancel: Any, events: list[Any] | None = None) -> list[Any]:
        """Runs the model, and returns all outputs."""
        results = self._graph.run(feeds, {}, cancel, events)
        # Results must not share memory with inputs or constants, even if no operator computes them.
        given = {id(value) for value in feeds.values()}
        return [_copied(value) if id(value) in given or not _is_fresh(value) else value for value in results]


def _is_fresh(value: Any) -> bool:
    return getattr(value, "base", None) is None or not hasattr(value, "dtype") or value.dtype.kind != "O"


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value.copy() if hasattr(value, "copy") else value


class Stages:
    """Graph as a sequence of stages: operators that run in Python, and compiled parts."""

    def __init__(self, graph: Any, program: Program, outer: Mapping[str, Kind] | None = None) -> None:
        """outer: kinds of the values in the enclosing graph; None for numeric tensors."""
        self.graph, self.program = graph, program
        self.inputs = [name for name, _, _ in graph.inputs]
        self.outputs = [name for name, _, _ in graph.outputs]
        self.dims = {name: dims for name, _, dims in graph.inputs}
        self._initializers = dict(graph.initializers)
        self._constants: dict[str, Any] = {}
        self.kinds: dict[str, Kind] = dict(outer or {})
        self.kinds.update((name, "text" if is_text else None) for name, is_text in graph.initializers)
        for name, declared, _ in (*graph.inputs, *graph.values, *graph.outputs):
            if declared != ("tensor", 0) or name not in self.kinds:
                self.kinds[name] = kind_of(declared)
        self._nodes = [Node(*fields) for fields in graph.nodes()]
        self._here = [self._runs_here(node) for node in self._nodes]
        self._check_operators()
        self.stages = self._arrange()

    def _runs_here(self, node: Node) -> bool:
        """Returns True if a node runs in Python, and records the kinds of its results."""
        for name, value in node.attributes.items():
            if isinstance(value, _byoc.Graph):
                node.bodies[name] = Stages(value, self.program, {**self.kinds, **self._states(node, value)})
        operator = OPERATORS.get((node.domain, node.op))
        makes = operator.makes(node, self.kinds) if operator else []
        touched = [self.kinds.get(name) for name in (*node.inputs, *node.captured, *node.outputs)]
        here = any(kind not in (None, "text") for kind in (*touched, *makes)) or _has_probabilities(node)
        here = here or any(isinstance(stage, Node) for body in node.bodies.values() for stage in body.stages)
        if here and operator is None:
            raise _exceptions.unsupported(f"the operator {node.op} on sequences, maps or optional values")
        for name, kind in zip(node.outputs, [*makes, *[None] * len(node.outputs)]):
            if name not in self.kinds:
                self.kinds[name] = kind
        return here

    def _check_operators(self) -> None:
        """Raises for operators that the engine does not support, which would otherwise fail in the first run."""
        compiled = [index for index, here in enumerate(self._here) if not here]
        result = next((name for index in compiled for name in self._nodes[index].outputs if name), None)
        if result is None:
            return
        try:
            self.program.engine(self.graph.part(compiled, [], [result]))
        except _errors.ModelError as error:
            # Other errors are expected, because the part lacks inputs; operator names are checked first.
            if error.code in ("E0503", "E0508"):
                raise

    def _states(self, node: Node, body: Any) -> dict[str, Kind]:
        """Returns the kinds of a loop body's inputs."""
        if node.op != "Loop":
            return {}
        return {name: self.kinds.get(given) for (name, _, _), given in zip(body.inputs, node.inputs)}

    def _arrange(self) -> list[Node | Part]:
        """Arranges the nodes in stages; compiled nodes of the same level form a part."""
        level_of: dict[str, tuple[int, bool]] = {}
        levels: dict[int, tuple[list[int], list[int]]] = {}
        for index, (node, here) in enumerate(zip(self._nodes, self._here)):
            level = 0
            for name in (*node.inputs, *node.captured):
                if name in level_of:
                    at, kind = level_of[name]
                    level = max(level, at if kind == here else at + 1)
            levels.setdefault(level, ([], []))[here].append(index)
            level_of.update((name, (level, here)) for name in node.outputs)
        stages: list[Node | Part] = []
        for _, (compiled, here) in sorted(levels.items()):
            if compiled:
                stages.append(self._part(compiled))
            stages.extend(self._nodes[index] for index in here)
        return stages

    def _part(self, indices: list[int]) -> Part:
        inside = set(indices)
        nodes = [self._nodes[index] for index in indices]
        made = {name for node in nodes for name in node.outputs if name}
        needed = {name for node in nodes for name in (*node.inputs, *node.captured)}
        outside = set(self.outputs)
        for index, node in enumerate(self._nodes):
            if index not in inside:
                outside.update(node.inputs, node.captured)
        reads = sorted(
            name for name in needed & self.kinds.keys() if name and name not in made | set(self._initializers)
        )
        return Part(self, indices, reads, sorted(made & outside))

    def constant(self, name: str) -> Any:
        """Returns the value of an initializer."""
        if name not in self._constants:
            self._constants[name] = as_value(self.graph.constant(name, self.program.folder))
        return self._constants[name]

    def run(self, feeds: Mapping[str, Any], outer: Mapping[str, Any], cancel: Any, events: Any = None) -> list[Any]:
        """Runs the graph. `outer` contains the values of the enclosing graph."""
        values = {**outer, **feeds}

        def value(name: str) -> Any:
            return self.constant(name) if name in self._initializers else values.get(name)

        for stage in self.stages:
            if cancel is not None and cancel.is_set():
                raise _errors.Cancelled("the run was cancelled")
            start = time.perf_counter()
            if isinstance(stage, Part):
                stage.run(values, cancel)
                continue
            read = [value(name) if name else None for name in stage.inputs]

            def nested(body: Stages, given: Sequence[Any], node: Node = stage) -> list[Any]:
                captured = {name: self.constant(name) for name in node.captured if name in self._initializers}
                return body.run(dict(zip(body.inputs, given)), {**values, **captured}, cancel)

            try:
                results = OPERATORS[stage.domain, stage.op].run(Call(stage, nested), *read)
            except _STATUS as error:
                raise error
            except Exception as error:
                detail = f"Name:'{stage.name}' Status Message: {error}"
                text = f"Non-zero status code returned while running {stage.op} node. {detail}"
                kind = _exceptions.InvalidArgument if isinstance(error, Invalid) else _exceptions.RuntimeException
                raise kind.of(text) from error
            results = results if isinstance(results, tuple) else (results,)
            values.update(zip(stage.outputs, results))
            if events is not None:
                events.append([stage.op, None, [(stage.name, stage.op)], start, time.perf_counter() - start])
        return [value(name) for name in self.outputs]


_STATUS = (*_exceptions.ALL, _errors.Error)


def as_value(constant: Any) -> Any:
    """Converts a constant; a string tensor is passed as its dimensions and elements."""
    import numpy as np

    if isinstance(constant, tuple):
        dims, elements = constant
        array = np.empty(len(elements), object)
        array[:] = elements
        return array.reshape(dims)
    return constant


def _has_probabilities(node: Node) -> bool:
    """Returns True for a support vector machine with probabilities, which the engine does not support."""
    return node.op == "SVMClassifier" and bool(node.attributes.get("prob_a"))


class Part:
    """Nodes that are compiled together."""

    def __init__(self, stages: Stages, nodes: list[int], reads: list[str], writes: list[str]) -> None:
        self.stages, self.nodes, self.reads, self.writes = stages, nodes, reads, writes
        self._engines: dict[Any, Engine] = {}
        self._lock = threading.Lock()

    def run(self, values: dict[str, Any], cancel: Any) -> None:
        """Runs the part on `values`, and adds its results to `values`."""
        if not self.writes:
            return
        feeds = {name: values[name] for name in self.reads}
        engine, frozen = self._engine(feeds)
        feeds = {name: value for name, value in feeds.items() if name not in frozen}
        values.update(zip(self.writes, engine.model_for(feeds).run_list(feeds, None, cancel)))

    def _engine(self, feeds: Mapping[str, Any]) -> tuple[Engine, Sequence[str]]:
        """Returns the engine for the inputs, and the names of the inputs that are compiled as constants."""
        kinds = tuple((number_of(value.dtype), value.ndim) for value in feeds.values())
        with self._lock:
            found = self._engines.get(kinds)
            if isinstance(found, Engine):
                return found, ()
            if found is None:
                inputs = [(name, number, self._dims(name, rank)) for name, (number, rank) in zip(feeds, kinds)]
                part = self.stages.graph.part(self.nodes, inputs, self.writes)
                try:
                    made = self.stages.program.engine(part)
                    made.model_for(dict(feeds))
                    self._engines[kinds] = made
                    return made, ()
                except _errors.ModelError:
                    # The compilation may require the values of shapes and indices computed in Python.
                    if not self._small(feeds):
                        raise
                self._engines[kinds] = part
                found = part
            small = self._small(feeds)
            key = (kinds, *(feeds[name].tobytes() for name in small), *(feeds[name].shape for name in small))
            engine = self._engines.get(key)
            if engine is None:
                tensors = [(name, number_of(value.dtype), list(value.shape), value.tobytes())
                           for name, value in feeds.items() if name in small]  # fmt: skip
                engine = self.stages.program.engine(_byoc.onnx_edited(found, tensors, []))
                while len(self._engines) >= _MAX_VALUES:
                    self._engines.pop(next(iter(self._engines)))
                self._engines[kinds], self._engines[key] = found, engine
            return engine, small

    def _dims(self, name: str, rank: int) -> list[Any]:
        dims = self.stages.dims.get(name)
        return dims if dims is not None and len(dims) == rank else [None] * rank

    @staticmethod
    def _small(feeds: Mapping[str, Any]) -> list[str]:
        return [name for name, value in feeds.items() if value.dtype.kind in "ib" and value.size <= _MAX_FROZEN]
