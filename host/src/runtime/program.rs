//! A planned program as plain data: what the executor runs and what `program.json` of an artifact holds.
//!
//! The program is for a small register machine. A function has registers and code; tuples do not exist at run time (a
//! tuple is as many registers as it has leaves), so a register holds a tensor, or a handle: a closure, a reference
//! cell, or a value of an algebraic data type. A straight-line graph is a function without jumps. Jumps only go forward; a loop is a tail call.
//!
//! Where a register's tensor lives is decided by the planner ([`Place`]): at a fixed offset of the function's arena, as a
//! counted value of its own (whatever leaves the function or has a size that only the run tells), or as a constant.
//!
//! Nothing here is trusted when it was read from a file: [`super::validate`] checks it first.

use super::wire;
use byoc_core::ir::{Attrs, TensorType};
use serde::{Deserialize, Serialize};

/// The version of this form. A reader refuses any other.
pub const VERSION: u32 = 2;

/// A register of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reg(pub u32);

impl Reg {
    /// As an index into [`Function::registers`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A whole program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// [`VERSION`].
    pub version: u32,
    /// Which function runs first.
    pub entry: u32,
    /// What the entry function takes, tuples flattened.
    pub inputs: Vec<Port>,
    /// What it returns, tuples flattened.
    pub outputs: Vec<Port>,
    /// The tensors that never change. Their values are passed beside the program, in this order.
    pub constants: Vec<Port>,
    /// What runs on backends.
    pub regions: Vec<Region>,
    /// The operators of the model as it was read, which [`Instr::Kernel::origins`] count.
    pub sources: Vec<Source>,
    /// The functions.
    pub functions: Vec<Function>,
}

/// A named tensor: an input, an output, a constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type", with = "wire::tensor_type")]
    pub ty: TensorType,
}

/// An operator of the model as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its name in the model.
    pub name: String,
    /// Its operator there.
    pub op: String,
}

/// A part of the program that a backend runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// The lifted function's name.
    pub symbol: String,
    /// Whose it is: the value of `Compiler`.
    pub backend: String,
    /// Which loader makes it executable; empty until it is compiled.
    pub loader: String,
    /// Argument types, tuples flattened.
    #[serde(with = "wire::tensor_types")]
    pub inputs: Vec<TensorType>,
    /// Result types, tuples flattened.
    #[serde(with = "wire::tensor_types")]
    pub outputs: Vec<TensorType>,
    /// The function that computes the same on the host.
    pub fallback: u32,
    /// The operators of the model that went into it.
    pub origins: Vec<u32>,
    /// Operations of a run; 0 for what depends on unknown dimensions.
    pub flops: u64,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// For people.
    pub name: String,
    /// Number of arguments, captured values included: they arrive in the first registers.
    pub params: u32,
    /// How many values it returns.
    pub results: u32,
    /// Bytes of its arena.
    pub arena: usize,
    /// Its registers.
    pub registers: Vec<Register>,
    /// Its code; it ends with a return or a tail call.
    pub code: Vec<Instr>,
}

/// What a register holds, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The tensor's type; nothing for a handle (a closure, a reference cell, a value of a data type).
    #[serde(rename = "type", with = "wire::optional_tensor_type")]
    pub ty: Option<TensorType>,
    /// Where it is.
    pub place: Place,
}

/// Where the contents of a register are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In a counted value of its own.
    Value,
    /// In the function's arena, at this offset (a multiple of 64). The type has no unknown dimension.
    Arena(usize),
    /// It is this constant, and never written.
    Constant(u32),
}

/// An argument of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Arg {
    /// A tensor.
    One(Reg),
    /// A tuple of tensors.
    Tuple(Vec<Reg>),
}

impl Arg {
    /// The registers.
    pub fn regs(&self) -> &[Reg] {
        match self {
            Arg::One(reg) => std::slice::from_ref(reg),
            Arg::Tuple(regs) => regs,
        }
    }
}

/// A call of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpCall {
    /// The operator.
    pub op: String,
    /// Its attributes, as far as they differ from their defaults.
    #[serde(with = "wire::attrs", default, skip_serializing_if = "Attrs::is_empty")]
    pub attrs: Attrs,
    /// The arguments.
    pub args: Vec<Arg>,
    /// Where the results go, tuples flattened.
    pub outs: Vec<Reg>,
    /// The input (counted with tuples flattened) whose place in the arena the first result takes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<u32>,
    /// The operators of the model that it came from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<u32>,
}

impl OpCall {
    /// The registers read, tuples flattened.
    pub fn inputs(&self) -> impl Iterator<Item = Reg> + '_ {
        self.args.iter().flat_map(|arg| arg.regs().iter().copied())
    }
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Instr {
    /// Computes an operator on the host.
    Kernel(OpCall),
    /// A reshape and its like: the result is the bytes of the one argument (the first) under other dimensions.
    Alias(OpCall),
    /// Runs a region, or its host program where no backend does.
    Region {
        /// Which.
        region: u32,
        /// Arguments.
        inputs: Vec<Reg>,
        /// Results.
        outs: Vec<Reg>,
    },
    /// Copies a register; tensors share their bytes where they can.
    Move {
        /// From.
        from: Reg,
        /// To; a [`Place::Value`].
        to: Reg,
    },
    /// Goes on at a later instruction.
    Jump {
        /// Its index.
        to: u32,
    },
    /// Goes on with the next instruction when the boolean scalar is true, otherwise at `otherwise`.
    Branch {
        /// The condition.
        cond: Reg,
        /// An index further on.
        otherwise: u32,
    },
    /// Calls a function.
    Call {
        /// Which.
        function: u32,
        /// Arguments, then captured values.
        args: Vec<Reg>,
        /// Results.
        outs: Vec<Reg>,
    },
    /// Calls a function in place of this one.
    TailCall {
        /// Which.
        function: u32,
        /// Arguments, then captured values.
        args: Vec<Reg>,
    },
    /// Makes a closure.
    Closure {
        /// Its function.
        function: u32,
        /// Captured values: the function's last arguments.
        captures: Vec<Reg>,
        /// Where it goes.
        out: Reg,
    },
    /// Calls a closure.
    CallClosure {
        /// Which.
        closure: Reg,
        /// Arguments.
        args: Vec<Reg>,
        /// Results.
        outs: Vec<Reg>,
    },
    /// Calls a closure in place of this function.
    TailCallClosure {
        /// Which.
        closure: Reg,
        /// Arguments.
        args: Vec<Reg>,
    },
    /// Makes a reference cell.
    RefNew {
        /// What it holds, tuples flattened.
        values: Vec<Reg>,
        /// Where the cell goes.
        out: Reg,
    },
    /// Reads a reference cell.
    RefRead {
        /// Which.
        cell: Reg,
        /// Where its values go.
        outs: Vec<Reg>,
    },
    /// Writes a reference cell.
    RefWrite {
        /// Which.
        cell: Reg,
        /// What it holds from now on.
        values: Vec<Reg>,
    },
    /// Makes a value of an algebraic data type.
    Construct {
        /// The place of the constructor in the definition of the type.
        tag: u32,
        /// What it holds, tuples flattened.
        values: Vec<Reg>,
        /// Where the value goes.
        out: Reg,
    },
    /// Goes on with the next instruction when the value was made by the constructor with this tag, otherwise at
    /// `otherwise`.
    Test {
        /// The value.
        value: Reg,
        /// The place of the constructor in the definition of the type.
        tag: u32,
        /// An index further on.
        otherwise: u32,
    },
    /// Takes out what a value of an algebraic data type holds.
    Fields {
        /// The value.
        value: Reg,
        /// Where the fields go, tuples flattened.
        outs: Vec<Reg>,
    },
    /// Ends the run: no clause of a match is for its data.
    Unmatched {
        /// The clauses that there are, for the message.
        clauses: String,
    },
    /// Forgets values that nobody reads any more, so that their memory is free before the function ends.
    Free {
        /// Registers, each a [`Place::Value`].
        regs: Vec<Reg>,
    },
    /// Ends the function.
    Return {
        /// Its results.
        values: Vec<Reg>,
    },
}

impl Instr {
    /// The registers that it reads, and those that it writes.
    pub fn operands(&self) -> (Vec<Reg>, Vec<Reg>) {
        match self {
            Instr::Kernel(call) | Instr::Alias(call) => (call.inputs().collect(), call.outs.clone()),
            Instr::Region { inputs, outs, .. } => (inputs.clone(), outs.clone()),
            Instr::Move { from, to } => (vec![*from], vec![*to]),
            Instr::Jump { .. } => (Vec::new(), Vec::new()),
            Instr::Branch { cond, .. } => (vec![*cond], Vec::new()),
            Instr::Call { args, outs, .. } => (args.clone(), outs.clone()),
            Instr::TailCall { args, .. } => (args.clone(), Vec::new()),
            Instr::Closure { captures, out, .. } => (captures.clone(), vec![*out]),
            Instr::CallClosure { closure, args, outs } => (with(*closure, args), outs.clone()),
            Instr::TailCallClosure { closure, args } => (with(*closure, args), Vec::new()),
            Instr::RefNew { values, out } => (values.clone(), vec![*out]),
            Instr::RefRead { cell, outs } => (vec![*cell], outs.clone()),
            Instr::RefWrite { cell, values } => (with(*cell, values), Vec::new()),
            Instr::Construct { values, out, .. } => (values.clone(), vec![*out]),
            Instr::Test { value, .. } => (vec![*value], Vec::new()),
            Instr::Fields { value, outs } => (vec![*value], outs.clone()),
            Instr::Unmatched { .. } => (Vec::new(), Vec::new()),
            Instr::Free { .. } => (Vec::new(), Vec::new()),
            Instr::Return { values } => (values.clone(), Vec::new()),
        }
    }
}

fn with(first: Reg, rest: &[Reg]) -> Vec<Reg> {
    std::iter::once(first).chain(rest.iter().copied()).collect()
}
