"""Minimization of a case: removes nodes, outputs, attributes, inputs and dimensions as long as the fault persists."""

import dataclasses

import numpy as np

from fuzz_graph import FLOATS, Refused, Value, evaluate

MAX_ROUNDS = 60


def alone(graph, node):
    """Returns a graph of one node, whose inputs are the values that the reference computed."""
    return cut(graph, [node], [o for o in node.outputs if o])


def cut(graph, nodes, outputs):
    """Returns a graph of the given nodes; results of other nodes become inputs."""
    made = {o for node in nodes for o in node.outputs}
    values = {}
    for name in dict.fromkeys(n for node in nodes for n in node.uses() + [o for o in node.outputs if o]):
        value = graph.values[name]
        fixed = value.source != "computed" or name in made
        values[name] = value if fixed else dataclasses.replace(value, source="input")
    return dataclasses.replace(graph, values=values, nodes=nodes, outputs=outputs)


def leaves(nodes):
    used = {name for node in nodes for name in node.uses()}
    return [o for node in nodes for o in node.outputs if o and o not in used]


def fewer_nodes(graph):
    """Generates graphs with one node or one output removed."""
    for i in range(len(graph.nodes)):
        nodes = graph.nodes[:i] + graph.nodes[i + 1 :]
        if nodes:
            made = {o for node in nodes for o in node.outputs}
            yield cut(graph, nodes, [o for o in graph.outputs if o in made] or leaves(nodes))
    for i in range(len(graph.outputs)):
        if len(graph.outputs) > 1:
            yield dataclasses.replace(graph, outputs=graph.outputs[:i] + graph.outputs[i + 1 :])


def simpler_nodes(graph):
    """Generates one-node graphs with fewer attributes or inputs, smaller dimensions, or simpler elements."""
    node = graph.nodes[0]
    for key in node.attrs:
        yield with_node(graph, attrs={k: v for k, v in node.attrs.items() if k != key})
    given = [i for i, name in enumerate(node.inputs) if name]
    if len(given) > 1:
        inputs = list(node.inputs)
        inputs[given[-1]] = ""
        while inputs and not inputs[-1]:
            inputs.pop()
        yield with_node(graph, inputs=inputs)
    arrays = {name: graph.values[name].array for name in node.uses()}
    for size in sorted({d for a in arrays.values() for d in a.shape if d > 1}, reverse=True):
        for new in dict.fromkeys([1, 2, size - 1]):
            if new < size:
                yield with_arrays(graph, {n: sliced(a, lambda d: new if d == size else d) for n, a in arrays.items()})
    for name, array in arrays.items():
        for axis, size in enumerate(array.shape):
            if size > 1:
                yield with_arrays(graph, {name: np.take(array, range(size - 1), axis)})
    for name, array in arrays.items():
        if array.dtype in FLOATS and array.size:
            with np.errstate(all="ignore"):
                yield with_arrays(graph, {name: np.round(array.astype(np.float64)).astype(array.dtype)})


def sliced(array, size):
    return array[tuple(slice(0, size(d)) for d in array.shape)]


def with_node(graph, **changes):
    node = dataclasses.replace(graph.nodes[0], **changes)
    return evaluated(graph, node, graph.values)


def with_arrays(graph, arrays):
    if all(
        np.array_equal(a, graph.values[n].array, equal_nan=a.dtype in FLOATS) and a.shape == graph.values[n].array.shape
        for n, a in arrays.items()
    ):
        return None
    values = dict(graph.values)
    for name, array in arrays.items():
        values[name] = dataclasses.replace(values[name], array=np.array(array), shadow=np.array(array))
    return evaluated(graph, graph.nodes[0], values)


def evaluated(graph, node, values):
    """Returns the graph of a node with recomputed outputs, or None if the reference refuses the node."""
    try:
        arrays, _ = evaluate(node, graph.opset, values)
    except Refused:
        return None
    names = [o for o in node.outputs if o]
    if graph.finite and not all(np.isfinite(a.astype(np.float64)).all() for a in arrays if a.dtype in FLOATS):
        return None
    kept = {name: values[name] for name in node.uses()}
    kept |= {name: Value(name, a, a) for name, a in zip(names, arrays)}
    return dataclasses.replace(graph, values=kept, nodes=[node], outputs=names)


def minimize(graph, outcome, byoc):
    """Returns the smallest graph found with the same fault, and its outcome."""
    for _ in range(MAX_ROUNDS):
        candidates = list(fewer_nodes(graph))
        if len(graph.nodes) == 1:
            candidates += [c for c in simpler_nodes(graph) if c is not None]
        found = first_of_same_fault(candidates, outcome, byoc)
        if found is None:
            break
        graph, outcome = found
    return graph, outcome


def first_of_same_fault(candidates, outcome, byoc):
    for start in range(0, len(candidates), 8):
        group = candidates[start : start + 8]
        for candidate, got in zip(group, byoc.verify(group)):
            if (got.kind, got.code, got.pattern()) == (outcome.kind, outcome.code, outcome.pattern()):
                return candidate, got
    return None


def arbitrate(graph, byoc):
    """Describes which implementations agree on the result of a single node."""
    if len(graph.nodes) > 1:
        return "several nodes"
    node = graph.nodes[0]
    try:
        _, who = evaluate(node, graph.opset, graph.values)
        if who == "onnx":
            return "ONNX Runtime has no kernel; the reference evaluator differs from byoc"
        arrays, _ = evaluate(node, graph.opset, graph.values, arbiter=True)
    except Refused as refusal:
        return f"{who}; the reference evaluator refuses: {str(refusal)[:100]}"
    names = [o for o in node.outputs if o]
    other = {name: Value(name, a, a) for name, a in zip(names, arrays)}
    verdict = byoc.verify([dataclasses.replace(graph, values=graph.values | other)])[0].kind
    if verdict == "pass":
        return f"the reference evaluator agrees with byoc, not with {who}"
    same = all(
        a.shape == (b := graph.values[n].array).shape
        and np.allclose(a.astype(np.float64), b.astype(np.float64), 1e-2, 1e-2, True)
        for n, a in zip(names, arrays)
    )
    return (
        f"the reference evaluator agrees with {who}" if same else f"byoc, {who} and the reference evaluator all differ"
    )
