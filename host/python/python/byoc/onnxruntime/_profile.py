"""Profiles of runs, in the format of chrome://tracing."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from typing import Any

from ._runtime import CPU


class Profile:
    """Recorded events of a session."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._zero = time.perf_counter()
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self.start_ns = time.perf_counter_ns()

    def _add(self, category: str, name: str, start: float, duration: float, arguments: dict[str, Any]) -> None:
        event = {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "dur": round(duration * 1e6),
            "ts": round((start - self._zero) * 1e6),
            "ph": "X",
            "name": name,
            "args": arguments,
        }
        with self._lock:
            self._events.append(event)

    def session(self, name: str, start: float) -> None:
        """Adds a session phase from `start` to the current time."""
        self._add("Session", name, start, time.perf_counter() - start, {})

    def run(self, start: float, events: list[Any]) -> None:
        """Adds a run with its steps."""
        for index, (name, backend, origins, begin, duration) in enumerate(events):
            source, operator = origins[-1] if origins else (name, name)
            arguments = {"op_name": operator, "provider": CPU, "node_index": str(index), "step": name}
            if backend:
                arguments["backend"] = backend
            self._add("Node", f"{source}_kernel_time", start + begin, duration, arguments)
        self._add("Session", "SequentialExecutor::Execute", start, time.perf_counter() - start, {})
        self._add("Session", "model_run", start, time.perf_counter() - start, {})

    def write(self) -> str:
        """Writes the file, and returns its name."""
        now = datetime.now()
        name = f"{self._prefix}_{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03}.json"
        with self._lock, open(name, "w", encoding="utf-8") as file:
            json.dump(self._events, file)
        return name
