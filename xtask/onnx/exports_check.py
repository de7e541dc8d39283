"""Verifies the models that exports.py wrote, each compiled once with all its dimensions open.

Usage: exports_check.py DIR BYOC [BACKEND].
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from detections import DETECTORS, TOLERANCE, missing
from onnx import numpy_helper


def load(folder, number, kind):
    path = f"{folder}/test_data_set_{number}"
    count = sum(name.startswith(kind) for name in os.listdir(path))
    tensors = [onnx.load_tensor(f"{path}/{kind}_{i}.pb") for i in range(count)]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def check_boxes(byoc, folder, options):
    for number in range(sum(name.startswith("test_data_set") for name in os.listdir(folder))):
        with tempfile.TemporaryDirectory() as scratch:
            command = [*byoc, "run", f"{folder}/model.onnx", "--output", f"{scratch}/out.npz", *options]
            for name, value in load(folder, number, "input").items():
                np.save(f"{scratch}/{len(command)}.npy", value)
                command += ["--input", f"{name}={scratch}/{len(command)}.npy"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                return f"error: {done.stderr.strip().splitlines()[0]}"
            results = np.load(f"{scratch}/out.npz")
            expected = load(folder, number, "output")
            lost = missing([results[name] for name in expected], list(expected.values()))
            if lost:
                return f"fail: size {number}: {lost} detections differ"
    return "pass"


def check(byoc, folder, options):
    if os.path.basename(folder).startswith(DETECTORS):
        return check_boxes(byoc, folder, options)
    command = [*byoc, "verify", folder, "--json", "--max-rel-err", str(TOLERANCE), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        verdict = json.loads(line)
        if "case" in verdict:
            return f"{verdict['status']}{': ' if verdict['message'] else ''}{verdict['message']}"
    return f"error: {done.stderr.strip()[:300]}"


def main():
    root, byoc, backend = sys.argv[1], [sys.argv[2]], sys.argv[3:]
    passed, folders = 0, sorted(name for name in os.listdir(root) if os.path.exists(f"{root}/{name}/test_data_set_0"))
    for name in folders:
        graph = onnx.load(f"{root}/{name}/model.onnx").graph
        dims = {d.dim_param for port in graph.input for d in port.type.tensor_type.shape.dim if d.dim_param}
        options = [word for dim in sorted(dims) for word in ("--dim", f"{dim}=?")]
        options += ["--backend", backend[0]] if backend else []
        verdict = check(byoc, f"{root}/{name}", options)
        passed += verdict == "pass"
        sizes = sum(data.startswith("test_data_set") for data in os.listdir(f"{root}/{name}"))
        print(f"{name} ({sizes} sizes, {len(dims)} open dimensions): {verdict}", flush=True)
    print(f"{passed} of {len(folders)} exports pass on {backend[0] if backend else 'the host'}")
    return 0 if passed == len(folders) else 1


sys.exit(main())
