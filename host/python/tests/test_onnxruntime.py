"""Compares `byoc.onnxruntime` with ONNX Runtime: every public member, and invalid calls, on three models."""

from __future__ import annotations

import enum
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CASES, Case, close, resident
from onnx import TensorProto, helper, numpy_helper

import byoc.onnxruntime

BOTH = (onnxruntime, byoc.onnxruntime)

# Members that may raise NotImplemented: other devices, LoRA, custom-operator libraries, precompiled contexts.
UNSUPPORTED = {
    "RunOptions.add_active_adapter",
    "SessionOptions.register_custom_ops_library",
    "SessionOptions.set_ep_context_data_read_func",
    "module.register_execution_provider_library",
}

SITUATIONS: dict[str, list[Callable[[Any, Case, Path], Any]]] = {}


def member(*names: str) -> Callable[[Callable[[Any, Case, Path], Any]], Callable[[Any, Case, Path], Any]]:
    """Registers a test that uses the named members. It returns values that must be equal in both modules."""

    def register(situation: Callable[[Any, Case, Path], Any]) -> Callable[[Any, Case, Path], Any]:
        for name in names:
            SITUATIONS.setdefault(name, []).append(situation)
        return situation

    return register


def session(ort: Any, case: Case, **options: Any) -> Any:
    return ort.InferenceSession(case.bytes, **options)


def attempt(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Returns the result of a call, or the name of its exception."""
    try:
        return call(*arguments, **named)
    except Exception as error:
        return type(error).__name__


def simple(value: Any) -> Any:
    """Converts a result to a comparable value."""
    if isinstance(value, enum.Enum) or hasattr(value, "__members__"):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (list, tuple)):
        return [simple(one) for one in value]
    if isinstance(value, dict):
        return {key: simple(one) for key, one in value.items()}
    if type(value).__name__ in ("OrtValue", "NodeArg", "OrtMemoryInfo", "OrtEpDevice", "SessionOptions", "IOBinding"):
        return type(value).__name__
    return value


def difference(found: Any, expected: Any, place: str = "result") -> str | None:
    """Describes the first difference between two results."""
    told = f"{place}: expected {expected!r:.200}, found {found!r:.200}"
    if isinstance(expected, np.ndarray):
        return None if isinstance(found, np.ndarray) and close(found, expected) else told
    if type(found) is not type(expected):
        return told
    if isinstance(expected, list):
        if len(found) != len(expected):
            return told
        pairs = ((f"{place}[{index}]", *pair) for index, pair in enumerate(zip(found, expected)))
    elif isinstance(expected, dict):
        if list(found) != list(expected):
            return told
        pairs = ((f"{place}[{key!r}]", found[key], expected[key]) for key in expected)
    else:
        return None if found == expected else told
    return next((inner for at, one, two in pairs if (inner := difference(one, two, at))), None)


def ports(args: Any) -> Any:
    return [[arg.name, arg.type, list(arg.shape), str(arg)] for arg in args]


def values(ort: Any, case: Case) -> dict[str, Any]:
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in case.feeds.items()}


def first(case: Case) -> tuple[str, np.ndarray]:
    return next(iter(case.feeds.items()))


# InferenceSession


@member("InferenceSession.get_inputs", "InferenceSession.get_outputs", "InferenceSession.get_overridable_initializers")
def describes_ports(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    return [ports(s.get_inputs()), ports(s.get_outputs()), ports(s.get_overridable_initializers())]


@member("InferenceSession.get_modelmeta")
def describes_model(ort: Any, case: Case, folder: Path) -> Any:
    model = onnx.load_from_string(case.bytes)
    helper.set_model_props(model, {"author": "somebody", "empty": ""})
    model.model_version, model.domain, model.doc_string, model.producer_name = 3, "domain", "text", "maker"
    meta = ort.InferenceSession(model.SerializeToString()).get_modelmeta()
    return [
        meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.graph_description, meta.version,
        sorted(meta.custom_metadata_map.items()),
    ]  # fmt: skip


@member("InferenceSession.run")
def runs(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    names = [port.name for port in s.get_outputs()]
    return [
        s.run(None, case.feeds), s.run([], case.feeds), s.run(names[-1:], case.feeds),
        s.run([names[0], names[0]], case.feeds), s.run(None, case.feeds, None),
        s.run(None, case.feeds, ort.RunOptions()),
        s.run(None, values(ort, case)), s.run(tuple(names), input_feed=case.feeds),
    ]  # fmt: skip


@member("InferenceSession.run")
def refuses_wrong_runs(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    name, array = first(case)
    fixed = next(axis for axis, dim in enumerate(s.get_inputs()[0].shape) if isinstance(dim, int)) \
        if any(isinstance(dim, int) for dim in s.get_inputs()[0].shape) else None  # fmt: skip

    def run(value: Any) -> Any:
        return attempt(s.run, None, {**case.feeds, name: value})

    outcomes = [
        attempt(s.run, ["nothing"], case.feeds), attempt(s.run, None, {}), attempt(s.run, None, {"nothing": array}),
        attempt(s.run, None, {**case.feeds, "nothing": array}), attempt(s.run, "text", case.feeds),
        attempt(s.run, [None], case.feeds), attempt(s.run, None, [array]), attempt(s.run, None, None),
        attempt(s.run, None, case.feeds, 5), run("text"), run(None), run(3), run(object()), run({"a": 1}),
        run([[1, 2], [3]]), run(array[0]), run(array[None]), run(array.astype(np.float16)),
        run(array.astype(np.int8)), run(np.array([["a"]])), run(array.astype(object)),
    ]  # fmt: skip
    if fixed is not None:
        outcomes.append(run(np.concatenate([array, array], axis=fixed)))
    return outcomes


@member("InferenceSession.run")
def accepts_layouts(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    name, array = first(case)
    frozen = array.copy()
    frozen.flags.writeable = False
    strided = np.repeat(array, 2, axis=-1)[..., ::2]
    return [
        s.run(None, {**case.feeds, name: value})
        for value in (np.asfortranarray(array), frozen, strided, array.tolist())
    ]


@member("InferenceSession.run")
def gives_fresh_results(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    one = s.run(None, case.feeds)[0]
    kept = one.copy()
    two = s.run(None, case.feeds)[0]
    two[...] = 0
    return [one.flags.writeable, one.flags.owndata, bool((one == kept).all())]


@member("InferenceSession.run_async")
def runs_async(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    outcomes = []
    for names in (None, ["nothing"]):
        ended = threading.Event()

        def done(results: Any, data: Any, error: str, ended: threading.Event = ended) -> None:
            outcomes.append([results, data, error])
            ended.set()

        s.run_async(names, case.feeds, done, "data")
        assert ended.wait(60)
    outcomes.append(attempt(s.run_async, None, {}, print, None))
    return outcomes


@member("InferenceSession.run_with_ort_values")
def runs_with_values(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    results = s.run_with_ort_values(None, values(ort, case))
    wrong = attempt(s.run_with_ort_values, ["nothing"], values(ort, case))
    arrays = attempt(s.run_with_ort_values, None, case.feeds)
    return [[value.numpy() for value in results], wrong, arrays, attempt(s.run_with_ort_values, None, {})]


@member("InferenceSession.run_with_ortvaluevector")
def runs_with_vector(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    names = [port.name for port in s.get_outputs()]
    vector, state = ort.capi.onnxruntime_pybind11_state.OrtValueVector, ort.capi.onnxruntime_pybind11_state
    feeds, fetches = vector(), vector()
    for value in values(ort, case).values():
        feeds.push_back(value._ortvalue if hasattr(value, "_ortvalue") else value)
    device = ort.OrtDevice.make("cpu", 0)
    devices = [device._get_c_device() if hasattr(device, "_get_c_device") else device] * len(names)
    s.run_with_ortvaluevector(state.RunOptions(), list(case.feeds), feeds, names, fetches, devices)
    return [np.asarray(value.numpy()) for value in fetches]


@member("InferenceSession.get_providers", "InferenceSession.get_provider_options", "InferenceSession.set_providers")
def chooses_providers(ort: Any, case: Case, folder: Path) -> Any:
    outcomes = []
    cpu = "CPUExecutionProvider"
    for providers, options in (
        (None, None), ([cpu], None), ([cpu], [{}]), ([(cpu, {})], None), (["Nothing"], None), ([5], None),
        (["CUDAExecutionProvider", cpu], None), ([cpu, cpu], None), ([cpu], [{}, {}]), ([], None), (cpu, None),
    ):  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            s = ort.InferenceSession(case.bytes, None, providers, options)
        outcomes.append([s.get_providers(), s.get_provider_options(), sorted({w.category.__name__ for w in caught})])
    s.set_providers([cpu])
    outcomes += [s.get_providers(), attempt(s.set_providers, ["Nothing"])]
    return outcomes


@member("InferenceSession.enable_fallback", "InferenceSession.disable_fallback")
def falls_back(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    return [s.disable_fallback(), s.enable_fallback()]


@member("InferenceSession.get_session_options")
def returns_options(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("key", "value")
    found = ort.InferenceSession(case.bytes, options).get_session_options()
    return [found.intra_op_num_threads, found.get_session_config_entry("key"), type(found).__name__]


@member("InferenceSession.get_input_memory_infos", "InferenceSession.get_output_memory_infos",
        "InferenceSession.get_input_epdevices")  # fmt: skip
def describes_memory(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    return [
        [info.name for info in s.get_input_memory_infos()], [info.name for info in s.get_output_memory_infos()],
        [device.ep_name for device in s.get_input_epdevices()],
    ]  # fmt: skip


@member("InferenceSession.get_provider_graph_assignment_info")
def tells_assignment(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    groups = ort.InferenceSession(case.bytes, options).get_provider_graph_assignment_info()
    # ONNX Runtime reports the operators that remain after its optimizations.
    assert all(node.op_type for group in groups for node in group.get_nodes()) and groups
    return [attempt(session(ort, case).get_provider_graph_assignment_info), sorted({g.ep_name for g in groups})]


@member("InferenceSession.get_tuning_results", "InferenceSession.set_tuning_results",
        "InferenceSession.set_ep_dynamic_options", "InferenceSession.release_captured_graph")  # fmt: skip
def has_little_used_members(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    return [
        s.get_tuning_results(), s.set_tuning_results([]), attempt(s.set_ep_dynamic_options, {}),
        s.set_ep_dynamic_options({"key": "value"}), s.release_captured_graph(),
    ]  # fmt: skip


@member("InferenceSession.end_profiling", "InferenceSession.get_profiling_start_time_ns",
        "SessionOptions.enable_profiling", "SessionOptions.profile_file_prefix")  # fmt: skip
def profiles(ort: Any, case: Case, folder: Path) -> Any:
    import json

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / f"profile_{ort.__name__}")
    s = ort.InferenceSession(case.bytes, options)
    assert s.get_profiling_start_time_ns() > 0
    s.run(None, case.feeds)
    file = s.end_profiling()
    assert file.startswith(options.profile_file_prefix) and file.endswith(".json")
    events = json.loads(Path(file).read_text())
    assert all({"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"} <= event.keys() for event in events)
    names = {event["name"] for event in events if event["cat"] == "Session"}
    nodes = [event for event in events if event["cat"] == "Node"]
    assert nodes and all(event["args"]["op_name"] for event in nodes)
    known = {"model_loading_array", "session_initialization", "model_run", "SequentialExecutor::Execute"}
    return [sorted(names & known), s.end_profiling(), session(ort, case).end_profiling()]


@member("InferenceSession.create_ortvalue_from_shape_and_type", "OrtValue.ortvalue_from_shape_and_type")
def makes_values(ort: Any, case: Case, folder: Path) -> Any:
    value = session(ort, case).create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu", 0)
    make = ort.OrtValue.ortvalue_from_shape_and_type
    return [
        value.shape(), value.data_type(), make([2], 7).data_type(), make([], np.int64).shape(),
        make([0, 2], np.float16).numpy(), attempt(make, [2, -1], np.float32), attempt(make, [2], 99),
        attempt(make, [2]), attempt(make, [2], np.float32, "cuda", 0),
    ]  # fmt: skip


@member("InferenceSession.run")
def refuses_wrong_models(ort: Any, case: Case, folder: Path) -> Any:
    (folder / "garbage.onnx").write_bytes(b"garbage")
    unknown = onnx.load_from_string(case.bytes)
    unknown.graph.node[0].op_type = "NoSuchOperator"
    dangling = onnx.load_from_string(case.bytes)
    next(node for node in dangling.graph.node if node.input).input[0] = "nowhere"
    outcomes = [
        attempt(ort.InferenceSession, source)
        for source in (
            "/nowhere.onnx",
            str(folder / "garbage.onnx"),
            folder / "nothing.onnx",
            b"",
            b"garbage",
            case.bytes[:100],
            5,
            None,
            "",
            unknown.SerializeToString(),
            dangling.SerializeToString(),
        )  # fmt: skip
    ]
    return [*outcomes, attempt(ort.InferenceSession), attempt(ort.InferenceSession, case.bytes, 5)]


@member("InferenceSession.run")
def is_not_copied(ort: Any, case: Case, folder: Path) -> Any:
    import copy

    s = session(ort, case)
    return [attempt(pickle.dumps, s), attempt(copy.deepcopy, s), type(copy.copy(s)).__name__]


# IOBinding


@member("InferenceSession.io_binding", "InferenceSession.run_with_iobinding", "IOBinding.bind_cpu_input",
        "IOBinding.bind_output", "IOBinding.copy_outputs_to_cpu", "IOBinding.get_outputs",
        "IOBinding.get_outputs_as_ortvaluevector", "IOBinding.synchronize_inputs",
        "IOBinding.synchronize_outputs")  # fmt: skip
def binds_arrays(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    binding = s.io_binding()
    for name, array in case.feeds.items():
        binding.bind_cpu_input(name, array)
    for port in s.get_outputs():
        binding.bind_output(port.name)
    s.run_with_iobinding(binding)
    once = binding.copy_outputs_to_cpu()
    s.run_with_iobinding(binding, ort.RunOptions())
    return [
        once, binding.copy_outputs_to_cpu(), [value.numpy() for value in binding.get_outputs()],
        len(binding.get_outputs_as_ortvaluevector()), binding.synchronize_inputs(), binding.synchronize_outputs(),
    ]  # fmt: skip


@member("IOBinding.bind_input", "IOBinding.bind_output", "OrtValue.data_ptr")
def binds_memory(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    binding = s.io_binding()
    for name, array in case.feeds.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    expected = s.run(None, case.feeds)
    memory = [np.zeros_like(array) for array in expected]
    for port, array in zip(s.get_outputs(), memory):
        binding.bind_output(port.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    s.run_with_iobinding(binding)
    values = binding.get_outputs()
    same = [value.data_ptr() == array.ctypes.data for value, array in zip(values, memory)]
    return [memory, same, attempt(binding.bind_output, "y", "cpu", 0, None, None, memory[0].ctypes.data)]


@member("IOBinding.bind_ortvalue_input", "IOBinding.bind_ortvalue_output")
def binds_values(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    binding = s.io_binding()
    for name, value in values(ort, case).items():
        binding.bind_ortvalue_input(name, value)
    results = []
    for port, array in zip(s.get_outputs(), s.run(None, case.feeds)):
        results.append(ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type))
        binding.bind_ortvalue_output(port.name, results[-1])
    s.run_with_iobinding(binding)
    name, array = first(case)
    return [[value.numpy() for value in results], attempt(binding.bind_ortvalue_input, name, array)]


@member("IOBinding.clear_binding_inputs", "IOBinding.clear_binding_outputs")
def refuses_wrong_bindings(ort: Any, case: Case, folder: Path) -> Any:
    s = session(ort, case)
    name, array = first(case)
    output = s.get_outputs()[0].name
    outcomes = []
    binding = s.io_binding()
    outcomes.append(attempt(s.run_with_iobinding, binding))
    binding.bind_output(output)
    outcomes.append(attempt(binding.bind_cpu_input, "nothing", array))
    outcomes.append(attempt(binding.bind_cpu_input, name, [1]))
    outcomes.append(attempt(s.io_binding().bind_input, name, "cuda", 0, np.float32, array.shape, 0))
    for each, value in case.feeds.items():
        binding.bind_cpu_input(each, value)
    s.run_with_iobinding(binding)
    binding.bind_output("nothing")
    outcomes.append(attempt(s.run_with_iobinding, binding))
    binding.clear_binding_outputs()
    outcomes.append(attempt(s.run_with_iobinding, binding))
    outcomes.append(len(binding.get_outputs()))
    binding.bind_ortvalue_output(output, ort.OrtValue.ortvalue_from_shape_and_type([1, 1, 1, 1, 1], np.float32))
    outcomes.append(attempt(s.run_with_iobinding, binding))
    other = s.io_binding()
    for each, value in case.feeds.items():
        other.bind_cpu_input(each, value.astype(np.float16) if each == name else value)
    other.bind_output(output)
    outcomes.append(attempt(s.run_with_iobinding, other))
    binding.clear_binding_inputs()
    return outcomes


# OrtValue


@member("OrtValue.ortvalue_from_numpy", "OrtValue.shape", "OrtValue.data_type", "OrtValue.element_type",
        "OrtValue.device_name", "OrtValue.is_tensor", "OrtValue.is_sparse_tensor", "OrtValue.is_tensor_sequence",
        "OrtValue.has_value", "OrtValue.tensor_size_in_bytes", "OrtValue.numpy", "OrtValue.data_ptr",
        "OrtValue.as_sparse_tensor")  # fmt: skip
def describes_values(ort: Any, case: Case, folder: Path) -> Any:
    name, array = first(case)
    make = ort.OrtValue.ortvalue_from_numpy
    value = make(array)
    facts = [
        value.shape(), value.data_type(), value.element_type(), value.device_name(), value.is_tensor(),
        value.is_sparse_tensor(), value.is_tensor_sequence(), value.has_value(), value.tensor_size_in_bytes(),
        value.numpy(), value.data_ptr() == array.ctypes.data, np.shares_memory(value.numpy(), array),
        np.asarray(value), list(value.__dlpack_device__()), attempt(value.as_sparse_tensor),
    ]  # fmt: skip
    kinds = [
        [make(np.zeros(2, kind)).data_type(), make(np.zeros(2, kind)).element_type()]
        for kind in (
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float16",
            "float32",
            "float64",
        )  # fmt: skip
    ]
    wrong = [attempt(make, np.array(["a"])), attempt(make, [1, 2]), attempt(make, array, "cuda", 0)]
    return [facts, kinds, wrong, attempt(ort.OrtValue)]


@member("OrtValue.from_dlpack", "OrtValue.update_inplace", "OrtValue.ortvalue_from_numpy_with_onnx_type")
def changes_values(ort: Any, case: Case, folder: Path) -> Any:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = ort.OrtValue.from_dlpack(array)
    shared = np.shares_memory(value.numpy(), array)
    value.update_inplace(array * 2)
    wrong = attempt(value.update_inplace, np.zeros((3, 3), np.float32))
    halves = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint16), 16)
    typed = attempt(ort.OrtValue.ortvalue_from_numpy_with_onnx_type, np.zeros(2, np.uint16), 1)
    return [array, shared, np.from_dlpack(value), wrong, halves.data_type(), halves.element_type(), typed]


@member("OrtValue.ort_value_from_sparse_tensor", "OrtValue.as_sparse_tensor")
def holds_sparse_tensors(ort: Any, case: Case, folder: Path) -> Any:
    device = ort.OrtDevice.make("cpu", 0)
    shape, elements = np.array([3, 3], np.int64), np.array([1, 2], np.float32)
    sparse = ort.SparseTensor.sparse_coo_from_numpy(shape, elements, np.array([0, 4], np.int64), device)
    facts = [sparse.values(), simple(sparse.format()), sparse.data_type(), sparse.as_coo_view().indices()]
    value = ort.OrtValue.ort_value_from_sparse_tensor(sparse)
    return [facts, value.is_sparse_tensor(), value.data_type(), value.as_sparse_tensor().values()]


# SessionOptions and RunOptions

OPTIONS = ("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
           "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads", "log_severity_level",
           "log_verbosity_level", "logid", "optimized_model_filepath", "profile_file_prefix", "enable_profiling",
           "use_deterministic_compute", "use_per_session_threads")  # fmt: skip


@member(*(f"SessionOptions.{name}" for name in OPTIONS))
def has_options(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    defaults = [simple(getattr(options, name)) for name in OPTIONS]
    wrong = [attempt(setattr, options, name, object()) for name in OPTIONS]
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.intra_op_num_threads, options.inter_op_num_threads, options.logid = 1, 1, "name"
    for name in ("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse"):
        setattr(options, name, False)
    options.use_deterministic_compute = True
    options.log_severity_level, options.log_verbosity_level = 3, 1
    changed = [simple(getattr(options, name)) for name in OPTIONS]
    results = ort.InferenceSession(case.bytes, options).run(None, case.feeds)
    return [defaults, wrong, changed, attempt(setattr, options, "nothing", 1), results]


@member("SessionOptions.optimized_model_filepath")
def writes_the_optimized_model(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(case.bytes, options)
    return ort.InferenceSession(str(folder / "optimized.onnx")).run(None, case.feeds)


@member("SessionOptions.add_session_config_entry", "SessionOptions.get_session_config_entry",
        "RunOptions.add_run_config_entry", "RunOptions.get_run_config_entry")  # fmt: skip
def has_entries(ort: Any, case: Case, folder: Path) -> Any:
    session_options, run_options = ort.SessionOptions(), ort.RunOptions()
    session_options.add_session_config_entry("key", "value")
    run_options.add_run_config_entry("key", "value")
    return [
        session_options.get_session_config_entry("key"), run_options.get_run_config_entry("key"),
        attempt(session_options.get_session_config_entry, "nothing"),
        attempt(run_options.get_run_config_entry, "nothing"),
        attempt(session_options.add_session_config_entry, "key", 1),
    ]  # fmt: skip


@member("SessionOptions.add_free_dimension_override_by_name",
        "SessionOptions.add_free_dimension_override_by_denotation")  # fmt: skip
def fixes_dimensions(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 3)
    options.add_free_dimension_override_by_name("nothing", 3)
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    digits = CASES["digits"]()
    s = ort.InferenceSession(digits.bytes, options)
    wrong = attempt(s.run, None, {"image": digits.feeds["image"][:2]})
    return [ports(s.get_inputs()), ports(s.get_outputs()), s.run(None, digits.feeds), wrong]


def addition(external: bool, folder: Path) -> Any:
    """Creates a model whose initializer is also an input, or has external data."""
    weight = numpy_helper.from_array(np.array([1, 2, 3, 4], np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    inputs = [x] if external else [x, helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", inputs, [y], initializer=[weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if not external:
        return model.SerializeToString()
    onnx.save(model, folder / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    return str(folder / "a.onnx")


@member("SessionOptions.add_initializer", "SessionOptions.add_external_initializers")
def replaces_initializers(ort: Any, case: Case, folder: Path) -> Any:
    x = np.ones((2, 4), np.float32)
    value = ort.OrtValue.ortvalue_from_numpy(np.full(4, 9, np.float32))
    outcomes = []
    for external in (False, True):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if external:
            options.add_external_initializers(["w"], [value])
        else:
            options.add_initializer("w", value)
        outcomes.append(ort.InferenceSession(addition(external, folder), options).run(None, {"x": x}))
    internal = ort.SessionOptions()
    internal.log_severity_level = 3
    internal.add_external_initializers(["w"], [value])
    outcomes.append(attempt(ort.InferenceSession, addition(False, folder), internal))
    outcomes += [attempt(options.add_initializer, "w", 5), attempt(options.add_external_initializers, ["w"], [])]
    return outcomes


@member("SessionOptions.add_external_initializers_from_files_in_memory")
def reads_files_in_memory(ort: Any, case: Case, folder: Path) -> Any:
    model = onnx.load(addition(True, folder), load_external_data=False).SerializeToString()
    data = (folder / "a.data").read_bytes()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_external_initializers_from_files_in_memory(["a.data"], [data], [len(data)])
    return ort.InferenceSession(model, options).run(None, {"x": np.ones((2, 4), np.float32)})


@member("InferenceSession.get_overridable_initializers")
def overrides_initializers(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    s = ort.InferenceSession(addition(False, folder), options)
    x = np.ones((2, 4), np.float32)
    return [
        ports(s.get_overridable_initializers()), s.run(None, {"x": x}),
        s.run(None, {"x": x, "w": np.full(4, 7, np.float32)}), s.run(None, {"x": x}),
    ]  # fmt: skip


@member("SessionOptions.add_provider", "SessionOptions.has_providers", "SessionOptions.add_provider_for_devices",
        "SessionOptions.set_provider_selection_policy", "SessionOptions.set_provider_selection_policy_delegate",
        "SessionOptions.clear_ep_context_data_read_func")  # fmt: skip
def adds_providers(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    before = options.has_providers()
    options.add_provider("CPUExecutionProvider", {})
    wrong = attempt(options.add_provider, "Nothing", {})
    results = ort.InferenceSession(case.bytes, options).run(None, case.feeds)
    policy = ort.SessionOptions()
    policy.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    policy.clear_ep_context_data_read_func()
    delegated = ort.SessionOptions()
    delegated.set_provider_selection_policy_delegate(lambda devices, model, runtime, count: devices[:1])
    named = ort.SessionOptions()
    named.add_provider_for_devices(ort.get_ep_devices(), {})
    return [before, options.has_providers(), wrong, results, attempt(policy.set_provider_selection_policy, 1)]


@member("SessionOptions.set_load_cancellation_flag")
def cancels_loading(ort: Any, case: Case, folder: Path) -> Any:
    options = ort.SessionOptions()
    options.set_load_cancellation_flag(True)
    cancelled = attempt(ort.InferenceSession, case.bytes, options)
    options.set_load_cancellation_flag(False)
    return [cancelled, ort.InferenceSession(case.bytes, options).run(None, case.feeds)]


@member("RunOptions.log_severity_level", "RunOptions.log_verbosity_level", "RunOptions.logid",
        "RunOptions.only_execute_path_to_fetches", "RunOptions.terminate")  # fmt: skip
def has_run_options(ort: Any, case: Case, folder: Path) -> Any:
    names = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches", "terminate")
    options = ort.RunOptions()
    defaults = [getattr(options, name) for name in names]
    wrong = [attempt(setattr, options, name, object()) for name in (*names, "nothing")]
    options.only_execute_path_to_fetches, options.logid, options.log_severity_level = True, "name", 3
    s = session(ort, case)
    results = s.run([s.get_outputs()[0].name], case.feeds, options)
    options.terminate = True
    ended = attempt(s.run, None, case.feeds, options)
    options.terminate = False
    return [defaults, wrong, results, ended, s.run(None, case.feeds, options)]


@member(*UNSUPPORTED)
def refuses_by_name(ort: Any, case: Case, folder: Path) -> Any:
    if ort is onnxruntime:
        return None
    options, run_options = ort.SessionOptions(), ort.RunOptions()
    existing = folder / "library.so"
    existing.write_bytes(b"")
    for name, call in {
        "register_custom_ops_library": lambda: options.register_custom_ops_library(str(existing)),
        "set_ep_context_data_read_func": lambda: options.set_ep_context_data_read_func(print),
        "add_active_adapter": lambda: run_options.add_active_adapter(None),
        "register_execution_provider_library": lambda: ort.register_execution_provider_library("a", existing),
        "LoraAdapter": lambda: ort.LoraAdapter(),
        "ModelCompiler": lambda: ort.ModelCompiler(ort.SessionOptions(), case.bytes),
    }.items():
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented, match=name):
            call()
    return None


# Functions of the module


@member("module.get_available_providers", "module.get_all_providers", "module.get_device", "module.get_version_string",
        "module.has_collective_ops", "module.enable_telemetry_events", "module.disable_telemetry_events",
        "module.set_default_logger_severity", "module.set_default_logger_verbosity",
        "module.set_default_logger_callback", "module.set_seed", "module.preload_dlls", "module.get_build_info",
        "module.print_debug_info", "module.get_ep_devices",
        "module.unregister_execution_provider_library", "module.register_execution_provider_library",
        "module.create_and_register_allocator_v2", "module.set_global_thread_pool_sizes")  # fmt: skip
def has_functions(ort: Any, case: Case, folder: Path) -> Any:
    assert isinstance(ort.get_build_info(), str)
    assert ort.print_debug_info() is None
    found = [
        ort.get_available_providers(), sorted(ort.get_all_providers()), ort.get_device(), ort.get_version_string(),
        ort.has_collective_ops(), ort.enable_telemetry_events(), ort.disable_telemetry_events(),
        ort.set_default_logger_severity(3), attempt(ort.set_default_logger_severity, 9),
        ort.set_default_logger_verbosity(0), ort.set_default_logger_callback(None), ort.set_seed(1),
        attempt(ort.set_seed, "text"), ort.preload_dlls(), ort.version, ort.package_name, ort.__version__,
        [device.ep_name for device in ort.get_ep_devices()],
        attempt(ort.unregister_execution_provider_library, "nothing"),
        attempt(ort.register_execution_provider_library, "nothing", "/nowhere.so"),
    ]  # fmt: skip
    ort.set_default_logger_severity(2)
    return found


@member("module.create_and_register_allocator")
def has_allocators(ort: Any, case: Case, folder: Path) -> Any:
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    arena = ort.OrtArenaCfg({"max_mem": 1 << 20})
    registered = ort.create_and_register_allocator(info, None) if ort is byoc.onnxruntime else None
    return [info.name, info.device_id, simple(info.mem_type), simple(info.allocator_type), arena.max_mem, registered]


@member("module.copy_tensors")
def copies_tensors(ort: Any, case: Case, folder: Path) -> Any:
    if ort is onnxruntime:
        # ONNX Runtime requires a provider with a data transfer for this call.
        return np.arange(3, dtype=np.float32)
    to = ort.OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(np.arange(3, dtype=np.float32))], [to])
    return to.numpy()


def members(ort: Any) -> list[str]:
    """Returns the public members that scripts use."""
    names = []
    for kind in ("InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding"):
        names += [f"{kind}.{name}" for name in dir(getattr(ort, kind)) if not name.startswith("_")]
    for name in dir(ort):
        value = getattr(ort, name)
        if not name.startswith("_") and callable(value) and not isinstance(value, type):
            names.append(f"module.{name}")
    return names


def test_every_member_has_a_test() -> None:
    assert [name for name in members(onnxruntime) if name not in SITUATIONS] == []


def test_every_class_exists() -> None:
    classes = [name for name in dir(onnxruntime) if isinstance(getattr(onnxruntime, name), type)]
    assert [name for name in classes if not hasattr(byoc.onnxruntime, name)] == []
    state = onnxruntime.capi.onnxruntime_pybind11_state
    ours = byoc.onnxruntime.capi.onnxruntime_pybind11_state
    for name in dir(state):
        value = getattr(state, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert getattr(ours, name).__mro__[1:] == (Exception, BaseException, object), name
        if hasattr(onnxruntime, name) and hasattr(value, "__members__"):
            known = {key: int(number) for key, number in value.__members__.items()}
            mine = {key: int(number) for key, number in getattr(byoc.onnxruntime, name).__members__.items()}
            assert known == mine, name


ALL = list(dict.fromkeys(situation for situations in SITUATIONS.values() for situation in situations))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("situation", ALL, ids=lambda situation: situation.__name__)
def test_equal_behavior(situation: Callable[..., Any], case: Case, tmp_path: Path) -> None:
    expected, found = (simple(situation(ort, case, tmp_path)) for ort in BOTH)
    assert difference(found, expected) is None


MESSAGES = (
    lambda s, x: s.run(["nothing"], {"image": x}),
    lambda s, x: s.run(None, {"nothing": x}),
    lambda s, x: s.run(None, {"image": x, "nothing": x}),
    lambda s, x: s.run(None, {"image": x[0]}),
    lambda s, x: s.run(None, {"image": x[:, :, :4]}),
    lambda s, x: s.run(None, {"image": x.astype(np.float64)}),
    lambda s, x: s.run(None, {"image": "text"}),
)


@pytest.mark.parametrize("call", MESSAGES)
def test_equal_messages(call: Callable[..., Any], digits: Case) -> None:
    texts = []
    for ort in BOTH:
        with pytest.raises(Exception) as raised:
            call(ort.InferenceSession(digits.bytes), digits.feeds["image"])
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_wrong_calls_leak_nothing(digits: Case) -> None:
    s = byoc.onnxruntime.InferenceSession(digits.bytes)

    def rounds(count: int) -> None:
        for _ in range(count):
            for call in MESSAGES:
                attempt(call, s, digits.feeds["image"])
            attempt(byoc.onnxruntime.InferenceSession, b"garbage")

    rounds(100)
    before = resident()
    rounds(500)
    assert resident() - before < 2_000_000


def test_runs_on_a_backend(digits: Case) -> None:
    options = byoc.onnxruntime.SessionOptions()
    options.add_session_config_entry("byoc.backend", "ccompiler")
    options.add_free_dimension_override_by_name("batch", 3)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    s = byoc.onnxruntime.InferenceSession(digits.bytes, options)
    assert any(len(group.get_nodes()) > 1 for group in s.get_provider_graph_assignment_info())
    expected = onnxruntime.InferenceSession(digits.bytes).run(None, digits.feeds)
    assert close(s.run(None, digits.feeds)[0], expected[0])


def test_big_endian_arrays_are_read_right(digits: Case) -> None:
    image = digits.feeds["image"]
    s = byoc.onnxruntime.InferenceSession(digits.bytes)
    assert close(s.run(None, {"image": image.astype(">f4")})[0], s.run(None, {"image": image})[0])
