"""Modules of TVM without a counterpart."""

from __future__ import annotations

import types
from typing import Any


class Module(types.ModuleType):
    """Module whose names, but for those given, say what to use instead."""

    def __init__(self, name: str, use: str, **members: Any) -> None:
        super().__init__(name, use)
        self._use = use
        vars(self).update(members)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__.removeprefix('byoc.')}.{name}", self._use)


class Absent:
    """Name that exists, so that a script can be imported, and fails when it is used."""

    def __init__(self, name: str, use: str) -> None:
        self._name, self._use = name, use

    def __getitem__(self, key: Any) -> Any:
        return self()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self._name}: {self._use}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}", self._use)
