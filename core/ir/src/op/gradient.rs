//! Gradients of other operators, and the sums over broadcast axes that gradients of broadcasting need.

use super::conv::attrs_2d;
use super::pool::{avg_attrs_2d, max_attrs_2d, pool_flops, pool_relation, pool_window};
use super::repeat::dims_of;
use super::reshape::unknown_dims;
use super::spatial::{self, CanonicalDims, Window, WindowParams, each};
use super::sum::{Sum, with_sum};
use super::walk::{broadcast_strides, for_each_index, offset};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, TensorType, Type};
use crate::op::facts::{Properties, elements_of, reduced_elements};
use crate::tensor::{TensorView, TensorViewMut};

/// Returns the type of `data` summed to the dimensions `dims`, to which it would broadcast in the other direction.
fn collapsed_type(relation: &Relation<'_>, data: &TensorType, dims: Vec<Dim>) -> TypeResult {
    let missing = data.dims.len().checked_sub(dims.len());
    let missing = missing.ok_or_else(|| {
        relation.mismatch(format!("expected a rank of at most {}, found {}", data.dims.len(), dims.len()))
    })?;
    for (source, target) in data.dims[missing..].iter().zip(&dims) {
        if let (Some(a), Some(b)) = (source.fixed(), target.fixed())
            && b != 1
            && a != b
        {
            return Err(relation.mismatch(format!("expected a dimension of 1 or {a}, found {b}")));
        }
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

fn collapse(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let shape = inputs[0].shape;
    let strides = broadcast_strides(outputs[0].shape, shape.len());
    with_sum!(inputs[0].dtype, A => {
        let (data, mut sums) = (A::load(&inputs[0]), vec![A::ZERO; outputs[0].len()]);
        let mut elements = data.into_iter();
        for_each_index(shape, |index| {
            if let Some(element) = elements.next() {
                let target = offset(index, &strides);
                sums[target] = sums[target].plus(element);
            }
        });
        A::store(&sums, &mut outputs[0]);
    });
    Ok(())
}

operator! {
    name: "collapse_sum_like",
    doc: "data summed over the axes along which collapse_type is broadcast to the shape of data.",
    inputs: &["data", "collapse_type"],
    pattern: OpPattern::CommReduce,
    relation: |relation| collapsed_type(relation, relation.tensor(0)?, relation.tensor(1)?.dims.to_vec()),
    reference: Some(collapse),
    flops: |cost| cost.arg_len(0),
    properties: Properties::EXACT.sum(reduced_elements),
}

operator! {
    name: "collapse_sum_to",
    doc: "data summed over the axes along which a tensor of the given shape is broadcast to the shape of data.",
    inputs: &["data", "shape"],
    attrs: &[
        AttrDef::new("shape", AttrKind::Ints, Default::None, "shape of the result if argument 1 is not constant"),
        AttrDef::new("dtype", AttrKind::DType, Default::Str(""), "not used; Relay's attributes have it"),
    ],
    pattern: OpPattern::CommReduce,
    relation: |relation| {
        let dims = match relation.known_ints(1).or_else(|| relation.params.opt_ints("shape")) {
            Some(shape) => dims_of(relation, &shape)?,
            None => unknown_dims(relation, 1)?,
        };
        collapsed_type(relation, relation.tensor(0)?, dims)
    },
    reference: Some(collapse),
    flops: |cost| cost.arg_len(0),
    properties: Properties::EXACT.sum(reduced_elements),
}

/// Returns the type of the data, after a check that the gradient has the type of the pooled data.
fn pool_gradient_type(relation: &Relation<'_>) -> TypeResult {
    let (gradient, data) = (relation.tensor(0)?, relation.tensor(1)?);
    for name in ["layout", "out_layout"] {
        spatial::layout(relation, name, "NCHW", "NCHW")?;
    }
    relation.same_dtype(gradient.dtype, data.dtype)?;
    let pooled = pool_relation::<2>(&Relation { args: &relation.args[1..], ..*relation })?;
    let pooled = pooled.as_tensor().map(|ty| ty.dims.to_vec()).unwrap_or_default();
    if pooled.len() != gradient.dims.len() {
        return Err(relation.mismatch(format!("data: expected rank {}, found {}", pooled.len(), relation.args[0])));
    }
    for (axis, (a, b)) in pooled.iter().zip(&gradient.dims).enumerate() {
        relation.same_dim(&format!("axis {axis} of the gradient"), a, b)?;
    }
    Ok(relation.args[1].clone())
}

/// Adds the gradient of each window to the elements of the data in it: to those that `share` returns from the elements
/// of the window and their offsets in the data, each with its share of the gradient.
fn pool_gradient(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    share: &dyn Fn(&[f64], &[usize]) -> Vec<(usize, f64)>,
) {
    let layout = params.string("layout");
    let out_layout = params.string("out_layout");
    let data = CanonicalDims::new(inputs[1].shape, &layout, "NC");
    let pooled = CanonicalDims::new(inputs[0].shape, if out_layout.is_empty() { &layout } else { &out_layout }, "NC");
    let (taps, window) = pool_window(params, 2);
    let (gradient, elements) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let mut sums = vec![0.0; outputs[0].len()];
    let size = data.spatial();
    let mut ticks = Ticks::every(taps.iter().zip(size).map(|(&taps, size)| taps.min(size)).product());
    for (n, c) in (0..pooled.size[0]).flat_map(|n| (0..pooled.size[1]).map(move |c| (n, c))) {
        each(pooled.spatial(), |position| {
            if ticks.is_requested() {
                return;
            }
            let ranges: [_; 3] = std::array::from_fn(|i| window.taps_inside(i, position[i], taps[i], size[i]));
            let mut members = Vec::new();
            each(ranges.clone().map(|range| range.len()), |tap| {
                let tap = std::array::from_fn(|i| ranges[i].start + tap[i]);
                members.extend(window.tap(position, tap, size).map(|index| data.at(n, c, index)));
            });
            let amount = gradient[pooled.at(n, c, position)];
            for (member, weight) in share(&elements, &members) {
                sums[member] += amount * weight;
            }
        });
    }
    f64::store(&sums, &mut outputs[0]);
}

operator! {
    name: "nn.max_pool2d_grad",
    doc: "Gradient of nn.max_pool2d with respect to its data, the second argument: each element of the gradient of the \
          result, the first argument, is added to the first one of the largest elements of its window.",
    inputs: &["data", "grad"],
    attrs: &max_attrs_2d(),
    pattern: OpPattern::OutEWiseFusable,
    relation: pool_gradient_type,
    reference: Some(|params, inputs, outputs| {
        pool_gradient(&params, inputs, outputs, &|elements, members| {
            let largest = members.iter().copied().reduce(|a, b| if elements[b] > elements[a] { b } else { a });
            largest.map(|member| (member, 1.0)).into_iter().collect()
        });
        Ok(())
    }),
    flops: pool_flops,
    properties: Properties::EXACT.sum(elements_of::<0>),
}

operator! {
    name: "nn.avg_pool2d_grad",
    doc: "Gradient of nn.avg_pool2d with respect to its data, the second argument: each element of the gradient of the \
          result, the first argument, is divided by the size of its window, with count_include_pad including padding, \
          and added to all elements of the window.",
    inputs: &["data", "grad"],
    attrs: &avg_attrs_2d(),
    pattern: OpPattern::OutEWiseFusable,
    relation: pool_gradient_type,
    reference: Some(|params, inputs, outputs| {
        let window: i64 = params.per_axis("pool_size", 2).iter().product();
        let includes_padding = params.bool("count_include_pad");
        pool_gradient(&params, inputs, outputs, &|_, members| {
            let count = if includes_padding { window as f64 } else { members.len().max(1) as f64 };
            members.iter().map(|&member| (member, 1.0 / count)).collect()
        });
        Ok(())
    }),
    flops: pool_flops,
    properties: Properties::EXACT.sum(elements_of::<0>),
}

operator! {
    name: "nn.conv2d_backward_weight",
    doc: "Gradient of nn.conv2d with respect to its weight, from the gradient of the result and the data: \
          weight[o, i, t] = sum over n and p of grad[n, o, p] * data[n, i, p * strides + t * dilation - padding]. As \
          in Relay, data_layout is the layout of grad, kernel_layout that of data, and out_layout that of the result.",
    inputs: &["grad", "data"],
    attrs: &attrs_2d(AttrDef::new(
        "out_dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of grad if empty",
    )),
    pattern: OpPattern::OutEWiseFusable,
    relation: weight_gradient_type,
    reference: Some(weight_gradient),
    flops: |cost| {
        let taps: i64 = cost.params.ints("kernel_size").iter().product();
        cost.arg_len(0).saturating_mul(2 * taps.max(1) as u64)
    },
    properties: Properties::EXACT.sum(elements_of::<0>),
}

fn weight_gradient_type(relation: &Relation<'_>) -> TypeResult {
    let (gradient, data) = (relation.tensor(0)?, relation.tensor(1)?);
    let dtype = relation.same_dtype(gradient.dtype, data.dtype)?;
    let mut operands = Vec::new();
    for (i, (name, ty)) in [("data_layout", gradient), ("kernel_layout", data)].into_iter().enumerate() {
        let positions = spatial::layout(relation, name, "NCHW", "NCHW")?;
        if ty.dims.len() != 4 {
            let (name, found) = (relation.def.inputs[i], &relation.args[i]);
            return Err(relation.mismatch(format!("{name}: expected 4 dimensions, found {found}")));
        }
        operands.push(positions.iter().map(|&axis| ty.dims[axis].clone()).collect::<Vec<Dim>>());
    }
    let invalid = |message: String| -> Box<Diagnostic> { relation.error(codes::types::BAD_ATTRIBUTE, message) };
    let kernel = relation.params.ints("kernel_size");
    if kernel.len() != 2 || kernel.iter().any(|size| !(1..=i64::from(i32::MAX)).contains(size)) {
        return Err(invalid(format!("kernel_size: expected 2 integers >= 1, found {kernel:?}")));
    }
    let groups = relation.params.int("groups");
    let is_divisible = |dim: &Dim| groups > 0 && dim.fixed().is_none_or(|n| n as i64 % groups == 0);
    if !is_divisible(&operands[0][1]) || !is_divisible(&operands[1][1]) {
        return Err(invalid(format!("groups: expected a positive divisor of the numbers of channels, found {groups}")));
    }
    relation.same_dim("batch of gradient and data", &operands[0][0], &operands[1][0])?;
    let (strides, dilation) =
        (spatial::per_axis(relation, "strides", 2, 1)?, spatial::per_axis(relation, "dilation", 2, 1)?);
    let pads = spatial::padding(relation, 2)?;
    for i in 0..2 {
        let window = Window { stride: strides[i], dilation: dilation[i], pads: pads[i] };
        let size = window.output_size(relation, &operands[1][2 + i], &Dim::Fixed(kernel[i] as usize), false)?;
        relation.same_dim(&format!("spatial axis {i} of the gradient"), &size, &operands[0][2 + i])?;
    }
    let channels = match operands[1][1].fixed() {
        Some(n) => Dim::Fixed(n / groups as usize),
        None => Dim::Any,
    };
    let canonical = [operands[0][1].clone(), channels, Dim::Fixed(kernel[0] as usize), Dim::Fixed(kernel[1] as usize)];
    let mut dims = vec![Dim::Any; 4];
    for (dim, position) in canonical.into_iter().zip(spatial::layout(relation, "out_layout", "OIHW", "OIHW")?) {
        dims[position] = dim;
    }
    Ok(Type::tensor_of(relation.params.dtype("out_dtype").unwrap_or(dtype), dims))
}

fn weight_gradient(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let gradient = CanonicalDims::new(inputs[0].shape, &params.string("data_layout"), "NC");
    let data = CanonicalDims::new(inputs[1].shape, &params.string("kernel_layout"), "NC");
    let weight = CanonicalDims::new(outputs[0].shape, &params.string("out_layout"), "OI");
    let window = WindowParams::new(&params, 2);
    let [channels, channels_per_group, ..] = weight.size;
    let group_size = channels / params.int("groups").max(1) as usize;
    with_sum!(inputs[0].dtype, A => {
        let (dy, x, mut out) = (A::load(&inputs[0]), A::load(&inputs[1]), vec![A::ZERO; outputs[0].len()]);
        let mut ticks = Ticks::every(gradient.spatial().iter().product::<usize>() * gradient.size[0]);
        for (o, i) in (0..channels).flat_map(|o| (0..channels_per_group).map(move |i| (o, i))) {
            let channel = o / group_size.max(1) * channels_per_group + i;
            each(weight.spatial(), |tap| {
                if ticks.is_requested() {
                    return;
                }
                let mut sum = A::ZERO;
                for n in 0..gradient.size[0] {
                    each(gradient.spatial(), |position| {
                        if let Some(index) = window.tap(position, tap, data.spatial()) {
                            sum = sum.plus_product(dy[gradient.at(n, o, position)], x[data.at(n, channel, index)]);
                        }
                    });
                }
                out[weight.at(o, i, tap)] = sum;
            });
        }
        A::store(&out, &mut outputs[0]);
    });
    Ok(())
}
