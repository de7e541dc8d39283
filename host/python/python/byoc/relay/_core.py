"""Expressions, types and modules. The classes are handles: the program itself lives in the compiler's IR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any as AnyValue

import numpy as np

from .. import _byoc
from .._errors import ModelError


class IntImm(int):
    """Integer in an attribute or a shape."""

    def __new__(cls, dtype: AnyValue, value: int | None = None) -> IntImm:
        if value is None:
            dtype, value = "int32", dtype
        self = super().__new__(cls, value)
        self.dtype = dtype
        return self

    @property
    def value(self) -> int:
        return int(self)


class FloatImm(float):
    """Floating-point number in an attribute."""

    def __new__(cls, dtype: AnyValue, value: float | None = None) -> FloatImm:
        if value is None:
            dtype, value = "float32", dtype
        self = super().__new__(cls, value)
        self.dtype = dtype
        return self

    @property
    def value(self) -> float:
        return float(self)


class StringImm(str):
    """String in an attribute."""

    @property
    def value(self) -> str:
        return str(self)


class SizeVar(str):
    """Named dimension, which is the same in all types of a module."""

    def __new__(cls, name: str = "n", dtype: str = "int32") -> SizeVar:
        self = super().__new__(cls, name)
        self.dtype = dtype
        return self

    @property
    def name(self) -> str:
        return str(self)

    def _binary(self, template: str, other: AnyValue, swapped: bool = False) -> SizeVar:
        left, right = (other, self) if swapped else (self, other)
        text = template.format(_grouped(left), _grouped(right))
        return SizeVar(text)

    def __add__(self, other):
        return self._binary("{} + {}", other)

    def __radd__(self, other):
        return self._binary("{} + {}", other, swapped=True)

    def __sub__(self, other):
        return self._binary("{} - {}", other)

    def __rsub__(self, other):
        return self._binary("{} - {}", other, swapped=True)

    def __mul__(self, other):
        return self._binary("{}*{}", other)

    def __rmul__(self, other):
        return self._binary("{}*{}", other, swapped=True)

    def __floordiv__(self, other):
        return SizeVar(f"floordiv({self}, {other})")


def _grouped(value: AnyValue) -> str:
    text = str(value)
    return f"({text})" if " " in text and not text.endswith(")") else text


class Any:
    """Dimension that is known only at run time."""

    dtype = "int32"

    def __repr__(self) -> str:
        return "?"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Any)

    def __hash__(self) -> int:
        return hash(Any)


class Array(list):
    """Sequence of expressions, types or numbers."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def same_as(self, other: object) -> bool:
        return self is other


class Attrs(Mapping):
    """Attributes of a call or a function."""

    def __init__(self, native: _byoc.Attributes) -> None:
        self._native = native

    def __getitem__(self, key: str) -> AnyValue:
        return _attr_value(self._native[key])

    def __getattr__(self, key: str) -> AnyValue:
        if key.startswith("__"):
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError as cause:
            raise AttributeError(cause.args[0]) from None

    def __iter__(self):
        return iter(self._native.keys())

    def __len__(self) -> int:
        return len(self._native)

    def keys(self):
        return list(self._native.keys())

    def items(self):
        return [(key, self[key]) for key in self.keys()]

    def get_int(self, key: str) -> int:
        return int(self[key])

    def get_int_tuple(self, key: str) -> tuple[int, ...]:
        return tuple(int(item) for item in self[key])

    def get_str(self, key: str) -> str:
        return str(self[key])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Attrs):
            return self._native == other._native
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._native)


def _attr_value(value: AnyValue) -> AnyValue:
    if isinstance(value, list):
        return Array(_attr_value(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return IntImm(value)
    return value


def native_attrs(attrs: AnyValue) -> AnyValue:
    """Returns attributes in the form that the native functions take."""
    if isinstance(attrs, Attrs):
        return attrs._native
    return None if attrs is None else dict(attrs)


_DTYPES = {"float": "float32", "int": "int32", "uint": "uint32", "uint1": "bool", "double": "float64"}


def dtype_name(dtype: AnyValue) -> str:
    """Returns the name of an element type."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or np.dtype(dtype).name
    return _DTYPES.get(name, str(name))


class Type(_byoc.Type):
    """Type of an expression."""

    span = None

    def same_as(self, other: object) -> bool:
        return self == other


def _dim(value: AnyValue) -> int | str | None:
    if isinstance(value, Any):
        return None
    if isinstance(value, str):
        return str(value)
    return int(value)


class TensorType(Type):
    """Tensor type of a shape and an element type."""

    def __new__(cls, shape: AnyValue, dtype: AnyValue = "float32") -> TensorType:
        dims = shape if isinstance(shape, (list, tuple)) else [shape]
        return _byoc.Type.tensor([_dim(d) for d in dims], dtype_name(dtype))

    @property
    def shape(self) -> Array:
        dims = self.parts()[0]
        return Array(IntImm(d) if isinstance(d, int) else Any() if d is None else SizeVar(d) for d in dims)

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        return tuple(int(d) for d in self.shape)

    @property
    def dtype(self) -> str:
        return self.parts()[1]


class TupleType(Type):
    """Type of a tuple."""

    def __new__(cls, fields: Iterable[Type]) -> TupleType:
        return _byoc.Type.tuple(list(fields))

    @property
    def fields(self) -> Array:
        return Array(self.parts()[0])


class TypeVar(Type):
    """Type parameter of a function or of a type definition."""

    def __new__(cls, name: str, kind: AnyValue = None) -> TypeVar:
        return _byoc.Type.param(name)

    @property
    def name_hint(self) -> str:
        return self.parts()[0]

    name = name_hint


class FuncType(Type):
    """Type of a function."""

    def __new__(cls, arg_types, ret_type, type_params=None, type_constraints=None) -> FuncType:
        return _byoc.Type.func(list(arg_types), ret_type, [p.name_hint for p in type_params or ()])

    @property
    def arg_types(self) -> Array:
        return Array(self.parts()[1])

    @property
    def ret_type(self) -> Type:
        return self.parts()[2]

    @property
    def type_params(self) -> Array:
        return Array(TypeVar(name) for name in self.parts()[0])

    @property
    def type_constraints(self) -> Array:
        return Array()


class RefType(Type):
    """Type of a mutable cell."""

    def __new__(cls, value: Type) -> RefType:
        return _byoc.Type.reference(value)

    @property
    def value(self) -> Type:
        return self.parts()[0]


class TypeCall(Type):
    """Instance of a type definition."""

    def __new__(cls, func: AnyValue, args: Iterable[Type]) -> TypeCall:
        return _byoc.Type.adt(func.name_hint if isinstance(func, GlobalTypeVar) else str(func), list(args))

    @property
    def func(self) -> GlobalTypeVar:
        return GlobalTypeVar(self.parts()[0])

    @property
    def args(self) -> Array:
        return Array(self.parts()[1])


class IncompleteType(Type):
    """Type to be inferred."""

    def __new__(cls, kind: AnyValue = None) -> IncompleteType:
        return _byoc.Type.unknown()


class GlobalTypeVar:
    """Name of a type definition."""

    def __init__(self, name: str, kind: AnyValue = None) -> None:
        self.name_hint = name
        self.kind = kind

    def __call__(self, *args: Type) -> TypeCall:
        return TypeCall(self, args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalTypeVar) and other.name_hint == self.name_hint

    def __hash__(self) -> int:
        return hash(self.name_hint)

    def __repr__(self) -> str:
        return self.name_hint


def _parse_type(text: str) -> Type:
    return _byoc.RelayModule.parse_expr(f'#[version = "0.0.5"]\nfree_var %x: {text}; %x').type_annotation


def scalar_type(dtype: str) -> TensorType:
    """Returns the type of a tensor of rank 0."""
    return TensorType((), dtype)


class Op:
    """Operator of the operator table."""

    _found: dict[str, Op] = {}
    attributes: dict[tuple[str, str], AnyValue] = {}

    def __init__(self, name: str, row: tuple) -> None:
        self.name = name
        self._row = row

    @staticmethod
    def get(name: str) -> Op:
        """Returns the operator of a name."""
        if name not in Op._found:
            if not _TABLE:
                _TABLE.update((row[0], row) for row in _byoc.operators())
            if name not in _TABLE:
                _byoc.checked_attrs(name, {})
            Op._found[name] = Op(name, _TABLE[name])
        return Op._found[name]

    @staticmethod
    def list_op_names() -> list[str]:
        Op.get("add")
        return list(_TABLE)

    support_level = 1

    @property
    def num_inputs(self) -> int:
        return len(self._row[1])

    @property
    def arguments(self) -> list[str]:
        return list(self._row[1])

    @property
    def description(self) -> str:
        return self._row[4]

    def has_attr(self, key: str) -> bool:
        return key == "TOpPattern" or (self.name, key) in Op.attributes

    def get_attr(self, key: str) -> AnyValue:
        if key == "TOpPattern":
            return self._row[5]
        return Op.attributes.get((self.name, key))

    def set_attr(self, key: str, value: AnyValue, plevel: int = 10) -> None:
        Op.attributes[self.name, key] = value

    def reset_attr(self, key: str) -> None:
        Op.attributes.pop((self.name, key), None)

    def same_as(self, other: object) -> bool:
        return self is other

    def __call__(self, *args: Expr) -> Call:
        return Call(self, args)

    def __repr__(self) -> str:
        return f"Op({self.name})"


_TABLE: dict[str, tuple] = {}


class Expr(_byoc.Expr):
    """Expression. Two objects are equal if they are the same expression."""

    span = None
    _cache: tuple | None = None

    @property
    def _parts(self) -> tuple:
        parts = self._cache
        if parts is None:
            parts = self._cache = self.parts()
        return parts

    @property
    def checked_type(self) -> Type:
        """Type of the expression."""
        found = self.known_type
        if found is None:
            raise ValueError("the type of the expression is not known yet; run relay.transform.InferType first")
        return found

    @property
    def _checked_type_(self) -> Type | None:
        return self.known_type

    @property
    def struct_info(self) -> Type | None:
        return self.known_type

    def same_as(self, other: object) -> bool:
        return self == other

    def astext(self, show_meta_data: bool = True, annotate: AnyValue = None) -> str:
        """Returns the expression in the text format."""
        return '#[version = "0.0.5"]\n' + str(self)

    def __str__(self) -> str:
        return self.text(True)

    def __repr__(self) -> str:
        return self.text(True)

    def __reduce__(self):
        return parse_expr, (self.text(False),)


class ExprWithOp(Expr):
    """Expression with arithmetic operators."""

    def astype(self, dtype: AnyValue) -> Call:
        return Call("cast", [self], {"dtype": dtype_name(dtype)})

    def __neg__(self):
        return Call("negative", [self])

    def __lt__(self, other):
        return Call("less", [self, _operand(other)])

    def __gt__(self, other):
        return Call("greater", [self, _operand(other)])

    def __le__(self, other):
        return Call("less_equal", [self, _operand(other)])

    def __ge__(self, other):
        return Call("greater_equal", [self, _operand(other)])

    def __add__(self, other):
        return Call("add", [self, _operand(other)])

    def __radd__(self, other):
        return Call("add", [_operand(other), self])

    def __sub__(self, other):
        return Call("subtract", [self, _operand(other)])

    def __rsub__(self, other):
        return Call("subtract", [_operand(other), self])

    def __mul__(self, other):
        return Call("multiply", [self, _operand(other)])

    def __rmul__(self, other):
        return Call("multiply", [_operand(other), self])

    def __truediv__(self, other):
        return Call("divide", [self, _operand(other)])

    def __rtruediv__(self, other):
        return Call("divide", [_operand(other), self])

    def __call__(self, *args: Expr) -> Call:
        return Call(self, args)


def _operand(value: AnyValue) -> Expr:
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        raise TypeError(f"expected an expression as operand, found {value!r}; write relay.const({value!r}, dtype)")
    if not isinstance(value, Expr):
        raise TypeError(f"expected an expression as operand, found {type(value).__name__}")
    return value


def as_expr(value: AnyValue) -> Expr:
    """Returns an expression for an argument: a tuple for a list, a constant for a number or an array."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, TupleWrapper):
        return value.tuple_value
    if isinstance(value, (list, tuple)):
        return Tuple([as_expr(item) for item in value])
    if isinstance(value, (bool, int, float)) or hasattr(value, "dtype"):
        return const(value)
    raise TypeError(f"expected an expression, a number, an array or a list of these, found {type(value).__name__}")


class Constant(ExprWithOp):
    """Tensor known at compile time."""

    def __new__(cls, data: AnyValue, span: AnyValue = None) -> Constant:
        from ._ndarray import NDArray

        held = data if isinstance(data, NDArray) else NDArray(data)
        self = _byoc.Expr.constant(held._data)
        self._data = held
        return self

    _data: AnyValue = None

    @property
    def data(self) -> AnyValue:
        from ._ndarray import NDArray

        if self._data is None:
            self._data = NDArray(self.parts()[0], copy=False)
        return self._data


class Var(ExprWithOp):
    """Parameter or let-bound variable."""

    def __new__(cls, name_hint: str, type_annotation: Type | None = None, span: AnyValue = None) -> Var:
        return _byoc.Expr.var(str(name_hint), type_annotation)

    @property
    def name_hint(self) -> str:
        return self._parts[0]

    @property
    def type_annotation(self) -> Type | None:
        return self._parts[1]

    @property
    def vid(self) -> Var:
        return self


class GlobalVar(ExprWithOp):
    """Name of a global function."""

    def __new__(cls, name_hint: str, type_annot: AnyValue = None) -> GlobalVar:
        return _byoc.Expr.global_(str(name_hint))

    @property
    def name_hint(self) -> str:
        return self._parts[0]

    def __repr__(self) -> str:
        return f"GlobalVar({self.name_hint})"


class Constructor(ExprWithOp):
    """Constructor of an algebraic data type."""

    def __new__(cls, name_hint: str, inputs: Iterable[Type] = (), belong_to: AnyValue = None) -> Constructor:
        self = _byoc.Expr.constructor(str(name_hint))
        self.inputs = Array(inputs)
        self.belong_to = belong_to
        return self

    @property
    def name_hint(self) -> str:
        return self._parts[0]


class Tuple(ExprWithOp):
    """Tuple of expressions."""

    def __new__(cls, fields: Iterable[Expr], span: AnyValue = None) -> Tuple:
        return _byoc.Expr.tuple([as_expr(field) for field in fields])

    @property
    def fields(self) -> Array:
        return Array(self._parts[0])

    def __getitem__(self, index: int) -> Expr:
        return self.fields[index]

    def __len__(self) -> int:
        return len(self.fields)

    def astype(self, _: AnyValue) -> Call:
        raise TypeError("expected a tensor, found a tuple")


class TupleGetItem(ExprWithOp):
    """Field of a tuple."""

    def __new__(cls, tuple_value: Expr, index: int, span: AnyValue = None) -> TupleGetItem:
        if not 0 <= index < 1 << 32:
            raise ModelError(f"expected the index of a field, found {index}", "E0201", "count fields from 0")
        return _byoc.Expr.project(as_expr(tuple_value), index)

    @property
    def tuple_value(self) -> Expr:
        return self._parts[0]

    @property
    def index(self) -> int:
        return self._parts[1]


class Call(ExprWithOp):
    """Application of an operator or a function."""

    def __new__(cls, op, args, attrs=None, type_args=None, span=None) -> Call:
        if isinstance(op, Op):
            op = op.name
        return _byoc.Expr.call(
            op, [arg if isinstance(arg, Expr) else as_expr(arg) for arg in args], native_attrs(attrs)
        )

    @property
    def op(self) -> Op | Expr:
        op = self._parts[0]
        return Op.get(op) if isinstance(op, str) else op

    @property
    def args(self) -> Array:
        return Array(self._parts[1])

    @property
    def attrs(self) -> Attrs | None:
        native = self._parts[2]
        return Attrs(native) if len(native) else None

    @property
    def type_args(self) -> Array:
        return Array(arg.checked_type for arg in self.args if arg.known_type is not None)


class Let(ExprWithOp):
    """Binding of a variable in a body."""

    def __new__(cls, variable: Var, value: Expr, body: Expr, span: AnyValue = None) -> Let:
        return _byoc.Expr.let_(variable, as_expr(value), as_expr(body))

    @property
    def var(self) -> Var:
        return self._parts[0]

    @property
    def value(self) -> Expr:
        return self._parts[1]

    @property
    def body(self) -> Expr:
        return self._parts[2]


class If(ExprWithOp):
    """Conditional expression."""

    def __new__(cls, cond: Expr, true_branch: Expr, false_branch: Expr, span: AnyValue = None) -> If:
        return _byoc.Expr.if_(as_expr(cond), as_expr(true_branch), as_expr(false_branch))

    @property
    def cond(self) -> Expr:
        return self._parts[0]

    @property
    def true_branch(self) -> Expr:
        return self._parts[1]

    @property
    def false_branch(self) -> Expr:
        return self._parts[2]


class RefCreate(ExprWithOp):
    """New mutable cell."""

    def __new__(cls, value: Expr, span: AnyValue = None) -> RefCreate:
        return _byoc.Expr.ref_new(as_expr(value))

    @property
    def value(self) -> Expr:
        return self._parts[0]


class RefRead(ExprWithOp):
    """Value of a mutable cell."""

    def __new__(cls, ref: Expr, span: AnyValue = None) -> RefRead:
        return _byoc.Expr.ref_read(ref)

    @property
    def ref(self) -> Expr:
        return self._parts[0]


class RefWrite(ExprWithOp):
    """Assignment to a mutable cell."""

    def __new__(cls, ref: Expr, value: Expr, span: AnyValue = None) -> RefWrite:
        return _byoc.Expr.ref_write(ref, as_expr(value))

    @property
    def ref(self) -> Expr:
        return self._parts[0]

    @property
    def value(self) -> Expr:
        return self._parts[1]


class Pattern:
    """Pattern of a clause."""


class PatternWildcard(Pattern):
    """Pattern that matches any value."""

    def _native(self) -> None:
        return None


class PatternVar(Pattern):
    """Pattern that matches any value and binds it."""

    def __init__(self, var: Var) -> None:
        self.var = var

    def _native(self) -> Var:
        return self.var


class PatternConstructor(Pattern):
    """Pattern of a constructor and its fields."""

    def __init__(self, constructor: Constructor, patterns: Iterable[Pattern] = ()) -> None:
        self.constructor = constructor
        self.patterns = Array(patterns or ())

    def _native(self) -> tuple:
        return self.constructor.name_hint, [pattern._native() for pattern in self.patterns]


class PatternTuple(Pattern):
    """Pattern of a tuple."""

    def __init__(self, patterns: Iterable[Pattern] = ()) -> None:
        self.patterns = Array(patterns or ())

    def _native(self) -> tuple:
        return None, [pattern._native() for pattern in self.patterns]


def _pattern_of(native: AnyValue) -> Pattern:
    if native is None:
        return PatternWildcard()
    if isinstance(native, Var):
        return PatternVar(native)
    name, fields = native
    patterns = [_pattern_of(field) for field in fields]
    return PatternTuple(patterns) if name is None else PatternConstructor(Constructor(name), patterns)


class Clause:
    """Pattern and the result if it matches."""

    def __init__(self, lhs: Pattern, rhs: Expr) -> None:
        self.lhs = lhs
        self.rhs = rhs


class Match(ExprWithOp):
    """Choice by the constructor of a value."""

    def __new__(cls, data: Expr, clauses: Iterable[Clause], complete: bool = True) -> Match:
        return _byoc.Expr.match_(data, [(clause.lhs._native(), clause.rhs) for clause in clauses], complete)

    @property
    def data(self) -> Expr:
        return self._parts[0]

    @property
    def clauses(self) -> Array:
        return Array(Clause(_pattern_of(pattern), body) for pattern, body in self._parts[1])

    @property
    def complete(self) -> bool:
        return self._parts[2]


class BaseFunc(ExprWithOp):
    """Function of any kind."""


class Function(BaseFunc):
    """Function literal, or the definition of a global function."""

    def __new__(cls, params, body, ret_type=None, type_params=None, attrs=None, span=None) -> Function:
        names = [param.name_hint for param in type_params or ()]
        return _byoc.Expr.function(list(params), as_expr(body), ret_type, names, native_attrs(attrs))

    @property
    def params(self) -> Array:
        return Array(self._parts[0])

    @property
    def body(self) -> Expr:
        return self._parts[1]

    @property
    def ret_type(self) -> Type | None:
        return self._parts[2]

    @property
    def type_params(self) -> Array:
        return Array(TypeVar(name) for name in self._parts[3])

    @property
    def attrs(self) -> Attrs:
        return Attrs(self._parts[4])

    def _with(self, attrs: Mapping) -> Function:
        return Function(self.params, self.body, self.ret_type, self.type_params, attrs)

    def with_attr(self, attr_key_or_dict: AnyValue, attr_value: AnyValue = None) -> Function:
        """Returns the function with an attribute, or with those of a dictionary."""
        added = attr_key_or_dict if isinstance(attr_key_or_dict, Mapping) else {attr_key_or_dict: attr_value}
        return self._with({**self.attrs, **added})

    def without_attr(self, attr_key: str) -> Function:
        return self._with({key: value for key, value in self.attrs.items() if key != attr_key})


class TupleWrapper:
    """Result of an operator with several results: an expression that unpacks."""

    def __init__(self, tuple_value: Expr, size: int) -> None:
        self.tuple_value = tuple_value
        self.size = size

    def astuple(self) -> Expr:
        return self.tuple_value

    def astext(self) -> str:
        return self.tuple_value.astext()

    def __getitem__(self, index: int) -> TupleGetItem:
        if not -self.size <= index < self.size:
            raise IndexError(f"expected an index < {self.size}, found {index}")
        return TupleGetItem(self.tuple_value, index % self.size)

    def __len__(self) -> int:
        return self.size

    def __iter__(self):
        return (self[i] for i in range(self.size))

    @property
    def checked_type(self) -> Type:
        return self.tuple_value.checked_type

    def __repr__(self) -> str:
        return f"TupleWrapper({self.tuple_value}, {self.size})"


_byoc.set_classes([
    Constant, Var, GlobalVar, Constructor, Tuple, TupleGetItem, Call, Let, If, Match, Function, RefCreate, RefRead,
    RefWrite, TensorType, TupleType, FuncType, RefType, TypeCall, TypeVar, IncompleteType,
])  # fmt: skip


def var(name_hint: str, type_annotation=None, shape=None, dtype: AnyValue = "float32", span=None) -> Var:
    """Creates a variable. The type is given as such, or as a shape and an element type."""
    if type_annotation is not None and shape is not None:
        raise ValueError("expected a type or a shape, found both")
    if isinstance(type_annotation, str):
        type_annotation = scalar_type(type_annotation)
    if shape is not None:
        type_annotation = TensorType(shape, dtype)
    return Var(name_hint, type_annotation)


def const(value: AnyValue, dtype: AnyValue = None, span=None) -> Constant:
    """Creates a constant. Python numbers become float32 and int32 unless `dtype` says otherwise."""
    if isinstance(value, (bool, int, float, list, tuple, np.number, np.bool_)):
        value = np.array(value, dtype=None if dtype is None else dtype_name(dtype))
        if dtype is None:
            value = value.astype({"float64": "float32", "int64": "int32"}.get(value.dtype.name, value.dtype))
    elif dtype is not None and hasattr(value, "astype"):
        value = value.astype(dtype_name(dtype))
    return Constant(value)


def bind(expr: Expr, binds: Mapping[Var, Expr]) -> Expr:
    """Replaces variables. Parameters of a function that are replaced are removed."""
    if isinstance(expr, Function):
        kept = [param for param in expr.params if param not in binds]
        body = expr.body.substitute([(old, as_expr(new)) for old, new in binds.items()])
        params = kept + [v for v in body.free_vars() if v not in kept and v not in expr.body.free_vars()]
        return Function(params, body, expr.ret_type, expr.type_params, expr.attrs)
    return expr.substitute([(old, as_expr(new)) for old, new in binds.items()])


def parse_expr(text: str) -> Expr:
    """Reads an expression in the text format."""
    return _byoc.RelayModule.parse_expr(text if text.lstrip().startswith("#[version") else _VERSION + text)


_VERSION = '#[version = "0.0.5"]\n'


class TypeData:
    """Definition of an algebraic data type."""

    def __init__(
        self, header: GlobalTypeVar, type_vars: Iterable[TypeVar], constructors: Iterable[Constructor]
    ) -> None:
        self.header = header
        self.type_vars = Array(type_vars)
        self.constructors = Array(constructors)
        for constructor in self.constructors:
            constructor.belong_to = header


class IRModule:
    """Global functions and type definitions by name."""

    def __init__(self, functions: Mapping | None = None, type_definitions: Mapping | None = None) -> None:
        self._native = _byoc.RelayModule()
        self._attrs: dict[str, AnyValue] = {}
        for header, data in (type_definitions or {}).items():
            self[header] = data
        for name, function in (functions or {}).items():
            self[name] = function

    @classmethod
    def _of(cls, native: _byoc.RelayModule, attrs: Mapping | None = None) -> IRModule:
        self = cls.__new__(cls)
        self._native = native
        self._attrs = dict(attrs or {})
        return self

    @staticmethod
    def from_expr(expr: Expr, functions: Mapping | None = None, type_defs: Mapping | None = None) -> IRModule:
        """Returns a module with the expression as `main`; its free variables become parameters."""
        module = IRModule(functions, type_defs)
        module["main"] = expr
        return module

    @property
    def attrs(self) -> dict[str, AnyValue] | None:
        return self._attrs or None

    def with_attr(self, key: str, value: AnyValue) -> IRModule:
        return IRModule._of(self._native.copy(), {**self._attrs, key: value})

    def get_attr(self, key: str) -> AnyValue:
        return self._attrs.get(key)

    def __setitem__(self, name: AnyValue, value: AnyValue) -> None:
        if isinstance(value, TypeData):
            constructors = [(c.name_hint, list(c.inputs)) for c in value.constructors]
            self._native.define_type(value.header.name_hint, [v.name_hint for v in value.type_vars], constructors)
            return
        if not isinstance(value, Function):
            value = as_expr(value)
            value = Function(value.free_vars(), value)
        self._native.set(_global_name(name), value)

    def __getitem__(self, name: AnyValue) -> AnyValue:
        if isinstance(name, GlobalTypeVar):
            return self.type_definitions[name]
        found = self._native.get(_global_name(name))
        if found is None:
            for header, data in self.type_definitions.items():
                if header.name_hint == name:
                    return data
            self.get_global_var(_global_name(name))
        return found

    def __contains__(self, name: AnyValue) -> bool:
        return _global_name(name) in self._native.names()

    def __delitem__(self, name: AnyValue) -> None:
        self._native.remove(_global_name(name))

    @property
    def functions(self) -> dict[GlobalVar, Function]:
        return {GlobalVar(name): self._native.get(name) for name in self._native.names()}

    def functions_items(self) -> list[tuple[GlobalVar, Function]]:
        return list(self.functions.items())

    @property
    def type_definitions(self) -> dict[GlobalTypeVar, TypeData]:
        found = {}
        for name, params, constructors in self._native.type_defs():
            header = GlobalTypeVar(name)
            variables = [TypeVar(param) for param in params]
            found[header] = TypeData(header, variables, [Constructor(n, fields) for n, fields in constructors])
        return found

    def get_global_vars(self) -> list[GlobalVar]:
        return [GlobalVar(name) for name in self._native.names()]

    def get_global_var(self, name: str) -> GlobalVar:
        if name not in self._native.names():
            names = ", ".join(self._native.names()) or "none"
            raise ValueError(f"expected a function of the module, found {name}; its functions: {names}")
        return GlobalVar(name)

    def get_global_type_var(self, name: str) -> GlobalTypeVar:
        if GlobalTypeVar(name) not in self.type_definitions:
            raise ValueError(f"expected a type of the module, found {name}")
        return GlobalTypeVar(name)

    def get_global_type_vars(self) -> list[GlobalTypeVar]:
        return list(self.type_definitions)

    def get_constructor(self, name_or_type: str, name: str | None = None) -> Constructor:
        wanted = name or name_or_type
        for data in self.type_definitions.values():
            for constructor in data.constructors:
                if constructor.name_hint == wanted:
                    return constructor
        raise ValueError(f"expected a constructor of the module, found {wanted}")

    def get_type(self, name: str) -> tuple:
        data = self.type_definitions[self.get_global_type_var(name)]
        return (data.header, *data.constructors)

    def update(self, other: AnyValue) -> None:
        """Adds the functions and types of another module."""
        other = other if isinstance(other, IRModule) else IRModule(other)
        self._native.import_types(other._native)
        for name in other._native.names():
            self._native.set(name, other._native.get(name))

    def import_from_std(self, file_rel_path: str) -> None:
        """Adds the definitions of lists and options."""
        from ._prelude import TEXT

        self.update(parse(TEXT))

    def update_func(self, name: AnyValue, function: Function) -> None:
        self[name] = function

    def astext(self, show_meta_data: bool = True, annotate: AnyValue = None) -> str:
        """Returns the module in the text format, with the values of its constants if `show_meta_data`."""
        return self._native.text(True, show_meta_data)

    def __str__(self) -> str:
        return self._native.text(True, False)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def same_as(self, other: object) -> bool:
        return self is other

    def __reduce__(self):
        return parse, (self.astext(),)

    def __copy__(self) -> IRModule:
        return IRModule._of(self._native.copy(), self._attrs)

    def shallow_copy(self) -> IRModule:
        return self.__copy__()


def _global_name(name: AnyValue) -> str:
    return name.name_hint if isinstance(name, GlobalVar) else str(name)


def parse(source: str, source_name: str = "from_string", init_module=None, init_meta_table=None) -> IRModule:
    """Reads a module in the text format."""
    module = IRModule._of(_byoc.RelayModule.parse(source if "#[version" in source else _VERSION + source))
    if init_module is not None:
        init_module.update(module)
        return init_module
    return module


def first_difference(lhs: AnyValue, rhs: AnyValue, map_free_vars: bool = False) -> str | None:
    """Returns the first difference of two modules, expressions, types or values; None if they are equal."""
    if isinstance(lhs, IRModule) and isinstance(rhs, IRModule):
        return lhs._native.difference(rhs._native)
    if isinstance(lhs, Expr) and isinstance(rhs, Expr):
        return lhs.difference(rhs, map_free_vars)
    if isinstance(lhs, TupleWrapper) and isinstance(rhs, (Expr, TupleWrapper)):
        return first_difference(lhs.tuple_value, rhs, map_free_vars)
    if isinstance(rhs, TupleWrapper):
        return first_difference(lhs, rhs.tuple_value, map_free_vars)
    if isinstance(lhs, (list, tuple)) and isinstance(rhs, (list, tuple)) and len(lhs) == len(rhs):
        differences = (first_difference(a, b, map_free_vars) for a, b in zip(lhs, rhs))
        return next((difference for difference in differences if difference), None)
    if type(lhs) is not type(rhs) and not (isinstance(lhs, (int, str)) and isinstance(rhs, (int, str))):
        return f"{type(lhs).__name__} vs. {type(rhs).__name__}"
    return None if lhs == rhs else f"{lhs} vs. {rhs}"


def structural_equal(lhs: AnyValue, rhs: AnyValue, map_free_vars: bool = False) -> bool:
    """Returns true if two modules, expressions or types are equal up to the names of variables."""
    return first_difference(lhs, rhs, map_free_vars) is None


def assert_structural_equal(lhs: AnyValue, rhs: AnyValue, map_free_vars: bool = False) -> None:
    """Raises ValueError with the first difference unless both are equal."""
    difference = first_difference(lhs, rhs, map_free_vars)
    if difference is not None:
        raise ValueError(f"expected equal structures, found a difference: {difference}\n\n{lhs}\n\n{rhs}")


def structural_hash(node: AnyValue, map_free_vars: bool = False) -> int:
    """Returns a hash that equal structures share."""
    if isinstance(node, (Expr, IRModule)):
        return hash(node._native.digest() if isinstance(node, IRModule) else node.digest(map_free_vars))
    return hash(tuple(node)) if isinstance(node, list) else hash(node)
