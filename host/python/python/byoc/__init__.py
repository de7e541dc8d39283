"""byoc compiles neural-network models and runs them on backends that are loaded at run time.

import byoc
model = byoc.compile("model.onnx", backend="dnnl")
print(model.explain())
y = model(x)
"""

import os as _os

from . import _byoc
from ._errors import (
    ArtifactError,
    BackendError,
    Cancelled,
    ClosedError,
    CompilationWarning,
    Error,
    ForkError,
    InputError,
    MissingDependency,
    ModelError,
    OutOfMemory,
    RunError,
    TimedOut,
)
from ._explanation import Explanation
from ._model import Model, Port, compile, explain, load
from ._session import Session, configure
from ._tools import export_onnx, plugins, quantize, verify, zoo

__version__ = _byoc.__version__

__all__ = [
    "ArtifactError",
    "BackendError",
    "Cancelled",
    "ClosedError",
    "CompilationWarning",
    "Error",
    "Explanation",
    "ForkError",
    "InputError",
    "MissingDependency",
    "Model",
    "ModelError",
    "OutOfMemory",
    "Port",
    "RunError",
    "Session",
    "TimedOut",
    "compile",
    "configure",
    "explain",
    "export_onnx",
    "load",
    "plugins",
    "quantize",
    "register_backend",
    "relay",
    "test_backend",
    "unregister_backend",
    "verify",
    "zoo",
]


def __getattr__(name: str):
    """Imports what needs NumPy or the operator table on first use."""
    import importlib

    if name == "relay":
        return importlib.import_module(".relay", __name__)
    if name in ("register_backend", "test_backend", "unregister_backend"):
        return getattr(importlib.import_module("._backend", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _warn_of_namesake() -> None:
    """Warns if the unrelated distribution "byoc" is installed into the same directory."""
    try:
        names = _os.listdir(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))
    except OSError:
        return
    if any(name.startswith("byoc-") and name.endswith(".dist-info") for name in names):
        import warnings

        warnings.warn(
            'the distributions "byoc" and "byoc-ml" are both installed, and both provide the package "byoc", so that '
            'files of one replace those of the other; run "pip uninstall byoc byoc-ml", then "pip install byoc-ml"',
            stacklevel=3,
        )


_warn_of_namesake()
