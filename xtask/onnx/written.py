"""Checks models that byoc writes: written.py BYOC CASES OUT [--stage STAGE] [--opset N] [--only TEXT] [--list FILE]

Each case, a folder in test-data layout that `byoc verify` passes, is read and written as ONNX. The written model must
pass onnx.checker with full shape inference; ONNX Runtime must compute from it what it computes from the original; byoc must read it
again and give the recorded outputs; and a second write of what was read must be the same bytes. Prints a line per case that
fails, and the counts.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

onnxruntime.set_default_logger_severity(4)
TOLERANCE = dict(rtol=1e-3, atol=1e-5)


def value(path, info):
    kind = info.type.WhichOneof("value")
    data = path.read_bytes()
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def run(model, inputs):
    return session(model).run(None, inputs)


def is_equal(a, b):
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and all(map(is_equal, a, b))
    if a is None or b is None or isinstance(a, dict):
        return type(a) is type(b) and (a is None or a == b)
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "fV" or a.dtype.kind == "f":
        return np.allclose(a.astype(np.float64), b.astype(np.float64), equal_nan=True, **TOLERANCE)
    return np.array_equal(a, b)


def write(byoc, source, to, args):
    command = [byoc, "compile", str(source), "--emit", "onnx", "--stage", args.stage, "-o", str(to)]
    if args.opset:
        command += ["--opset", str(args.opset)]
    result = subprocess.run(command, capture_output=True, text=True)
    return None if result.returncode == 0 else " ".join(result.stderr.split("\n")[:4])


def random_operators(model):
    names = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
    return any(node.op_type in names for node in model.graph.node)


def check(byoc, case, out, args):
    """Returns the outcomes of a case: a dictionary from step to "ok", "no" or the reason."""
    folder = out / case.name
    folder.mkdir(parents=True)
    written = folder / "model.onnx"
    steps = {}
    original = onnx.load(str(case / "model.onnx"))
    constants = {tensor.name for tensor in original.graph.initializer}
    infos = [info for info in original.graph.input if info.name not in constants]
    data = sorted((case / "test_data_set_0").glob("input_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    inputs = {info.name: value(path, info) for info, path in zip(infos, data)}
    try:
        expected = run(case / "model.onnx", inputs)
        steps["runtime"] = "no model"
    except Exception:
        expected = None
    fault = write(byoc, case, written, args)
    steps["write"] = fault or "ok"
    if fault:
        return steps
    for data_set in case.glob("test_data_set_*"):
        (folder / data_set.name).symlink_to(data_set.resolve())
    for extra in ["tolerance.txt", "data.json"]:
        if (case / extra).exists():
            shutil.copy(case / extra, folder / extra)
    again = folder / "again.onnx"
    fault = write(byoc, folder, again, args)
    steps["again"] = fault or ("ok" if again.read_bytes() == written.read_bytes() else "different bytes")
    try:
        onnx.checker.check_model(str(written), full_check=True)
        steps["check"] = "ok"
    except Exception as error:
        steps["check"] = str(error).strip().replace("\n", " ")[:200]
    if expected is None:
        return steps
    try:
        names = {info.name for info in onnx.load(str(written)).graph.input}
        found = run(written, {name: value for name, value in inputs.items() if name in names})
        same = is_equal(list(expected), list(found)) or random_operators(original)
        steps["runtime"] = "ok" if same else "different results"
    except Exception as error:
        steps["runtime"] = str(error).strip().replace("\n", " ")[:300]
    return steps


def main():
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("byoc")
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--stage", default="imported")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", type=pathlib.Path, help="file with lines NAME pass; other cases are left out")
    args = parser.parse_args()
    cases = sorted(path for path in args.cases.iterdir() if (path / "model.onnx").exists() and args.only in path.name)
    if args.list:
        passing = {line.rsplit(" ", 1)[0] for line in args.list.read_text().splitlines() if line.endswith(" pass")}
        cases = [path for path in cases if path.name in passing]
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    counts = collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        jobs = [(case, pool.submit(check, args.byoc, case, args.out, args)) for case in cases]
        for case, job in jobs:
            try:
                steps = job.result()
            except Exception as error:
                steps = {"write": f"the check failed: {error!r}"}
            for step, outcome in steps.items():
                counts[step, "all"] += 1
                counts[step, "ok"] += outcome == "ok"
                if outcome != "ok":
                    print(f"{step}: {case.name}: {outcome}")
    written = [str(args.out / case.name) for case in cases if (args.out / case.name / "model.onnx").exists()]
    for begin in range(0, len(written), 200):
        verify = subprocess.run([args.byoc, "verify", "--json", *written[begin:begin + 200]], capture_output=True, text=True)
        for line in verify.stdout.splitlines():
            verdict = json.loads(line)
            if "case" in verdict:
                counts["read", "all"] += 1
                counts["read", "ok"] += verdict["status"] == "pass"
                if verdict["status"] != "pass":
                    print(f"read: {verdict['case']}: {verdict['status']}: {verdict.get('message')}")
    for step in ["write", "check", "runtime", "read", "again"]:
        print(f"{step}: {counts[step, 'ok']} of {counts[step, 'all']}")


if __name__ == "__main__":
    main()
