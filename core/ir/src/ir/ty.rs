//! Types of expressions, as in Relay: tensors, tuples, functions, references, algebraic data types and type variables.
//!
//! A model can nest them as deeply as it is long, so walks over the parts keep a stack of their own, and what passes ask
//! often is kept in a summary (`super::nested`). The limits on dimensions, parts and bytes of a type are here too.

use super::nested::{self, Nested, Summary, TypeParts};
use super::{Dim, Name};
use crate::tensor::{DType, Shape};
use std::fmt;
use std::sync::Arc;

/// Type of a tensor: element type and dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type: `float32`, `int8`, ...
    pub dtype: DType,
    /// Dimensions; empty for a scalar.
    pub dims: Box<[Dim]>,
}

impl TensorType {
    /// Maximum number of dimensions, as in NumPy. Without a limit, the types of a chain of operators on one tensor of many
    /// dimensions take memory quadratic in the size of the model.
    pub const MAX_RANK: usize = 64;

    /// Creates a tensor type whose dimensions are all known.
    pub fn fixed(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType { dtype, dims: shape.iter().map(|&d| Dim::Fixed(d)).collect() }
    }

    /// Returns the shape; `None` unless all dimensions are known.
    pub fn shape(&self) -> Option<Shape> {
        self.dims.iter().map(Dim::fixed).collect()
    }

    /// Returns the number of elements; `None` if a dimension is unknown or the product overflows.
    pub fn len(&self) -> Option<usize> {
        crate::tensor::element_count(&self.shape()?)
    }

    /// Returns true if a tensor of this type fits in the address space, counting each dimension that is 0 or unknown as
    /// 1. Every type in a module is addressable, so products of known dimensions never overflow.
    pub fn is_addressable(&self) -> bool {
        let bytes = self.dims.iter().filter_map(Dim::fixed).try_fold(self.dtype.size(), |n, d| n.checked_mul(d.max(1)));
        bytes.is_some_and(|bytes| bytes <= isize::MAX as usize)
    }

    /// Returns true if the tensor is known to have no elements.
    pub fn is_empty(&self) -> bool {
        self.dims.contains(&Dim::Fixed(0))
    }
}

/// Type of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FuncType {
    /// Type parameters; usually empty.
    pub type_params: Box<[Name]>,
    /// Parameter types.
    pub params: Box<[Type]>,
    /// Result type.
    pub ret: Type,
}

impl FuncType {
    /// Creates the type of a function without type parameters.
    pub fn new(params: impl Into<Box<[Type]>>, ret: Type) -> FuncType {
        FuncType { type_params: Box::new([]), params: params.into(), ret }
    }
}

/// Instance of a type definition of the module: its name and type arguments, as in `List[int32]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdtType {
    /// Name of the definition.
    pub name: Name,
    /// Type arguments, one for each parameter of the definition.
    pub args: Box<[Type]>,
}

/// Type of an expression. Cloning, comparing and querying a type are cheap, regardless of its size.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// A tensor, or a scalar when it has no dimensions.
    Tensor(Arc<TensorType>),
    /// A tuple.
    Tuple(Arc<Nested<Box<[Type]>>>),
    /// A function.
    Func(Arc<Nested<FuncType>>),
    /// A mutable cell.
    Ref(Arc<Nested<Type>>),
    /// An algebraic data type.
    Adt(Arc<Nested<AdtType>>),
    /// A type parameter of the enclosing function or type definition.
    Param(Arc<Name>),
    /// `_`: to be inferred.
    Unknown,
}

impl Type {
    /// Creates a tensor type whose dimensions are all known.
    pub fn tensor(dtype: DType, shape: &[usize]) -> Type {
        Type::Tensor(Arc::new(TensorType::fixed(dtype, shape)))
    }

    /// Creates a tensor type.
    pub fn tensor_of(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Type {
        Type::Tensor(Arc::new(TensorType { dtype, dims: dims.into_iter().collect() }))
    }

    /// Creates a tensor type of rank 0.
    pub fn scalar(dtype: DType) -> Type {
        Type::tensor(dtype, &[])
    }

    /// Creates a tuple type.
    pub fn tuple(fields: impl IntoIterator<Item = Type>) -> Type {
        Type::Tuple(Arc::new(Nested::new(fields.into_iter().collect())))
    }

    /// Creates a function type.
    pub fn func(func: FuncType) -> Type {
        Type::Func(Arc::new(Nested::new(func)))
    }

    /// Creates the type of a mutable cell that holds values of type `inner`.
    pub fn reference(inner: Type) -> Type {
        Type::Ref(Arc::new(Nested::new(inner)))
    }

    /// Creates an instance of the type definition `name`.
    pub fn adt(name: Name, args: impl Into<Box<[Type]>>) -> Type {
        Type::Adt(Arc::new(Nested::new(AdtType { name, args: args.into() })))
    }

    /// Creates a reference to the type parameter `name`.
    pub fn param(name: impl Into<Name>) -> Type {
        Type::Param(Arc::new(name.into()))
    }

    /// Returns the type of the empty tuple.
    pub fn unit() -> Type {
        Type::tuple([])
    }

    /// Returns the tensor type; `None` for other types.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// Returns the fields of a tuple type; `None` for other types.
    pub fn as_tuple(&self) -> Option<&[Type]> {
        match self {
            Type::Tuple(fields) => Some(fields),
            _ => None,
        }
    }

    /// Maximum number of parts in a type. A shared part counts once per occurrence, because each occurrence is printed.
    pub const MAX_PARTS: usize = 1 << 20;

    /// Returns true if the text format reserves `name` (an element type, `Tensor`, a keyword), so that no type, type
    /// parameter or constructor can have this name.
    pub fn is_reserved(name: &str) -> bool {
        const WORDS: [&str; 19] = [
            "Tensor",
            "int",
            "float",
            "_",
            "True",
            "False",
            "let",
            "fn",
            "def",
            "if",
            "else",
            "type",
            "match",
            "extern",
            "free_var",
            "meta",
            "ref",
            "ref_read",
            "ref_write",
        ];
        DType::parse(name).is_some() || WORDS.contains(&name)
    }

    /// Returns the cached properties of the type.
    pub(super) fn summary(&self) -> Summary {
        match self {
            Type::Tuple(fields) => fields.summary(),
            Type::Func(func) => func.summary(),
            Type::Ref(inner) => inner.summary(),
            Type::Adt(adt) => adt.summary(),
            Type::Tensor(_) | Type::Param(_) | Type::Unknown => nested::leaf(self),
        }
    }

    /// Returns true if no part of the type is [`Type::Unknown`].
    pub fn is_complete(&self) -> bool {
        match self {
            Type::Tensor(_) | Type::Param(_) => true,
            Type::Unknown => false,
            other => other.summary().is_complete,
        }
    }

    /// Returns true if the type contains a type parameter.
    pub fn has_params(&self) -> bool {
        self.summary().has_params
    }

    /// Returns true if the type contains a type parameter or an instance of a type definition.
    pub fn has_names(&self) -> bool {
        let summary = self.summary();
        summary.has_params || summary.has_definitions
    }

    /// Returns true if a dimension in the type is symbolic or `?`.
    pub fn has_open_dims(&self) -> bool {
        self.summary().has_open_dims
    }

    /// Returns the number of parts; a shared part counts once per occurrence.
    pub fn parts(&self) -> usize {
        self.summary().parts as usize
    }

    /// Describes the first tensor type that exceeds a limit: one that is not [addressable](TensorType::is_addressable),
    /// or has more than [`TensorType::MAX_RANK`] dimensions. Only the type itself and the direct fields of a tuple type
    /// are checked.
    pub fn tensor_fault(&self) -> Option<String> {
        let fault = |ty: &Type| match ty {
            Type::Tensor(tensor) if tensor.dims.len() > TensorType::MAX_RANK => {
                let (max, found) = (TensorType::MAX_RANK, tensor.dims.len());
                Some(format!("expected a tensor of at most {max} dimensions, found {found}"))
            }
            Type::Tensor(tensor) if !tensor.is_addressable() => {
                Some(format!("expected a tensor of at most {} bytes, found {ty}", isize::MAX))
            }
            _ => None,
        };
        match self {
            Type::Tuple(fields) => fields.iter().find_map(fault),
            _ => fault(self),
        }
    }

    /// Returns true if the type has at most [`Type::MAX_PARTS`] parts.
    pub fn is_within_limits(&self) -> bool {
        self.parts() <= Type::MAX_PARTS
    }

    /// Calls `visit` with each direct part of the type, in order.
    pub fn for_each_part<'t>(&'t self, visit: &mut dyn FnMut(&'t Type)) {
        match self {
            Type::Tuple(fields) => fields.for_each(visit),
            Type::Func(func) => func.for_each(visit),
            Type::Ref(inner) => inner.for_each(visit),
            Type::Adt(adt) => adt.for_each(visit),
            Type::Tensor(_) | Type::Param(_) | Type::Unknown => {}
        }
    }

    /// Moves the direct parts into `into`, unless they are shared with another type.
    pub(super) fn take(&mut self, into: &mut Vec<Type>) {
        match self {
            Type::Tuple(fields) => take(fields, into),
            Type::Func(func) => take(func, into),
            Type::Ref(inner) => take(inner, into),
            Type::Adt(adt) => take(adt, into),
            Type::Tensor(_) | Type::Param(_) | Type::Unknown => {}
        }
    }

    /// Visits the type and all its parts in pre-order, left to right. `visit` receives the part and the type parameters
    /// of the enclosing function types, outermost first, and returns whether to descend into the part.
    pub fn walk<'t>(&'t self, visit: &mut dyn FnMut(&'t Type, &[&'t [Name]]) -> bool) {
        enum Step<'t> {
            Enter(&'t Type),
            Leave,
        }
        let mut scopes: Vec<&[Name]> = Vec::new();
        let mut stack = vec![Step::Enter(self)];
        while let Some(step) = stack.pop() {
            match step {
                Step::Enter(ty) => {
                    if visit(ty, &scopes) {
                        if let Type::Func(func) = ty {
                            scopes.push(&func.type_params);
                            stack.push(Step::Leave);
                        }
                        let first = stack.len();
                        ty.for_each_part(&mut |part| stack.push(Step::Enter(part)));
                        stack[first..].reverse();
                    }
                }
                Step::Leave => {
                    scopes.pop();
                }
            }
        }
    }

    /// Returns the type with its leaves replaced. `enter` returns whether a part may contain leaves to replace.
    /// `replace` receives a leaf and the type parameters of the enclosing function types, and returns the replacement,
    /// or `None` to keep the leaf.
    pub fn map_leaves(
        &self,
        enter: &dyn Fn(&Type) -> bool,
        replace: &mut dyn FnMut(&Type, &[&[Name]]) -> Option<Type>,
    ) -> Type {
        enum Step<'t> {
            Enter(&'t Type),
            Build(&'t Type),
        }
        let mut scopes: Vec<&[Name]> = Vec::new();
        let mut results: Vec<Type> = Vec::new();
        let mut stack = vec![Step::Enter(self)];
        while let Some(step) = stack.pop() {
            match step {
                Step::Enter(ty) if !enter(ty) => results.push(ty.clone()),
                Step::Enter(ty @ (Type::Tensor(_) | Type::Param(_) | Type::Unknown)) => {
                    results.push(replace(ty, &scopes).unwrap_or_else(|| ty.clone()));
                }
                Step::Enter(ty) => {
                    if let Type::Func(func) = ty {
                        scopes.push(&func.type_params);
                    }
                    stack.push(Step::Build(ty));
                    let first = stack.len();
                    ty.for_each_part(&mut |part| stack.push(Step::Enter(part)));
                    stack[first..].reverse();
                }
                Step::Build(ty) => {
                    let parts = |count: usize, results: &mut Vec<Type>| results.split_off(results.len() - count);
                    let mapped_type = match ty {
                        Type::Tuple(fields) => Type::tuple(parts(fields.len(), &mut results)),
                        Type::Adt(adt) => Type::adt(adt.name.clone(), parts(adt.args.len(), &mut results)),
                        Type::Ref(_) => Type::reference(results.pop().unwrap_or(Type::Unknown)),
                        Type::Func(func) => {
                            scopes.pop();
                            let ret = results.pop().unwrap_or(Type::Unknown);
                            let params = parts(func.params.len(), &mut results).into();
                            Type::func(FuncType { type_params: func.type_params.clone(), params, ret })
                        }
                        Type::Tensor(_) | Type::Param(_) | Type::Unknown => ty.clone(),
                    };
                    results.push(mapped_type);
                }
            }
        }
        results.pop().unwrap_or(Type::Unknown)
    }
}

fn take<T: TypeParts>(nested: &mut Arc<Nested<T>>, into: &mut Vec<Type>) {
    if let Some(nested) = Arc::get_mut(nested) {
        nested.take_parts(into);
    }
}

impl fmt::Debug for Type {
    /// Formats the type as Relay text. Not derived: a derived implementation would recurse to the depth of the type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TensorType {
    /// Formats the type as Relay text: `Tensor[(1, ?), float32]`, `float32`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dims.is_empty() {
            return self.dtype.fmt(f);
        }
        f.write_str("Tensor[(")?;
        write_separated(f, &self.dims)?;
        write!(f, "), {}]", self.dtype)
    }
}

impl fmt::Display for Type {
    /// Formats the type as Relay text: `Tensor[(1, ?), float32]`, `float32`, `(int32, int32)`, `fn (int32) -> int32`,
    /// `ref(int32)`, `List[int32]`, `A`, `_`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        enum Piece<'t> {
            Type(&'t Type),
            Text(&'static str),
        }
        let mut stack = vec![Piece::Type(self)];
        // Pieces are pushed in reverse: the top of the stack is printed first.
        fn list<'t>(stack: &mut Vec<Piece<'t>>, types: &'t [Type], close: &'static str) {
            stack.push(Piece::Text(close));
            for (i, ty) in types.iter().enumerate().rev() {
                stack.push(Piece::Type(ty));
                if i > 0 {
                    stack.push(Piece::Text(", "));
                }
            }
        }
        while let Some(piece) = stack.pop() {
            let ty = match piece {
                Piece::Text(text) => {
                    f.write_str(text)?;
                    continue;
                }
                Piece::Type(ty) => ty,
            };
            match ty {
                Type::Tensor(t) => t.fmt(f)?,
                Type::Tuple(fields) => {
                    f.write_str("(")?;
                    list(&mut stack, fields, if fields.len() == 1 { ",)" } else { ")" });
                }
                Type::Func(func) => {
                    f.write_str("fn ")?;
                    if !func.type_params.is_empty() {
                        f.write_str("[")?;
                        write_separated(f, &func.type_params)?;
                        f.write_str("]")?;
                    }
                    f.write_str("(")?;
                    stack.push(Piece::Type(&func.ret));
                    list(&mut stack, &func.params, ") -> ");
                }
                Type::Ref(inner) => {
                    f.write_str("ref(")?;
                    stack.extend([Piece::Text(")"), Piece::Type(inner)]);
                }
                Type::Adt(adt) if adt.args.is_empty() => f.write_str(&adt.name)?,
                Type::Adt(adt) => {
                    write!(f, "{}[", adt.name)?;
                    list(&mut stack, &adt.args, "]");
                }
                Type::Param(name) => f.write_str(name)?,
                Type::Unknown => f.write_str("_")?,
            }
        }
        Ok(())
    }
}

fn write_separated<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nests `innermost` in `levels` one-field tuples: `((..(int32,)..,),)`.
    fn deep(levels: usize, innermost: Type) -> Type {
        (0..levels).fold(innermost, |inner, _| Type::tuple([inner]))
    }

    #[test]
    fn deep_types_need_no_recursion() {
        const LEVELS: usize = 300_000;
        let int = || Type::scalar(DType::I32);
        let (a, b) = (deep(LEVELS, int()), deep(LEVELS, int()));
        assert_eq!(a, b);
        assert_ne!(a, deep(LEVELS - 1, int()));
        assert_eq!(a.parts(), LEVELS + 1);
        assert!(a.is_complete() && !a.has_params() && a.is_within_limits());
        assert_eq!(a.to_string().len(), "int32".len() + 3 * LEVELS);
        let generic = deep(LEVELS, Type::param("A"));
        assert_ne!(generic, a);
        let instance = generic.map_leaves(&Type::has_params, &mut |_, _| Some(int()));
        assert_eq!(instance, a);
        assert!(!deep(LEVELS, Type::Unknown).is_complete());
        assert!(!deep(Type::MAX_PARTS, int()).is_within_limits());
    }

    #[test]
    fn types_are_equal_when_all_their_parts_are() {
        let types = [
            Type::unit(),
            Type::tuple([Type::unit()]),
            Type::tuple([Type::Unknown]),
            Type::tuple([Type::param("A")]),
            Type::tuple([Type::param("AB")]),
            Type::tuple([Type::tensor(DType::F32, &[1, 2])]),
            Type::tuple([Type::tensor(DType::F32, &[12])]),
            Type::tuple([Type::tensor(DType::F16, &[12])]),
            Type::tuple([Type::tensor_of(DType::F16, [Dim::Any])]),
            Type::tuple([Type::tensor_of(DType::F16, [Dim::symbol("n")])]),
            Type::reference(Type::unit()),
            Type::adt("T".into(), []),
            Type::adt("T".into(), [Type::unit()]),
            Type::func(FuncType::new([], Type::unit())),
            Type::func(FuncType::new([Type::unit()], Type::unit())),
            Type::func(FuncType { type_params: ["A".into()].into(), params: [].into(), ret: Type::unit() }),
        ];
        for (i, a) in types.iter().enumerate() {
            for (j, b) in types.iter().enumerate() {
                assert_eq!(a == b, i == j, "{a} and {b}");
            }
        }
    }
}
