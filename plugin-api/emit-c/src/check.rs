//! Checks for unsupported attributes and operands of anchor operators.

use crate::anchors::Anchor;
use crate::layout::layout_is_known;
use crate::literals::floats;
use crate::rows::MAX_ROW;
use byoc_plugin_api::RefusalCode;
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::resize::Resize;

/// Checks the attributes and operands of an anchor operator.
///
/// # Errors
/// If code generation does not support an attribute or an operand.
pub fn check_anchor(ir: &RegionIr<'_>, op: &Op<'_>, kind: Anchor) -> Result<(), (RefusalCode, String)> {
    let refuse = |code, detail: String| Err((code, detail));
    let shape = ir.shape(op.inputs[0]);
    let negative_padding = || op.attrs().ints("padding").unwrap_or_default().into_iter().find(|&pad| pad < 0);
    match kind {
        Anchor::Convolution => {
            if !layout_is_known(op) {
                let detail = format!(
                    "unsupported layouts: data {}, kernel {}",
                    op.attrs().text("data_layout"),
                    op.attrs().text("kernel_layout")
                );
                return refuse(RefusalCode::UnsupportedLayout, detail);
            }
            if let Some(pad) = negative_padding() {
                return refuse(
                    RefusalCode::UnsupportedAttr,
                    format!("attribute padding: expected integers >= 0, found {pad}"),
                );
            }
            let has_non_finite_weight = || {
                let weight = ir.constant(op.inputs[1]);
                weight.is_some_and(|(_, weight)| floats(weight).iter().any(|value| !value.is_finite()))
            };
            if op.name == "nn.conv2d_transpose" && has_non_finite_weight() {
                let detail =
                    "expected finite weights, found an infinity or a NaN: its product with zero padding is NaN";
                return refuse(RefusalCode::UnsupportedAttr, detail.into());
            }
        }
        Anchor::Pool => {
            if !["NCHW", "NHWC", "NCW", "NWC", ""].contains(&op.attrs().text("layout")) {
                return refuse(
                    RefusalCode::UnsupportedLayout,
                    format!(
                        "attribute layout: expected NCHW, NHWC, NCW or NWC, found \"{}\"",
                        op.attrs().text("layout")
                    ),
                );
            }
            if let Some(pad) = negative_padding() {
                return refuse(
                    RefusalCode::UnsupportedAttr,
                    format!("attribute padding: expected integers >= 0, found {pad}"),
                );
            }
        }
        Anchor::Normalize => {
            let rank = shape.len();
            let Some(axis) = op.attrs().axis("axis", -1, rank) else {
                let axis = op.attrs().int("axis", -1);
                let detail = format!("attribute axis: expected an axis of a tensor of rank {rank}, found {axis}");
                return refuse(RefusalCode::UnsupportedAttr, detail);
            };
            if shape[axis] > MAX_ROW {
                let detail = format!("expected rows of at most {MAX_ROW} elements, found {}", shape[axis]);
                return refuse(RefusalCode::ResourceLimit, detail);
            }
        }
        Anchor::Resize => {
            if let Err(detail) = Resize::new(op) {
                return refuse(RefusalCode::UnsupportedAttr, detail);
            }
            if !["NCHW", "NHWC"].contains(&op.attrs().text("layout")) {
                return refuse(
                    RefusalCode::UnsupportedLayout,
                    format!("attribute layout: expected NCHW or NHWC, found \"{}\"", op.attrs().text("layout")),
                );
            }
        }
        Anchor::Gather => {
            let batch_dims = op.attrs().int("batch_dims", 0);
            if batch_dims != 0 {
                return refuse(
                    RefusalCode::UnsupportedAttr,
                    format!("attribute batch_dims: expected 0, found {batch_dims}"),
                );
            }
        }
        Anchor::Pad => {
            let mode = op.attrs().text("pad_mode");
            if !["", "constant", "edge", "reflect"].contains(&mode) {
                return refuse(
                    RefusalCode::UnsupportedAttr,
                    format!("attribute pad_mode: expected constant, edge or reflect, found \"{mode}\""),
                );
            }
        }
        Anchor::MatrixProduct | Anchor::Reduce | Anchor::Concatenate => {}
    }
    Ok(())
}
