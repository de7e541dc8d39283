//! Arithmetic on integers of few bits: packing bits into words, and products of the packed numbers, which are defined here
//! by the numbers themselves.

use super::conv::product_dtype;
use super::dense::UNITS;
use super::scalar::{Reader, Writer};
use super::spatial::{self, CanonicalDims, Window, WindowParams, each};
use super::walk::{for_each_index, offset, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, DimExpr, Type};
use crate::tensor::{DType, TensorView, TensorViewMut};

const UNSIGNED: [DType; 4] = [DType::U8, DType::U16, DType::U32, DType::U64];
const PACK_DTYPE: AttrDef = AttrDef::new(
    "pack_dtype",
    AttrKind::DType,
    Default::Str(""),
    "type of the words into which bits are packed; uint32 if empty",
);
const UNIPOLAR: AttrDef = AttrDef::new(
    "unipolar",
    AttrKind::Bool,
    Default::Bool(true),
    "true if a bit of the weight counts as -1 or 1, false if it counts as 0 or 1",
);

const fn bits(name: &'static str, doc: &'static str) -> AttrDef {
    AttrDef::new(name, AttrKind::Int, Default::Int(1), doc)
}

/// Returns the number of bits of the words in attribute `name`.
fn word_bits(relation: &Relation<'_>, name: &str) -> Result<(DType, usize), Box<Diagnostic>> {
    let dtype = relation.params.dtype(name).unwrap_or(DType::U32);
    if UNSIGNED.contains(&dtype) {
        return Ok((dtype, dtype.bits()));
    }
    let message = format!("{name}: expected uint8, uint16, uint32 or uint64, found {dtype}");
    Err(relation.error(codes::types::BAD_ATTRIBUTE, message))
}

/// Checks a number of bits.
fn check_bits(relation: &Relation<'_>, name: &str) -> Result<usize, Box<Diagnostic>> {
    let count = relation.params.int(name);
    if (1..=8).contains(&count) {
        return Ok(count as usize);
    }
    Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("{name}: expected an integer from 1 to 8, found {count}")))
}

/// Divides the dimension whose bits are packed.
fn packed_dim(relation: &Relation<'_>, dim: &Dim, word: usize) -> Result<Dim, Box<Diagnostic>> {
    match dim.fixed() {
        Some(n) if n % word == 0 => Ok(Dim::Fixed(n / word)),
        Some(n) => Err(relation.mismatch(format!("packed axis: expected a multiple of {word} elements, found {n}"))),
        None => Ok(Dim::compute([dim], |[n]| n.floor_div(&DimExpr::constant(word as i64)))),
    }
}

operator! {
    name: "nn.bitpack",
    doc: "Bits of integers as words: a new axis for the bits, the lowest first, and on pack_axis a word for as many \
          elements as it has bits, the first one in the highest bit.",
    inputs: &["data"],
    attrs: &[
        bits("bits", "number of bits of each element"),
        AttrDef::new("pack_axis", AttrKind::Int, Default::Int(1), "axis whose elements are packed"),
        AttrDef::new("bit_axis", AttrKind::Int, Default::Int(-1), "position of the axis of bits"),
        AttrDef::new("pack_type", AttrKind::DType, Default::Str(""), "type of the words; uint32 if empty"),
        AttrDef::new("name", AttrKind::Str, Default::Str("BitPack"), "not used; Relay's attributes have it"),
    ],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let data = relation.tensor(0)?;
        if !data.dtype.is_int() {
            return Err(relation.mismatch(format!("data: expected integers, found {}", relation.args[0])));
        }
        let (dtype, word) = word_bits(relation, "pack_type")?;
        let count = check_bits(relation, "bits")?;
        let axis = relation.axis(relation.params.int("pack_axis"), data.dims.len())?;
        let bit_axis = relation.axis(relation.params.int("bit_axis"), data.dims.len() + 1)?;
        let mut dims = data.dims.to_vec();
        dims[axis] = packed_dim(relation, &dims[axis], word)?;
        dims.insert(bit_axis, Dim::Fixed(count));
        Ok(Type::tensor_of(dtype, dims))
    },
    reference: Some(|params, inputs, outputs| {
        let (rank, word) = (inputs[0].shape.len() as i64, outputs[0].dtype.bits());
        let axis = params.int("pack_axis").rem_euclid(rank) as usize;
        let bit_axis = params.int("bit_axis").rem_euclid(rank + 1) as usize;
        let (data, strides) = (Reader::new(&inputs[0]), strides(inputs[0].shape));
        let shape = outputs[0].shape;
        let (mut out, mut position) = (Writer::new(&mut outputs[0]), 0);
        for_each_index(shape, |index| {
            let mut source = index.to_vec();
            let bit = source.remove(bit_axis);
            source[axis] *= word;
            let first = offset(&source, &strides);
            let element = |k: usize| data.int(first + k * strides[axis]) >> bit & 1;
            out.set_int(position, (0..word).fold(0, |packed, k| packed << 1 | element(k)));
            position += 1;
        });
        Ok(())
    }),
}

/// Returns the lowest `count` bits of each element.
fn low_bits(view: &TensorView<'_>, count: usize) -> Vec<i64> {
    let reader = Reader::new(view);
    (0..view.len()).map(|i| (reader.int(i) & ((1 << count) - 1)) as i64).collect()
}

/// Returns the number that each weight of `count` bits stands for.
fn weights(params: &Params<'_>, raw: Vec<i64>, count: usize) -> Vec<i64> {
    let bias = (1i64 << count) - 1;
    let is_unipolar = params.bool("unipolar");
    raw.into_iter().map(|w| if is_unipolar { 2 * w - bias } else { w }).collect()
}

operator! {
    name: "nn.bitserial_dense",
    doc: "data * transposed weight for integers of few bits: (rows, in) and (units, in), or weight as nn.bitpack packs it \
          along axis 1, with the bits on axis 1. A weight counts as the sum over its bits of -1 or 1 times 2^bit.",
    inputs: &["data", "weight"],
    attrs: &[
        UNITS,
        bits("data_bits", "number of bits of an element of data"),
        bits("weight_bits", "number of bits of an element of weight"),
        PACK_DTYPE,
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of data if empty"),
        UNIPOLAR,
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        let (data, weight) = (relation.tensor(0)?, relation.tensor(1)?);
        if !data.dtype.is_int() || !weight.dtype.is_int() {
            let [data, weight] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected integers, found {data} and {weight}")));
        }
        let (_, word) = word_bits(relation, "pack_dtype")?;
        check_bits(relation, "data_bits")?;
        let count = check_bits(relation, "weight_bits")?;
        let units = match (&data.dims[..], &weight.dims[..]) {
            ([_, inner], [units, columns]) => {
                packed_dim(relation, &relation.same_dim("inner dimensions", inner, columns)?, word)?;
                units
            }
            ([_, inner], [units, planes, words]) => {
                relation.same_dim("weight_bits and weight", &Dim::Fixed(count), planes)?;
                relation.same_dim("words of data and weight", &packed_dim(relation, inner, word)?, words)?;
                units
            }
            _ => {
                let [data, weight] = [&relation.args[0], &relation.args[1]];
                return Err(relation.mismatch(format!("expected rank 2, and 2 or 3, found {data} and {weight}")));
            }
        };
        let units = match relation.params.opt_int("units").map(usize::try_from) {
            Some(Ok(count)) => relation.same_dim("units and weight", &Dim::Fixed(count), units)?,
            Some(Err(_)) => return Err(relation.error(codes::types::BAD_ATTRIBUTE, "units: expected an integer >= 0")),
            None => units.clone(),
        };
        let dtype = product_dtype(relation, data.dtype, weight.dtype)?;
        Ok(Type::tensor_of(dtype, [data.dims[0].clone(), units]))
    },
    reference: Some(|params, inputs, outputs| {
        let (data_bits, weight_bits) = (params.int("data_bits") as usize, params.int("weight_bits") as usize);
        let (data, inner) = (low_bits(&inputs[0], data_bits), inputs[0].shape[1]);
        let units = inputs[1].shape[0];
        let raw = match *inputs[1].shape {
            [_, planes, words] => {
                let (packed, word) = (Reader::new(&inputs[1]), inner / words.max(1));
                let bit = |unit: usize, plane: usize, k: usize| {
                    packed.int((unit * planes + plane) * words + k / word) >> (word - 1 - k % word) & 1
                };
                let number = |i: usize| (0..planes).map(|plane| (bit(i / inner, plane, i % inner) << plane) as i64).sum();
                (0..units * inner).map(number).collect()
            }
            _ => low_bits(&inputs[1], weight_bits),
        };
        let weight = weights(&params, raw, weight_bits);
        let mut out = Writer::new(&mut outputs[0]);
        let mut ticks = Ticks::every(inner);
        for i in 0..out.len() {
            if ticks.is_requested() {
                break;
            }
            let (row, unit) = (&data[i / units * inner..][..inner], &weight[i % units * inner..][..inner]);
            out.set_int(i, row.iter().zip(unit).map(|(x, w)| i128::from(x * w)).sum());
        }
        Ok(())
    }),
    flops: |cost| 2 * cost.arg_len(0).saturating_mul(cost.arg_len(1)),
}

operator! {
    name: "nn.bitserial_conv2d",
    doc: "nn.conv2d for integers of few bits. A weight counts as the sum over its bits of -1 or 1 times 2^bit; padding \
          is 0. The number of input channels is a multiple of the bits of pack_dtype.",
    inputs: &["data", "weight"],
    attrs: &[
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(&[1, 1]), "stride of the window per axis"),
        AttrDef::new("padding", AttrKind::Ints, Default::Ints(&[0, 0]),
            "zero padding: one value, one per axis, or all values before the axes followed by all values after"),
        AttrDef::new("kernel_size", AttrKind::Ints, Default::Ints(&[3, 3]), "taps per axis"),
        AttrDef::new("channels", AttrKind::Int, Default::None, "number of output channels; derived from the weight if None"),
        bits("activation_bits", "number of bits of an element of data"),
        bits("weight_bits", "number of bits of an element of weight"),
        AttrDef::new("data_layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes of data and result"),
        AttrDef::new("kernel_layout", AttrKind::Str, Default::Str("OIHW"), "order of the kernel's axes"),
        PACK_DTYPE,
        AttrDef::new("out_dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of data if empty"),
        UNIPOLAR,
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: conv_type,
    reference: Some(conv),
    flops: |cost| {
        let taps: i64 = cost.params.ints("kernel_size").iter().product();
        let channels = cost.args.first().and_then(Type::as_tensor).and_then(|t| t.dims.get(1)).map_or(1, Dim::number);
        cost.ret_len().saturating_mul(2 * taps.max(1) as u64).saturating_mul(channels as u64)
    },
}

fn conv_type(relation: &Relation<'_>) -> TypeResult {
    let (data, weight) = (relation.tensor(0)?, relation.tensor(1)?);
    let positions = spatial::layout(relation, "data_layout", "NCHW", "NCHW")?;
    let kernel = spatial::layout(relation, "kernel_layout", "OIHW", "OIHW")?;
    if !data.dtype.is_int() || !weight.dtype.is_int() || data.dims.len() != 4 || weight.dims.len() != 4 {
        let [data, weight] = [&relation.args[0], &relation.args[1]];
        return Err(
            relation.mismatch(format!("expected integers of rank 4 that are not packed, found {data} and {weight}"))
        );
    }
    let (_, word) = word_bits(relation, "pack_dtype")?;
    check_bits(relation, "activation_bits")?;
    check_bits(relation, "weight_bits")?;
    let channels = relation.same_dim("input channels", &data.dims[positions[1]], &weight.dims[kernel[1]])?;
    packed_dim(relation, &channels, word)?;
    let mut filters = weight.dims[kernel[0]].clone();
    if let Some(channels) = relation.params.opt_int("channels") {
        filters = relation.same_dim("channels and weight", &Dim::Fixed(channels.max(0) as usize), &filters)?;
    }
    let (strides, taps) =
        (spatial::per_axis(relation, "strides", 2, 1)?, spatial::per_axis(relation, "kernel_size", 2, 1)?);
    let pads = spatial::padding(relation, 2)?;
    let mut dims = data.dims.to_vec();
    dims[positions[1]] = filters;
    for i in 0..2 {
        let tap =
            relation.same_dim("kernel_size and weight", &Dim::Fixed(taps[i] as usize), &weight.dims[kernel[2 + i]])?;
        let window = Window { stride: strides[i], dilation: 1, pads: pads[i] };
        dims[positions[2 + i]] = window.output_size(relation, &data.dims[positions[2 + i]], &tap, false)?;
    }
    Ok(Type::tensor_of(product_dtype(relation, data.dtype, weight.dtype)?, dims))
}

fn conv(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = params.string("data_layout");
    let data = CanonicalDims::new(inputs[0].shape, &layout, "NC");
    let kernel = CanonicalDims::new(inputs[1].shape, &params.string("kernel_layout"), "OI");
    let result = CanonicalDims::new(outputs[0].shape, &layout, "NC");
    let window = WindowParams::new(&params, 2);
    let weight_bits = params.int("weight_bits") as usize;
    let x = low_bits(&inputs[0], params.int("activation_bits") as usize);
    let w = weights(&params, low_bits(&inputs[1], weight_bits), weight_bits);
    let mut out = Writer::new(&mut outputs[0]);
    let mut ticks = Ticks::every(kernel.size[1..].iter().product());
    for (n, o) in (0..result.size[0]).flat_map(|n| (0..result.size[1]).map(move |o| (n, o))) {
        each(result.spatial(), |position| {
            if ticks.is_requested() {
                return;
            }
            let mut sum = 0;
            for i in 0..kernel.size[1] {
                each(kernel.spatial(), |tap| {
                    if let Some(index) = window.tap(position, tap, data.spatial()) {
                        sum += i128::from(x[data.at(n, i, index)] * w[kernel.at(o, i, tap)]);
                    }
                });
            }
            out.set_int(result.at(n, o, position), sum);
        });
    }
    Ok(())
}
