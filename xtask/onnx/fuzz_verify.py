"""Execution of `byoc verify` on batches of cases, and the outcome of each case."""

import dataclasses
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import tempfile

from fuzz_graph import write_case

# Time limit per case in seconds; several times as long with backends, which may invoke a compiler.
PATIENCE = 5
WITH_BACKENDS = 4


@dataclasses.dataclass
class Outcome:
    # "pass", "wrong", "refused", "crash", "timeout", "uncompiled"
    kind: str
    code: str = ""
    message: str = ""
    # Fraction of the operations that ran on backends.
    offload: float = 0.0

    def pattern(self):
        """Returns the message without numbers and names, as the key that groups outcomes."""
        text = re.sub(r'"[^"]*"', '"_"', self.message)
        text = re.sub(r"\bv\d+\w*|\bs\d+_\d+\w*", "_", text)
        text = re.sub(r"[-+]?\b(\d+(\.\d+)?(e[-+]?\d+)?|inf|NaN)\b", "N", text)
        if self.kind == "wrong":
            return next((what for what in ("element type", "shape") if f"expected {what}" in text), "value")
        text = re.sub(r"\b(bfloat|float|uint|int)\d+\b", "T", re.sub(r"Tensor\[.*\]", "Tensor[..]", text))
        return re.sub(r"\[[N, ]*\]", "[..]", text)[:160]


class Byoc:
    """The byoc executable with its options, and a directory for the cases of a batch."""

    def __init__(self, program, options, folder):
        self.program, self.options, self.folder = program, options, pathlib.Path(folder)
        self.patience = PATIENCE * (WITH_BACKENDS if options else 1)
        # Messages of regions that a backend accepted and could not compile, in the current batch.
        self.uncompiled = []

    def verify(self, graphs):
        """Returns the outcomes of graphs, in order."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.uncompiled = []
        folders = []
        for i, graph in enumerate(graphs):
            folders.append(self.folder / f"{i}")
            write_case(graph, folders[-1])
        outcomes = []
        while len(outcomes) < len(folders):
            done, late = self.run(folders[len(outcomes) :])
            outcomes += done
            # The process terminated at this case.
            if late:
                outcomes.append(Outcome("timeout", message=f"no verdict within {self.patience} s"))
            elif len(outcomes) < len(folders):
                done, late = self.run([folders[len(outcomes)]], "--isolate-cases")
                outcomes += done or [Outcome("crash", message="no verdict")]
        if self.uncompiled:
            outcomes = [self.with_compilation(*pair) for pair in zip(folders, outcomes)]
        return outcomes

    def with_compilation(self, folder, outcome):
        """Returns the outcome of a case, or that of its region that is not compiled."""
        if outcome.kind != "pass":
            return outcome
        self.uncompiled = []
        self.run([folder])
        return Outcome("uncompiled", "E0423", self.uncompiled[0], outcome.offload) if self.uncompiled else outcome

    def run(self, folders, *options):
        """Returns the outcomes of cases until the process terminates, and true if the process timed out and was killed."""
        command = [self.program, "verify", "--json", *options, *self.options, *map(str, folders)]
        # In a separate session, so that the processes of isolated cases are killed along with it.
        messages = tempfile.TemporaryFile()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, start_new_session=True, bufsize=0
        )
        outcomes = []
        with process.stdout, messages:
            while select.select([process.stdout], [], [], self.patience)[0]:
                line = process.stdout.readline()
                if not line:
                    process.wait()
                    messages.seek(0)
                    text = messages.read().decode(errors="replace")
                    self.uncompiled += re.findall(r"warning\[E0423\]: (.*)", text)
                    return outcomes, False
                if outcome := outcome_of(line.decode(errors="replace")):
                    outcomes.append(outcome)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return outcomes, True


def outcome_of(line):
    try:
        result = json.loads(line)
    except json.JSONDecodeError:
        return None
    if "status" not in result:
        return None
    code, message = result["code"] or "", result["message"]
    if result["status"] == "pass":
        return Outcome("pass", offload=result["offload_flops"])
    if result["status"] == "fail":
        return Outcome("wrong", code, message, result["offload_flops"])
    crashed = not code or "panic" in message or "internal error" in message
    return Outcome("crash" if crashed else "refused", code, message)
