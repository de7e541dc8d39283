"""Text of the module that programs import as `prelude.rly`."""

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
