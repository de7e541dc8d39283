"""Algebraic data types that programs share: lists and options."""

from __future__ import annotations

from ._core import Constructor, GlobalTypeVar, GlobalVar, IRModule

TEXT = """#[version = "0.0.5"]
type Option[A] { Some(A), None }
type List[A] { Cons(A, List[A]), Nil }

def @id[A](%x: A) -> A { %x }

def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
  match (%xs) {
    Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)),
    Nil => Nil
  }
}

def @foldl[A, B](%f: fn (A, B) -> A, %acc: A, %xs: List[B]) -> A {
  match (%xs) {
    Cons(%x, %rest) => @foldl(%f, %f(%acc, %x), %rest),
    Nil => %acc
  }
}
"""


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
