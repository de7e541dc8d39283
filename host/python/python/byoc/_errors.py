"""Exceptions. Each has a stable code, which a page of the documentation describes, and a hint."""

from __future__ import annotations


class Error(Exception):
    """Error of byoc.

    code: stable code such as "E0612", which a page of the documentation describes.
    message: the expected and the found values, in one line.
    hint: what to do about it; may be None.
    context: further facts, one line each.
    """

    def __init__(
        self,
        message: str,
        code: str | None = None,
        hint: str | None = None,
        context: list[str] | None = None,
        text: str | None = None,
    ) -> None:
        self.message = message
        self.code = code
        self.hint = hint
        self.context = list(context or ())
        lines = [text or message]
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
    """An artifact cannot be read or written, is damaged, or was made for another machine."""


class InputError(Error, ValueError):
    """The inputs of a run do not fit the model."""


class RunError(Error, RuntimeError):
    """A run failed."""


class OutOfMemory(Error, MemoryError):
    """The memory limit was reached, or the system has no memory."""


class Cancelled(Error):
    """The work was cancelled."""


class TimedOut(Error, TimeoutError):
    """The work did not end before its deadline."""


class ClosedError(Error):
    """The model was closed."""


class ForkError(Error):
    """The model was made before a fork; its threads do not exist in this process."""


class MissingDependency(Error, ImportError):
    """A package that is needed is not installed."""


class CompilationWarning(UserWarning):
    """What a compilation or load left to the host, and why."""
