//! Kernels of quantized operators on 8-bit integers.
//!
//! Each kernel produces the same bits as the naive reference of its operator: integer accumulation is exact modulo 2^32
//! in any order, and rescaling is computed by the same formulas.

mod binary;
mod concatenate;
mod contraction;
mod depthwise;
mod dynamic;
mod elementwise;
mod engine;
mod epilogue;
mod lookup;
mod pool;
mod product;
mod softmax;
mod table;
mod tile;
mod transpose;
mod weights;

pub(crate) use dynamic::{quantize, range};
pub(crate) use product::RowProduct;
