"""Exceptions. Each has a stable code, which a page of the documentation describes, and a hint."""

from __future__ import annotations

import re

# Options of the command line in messages, and what they are called here.
_NAMES = (
    (r"byoc quantize MODEL --calibrate DATA --backend (\w+) -o FILE\.relay",
     r'byoc.quantize(MODEL, DATA, "FILE.relay", backend="\1")'),
    (r'--dim "([^"=]+)=\?"', r'dims={"\1": None}'),
    (r"--dim ([^\s=]+)=N,N\.\.", r'dims={"\1": [N, ...]}'),
    (r"--dim ([^\s=]+)=N", r'dims={"\1": N}'),
    (r"--input ([^\s=]+)=FILE", r'input_shapes={"\1": SHAPE}'),
    (r"`?--backend none`?", "backend=None"),
    (r"--backend (\w+)", r'backend="\1"'),
    (r"--timeout SECONDS", "timeout=SECONDS"),
    (r"--max-memory SIZE", "byoc.configure(max_memory=BYTES)"),
    (r"--plugin-dir DIR", "byoc.configure(plugin_dirs=[DIR])"),
    (r"--allow-native no", "allow_native=False"),
)  # fmt: skip


def in_python(text: str) -> str:
    """Replaces options of the command line in a message by what they are called in Python."""
    for option, name in _NAMES:
        text = re.sub(option, name, text)
    return text


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
        self.message = in_python(message)
        self.code = code
        self.hint = hint = in_python(hint) if hint else hint
        self.context = [in_python(fact) for fact in context or ()]
        lines = [in_python(text or message)]
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
