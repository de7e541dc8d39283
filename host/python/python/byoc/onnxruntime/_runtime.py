"""Module-level functions, and descriptions of devices and memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

from ._enums import OrtAllocatorType, OrtDeviceMemoryType, OrtDeviceVendorId, OrtHardwareDeviceType, OrtMemType
from ._exceptions import Fail, unsupported

CPU = "CPUExecutionProvider"

# Release of ONNX Runtime whose interface this module implements.
_INTERFACE = "1.32.0"

_ALL_PROVIDERS = (
    "Tensorrt", "CUDA", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "VSINPU", "Js", "CoreML", "Dml",
    "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure", "CPU",
)  # fmt: skip


def get_available_providers() -> list[str]:
    """Returns the providers of ONNX Runtime's CPU package."""
    return ["AzureExecutionProvider", CPU]


def get_all_providers() -> list[str]:
    """Returns the names of all providers of ONNX Runtime."""
    return [f"{name}ExecutionProvider" for name in _ALL_PROVIDERS]


def get_device() -> str:
    """Returns the device type."""
    return "CPU"


def get_version_string() -> str:
    """Returns the release of ONNX Runtime that this module implements; `byoc_version` is the version of byoc."""
    return _INTERFACE


def get_build_info() -> str:
    """Returns a description of the build."""
    from .. import __version__

    return f"ORT Build Info: byoc {__version__} with the interface of ONNX Runtime {_INTERFACE}"


def has_collective_ops() -> bool:
    """Returns True if collective operators are available."""
    return False


def enable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def set_default_logger_severity(severity: int) -> None:
    """Checks the severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal. Compilation warnings are Python warnings."""
    if not 0 <= int(severity) <= 4:
        raise RuntimeError(
            "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal: "
            f"severity >= 0 && severity <= 4 was false for {severity}"
        )


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted for compatibility."""
    int(verbosity)


def set_default_logger_callback(callback: Callable[..., object] | None) -> None:
    """Accepted for compatibility: byoc does not log by default."""
    if callback is not None and not callable(callback):
        raise TypeError("set_default_logger_callback(): incompatible function arguments: expected a callable or None")


def set_seed(seed: int) -> None:
    """Accepted for compatibility: random operators of byoc use the seed in the model."""
    if not hasattr(seed, "__index__"):
        raise TypeError(f"set_seed(): incompatible function arguments. Invoked with: {seed!r}")


def set_global_thread_pool_sizes(intra: int, inter: int) -> None:
    """Sets the default number of threads, for sessions whose options do not specify it."""
    from ._engine import set_default_threads

    int(inter)
    set_default_threads(int(intra))


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Accepted for compatibility: sessions share no allocator."""
    if not isinstance(memory_info, OrtMemoryInfo):
        raise TypeError("create_and_register_allocator(): incompatible function arguments: expected OrtMemoryInfo")


def create_and_register_allocator_v2(
    provider_type: str, memory_info: OrtMemoryInfo, options: dict[str, str], arena_cfg: OrtArenaCfg | None = None
) -> None:
    """Accepted for compatibility: sessions share no allocator."""
    if provider_type not in get_available_providers():
        raise RuntimeError(f"Unknown Provider Type: {provider_type}")
    create_and_register_allocator(memory_info, arena_cfg)


def register_execution_provider_library(registration_name: str, library_path: str | os.PathLike[str]) -> None:
    """Not available: byoc finds plugins in its plugin directories."""
    path = os.fspath(library_path)
    if not os.path.exists(path):
        raise Fail.of(
            f"Failed to load library {path} with error: {path}: cannot open shared object file: "
            "No such file or directory"
        )
    raise unsupported("register_execution_provider_library")


def unregister_execution_provider_library(registration_name: str) -> None:
    """Always fails, because no library can be registered."""
    raise Fail.of(f"Execution provider library: {registration_name} was not registered.")


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Does nothing: the CPU provider requires no CUDA libraries."""


def print_debug_info() -> None:
    """Prints the versions and the platform."""
    from .. import __version__

    lines = (
        f"byoc.onnxruntime version: {_INTERFACE} (byoc {__version__})",
        f"platform: {platform.platform()}",
        f"package: {os.path.dirname(os.path.abspath(__file__))}",
    )
    print("\n".join(lines))  # noqa: T201


class OrtMemoryInfo:
    """Memory description."""

    def __init__(self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType) -> None:
        if name not in ("Cpu", "CPU", "cpu"):
            raise unsupported(f'OrtMemoryInfo of "{name}"')
        self.name, self.allocator_type, self.device_id, self.mem_type = name, allocator_type, int(device_id), mem_type
        self.device_mem_type = OrtDeviceMemoryType.DEFAULT
        self.device_vendor_id = 0

    @staticmethod
    def create_v2(name: str, *arguments: Any) -> OrtMemoryInfo:
        """Creates a description; the additional details do not apply to the CPU."""
        return OrtMemoryInfo(name, OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT)


class OrtArenaCfg:
    """Arena settings, accepted for compatibility."""

    def __init__(self, *settings: Any) -> None:
        names = ("max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk")
        given = settings[0] if len(settings) == 1 and isinstance(settings[0], dict) else dict(zip(names, settings))
        self.max_mem = int(given.get("max_mem", 0))
        self.arena_extend_strategy = int(given.get("arena_extend_strategy", -1))
        self.initial_chunk_size_bytes = int(given.get("initial_chunk_size_bytes", -1))
        self.max_dead_bytes_per_chunk = int(given.get("max_dead_bytes_per_chunk", -1))
        self.initial_growth_chunk_size_bytes = int(given.get("initial_growth_chunk_size_bytes", -1))
        self.max_power_of_two_extend_bytes = int(given.get("max_power_of_two_extend_bytes", -1))


class OrtDevice:
    """Device. Numbers of devices and memory are those of ONNX Runtime's native class; only the CPU has memory here."""

    def __init__(self, device_type: Any = 0, memory_type: int = 0, device_id: int = 0, *_others: Any) -> None:
        self._type = device_type._type if isinstance(device_type, OrtDevice) else int(device_type)
        self._id = int(device_id)

    @staticmethod
    def cpu() -> int:
        """Number of the CPU."""
        return 0

    @staticmethod
    def default_memory() -> int:
        """Number of the memory of the CPU."""
        return 0

    # Numbers of devices that this module does not have.
    cuda = gpu = webgpu = staticmethod(lambda: 1)
    fpga = staticmethod(lambda: 2)
    npu = cann = staticmethod(lambda: 3)
    dml = staticmethod(lambda: 4)

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1) -> OrtDevice:
        """Creates a device from its name."""
        return OrtDevice(get_ort_device_type(ort_device_name), 0, device_id)

    def device_id(self) -> int:
        """Device number."""
        return self._id

    def device_type(self) -> int:
        """Device type; 0 for the CPU."""
        return self._type

    def device_vendor_id(self) -> int:
        """Vendor of the device; 0 for the CPU."""
        return 0

    def device_mem_type(self) -> int:
        """Memory type."""
        return 0


_OTHER_DEVICES = ("cuda", "cann", "dml", "webgpu", "gpu", "fpga", "npu", "hip", "migraphx", "rocm", "xpu")


def get_ort_device_type(device_type: str, device_index: int = 0) -> int:
    """Returns the number of a device type."""
    number = {"cpu": 0, "fpga": 2, "npu": 3, "cann": 3, "dml": 4}.get(device_type.lower())
    if number is None and device_type not in _OTHER_DEVICES:
        raise Exception(f"Unsupported device type: {device_type}")
    return 1 if number is None else number


def check_device(device: str | OrtDevice) -> None:
    """Raises an exception unless the device is the CPU."""
    number = device.device_type() if isinstance(device, OrtDevice) else get_ort_device_type(device)
    if number != OrtDevice.cpu():
        raise RuntimeError(
            f'Can\'t allocate memory on the device "{device}" using this package: byoc.onnxruntime runs on the CPU.'
        )


class OrtHardwareDevice:
    """Processor description."""

    def __init__(self) -> None:
        self.type = OrtHardwareDeviceType.CPU
        self.vendor = platform.processor() or platform.machine()
        self.vendor_id = 0
        self.device_id = 0
        self.metadata: dict[str, str] = {}


class OrtEpDevice:
    """Device of a provider."""

    def __init__(self) -> None:
        self.ep_name = CPU
        self.ep_vendor = "byoc"
        self.ep_metadata = {"version": _INTERFACE}
        self.ep_options: dict[str, str] = {}
        self.device = OrtHardwareDevice()

    def memory_info(self, kind: Any = None) -> OrtMemoryInfo:
        """Describes the memory."""
        return cpu_memory()

    def create_sync_stream(self, options: Any = None) -> Any:
        """Not available: the CPU has no streams."""
        raise unsupported("OrtEpDevice.create_sync_stream")


def cpu_memory() -> OrtMemoryInfo:
    """Returns the description of the memory of inputs and outputs."""
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT)


def get_ep_devices() -> list[OrtEpDevice]:
    """Returns the devices: the CPU."""
    return [OrtEpDevice()]


class OrtEpAssignedNode:
    """Operator of a model."""

    def __init__(self, name: str, op_type: str, domain: str = "") -> None:
        self.name, self.op_type, self.domain = name, op_type, domain


class OrtEpAssignedSubgraph:
    """Operators that run together."""

    def __init__(self, ep_name: str, nodes: list[OrtEpAssignedNode]) -> None:
        self.ep_name, self._nodes = ep_name, nodes

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Returns the operators."""
        return list(self._nodes)
