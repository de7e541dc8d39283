"""What Ray gives: its package, and the threads of a worker."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from .._errors import MissingDependency

INSTALL = 'pip install "ray[data,serve]"'


def require(module: str = "ray", hint: str = INSTALL) -> Any:
    """Imports a module of a package that byoc does not bring, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        package = module.partition(".")[0]
        message = f"expected the package {package}, which byoc.ray needs: {cause}"
        raise MissingDependency(message, code="E0624", hint=hint) from cause


def whole_threads(cpus: float | None) -> int:
    """Returns the number of threads for a number of processors as Ray counts them: the whole ones, and at least one."""
    return max(1, int(cpus or 0))


def worker_threads() -> int:
    """Returns the number of threads that this process may use: `num_cpus` in a worker of Ray, 0 for all elsewhere."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 0
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return 0
    assigned = context.get_assigned_resources().get("CPU")
    if assigned is None:
        # Ray sets the variable for workers without processors of their own, too.
        text = os.environ.get("OMP_NUM_THREADS", "")
        assigned = int(text) if text.isdecimal() else 1
    return whole_threads(assigned)
