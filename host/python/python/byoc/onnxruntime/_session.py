"""Sessions, and the binding of their inputs and outputs to memory."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _byoc, _errors
from . import _exceptions
from ._engine import Engine, read, session_of
from ._exceptions import InvalidArgument
from ._options import RunOptions, SessionOptions
from ._profile import Profile
from ._runtime import (
    CPU,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtMemoryInfo,
    check_device,
    cpu_memory,
    get_all_providers,
    get_available_providers,
)
from ._types import NUMBER_OF, number_of, type_name
from ._value import OrtValue, OrtValueVector

_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_FOLDER = "session.model_external_initializers_file_folder_path"
_BACKEND = "byoc.backend"


class NodeArg:
    """Input or output of a model."""

    __slots__ = ("name", "shape", "type")

    def __init__(self, name: str, type: str, shape: list[int | str | None]) -> None:  # noqa: A002
        self.name, self.type, self.shape = name, type, shape

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class ModelMetadata:
    """Metadata of a model."""

    __slots__ = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.producer_name: str = metadata["producer_name"]
        self.graph_name: str = metadata["graph_name"]
        self.domain: str = metadata["domain"]
        self.description: str = metadata["doc_string"]
        self.graph_description: str = metadata["graph_doc_string"]
        self.version: int = metadata["model_version"]
        self.custom_metadata_map: dict[str, str] = metadata["metadata_props"]


class Session:
    """Common part of sessions."""


class InferenceSession(Session):
    """Model that is ready to run."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(path_or_bytes, (str, os.PathLike)):
            self._source: str | bytes = os.fspath(path_or_bytes)
        elif isinstance(path_or_bytes, (bytes, bytearray)):
            self._source = bytes(path_or_bytes)
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if self._source == "" or not (sess_options is None or isinstance(sess_options, SessionOptions)):
            raise TypeError(
                "__init__(): incompatible constructor arguments: expected SessionOptions and a path or bytes, "
                f"found {sess_options!r} and {path_or_bytes!r}"
            )
        self._options = sess_options._copy() if sess_options is not None else SessionOptions()
        self._start = time.perf_counter()
        self._profile = Profile(self._options.profile_file_prefix) if self._options.enable_profiling else None
        self._enable_fallback = bool(kwargs.get("enable_fallback", True))
        if not providers and self._options._providers:
            providers = self._options._providers
        self._provider_options = self._choose_providers(providers, provider_options)
        self._load()

    # Construction

    def _choose_providers(self, providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
        try:
            return _normalize_providers(providers, provider_options)
        except (ValueError, RuntimeError) as error:
            if not self._enable_fallback:
                raise
            print("*************** EP Error ***************")  # noqa: T201
            print(f"EP Error {error} when using {providers}")  # noqa: T201
            print(f"Falling back to ['{CPU}'] and retrying.")  # noqa: T201
            print("****************************************")  # noqa: T201
            return {CPU: {}}

    def _load(self) -> None:
        data = read(self._source)
        try:
            self._metadata = _byoc.onnx_metadata(data)
        except _errors.ModelError:
            text = "Failed to load model because protobuf parsing failed."
            if isinstance(self._source, str):
                text = f"Load model from {self._source} failed:Protobuf parsing failed."
            raise _exceptions.InvalidProtobuf.of(text) from None
        if not self._metadata["has_graph"]:
            raise InvalidArgument.of("No graph was found in the protobuf.")
        if self._options._cancelled:
            raise _exceptions.ModelLoadCanceled.of("Graph loading canceled due to user request.")
        for number, kind in ((port[2], port[1]) for port in self._metadata["inputs"] + self._metadata["outputs"]):
            if kind != "tensor" or number == 8:
                name = type_name(number, kind)
                raise _exceptions.NotImplemented.of(
                    f"expected inputs and outputs that are tensors of numbers, found {name}"
                )
        source, folder = self._replace_initializers(data)
        if isinstance(source, bytes) and folder is None:
            folder = self._options._entries.get(_FOLDER)
        try:
            self._engine = Engine(
                source,
                self._metadata,
                session_of(self._options.intra_op_num_threads),
                backend=self._options._entries.get(_BACKEND),
                dims=self._options._dims,
                folder=folder,
            )
        except _errors.Error as error:
            raise _exceptions.of_model(error, self._metadata["opsets"]) from error
        if self._options.optimized_model_filepath:
            with open(self._options.optimized_model_filepath, "wb") as file:
                file.write(read(source))
        sizes = self._options._dims
        known = {port[0]: port[2] for port in self._engine.model.output_ports} if self._engine.model else {}
        self._inputs = [_node_arg(port, sizes, None) for port in self._metadata["inputs"]]
        self._outputs = [_node_arg(port, sizes, known.get(port[0])) for port in self._metadata["outputs"]]
        self._overridable = [_node_arg(port, sizes, None) for port in self._metadata["overridable"]]
        self._input_names = frozenset(port.name for port in self._inputs)
        self._output_names = [port.name for port in self._outputs]
        self._overridable_names = frozenset(port.name for port in self._overridable)
        if self._profile is not None:
            self._profile.session("model_loading_array", self._start)
            self._profile.session("session_initialization", self._start)

    def _replace_initializers(self, data: bytes) -> tuple[str | bytes, str | None]:
        """Returns the source of the model with the initializers that the options replace, and its folder."""
        values = {**self._options._external, **self._options._initializers}
        if not values:
            return self._source, None
        missing = [name for name in values if name not in self._metadata["initializers"]]
        if missing:
            raise InvalidArgument.of(f"Invalid initializer name: {missing[0]}")
        internal = [name for name in self._options._external if name not in self._metadata["external"]]
        if internal:
            raise _exceptions.Fail.of(f"Trying to replace non-external initializer with external data: {internal[0]}")
        tensors = []
        for name, value in values.items():
            array = value.numpy()
            tensors.append((name, number_of(array.dtype), list(array.shape), array.tobytes()))
        folder = os.path.dirname(os.path.abspath(self._source)) if isinstance(self._source, str) else None
        return _byoc.onnx_edited(data, tensors, []), folder

    def __copy__(self) -> InferenceSession:
        copy = InferenceSession.__new__(InferenceSession)
        copy.__dict__.update(self.__dict__)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle 'onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession' object")

    # Descriptions

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Returns the initializers that are inputs as well, whose value a run may replace."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """Returns the metadata of the model."""
        return ModelMetadata(self._metadata)

    def get_session_options(self) -> SessionOptions:
        """Returns the options of the session."""
        return self._options

    def get_providers(self) -> list[str]:
        """Returns the providers."""
        return list(self._provider_options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Returns the options of the providers."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Chooses providers anew."""
        if providers is not None:
            iter(providers)
        self._provider_options = _normalize_providers(providers, provider_options)

    def enable_fallback(self) -> None:
        """Falls back to the CPU if a provider is unknown."""
        self._enable_fallback = True

    def disable_fallback(self) -> None:
        """Raises if a provider is unknown."""
        self._enable_fallback = False

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Describes the memory of each input."""
        return [cpu_memory() for _ in self._inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Describes the memory of each output."""
        return [cpu_memory() for _ in self._outputs]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Returns the device of each input."""
        return [OrtEpDevice() for _ in self._inputs]

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Returns which operators run together, and where."""
        if self._options._entries.get(_ASSIGNMENT) != "1":
            raise _exceptions.Fail.of(
                f"Session configuration entry '{_ASSIGNMENT}' must be set to \"1\" to retrieve EP graph assignment "
                "information."
            )
        groups: dict[Any, list[OrtEpAssignedNode]] = {}
        nodes = self._engine.model.explain().nodes if self._engine.model else []
        for node in nodes:
            place = node["placement"]
            groups.setdefault(place.get("region") or node["id"], []).append(
                OrtEpAssignedNode(node["source"], node["op"])
            )
        return [OrtEpAssignedSubgraph(CPU, nodes) for nodes in groups.values()]

    def get_tuning_results(self) -> list[Any]:
        """Returns nothing: there is no tuning."""
        return []

    def set_tuning_results(self, results: list[Any], *, error_on_invalid: bool = False) -> None:
        """Kept for compatibility."""
        if results and error_on_invalid:
            raise RuntimeError("byoc.onnxruntime has no tuning results")

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """Kept for compatibility."""
        if not options:
            raise RuntimeError("No options were provided")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Does nothing: the CPU captures no graphs."""

    # Profiling

    def end_profiling(self) -> str:
        """Writes the profile, and returns the name of its file; "" if there is none."""
        if self._profile is None:
            return ""
        name, self._profile = self._profile.write(), None
        return name

    def get_profiling_start_time_ns(self) -> int:
        """Returns when the profile began."""
        return self._profile.start_ns if self._profile is not None else 0

    # Runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the model, and returns the named outputs, or all of them, as arrays."""
        if not self._input_names <= input_feed.keys():
            self._require(input_feed)
        if output_names is not None and (
            isinstance(output_names, (str, bytes)) or not all(isinstance(name, str) for name in output_names)
        ):
            raise TypeError(f"run(): incompatible function arguments: expected output names, found {output_names!r}")
        if run_options is not None and not isinstance(run_options, RunOptions):
            raise TypeError(f"run(): incompatible function arguments: expected RunOptions, found {run_options!r}")
        results = self._run(output_names, input_feed, run_options)
        if not output_names:
            return results
        return self._select(output_names, results)

    def _require(self, input_feed: Mapping[str, Any]) -> None:
        missing = [port.name for port in self._inputs if port.name not in input_feed]
        raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(input_feed)}).")

    def _run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None
    ) -> list[Any]:
        """Runs the model, and returns all outputs."""
        for name in output_names or ():
            if name not in self._output_names:
                raise InvalidArgument.of(f"Invalid output name:{name}")
        cancel = run_options._cancel if run_options is not None else None
        if cancel is not None and cancel.is_set():
            raise _exceptions.Fail.of("Exiting due to terminate flag being set to true.")
        model = self._engine.model
        if model is not None and self._profile is None and type(input_feed) is dict:
            try:
                return model.run_list(input_feed, None, cancel)
            except _errors.Error:
                pass  # What is wrong is found below, and said in ONNX Runtime's words.
        feeds, engine = self._checked(input_feed)
        try:
            model = engine.model_for(feeds)
            if self._profile is None:
                return model.run_list(feeds, None, cancel)
            start = time.perf_counter()
            results, events = model.run_traced(feeds)
            self._profile.run(start, events)
            return results
        except _errors.Cancelled:
            raise _exceptions.Fail.of("Exiting due to terminate flag being set to true.") from None
        except (_errors.InputError, _errors.ModelError) as error:
            raise InvalidArgument.of(str(error)) from error
        except _errors.Error as error:
            raise _exceptions.Fail.of(str(error)) from error

    def _checked(self, input_feed: Mapping[str, Any]) -> tuple[dict[str, Any], Engine]:
        """Returns the inputs as arrays of the right type and shape, and the engine that takes them."""
        overrides = tuple(sorted(name for name in input_feed if name in self._overridable_names))
        ports = {port.name: port for port in self._inputs + self._overridable}
        feeds = {}
        for name, value in input_feed.items():
            if name not in ports:
                raise InvalidArgument.of(f"Invalid input name: {name}")
            feeds[name] = _array(value, ports[name])
        return feeds, self._engine.overriding(overrides) if overrides else self._engine

    def _select(self, output_names: Sequence[str], results: list[Any]) -> list[Any]:
        selected, seen = [], set()
        for name in output_names:
            result = results[self._output_names.index(name)]
            selected.append(result.copy() if name in seen else result)
            seen.add(name)
        return selected

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs the model on another thread, and calls `callback` with the results, `user_data`, and an error or ""."""
        import threading

        if not self._input_names <= input_feed.keys():
            self._require(input_feed)

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:
                results, error = [], str(raised).split(" : ", 3)[-1].replace("output name:", "output name: ")
            callback(results, user_data, error)

        threading.Thread(target=work, name="byoc-run-async", daemon=True).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Runs the model on values, and returns values."""
        if not self._input_names <= input_dict_ort_values.keys():
            self._require(input_dict_ort_values)
        feeds = {name: value._get_c_value().numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(array) for array in self.run(output_names, feeds, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Runs the model on values in order, and adds the results to `fetches`."""
        values = self.run_with_ort_values(fetch_names, dict(zip(feed_names, feeds)), run_options)
        fetches[:] = values

    def io_binding(self) -> IOBinding:
        """Returns a binding of inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Runs the model on what is bound."""
        iobinding._run(run_options)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Makes a value of that shape, whose elements are not set."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)


class IOBinding:
    """Inputs and outputs of a session, bound to memory."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    def _check_input(self, name: str) -> None:
        if name not in self._session._input_names and name not in self._session._overridable_names:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an input to an array."""
        import numpy as np

        if not isinstance(arr_on_cpu, np.ndarray):
            raise RuntimeError("Unable to create OrtValue from the given python object")
        self._check_input(name)
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds an input to memory."""
        _require_cpu(device_type, "input")
        self._check_input(name)
        self._inputs[name] = _memory(element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to a value."""
        array = ortvalue._get_c_value().numpy()
        self._check_input(name)
        self._inputs[name] = array

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to memory, or to memory that each run makes."""
        _require_cpu(device_type, "output")
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._outputs[name] = None if buffer_ptr is None else _memory(element_type, shape or (), buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to a value."""
        self._outputs[name] = ortvalue._get_c_value().numpy()

    def synchronize_inputs(self) -> None:
        """Does nothing: the CPU is never behind."""

    def synchronize_outputs(self) -> None:
        """Does nothing: the CPU is never behind."""

    def _run(self, run_options: RunOptions | None) -> None:
        import numpy as np

        try:
            if not self._outputs:
                raise InvalidArgument.of("At least one output should be requested.")
            missing = self._session._input_names - self._inputs.keys()
            if missing:
                raise InvalidArgument.of(f"Missing Input: {sorted(missing)[0]}")
            results = self._session._run(list(self._outputs), self._inputs, run_options)
            for (name, memory), result in zip(
                self._outputs.items(), self._session._select(list(self._outputs), results)
            ):
                if memory is None:
                    self._results[name] = result
                    continue
                if memory.shape != result.shape or memory.dtype != result.dtype:
                    raise InvalidArgument.of(
                        f"The output OrtValue provided for output '{name}' has type {memory.dtype} and shape "
                        f"{list(memory.shape)} but the computed output has type {result.dtype} and shape "
                        f"{list(result.shape)}."
                    )
                np.copyto(memory, result)
                self._results[name] = memory
        except tuple(_exceptions.ALL) as error:
            detail = str(error).split(" : ", 3)[-1].replace("output name:", "output name: ")
            raise RuntimeError(f"Error in execution: {detail}") from error

    def get_outputs(self) -> list[OrtValue]:
        """Returns the bound outputs as values."""
        return [OrtValue(self._results[name]) for name in self._outputs if name in self._results]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Returns the bound outputs as values."""
        return OrtValueVector(self.get_outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Returns the bound outputs as arrays."""
        return [value.numpy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Removes the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Removes the outputs."""
        self._outputs.clear()
        self._results.clear()


def _require_cpu(device_type: str, what: str) -> None:
    try:
        check_device(device_type)
    except RuntimeError as error:
        raise RuntimeError(f"Error when binding {what}: There's no data transfer registered: {error}") from None


def _memory(element_type: Any, shape: Sequence[int], pointer: int) -> Any:
    """Returns an array over memory of the caller, who keeps it."""
    import ctypes

    import numpy as np

    from ._types import dtype_of

    dtype = dtype_of(element_type) if isinstance(element_type, int) else np.dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64))
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(buffer, dtype=dtype, count=count).reshape(tuple(shape))


def _node_arg(port: Any, sizes: Mapping[str, int], known: Sequence[Any] | None) -> NodeArg:
    name, kind, number, dims = port
    if dims is None:
        dims = [dim if isinstance(dim, int) or str(dim).isidentifier() else None for dim in known or ()]
    elif known is not None and len(known) == len(dims):
        dims = [size if dim is None and isinstance(size, int) else dim for dim, size in zip(dims, known)]
    return NodeArg(name, type_name(number, kind), [sizes.get(dim, dim) for dim in dims])


def _array(value: Any, port: NodeArg) -> Any:
    """Converts the value of an input, or raises what ONNX Runtime raises."""
    import numpy as np

    if isinstance(value, OrtValue):
        value = value.numpy()
    if value is None:
        raise _exceptions.Fail.of(f"Missing Input: {port.name}")
    if isinstance(value, (str, bytes)):
        raise RuntimeError(f"Input must be a list of dictionaries or a single numpy array for input '{port.name}'.")
    if isinstance(value, Mapping):
        raise InvalidArgument.of(
            f"Unexpected input data type. Actual: ((map(string,tensor(float)))) , expected: (({port.type}))"
        )
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__"):
            value = np.from_dlpack(value)
        elif isinstance(value, tuple):
            raise RuntimeError(f"Input must be a list of dictionaries or a single numpy array for input '{port.name}'.")
        elif isinstance(value, list):
            try:
                value = np.asarray(value, dtype=_dtype_name(port.type))
            except (ValueError, TypeError):
                raise RuntimeError("Could not create tensor from given input list") from None
        else:
            raise RuntimeError(f"Unable to handle object of type {type(value)}")
    number = number_of(value.dtype)
    if number is None or type_name(number) != port.type:
        actual = type_name(number) if number is not None else f"tensor({value.dtype})"
        raise InvalidArgument.of(f"Unexpected input data type. Actual: ({actual}) , expected: ({port.type})")
    _check_shape(value.shape, port)
    return value


def _dtype_name(type_text: str) -> str:
    return next(name for name, number in NUMBER_OF.items() if type_name(number) == type_text)


def _check_shape(shape: tuple[int, ...], port: NodeArg) -> None:
    if not port.shape and not shape:
        return
    advice = "Please fix either the inputs/outputs or the model."
    if len(shape) != len(port.shape):
        raise InvalidArgument.of(
            f"Invalid rank for input: {port.name} Got: {len(shape)} Expected: {len(port.shape)} {advice}"
        )
    wrong = [
        f" index: {index} Got: {found} Expected: {expected}\n"
        for index, (found, expected) in enumerate(zip(shape, port.shape))
        if isinstance(expected, int) and expected != found
    ]
    if wrong:
        raise InvalidArgument.of(
            f"Got invalid dimensions for input: {port.name} for the following indices\n{''.join(wrong)} {advice}"
        )


def _normalize_providers(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Returns the chosen providers with their options; the CPU is always last."""
    if not providers:
        return {CPU: {}}
    if provider_options is not None and len(provider_options) != len(providers):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    chosen: dict[str, dict[str, str]] = {}

    def add(name: str, options: Mapping[Any, Any]) -> None:
        if name in chosen:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
            return
        if name not in get_available_providers():
            available = ", ".join(get_available_providers())
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names.Available providers: '{available}'",
                stacklevel=5,
            )
            if name not in get_all_providers():
                raise RuntimeError(f"Unknown Provider Type: {name}")
            return
        chosen[name] = {str(key): str(value) for key, value in options.items()}

    for index, provider in enumerate(providers):
        given = provider_options[index] if provider_options is not None else {}
        if isinstance(provider, str):
            add(provider, given)
        elif (
            isinstance(provider, tuple)
            and len(provider) == 2
            and isinstance(provider[0], str)
            and isinstance(provider[1], dict)
        ):
            add(provider[0], provider[1])
        else:
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
    chosen.setdefault(CPU, {})
    return chosen
