"""Export of PyTorch modules to ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Sequence
from typing import Any

import torch

from ._errors import MissingDependency


def export(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
) -> bytes:
    """Exports a module to ONNX, and returns the contents of the file."""
    if example_inputs is None:
        raise TypeError("expected example_inputs with a torch.nn.Module, found None")
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    try:
        import onnxscript  # noqa: F401
    except ImportError as cause:
        raise MissingDependency(
            f"cannot import the package onnxscript, which the export of PyTorch models requires: {cause}",
            code="E0624",
            hint="pip install onnxscript",
        ) from cause
    training = module.training
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            program = torch.onnx.export(
                module.eval(),
                inputs,
                dynamo=True,
                dynamic_shapes=dynamic_shapes,
                input_names=input_names,
                verbose=False,
                # byoc simplifies the graph itself, in a fraction of the time.
                optimize=False,
            )
    finally:
        log.setLevel(level)
        module.train(training)
    return program.model_proto.SerializeToString()
