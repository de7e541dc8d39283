//! Inputs of a run: binding by name, and checks of their number and types.

use super::program::Port;
use super::signature::admits;
use byoc_ir::diag::{Diagnostic, codes, nearest, plural};
use byoc_ir::interface::PortKind;
use byoc_ir::ir::Dim;
use byoc_ir::tensor::{DType, Tensor, TensorViewMut, byte_count};
use std::collections::{BTreeMap, HashMap};

/// Sorts named inputs into the order of `ports`. If an input of `optional` is among them, the values of these inputs
/// follow; those that are missing have their value in `defaults`.
///
/// # Errors
/// If a name is unknown, or an input is duplicated or missing.
pub fn order_inputs(
    ports: &[Port],
    optional: &[Port],
    defaults: &[Tensor],
    named_inputs: impl IntoIterator<Item = (String, Tensor)>,
) -> Result<Vec<Tensor>, Diagnostic> {
    let all_ports = || ports.iter().chain(optional);
    let position: HashMap<&str, usize> = all_ports().enumerate().map(|(i, port)| (port.name.as_str(), i)).collect();
    let mut bound: Vec<Option<Tensor>> = vec![None; ports.len() + optional.len()];
    for (name, tensor) in named_inputs {
        let Some(&index) = position.get(name.as_str()) else {
            let message = format!("the model has no input \"{name}\"");
            let mut diagnostic = inputs_note(Diagnostic::error(codes::runtime::UNKNOWN_INPUT, message), ports);
            if let Some(suggestion) = nearest(&name, all_ports().map(|p| p.name.as_str())) {
                diagnostic = diagnostic.help(format!("did you mean \"{suggestion}\"?"));
            }
            return Err(diagnostic);
        };
        if bound[index].replace(tensor).is_some() {
            let message = format!("duplicate value for input \"{name}\"");
            return Err(Diagnostic::error(codes::runtime::INPUT_COUNT, message));
        }
    }
    let missing_inputs: Vec<String> = ports
        .iter()
        .zip(&bound)
        .filter(|(_, b)| b.is_none())
        .map(|(p, _)| format!("\"{}\" ({})", p.name, show(p)))
        .collect();
    if !missing_inputs.is_empty() {
        let plural = if missing_inputs.len() == 1 { "" } else { "s" };
        let message = format!("missing input{plural} {}", missing_inputs.join(", "));
        let diagnostic = Diagnostic::error(codes::runtime::INPUT_COUNT, message);
        return Err(inputs_note(diagnostic, ports).help(EACH_ONCE));
    }
    if bound[ports.len()..].iter().any(Option::is_some) {
        for (value, default) in bound[ports.len()..].iter_mut().zip(defaults) {
            value.get_or_insert_with(|| default.clone());
        }
    }
    Ok(bound.into_iter().flatten().collect())
}

/// Checks the number and the types of the inputs of a program.
///
/// # Errors
/// If the number of inputs, an element type or a dimension is wrong, or a named dimension has conflicting values.
pub fn check_inputs(ports: &[Port], inputs: &[Tensor]) -> Result<(), Diagnostic> {
    if ports.len() != inputs.len() {
        let message = format!("expected {}, found {}", plural(ports.len(), "input"), inputs.len());
        return Err(inputs_note(Diagnostic::error(codes::runtime::INPUT_COUNT, message), ports).help(EACH_ONCE));
    }
    let mut sizes_by_name: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (port, tensor) in ports.iter().zip(inputs) {
        check_type(port, tensor.dtype(), tensor.shape())?;
        for (dim, &size) in port.ty.dims.iter().zip(tensor.shape()) {
            if let Some(name) = dim.name() {
                let (first_size, port_name) = *sizes_by_name.entry(&**name).or_insert((size, &port.name));
                if first_size != size {
                    return Err(wrong_shape(port, tensor.dtype(), tensor.shape()).note(format!(
                        "{name} is {first_size} in input \"{port_name}\" and {size} in input \"{}\"",
                        port.name
                    )));
                }
            }
        }
    }
    // A dimension that is an expression over named dimensions must equal the value of the expression.
    let size = |name: &str| sizes_by_name.get(name).map(|(size, _)| *size);
    for (port, tensor) in ports.iter().zip(inputs) {
        for (dim, &actual) in port.ty.dims.iter().zip(tensor.shape()).filter(|(dim, _)| dim.name().is_none()) {
            if let Some(expected) = dim.with_sizes(size).fixed().filter(|expected| *expected != actual) {
                let message = format!("input \"{}\": expected dimension {dim} = {expected}, found {actual}", port.name);
                return Err(Diagnostic::error(codes::runtime::INPUT_SHAPE, message));
            }
        }
    }
    Ok(())
}

/// Checks the number, the types and the sizes of the caller-provided outputs of a program.
///
/// # Errors
/// If the number of outputs is wrong, or an output has a wrong element type or wrong dimensions.
pub(super) fn check_outputs(ports: &[Port], outputs: &[TensorViewMut<'_>]) -> Result<(), Diagnostic> {
    if ports.len() != outputs.len() {
        let message = format!("expected memory for {}, found {}", plural(ports.len(), "output"), outputs.len());
        return Err(Diagnostic::error(codes::runtime::OUTPUT_MEMORY, message));
    }
    for (port, out) in ports.iter().zip(outputs) {
        if port.ty.dtype != out.dtype || !admits(&port.ty, out.shape) {
            let message =
                format!("output \"{}\": expected {}, found {}{:?}", port.name, show(port), out.dtype, out.shape);
            return Err(Diagnostic::error(codes::runtime::OUTPUT_MEMORY, message));
        }
        if byte_count(out.dtype, out.shape) != Some(out.data.len()) {
            let (name, bytes) = (&port.name, out.data.len());
            let message =
                format!("output \"{name}\": expected memory for {}{:?}, found {bytes} bytes", out.dtype, out.shape);
            return Err(Diagnostic::error(codes::runtime::OUTPUT_MEMORY, message));
        }
    }
    Ok(())
}

/// Returns the diagnostic for caller-provided memory whose dimensions differ from the dimensions of the result.
pub(super) fn wrong_output(port: &Port, out: &TensorViewMut<'_>, dtype: DType, shape: &[usize]) -> Diagnostic {
    let message =
        format!("output \"{}\": expected memory for {dtype}{shape:?}, found {}{:?}", port.name, out.dtype, out.shape);
    Diagnostic::error(codes::runtime::OUTPUT_MEMORY, message)
        .help("pass memory of the expected type and dimensions, or let the run allocate its results")
}

/// Checks an element type and dimensions against the type of an input.
///
/// # Errors
/// If the element type or the dimensions are wrong.
pub fn check_type(port: &Port, dtype: DType, shape: &[usize]) -> Result<(), Diagnostic> {
    if port.ty.dtype != dtype {
        let type_error = Diagnostic { code: codes::runtime::INPUT_DTYPE, ..wrong_shape(port, dtype, shape) };
        return Err(type_error.help(format!("convert the elements to {}", port.ty.dtype)));
    }
    let is_compatible = port.ty.dims.len() == shape.len()
        && port.ty.dims.iter().zip(shape).all(|(dim, &size)| !matches!(dim, Dim::Fixed(n) if *n != size));
    if is_compatible { Ok(()) } else { Err(wrong_shape(port, dtype, shape).help(OTHER_SHAPE)) }
}

/// Help texts for rejected inputs.
const EACH_ONCE: &str = "give each input once: --input NAME=FILE";
const OTHER_SHAPE: &str = "reshape the input, or compile the model for its dimensions: --dim NAME=N";

fn wrong_shape(port: &Port, dtype: DType, shape: &[usize]) -> Diagnostic {
    let message = format!("input \"{}\": expected {}, found {dtype}{shape:?}", port.name, show(port));
    Diagnostic::error(codes::runtime::INPUT_SHAPE, message)
}

fn inputs_note(diagnostic: Diagnostic, ports: &[Port]) -> Diagnostic {
    if ports.is_empty() {
        return diagnostic.note("the model has no inputs");
    }
    let inputs: Vec<String> = ports.iter().map(|port| format!("\"{}\" ({})", port.name, show(port))).collect();
    diagnostic.note(format!("inputs of the model: {}", inputs.join(", ")))
}

/// Formats the type of a port for messages.
pub(super) fn show(port: &Port) -> String {
    let dims: Vec<String> = port.ty.dims.iter().map(Dim::to_string).collect();
    let dtype = if port.kind == PortKind::Strings { "string" } else { port.ty.dtype.name() };
    format!("{dtype}[{}]", dims.join(", "))
}
