"""Calls of functions that users write: their errors name the function and its line."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from .._errors import ModelError


def failure(what: str, function: Callable, cause: BaseException) -> ModelError:
    """Creates the exception for a function of the user that raised an exception."""
    frames = traceback.extract_tb(cause.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"
    message = f"{what}: expected {name_of(function)} to return, found {type(cause).__name__} at {place}: {cause}"
    return ModelError(message, "E0318", "correct the function, or let it return False for what is not supported")


def name_of(function: Callable) -> str:
    """Returns the name of a function with its place."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def checked(what: str, function: Callable | None) -> Callable[..., bool] | None:
    """Wraps a function that answers yes or no."""
    if function is None:
        return None

    def call(*args: Any) -> bool:
        try:
            answer = function(*args)
        except ModelError:
            raise
        except Exception as cause:
            raise failure(what, function, cause) from cause
        if not isinstance(answer, (bool, int, np.bool_)):
            message = f"{what}: expected {name_of(function)} to return True or False, found {answer!r}"
            raise ModelError(message, "E0318", "end the function with a return of a Boolean")
        return bool(answer)

    return call
