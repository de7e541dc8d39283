//! A planned program as plain data: the input of the executor, and the contents of `program.json` in an artifact.
//!
//! The program is code for a register machine. A function has registers and instructions. Tuples do not exist at run
//! time (each leaf of a tuple has its own register), so a register holds a tensor or a handle: a closure, a reference
//! cell, or a value of an algebraic data type. A straight-line graph is a function without jumps. Jumps only go
//! forward; a loop is a tail call.
//!
//! The planner decides where the tensor of a register is stored ([`Place`]): at a fixed offset of the function's arena,
//! as a separate reference-counted value (if the tensor leaves the function or its size is known only at run time), or
//! as a constant.
//!
//! A program read from a file is untrusted: [`super::validate()`] checks it first.

use super::wire;
use byoc_ir::interface::{PortInfo, PortKind};
use byoc_ir::ir::{Attrs, TensorType};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the program format. A reader rejects every other version.
pub const VERSION: u32 = 2;

/// Register of a function, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reg(pub u32);

impl Reg {
    /// Returns the index into [`Function::registers`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Program: functions, constants, regions, and the interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Version of the format, [`VERSION`].
    pub version: u32,
    /// Index of the entry function.
    pub entry: u32,
    /// Inputs of the entry function, tuples flattened.
    pub inputs: Vec<Port>,
    /// Outputs of the entry function, tuples flattened.
    pub outputs: Vec<Port>,
    /// Constants; their values are passed separately from the program, in this order.
    pub constants: Vec<Port>,
    /// Regions, each compiled by a backend.
    pub regions: Vec<Region>,
    /// Device memories that hold tensors of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spaces: Vec<Space>,
    /// Operators of the model file; `origins` of [`OpCall`] and [`Region`] are indices into this list.
    pub sources: Vec<Source>,
    /// Functions; calls refer to them by index.
    pub functions: Vec<Function>,
}

/// Named tensor: an input, an output or a constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name of the tensor.
    pub name: String,
    /// Element type and dimensions; dimensions may be unknown.
    #[serde(rename = "type", with = "wire::tensor_type")]
    pub ty: TensorType,
    /// Kind of the value that the tensor belongs to; files name it for values that are no tensors of numbers.
    #[serde(default, skip_serializing_if = "is_tensor", with = "wire::port_kind")]
    pub kind: PortKind,
}

fn is_tensor(kind: &PortKind) -> bool {
    *kind == PortKind::Tensor
}

impl Port {
    /// Creates the port of a tensor of numbers.
    pub fn tensor(name: impl Into<String>, ty: TensorType) -> Port {
        Port { name: name.into(), ty, kind: PortKind::Tensor }
    }

    /// Creates the port that a model file declares; unknown dimensions are left out if the rank is unknown.
    pub fn declared(info: &PortInfo) -> Port {
        let ty = TensorType { dtype: info.dtype, dims: info.dims.iter().flatten().cloned().collect() };
        Port { name: info.name.clone(), ty, kind: info.kind }
    }
}

/// Operator of the model file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name in the model.
    pub name: String,
    /// Operator in the model's format.
    pub op: String,
}

/// Device memory. On a machine without such memory, the tensors are in host memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Space {
    /// Name of the backend whose regions use the memory.
    pub backend: String,
}

/// Part of the program that a backend runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Name of the lifted function.
    pub symbol: String,
    /// Name of the backend: the value of the function attribute `Compiler`.
    pub backend: String,
    /// Key of the loader, as in `loadbinary_<key>`; empty until the region is compiled.
    pub loader: String,
    /// Argument types, tuples flattened.
    #[serde(with = "wire::tensor_types")]
    pub inputs: Vec<TensorType>,
    /// Result types, tuples flattened.
    #[serde(with = "wire::tensor_types")]
    pub outputs: Vec<TensorType>,
    /// Index of the host program: the function that computes the same results on the host.
    pub fallback: u32,
    /// Operators of the model that the region was built from, as indices into [`Program::sources`].
    pub origins: Vec<u32>,
    /// FLOPs per run; operators with unknown dimensions count as 0.
    pub flops: u64,
    /// Memory that may hold the region's tensors, as an index into [`Program::spaces`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<u32>,
}

/// Function of a program: registers and instructions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Name of the function, for messages.
    pub name: String,
    /// Number of arguments, including captured values; they are passed in the first registers.
    pub params: u32,
    /// Number of results.
    pub results: u32,
    /// Size of the arena in bytes.
    pub arena: usize,
    /// Size of the arena in each of [`Program::spaces`]; missing entries stand for empty arenas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_arenas: Vec<usize>,
    /// Registers; the first `params` are the parameters.
    pub registers: Vec<Register>,
    /// Instructions; the last instruction is a return or a tail call.
    pub code: Vec<Instr>,
}

/// Type and location of a register.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Type of the tensor; `None` for a handle (a closure, a reference cell, a value of a data type).
    #[serde(rename = "type", with = "wire::optional_tensor_type")]
    pub ty: Option<TensorType>,
    /// Location of the contents.
    pub place: Place,
}

impl Register {
    /// Returns the size of the tensor in bytes; `None` for a handle, an unknown dimension, or a size that overflows.
    pub fn bytes(&self) -> Option<usize> {
        self.ty.as_ref().and_then(byte_size)
    }
}

/// Returns the size of a tensor in bytes; `None` if a dimension is unknown, or the size overflows.
pub(super) fn byte_size(ty: &TensorType) -> Option<usize> {
    ty.len()?.checked_mul(ty.dtype.size())
}

/// Location of the contents of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A reference-counted value.
    Value,
    /// The function's arena, at this offset (a multiple of 64). The type has no unknown dimension.
    Arena(usize),
    /// The constant with this index, never written.
    Constant(u32),
    /// The function's arena in the memory of a device. The type has no unknown dimension.
    Device {
        /// Index into [`Program::spaces`].
        space: u32,
        /// Offset in bytes, a multiple of 256.
        offset: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Value => f.write_str("a value"),
            Place::Arena(offset) => write!(f, "arena offset {offset}"),
            Place::Constant(index) => write!(f, "constant {index}"),
            Place::Device { space, offset } => write!(f, "device space {space}, offset {offset}"),
        }
    }
}

/// Argument of an operator call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Arg {
    /// A tensor.
    One(Reg),
    /// A tuple of tensors.
    Tuple(Vec<Reg>),
}

impl Arg {
    /// Returns the registers of the argument.
    pub fn regs(&self) -> &[Reg] {
        match self {
            Arg::One(reg) => std::slice::from_ref(reg),
            Arg::Tuple(regs) => regs,
        }
    }
}

/// Operator call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpCall {
    /// Name of the operator.
    pub op: String,
    /// Attributes that differ from their defaults.
    #[serde(with = "wire::attrs", default, skip_serializing_if = "Attrs::is_empty")]
    pub attrs: Attrs,
    /// Arguments, with the registers that hold them.
    pub args: Vec<Arg>,
    /// Registers for the results, tuples flattened.
    pub outs: Vec<Reg>,
    /// Index of the input (tuples flattened) whose memory in the arena the first result reuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<u32>,
    /// Operators of the model that the call was built from, as indices into [`Program::sources`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<u32>,
}

impl OpCall {
    /// Returns the registers that the call reads, tuples flattened.
    pub fn inputs(&self) -> impl Iterator<Item = Reg> + '_ {
        self.args.iter().flat_map(|arg| arg.regs().iter().copied())
    }
}

/// Instruction of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Instr {
    /// Executes an operator on the host.
    Kernel(OpCall),
    /// Reshape or similar operator: the result has the bytes of the first argument but different dimensions.
    Alias(OpCall),
    /// Runs a region on its backend, or its host program if no backend runs the region.
    Region {
        /// Index of the region.
        region: u32,
        /// Registers of the arguments.
        inputs: Vec<Reg>,
        /// Registers for the results.
        outs: Vec<Reg>,
        /// Results that reuse the memory of an argument: pairs of indices into `outs` and `inputs`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        in_place: Vec<[u32; 2]>,
    },
    /// Copies a register; tensors share their bytes if possible.
    Move {
        /// Register to copy from.
        from: Reg,
        /// Register to copy to; a [`Place::Value`].
        to: Reg,
    },
    /// Copies a tensor of known size between host and device memory.
    Copy {
        /// Register to copy from.
        from: Reg,
        /// Register to copy to, of the same type; one of the two is a [`Place::Device`].
        to: Reg,
    },
    /// Continues at a later instruction.
    Jump {
        /// Index of the instruction to continue at.
        to: u32,
    },
    /// Continues with the next instruction if the boolean scalar is true, otherwise at `otherwise`.
    Branch {
        /// Register of the boolean scalar.
        cond: Reg,
        /// Index of a later instruction.
        otherwise: u32,
    },
    /// Calls a function.
    Call {
        /// Index of the function.
        function: u32,
        /// Arguments, then captured values.
        args: Vec<Reg>,
        /// Registers for the results.
        outs: Vec<Reg>,
    },
    /// Replaces the running function with another function.
    TailCall {
        /// Index of the function.
        function: u32,
        /// Arguments, then captured values.
        args: Vec<Reg>,
    },
    /// Creates a closure.
    Closure {
        /// Index of the function.
        function: u32,
        /// Captured values: the last arguments of the function.
        captures: Vec<Reg>,
        /// Register for the closure.
        out: Reg,
    },
    /// Calls a closure.
    CallClosure {
        /// Register of the closure.
        closure: Reg,
        /// Registers of the arguments.
        args: Vec<Reg>,
        /// Registers for the results.
        outs: Vec<Reg>,
    },
    /// Replaces the running function with the function of a closure.
    TailCallClosure {
        /// Register of the closure.
        closure: Reg,
        /// Registers of the arguments.
        args: Vec<Reg>,
    },
    /// Creates a reference cell.
    RefNew {
        /// Contents, tuples flattened.
        values: Vec<Reg>,
        /// Register for the cell.
        out: Reg,
    },
    /// Reads a reference cell.
    RefRead {
        /// Register of the cell.
        cell: Reg,
        /// Registers for the contents.
        outs: Vec<Reg>,
    },
    /// Writes a reference cell.
    RefWrite {
        /// Register of the cell.
        cell: Reg,
        /// Registers of the new contents.
        values: Vec<Reg>,
    },
    /// Creates a value of an algebraic data type.
    Construct {
        /// Index of the constructor in the definition of the type.
        tag: u32,
        /// Contents, tuples flattened.
        values: Vec<Reg>,
        /// Register for the value.
        out: Reg,
    },
    /// Continues with the next instruction if the value was created by the constructor with this tag, otherwise at
    /// `otherwise`.
    Test {
        /// Register of the value.
        value: Reg,
        /// Index of the constructor in the definition of the type.
        tag: u32,
        /// Index of a later instruction.
        otherwise: u32,
    },
    /// Reads the fields of a value of an algebraic data type.
    Fields {
        /// Register of the value.
        value: Reg,
        /// Registers for the fields, tuples flattened.
        outs: Vec<Reg>,
    },
    /// Ends the run with an error: no clause of a match expression matches the value.
    Unmatched {
        /// Clauses of the match, for the message.
        clauses: String,
    },
    /// Drops values that are no longer read, so that their memory is freed before the function ends.
    Free {
        /// Registers, each a [`Place::Value`].
        regs: Vec<Reg>,
    },
    /// Returns from the function.
    Return {
        /// Registers of the results.
        values: Vec<Reg>,
    },
}

impl Instr {
    /// Returns the registers that the instruction reads, and the registers that it writes.
    pub fn operands(&self) -> (Vec<Reg>, Vec<Reg>) {
        match self {
            Instr::Kernel(call) | Instr::Alias(call) => (call.inputs().collect(), call.outs.clone()),
            Instr::Region { inputs, outs, .. } => (inputs.clone(), outs.clone()),
            Instr::Move { from, to } | Instr::Copy { from, to } => (vec![*from], vec![*to]),
            Instr::Jump { .. } => (Vec::new(), Vec::new()),
            Instr::Branch { cond, .. } => (vec![*cond], Vec::new()),
            Instr::Call { args, outs, .. } => (args.clone(), outs.clone()),
            Instr::TailCall { args, .. } => (args.clone(), Vec::new()),
            Instr::Closure { captures, out, .. } => (captures.clone(), vec![*out]),
            Instr::CallClosure { closure, args, outs } => (prepend(*closure, args), outs.clone()),
            Instr::TailCallClosure { closure, args } => (prepend(*closure, args), Vec::new()),
            Instr::RefNew { values, out } => (values.clone(), vec![*out]),
            Instr::RefRead { cell, outs } => (vec![*cell], outs.clone()),
            Instr::RefWrite { cell, values } => (prepend(*cell, values), Vec::new()),
            Instr::Construct { values, out, .. } => (values.clone(), vec![*out]),
            Instr::Test { value, .. } => (vec![*value], Vec::new()),
            Instr::Fields { value, outs } => (vec![*value], outs.clone()),
            Instr::Unmatched { .. } => (Vec::new(), Vec::new()),
            Instr::Free { .. } => (Vec::new(), Vec::new()),
            Instr::Return { values } => (values.clone(), Vec::new()),
        }
    }
}

fn prepend(head: Reg, tail: &[Reg]) -> Vec<Reg> {
    std::iter::once(head).chain(tail.iter().copied()).collect()
}
