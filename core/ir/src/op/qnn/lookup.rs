//! Functions of 8-bit integers as tables. These operators are not part of Relay; the pass `tabulate` creates them.

use super::{Evaluation, OpPattern, Relation, TypeResult};
use crate::ir::Type;
use crate::op::broadcast::{broadcast_dims, for_each_pair};
use crate::tensor::{DType, TensorView, TensorViewMut};

operator! {
    name: "qnn.contrib_lookup",
    doc: "table[data], with the bits of data as the index from 0 to 255.",
    inputs: &["data", "table"],
    pattern: OpPattern::ElemWise,
    relation: |relation| table_relation(relation, 1),
    reference: Some(|_, inputs, outputs| {
        let size = outputs[0].dtype.size();
        for (&index, out) in inputs[0].data.iter().zip(outputs[0].data.chunks_exact_mut(size)) {
            out.copy_from_slice(&inputs[1].data[usize::from(index) * size..][..size]);
        }
        Ok(())
    }),
    flops: |cost| cost.ret_len(),
}

operator! {
    name: "qnn.contrib_lookup_pair",
    doc: "table[256 * lhs + rhs], with the bits of lhs and rhs, which broadcast, as numbers from 0 to 255.",
    inputs: &["lhs", "rhs", "table"],
    pattern: OpPattern::Broadcast,
    relation: |relation| table_relation(relation, 2),
    reference: Some(look_up_pairs),
    flops: |cost| cost.ret_len(),
}

fn look_up_pairs(_: crate::op::Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (shape, size) = (outputs[0].shape, outputs[0].dtype.size());
    let mut out = outputs[0].data.chunks_exact_mut(size);
    for_each_pair(inputs[0].shape, inputs[1].shape, shape, |i, j| {
        let index = usize::from(inputs[0].data[i]) * 256 + usize::from(inputs[1].data[j]);
        if let Some(out) = out.next() {
            out.copy_from_slice(&inputs[2].data[index * size..][..size]);
        }
        Ok(())
    })
}

/// Checks `operands` tensors of bytes and the table after them. The result has the element type of the table.
fn table_relation(relation: &Relation<'_>, operands: usize) -> TypeResult {
    let tensors = (0..operands).map(|i| relation.tensor(i)).collect::<Result<Vec<_>, _>>()?;
    for (ty, name) in tensors.iter().zip(relation.def.inputs) {
        if !matches!(ty.dtype, DType::I8 | DType::U8) {
            return Err(relation.mismatch(format!("{name}: expected int8 or uint8, found {}", ty.dtype)));
        }
    }
    let (table, len) = (relation.tensor(operands)?, 256usize.pow(operands as u32));
    if table.dims.len() != 1 || table.dims[0].fixed() != Some(len) || table.dtype.is_small_int() {
        return Err(relation.mismatch(format!("table: expected {len} elements, found {}", relation.args[operands])));
    }
    Ok(Type::tensor_of(table.dtype, broadcast_dims(relation, tensors)?))
}
