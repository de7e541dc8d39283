"""Exceptions and classes under the names that scripts import from `onnxruntime.capi.onnxruntime_pybind11_state`."""

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
from .._runtime import *  # noqa: F403
from .._value import OrtValue, OrtValueVector  # noqa: F401
