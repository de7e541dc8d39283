//! Entries of the operator table: [`OpDef`] and its parts.

use super::{Params, Properties, TypeResult};
use crate::diag::{Code, Diagnostic, codes};
use crate::ir::{Attrs, Dim, TensorType, Type};
use crate::tensor::{DType, Tensor, TensorView, TensorViewMut};
use std::any::Any;
use std::fmt;

/// Number of arguments of an operator. (A variadic operator takes one tuple, as in Relay.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// Minimum number of arguments.
    pub min: usize,
    /// Maximum number of arguments.
    pub max: usize,
}

impl Arity {
    /// Returns an arity of exactly `n`.
    pub const fn exactly(n: usize) -> Arity {
        Arity { min: n, max: n }
    }
}

/// Kind of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// An integer.
    Int,
    /// A floating-point number.
    Float,
    /// A Boolean.
    Bool,
    /// A string.
    Str,
    /// Name of an element type; `""` leaves the choice to the operator.
    DType,
    /// A list of integers, possibly nested; a single integer counts as a list of one.
    Ints,
    /// A list of floating-point numbers.
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
            AttrKind::DType => "the name of an element type",
            AttrKind::Ints => "a list of integers",
            AttrKind::Floats => "a list of numbers",
            AttrKind::IntOrInts => "an integer or a list of integers",
        })
    }
}

/// Default value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Default {
    /// No default: the attribute must be given.
    Required,
    /// The value `None`.
    None,
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A Boolean.
    Bool(bool),
    /// A string or the name of an element type.
    Str(&'static str),
    /// A list of integers.
    Ints(&'static [i64]),
    /// A list of floating-point numbers.
    Floats(&'static [f64]),
}

/// Attribute of an operator.
#[derive(Clone, Copy, Debug)]
pub struct AttrDef {
    /// Name in Relay.
    pub name: &'static str,
    /// Kind of the value. `None` is also accepted if it is the default.
    pub kind: AttrKind,
    /// Value if the attribute is not given.
    pub default: Default,
    /// Meaning and units, on one line.
    pub doc: &'static str,
}

impl AttrDef {
    /// Creates an attribute.
    pub const fn new(name: &'static str, kind: AttrKind, default: Default, doc: &'static str) -> AttrDef {
        AttrDef { name, kind, default, doc }
    }
}

/// Fusion behavior of an operator, Relay's `TOpPattern`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum OpPattern {
    /// Each output element depends on the input elements at the same index.
    ElemWise = 0,
    /// Elementwise with broadcasting.
    Broadcast = 1,
    /// Each output element depends on one input element at an arbitrary index.
    Injective = 2,
    /// A commutative reduction.
    CommReduce = 3,
    /// Elementwise operators can be fused into the output of the operator.
    OutEWiseFusable = 4,
    /// Creates a tuple.
    Tuple = 7,
    /// Cannot be fused.
    Opaque = 8,
}

/// Call, as seen by its type relation.
#[derive(Clone, Copy)]
pub struct Relation<'a> {
    /// Operator being called.
    pub def: &'static OpDef,
    /// Attributes, with defaults.
    pub params: Params<'a>,
    /// Argument types.
    pub args: &'a [Type],
    /// Known argument values: the constants at compile time, all arguments at run time.
    pub values: &'a [Option<&'a Tensor>],
}

impl<'a> Relation<'a> {
    /// Returns the tensor type of argument `i`.
    ///
    /// # Errors
    /// If the argument is missing or not a tensor.
    pub fn tensor(&self, i: usize) -> Result<&'a TensorType, Box<Diagnostic>> {
        match self.args.get(i) {
            Some(Type::Tensor(t)) => Ok(t),
            Some(other) => Err(self.mismatch(format!("argument {i}: expected a tensor, found {other}"))),
            None => Err(self.error(codes::types::BAD_ARITY, format!("argument {i}: expected a tensor, found none"))),
        }
    }

    /// Returns the types of the tensors in the tuple argument `i`.
    ///
    /// # Errors
    /// If the argument is missing or not a tuple of tensors.
    pub fn tensors(&self, i: usize) -> Result<Vec<&'a TensorType>, Box<Diagnostic>> {
        let fields = match self.args.get(i) {
            Some(Type::Tuple(fields)) => fields,
            Some(other) => {
                return Err(self.mismatch(format!("argument {i}: expected a tuple of tensors, found {other}")));
            }
            None => {
                let message = format!("argument {i}: expected a tuple of tensors, found none");
                return Err(self.error(codes::types::BAD_ARITY, message));
            }
        };
        let mismatch = || self.mismatch(format!("argument {i}: expected a tuple of tensors, found {}", self.args[i]));
        fields.iter().map(|f| f.as_tensor().ok_or_else(mismatch)).collect()
    }

    /// Returns the integers of argument `i`, if its value is known. A tensor without elements is always known.
    pub fn known_ints(&self, i: usize) -> Option<Vec<i64>> {
        if let Some(ty) = self.args.get(i).and_then(Type::as_tensor)
            && ty.dtype.is_int()
            && ty.dims.contains(&Dim::Fixed(0))
        {
            return Some(Vec::new());
        }
        self.values.get(i).copied().flatten()?.view().to_i64s()
    }

    /// Resolves an axis; a negative axis counts from the end.
    ///
    /// # Errors
    /// If the axis is out of range for `rank` dimensions.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, Box<Diagnostic>> {
        let resolved_axis = if axis < 0 { axis + rank as i64 } else { axis };
        if (0..rank as i64).contains(&resolved_axis) {
            Ok(resolved_axis as usize)
        } else {
            Err(self.error(codes::types::BAD_ATTRIBUTE, format!("axis {axis} is out of range for rank {rank}")))
        }
    }

    /// Creates a diagnostic whose message begins with the operator's name.
    pub fn error(&self, code: Code, message: impl fmt::Display) -> Box<Diagnostic> {
        Box::new(Diagnostic::error(code, format!("{}: {message}", self.def.name)))
    }

    /// Creates a type-mismatch diagnostic.
    pub fn mismatch(&self, message: impl fmt::Display) -> Box<Diagnostic> {
        self.error(codes::types::TYPE_MISMATCH, message)
    }

    /// Unifies two dimensions that must be equal, preferring a known dimension. `what` describes both in the message.
    ///
    /// # Errors
    /// If both dimensions are known and differ.
    pub fn same_dim(&self, what: &str, a: &Dim, b: &Dim) -> Result<Dim, Box<Diagnostic>> {
        match (a, b) {
            (Dim::Fixed(x), Dim::Fixed(y)) if x != y => {
                Err(self.mismatch(format!("{what}: expected equal dimensions, found {x} and {y}")))
            }
            (Dim::Fixed(_), _) => Ok(a.clone()),
            (_, Dim::Fixed(_)) => Ok(b.clone()),
            (Dim::Symbolic(_), _) => Ok(a.clone()),
            _ => Ok(b.clone()),
        }
    }

    /// Returns the common element type of two operands.
    ///
    /// # Errors
    /// If the element types differ.
    pub fn same_dtype(&self, a: DType, b: DType) -> Result<DType, Box<Diagnostic>> {
        if a == b { Ok(a) } else { Err(self.mismatch(format!("expected equal element types, found {a} and {b}"))) }
    }
}

/// Typed call, as seen by the cost function. Unknown dimensions count as 1.
#[derive(Clone, Copy)]
pub struct Cost<'a> {
    /// Attributes, with defaults.
    pub params: Params<'a>,
    /// Argument types.
    pub args: &'a [Type],
    /// Result type of the call.
    pub ret: &'a Type,
}

impl Cost<'_> {
    /// Returns the number of elements in argument `i`; 0 if the argument is missing.
    pub fn arg_len(&self, i: usize) -> u64 {
        self.args.get(i).map_or(0, elements)
    }

    /// Returns the number of elements in the result.
    pub fn ret_len(&self) -> u64 {
        elements(self.ret)
    }
}

/// Returns the number of elements in a value of type `ty`, summed over the fields of tuples.
fn elements(ty: &Type) -> u64 {
    let tensor =
        |t: &TensorType| t.dims.iter().map(Dim::number).fold(1u64, |product, n| product.saturating_mul(n as u64));
    match ty {
        Type::Tensor(t) => tensor(t),
        Type::Tuple(fields) => fields.iter().filter_map(Type::as_tensor).map(tensor).fold(0, u64::saturating_add),
        _ => 0,
    }
}

/// Reason for the failure of a reference (a negative size, an index out of bounds); shown with the operator's name.
pub type ReferenceError = String;

/// Outcome of a reference implementation.
pub type Evaluation = Result<(), ReferenceError>;

/// Naive implementation: plain loops with sums in binary64, written for clarity. Tuple arguments and results are
/// flattened. Inputs have the types that the relation accepted, outputs the type that it returned.
pub type Reference = fn(Params<'_>, &[TensorView<'_>], &mut [TensorViewMut<'_>]) -> Evaluation;

/// Returns an upper bound in bytes on the intermediate results of a reference: four 64-bit numbers (values in binary64,
/// sums, indices) for each element read or written. Callers [reserve](crate::tensor::memory::reserve) this memory.
pub fn reference_scratch(elements: impl IntoIterator<Item = usize>) -> usize {
    elements.into_iter().fold(0usize, |bytes, elements| bytes.saturating_add(elements.saturating_mul(32)))
}

/// Entry of the operator table.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// Name in Relay.
    pub name: &'static str,
    /// Description in one paragraph: result, shapes, source of the formula.
    pub doc: &'static str,
    /// Number of arguments; by default, that of `inputs`.
    pub arity: Arity,
    /// Names of the arguments, for messages and the operator reference.
    pub inputs: &'static [&'static str],
    /// Attributes, in Relay's order.
    pub attrs: &'static [AttrDef],
    /// Fusion pattern.
    pub pattern: OpPattern,
    /// Type relation: returns the type of a call, or a diagnostic.
    pub relation: fn(&Relation<'_>) -> TypeResult,
    /// Reference implementation. If `None`, calls can be typed and partitioned, but only a backend can execute them.
    pub reference: Option<Reference>,
    /// Returns the number of floating-point (or integer) operations of a call; a multiply-add counts as 2, data
    /// movement as 0.
    pub flops: fn(&Cost<'_>) -> u64,
    /// Further facts about the operator, for passes, the planner and the conformance run.
    pub properties: Properties,
    /// Declaration of an operator that is not Relay's: a `Declared`.
    pub declaration: Option<&'static (dyn Any + Send + Sync)>,
}

inventory::collect!(OpDef);

impl OpDef {
    /// Values of the fields that an entry of [`operator!`] leaves out: an operator that is not fused, computes nothing, and
    /// whose results are exact.
    pub(super) const DEFAULT: OpDef = OpDef {
        name: "",
        doc: "",
        arity: Arity::exactly(usize::MAX),
        inputs: &[],
        attrs: &[],
        pattern: OpPattern::Opaque,
        relation: |relation| Err(relation.mismatch("this operator has no type relation")),
        reference: None,
        flops: |_| 0,
        properties: Properties::EXACT,
        declaration: None,
    };

    /// Sets the number of arguments that an entry leaves out.
    pub(super) const fn with_arity(mut self) -> OpDef {
        if self.arity.max == usize::MAX {
            self.arity = Arity::exactly(self.inputs.len());
        }
        self
    }

    /// Returns the attribute named `name`.
    pub fn attr(&self, name: &str) -> Option<&'static AttrDef> {
        self.attrs.iter().find(|a| a.name == name)
    }

    /// Infers the type of a call.
    ///
    /// # Errors
    /// If the call is not well typed; the message begins with the operator's name.
    pub fn infer(&'static self, attrs: &Attrs, args: &[Type], values: &[Option<&Tensor>]) -> TypeResult {
        let relation = Relation { def: self, params: Params::new(self, attrs), args, values };
        if !(self.arity.min..=self.arity.max).contains(&args.len()) {
            let Arity { min, max } = self.arity;
            let expected = if min == max { min.to_string() } else { format!("{min} to {max}") };
            let names = self.inputs.join(", ");
            return Err(relation.error(
                codes::types::BAD_ARITY,
                format!("arguments ({names}): expected {expected}, found {}", args.len()),
            ));
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
