//! Quantized operators: 8-bit convolutions and matrix products, and the integer operators on their accumulators.
//!
//! **Integer results are exact**: a region produces exactly the bits that the operator definitions require. The library
//! accumulates 8-bit products in `int32` without rounding, but computes everything after the sums in 32-bit floats,
//! which represent integers exactly only up to 2^24 and round the products of scales. So the work is divided:
//!
//! * the library multiplies and accumulates. If the model requantizes in floats, as ONNX does, the library does this too
//!   and writes bytes (`anchors::requantize`);
//! * floats cannot express a requantization in 64-bit fixed point. Then the library writes the `int32` sums, and one
//!   hand-written loop (`epilogue`) computes everything from these sums to the next convolution: biases,
//!   requantizations, bounds, residual sums, conversions. [`Stage`] defines the semantics of each of these operators;
//! * a residual sum of bytes, or another chain between two products, is such a loop over bytes. Where floats give the
//!   same result for every byte, which is tested when the region is compiled, the loop uses them.
//!
//! Even `int32` sums pass through floats where the library compensates for signed data.
//! [`SumRequirement`](crate::sum_requirement::SumRequirement) restricts the choice to implementations that multiply
//! 8-bit integers without saturating (VNNI), and, if the weights allow sums of 2^24 or more, write the sums of unsigned
//! data unchanged. In that case, signed data is converted to unsigned data: `x + 128`, with a bias that compensates for
//! the offset.
//!
//! The zero point of the data is folded into a bias (`Σ (x - z) * w = Σ x * w - z * Σ w`), and padding, which
//! represents zero, is explicit if the zero point is not 0.

pub mod avg_pool;
pub mod epilogue;
pub mod ratio;
pub mod stage;

pub use avg_pool::{IntAvgPool, IntAvgPoolKernel};
pub use epilogue::Epilogue;
pub use stage::Stage;
