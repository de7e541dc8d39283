//! Evaluation of one call on tensors with the naive reference, for constant folding, shape arithmetic, and tests.

use super::Params;
use crate::cancel;
use crate::ir::{Attrs, OpId, Type};
use crate::tensor::{AlignedBytes, Tensor, TensorView, TensorViewMut, byte_count, memory};

/// Argument of [`evaluate`]: a tensor, or a tuple of tensors.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A tuple of tensors.
    Tuple(Vec<Tensor>),
}

/// Evaluates `op(args)` with the naive reference of `op`; a tuple result is flattened. `limit` bounds the size of each
/// output in bytes, so that a small module cannot request a large result.
///
/// # Errors
/// If the types do not agree, there is no reference, an output exceeds `limit` or the remaining budget of the process,
/// the values are invalid, or the work of this thread is [cancelled](crate::cancel).
pub fn evaluate(op: OpId, attrs: &Attrs, args: &[Value], limit: usize) -> Result<Vec<Tensor>, String> {
    let def = super::get(op);
    let type_of = |t: &Tensor| Type::tensor(t.dtype(), t.shape());
    let types: Vec<Type> = args
        .iter()
        .map(|arg| match arg {
            Value::Tensor(t) => type_of(t),
            Value::Tuple(fields) => Type::tuple(fields.iter().map(type_of)),
        })
        .collect();
    let values: Vec<Option<&Tensor>> = args
        .iter()
        .map(|arg| match arg {
            Value::Tensor(t) => Some(t),
            Value::Tuple(_) => None,
        })
        .collect();
    let ty = def.infer(attrs, &types, &values).map_err(|d| d.message)?;
    let reference = def.reference.ok_or_else(|| format!("{} has no host implementation", def.name))?;
    let out_types = match &ty {
        Type::Tuple(fields) => fields.to_vec(),
        other => vec![other.clone()],
    };
    let mut outputs = Vec::with_capacity(out_types.len());
    for out in &out_types {
        let static_type = out.as_tensor().and_then(|t| Some((t.dtype, t.shape()?)));
        let (dtype, shape) =
            static_type.ok_or_else(|| format!("{}: expected a result of known size, found {out}", def.name))?;
        let bytes = byte_count(dtype, &shape).filter(|&bytes| bytes <= limit);
        let bytes =
            bytes.ok_or_else(|| format!("{}: expected a result of at most {limit} bytes, found {out}", def.name))?;
        let memory = AlignedBytes::zeroed(bytes).map_err(|e| format!("{}: {e}", def.name))?;
        outputs.push((dtype, shape, memory));
    }
    let inputs: Vec<TensorView<'_>> = args
        .iter()
        .flat_map(|arg| match arg {
            Value::Tensor(t) => std::slice::from_ref(t),
            Value::Tuple(fields) => fields.as_slice(),
        })
        .map(Tensor::view)
        .collect();
    let mut views: Vec<TensorViewMut<'_>> = outputs
        .iter_mut()
        .map(|(dtype, shape, bytes)| TensorViewMut { dtype: *dtype, shape, data: bytes.as_mut() })
        .collect();
    let elements = inputs.iter().map(TensorView::len).chain(views.iter().map(TensorViewMut::len));
    let reservation = memory::reserve(super::reference_scratch(elements)).map_err(|e| format!("{}: {e}", def.name))?;
    if views.iter().any(|view| !view.is_empty()) {
        reference(Params::new(def, attrs), &inputs, &mut views).map_err(|e| format!("{}: {e}", def.name))?;
    }
    drop(reservation);
    if cancel::is_requested() {
        return Err(format!("{}: cancelled", def.name));
    }
    let wrap = |(dtype, shape, bytes): (_, crate::tensor::Shape, _)| {
        Tensor::from_storage(dtype, &shape, std::sync::Arc::new(bytes)).expect("the buffer size matches the shape")
    };
    Ok(outputs.into_iter().map(wrap).collect())
}
