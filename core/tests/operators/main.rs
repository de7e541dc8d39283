//! The operators' type relations and naive references, against values worked out by hand or by numpy.

mod broadcast;
mod elementwise;
mod golden;
mod index;
mod kernels;
mod neural;
mod qnn;
mod qnn_kernels;
mod reduce;
mod shape;
mod vision;

use byoc_core::ir::{AttrValue, Attrs, Type};
use byoc_core::op::{self, Value};
use byoc_core::tensor::Tensor;

/// Attributes from pairs.
pub fn attrs<const N: usize>(pairs: [(&str, AttrValue); N]) -> Attrs {
    Attrs::new(pairs)
}

/// What `name` gives for these arguments.
pub fn call(name: &str, attrs: &Attrs, args: &[Value]) -> Result<Vec<Tensor>, String> {
    let id = op::lookup(name).unwrap_or_else(|| panic!("there is an operator {name}"));
    let attrs = op::normalize_attrs(op::get(id), attrs.clone()).map_err(|d| d.message)?;
    op::evaluate(id, &attrs, args, 1 << 20)
}

/// What `name` gives for tensors, when it gives one tensor.
pub fn run(name: &str, attrs: &Attrs, args: &[&Tensor]) -> Tensor {
    let args: Vec<Value> = args.iter().map(|&t| Value::Tensor(t.clone())).collect();
    let mut outputs = call(name, attrs, &args).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outputs.len(), 1, "{name} gives one tensor");
    outputs.remove(0)
}

/// Why `name` refuses these tensors.
pub fn refused(name: &str, attrs: &Attrs, args: &[&Tensor]) -> String {
    let args: Vec<Value> = args.iter().map(|&t| Value::Tensor(t.clone())).collect();
    match call(name, attrs, &args) {
        Ok(outputs) => panic!("{name} should refuse, it gives {outputs:?}"),
        Err(message) => message,
    }
}

/// The type that `name` gives arguments of these types, as text; or the error.
pub fn typed(name: &str, attrs: &Attrs, args: &[Type]) -> Result<String, String> {
    let def = op::get(op::lookup(name).unwrap_or_else(|| panic!("there is an operator {name}")));
    let attrs = op::normalize_attrs(def, attrs.clone()).map_err(|d| d.message)?;
    def.infer(&attrs, args, &vec![None; args.len()]).map(|t| t.to_string()).map_err(|d| d.message)
}

/// The float32 tensor type with these dimensions: a number, `?`, or a name.
pub fn f32s(dims: &str) -> Type {
    use byoc_core::ir::Dim;
    let dims = dims.split(',').map(str::trim).filter(|d| !d.is_empty()).map(|d| match d.parse() {
        Ok(n) => Dim::Fixed(n),
        Err(_) if d == "?" => Dim::Any,
        Err(_) => Dim::Named(d.into()),
    });
    Type::tensor_of(byoc_core::tensor::DType::F32, dims)
}

/// A float32 vector.
pub fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
}

/// Asserts that values agree to a few units in the last place of float32, NaN with NaN.
#[track_caller]
pub fn close(got: &Tensor, want: &[f64]) {
    let got = got.view().to_f64s();
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let fine = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 4e-7 * w.abs();
        assert!(fine, "element {i} is {g}, {w} is wanted");
    }
}
