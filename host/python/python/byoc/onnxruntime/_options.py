"""Session options and run options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .. import _byoc
from ._enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, OrtExecutionProviderDevicePolicy
from ._exceptions import Fail, unsupported


class _Option:
    """Attribute of a fixed type; assigning a value of another type raises TypeError."""

    def __init__(self, kind: type, default: Any, doc: str) -> None:
        self.kind, self.default, self.__doc__ = kind, default, doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance._values.get(self.name, self.default)

    def __set__(self, instance: Any, value: Any) -> None:
        if self.kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
            value = int(value)
        if self.kind is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, self.kind):
            raise TypeError(
                f"{self.name}: incompatible function arguments: expected {self.kind.__name__}, "
                f"found {type(value).__name__}"
            )
        instance._values[self.name] = value


class _Configured:
    __slots__ = ("_entries", "_values")

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._entries: dict[str, str] = {}

    def _entry(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}")
        return self._entries[key]

    def _add_entry(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError("incompatible function arguments: expected a key and a value of type str")
        self._entries[key] = value


class SessionOptions(_Configured):
    """Session options. Options that only tune ONNX Runtime's own engine are stored, but have no effect."""

    __slots__ = ("_cancelled", "_dims", "_external", "_files", "_initializers", "_providers")

    enable_cpu_mem_arena = _Option(bool, True, "Accepted for compatibility.")
    enable_mem_pattern = _Option(bool, True, "Accepted for compatibility.")
    enable_mem_reuse = _Option(bool, True, "Accepted for compatibility.")
    enable_profiling = _Option(bool, False, "True to record runs; end_profiling writes the profile to a file.")
    execution_mode = _Option(ExecutionMode, ExecutionMode.ORT_SEQUENTIAL, "Accepted for compatibility.")
    execution_order = _Option(ExecutionOrder, ExecutionOrder.DEFAULT, "Accepted for compatibility.")
    graph_optimization_level = _Option(
        GraphOptimizationLevel, GraphOptimizationLevel.ORT_ENABLE_ALL, "Accepted for compatibility."
    )
    inter_op_num_threads = _Option(int, 0, "Accepted for compatibility.")
    intra_op_num_threads = _Option(int, 0, "Number of threads; 0 for the number of processors.")
    log_severity_level = _Option(int, -1, "Accepted for compatibility.")
    log_verbosity_level = _Option(int, 0, "Accepted for compatibility.")
    logid = _Option(str, "", "Accepted for compatibility.")
    optimized_model_filepath = _Option(str, "", "File to which the optimized model is written.")
    profile_file_prefix = _Option(str, "onnxruntime_profile_", "Prefix of the profile's file name.")
    use_deterministic_compute = _Option(bool, False, "Accepted for compatibility: byoc's results are deterministic.")
    use_per_session_threads = _Option(bool, True, "Accepted for compatibility.")

    def __init__(self) -> None:
        super().__init__()
        self._dims: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}
        self._external: dict[str, Any] = {}
        self._files: dict[str, bytes] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []
        self._cancelled = False

    def _copy(self) -> SessionOptions:
        copy = SessionOptions()
        copy._values = dict(self._values)
        copy._entries = dict(self._entries)
        copy._dims = dict(self._dims)
        copy._initializers = dict(self._initializers)
        copy._external = dict(self._external)
        copy._files = dict(self._files)
        copy._providers = list(self._providers)
        copy._cancelled = self._cancelled
        return copy

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Sets a configuration entry. "byoc.backend" selects backends of byoc; other entries have no effect."""
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Returns a configuration entry."""
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Sets the size of a symbolic dimension."""
        self._dims[str(name)] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Accepted for compatibility: has no effect, because exporters write no denotations."""
        str(denotation), int(size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Replaces the value of an initializer."""
        from ._value import OrtValue

        if not isinstance(value, OrtValue):
            raise RuntimeError(f"The provided Python object must be an OrtValue, found {type(value).__name__}")
        self._initializers[str(name)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Sets the values of initializers with external data."""
        from ._value import OrtValue

        if len(names) != len(values):
            raise RuntimeError("Expecting initializer names and values to have equal number of elements")
        for name, value in zip(names, values):
            if not isinstance(value, OrtValue):
                raise RuntimeError(f"The provided Python object must be an OrtValue, found {type(value).__name__}")
            self._external[str(name)] = value

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], files: Sequence[bytes], sizes: Sequence[int]
    ) -> None:
        """Sets the contents of files with external data, by the names that the model has for them.

        sizes: number of bytes of each file that count.
        """
        if not len(names) == len(files) == len(sizes):
            raise RuntimeError(
                "add_external_initializers_from_files_in_memory: expecting 'names', 'buffers' and 'lengths' to have "
                "equal length"
            )
        for name, file, size in zip(names, files, sizes):
            self._files[str(name)] = bytes(memoryview(file).cast("B")[: int(size)])

    def add_provider(self, name: str, options: dict[str, str] | None = None) -> None:
        """Adds a provider."""
        from ._runtime import get_available_providers

        if name not in get_available_providers():
            raise RuntimeError(f"Unknown Provider Type: {name}")
        self._providers.append((name, dict(options or {})))

    def add_provider_for_devices(self, devices: Sequence[Any], options: dict[str, str]) -> None:
        """Adds the provider of the devices, which must all be the CPU."""
        for device in devices:
            self.add_provider(device.ep_name, options)

    def has_providers(self) -> bool:
        """Returns True if a provider was added."""
        return bool(self._providers)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Accepted for compatibility: the CPU is the only device."""
        if not isinstance(policy, OrtExecutionProviderDevicePolicy):
            raise TypeError("incompatible function arguments: expected OrtExecutionProviderDevicePolicy")

    def set_provider_selection_policy_delegate(self, delegate: Any) -> None:
        """Accepted for compatibility: the CPU is the only device."""
        if not callable(delegate):
            raise TypeError("incompatible function arguments: expected a callable")

    def set_load_cancellation_flag(self, cancelled: bool) -> None:
        """Cancels the loading of models, or resets the cancellation."""
        self._cancelled = bool(cancelled)

    def set_ep_context_data_read_func(self, read_func: Any) -> None:
        """Not available."""
        raise unsupported("SessionOptions.set_ep_context_data_read_func")

    def clear_ep_context_data_read_func(self) -> None:
        """Does nothing, because no function can be set."""

    def register_custom_ops_library(self, path: str) -> None:
        """Not available: custom operators are provided by backends of byoc."""
        if not os.path.exists(path):
            raise Fail.of(
                f"Failed to load library {path} with error: {path}: cannot open shared object file: "
                "No such file or directory"
            )
        raise unsupported("SessionOptions.register_custom_ops_library")


class RunOptions(_Configured):
    """Run options."""

    __slots__ = ("_cancel",)

    log_severity_level = _Option(int, -1, "Accepted for compatibility.")
    log_verbosity_level = _Option(int, 0, "Accepted for compatibility.")
    logid = _Option(str, "", "Accepted for compatibility.")
    only_execute_path_to_fetches = _Option(bool, False, "Accepted for compatibility.")

    def __init__(self) -> None:
        super().__init__()
        self._cancel = _byoc.Cancel()

    @property
    def terminate(self) -> bool:
        """True to terminate all runs with these options, including runs in progress."""
        return self._cancel.is_set()

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"terminate: incompatible function arguments: expected bool, found {type(value).__name__}")
        self._cancel.set(value)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Sets a configuration entry, which has no effect."""
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Returns a configuration entry."""
        return self._entry(key)

    def add_active_adapter(self, adapter: Any) -> None:
        """Not available."""
        raise unsupported("RunOptions.add_active_adapter (LoRA)")
