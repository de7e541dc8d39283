"""ONNX Runtime's interface on top of byoc: scripts written for its CPU provider run with one changed import, and
programs without a change.

    import byoc.onnxruntime as onnxruntime
    python -m byoc.onnxruntime program.py

Sessions run on the host; the session configuration entry "byoc.backend" selects backends of byoc. Features for other
devices, LoRA, custom-operator libraries and precompiled contexts raise NotImplemented with the name of the feature.
"""

from .. import __version__ as byoc_version
from . import capi
from ._binding import IOBinding, SessionIOBinding
from ._describe import ModelMetadata, NodeArg
from ._enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    ModelPackageWriteMode,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from ._install import install, uninstall
from ._options import RunOptions, SessionOptions
from ._runtime import (
    OrtArenaCfg,
    OrtDevice,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtHardwareDevice,
    OrtMemoryInfo,
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_ep_devices,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    register_execution_provider_library,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from ._session import InferenceSession, Session
from ._unsupported import (
    AdapterFormat,
    LoraAdapter,
    ModelCompiler,
    ModelPackage,
    ModelPackageComponentContext,
    ModelPackageContext,
    ModelPackageOptions,
    OrtEpContextData,
    OrtEpContextDataBuffer,
    OrtExternalInitializerInfo,
    OrtSyncStream,
)
from ._value import OrtValue, OrtValueVector, SparseTensor, copy_tensors

# Version of ONNX Runtime whose interface this module implements.
__version__ = get_version_string()
version = __version__
package_name = "onnxruntime"
cuda_version = ""
import_capi_exception = None

__all__ = [name for name in dir() if not name.startswith("_")]
