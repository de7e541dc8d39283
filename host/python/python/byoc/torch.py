"""Backend for `torch.compile`.

    model = torch.compile(model, backend="byoc", options={"backend": "dnnl"})

The backend compiles inference graphs, under `torch.no_grad()` or `torch.inference_mode()`. Graphs that require
gradients stay with PyTorch. If an operator cannot be exported or imported, byoc compiles the other parts of the graph;
`reasons()` returns why graphs and operators stayed with PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ._export import export
from ._model import Model, compile
from ._partition import partition

_reasons: list[str] = []
_taken: list[dict[str, Any]] = []
_lock = threading.Lock()


def reasons() -> list[str]:
    """Returns the reasons why graphs and operators stayed with PyTorch since the last `reset`."""
    with _lock:
        return list(_reasons)


def taken() -> list[dict[str, Any]]:
    """Returns the graphs that byoc compiled since the last `reset`: number of operators, and model."""
    with _lock:
        return list(_taken)


def reset() -> None:
    """Clears the results of `reasons` and `taken`."""
    with _lock:
        _reasons.clear()
        _taken.clear()


def _refuse(reason: str) -> None:
    with _lock:
        _reasons.append(reason)


def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a TorchDynamo graph. `options` are options of `byoc.compile`: backend, options, session."""
    choices = dict(options or {})
    # Inputs that require gradients are differentiated unless gradients are disabled at compilation.
    if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in example_inputs):
        _refuse("gradients are enabled: call the model under torch.no_grad() or torch.inference_mode()")
        return graph.forward
    other = [value.device for value in example_inputs if isinstance(value, torch.Tensor) and value.device.type != "cpu"]
    if other:
        _refuse(f"expected CPU tensors, found one on {other[0]}")
        return graph.forward
    return _Compiled(graph, example_inputs, choices)


# Number of different values after which a tensor counts as an input: a graph is exported again for one change of a
# weight, such as loaded parameters, and not for a tensor that the program makes anew for each call.
_MAX_CHANGES = 2


class _Weight:
    """Parameter or buffer that a compiled graph contains as a constant."""

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None
        self.version = 0
        self.changes = 0

    def hold(self, value: torch.Tensor) -> None:
        """Sets the value that the graph contains."""
        self.value, self.version = value, value._version

    def is_held(self, value: Any) -> bool:
        """Returns True if the graph contains a value: the same tensor unchanged, or another one with equal elements."""
        if value is self.value:
            return value._version == self.version
        is_known = self.value is not None and not value.is_inference() and self.value._version == self.version
        if not is_known or not _are_equal(self.value, value):
            return False
        self.hold(value)
        return True


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


class _Compiled:
    """Graph run by byoc. It is exported on the first call, because the exporter cannot run while TorchDynamo traces."""

    def __init__(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], choices: dict[str, Any], *, is_part: bool = False
    ) -> None:
        self.graph, self.choices, self.is_part = graph, choices, is_part
        places = [node for node in graph.graph.nodes if node.op == "placeholder"]
        # Traced values of the inputs, in which dynamic sizes are symbols; in the examples, the sizes are integers.
        self.known = [node.meta.get("example_value", value) for node, value in zip(places, example_inputs)]
        self.weights = {index: _Weight() for index, value in enumerate(example_inputs) if _is_weight(value)}
        self.model: Model | None = None
        # Replacement that runs if byoc cannot compile the entire graph.
        self.instead: Callable[..., Any] | None = None
        self.lock = threading.Lock()

    def prepare(self, inputs: Sequence[Any]) -> bool:
        """Compiles the graph for the weights in `inputs` if necessary. Returns True if byoc runs the graph."""
        with self.lock:
            if self.instead is not None:
                return False
            if self.model is None or not self.has_weights(inputs):
                try:
                    self.build(inputs)
                except Exception as error:
                    self.instead = self.divide(inputs, error)
                    return False
            return True

    def has_weights(self, inputs: Sequence[Any]) -> bool:
        """Returns True if the weights in `inputs` are those of the compiled model."""
        return all(weight.is_held(inputs[index]) for index, weight in self.weights.items())

    def build(self, inputs: Sequence[Any]) -> None:
        """Exports and compiles the graph with the weights in `inputs`. Weights that changed before become inputs."""
        kept = {}
        for index, weight in self.weights.items():
            if self.model is not None:
                weight.changes += not weight.is_held(inputs[index])
            # Changes of an inference tensor cannot be noticed.
            if weight.changes < _MAX_CHANGES and not inputs[index].is_inference():
                weight.hold(inputs[index])
                kept[index] = weight
        self.weights = kept
        held = {index: inputs[index] for index in kept}
        if not any(isinstance(value, torch.Tensor) for index, value in enumerate(self.known) if index not in held):
            raise RuntimeError("expected a graph with tensor inputs, found none")
        bound, shapes, fed = _bind(self.graph, self.known, held)
        examples = [inputs[index].detach() for index in fed]
        output = next(node for node in self.graph.graph.nodes if node.op == "output").args[0]
        self.tuple = isinstance(output, (tuple, list))
        names = [f"input_{place}" for place in range(len(examples))]
        self.model: Model = compile(export(bound, examples, shapes, names), progress=False, **self.choices)
        # The exporter omits unused inputs.
        known = {port.name for port in self.model.inputs}
        self.feeds = [(name, index) for name, index in zip(names, fed) if name in known]
        with _lock:
            _taken.append({"operators": len(self.model.explain().nodes), "model": self.model})

    def divide(self, inputs: Sequence[Any], error: Exception) -> Callable[..., Any]:
        """Partitions the graph after its compilation failed with `error`."""
        if self.is_part:
            _refuse(f"{type(error).__name__}: {str(error)[:2000]}")
            return self.graph
        places = [node for node in self.graph.graph.nodes if node.op == "placeholder"]
        given = {node.name: value for node, value in zip(places, inputs)}

        def build(part: fx.GraphModule, arguments: list[fx.Node]) -> _Compiled:
            # Weights are passed by value, other arguments as the values recorded by the tracer.
            known = [given.get(node.name, node.meta.get("example_value")) for node in arguments]
            return _Compiled(part, known, self.choices, is_part=True)

        reasons: list[str] = []
        try:
            divided = partition(self.graph, build, reasons.append)
        except Exception as problem:
            reasons.append(f"cannot partition the graph: {type(problem).__name__}: {str(problem)[:500]}")
            divided = None
        # If no operator is the cause, the error of the entire graph is the reason.
        for reason in reasons or [f"{type(error).__name__}: {str(error)[:2000]}"]:
            _refuse(reason)
        return divided or self.graph

    def __call__(self, *inputs: Any) -> Any:
        if self.instead is not None:
            return self.instead(*inputs)
        if (self.model is None or not self.has_weights(inputs)) and not self.prepare(inputs):
            return (self.instead or self.graph)(*inputs)
        feeds = {name: inputs[index].detach() for name, index in self.feeds}
        results = [torch.from_numpy(array) for array in self.model.run_list(feeds)]
        return tuple(results) if self.tuple else results[0]


def _is_weight(value: Any) -> bool:
    """Returns True if an input is a parameter or buffer of the module, which calls do not modify."""
    if not isinstance(value, torch.Tensor):
        return False
    return isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None


def _bind(
    graph: fx.GraphModule, known: Sequence[Any], held: dict[int, torch.Tensor]
) -> tuple[fx.GraphModule, Any, list[int]]:
    """Returns a copy of a graph whose weights are attributes and whose size inputs are replaced by tensor dimensions,
    together with the dynamic dimensions and the positions of the remaining inputs."""
    import copy

    module = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    fed: list[int] = []
    shapes: list[Any] = []
    sizes: dict[str, tuple[fx.Node, int]] = {}
    named: dict[str, Any] = {}
    tensors: list[fx.Node] = []
    for index, (node, value) in enumerate(zip(places, known)):
        if index in held:
            name = f"weight_{index}"
            module.register_buffer(name, held[index].detach())
            with module.graph.inserting_after(places[-1]):
                node.replace_all_uses_with(module.graph.get_attr(name))
            module.graph.erase_node(node)
        elif isinstance(value, torch.Tensor):
            dims: dict[int, Any] = {}
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    symbol = str(size)
                    sizes.setdefault(symbol, (node, axis))
                    if symbol.isidentifier():
                        dims[axis] = named.setdefault(symbol, torch.export.Dim.AUTO)
                    else:
                        dims[axis] = torch.export.Dim.AUTO
            shapes.append(dims or None)
            fed.append(index)
            tensors.append(node)
    last = tensors[-1]
    for index, (node, value) in enumerate(zip(places, known)):
        if index in held or isinstance(value, torch.Tensor):
            continue
        found = sizes.get(str(value))
        if found is None:
            raise RuntimeError(f"expected the size {value} as a dimension of an input, found none")
        source, axis = found
        with module.graph.inserting_after(last):
            size = module.graph.call_method("size", (source, axis))
        node.replace_all_uses_with(size)
        module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return module, tuple(shapes) if any(shapes) else None, fed
