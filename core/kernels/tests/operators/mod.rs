//! Tests of the operators' type relations and naive references, compared with values computed by hand or by numpy.

mod broadcast;
mod elementwise;
mod golden;
mod index;
mod kernels;
mod neural;
mod qnn;
mod qnn_kernels;
mod random_calls;
mod reduce;
mod relay;
mod shape;
mod symbolic;
mod text;
mod vision;

use byoc_ir::ir::{AttrValue, Attrs, Type};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::Tensor;

/// Creates attributes from keys and values.
pub fn attrs<const N: usize>(pairs: [(&str, AttrValue); N]) -> Attrs {
    Attrs::new(pairs)
}

/// Evaluates `name` for the given arguments.
pub fn call(name: &str, attrs: &Attrs, args: &[Value]) -> Result<Vec<Tensor>, String> {
    let id = op::lookup(name).unwrap_or_else(|| panic!("unknown operator {name}"));
    let attrs = op::normalize_attrs(op::get(id), attrs.clone()).map_err(|d| d.message)?;
    op::evaluate(id, &attrs, args, 1 << 20)
}

/// Evaluates the single-result operator `name` for the given tensors.
pub fn run(name: &str, attrs: &Attrs, args: &[&Tensor]) -> Tensor {
    let args: Vec<Value> = args.iter().map(|&t| Value::Tensor(t.clone())).collect();
    let mut outputs = call(name, attrs, &args).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outputs.len(), 1, "{name}: expected one result");
    outputs.remove(0)
}

/// Returns the error of `name` for the given tensors.
pub fn error_of(name: &str, attrs: &Attrs, args: &[&Tensor]) -> String {
    let args: Vec<Value> = args.iter().map(|&t| Value::Tensor(t.clone())).collect();
    match call(name, attrs, &args) {
        Ok(outputs) => panic!("{name}: expected an error, found {outputs:?}"),
        Err(message) => message,
    }
}

/// Returns the result type of `name` for the given argument types, or the error, as text.
pub fn inferred_type(name: &str, attrs: &Attrs, args: &[Type]) -> Result<String, String> {
    infer(name, attrs, args).map(|ty| ty.to_string())
}

/// Infers the result type of an operator for the given argument types.
pub fn infer(name: &str, attrs: &Attrs, args: &[Type]) -> Result<Type, String> {
    let def = op::get(op::lookup(name).unwrap_or_else(|| panic!("unknown operator {name}")));
    let attrs = op::normalize_attrs(def, attrs.clone()).map_err(|d| d.message)?;
    def.infer(&attrs, args, &vec![None; args.len()]).map_err(|d| d.message)
}

/// Creates a float32 tensor type from comma-separated dimensions: numbers, `?`, or names.
pub fn f32s(dims: &str) -> Type {
    let dims = dims.split(',').filter(|d| !d.trim().is_empty()).map(|d| byoc_ir::text::parse_dim(d).unwrap());
    Type::tensor_of(byoc_ir::tensor::DType::F32, dims)
}

/// Creates a float32 vector.
pub fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
}

/// Asserts that values agree to about 4 float32 ULPs; NaN equals NaN.
#[track_caller]
pub fn assert_values(actual: &Tensor, expected: &[f64]) {
    let actual = actual.view().to_f64s();
    assert_eq!(actual.len(), expected.len());
    for (i, (g, w)) in actual.iter().zip(expected).enumerate() {
        let is_close = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 4e-7 * w.abs();
        assert!(is_close, "element {i}: expected {w}, found {g}");
    }
}
