"""Exceptions. Each has a stable code, described on its own documentation page, and a hint."""

from __future__ import annotations

from . import _byoc


class Error(Exception):
    """Base class of the exceptions of byoc.

    code: stable code such as "E0612", described on its own documentation page.
    message: one-line message with the expected and the found values.
    hint: suggested remedy; may be None.
    context: additional context, one item per line.
    """

    def __init__(
        self,
        message: str,
        code: str | None = None,
        hint: str | None = None,
        context: list[str] | None = None,
        text: str | None = None,
    ) -> None:
        # Names in messages come from models, and whoever prints an exception prints them on a terminal.
        message = _byoc.escaped(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.context = list(context or ())
        lines = [_byoc.escaped(text) if text else message]
        if hint and hint not in lines[0]:
            lines.append(f"  help: {hint}")
        super().__init__("\n".join(lines))

    def __reduce__(self):
        return _restore, (type(self), self.message, self.code, self.hint, self.context, self.args[0])


def _restore(cls, message, code, hint, context, text):
    return cls(message, code, hint, context, text)


class ModelError(Error):
    """The model cannot be read, or is invalid or unsupported."""


class BackendError(Error):
    """A backend is missing or misnamed, or its plugin failed."""


class ArtifactError(Error):
    """An artifact cannot be read or written, is corrupt, or was compiled for a different machine."""


class InputError(Error, ValueError):
    """The inputs of a run do not match the model."""


class RunError(Error, RuntimeError):
    """A run failed."""


class OutOfMemory(Error, MemoryError):
    """The memory limit was exceeded, or the system is out of memory."""


class Cancelled(Error):
    """The operation was cancelled."""


class TimedOut(Error, TimeoutError):
    """The operation did not finish before its deadline."""


class ClosedError(Error):
    """The model was closed."""


class ForkError(Error):
    """The model was created before a fork; its threads do not exist in this process."""


class MissingDependency(Error, ImportError):
    """A required package is not installed."""


class CompilationWarning(UserWarning):
    """Reports operators or regions that run on the host, and the reason."""
