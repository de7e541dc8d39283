"""Differential fuzzer of the ONNX importer: fuzz.py --byoc PROGRAM --seed N --count M [--out DIR] ...

Graphs of 5 to 25 nodes over all operators that byoc imports are computed by ONNX Runtime, node by node and without
optimizations, and by `byoc verify`. If the results differ, each node of the graph is tested separately, and the case is
minimized and written to DIR/NAME in test-data layout, with a README that states which implementations agree.

fuzz.py          options, batches, summary
fuzz_generate    graphs from a seed and an index
fuzz_ops         one node generator per operator
fuzz_build       choice of element types and values for a node
fuzz_graph       values, nodes, models, the reference
fuzz_verify      execution of `byoc verify`
fuzz_minimize    minimization
fuzz-known.txt   known differences with their reasons
"""

import argparse
import collections
import dataclasses
import multiprocessing
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

from fuzz_generate import AVAILABLE, MAKERS, generate
from fuzz_graph import write_case
from fuzz_minimize import alone, arbitrate, cut, leaves, minimize
from fuzz_verify import Byoc, Outcome

BATCH = 50

# Time limits in seconds: for the generation of a graph, and for the minimization of a fault.
GENERATION, MINIMIZATION = 20, 45


@dataclasses.dataclass
class Fault:
    """Fault of one operator, or of a combination of operators ("A+B")."""

    op: str
    outcome: Outcome
    opset: int
    dtype: str
    graph: object
    verdict: str = ""

    def key(self):
        return self.op, self.outcome.kind, self.outcome.code, self.outcome.pattern()


@dataclasses.dataclass
class Known:
    op: str
    terms: list
    reason: str

    def covers(self, fault, backend):
        fields = {
            "kind": fault.outcome.kind,
            "code": fault.outcome.code,
            "dtype": fault.dtype,
            "backend": backend,
            "finite": "yes" if fault.graph.finite else "no",
        }
        for key, relation, value in self.terms:
            if key == "message":
                held = value in fault.outcome.message
            elif key == "verdict":
                held = value in fault.verdict
            elif key == "opset":
                held = fault.opset >= int(value) if relation == ">=" else fault.opset < int(value)
            elif key == "error":
                error = re.search(r"max_rel_err ([^)]+)", fault.outcome.message)
                held = error is not None and float(error[1]) < float(value)
            else:
                held = fields[key] in value.split(",")
            if not held:
                return False
        # A refusal because of unknown dimensions is attributed to this operator "+others".
        return self.op == "*" or fault.op.removesuffix("+others") in self.op.split(",")


def read_known(file):
    """Parses lines of the form OPERATOR | CONDITION | REASON; the file's header specifies the terms of a condition."""
    found = []
    for line in file.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        op, condition, reason = (part.strip() for part in line.split(" | ", 2))
        terms = []
        for term in condition.split(";"):
            term = term.strip()
            relation = next((r for r in (">=", "<", "=") if r in term), None)
            if relation:
                key, value = term.split(relation, 1)
                terms.append((key.strip(), relation, value.strip()))
        found.append(Known(op, terms, reason))
    return found


def made(pipe, args, indices):
    """Generates the graphs with the given indices, and sends them through a pipe."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    for index in indices:
        pipe.send(generate(args.seed, index, args.op, args.large))
    pipe.close()


def graphs(args, indices):
    """Generates graphs in a separate process, so that a crash of the reference loses only one graph."""
    found, todo = [], list(indices)
    while todo:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=made, args=(theirs, args, todo))
        process.start()
        theirs.close()
        try:
            while todo and ours.poll(GENERATION):
                graph = ours.recv()
                todo.pop(0)
                if graph:
                    found.append(graph)
        except EOFError:
            pass
        process.kill()
        process.join()
        if todo:
            print(f"graph {todo.pop(0)} of seed {args.seed}: the reference evaluator crashed or timed out")
    return found


def isolated(seconds, function, *args):
    """Calls a function in a separate process; returns None if the function crashes or times out."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=lambda: theirs.send(function(*args)))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(seconds) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def faults_of(failed, byoc):
    """Returns the faults of failed graphs: first those of single nodes, then those of several nodes together."""
    singles = [(graph, node, alone(graph, node)) for graph in failed for node in graph.nodes]
    outcomes = byoc.verify([single for _, _, single in singles])
    found, bad = [], collections.defaultdict(list)
    for (graph, node, single), outcome in zip(singles, outcomes):
        if outcome.kind != "pass":
            verdict = "refused only by byoc"
            if outcome.kind == "wrong":
                verdict = isolated(MINIMIZATION, arbitrate, single, byoc) or "the arbiter crashed"
            found.append(Fault(node.op, outcome, graph.opset, dtype_of(single), single, verdict))
            bad[graph.name].append(node)
    rest = []
    for graph in failed:
        nodes = [node for node in graph.nodes if not any(node is b for b in bad[graph.name])]
        if nodes:
            kept = {o for node in nodes for o in node.outputs}
            ends = dict.fromkeys([o for o in graph.outputs if o in kept] + leaves(nodes))
            rest.append(cut(graph, nodes, list(ends)))
    for graph, outcome in zip(rest, byoc.verify(rest)):
        if outcome.kind != "pass":
            late = outcome.kind == "timeout"
            result = None if late else isolated(MINIMIZATION, minimize, graph, outcome, byoc)
            graph, outcome = result or (graph, outcome)
            found.append(Fault(together(graph, outcome), outcome, graph.opset, dtype_of(graph), graph, "several nodes"))
    return found


def together(graph, outcome):
    """Returns the operator names of a multi-node fault: the operator that byoc refuses, otherwise all operators."""
    if refused := re.search(r'^node "[^"]*" \((\w+)\)', outcome.message):
        return f"{refused[1]}+others"
    return "+".join(dict.fromkeys(sorted(node.op for node in graph.nodes)))[:80]


def dtype_of(graph):
    """Returns the element type of the first node's first input, or of its first output if it has no inputs."""
    node = graph.nodes[0]
    return graph.values[(node.uses() or node.outputs)[0]].array.dtype.name


def readme(fault, outcome, graph, verdict, args):
    lines = [
        f"{fault.op}, opset {fault.opset}: {outcome.kind} on {args.backend or 'the host'}",
        f"byoc: {outcome.code} {outcome.message}".rstrip(),
        f"reference: {verdict}",
        f"found in graph {graph.name}",
        "",
    ]
    for node in graph.nodes:
        inputs = ", ".join(text_of(graph.values[name]) if name else "-" for name in node.inputs + node.captures)
        results = ", ".join(text_of(graph.values[name]) if name else "-" for name in node.outputs)
        attrs = {k: v if isinstance(v, (int, float, str, list)) else "..." for k, v in node.attrs.items()}
        lines.append(f"{results} = {node.op}({inputs}) {attrs}")
    return "\n".join(lines) + "\n"


def text_of(value):
    small = value.array.size <= 8 and value.source != "computed"
    shown = f" {value.source} {value.array.tolist()}" if small else f" {value.source}"
    return f"{value.name}: {value.array.dtype.name}{list(value.array.shape)}{shown}"


def record(fault, byoc, args, number):
    """Minimizes a fault and writes its case; returns the directory and the verdict."""
    # A case that times out is not minimized, because each attempt would time out as well.
    late = fault.outcome.kind == "timeout"
    result = None if late else isolated(MINIMIZATION, minimize, fault.graph, fault.outcome, byoc)
    graph, outcome = result or (fault.graph, fault.outcome)
    verdict = fault.verdict
    name = f"{fault.op.replace('+', '_')[:40]}_{outcome.kind}_{fault.dtype}_{args.seed}_{number}".lower()
    folder = pathlib.Path(args.out) / name
    shutil.rmtree(folder, ignore_errors=True)
    write_case(graph, folder)
    (folder / "README").write_text(readme(fault, outcome, graph, verdict, args))
    return f"{folder}: {verdict}"


def main():
    warnings.simplefilter("ignore")
    sys.stdout.reconfigure(line_buffering=True)
    args = arguments()
    end = time.monotonic() + 60 * args.minutes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args.op = args.op.split(",") if args.op else None
    if unknown := [op for op in args.op or [] if op not in MAKERS]:
        sys.exit(f"onnx-fuzz: expected supported operators, found {', '.join(unknown)}")
    if args.op and not any(set(args.op) <= set(ops) for ops in AVAILABLE.values()):
        sys.exit(f"onnx-fuzz: expected operators of one opset, found {', '.join(args.op)}")
    known = read_known(pathlib.Path(__file__).with_name("fuzz-known.txt"))
    with tempfile.TemporaryDirectory(prefix="onnx-fuzz-") as work:
        plugins = ["--plugin-dir", args.plugin_dir] if args.plugin_dir else []
        host = Byoc(args.byoc, [], pathlib.Path(work) / "host")
        on_backend = Byoc(args.byoc, ["--backend", args.backend, *plugins], pathlib.Path(work) / "backend")
        byoc = on_backend if args.backend else host
        finite = bool(args.backend) and finite_math(args, plugins)
        run = Run(args, byoc, host, known, finite)
        try:
            for start in range(0, args.count, BATCH):
                if time.monotonic() < end:
                    run.batch(range(start, min(start + BATCH, args.count)))
        except KeyboardInterrupt:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("interrupted")
    run.summarize()
    sys.exit(1 if run.unknown() else 0)


def finite_math(args, plugins):
    """Returns true if a backend makes no guarantees for NaN and infinities."""
    shows = [[args.byoc, "plugins", "show", name, *plugins] for name in args.backend.split(",")]
    return any("finite_math" in subprocess.run(show, capture_output=True, text=True).stdout for show in shows)


def arguments():
    parser = argparse.ArgumentParser(prog="cargo xtask onnx-fuzz")
    parser.add_argument("--byoc", required=True, help="Path of the byoc executable")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="Number of graphs")
    parser.add_argument("--minutes", type=float, default=60, help="Time limit for starting a batch, in minutes")
    parser.add_argument("--backend", help="Backends, separated by commas [default: the host]")
    parser.add_argument("--plugin-dir")
    parser.add_argument("--out", default="target/onnx-fuzz", help="Output directory for minimized cases")
    parser.add_argument("--op", help="Operators for most of the nodes, separated by commas")
    parser.add_argument("--large", action="store_true", help="Larger dimensions, for backends with a minimum region cost")
    parser.add_argument("--keep", type=int, default=2, help="Number of minimized cases per fault")
    parser.add_argument("--table", action="store_true", help="Table of the number of nodes by operator")
    return parser.parse_args()


class Run:
    """Statistics of one run."""

    def __init__(self, args, byoc, host, known, finite):
        self.args, self.byoc, self.host, self.known, self.finite = args, byoc, host, known, finite
        self.nodes, self.faults = collections.Counter(), collections.Counter()
        self.folders, self.reasons = collections.defaultdict(list), {}
        self.graphs = self.failed = self.of_host = self.skipped = self.offloaded = self.recorded = 0

    def batch(self, indices):
        found = graphs(self.args, indices)
        self.nodes.update(node.op for graph in found for node in graph.nodes)
        if self.finite:
            self.skipped += sum(not graph.finite for graph in found)
            found = [graph for graph in found if graph.finite]
        self.graphs += len(found)
        outcomes = self.byoc.verify(found)
        self.offloaded += sum(outcome.offload > 0 for outcome in outcomes)
        failed = [graph for graph, outcome in zip(found, outcomes) if outcome.kind != "pass"]
        self.failed += len(failed)
        for fault in faults_of(failed, self.byoc):
            self.count(fault)

    def count(self, fault):
        if self.byoc is not self.host:
            on_host = self.host.verify([fault.graph])[0]
            if (on_host.kind, on_host.pattern()) == (fault.outcome.kind, fault.outcome.pattern()):
                self.of_host += 1
                return
        backend = self.args.backend or "host"
        known = next((k.reason for k in self.known if k.covers(fault, backend)), "")
        if not known and "agrees with byoc" in fault.verdict:
            known = "the reference evaluator agrees with byoc"
        key = fault.key() + (known,)
        self.faults[key] += 1
        if not known and self.faults[key] <= self.args.keep:
            self.recorded += 1
            self.folders[key].append(record(fault, self.byoc, self.args, self.recorded))

    def unknown(self):
        return sum(count for key, count in self.faults.items() if not key[-1])

    def summarize(self):
        if self.args.table:
            for op in sorted(MAKERS):
                print(f"{op:28} {self.nodes[op]:7}")
        for key, count in sorted(self.faults.items()):
            op, kind, code, pattern, reason = key
            print(f"{op}: {kind} {code} {pattern} ({count}){' known: ' + reason if reason else ''}")
            for folder in self.folders[key]:
                print(f"    {folder}")
        skipped = f", {self.skipped} skipped because of NaN or infinities" if self.skipped else ""
        of_host = f", {self.of_host} faults that also occur on the host" if self.of_host else ""
        if self.args.backend:
            of_host = f", {self.offloaded} with nodes on a backend" + of_host
        print(
            f"seed {self.args.seed}: {self.graphs} graphs of {sum(self.nodes.values())} nodes, {self.failed} failed"
            f"{skipped}{of_host}; {self.unknown()} unknown faults, {len(self.folders)} distinct"
        )


if __name__ == "__main__":
    main()
