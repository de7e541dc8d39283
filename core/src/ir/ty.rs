//! Types of expressions.

use super::Name;
use crate::tensor::{DType, Shape};
use std::fmt;
use std::sync::Arc;

/// One dimension of a tensor type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known before the run.
    Fixed(usize),
    /// `?`: known during the run; two of them need not be equal.
    Any,
    /// A named dimension: unknown, but the same wherever the name stands in the module.
    Named(Name),
}

impl Dim {
    /// The number, when it is known.
    pub fn fixed(&self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(*n),
            _ => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Any => f.write_str("?"),
            Dim::Named(name) => f.write_str(name),
        }
    }
}

/// Element type and dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The dimensions; none for a scalar.
    pub dims: Box<[Dim]>,
}

impl TensorType {
    /// A tensor type whose dimensions are all known.
    pub fn fixed(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType { dtype, dims: shape.iter().map(|&d| Dim::Fixed(d)).collect() }
    }

    /// The dimensions, when all are known.
    pub fn shape(&self) -> Option<Shape> {
        self.dims.iter().map(Dim::fixed).collect()
    }

    /// The number of elements, when all dimensions are known and their product fits.
    pub fn len(&self) -> Option<usize> {
        crate::tensor::element_count(&self.shape()?)
    }

    /// Whether it is known to have no elements.
    pub fn is_empty(&self) -> bool {
        self.dims.contains(&Dim::Fixed(0))
    }
}

/// The type of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FuncType {
    /// The names that stand for any type; none in most programs.
    pub type_params: Box<[Name]>,
    /// Parameter types.
    pub params: Box<[Type]>,
    /// Result type.
    pub ret: Type,
}

impl FuncType {
    /// The type of a function without type parameters.
    pub fn new(params: impl Into<Box<[Type]>>, ret: Type) -> FuncType {
        FuncType { type_params: Box::new([]), params: params.into(), ret }
    }
}

/// A type that the module defines, with what stands for its parameters: `List[int32]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdtType {
    /// The name of the definition.
    pub name: Name,
    /// One type for each parameter of the definition.
    pub args: Box<[Type]>,
}

/// The type of an expression. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A tensor, or a scalar when it has no dimensions.
    Tensor(Arc<TensorType>),
    /// A tuple.
    Tuple(Arc<[Type]>),
    /// A function.
    Func(Arc<FuncType>),
    /// A mutable cell.
    Ref(Arc<Type>),
    /// An algebraic data type.
    Adt(Arc<AdtType>),
    /// A type parameter of the function or type definition around it.
    Param(Name),
    /// `_`: to be inferred.
    Unknown,
}

impl Type {
    /// A tensor type whose dimensions are all known.
    pub fn tensor(dtype: DType, shape: &[usize]) -> Type {
        Type::Tensor(Arc::new(TensorType::fixed(dtype, shape)))
    }

    /// A tensor type.
    pub fn tensor_of(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Type {
        Type::Tensor(Arc::new(TensorType { dtype, dims: dims.into_iter().collect() }))
    }

    /// A rank-0 tensor type.
    pub fn scalar(dtype: DType) -> Type {
        Type::tensor(dtype, &[])
    }

    /// A tuple type.
    pub fn tuple(fields: impl IntoIterator<Item = Type>) -> Type {
        Type::Tuple(fields.into_iter().collect())
    }

    /// An algebraic data type.
    pub fn adt(name: Name, args: impl Into<Box<[Type]>>) -> Type {
        Type::Adt(Arc::new(AdtType { name, args: args.into() }))
    }

    /// The empty tuple.
    pub fn unit() -> Type {
        Type::tuple([])
    }

    /// The tensor type, if it is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// How deep a type may nest. Types are walked recursively, so this bounds the call stack.
    pub const MAX_DEPTH: usize = 64;

    /// How many parts a type may have; shared parts count each time, as they do when it is compared or printed.
    pub const MAX_PARTS: usize = 1 << 16;

    /// Whether a name means something in every type, so that no definition can have it.
    pub fn is_reserved(name: &str) -> bool {
        DType::parse(name).is_some() || matches!(name, "Tensor" | "fn" | "ref" | "_")
    }

    /// Whether nothing in it is still to be inferred.
    pub fn is_complete(&self) -> bool {
        match self {
            Type::Tensor(_) | Type::Param(_) => true,
            Type::Tuple(fields) => fields.iter().all(Type::is_complete),
            Type::Adt(adt) => adt.args.iter().all(Type::is_complete),
            Type::Func(func) => func.params.iter().all(Type::is_complete) && func.ret.is_complete(),
            Type::Ref(inner) => inner.is_complete(),
            Type::Unknown => false,
        }
    }

    /// Whether it keeps to [`Type::MAX_DEPTH`] and [`Type::MAX_PARTS`]. The parts of a type that was inferred keep to
    /// them already, so this never walks further than one step beyond.
    pub fn is_within_limits(&self) -> bool {
        fn within(ty: &Type, depth: usize, parts: &mut usize) -> bool {
            if depth > Type::MAX_DEPTH || *parts == 0 {
                return false;
            }
            *parts -= 1;
            match ty {
                Type::Tensor(_) | Type::Param(_) | Type::Unknown => true,
                Type::Adt(adt) => adt.args.iter().all(|f| within(f, depth + 1, parts)),
                Type::Tuple(fields) => fields.iter().all(|f| within(f, depth + 1, parts)),
                Type::Func(func) => {
                    func.params.iter().all(|p| within(p, depth + 1, parts)) && within(&func.ret, depth + 1, parts)
                }
                Type::Ref(inner) => within(inner, depth + 1, parts),
            }
        }
        within(self, 0, &mut Type::MAX_PARTS.clone())
    }

    /// The fields, if it is a tuple type.
    pub fn as_tuple(&self) -> Option<&[Type]> {
        match self {
            Type::Tuple(fields) => Some(fields),
            _ => None,
        }
    }
}

impl fmt::Display for Type {
    /// Relay text: `Tensor[(1, ?), float32]`, `float32`, `(int32, int32)`, `fn (int32) -> int32`, `ref(int32)`, `List[int32]`,
    /// `A`, `_`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) if t.dims.is_empty() => write!(f, "{}", t.dtype),
            Type::Tensor(t) => {
                f.write_str("Tensor[(")?;
                separated(f, &t.dims)?;
                write!(f, "), {}]", t.dtype)
            }
            Type::Tuple(fields) => {
                f.write_str("(")?;
                separated(f, fields)?;
                f.write_str(if fields.len() == 1 { ",)" } else { ")" })
            }
            Type::Func(func) => {
                f.write_str("fn ")?;
                if !func.type_params.is_empty() {
                    f.write_str("[")?;
                    separated(f, &func.type_params)?;
                    f.write_str("]")?;
                }
                f.write_str("(")?;
                separated(f, &func.params)?;
                write!(f, ") -> {}", func.ret)
            }
            Type::Ref(inner) => write!(f, "ref({inner})"),
            Type::Adt(adt) if adt.args.is_empty() => f.write_str(&adt.name),
            Type::Adt(adt) => {
                write!(f, "{}[", adt.name)?;
                separated(f, &adt.args)?;
                f.write_str("]")
            }
            Type::Param(name) => f.write_str(name),
            Type::Unknown => f.write_str("_"),
        }
    }
}

fn separated<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}
