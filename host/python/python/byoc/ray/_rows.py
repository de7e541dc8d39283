"""Runs of a model on any number of rows, for a symbolic or a fixed first dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import InputError, ModelError, RunError
from .._model import Model

Columns = Mapping[str, Any]


class Rows:
    """Model whose first dimension is the number of rows.

    A model with a symbolic first dimension runs on all rows at once. A model with a fixed first dimension N runs on N
    rows at a time; the last run is padded with zero rows, whose results are discarded.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.inputs = {port.name: port for port in model.inputs}
        if not self.inputs:
            raise ModelError("expected a model with inputs, found none", "E0603")
        sizes = set()
        for port in model.inputs:
            if not port.shape:
                message = f'input "{port.name}": expected a first dimension for rows, found a scalar'
                raise ModelError(message, "E0605", "use a model whose inputs have the batch as first dimension")
            sizes.add(port.shape[0] if isinstance(port.shape[0], int) else None)
        if len(sizes) > 1 or 0 in sizes:
            shapes = ", ".join(f"{port.name}{list(port.shape)}" for port in model.inputs)
            message = f"expected inputs with the same first dimension, found {shapes}"
            raise ModelError(message, "E0605", "compile the model with the same batch size for all inputs")
        self.size: int | None = sizes.pop()

    def run(self, feeds: Columns) -> dict[str, np.ndarray]:
        """Runs the model on arrays by input name, and returns the results by output name."""
        feeds = {name: self.fitted(name, value) for name, value in feeds.items()}
        counts = {name: len(array) for name, array in feeds.items() if array.ndim}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise InputError(f"expected the same number of rows for each input, found {found}", "E0605")
        rows = next(iter(counts.values()), 0)
        if self.size is None or set(counts) != set(self.inputs) or rows == self.size:
            return self._checked(self.model.run(dict(feeds)), rows)
        parts = []
        for start in range(0, max(rows, 1), self.size):
            part = {name: array[start : start + self.size] for name, array in feeds.items()}
            count = min(self.size, rows - start)
            full = {name: _completed(array, self.size) for name, array in part.items()}
            results = self._checked(self.model.run(full), self.size)
            parts.append({name: array[:count] for name, array in results.items()})
        return joined(parts)

    def fitted(self, name: str, value: Any) -> np.ndarray:
        """Converts rows to an array for an input. Element types are converted within a kind, as float64 to float32."""
        array = np.asarray(value)
        if array.dtype == object:
            array = _stacked(name, array)
        port = self.inputs.get(name)
        if port is None or array.dtype.name == port.dtype:
            return array
        try:
            wanted = np.dtype(port.dtype)
        except TypeError:
            return array  # For bfloat16 and other types, the model checks the type.
        kinds = ("f", "iu")
        if any(array.dtype.kind in kind and wanted.kind in kind for kind in kinds):
            converted = array.astype(wanted)
            if wanted.kind == "f" or (converted == array).all():
                return converted
        return array

    def _checked(self, results: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        for name, array in results.items():
            if array.ndim == 0 or len(array) != rows:
                message = f'output "{name}": expected {rows} rows, found shape {list(array.shape)}'
                raise RunError(message, "E0605", "use a model whose outputs have the batch as first dimension")
        return results


def _completed(array: np.ndarray, rows: int) -> np.ndarray:
    if len(array) == rows:
        return array
    full = np.zeros((rows, *array.shape[1:]), array.dtype)
    full[: len(array)] = array
    return full


def _stacked(name: str, column: np.ndarray) -> np.ndarray:
    """Stacks an object array of rows, as tables contain them, into one array."""
    rows = [np.asarray(row) for row in column]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1 or any(row.dtype == object for row in rows):
        found = ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
        message = f'input "{name}": expected numeric rows of equal shape, found {found or "objects"}'
        raise InputError(message, "E0605", "convert the rows to equal shapes with preprocess=")
    return np.stack(rows) if rows else np.zeros(0, np.float32)


def joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenates arrays by name along their rows."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def split(arrays: Mapping[str, np.ndarray], counts: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """Splits arrays by name into parts with the given numbers of rows; each part is a view."""
    parts, start = [], 0
    for count in counts:
        parts.append({name: array[start : start + count] for name, array in arrays.items()})
        start += count
    return parts


def keeps_rows_apart(rows: Rows) -> bool:
    """Compares the results of two rows in one run with the results of separate runs, on random inputs.

    Returns False if the result for a row depends on the other rows, or if the model cannot run on generated inputs.
    """
    random = np.random.default_rng(0)
    feeds = {}
    try:
        for name, port in rows.inputs.items():
            shape = [2, *(size if isinstance(size, int) else 1 for size in port.shape[1:])]
            floats = np.dtype(port.dtype).kind == "f"
            feeds[name] = (random.random(shape) if floats else np.zeros(shape)).astype(port.dtype)
        together = split(rows.run(feeds), [1, 1])
        alone = [rows.run(part) for part in split(feeds, [1, 1])]
    except Exception:
        return False
    return all(
        a[name].shape == b[name].shape and np.allclose(a[name], b[name], rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(together, alone)
        for name in a
    )
