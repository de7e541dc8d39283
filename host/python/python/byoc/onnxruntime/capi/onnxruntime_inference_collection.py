"""Classes under the names that scripts import from `onnxruntime.capi.onnxruntime_inference_collection`."""

from .._binding import IOBinding  # noqa: F401
from .._runtime import OrtDevice  # noqa: F401
from .._session import InferenceSession, Session  # noqa: F401
from .._value import OrtValue, SparseTensor  # noqa: F401
