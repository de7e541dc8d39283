//! Padding, and operators that move blocks of elements.

use super::super::call::{Call, Outputs, int_vector};
use super::super::proto_parts::{int, ints, string};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::op::pad::pad_width;

pub const ROWS: &[Row] = &[
    ("dyn.nn.pad", |c| {
        let width = c.int_vector(1)?;
        let transposed = c.transpose(&width, &[1, 0]);
        let count = 2 * c.rank(0)? as i64;
        let pads = c.reshape(&transposed, &[count])?;
        pad(c, pads, 2)
    }),
    ("nn.col2im", col2im),
    ("nn.depth_to_space", |c| {
        let mode = c.params.string("mode");
        blocks(c, "DepthToSpace", vec![string("mode", &mode)])
    }),
    ("nn.mirror_pad", |c| {
        if c.params.string("mode") != "REFLECT" {
            return Err(Refusal::new("a mirror that repeats the border"));
        }
        let (x, pads) = (c.arg(0)?, pads(c)?);
        single(c.node("Pad", &[x, int_vector(&pads)], vec![string("mode", "reflect")]))
    }),
    ("nn.pad", |c| {
        let pads = pads(c)?;
        pad(c, int_vector(&pads), 1)
    }),
    ("nn.space_to_depth", |c| blocks(c, "SpaceToDepth", Vec::new())),
];

fn pads(c: &Call<'_, '_>) -> Result<Vec<i64>> {
    let widths = pad_width(&c.params).ok_or_else(|| Refusal::new("a padding that is no list of pairs"))?;
    Ok(widths.iter().map(|width| width.0).chain(widths.iter().map(|width| width.1)).collect())
}

/// Pads the data; argument `i` is the value.
fn pad(c: &mut Call<'_, '_>, pads: Operand, i: usize) -> Result<Outputs> {
    let (x, mode) = (c.arg(0)?, c.params.string("pad_mode"));
    if mode != "constant" {
        return single(c.node("Pad", &[x, pads], vec![string("mode", &mode)]));
    }
    let dtype = c.dtype(0)?;
    let value = c.scalar_arg(i, dtype)?;
    single(c.node("Pad", &[x, pads, value], Vec::new()))
}

fn blocks(c: &mut Call<'_, '_>, op: &str, mut attrs: Vec<crate::proto::AttributeProto>) -> Result<Outputs> {
    let layout = c.params.string("layout");
    let axes = super::conv::canonical(&layout, "NC", 2)?;
    let x = c.arg(0)?;
    let moved = c.transpose(&x, &axes);
    attrs.insert(0, int("blocksize", c.params.int("block_size")));
    let result = c.node(op, &[moved], attrs);
    single(c.transpose(&result, &super::conv::inverse(&axes)))
}

fn col2im(c: &mut Call<'_, '_>) -> Result<Outputs> {
    c.since(18, "Col2Im")?;
    let (x, image, block) = (c.arg(0)?, c.int_vector(1)?, c.int_vector(2)?);
    let axes = c.rank(0).map(|_| c.result().map(|ty| ty.dims.len().saturating_sub(2)))??;
    let padding = c.params.padding(axes);
    let pads: Vec<i64> = padding.iter().map(|pad| pad.0).chain(padding.iter().map(|pad| pad.1)).collect();
    let attrs = vec![
        ints("dilations", &c.params.per_axis("dilation", axes)),
        ints("pads", &pads),
        ints("strides", &c.params.per_axis("strides", axes)),
    ];
    single(c.node("Col2Im", &[x, image, block], attrs))
}
