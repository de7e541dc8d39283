"""Import of Ray, and the number of threads of a worker."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from .._errors import MissingDependency

INSTALL = 'pip install "ray[data,serve]"'


def require(module: str = "ray", hint: str = INSTALL) -> Any:
    """Imports a module of an optional package; the exception for a missing package shows how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        package = module.partition(".")[0]
        message = f"cannot import the package {package}, which byoc.ray requires: {cause}"
        raise MissingDependency(message, code="E0624", hint=hint) from cause


def whole_threads(cpus: float | None) -> int:
    """Returns the number of threads for Ray's possibly fractional number of processors: rounded down, at least one."""
    return max(1, int(cpus or 0))


def worker_threads() -> int:
    """Returns the number of threads that this process may use: `num_cpus` in a Ray worker, otherwise 0 for all."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 0
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return 0
    assigned = context.get_assigned_resources().get("CPU")
    if assigned is None:
        # Ray also sets the variable for workers without assigned processors.
        text = os.environ.get("OMP_NUM_THREADS", "")
        assigned = int(text) if text.isdecimal() else 1
    return whole_threads(assigned)
