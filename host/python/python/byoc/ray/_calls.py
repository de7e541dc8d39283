"""Batching of calls from several clients into runs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._rows import Rows, joined, split

Arrays = Mapping[str, np.ndarray]


def run_calls(rows: Rows, calls: list[Arrays], max_rows: int) -> list[Any]:
    """Runs calls, batching calls of equal shapes into runs of at most `max_rows` rows. Returns a result or an exception
    per call."""
    results: list[Any] = [None] * len(calls)
    for group in _groups(calls, max_rows):
        try:
            together = rows.run(joined([calls[index] for index in group]))
            parts = split(together, [_count(calls[index]) for index in group])
        except Exception as error:
            parts = [error] if len(group) == 1 else [run_calls(rows, [calls[index]], max_rows)[0] for index in group]
        for index, part in zip(group, parts):
            results[index] = part
    return results


def _count(call: Arrays) -> int:
    return next((len(array) for array in call.values() if array.ndim), 0)


def _groups(calls: list[Arrays], max_rows: int) -> list[list[int]]:
    """Divides calls into groups that can be executed in one run."""
    groups: list[list[int]] = []
    open_groups: dict[Any, tuple[list[int], int]] = {}
    for index, call in enumerate(calls):
        count = _count(call)
        fits = all(array.ndim and len(array) == count for array in call.values())
        key = tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in call.items()))
        group, rows = open_groups.get(key, ([], 0))
        if not fits or not group or rows + count > max_rows:
            group, rows = [], 0
            groups.append(group)
        group.append(index)
        if fits:
            open_groups[key] = (group, rows + count)
    return groups
