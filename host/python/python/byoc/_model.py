"""Models: compilation, artifacts, runs."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _byoc, _place
from ._errors import CompilationWarning, ModelError
from ._explanation import Explanation
from ._session import Session, default_session


class Port(NamedTuple):
    """Input or output of a model. A dimension is a size, a name, or None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


class Model(_byoc.Model):
    """Compiled model, created by `byoc.compile` or `byoc.load`. Any number of threads may run it concurrently."""

    @property
    def inputs(self) -> list[Port]:
        """Inputs of the model."""
        return [Port(name, dtype, tuple(dims)) for name, dtype, dims in self.input_ports]

    @property
    def outputs(self) -> list[Port]:
        """Outputs of the model."""
        return [Port(name, dtype, tuple(dims)) for name, dtype, dims in self.output_ports]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to an artifact, which `byoc.load` reads. The file appears once it is complete."""
        self.save_to(os.fspath(path))

    def explain(self) -> Explanation:
        """Returns the placement of each operator, with the refusals of other backends."""
        return Explanation(self)

    def plan(self) -> dict[str, Any]:
        """Returns the plan of a run as plain data: the program's functions with their steps, registers and arenas."""
        import json

        return json.loads(self.plan_json())

    def run(
        self,
        feeds: Mapping[str, Any] | Sequence[Any],
        *,
        timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Runs the model on inputs by name, or in order, and returns the results by name.

        timeout: time limit in seconds.
        options: per-run options of backends, such as {"mychip.level": "high"}.
        """
        return self.run_dict(feeds, timeout, _options(options) if options else None)

    async def run_async(self, feeds: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """Runs the model without blocking the event loop. Cancelling the task cancels the run."""
        import asyncio

        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def resolve() -> None:
            if not ended.done():
                ended.set_result(None)

        def done() -> None:
            try:
                loop.call_soon_threadsafe(resolve)
            except RuntimeError:
                pass  # The event loop is closed, so nothing awaits the result.

        pending, has_ended = self.start(feeds, done)
        if not has_ended:
            try:
                await ended
            except BaseException:
                pending.cancel()
                raise
        return dict(zip((port[0] for port in self.output_ports), pending.result()))

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __reduce__(self):
        return _restore, (self.to_bytes(),)

    def __repr__(self) -> str:
        def ports(ports: list[Port]) -> str:
            dims = [(p, ", ".join("?" if dim is None else str(dim) for dim in p.shape)) for p in ports]
            return ", ".join(f"{_byoc.escaped(port.name)}: {port.dtype}[{shape}]" for port, shape in dims)

        return f"<byoc.Model ({ports(self.inputs)}) -> ({ports(self.outputs)})>"


def _restore(artifact: bytes) -> Model:
    return load(artifact)


def compile(  # noqa: A001
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    backend: str | Sequence[str] | None = None,
    dims: Mapping[str, int | Sequence[int] | None] | None = None,
    options: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    folder: str | os.PathLike[str] | None = None,
    session: Session | None = None,
    progress: Callable[[str], object] | bool | None = None,
    adapt: bool = True,
    on_failure: str = "next",
    precision: str = "f32",
) -> Model:
    """Compiles and loads a model.

    model: path of a .onnx or .relay file or of a directory in ONNX test-data layout; bytes of an ONNX file; an
        onnx.ModelProto; a relay.IRModule; or a torch.nn.Module, with example_inputs.
    backend: backends in priority order, such as "dnnl,ccompiler"; "auto" selects all. Operators that no backend
        supports run on the host; by default, all operators run on the host.
    dims: sizes of symbolic dimensions by name. None, the default, leaves a dimension symbolic, so that its size may
        differ from run to run; a list of sizes also leaves it symbolic, and compiles a specialized program per size.
    options: backend options, such as {"dnnl.bf16": True}.
    input_shapes: shapes of inputs whose shapes the model does not declare.
    folder: directory of the external data of a model given as bytes or ModelProto.
    progress: callable invoked with a description of each stage; True shows the stages on standard error, False hides
        them. By default, they are shown on a terminal once a compilation takes more than a second.
    adapt: whether input shapes that come twice in a row get a program of their own, compiled before the second run. It
        applies to models with symbolic dimensions whose weights are in one file; `Model.adapted` counts the programs.
    on_failure: what happens to a region that its backend fails to compile: "next" asks the next backend, then splits
        the region, then leaves the rest to the host; "split" begins with the split; "host" leaves the region to the
        host; "error" raises byoc.Error.
    precision: lowest precision of computation that a float32 model allows: "f32", "tf32", "bf16" or "f16". An option of
        a backend, such as "dnnl.bf16", may allow that backend more.
    """
    if on_failure not in ("next", "split", "host", "error"):
        raise ValueError(f'on_failure: expected "next", "split", "host" or "error", found {on_failure!r}')
    source, bound = _source(model, example_inputs)
    fixed, opened = _dims(dims)
    backends = _backends(backend)
    with _Progress(progress) as report:
        choices = {
            "backends": backends,
            "options": _options(options),
            "fixed_dims": fixed,
            "open_dims": opened,
            "input_shapes": [(name, list(shape)) for name, shape in {**bound, **(input_shapes or {})}.items()],
            "adapt": adapt,
            "precision": precision,
            "keep_partition": False,
            "host_only": backend in ("none", "host"),
            "on_failure": on_failure,
            "progress": report,
        }
        made = Model(session or default_session(), source, os.fspath(folder) if folder else None, choices)
    if "dnnl" in backends and (missing := _place.missing_onednn()):
        warnings.warn(missing, CompilationWarning, stacklevel=2)
    return _warned(made)


def load(artifact: Any, *, session: Session | None = None) -> Model:
    """Loads an artifact from a path or from its bytes. A uint8 array is used without a copy."""
    if isinstance(artifact, (bytes, bytearray, memoryview)):
        source = bytes(artifact)
    else:
        source = artifact if hasattr(artifact, "__array_interface__") else os.fspath(artifact)
    return _warned(Model(session or default_session(), source))


def _warned(model: Model) -> Model:
    for text in model.warnings:
        warnings.warn(text, CompilationWarning, stacklevel=3)
    return model


def explain(model: Any, *args: Any, **options: Any) -> Explanation:
    """Returns the placement of each operator of a model, with the refusals of other backends.

    Accepts a compiled model, the path of an artifact, or a model that `compile` accepts, with its options.
    """
    if isinstance(model, Model):
        return model.explain()
    if isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith(".byoc"):
        return load(model, **options).explain()
    return compile(model, *args, **options).explain()


def _source(model: Any, example_inputs: Sequence[Any] | None) -> tuple[Any, dict[str, list[int]]]:
    """Returns the path or the bytes of a model, and the input shapes that the model itself does not declare."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model), {}
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model), {}
    if isinstance(native := getattr(model, "_native", model), _byoc.RelayModule):
        return native, {}
    if hasattr(model, "SerializeToString"):
        try:
            return model.SerializeToString(), {}
        except ValueError as cause:
            hint = "save the model with onnx.save(model, path, save_as_external_data=True), and pass the path"
            raise ModelError(f"cannot serialize the model: {cause}", "E0501", hint) from cause
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from ._export import export

        return export(model, example_inputs), {}
    raise TypeError(
        "expected a path, the bytes of an ONNX file, an onnx.ModelProto or a torch.nn.Module, "
        f"found {type(model).__module__}.{type(model).__qualname__}"
    )


def _backends(backend: str | Sequence[str] | None) -> list[str]:
    if backend is None:
        return []
    names = backend.split(",") if isinstance(backend, str) else list(backend)
    return [name.strip() for name in names if name.strip() and name.strip() not in ("none", "host")]


def _options(options: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    found = []
    for name, value in (options or {}).items():
        if isinstance(value, Mapping):
            found.extend((name, option, text(inner)) for option, inner in value.items())
            continue
        backend, dot, option = name.partition(".")
        if not dot:
            raise ValueError(f'options: expected "BACKEND.OPTION", found "{name}"')
        found.append((backend, option, text(value)))
    return found


def _dims(dims: Mapping[str, Any] | None) -> tuple[list[tuple[str, int]], list[tuple[str, list[int]]]]:
    fixed, opened = [], []
    for name, size in (dims or {}).items():
        if size is None or size == "?":
            opened.append((name, []))
        elif hasattr(size, "__index__"):
            if int(size) < 0:
                raise ValueError(f'dims: expected a size >= 0 for "{name}", found {size}')
            fixed.append((name, int(size)))
        elif isinstance(size, (list, tuple, range)):
            opened.append((name, [int(one) for one in size]))
        else:
            raise TypeError(f'dims: expected a size, a list of sizes or None for "{name}", found {size!r}')
    return fixed, opened


class _Progress:
    """Shows the stages of a compilation on one line of standard error, once it has taken more than a second."""

    def __init__(self, choice: Callable[[str], object] | bool | None) -> None:
        self.choice = choice
        self.shown = 0
        self.start = time.monotonic()

    def __enter__(self) -> Callable[[str], object] | None:
        if callable(self.choice):
            return self.choice
        if self.choice or (self.choice is None and sys.stderr is not None and sys.stderr.isatty()):
            return self.show
        return None

    def show(self, stage: str) -> None:
        if self.choice or time.monotonic() - self.start >= 1:
            text = f"byoc: {stage}"[:100]
            sys.stderr.write("\r" + text.ljust(self.shown))
            sys.stderr.flush()
            self.shown = len(text)

    def __exit__(self, *_exception: object) -> None:
        if self.shown:
            sys.stderr.write("\r" + " " * self.shown + "\r")
            sys.stderr.flush()
