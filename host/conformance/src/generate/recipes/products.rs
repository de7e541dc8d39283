//! Convolutions, matrix products, and bias addition.

use super::{Constraint, Recipe, argument_type, attrs, first_argument, ints, operand, recipe, unconstrained, weight};
use crate::generate::draw::{DimRange, Fill, Sampler, Variation};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let axes = def.name.contains("1d").then_some(1).or_else(|| def.name.contains("2d").then_some(2)).unwrap_or(3);
    match def.name {
        "nn.conv1d" | "nn.conv2d" | "nn.conv3d" => convolution(def, sampler, constraints, axes, false),
        "nn.conv1d_transpose" | "nn.conv2d_transpose" | "nn.conv3d_transpose" => {
            convolution(def, sampler, constraints, axes, true)
        }
        "nn.dense" => {
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (sampler.theme.dtype, dense_shape(sampler)));
            let terms = *shape.last()?;
            let (w, columns) = match argument_type(constraints, 1) {
                Some((w, shape)) => (w, *shape.first()?),
                None => (dtype, sampler.matrix_dim()),
            };
            let mut pairs = out_dtype(sampler, dtype);
            if sampler.chance(2) {
                pairs.push(("units", AttrValue::Int(columns as i64)));
            }
            recipe(
                [operand(dtype, shape, Fill::Terms), weight(w, vec![columns, terms], Fill::Factors)],
                Attrs::new(pairs),
            )
        }
        "nn.matmul" | "nn.batch_matmul" => matmul(def, sampler, constraints),
        "nn.bias_add" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
            if shape.is_empty() {
                return None;
            }
            let axis = if shape.len() > 1 && sampler.chance(2) { 1 } else { sampler.axis(shape.len()) };
            let bias = shape[axis.rem_euclid(shape.len() as i64) as usize];
            recipe(
                [unconstrained(dtype, shape), weight(dtype, vec![bias], Fill::Factors)],
                attrs([("axis", axis.into())]),
            )
        }
        _ => None,
    }
}

/// Draws the data shape of a dense operator; the last dimension is drawn by [`Sampler::matrix_dim`].
fn dense_shape(sampler: &mut Sampler) -> Vec<usize> {
    let mut shape = sampler.shape_of_rank(1, 4);
    if let Some(terms) = shape.last_mut().filter(|terms| **terms > 0) {
        *terms = sampler.matrix_dim();
    }
    shape
}

/// Draws the `out_dtype` of a convolution or matrix product.
fn out_dtype(sampler: &mut Sampler, dtype: DType) -> Vec<(&'static str, AttrValue)> {
    let is_narrow = matches!(dtype, DType::I8 | DType::U8 | DType::I16);
    if is_narrow && (sampler.common_attrs || !sampler.chance(4)) {
        vec![("out_dtype", AttrValue::from(DType::I32))]
    } else {
        Vec::new()
    }
}

fn matmul(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let is_batched = def.name == "nn.batch_matmul";
    let (ta, tb) = (sampler.chance(3), if is_batched { !sampler.chance(3) } else { sampler.chance(3) });
    let flag = |name, value: bool| (name, AttrValue::Bool(value));
    let (dtype, a) = argument_type(constraints, 0).unwrap_or_else(|| {
        let (rows, terms) = (sampler.matrix_dim(), sampler.matrix_dim());
        let mut shape = if ta { vec![terms, rows] } else { vec![rows, terms] };
        if is_batched {
            shape.insert(0, sampler.batch());
        }
        (sampler.theme.dtype, shape)
    });
    let terms = *a.get(a.len().checked_sub(if ta { 2 } else { 1 })?)?;
    let (w, b) = argument_type(constraints, 1).unwrap_or_else(|| {
        let columns = sampler.matrix_dim();
        let mut shape = if tb { vec![columns, terms] } else { vec![terms, columns] };
        if is_batched {
            // Either batch may be broadcast.
            shape.insert(
                0,
                match a[0] {
                    1 => sampler.batch(),
                    _ if sampler.chance(3) => 1,
                    batch => batch,
                },
            );
        }
        (dtype, shape)
    });
    let mut pairs = out_dtype(sampler, dtype);
    pairs.extend([flag("transpose_a", ta), flag("transpose_b", tb)]);
    let b = if is_batched { operand(w, b, Fill::Factors) } else { weight(w, b, Fill::Factors) };
    recipe([operand(dtype, a, Fill::Terms), b], Attrs::new(pairs))
}

/// Returns pairs of data layout and kernel layout; the first pair is Relay's default.
fn layouts(axes: usize, is_transposed: bool) -> &'static [(&'static str, &'static str)] {
    match (axes, is_transposed) {
        (1, false) => &[("NCW", "OIW"), ("NWC", "WIO")],
        (2, false) => &[("NCHW", "OIHW"), ("NHWC", "HWIO"), ("NHWC", "OHWI"), ("NCHW", "HWIO")],
        (3, false) => &[("NCDHW", "OIDHW"), ("NDHWC", "DHWIO")],
        (1, true) => &[("NCW", "OIW")],
        (2, true) => &[("NCHW", "IOHW")],
        _ => &[("NCDHW", "OIDHW")],
    }
}

/// Permutes dimensions from the canonical order to a layout.
fn permute_to_layout(canonical_shape: &[usize], order: &str, layout: &str) -> Vec<usize> {
    layout.chars().filter_map(|letter| Some(canonical_shape[order.find(letter)?])).collect()
}

fn divisors(n: usize) -> Vec<usize> {
    (1..=n.max(1)).filter(|d| n.is_multiple_of(*d)).collect()
}

/// Returns true if a layout has the axes of `order`, each once and unsplit.
fn is_permutation(layout: &str, order: &str) -> bool {
    layout.len() == order.len() && order.chars().all(|axis| layout.contains(axis))
}

fn convolution(
    def: &OpDef,
    sampler: &mut Sampler,
    constraints: &[Constraint],
    axes: usize,
    is_transposed: bool,
) -> Option<Recipe> {
    let variation = sampler.variation();
    let layout_pairs = layouts(axes, is_transposed);
    let (order, kernel_order) = (layout_pairs[0].0, layout_pairs[0].1);
    let declared_layouts = sampler.declared_layouts(def.name).filter(|names| match &names[..] {
        [data] => is_permutation(data, order),
        [data, kernel, ..] => is_permutation(data, order) && is_permutation(kernel, kernel_order),
        [] => false,
    });
    let (layout, kernel_layout) = match declared_layouts.as_deref() {
        Some([data, kernel, ..]) => (data.as_str(), kernel.as_str()),
        Some([data]) => (data.as_str(), kernel_order),
        _ if sampler.common_attrs || sampler.chance(2) => layout_pairs[0],
        _ => sampler.pick(layout_pairs),
    };
    // A wide output has more channels than fit into one vector or channel block on most devices.
    let has_wide_output = sampler.theme.dims == DimRange::Wide && axes < 3 && sampler.chance(2);
    let (dtype, batch, channels, spatial_dims, given_shape) = match argument_type(constraints, 0) {
        Some((dtype, shape)) => {
            if shape.len() != axes + 2 {
                return None;
            }
            let size = |letter: char| layout.find(letter).map_or(1, |index| shape[index]);
            let spatial_dims: Vec<usize> = order[2..].chars().map(size).collect();
            (dtype, size('N'), size('C'), spatial_dims, Some(shape))
        }
        None => {
            let channels = if sampler.theme.dims == DimRange::Wide && axes == 3 { 3 } else { sampler.dim() };
            // Half of the draws have an even number of channels, so that a group can have several channels.
            let channels = match variation {
                Some(Variation::Groups) => channels.next_multiple_of(2).max(4),
                _ if sampler.chance(2) => channels.next_multiple_of(2),
                _ => channels,
            };
            let max_dim = if axes == 3 || has_wide_output { 7 } else { usize::MAX };
            let spatial_dims = (0..axes).map(|_| sampler.spatial_dim().min(max_dim)).collect();
            (sampler.theme.dtype, sampler.batch(), channels, spatial_dims, None)
        }
    };
    // Most backends have separate loops for depthwise, grouped and plain convolutions.
    let proper_divisors: Vec<usize> = divisors(channels).into_iter().filter(|d| (2..channels).contains(d)).collect();
    let groups = match sampler.below(3) {
        _ if variation == Some(Variation::Groups) && !proper_divisors.is_empty() => sampler.pick(&proper_divisors),
        // One group, so that dilation and padding are also tested on backends without groups.
        _ if has_wide_output || (variation.is_some() && sampler.chance(2)) => 1,
        0 => 1,
        1 if sampler.common_attrs => sampler.pick(&divisors(channels)),
        1 => channels.max(1),
        _ => sampler.pick(&divisors(channels)),
    };
    let mut channels_per_group =
        1 + sampler.below(if sampler.theme.dims == DimRange::Wide && axes < 3 { 9 } else { 3 });
    if groups == channels && channels > 4 {
        channels_per_group = 1 + sampler.below(2);
    }
    if variation == Some(Variation::Groups) {
        channels_per_group = channels_per_group.max(2);
    } else if has_wide_output && groups == 1 {
        channels_per_group = sampler.pick(&[16, 17, 24, 33]);
    }
    let mut taps: Vec<usize> = (0..axes).map(|_| sampler.pick(&[1, 2, 3, 3, 5])).collect();
    if sampler.chance(2) || variation == Some(Variation::Dilation) {
        // Square kernels, as in most models: swapping the axes by mistake then changes only the values, not the shape.
        // Kernels of size 1 are often computed by separate code.
        let sizes: &[usize] = if variation == Some(Variation::Dilation) { &[2, 3, 3] } else { &[1, 1, 2, 3, 3] };
        taps = vec![sampler.pick(sizes); axes];
    }
    let canonical_shape: Vec<usize> = match is_transposed {
        false => [channels_per_group * groups, channels / groups].into_iter().chain(taps.iter().copied()).collect(),
        true => [channels, channels_per_group].into_iter().chain(taps.iter().copied()).collect(),
    };
    let strides: Vec<usize> = (0..axes).map(|_| sampler.pick(&[1, 1, 2, 3])).collect();
    let dilation: Vec<usize> = match variation {
        Some(Variation::Dilation) => vec![2; axes],
        _ => (0..axes).map(|_| if !sampler.common_attrs && sampler.chance(3) { 2 } else { 1 }).collect(),
    };
    let padding: Vec<usize> = match sampler.below(if sampler.common_attrs { 3 } else { 4 }) {
        _ if variation == Some(Variation::Padding) => {
            let before: Vec<usize> = (0..axes).map(|_| sampler.below(2)).collect();
            let after = before.iter().map(|size| size + 1);
            before.iter().copied().chain(after).collect()
        }
        0 => vec![0; axes],
        // Relay accepts one padding value per axis, or one per side of each axis.
        1 => (0..axes).map(|_| sampler.below(3)).collect(),
        2 => taps.iter().map(|tap| tap / 2).collect(),
        _ => (0..2 * axes).map(|_| sampler.below(3)).collect(),
    };
    let mut pairs = out_dtype(sampler, dtype);
    pairs.extend([
        ("strides", ints(strides.iter().copied())),
        ("padding", ints(padding)),
        ("dilation", ints(dilation.iter().copied())),
        ("groups", AttrValue::Int(groups as i64)),
        ("data_layout", AttrValue::from(layout)),
        ("kernel_layout", AttrValue::from(kernel_layout)),
    ]);
    if is_transposed && sampler.chance(2) {
        let output_padding = strides.iter().zip(&dilation).map(|(s, d)| sampler.below(*s.max(d)));
        pairs.push(("output_padding", ints(output_padding)));
    } else if !is_transposed && !sampler.common_attrs && sampler.chance(6) && axes == 2 {
        pairs.push(("out_layout", AttrValue::from(sampler.pick(&["NCHW", "NHWC"]))));
    }
    if sampler.chance(2) {
        pairs.push(("kernel_size", ints(taps)));
        pairs.push(("channels", AttrValue::Int((channels_per_group * groups) as i64)));
    }
    let data: Vec<usize> = [batch, channels].into_iter().chain(spatial_dims).collect();
    let data = given_shape.unwrap_or_else(|| permute_to_layout(&data, order, layout));
    let kernel =
        if is_transposed { canonical_shape } else { permute_to_layout(&canonical_shape, kernel_order, kernel_layout) };
    let w = argument_type(constraints, 1).map_or(dtype, |k| k.0);
    debug_assert!(def.attr("kernel_layout").is_some());
    recipe([operand(dtype, data, Fill::Terms), weight(w, kernel, Fill::Factors)], Attrs::new(pairs))
}
