"""Backends that are written in Python: a function that accepts operators, and one that compiles regions."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _byoc
from ._errors import BackendError


@dataclass(frozen=True)
class TensorInfo:
    """Element type and dimensions of a tensor; an unknown dimension is None."""

    dtype: str
    shape: tuple[int | None, ...]


@dataclass
class Operator:
    """Operator of a region: its name, operands, attributes, and results.

    Each operand is the number of a value of the region, as in `Region.values`.
    """

    name: str
    inputs: list[int]
    attrs: dict[str, Any]
    input_types: list[TensorInfo]
    output_types: list[TensorInfo]
    outputs: list[int] = field(default_factory=list)
    composite: str | None = None
    sources: list[str] = field(default_factory=list)
    body: Region | None = None

    @property
    def dtype(self) -> str:
        """Element type of the first result."""
        return self.output_types[0].dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Dimensions of the first result."""
        return self.output_types[0].shape


@dataclass
class Region:
    """Operators that a backend computes: inputs, constants and operators number the values in `values`."""

    symbol: str
    inputs: list[int]
    input_names: list[str]
    outputs: list[int]
    operators: list[Operator]
    constants: dict[int, np.ndarray]
    types: dict[int, TensorInfo]
    function: Any = None

    def composites(self) -> list[Operator]:
        """Returns the operators that are matches of patterns."""
        return [operator for operator in self.operators if operator.body is not None]


def _info(ty: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(ty["dtype"], tuple(d if isinstance(d, int) else None for d in ty["dims"]))


def _region(graph: Mapping[str, Any], constants: Sequence[np.ndarray]) -> Region:
    """Returns the region of a graph of the boundary."""
    number = itertools.count()
    values: dict[tuple[int, int], int] = {}
    types: dict[int, TensorInfo] = {}
    inputs: dict[int, int] = {}
    held: dict[int, np.ndarray] = {}
    operators: list[Operator] = []
    for index, node in enumerate(graph["nodes"]):
        outputs = [_info(ty) for ty in node["outputs"]]
        own = [next(number) for _ in outputs]
        for place, (value, ty) in enumerate(zip(own, outputs)):
            values[index, place] = value
            types[value] = ty
        if "input" in node:
            inputs[node["input"]] = own[0]
        elif "constant" in node:
            if node["constant"] < len(constants):
                held[own[0]] = constants[node["constant"]]
        else:
            operands = [values[ref[0], ref[1]] for ref in node.get("inputs", ())]
            composite = node.get("composite")
            body = _region(node["body"], constants) if composite else None
            name = composite or node["op"]
            operators.append(
                Operator(name, operands, node.get("attrs", {}), [types[o] for o in operands], outputs, own,
                         composite, node.get("sources", []), body)
            )  # fmt: skip
    return Region(
        graph["symbol"],
        [inputs[i] if i in inputs else next(number) for i in range(len(graph["inputs"]))],
        [item["name"] for item in graph["inputs"]],
        [values[ref[0], ref[1]] for ref in graph["outputs"]],
        operators,
        held,
        types,
    )


Supports = Callable[[Operator], Any]


class _Backend:
    """Backend as the extension calls it."""

    def __init__(
        self,
        name: str,
        patterns: Iterable[str] | str,
        operators: Sequence[str],
        supports: Supports | None,
        compile: Callable[[Region], Any],
        load: Callable[[bytes], Callable] | None,
        about: str,
    ) -> None:
        self.name = name
        self.patterns = patterns if isinstance(patterns, str) else "\n".join(patterns)
        self.operators = list(operators)
        self.supports = supports
        self.compile_region = compile
        self.load_blob = load
        self.about = about
        self.tokens: dict[int, Callable] = {}
        self.next_token = itertools.count()
        self.process = os.getpid()

    def describe(self) -> str:
        return json.dumps({"about": self.about, "patterns": self.patterns, "operators": self.operators})

    def judge(self, candidates: list[tuple[str, str, str, str]]) -> list[tuple[str, str, str] | None]:
        return [self._verdict(kind, name, json.loads(graph)) for kind, name, _, graph in candidates]

    def _verdict(self, kind: str, name: str, graph: Mapping[str, Any]) -> tuple[str, str, str] | None:
        if kind == "region" or self.supports is None:
            return None
        region = _region(graph, ())
        if kind == "pattern":
            types = region.types
            operator = Operator(
                name, region.inputs, {}, [types[i] for i in region.inputs if i in types],
                [types[o] for o in region.outputs], region.outputs, name, [], region,
            )  # fmt: skip
        else:
            operator = region.operators[-1]
        try:
            answer = self.supports(operator)
        except Exception as cause:
            return "UnsupportedOp", _last_line(f"supports of {self.name} failed on {name}", cause), ""
        if answer is True:
            return None
        if answer is False or answer is None:
            return "UnsupportedOp", f"{self.name} does not support {name}", ""
        if isinstance(answer, str):
            return "UnsupportedOp", answer, ""
        found = f"expected supports of {self.name} to return True, False or a reason, found {answer!r}"
        return "UnsupportedOp", found, "return a Boolean or a string"

    def compile(self, graph: str, constants: list[np.ndarray], options: str) -> tuple[bytes, tuple[str, str] | None]:
        region = _region(json.loads(graph), constants)
        region.function = _FUNCTIONS.get().get(region.symbol)
        try:
            made = self.compile_region(region)
        except BackendError:
            raise
        except Exception as cause:
            raise BackendError(
                _last_line(f"compile of {self.name} failed on {region.symbol}", cause), "E0460"
            ) from cause
        if isinstance(made, str):
            return b"C" + _compiled_c(made, region), ("c", made)
        if isinstance(made, (bytes, bytearray)):
            if self.load_blob is None:
                message = f"compile of {self.name} returned bytes: expected a function load= for them, found none"
                raise BackendError(message, "E0460", "pass load= to byoc.register_backend")
            return b"B" + bytes(made), None
        if callable(made):
            token = next(self.next_token)
            self.tokens[token] = made
            return b"P" + f"{self.process}:{token}".encode(), None
        message = (
            f"expected compile of {self.name} to return a function, bytes or C source, found {type(made).__name__}"
        )
        raise BackendError(message, "E0460", "return a function of the region's inputs")

    def load(self, symbol: str, blob: bytes, constants: list[np.ndarray], options: str) -> Callable:
        signature = json.loads(options)["region"]
        outputs = [_info(ty) for ty in signature["outputs"]]
        kind, rest = blob[:1], blob[1:]
        if kind == b"C":
            function = _c_function(rest, symbol, outputs)
        elif kind == b"B":
            function = self.load_blob(rest)  # type: ignore[misc]
            if not callable(function):
                message = f"expected load of {self.name} to return a function, found {type(function).__name__}"
                raise BackendError(message, "E0460", None)
        else:
            process, _, token = rest.decode().partition(":")
            function = self.tokens.get(int(token)) if int(process) == self.process else None
            if function is None:
                message = f"{symbol} was compiled to a function of another process"
                raise BackendError(message, "E0460", "let compile return bytes, and pass load= to register_backend")
        return functools.partial(_run, self.name, symbol, function, outputs)


def _run(name: str, symbol: str, function: Callable, outputs: list[TensorInfo], inputs: list[np.ndarray]) -> list:
    """Runs a region, and returns dense arrays of the types of its outputs."""
    try:
        made = function(*inputs)
    except Exception as cause:
        raise BackendError(_last_line(f"{symbol} of {name} failed", cause), "E0460") from cause
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    if len(results) != len(outputs):
        raise BackendError(f"{symbol} of {name}: expected {len(outputs)} outputs, found {len(results)}", "E0460")
    for i, (result, expected) in enumerate(zip(results, outputs)):
        value = np.ascontiguousarray(result).reshape(np.shape(result))
        if value.dtype.name != expected.dtype or value.shape != expected.shape:
            found = f"{value.dtype.name} {value.shape}"
            message = f"{symbol} of {name}: output {i}: expected {expected.dtype} {expected.shape}, found {found}"
            raise BackendError(message, "E0460", "convert the result with astype and reshape")
        results[i] = value
    return results


def _last_line(what: str, cause: BaseException) -> str:
    """Returns a message with the last line of a traceback."""
    import traceback

    frames = traceback.extract_tb(cause.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{what}{place}: {type(cause).__name__}: {cause}"


def _compiled_c(source: str, region: Region) -> bytes:
    """Compiles C source with the system's compiler, and returns the library."""
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "region.so")
        path = os.path.join(folder, "region.c")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", library, path, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as cause:
            message = f"{region.symbol}: cannot start the C compiler {command[0]}: {cause}"
            raise BackendError(message, "E0460", "install a C compiler, or set CC") from cause
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            message = f"{region.symbol}: expected C source that compiles, found: {lines[0] if lines else 'an error'}"
            raise BackendError(message, "E0460", "correct the source that the code generator returns")
        with open(library, "rb") as file:
            return file.read()


def _c_function(library: bytes, symbol: str, outputs: list[TensorInfo]) -> Callable:
    """Returns the function `void SYMBOL(const T *input.., T *output..)` of a library."""
    handle, path = tempfile.mkstemp(suffix=".so")
    with os.fdopen(handle, "wb") as file:
        file.write(library)
    loaded = ctypes.CDLL(path)
    os.remove(path)
    function = getattr(loaded, symbol, None)
    if function is None:
        raise BackendError(f"expected the function {symbol} in the C source, found none", "E0405", f"define {symbol}")
    function.restype = None

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        results = [np.empty(ty.shape, ty.dtype) for ty in outputs]  # type: ignore[arg-type]
        function(*[ctypes.c_void_p(item.ctypes.data) for item in (*inputs, *results)])
        return results

    return run


def register_backend(
    name: str,
    *,
    compile: Callable[[Region], Any],
    patterns: Iterable[str] | str = (),
    operators: Sequence[str] | None = None,
    supports: Supports | None = None,
    load: Callable[[bytes], Callable] | None = None,
    about: str = "",
) -> None:
    """Registers a backend of this process; it is selected by name, as a library is.

    compile: returns a function of the inputs of a region that returns its outputs; or bytes for `load`; or C source.
    patterns: lines of the pattern notation, `name: pattern`, in order of priority.
    operators: operators that the backend may support; all, if `supports` is given alone.
    supports: returns True for an operator or a match of a pattern, or a reason against it.
    load: returns a function of the inputs for bytes of `compile`; an artifact holds such regions.
    """
    if not callable(compile):
        raise BackendError(f"{name}: expected a function compile, found {type(compile).__name__}", "E0420", None)
    if operators is None:
        operators = [row[0] for row in _byoc.operators()] if supports is not None and not patterns else []
    path = getattr(getattr(compile, "__code__", None), "co_filename", "")
    if not about:
        lines = (inspect.getdoc(compile) or "").splitlines()
        about = lines[0] if lines else f"backend {name} in Python"
    backend = _Backend(name, patterns, operators, supports, compile, load, about)
    _byoc.register_backend(name, "0", path, backend)


def unregister_backend(name: str) -> None:
    """Removes a backend of this process. Models that were compiled with it keep it."""
    _byoc.unregister_backend(name)


class _Functions:
    """Functions of the module that is being built, by symbol."""

    def __init__(self) -> None:
        self.stack: list[Mapping[str, Any]] = []

    def get(self) -> Mapping[str, Any]:
        return self.stack[-1] if self.stack else {}


_FUNCTIONS = _Functions()


@contextlib.contextmanager
def building(module: Any) -> Iterator[None]:
    """Context in which regions know their functions in a module."""
    by_symbol = {var.name_hint: function for var, function in module.functions.items()}
    _FUNCTIONS.stack.append(by_symbol)
    try:
        yield
    finally:
        _FUNCTIONS.stack.pop()


_REGISTERED: dict[str, Callable] = {}


def use_codegen(compiler: str) -> None:
    """Makes the global function `relay.ext.NAME` a backend: it takes the function of a region."""
    from .tvm._functions import FUNCTIONS

    function = FUNCTIONS.get(f"relay.ext.{compiler}")
    if function is None or _REGISTERED.get(compiler) is function:
        return

    def compile(region: Region) -> Any:
        return function(region.function)

    _REGISTERED[compiler] = function
    register_backend(compiler, compile=compile, operators=[], about=f"code generator relay.ext.{compiler}")


def test_backend(name: str, **options: Any) -> dict[str, Any]:
    """Runs each operator that a backend accepts on random values, and compares its results with the references."""
    from ._backend_test import run

    return run(name, **options)


__all__ = ["Operator", "Region", "TensorInfo", "register_backend", "test_backend", "unregister_backend"]
