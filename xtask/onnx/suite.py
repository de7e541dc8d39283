"""Writes the cases of the ONNX backend suite in test-data layout: suite.py DIR

The files are DIR/NAME/model.onnx, and DIR/NAME/test_data_set_I/{input,output}_J.pb with the tensors, sequences and
optional values that the package `onnx` contains or computes for the case. A case with non-default tolerances has a
file tolerance.txt with rtol and atol.
"""

import pathlib
import shutil
import sys
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

RTOL, ATOL = 1e-3, 1e-7


def proto(value, info):
    """Returns the protobuf message of one input or output, of the kind that its type in the graph requires."""
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        return value
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(np.asarray(value), info.name)


def write(case, to):
    if case.model is None:
        shutil.copytree(case.model_dir, to, dirs_exist_ok=True)
    else:
        onnx.save(case.model, to / "model.onnx")
        graph = case.model.graph
        for i, (inputs, outputs) in enumerate(case.data_sets):
            folder = to / f"test_data_set_{i}"
            folder.mkdir()
            for kind, values, infos in [("input", inputs, graph.input), ("output", outputs, graph.output)]:
                for j, (value, info) in enumerate(zip(values, infos)):
                    (folder / f"{kind}_{j}.pb").write_bytes(proto(value, info).SerializeToString())
    if (case.rtol, case.atol) != (RTOL, ATOL):
        (to / "tolerance.txt").write_text(f"{case.rtol} {case.atol}\n")


def main():
    warnings.simplefilter("ignore")
    folder = pathlib.Path(sys.argv[1])
    count = 0
    for kind in ["node", "simple", "pytorch-converted", "pytorch-operator"]:
        for case in load_model_tests(kind=kind):
            to = folder / case.name
            to.mkdir(parents=True)
            write(case, to)
            count += 1
    print(count)


main()
