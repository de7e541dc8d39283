//! Evaluation of individual operator calls while a network is built.

use byoc_ir::ir::{Attrs, OpId, TensorType, Type};
use byoc_ir::op;
use byoc_ir::tensor::{AlignedBytes, Tensor, TensorViewMut};
use byoc_kernels::{self, Spec};
use std::sync::Arc;

/// Evaluates a call of an operator with one result.
///
/// # Panics
/// If the call is ill-typed, which is a bug in one of the fixed networks of the parent module.
pub fn call(name: &str, attrs: Attrs, args: &[&Tensor]) -> Tensor {
    let id = op::lookup(name).unwrap_or_else(|| panic!("unknown operator {name}"));
    let types: Vec<Type> = args.iter().map(|t| Type::tensor(t.dtype(), t.shape())).collect();
    let values: Vec<Option<&Tensor>> = args.iter().map(|t| Some(*t)).collect();
    let ty = op::get(id).infer(&attrs, &types, &values).unwrap_or_else(|e| panic!("{e}"));
    call_typed(id, &attrs, args, &ty).remove(0)
}

/// Evaluates a call with the given result type, and returns its results, with tuples flattened.
///
/// # Panics
/// Under the same conditions as [`call`].
pub fn call_typed(id: OpId, attrs: &Attrs, args: &[&Tensor], ty: &Type) -> Vec<Tensor> {
    let tensor_types = |ty: &Type| -> Vec<TensorType> {
        match ty {
            Type::Tuple(fields) => fields.iter().filter_map(Type::as_tensor).cloned().collect(),
            other => other.as_tensor().cloned().into_iter().collect(),
        }
    };
    let inputs: Vec<TensorType> = args.iter().map(|t| TensorType::fixed(t.dtype(), t.shape())).collect();
    let outputs = tensor_types(ty);
    let constants = vec![None; inputs.len()];
    let spec = Spec { def: op::get(id), attrs, inputs: &inputs, outputs: &outputs, constants: &constants };
    let kernel = byoc_kernels::make(id, &spec).unwrap_or_else(|| panic!("no kernel for {}", op::get(id).name));
    let mut results: Vec<_> = outputs
        .iter()
        .map(|ty| {
            let shape = ty.shape().expect("the result types of a fixed network have known shapes");
            let bytes = ty.len().unwrap_or(0) * ty.dtype.size();
            (ty.dtype, shape, AlignedBytes::zeroed(bytes).expect("cannot allocate a result of the call"))
        })
        .collect();
    let views: Vec<_> = args.iter().map(|t| t.view()).collect();
    let mut out: Vec<TensorViewMut<'_>> = results
        .iter_mut()
        .map(|(dtype, shape, bytes)| TensorViewMut { dtype: *dtype, shape, data: bytes.as_mut() })
        .collect();
    let mut workspace = AlignedBytes::zeroed(kernel.workspace()).expect("cannot allocate the workspace of the kernel");
    kernel.run(&views, &mut out, workspace.as_mut()).unwrap_or_else(|e| panic!("{e}"));
    let wrap = |(dtype, shape, bytes)| {
        let shape: byoc_ir::tensor::Shape = shape;
        Tensor::from_storage(dtype, &shape, Arc::new(bytes)).expect("the allocation matches the shape")
    };
    results.into_iter().map(wrap).collect()
}

/// Computes the mean and the variance of each channel (axis 1).
pub fn channel_statistics(data: &Tensor) -> (Vec<f64>, Vec<f64>) {
    let shape = data.shape();
    let (channels, inner) = (shape[1], shape[2..].iter().product::<usize>());
    let count = (shape[0] * inner) as f64;
    let (mut mean, mut square) = (vec![0f64; channels], vec![0f64; channels]);
    for (block, values) in data.as_slice::<f32>().chunks(inner).enumerate() {
        let channel = block % channels;
        mean[channel] += values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        square[channel] += values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / count;
    }
    let variance = mean.iter().zip(&square).map(|(m, s)| (s - m * m).max(0.0)).collect();
    (mean, variance)
}
