"""Graphs of the fuzzer: values, nodes, the models generated from them, and the reference that computes each node.

A value has two arrays: the result of the reference, and its shadow, the result of the same computation with an error of
about one unit in the last place added wherever rounding may differ. If the arrays diverge, the graph amplifies rounding
errors, and a difference between implementations is not significant; such nodes are dropped.
"""

import dataclasses
import functools
import json
import pathlib

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)
BOOL, I32, I64 = np.dtype(np.bool_), np.dtype(np.int32), np.dtype(np.int64)
SIGNED = [np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64)]
UNSIGNED = [np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64)]
FLOATS = [F32, F16, F64, BF16]
DTYPES = FLOATS + SIGNED + UNSIGNED + [BOOL]

# Element types by their schema names. Other types (strings, complex numbers, 8-bit floats, ...) are not generated.
BY_NAME = {f"tensor({'float' if t == F32 else 'double' if t == F64 else t.name})": t for t in DTYPES}

# Relative and absolute tolerance by element type, and the relative error of the shadow.
TOLERANCE = {F32: (1e-3, 1e-5), F16: (6e-3, 2e-3), F64: (1e-6, 1e-8), BF16: (4e-2, 1e-2)}
SHADOW = {F32: 2e-7, F16: 5e-4, F64: 4e-16, BF16: 4e-3}

# Operators with exact floating-point results: they move, select or compare elements.
EXACT = set(
    "Abs Ceil Clip Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Floor Gather"
    " GatherElements GatherND GlobalMaxPool Hardmax Identity If Max MaxPool Min Neg OneHot Pad ReduceMax ReduceMin Relu"
    " Reshape ReverseSequence Round Scatter ScatterElements ScatterND Sign Slice SpaceToDepth Split Squeeze Tile TopK"
    " Transpose Trilu Unsqueeze Where".split()
)

# Operators whose errors scale with the largest result element, because of cancellation.
ACCUMULATING = set(
    "Attention BatchNormalization Conv ConvTranspose CumSum Gemm GroupNormalization GRU InstanceNormalization"
    " LayerNormalization LSTM MatMul MeanVarianceNormalization ReduceMean ReduceSum Resize RNN Upsample".split()
)


class Refused(Exception):
    """Raised for an invalid node, or a node that the reference cannot compute."""


@dataclasses.dataclass
class Value:
    name: str
    array: np.ndarray
    shadow: np.ndarray
    exact: bool = True
    # "input" (at run time), "constant" (initializer), "node" (Constant node), "computed"
    source: str = "computed"


@dataclasses.dataclass
class Node:
    op: str
    inputs: list
    outputs: list
    attrs: dict
    # Outer-scope values that subgraphs use.
    captures: list = dataclasses.field(default_factory=list)
    # True if the reference computed a float64 node in float32.
    narrowed: bool = False

    def proto(self):
        return helper.make_node(self.op, self.inputs, self.outputs, name=self.outputs[0], **self.attrs)

    def uses(self):
        return [name for name in dict.fromkeys(self.inputs + self.captures) if name]


@dataclasses.dataclass
class Graph:
    name: str
    opset: int
    values: dict
    nodes: list
    outputs: list
    finite: bool = True
    # Number of assigned names.
    names: int = 0

    def dtypes(self):
        names = dict.fromkeys(name for node in self.nodes for name in node.uses() + [o for o in node.outputs if o])
        return {self.values[name].array.dtype for name in names}


def element_type(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def tensor_proto(array, name):
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def model_of(opset, nodes, values, outputs, shaped=True):
    """Returns a model with the given nodes. Values that no node computes become inputs or constants."""
    computed = {output for node in nodes for output in node.outputs}
    inputs, constants, made = [], [], []
    for name in dict.fromkeys(name for node in nodes for name in node.uses()):
        value = values[name]
        if name in computed:
            continue
        if value.source == "constant":
            constants.append(tensor_proto(value.array, name))
        elif value.source == "node":
            made.append(helper.make_node("Constant", [], [name], value=tensor_proto(value.array, name)))
        else:
            inputs.append(helper.make_tensor_value_info(name, element_type(value.array), value.array.shape))
    results = []
    for name in outputs:
        array = values[name].array
        results.append(helper.make_tensor_value_info(name, element_type(array), array.shape if shaped else None))
    graph = helper.make_graph(made + [node.proto() for node in nodes], "fuzz", inputs, results, constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 19 else 10)


def write_case(graph, folder):
    """Writes a graph to a directory in test-data layout."""
    data = pathlib.Path(folder) / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    shaped = sum(map(ord, graph.name)) % 4 > 0
    model = model_of(graph.opset, graph.nodes, graph.values, graph.outputs, shaped)
    onnx.save(model, pathlib.Path(folder) / "model.onnx")
    for kind, names in [("input", [i.name for i in model.graph.input]), ("output", graph.outputs)]:
        for i, name in enumerate(names):
            proto = tensor_proto(graph.values[name].array, name)
            (data / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())
    rtol, atol = tolerance(graph)
    (pathlib.Path(folder) / "data.json").write_text(json.dumps({"rtol": rtol, "atol": atol}) + "\n")


def tolerance(graph):
    floats = [TOLERANCE[t] for t in graph.dtypes() if t in TOLERANCE]
    if any(node.narrowed for node in graph.nodes):
        floats.append(TOLERANCE[F32])
    return max(floats, default=TOLERANCE[F32])


def tolerance_of(arrays):
    return max((TOLERANCE[a.dtype] for a in arrays if a.dtype in TOLERANCE), default=TOLERANCE[F32])


def close(a, b, limits):
    """Returns true if two arrays agree: integers and booleans exactly, and NaN equal to NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype not in TOLERANCE:
        return bool((a == b).all())
    a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.allclose(a, b, rtol=limits[0], atol=limits[1], equal_nan=True))


def perturbed(array, rng, op):
    """Adds errors of about one unit in the last place; relative to the largest element in case of cancellation."""
    if array.dtype not in SHADOW or not array.size:
        return array
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        scale = 4 * np.nanmax(np.abs(wide)) if op in ACCUMULATING else np.abs(wide)
        noise = rng.choice([-1.0, 1.0], array.shape) * SHADOW[array.dtype] * scale
        return np.where(np.isfinite(wide), wide + noise, wide).astype(array.dtype)


@functools.cache
def session_options():
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def run_model(model, feeds):
    """Runs a model in ONNX Runtime without optimizations."""
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, session_options(), providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, feeds)]


def run_evaluator(model, feeds):
    """Runs a model in the reference evaluator of `onnx`."""
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model).run(None, feeds)
    kinds = [helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type) for o in model.graph.output]
    results = [np.asarray(result) for result in results]
    for result, kind in zip(results, kinds):
        if result.dtype != kind:
            raise Refused(f"reference evaluator: expected {kind}, found {result.dtype}")
    return results


def evaluate(node, opset, values, arrays=None, arbiter=False):
    """Computes the outputs of one node; returns them with the name of the implementation.

    The implementation is ONNX Runtime, except for element types that its CPU kernels do not support: bfloat16 and
    float64 are computed in float32 and converted, and other types by the reference evaluator. With `arbiter`, the
    reference evaluator computes all types.
    """
    arrays = arrays or {name: values[name].array for name in node.uses()}
    named = {n: dataclasses.replace(values[n], array=arrays[n]) for n in node.uses()}
    outputs = [o for o in node.outputs if o]
    model, kinds = typed_model(node, opset, named, outputs)
    feeds = {i.name: arrays[i.name] for i in model.graph.input}
    try:
        if arbiter:
            return run_evaluator(model, feeds), "onnx"
        if any(t == BF16 for t in kinds + [a.dtype for a in arrays.values()]):
            return run_in_float32(node, opset, named, outputs, kinds, BF16), "onnxruntime in float32"
        return run_model(model, feeds), "onnxruntime"
    except Refused:
        raise
    except Exception as error:  # Both libraries raise exceptions of various types.
        missing = "NOT_IMPLEMENTED" in str(error) or "not support double yet" in str(error)
        if not missing or node.op == "Scan" or arbiter:
            raise Refused(f"{node.op}: {error}") from None
    try:
        if any(t == F64 for t in kinds + [a.dtype for a in arrays.values()]):
            results = run_in_float32(node, opset, named, outputs, kinds, F64)
            node.narrowed = True
            return results, "onnxruntime in float32"
        return run_evaluator(model, feeds), "onnx"
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"{node.op}: {error}") from None


def typed_model(node, opset, named, outputs):
    """Returns a model of one node, with the output element types inferred by `onnx`."""
    known = [i for i in named.values() if i.source not in ("constant", "node")]
    infos = [helper.make_tensor_value_info(v.name, element_type(v.array), v.array.shape) for v in known]
    constants = [tensor_proto(v.array, v.name) for v in named.values() if v.source in ("constant", "node")]
    graph = helper.make_graph([node.proto()], "fuzz", infos, [helper.make_empty_tensor_value_info(o) for o in outputs])
    graph.initializer.extend(constants)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 19 else 10)
    try:
        # The function body of MeanVarianceNormalization contains float32 constants, which type inference rejects.
        strict = node.op != "MeanVarianceNormalization"
        inferred = shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict)
    except Exception as error:
        raise Refused(f"{node.op}: {error}") from None
    kinds = []
    for info, output in zip(model.graph.output, inferred.graph.output):
        kind = output.type.tensor_type.elem_type
        if not kind:
            raise Refused(f"{node.op}: no inferred element type")
        info.type.tensor_type.elem_type = kind
        kinds.append(helper.tensor_dtype_to_np_dtype(kind))
    return model, kinds


def run_in_float32(node, opset, named, outputs, kinds, kind):
    """Computes a bfloat16 or float64 node in float32 and converts the results."""
    number = helper.np_dtype_to_tensor_dtype(kind)

    def converted(array):
        return array.astype(F32) if array.dtype == kind else array

    named = {n: dataclasses.replace(v, array=converted(v.array)) for n, v in named.items()}
    attrs = dict(node.attrs)
    for key, attr in attrs.items():
        if key in ("to", "dtype", "output_dtype") and attr == number:
            attrs[key] = onnx.TensorProto.FLOAT
        if isinstance(attr, onnx.TensorProto) and attr.data_type == number:
            attrs[key] = tensor_proto(converted(numpy_helper.to_array(attr)), attr.name)
        if isinstance(attr, onnx.GraphProto):
            raise Refused(f"{node.op}: subgraph with element type {kind}")
    node = dataclasses.replace(node, attrs=attrs)
    model, _ = typed_model(node, opset, named, outputs)
    results = run_model(model, {i.name: named[i.name].array for i in model.graph.input})
    with np.errstate(all="ignore"):
        return [result.astype(to) for result, to in zip(results, kinds)]


def compute(graph, node, rng):
    """Computes a node from the values of the graph, and returns its output values.

    Refuses nodes that amplify rounding errors and, in finite graphs, nodes with NaN, infinite or large results.
    """
    uses = [graph.values[name] for name in node.uses()]
    outputs, _ = evaluate(node, graph.opset, graph.values)
    names = [o for o in node.outputs if o]
    if any(a.dtype not in DTYPES for a in outputs):
        raise Refused(f"{node.op}: unsupported result type")
    if any(a.size > 200_000 for a in outputs):
        raise Refused(f"{node.op}: result too large")
    exact = all(value.exact for value in uses)
    shadows = outputs
    if not exact:
        shadows, _ = evaluate(node, graph.opset, graph.values, {v.name: v.shadow for v in uses})
        rtol, atol = tolerance_of([v.array for v in uses] + outputs)
        if not all(close(a, b, (0.2 * rtol, 0.2 * atol)) for a, b in zip(outputs, shadows)):
            raise Refused(f"{node.op}: amplifies rounding errors")
    values = []
    for name, array, shadow in zip(names, outputs, shadows):
        if graph.finite and array.dtype in TOLERANCE and array.size:
            limit = 1e3 if array.dtype in (F16, BF16) else 1e6
            if not np.abs(np.nan_to_num(array.astype(np.float64), nan=np.inf)).max() <= limit:
                raise Refused(f"{node.op}: non-finite result")
        same = exact and (array.dtype not in TOLERANCE or node.op in EXACT)
        values.append(Value(name, array, shadow if same else perturbed(shadow, rng, node.op), same))
    return values
