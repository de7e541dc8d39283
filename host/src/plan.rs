//! Plan of a loaded model as structured data: the functions of its program, with their steps, registers and arenas.

use byoc_ir::ir::TensorType;
use byoc_runtime::exec::program::{Function, Place, Program, Register};
use byoc_runtime::exec::trace::{StepInfo, StepKind};
use serde_json::{Value, json};

/// Execution plan of a loaded model.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Steps of each function, in code order; the entry function has the index [`Plan::entry`].
    pub functions: &'a [Vec<StepInfo>],
    /// Index of the function with which a run begins.
    pub entry: usize,
    /// Size in bytes of the entry function's arena, which holds the function's intermediate tensors.
    pub arena_bytes: usize,
    /// Program that the steps execute: registers, instructions, and the operators of the model.
    pub program: &'a Program,
}

impl Plan<'_> {
    /// Returns the plan as JSON.
    ///
    /// `{"entry", "arena_bytes", "functions": [{"name", "params", "results", "arena_bytes", "registers", "steps"}]}`.
    /// A register has `dtype` and `dims` (an integer, a name, or null) unless it holds no tensor, and a `place`:
    /// `"value"`, `"arena"`, `"constant"` or `"device"`, with `offset` and `bytes` in an arena, and `constant`. A step
    /// has `index` (of its instruction), `kind`, `name`, `backend`, `origins` (operators of the model), `flops`,
    /// `inputs` and `outputs` (registers).
    pub fn to_json(&self) -> Value {
        let functions = self.program.functions.iter().zip(self.functions);
        let functions: Vec<Value> = functions.map(|(function, steps)| self.function(function, steps)).collect();
        json!({ "entry": self.entry, "arena_bytes": self.arena_bytes, "functions": functions })
    }

    fn function(&self, function: &Function, steps: &[StepInfo]) -> Value {
        let registers: Vec<Value> = function.registers.iter().map(register).collect();
        let steps: Vec<Value> = steps.iter().map(|step| self.step(function, step)).collect();
        json!({
            "name": function.name,
            "params": function.params,
            "results": function.results,
            "arena_bytes": function.arena,
            "registers": registers,
            "steps": steps,
        })
    }

    fn step(&self, function: &Function, step: &StepInfo) -> Value {
        let origins = step.origins.iter().filter_map(|&origin| self.program.sources.get(origin as usize));
        let origins: Vec<&str> = origins.map(|origin| origin.name.as_str()).collect();
        let (inputs, outputs) =
            function.code.get(step.index as usize).map(|instruction| instruction.operands()).unwrap_or_default();
        json!({
            "index": step.index,
            "kind": kind(step.kind),
            "name": step.name,
            "backend": step.backend,
            "origins": origins,
            "flops": step.flops,
            "inputs": inputs,
            "outputs": outputs,
        })
    }
}

fn kind(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Kernel => "kernel",
        StepKind::Alias => "alias",
        StepKind::Region => "region",
        StepKind::Copy => "copy",
        StepKind::Control => "control",
    }
}

fn register(register: &Register) -> Value {
    let mut row = match register.place {
        Place::Value => json!({ "place": "value" }),
        Place::Arena(offset) => json!({ "place": "arena", "offset": offset }),
        Place::Constant(index) => json!({ "place": "constant", "constant": index }),
        Place::Device { space, offset } => json!({ "place": "device", "space": space, "offset": offset }),
    };
    if let Some(ty) = &register.ty {
        row["dtype"] = ty.dtype.name().into();
        row["dims"] = dims(ty);
        row["bytes"] = ty.shape().and_then(|shape| byoc_ir::tensor::byte_count(ty.dtype, &shape)).into();
    }
    row
}

fn dims(ty: &TensorType) -> Value {
    use byoc_ir::ir::Dim;
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(size) => (*size).into(),
        Dim::Any => Value::Null,
        symbolic => symbolic.to_string().into(),
    };
    ty.dims.iter().map(dim).collect()
}
