"""Lower bound on the RAM of a straight-line model: the maximum total size of the intermediate results live at one operator.

Reads the graph that `byoc compile MODEL --emit graph-json` prints, and derives all sizes from the shapes, independently of
the planner. A view shares the memory of its operand. An elementwise operator may overwrite an operand of equal size after
its last use. Inputs, outputs and constants are not counted, because they are outside the arena of an exported program.

usage: ram_floor.py GRAPH.json [ARENA_BYTES]
"""

import json
import sys

VIEWS = {"reshape", "nn_batch_flatten", "squeeze", "expand_dims", "transpose", "strided_slice", "split", "copy"}
NOT_ELEMENTWISE = {
    "nn_conv1d", "nn_conv2d", "nn_conv2d_transpose", "nn_dense", "nn_matmul", "nn_batch_matmul", "nn_pad", "nn_upsampling",
    "qnn_conv2d", "qnn_dense", "image_resize2d", "concatenate", "stack", "take", "gather", "sum", "mean", "max", "min", "prod",
}
BYTES = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4, "float16": 2, "int16": 2, "uint16": 2}


def operator(name):
    text = name.removeprefix("tvmgen_default_fused_")
    head, _, tail = text.rpartition("_")
    return head if tail.isdigit() else text


def floor(graph):
    nodes, rows = graph["nodes"], graph["node_row_ptr"]
    shapes, types = graph["attrs"]["shape"][1], graph["attrs"]["dltype"][1]

    def entry(node, index):
        return rows[node] + index

    def size(e):
        count = 1
        for d in shapes[e]:
            count *= d
        return count * BYTES.get(types[e], 1)

    # Entry that owns the memory of each entry; None for constants and for memory of the caller.
    owner = {}
    heads = {entry(h[0], h[1]) for h in graph["heads"]}
    last = {}

    def root(e):
        return owner[e]

    for i, node in enumerate(nodes):
        count = rows[i + 1] - rows[i]
        for k in range(count):
            e = entry(i, k)
            if node["op"] == "null":
                owner[e] = None
            elif operator(node["name"]) in VIEWS:
                owner[e] = root(entry(*node["inputs"][0][:2]))
            else:
                owner[e] = e
        for source in node.get("inputs", []):
            r = root(entry(source[0], source[1]))
            if r is not None:
                last[r] = i
    for h in heads:
        if owner[h] is not None:
            last[owner[h]] = len(nodes)
    outputs = {owner[h] for h in heads if owner[h] == h}
    # Size in bytes of each allocation, and the allocation of each entry.
    piece, alive, most, where = {}, {}, 0, ""
    for i, node in enumerate(nodes):
        if node["op"] == "null":
            continue
        kind = operator(node["name"])
        if kind in VIEWS:
            continue
        operands = {root(entry(s[0], s[1])) for s in node["inputs"]} - {None}
        for k in range(rows[i + 1] - rows[i]):
            e = entry(i, k)
            if e in outputs:
                continue
            given = [
                r for r in operands
                if last[r] == i and r in piece and alive.get(piece[r]) == size(e) and kind not in NOT_ELEMENTWISE
                and "pool" not in kind
            ]
            if given:
                piece[e] = piece[given[0]]
                operands.discard(given[0])
            else:
                piece[e] = e
                alive[e] = size(e)
        total = sum(alive.values())
        if total > most:
            most, where = total, node["name"]
        held = {piece[e] for e in piece if last.get(e, -1) > i}
        for p in [p for p in alive if p not in held]:
            del alive[p]
    return most, where


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        least, where = floor(json.load(file))
    if len(sys.argv) > 2:
        arena = int(sys.argv[2])
        print(f"floor {least} bytes at {where}, arena {arena} bytes, ratio {arena / max(least, 1):.3f}")
        sys.exit(arena > 1.1 * least)
    print(f"floor {least} bytes at {where}")
