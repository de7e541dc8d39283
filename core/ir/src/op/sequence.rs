//! Operators on padded sequences and on windows that slide along a sequence.

use super::elementwise::same_as_input;
use super::index::integers;
use super::scalar::Writer;
use super::walk::{for_each_index, gather, offset, split_at_axis, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::Properties;
use crate::op::spatial::Window;
use crate::tensor::{TensorView, TensorViewMut};

operator! {
    name: "sequence_mask",
    doc: "data with the elements at and after the valid length of their sequence replaced by mask_value. The \
          sequences run along the axis, 0 or 1, of data; the other one of these two axes is the batch, and \
          valid_length has one number for each of its elements.",
    inputs: &["data", "valid_length"],
    attrs: &[
        AttrDef::new("mask_value", AttrKind::Float, Default::Float(0.0), "value of the masked elements"),
        AttrDef::new("axis", AttrKind::Int, Default::Int(0), "axis of the sequences, 0 or 1"),
    ],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, lengths) = (relation.tensor(0)?, relation.tensor(1)?);
        let axis = relation.params.int("axis");
        if axis != 0 && axis != 1 {
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("axis: expected 0 or 1, found {axis}")));
        }
        let ([_, _, ..], [length]) = (&data.dims[..], &lengths.dims[..]) else {
            let [data, lengths] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!(
                "expected data of rank 2 or more and a vector of lengths, found {data} and {lengths}"
            )));
        };
        relation.same_dim("lengths and batch", &data.dims[1 - axis as usize], length)?;
        same_as_input(relation)
    },
    reference: Some(|params, inputs, outputs| {
        let (axis, lengths) = (params.int("axis") as usize, inputs[1].to_f64s());
        let shape = outputs[0].shape;
        outputs[0].data.copy_from_slice(inputs[0].data);
        let (mut out, mut position) = (Writer::new(&mut outputs[0]), 0);
        for_each_index(shape, |index| {
            if index[axis] as f64 >= lengths[index[1 - axis]] {
                out.set_float(position, params.float("mask_value"));
            }
            position += 1;
        });
        Ok(())
    }),
}

fn reverse_axes(params: &Params<'_>, rank: usize) -> [usize; 2] {
    ["seq_axis", "batch_axis"].map(|name| params.int(name).rem_euclid(rank.max(1) as i64) as usize)
}

operator! {
    name: "reverse_sequence",
    doc: "data with the first seq_lengths[b] elements along seq_axis in reverse order, for each element b of \
          batch_axis. Elements after them stay in place.",
    inputs: &["data", "seq_lengths"],
    attrs: &[
        AttrDef::new("seq_axis", AttrKind::Int, Default::Int(1), "axis of the sequences; a negative axis counts from the end"),
        AttrDef::new("batch_axis", AttrKind::Int, Default::Int(0), "axis of the batch; a negative axis counts from the end"),
    ],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, lengths) = (relation.tensor(0)?, relation.tensor(1)?);
        relation.axis(relation.params.int("seq_axis"), data.dims.len())?;
        let batch = relation.axis(relation.params.int("batch_axis"), data.dims.len())?;
        let [length] = &lengths.dims[..] else {
            return Err(relation.mismatch(format!("seq_lengths: expected a vector, found {}", relation.args[1])));
        };
        if !lengths.dtype.is_int() {
            return Err(relation.mismatch(format!("seq_lengths: expected integers, found {}", lengths.dtype)));
        }
        relation.same_dim("lengths and batch", &data.dims[batch], length)?;
        same_as_input(relation)
    },
    reference: Some(|params, inputs, outputs| {
        let (shape, lengths) = (inputs[0].shape, integers(&inputs[1], "seq_lengths")?);
        let [sequence, batch] = reverse_axes(&params, shape.len());
        let strides = strides(shape);
        gather(&inputs[0], &mut outputs[0], |index| {
            let length = lengths[index[batch]].clamp(0, shape[sequence] as i64) as usize;
            let position = index[sequence];
            let source = if position < length { length - 1 - position } else { position };
            offset(index, &strides) - position * strides[sequence] + source * strides[sequence]
        });
        Ok(())
    }),
    properties: Properties::SELECTS,
}

operator! {
    name: "nn.fifo_buffer",
    doc: "The most recent elements of a stream: buffer without its first elements along the axis, followed by data. \
          The result has the type of buffer.",
    inputs: &["data", "buffer"],
    attrs: &[AttrDef::new("axis", AttrKind::Int, Default::Int(0), "axis of the stream; a negative axis counts from the end")],
    relation: |relation| {
        let (data, buffer) = (relation.tensor(0)?, relation.tensor(1)?);
        relation.same_dtype(data.dtype, buffer.dtype)?;
        if data.dims.len() != buffer.dims.len() {
            let [data, buffer] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected equal ranks, found {data} and {buffer}")));
        }
        let axis = relation.axis(relation.params.int("axis"), buffer.dims.len())?;
        for (i, (a, b)) in data.dims.iter().zip(&buffer.dims).enumerate() {
            match (a.fixed(), b.fixed()) {
                (Some(new), Some(kept)) if i == axis && new >= kept => {
                    let message = format!("axis {axis} of data: expected fewer elements than {kept}, found {new}");
                    return Err(relation.mismatch(message));
                }
                _ if i == axis => {}
                _ => drop(relation.same_dim(&format!("axis {i}"), a, b)?),
            }
        }
        Ok(relation.args[1].clone())
    },
    reference: Some(fifo_buffer),
}

fn fifo_buffer(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let axis = params.int("axis").rem_euclid(inputs[1].shape.len() as i64) as usize;
    let (outer, kept, inner) = split_at_axis(inputs[1].shape, axis);
    let new = inputs[0].shape[axis];
    if new > kept {
        return Err(format!("axis {axis} of data: expected at most {kept} elements, found {new}"));
    }
    let row = inner * inputs[1].dtype.size();
    for block in 0..outer {
        let target = &mut outputs[0].data[block * kept * row..][..kept * row];
        let (head, tail) = target.split_at_mut((kept - new) * row);
        head.copy_from_slice(&inputs[1].data[(block * kept + new) * row..][..head.len()]);
        tail.copy_from_slice(&inputs[0].data[block * new * row..][..new * row]);
    }
    Ok(())
}

operator! {
    name: "sliding_window",
    doc: "Windows of the axes from `axis` to the last one: the result has the axes before it, an axis for the \
          positions of the window on each of the others, and the axes of the window.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("axis", AttrKind::Int, Default::Required, "first axis of the window; a negative axis counts from the end"),
        AttrDef::new("window_shape", AttrKind::Ints, Default::Required, "size of the window on each of its axes"),
        AttrDef::new("strides", AttrKind::Ints, Default::Required, "distance between windows on each of its axes"),
    ],
    relation: sliding_window_type,
    reference: Some(|params, inputs, outputs| {
        let shape = inputs[0].shape;
        let axis = params.int("axis").rem_euclid(shape.len() as i64) as usize;
        let (steps, strides) = (params.ints("strides"), strides(shape));
        let axes = shape.len() - axis;
        gather(&inputs[0], &mut outputs[0], |index| {
            let window: usize =
                (0..axes).map(|i| (index[axis + i] * steps[i] as usize + index[axis + axes + i]) * strides[axis + i]).sum();
            offset(&index[..axis], &strides[..axis]) + window
        });
        Ok(())
    }),
    properties: Properties::SELECTS,
}

fn sliding_window_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
    let axes = data.dims.len() - axis;
    let (shape, steps) = (relation.params.ints("window_shape"), relation.params.ints("strides"));
    let is_valid =
        |values: &[i64]| values.len() == axes && values.iter().all(|v| (1..=i64::from(i32::MAX)).contains(v));
    for (name, values) in [("window_shape", &shape), ("strides", &steps)] {
        if !is_valid(values) {
            return Err(relation.error(
                codes::types::BAD_ATTRIBUTE,
                format!("{name}: expected {axes} positive integers, one for each axis from {axis}, found {values:?}"),
            ));
        }
    }
    let sizes: Vec<Dim> = shape.iter().map(|&size| Dim::Fixed(size as usize)).collect();
    let mut dims = data.dims[..axis].to_vec();
    for ((dim, size), &stride) in data.dims[axis..].iter().zip(&sizes).zip(&steps) {
        dims.push(Window { stride, dilation: 1, pads: (0, 0) }.output_size(relation, dim, size, false)?);
    }
    dims.extend(sizes);
    Ok(Type::tensor_of(data.dtype, dims))
}
