"""Classes under the names that scripts import from `onnxruntime.capi.onnxruntime_inference_collection`."""

from .._binding import IOBinding  # noqa: F401
from .._providers import check_and_normalize_provider_args  # noqa: F401
from .._runtime import OrtDevice, get_ort_device_type  # noqa: F401
from .._session import InferenceSession, Session  # noqa: F401
from .._value import OrtValue, SparseTensor, copy_tensors  # noqa: F401
