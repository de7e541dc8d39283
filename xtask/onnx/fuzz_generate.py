"""Generation of graphs. Each graph depends only on a seed and an index."""

import dataclasses
import re

import numpy as np
import onnx

from fuzz_build import Builder
from fuzz_graph import BF16, F16, F32, F64, Graph, Refused, compute
from fuzz_ops import MAKERS

# Opsets 9 to 23 have equal probability; newer opsets, included for their new operators, have half of it.
OPSETS = [o for o in range(9, 24) for _ in range(2)] + [24, 25, 26]

# Number of attempts to generate a node of one operator before another operator is chosen. Retries keep the operator
# frequencies approximately equal.
ATTEMPTS = 8


@dataclasses.dataclass
class Style:
    main: np.dtype
    zeros: bool
    large: bool


def available(opset):
    """Returns the operators that have a node generator and a non-deprecated schema."""
    found = []
    for op in MAKERS:
        try:
            schema = onnx.defs.get_schema(op, opset, "")
        except onnx.defs.SchemaError:
            continue
        if not schema.deprecated:
            found.append(op)
    return found


AVAILABLE = {opset: available(opset) for opset in set(OPSETS)}
SHARE = {op: sum(op in AVAILABLE[o] for o in OPSETS) / len(OPSETS) for op in MAKERS}


def generate(seed, index, only=None, large=False):
    """Returns the graph for a seed and an index, or None if no node could be generated. Most nodes have an operator of
    the list `only`, if it is given.
    """
    rng = np.random.default_rng([seed, index])
    opsets = [o for o in OPSETS if only is None or all(op in AVAILABLE[o] for op in only)]
    opset = int(opsets[rng.integers(len(opsets))])
    main = [F32, F16, F64, BF16][rng.choice(4, p=[0.7, 0.12, 0.1, 0.08])]
    if main == BF16 and opset < 13:
        main = F32
    style = Style(main, bool(rng.random() < 0.12), large)
    finite = bool(rng.random() < 0.85)
    name = f"s{seed}_{index}" + ("" if finite else "_nonfinite")
    graph = Graph(name, opset, {}, [], [], finite)
    ops = AVAILABLE[opset]
    weights = np.array([1 / SHARE[op] for op in ops])
    for _ in range(int(rng.integers(5, 26))):
        wanted = only and rng.random() < (0.5 if len(only) == 1 else 0.9)
        op = only[rng.integers(len(only))] if wanted else ops[rng.choice(len(ops), p=weights / weights.sum())]
        for _ in range(ATTEMPTS):
            if grow(graph, op, rng, style):
                break
    if not graph.nodes:
        return None
    graph.outputs = outputs(graph, rng)
    return graph


def grow(graph, op, rng, style):
    """Adds one node. Returns False if the generated node is invalid or unsuitable."""
    builder = Builder(graph, op, rng, style)
    try:
        node = MAKERS[op](builder)
        values = dict(graph.values)
        graph.values.update({name: builder.fresh[name] for name in node.uses() if name in builder.fresh})
        try:
            made = compute(graph, node, rng)
        except Refused:
            graph.values = values
            raise
    except Refused as refusal:
        REFUSALS.append(re.sub(r"\d+", "N", str(refusal))[:200])
        return False
    graph.nodes.append(node)
    graph.values.update({value.name: value for value in made})
    return True


# Reasons for dropped nodes, for development of the node generators.
REFUSALS = []


def outputs(graph, rng):
    """Returns the unused values and a few others; all values in a quarter of the graphs."""
    share = 1.0 if rng.random() < 0.25 else 0.08
    used = {name for node in graph.nodes for name in node.uses()}
    made = [o for node in graph.nodes for o in node.outputs if o]
    return [o for o in made if o not in used or rng.random() < share]
