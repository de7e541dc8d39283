//! QNN dialect: operators on integers that represent the real numbers scale * (integer - zero point).
//!
//! Names, arguments and attributes are Relay's. Scales are `float32`, zero points `int32`; each is a scalar or,
//! where the operator allows it, a vector with one element for each index on an axis.
//!
//! Intermediate `int32` arithmetic saturates: x - zero point, its product with the ratio of the scales, and the sum of
//! that product and the output's zero point are clamped to the range instead of wrapping. Accumulators are the
//! exception: a sum of products wraps.

mod binary;
mod concatenate;
mod contraction;
mod dynamic;
mod fused;
mod lookup;
pub mod numerics;
mod params;
mod pool;
mod quantize;
mod simulated;
mod unary;

pub use dynamic::Quantized;
pub use fused::fused_bounds;
pub use params::{PerAxis, default_requantization, requantization, rounding_of, scales};
pub use quantize::quantize_f32;
pub use unary::{is_elementwise, real_operator};

use super::{
    Arity, AttrDef, AttrKind, Default, Evaluation, OpDef, OpPattern, Params, ReferenceError, Relation, TypeResult,
};
