//! What the table holds of an operator.

use super::{Params, TypeResult};
use crate::diag::{Code, Diagnostic, codes};
use crate::ir::{Attrs, Dim, TensorType, Type};
use crate::tensor::{DType, Tensor, TensorView, TensorViewMut};
use std::fmt;

/// Number of arguments of an operator. (A variadic operator takes one tuple, as in Relay.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// At least.
    pub min: usize,
    /// At most.
    pub max: usize,
}

impl Arity {
    /// So many, no more, no fewer.
    pub const fn exactly(n: usize) -> Arity {
        Arity { min: n, max: n }
    }
}

/// The kind of values that an attribute takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// An integer.
    Int,
    /// A number.
    Float,
    /// A truth value.
    Bool,
    /// A string.
    Str,
    /// An element type's name; `""` where the operator chooses.
    DType,
    /// A list of integers, possibly nested; one integer stands for a list of one.
    Ints,
    /// A list of numbers.
    Floats,
    /// An integer or a list of integers (`indices_or_sections`).
    IntOrInts,
}

impl fmt::Display for AttrKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AttrKind::Int => "an integer",
            AttrKind::Float => "a number",
            AttrKind::Bool => "True or False",
            AttrKind::Str => "a string",
            AttrKind::DType => "a string that names an element type",
            AttrKind::Ints => "a list of integers",
            AttrKind::Floats => "a list of numbers",
            AttrKind::IntOrInts => "an integer or a list of integers",
        })
    }
}

/// The default value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Default {
    /// There is none: the attribute must be given.
    Required,
    /// `None`.
    None,
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string or an element type's name.
    Str(&'static str),
    /// A list of integers.
    Ints(&'static [i64]),
    /// A list of numbers.
    Floats(&'static [f64]),
}

/// An attribute of an operator.
#[derive(Clone, Copy, Debug)]
pub struct AttrDef {
    /// Relay's name.
    pub name: &'static str,
    /// Kind of its value. `None` is taken as well when that is the default.
    pub kind: AttrKind,
    /// Value if it is not given.
    pub default: Default,
    /// One line: what it means, with units.
    pub doc: &'static str,
}

impl AttrDef {
    /// An attribute.
    pub const fn new(name: &'static str, kind: AttrKind, default: Default, doc: &'static str) -> AttrDef {
        AttrDef { name, kind, default, doc }
    }
}

/// Relay's `TOpPattern`: how an operator fuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum OpPattern {
    /// One output element depends on the input elements at the same place.
    ElemWise = 0,
    /// As above, with broadcasting.
    Broadcast = 1,
    /// One output element depends on one input element, anywhere.
    Injective = 2,
    /// A commutative reduction.
    CommReduce = 3,
    /// Elementwise operators may be computed at its output.
    OutEWiseFusable = 4,
    /// Makes a tuple.
    Tuple = 7,
    /// Does not fuse.
    Opaque = 8,
}

/// A call as its type relation sees it.
#[derive(Clone, Copy)]
pub struct Relation<'a> {
    /// The operator.
    pub def: &'static OpDef,
    /// The attributes, with defaults.
    pub params: Params<'a>,
    /// Argument types.
    pub args: &'a [Type],
    /// The arguments' values where they are known: constants before the run, everything during it.
    pub values: &'a [Option<&'a Tensor>],
}

impl<'a> Relation<'a> {
    /// The tensor type of argument `i`.
    ///
    /// # Errors
    /// When it is no tensor.
    pub fn tensor(&self, i: usize) -> Result<&'a TensorType, Box<Diagnostic>> {
        match self.args.get(i) {
            Some(Type::Tensor(t)) => Ok(t),
            Some(other) => Err(self.mismatch(format!("argument {i} is {other}, a tensor is wanted"))),
            None => Err(self.error(codes::types::BAD_ARITY, format!("argument {i} is missing"))),
        }
    }

    /// The tensor types in the tuple that is argument `i`.
    ///
    /// # Errors
    /// When it is no tuple of tensors.
    pub fn tensors(&self, i: usize) -> Result<Vec<&'a TensorType>, Box<Diagnostic>> {
        let fields = match self.args.get(i) {
            Some(Type::Tuple(fields)) => fields,
            Some(other) => return Err(self.mismatch(format!("argument {i} is {other}, a tuple of tensors is wanted"))),
            None => return Err(self.error(codes::types::BAD_ARITY, format!("argument {i} is missing"))),
        };
        let wrong = || self.mismatch(format!("argument {i} is {}, a tuple of tensors is wanted", self.args[i]));
        fields.iter().map(|f| f.as_tensor().ok_or_else(wrong)).collect()
    }

    /// The integers of argument `i`, when its value is known.
    pub fn known_ints(&self, i: usize) -> Option<Vec<i64>> {
        self.values.get(i).copied().flatten()?.view().to_i64s()
    }

    /// An axis counted from the end when negative.
    ///
    /// # Errors
    /// When there is no such axis in `rank` dimensions.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, Box<Diagnostic>> {
        let resolved = if axis < 0 { axis + rank as i64 } else { axis };
        if (0..rank as i64).contains(&resolved) {
            Ok(resolved as usize)
        } else {
            Err(self.error(codes::types::BAD_ATTRIBUTE, format!("axis {axis} of a tensor with {rank} dimensions")))
        }
    }

    /// Creates a diagnostic of the call, with the operator's name in front.
    pub fn error(&self, code: Code, message: impl fmt::Display) -> Box<Diagnostic> {
        Box::new(Diagnostic::error(code, format!("{}: {message}", self.def.name)))
    }

    /// Types that do not agree.
    pub fn mismatch(&self, message: impl fmt::Display) -> Box<Diagnostic> {
        self.error(codes::types::TYPE_MISMATCH, message)
    }

    /// The dimension that two operands agree on: equal, or one of them unknown.
    ///
    /// # Errors
    /// When both are known and differ.
    pub fn same_dim(&self, what: &str, a: &Dim, b: &Dim) -> Result<Dim, Box<Diagnostic>> {
        match (a, b) {
            (Dim::Fixed(x), Dim::Fixed(y)) if x != y => Err(self.mismatch(format!("{what}: {x} against {y}"))),
            (Dim::Fixed(_), _) => Ok(a.clone()),
            (_, Dim::Fixed(_)) => Ok(b.clone()),
            (Dim::Named(_), _) => Ok(a.clone()),
            _ => Ok(b.clone()),
        }
    }

    /// Checks that two operands have one element type.
    ///
    /// # Errors
    /// When they differ.
    pub fn same_dtype(&self, a: DType, b: DType) -> Result<DType, Box<Diagnostic>> {
        if a == b { Ok(a) } else { Err(self.mismatch(format!("element types differ: {a} and {b}"))) }
    }
}

/// A typed call as the cost function sees it. Dimensions that are open count as 1, so that what is per element of them is
/// counted.
#[derive(Clone, Copy)]
pub struct Cost<'a> {
    /// The attributes, with defaults.
    pub params: Params<'a>,
    /// Argument types.
    pub args: &'a [Type],
    /// The type of the call.
    pub ret: &'a Type,
}

impl Cost<'_> {
    /// Elements of argument `i`; 0 when there is none.
    pub fn arg_len(&self, i: usize) -> u64 {
        self.args.get(i).map_or(0, elements)
    }

    /// Elements of the result.
    pub fn ret_len(&self) -> u64 {
        elements(self.ret)
    }
}

/// Elements of a type, tuples added up.
fn elements(ty: &Type) -> u64 {
    let tensor = |t: &TensorType| t.dims.iter().map(Dim::number).fold(1u64, |all, n| all.saturating_mul(n as u64));
    match ty {
        Type::Tensor(t) => tensor(t),
        Type::Tuple(fields) => fields.iter().filter_map(Type::as_tensor).map(tensor).fold(0, u64::saturating_add),
        _ => 0,
    }
}

/// Why a reference could not compute (a negative size, an index out of bounds); shown with the operator's name.
pub type ReferenceError = String;

/// The naive implementation: plain loops, sums in binary64, written to be read. Tuple arguments arrive flattened,
/// a tuple result leaves flattened. Inputs have the types that the relation accepted, outputs the type that it gave.
pub type Reference = fn(Params<'_>, &[TensorView<'_>], &mut [TensorViewMut<'_>]) -> Result<(), ReferenceError>;

/// Bytes that a reference takes for intermediate results, at most: four numbers of 64 bits (values in binary64, sums,
/// places) for each element that it reads or writes. Whoever calls one makes [room](crate::tensor::memory::room) for them.
pub fn reference_scratch(elements: impl IntoIterator<Item = usize>) -> usize {
    elements.into_iter().fold(0usize, |bytes, elements| bytes.saturating_add(elements.saturating_mul(32)))
}

/// An operator.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// Relay's name.
    pub name: &'static str,
    /// One paragraph: what it computes, shapes, the source of the formula.
    pub doc: &'static str,
    /// Number of arguments.
    pub arity: Arity,
    /// The names of the arguments, for messages and the operator reference.
    pub inputs: &'static [&'static str],
    /// Its attributes, in Relay's order.
    pub attrs: &'static [AttrDef],
    /// Fusion pattern.
    pub pattern: OpPattern,
    /// The type of a call, or what is wrong with it.
    pub relation: fn(&Relation<'_>) -> TypeResult,
    /// The naive implementation. `None`: the operator can be typed and partitioned, but only a backend can run it.
    pub reference: Option<Reference>,
    /// Floating-point (or integer) operations of a call; a multiply-add counts as 2, moving data as 0.
    pub flops: fn(&Cost<'_>) -> u64,
}

inventory::collect!(OpDef);

impl OpDef {
    /// The attribute of that name.
    pub fn attr(&self, name: &str) -> Option<&'static AttrDef> {
        self.attrs.iter().find(|a| a.name == name)
    }

    /// Types a call.
    ///
    /// # Errors
    /// What is wrong with it, with the operator's name in front.
    pub fn infer(&'static self, attrs: &Attrs, args: &[Type], values: &[Option<&Tensor>]) -> TypeResult {
        let relation = Relation { def: self, params: Params::new(self, attrs), args, values };
        if !(self.arity.min..=self.arity.max).contains(&args.len()) {
            let Arity { min, max } = self.arity;
            let wanted = if min == max { min.to_string() } else { format!("{min} to {max}") };
            let names = self.inputs.join(", ");
            return Err(relation
                .error(codes::types::BAD_ARITY, format!("{} arguments given, {wanted} wanted ({names})", args.len())));
        }
        (self.relation)(&relation).map_err(|diagnostic| {
            let types: Vec<String> = args.iter().map(Type::to_string).collect();
            let wants_types = diagnostic.code == codes::types::TYPE_MISMATCH && types.len() > 1;
            if wants_types {
                Box::new(diagnostic.note(format!("the arguments are {}", types.join(" and "))))
            } else {
                diagnostic
            }
        })
    }
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpDef({})", self.name)
    }
}
