"""Predictor for `map_batches` in Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .._errors import InputError
from .._model import Model
from .._session import Session
from ._artifact import load_model
from ._require import worker_threads
from ._rows import Rows

Batch = dict[str, Any]


class Predictor:
    """Callable class for `ray.data.Dataset.map_batches`: adds the outputs of a model to each batch.

        dataset.map_batches(byoc.ray.Predictor, fn_constructor_args=(byoc.ray.put(model),), batch_size=8, num_cpus=1)

    model: result of `byoc.ray.put`, or a path that every node can read. A path that does not name an artifact, and the
        bytes of an ONNX file, are compiled in each worker, with `options`.
    inputs: column of each model input. By default, the column with the same name, or the only column of the batch.
    outputs: column name of each requested output; by default, all outputs under their own names.
    keep: columns of the batch to retain; by default, all columns except the inputs.
    preprocess: callable that transforms a batch before the run; postprocess transforms the result.
    threads: number of threads; by default `num_cpus` of the worker.
    options: options of `byoc.compile`, such as backend.

    The result for a row does not depend on the division of rows into batches, if the model processes rows
    independently. A model with a fixed batch size runs on that many rows at a time.
    """

    def __init__(
        self,
        model: Any,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Iterable[str] | None = None,
        keep: Iterable[str] | None = None,
        preprocess: Callable[[Batch], Batch] | None = None,
        postprocess: Callable[[Batch], Batch] | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads: expected a number >= 1, found {threads}")
        self.session = Session(threads=worker_threads() if threads is None else threads)
        self.rows = Rows(load_model(model, self.session, options))
        self.columns = dict(inputs or {})
        self.keep = None if keep is None else set(keep)
        self.preprocess, self.postprocess = preprocess, postprocess
        known = [port.name for port in self.model.outputs]
        if outputs is None:
            outputs = known
        self.outputs = dict(outputs) if isinstance(outputs, Mapping) else {name: name for name in outputs}
        _check_names("output", self.outputs, known)
        _check_names("input", self.columns, self.rows.inputs)

    @property
    def model(self) -> Model:
        """Loaded model."""
        return self.rows.model

    def __call__(self, batch: Batch) -> Batch:
        """Runs the model on a batch of columns, and returns the resulting columns."""
        if not isinstance(batch, Mapping):
            kind = f"{type(batch).__module__}.{type(batch).__qualname__}"
            raise TypeError(f'expected arrays by column (batch_format="numpy"), found {kind}')
        if self.preprocess is not None:
            batch = self.preprocess(batch)
        columns = {name: self._column(name, batch) for name in self.rows.inputs}
        results = self.rows.run({name: batch[column] for name, column in columns.items()})
        if self.keep is None:
            taken = set(columns.values())
            kept = {column: value for column, value in batch.items() if column not in taken}
        else:
            kept = {column: value for column, value in batch.items() if column in self.keep}
        kept.update({column: results[output] for output, column in self.outputs.items()})
        return kept if self.postprocess is None else self.postprocess(kept)

    def _column(self, name: str, batch: Mapping[str, Any]) -> str:
        """Returns the column of an input."""
        column = self.columns.get(name, name)
        if column in batch:
            return column
        if name not in self.columns and len(self.rows.inputs) == len(batch) == 1:
            return next(iter(batch))
        found = ", ".join(f'"{column}"' for column in batch) or "none"
        message = f'input "{name}": expected a column "{column}", found {found}'
        raise InputError(message, "E0603", f'specify the column: inputs={{"{name}": COLUMN}}')


def _check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            found = ", ".join(f'"{one}"' for one in known)
            raise InputError(f'{kind}s: expected names of {kind}s of the model ({found}), found "{name}"', "E0602")


def top(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index and the value of the largest element of each row. All other dimensions must be 1."""
    flat = scores.reshape(len(scores), -1)
    index = flat.argmax(axis=1)
    return index, flat[np.arange(len(flat)), index]
