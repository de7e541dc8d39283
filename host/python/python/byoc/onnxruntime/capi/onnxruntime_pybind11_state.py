"""Exceptions and classes under the names that scripts import from `onnxruntime.capi.onnxruntime_pybind11_state`."""

from .._binding import SessionIOBinding  # noqa: F401
from .._describe import ModelMetadata, NodeArg  # noqa: F401
from .._enums import *  # noqa: F403
from .._exceptions import (  # noqa: F401
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from .._options import RunOptions, SessionOptions  # noqa: F401
from .._quantize import (  # noqa: F401
    quantize_matmul_2bits,
    quantize_matmul_4bits,
    quantize_matmul_8bits,
    quantize_matmul_bnb4,
    quantize_qdq_matmul_4bits,
)
from .._runtime import *  # noqa: F403
from .._session import InferenceSession  # noqa: F401
from .._value import OrtValue, OrtValueVector, SparseTensor  # noqa: F401


def is_dlpack_uint8_tensor(_capsule: object) -> bool:
    """Returns False: DLPack has a type for Booleans."""
    return False


def get_default_session_options() -> SessionOptions:
    """Returns session options with their defaults."""
    return SessionOptions()
