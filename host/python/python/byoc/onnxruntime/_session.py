"""Inference sessions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _byoc, _errors
from . import _exceptions
from ._binding import IOBinding
from ._config import options_of_model
from ._describe import ModelMetadata, NodeArg, node_arg
from ._engine import Engine, default_backend, read, session_of
from ._exceptions import InvalidArgument
from ._feeds import to_value
from ._options import RunOptions, SessionOptions
from ._profile import Profile
from ._program import Program
from ._providers import normalize as normalize_providers
from ._runtime import (
    CPU,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtMemoryInfo,
    cpu_memory,
)
from ._types import number_of, render
from ._value import OrtValue, OrtValueVector

_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_FOLDER = "session.model_external_initializers_file_folder_path"
_BACKEND = "byoc.backend"


class Session:
    """Base class of inference sessions."""


class InferenceSession(Session):
    """Session with a loaded model."""

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
        self._enable_fallback = bool(kwargs.get("enable_fallback", True))
        if not providers and self._options._providers:
            providers = self._options._providers
        self._provider_options = self._choose_providers(providers, provider_options)
        self._load()

    # Attributes that programs read, although their names are private.

    @property
    def _model_path(self) -> str | None:
        return self._source if isinstance(self._source, str) else None

    @property
    def _model_bytes(self) -> bytes | None:
        return self._source if isinstance(self._source, bytes) else None

    @property
    def _sess_options(self) -> SessionOptions:
        return self._options

    @property
    def _sess(self) -> _Native:
        return _Native(self)

    # Construction

    def _choose_providers(self, providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
        try:
            return normalize_providers(providers, provider_options)
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
        except _errors.ModelError as error:
            text = "Failed to load model because protobuf parsing failed."
            if isinstance(self._source, str):
                text = f"Load model from {self._source} failed:Protobuf parsing failed."
            raise _exceptions.InvalidProtobuf.of(text) from error
        if not self._metadata["has_graph"]:
            raise InvalidArgument.of("No graph was found in the protobuf.")
        self._options = options_of_model(self._metadata["metadata_props"], self._options)
        self._profile = Profile(self._options.profile_file_prefix) if self._options.enable_profiling else None
        if self._options._cancelled:
            raise _exceptions.ModelLoadCanceled.of("Graph loading canceled due to user request.")
        ports = self._metadata["inputs"] + self._metadata["overridable"] + self._metadata["outputs"]
        for _, declared, _ in ports:
            if "sparse" in render(declared):
                raise _exceptions.unsupported(f"an input or output of the type {render(declared)}")
        source, folder = self._replace_initializers(data)
        if isinstance(source, bytes) and folder is None:
            folder = self._options._entries.get(_FOLDER)
        try:
            self._engine = self._compile(source, folder)
        except _errors.Error as error:
            raise _exceptions.of_model(error, self._metadata["opsets"]) from error
        if self._options.optimized_model_filepath:
            with open(self._options.optimized_model_filepath, "wb") as file:
                file.write(read(source))
        sizes = self._options._dims
        known = {port[0]: port[2] for port in self._engine.model.output_ports} if self._engine.model else {}
        self._inputs = [node_arg(port, sizes, None) for port in self._metadata["inputs"]]
        self._outputs = [node_arg(port, sizes, known.get(port[0])) for port in self._metadata["outputs"]]
        self._overridable = [node_arg(port, sizes, None) for port in self._metadata["overridable"]]
        self._input_names = frozenset(port.name for port in self._inputs)
        self._required_names = frozenset(port.name for port in self._inputs if not port.type.startswith("optional("))
        # Values other than arrays of numbers are converted as ONNX Runtime does.
        self._has_numbers = all(
            port.type.startswith("tensor(") and port.type != "tensor(string)" for port in self._inputs
        )
        self._types = {port.name: port.type for port in self._outputs}
        self._output_names = [port.name for port in self._outputs]
        self._overridable_names = frozenset(port.name for port in self._overridable)
        if self._profile is not None:
            self._profile.session("model_loading_array", self._start)
            self._profile.session("session_initialization", self._start)

    def _compile(self, source: str | bytes, folder: str | None) -> Engine | Program:
        """Compiles the entire model, or in parts if the engine does not support all of it."""
        choices = {
            "backend": self._options._entries.get(_BACKEND, default_backend()),
            "dims": self._options._dims,
            "folder": folder,
        }
        session = session_of(self._options.intra_op_num_threads)
        try:
            return Engine(source, self._metadata, session, **choices)
        except _errors.ModelError:
            try:
                program = Program(source, self._metadata, session, **choices)
            except Exception:
                program = None
            if program is None or not program.is_needed:
                raise
            return program

    def _value(self, name: str, value: Any) -> OrtValue:
        """Wraps the value of an output."""
        return OrtValue(value, _type=self._types.get(name))

    def _replace_initializers(self, data: bytes) -> tuple[str | bytes, str | None]:
        """Returns the model source with the initializers replaced by the options, and its directory."""
        values = {**self._options._external, **self._options._initializers}
        external = self._metadata["external"]
        missing = [name for name in values if name not in self._metadata["initializers"]]
        if missing:
            raise InvalidArgument.of(f"Invalid initializer name: {missing[0]}")
        internal = [name for name in self._options._external if name not in external]
        if internal:
            raise _exceptions.Fail.of(f"Trying to replace non-external initializer with external data: {internal[0]}")
        tensors = []
        for name, value in values.items():
            array = value.numpy()
            tensors.append((name, number_of(array.dtype), list(array.shape), array.tobytes()))
        for name, (location, *place) in external.items():
            if name not in values and location in self._options._files:
                tensors.append(_of_file(name, self._options._files[location], location, *place))
        if not tensors:
            return self._source, None
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
        """Returns the initializers that are also inputs, whose values a run may override."""
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
        """Replaces the providers."""
        if providers is not None:
            iter(providers)
        self._provider_options = normalize_providers(providers, provider_options)

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
        """Returns the groups of operators that run together, with their devices."""
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
        """Returns an empty list, because there is no tuning."""
        return []

    def set_tuning_results(self, results: list[Any], *, error_on_invalid: bool = False) -> None:
        """Accepted for compatibility."""
        if results and error_on_invalid:
            raise RuntimeError("byoc.onnxruntime has no tuning results")

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """Accepted for compatibility."""
        if not options:
            raise RuntimeError("No options were provided")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Does nothing: the CPU captures no graphs."""

    # Profiling

    def end_profiling(self) -> str:
        """Writes the profile, and returns its file name; "" if profiling is disabled."""
        if self._profile is None:
            return ""
        name, self._profile = self._profile.write(), None
        return name

    def get_profiling_start_time_ns(self) -> int:
        """Returns the start time of the profile in nanoseconds."""
        return self._profile.start_ns if self._profile is not None else 0

    # Runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the model, and returns the named outputs, or all of them, as arrays."""
        if not self._required_names <= input_feed.keys():
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
        missing = [
            port.name for port in self._inputs if port.name in self._required_names and port.name not in input_feed
        ]
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
        if model is not None and self._has_numbers and self._profile is None and type(input_feed) is dict:
            try:
                return model.run_list(input_feed, None, cancel)
            except _errors.Error:
                pass  # The checks below raise ONNX Runtime's exception for the invalid input.
        feeds, engine = self._checked(input_feed)
        try:
            if isinstance(engine, Program):
                return self._run_parts(engine, feeds, cancel)
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
            raise _exceptions.of_run(error) from error

    def _run_parts(self, program: Program, feeds: Mapping[str, Any], cancel: Any) -> list[Any]:
        start, events = time.perf_counter(), None if self._profile is None else []
        results = program.run(feeds, cancel, events)
        if self._profile is not None:
            for event in events:
                event[3] -= start
            self._profile.run(start, events)
        return results

    def _checked(self, input_feed: Mapping[str, Any]) -> tuple[dict[str, Any], Engine]:
        """Checks the inputs, and returns them as arrays with the engine that accepts them."""
        overrides = tuple(sorted(name for name in input_feed if name in self._overridable_names))
        ports = {port.name: port for port in self._inputs + self._overridable}
        feeds = {}
        for name, value in input_feed.items():
            if name not in ports:
                raise InvalidArgument.of(f"Invalid input name: {name}")
            feeds[name] = to_value(value, ports[name])
        return feeds, self._engine.overriding(overrides) if overrides else self._engine

    def _select(self, output_names: Sequence[str], results: list[Any]) -> list[Any]:
        selected, seen = [], set()
        for name in output_names:
            result = results[self._output_names.index(name)]
            selected.append(result.copy() if name in seen and result is not None else result)
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

        if not self._required_names <= input_feed.keys():
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
        if not self._required_names <= input_dict_ort_values.keys():
            self._require(input_dict_ort_values)
        feeds = {name: value._get_c_value()._value for name, value in input_dict_ort_values.items()}
        results = self.run(output_names, feeds, run_options)
        return [self._value(name, value) for name, value in zip(output_names or self._output_names, results)]

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
        """Runs the model on bound inputs and outputs."""
        iobinding._run(run_options)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Creates a value of the given shape with uninitialized elements."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)


class _Native:
    """Session with the signatures of ONNX Runtime's native class, where they differ."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def inputs_meta(self) -> list[NodeArg]:
        return self._session.get_inputs()

    @property
    def outputs_meta(self) -> list[NodeArg]:
        return self._session.get_outputs()

    @property
    def overridable_initializers(self) -> list[NodeArg]:
        return self._session.get_overridable_initializers()

    @property
    def model_meta(self) -> ModelMetadata:
        return self._session.get_modelmeta()

    def run_with_ort_values(
        self, feeds: Mapping[str, OrtValue], output_names: Sequence[str] | None, run_options: RunOptions | None = None
    ) -> OrtValueVector:
        return OrtValueVector(self._session.run_with_ort_values(output_names, feeds, run_options))


def _of_file(
    name: str, file: bytes, location: str, offset: int, length: int | None, number: int, dims: list[int]
) -> Any:
    """Returns an initializer with the data of a file in memory. Its size is checked where the model is read."""
    end = len(file) if length is None else offset + length
    if not 0 <= offset <= end <= len(file):
        raise InvalidArgument.of(
            f"External initializer: {name}: expected bytes {offset} to {end} of the file {location}, which is in "
            f"memory, found {len(file)} bytes"
        )
    return name, number, dims, file[offset:end]
