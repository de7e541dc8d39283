//! Decompositions: from the text of a declaration to a typed module for one call, and the reference that runs it.

use super::Declared;
use crate::diag::{Diagnostic, Severity, codes};
use crate::ir::{Module, Type};
use crate::op::interpret::{Tensors, Values, interpret};
use crate::op::{self, Cost, Evaluation, Params};
use crate::tensor::{Tensor, TensorView, TensorViewMut};
use crate::text::{ParseOptions, parse};
use crate::typing::infer_expr;

/// Maximum size of a value of a decomposition in bytes.
const MAX_BYTES: usize = 1 << 32;

/// Returns the names after `$` in a decomposition.
pub fn placeholders(text: &str) -> Vec<&str> {
    text.split('$').skip(1).map(|rest| &rest[..name_length(rest)]).collect()
}

fn name_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Replaces the placeholders by the attributes of a call.
fn with_attributes(text: &str, params: &Params<'_>) -> String {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for rest in parts {
        let length = name_length(rest);
        out += &params.value(&rest[..length]).to_string();
        out += &rest[length..];
    }
    out
}

/// Returns a typed module whose `@main` is the decomposition for these arguments.
///
/// # Errors
/// If the text is malformed, or not well typed for these arguments.
pub fn module_of(
    declared: &Declared,
    text: &str,
    params: &Params<'_>,
    args: &[Type],
) -> Result<Module, Box<Diagnostic>> {
    let arguments: Vec<String> =
        declared.inputs.iter().zip(args).map(|(input, ty)| format!("%{}: {ty}", input.name)).collect();
    let body = with_attributes(text, params);
    let source = format!("#[version = \"0.0.5\"]\ndef @main({}) {{\n{body}\n}}\n", arguments.join(", "));
    let parsed = parse(&source, &ParseOptions::default());
    let mut errors = parsed.diagnostics.into_iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
    if let Some(error) = errors.next() {
        return Err(Box::new(Diagnostic::error(error.code, format!("{}: {}", declared.name, error.message))));
    }
    let mut module = parsed.module;
    for id in module.nodes.ids().collect::<Vec<_>>() {
        let expr = module.expr(id).clone();
        module.nodes[id].ty = infer_expr(&module, &expr)?;
    }
    let is_typed =
        module.main().is_some_and(|main| main.params.len() == args.len() && *module.ty(main.body) != Type::Unknown);
    if is_typed {
        return Ok(module);
    }
    let message =
        format!("{}: expected a decomposition whose type follows from its arguments, found another", declared.name);
    Err(Box::new(Diagnostic::error(codes::types::TYPE_MISMATCH, message)))
}

/// Reference of declared operators: the function of the process that declares it, or the decomposition.
pub fn evaluate(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let declared = Declared::of(params.def()).ok_or("expected a declared operator, found another one")?;
    if let Some(function) = &declared.function {
        return function(&params, inputs, outputs);
    }
    let args: Vec<Type> = inputs.iter().map(|input| Type::tensor(input.dtype, input.shape)).collect();
    let module = declared.decompose(&params, &args).ok_or("expected a decomposition, found none")?;
    let module = module.map_err(|error| error.message)?;
    let main = module.main().ok_or("expected a decomposition with a function, found none")?;
    let mut values: Values<Tensor> = Values::new();
    for (&param, input) in main.params.iter().zip(inputs) {
        let tensor = Tensor::from_bytes(input.dtype, input.shape, input.data).ok_or("an argument is out of shape")?;
        values.insert(param, vec![tensor]);
    }
    interpret(&module, main.body, &Tensors { max_bytes: MAX_BYTES }, &mut values)?;
    let results = values.remove(&main.body).unwrap_or_default();
    for (output, result) in outputs.iter_mut().zip(&results) {
        if output.data.len() != result.bytes().len() {
            return Err(format!("expected {} bytes, found {}", output.data.len(), result.bytes().len()));
        }
        output.data.copy_from_slice(result.bytes());
    }
    Ok(())
}

/// Number of operations of a call: those of its decomposition; without one, an operation for each element of the result.
pub fn flops(cost: &Cost<'_>) -> u64 {
    let declared = Declared::of(cost.params.def());
    let module = declared.and_then(|declared| declared.decompose(&cost.params, cost.args)).and_then(Result::ok);
    let Some(module) = module else { return cost.ret_len() };
    let count = module.nodes.ids().filter_map(|id| {
        let (operator, call) = module.expr(id).as_op_call()?;
        let def = op::get(operator);
        let args: Vec<Type> = call.args.iter().map(|&arg| module.ty(arg).clone()).collect();
        Some((def.flops)(&Cost { params: Params::new(def, &call.attrs), args: &args, ret: module.ty(id) }))
    });
    count.fold(0, u64::saturating_add)
}
