"""Algebraic data types that programs share: lists and options."""

from __future__ import annotations

from ._core import Constructor, GlobalTypeVar, GlobalVar, IRModule


class Prelude:
    """Adds the types and functions to a module, and gives access to them by name."""

    def __init__(self, mod: IRModule | None = None) -> None:
        self.mod = IRModule() if mod is None else mod
        if GlobalTypeVar("List") not in self.mod.type_definitions:
            self.mod.import_from_std("prelude.rly")

    def get_type(self, name: str) -> tuple:
        return self.mod.get_type(name)

    def __getattr__(self, name: str) -> GlobalVar | Constructor:
        if name.startswith("_"):
            raise AttributeError(name)
        for data in self.mod.type_definitions.values():
            for constructor in data.constructors:
                if constructor.name_hint.lower() == name:
                    return constructor
        return self.mod.get_global_var(name)
