//! Values in the written model, and their names.

use crate::proto::Bytes;
use byoc_ir::ir::{ExprId, Type};
use byoc_ir::tensor::Tensor;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Input of a node.
#[derive(Clone, Debug)]
pub enum Operand {
    /// Optional input that is not given, or the integers of a value that is real in the model.
    Absent,
    /// Bytes of strings, or their number.
    Bytes,
    /// Result of an operator that was refused.
    Refused,
    /// Result of a node, or input of the model.
    Name(Rc<str>),
    /// Constant, which becomes an initializer when a node reads it.
    Constant(Arc<Tensor>),
    /// Constant strings.
    Strings(Rc<Strings>),
}

/// Constant tensor of strings.
#[derive(Debug)]
pub struct Strings {
    pub shape: Vec<usize>,
    pub values: Vec<Bytes>,
}

impl Operand {
    /// Returns the tensor of a constant.
    pub fn constant(&self) -> Option<&Arc<Tensor>> {
        match self {
            Operand::Constant(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Returns a key by which equal operands are recognized.
    pub fn key(&self) -> OperandKey {
        match self {
            Operand::Absent | Operand::Bytes | Operand::Refused => OperandKey::Absent,
            Operand::Name(name) => OperandKey::Name(name.clone()),
            Operand::Constant(tensor) => tensor_key(tensor),
            Operand::Strings(strings) => OperandKey::Strings(strings.shape.clone(), strings.values.clone()),
        }
    }
}

/// Identity of an operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperandKey {
    Absent,
    Name(Rc<str>),
    Strings(Vec<usize>, Vec<Bytes>),
    /// Small constant: element type, shape and bytes.
    Small(byoc_ir::tensor::DType, Vec<usize>, Vec<u8>),
    /// Constant by the address of its bytes.
    Large(byoc_ir::tensor::DType, Vec<usize>, usize),
}

/// Maximum size in bytes of a constant that is shared with every equal one.
const MAX_SMALL_BYTES: usize = 64;

/// Returns the identity of a constant. Larger constants are equal if they share their bytes.
pub fn tensor_key(tensor: &Tensor) -> OperandKey {
    let (dtype, shape, bytes) = (tensor.dtype(), tensor.shape().to_vec(), tensor.bytes());
    if bytes.len() <= MAX_SMALL_BYTES {
        OperandKey::Small(dtype, shape, bytes.to_vec())
    } else {
        OperandKey::Large(dtype, shape, bytes.as_ptr().addr())
    }
}

/// Value of an expression.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor(Operand),
    Tuple(Rc<[Value]>),
    /// Function literal or global function.
    Function(ExprId),
}

impl Value {
    /// Combines tensors to a value of a type.
    pub fn of_type(ty: &Type, operands: &mut impl Iterator<Item = Operand>) -> Value {
        let mut frames: Vec<(std::slice::Iter<'_, Type>, Vec<Value>)> = Vec::new();
        let mut next = Some(ty);
        loop {
            let value = match next.take() {
                Some(ty) => match ty.as_tuple() {
                    Some(fields) => {
                        frames.push((fields.iter(), Vec::new()));
                        None
                    }
                    None => Some(Value::Tensor(operands.next().unwrap_or(Operand::Absent))),
                },
                None => frames.pop().map(|(_, values)| Value::Tuple(values.into())),
            };
            let Some((fields, values)) = frames.last_mut() else {
                return value.unwrap_or(Value::Tensor(Operand::Absent));
            };
            values.extend(value);
            next = fields.next();
        }
    }

    /// Returns the tensors of the value from left to right, with nested tuples flattened; `None` if it holds a function.
    pub fn leaves(&self) -> Option<Vec<Operand>> {
        let (mut leaves, mut stack) = (Vec::new(), vec![self]);
        while let Some(value) = stack.pop() {
            match value {
                Value::Tensor(operand) => leaves.push(operand.clone()),
                Value::Tuple(fields) => stack.extend(fields.iter().rev()),
                Value::Function(_) => return None,
            }
        }
        Some(leaves)
    }
}

/// Names that are taken. Nodes and values share one set, so that a node and its first result have the same name.
#[derive(Default)]
pub struct UniqueNames {
    /// Number of the next suffix, by name.
    taken: HashMap<Rc<str>, usize>,
}

impl UniqueNames {
    /// Takes a name as it is.
    pub fn reserve(&mut self, name: &str) {
        self.taken.entry(name.into()).or_insert(1);
    }

    /// Returns `base`, or the first of `base.1`, `base.2` and so on that is free.
    pub fn unique(&mut self, base: &str) -> Rc<str> {
        let mut name: Rc<str> = base.into();
        while let Some(next) = self.taken.get_mut(&name) {
            // The suffix counts from the base, so that equal bases take constant time each.
            let suffix = *next;
            *next += 1;
            let candidate: Rc<str> = format!("{base}.{suffix}").into();
            if self.taken.contains_key(&candidate) {
                name = base.into();
                continue;
            }
            name = candidate;
        }
        self.taken.insert(name.clone(), 1);
        name
    }
}
