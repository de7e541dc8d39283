//! Quantized operators: convolutions and products of bytes, and the integers behind their sums.
//!
//! **Integers are exact**: a region gives the bits that the operators' definitions give. The library sums products of bytes in
//! `int32` without a rounding, but whatever it computes behind the sums it computes in 32-bit floats, which hold integers up to
//! 2^24 and round products of scales. A requantization in 64-bit fixed point is out of their reach. So the work is divided:
//!
//! * the library multiplies and sums, and writes the `int32` sums;
//! * everything behind them, up to the next convolution, is one loop of the plugin's own (`finish`): biases, requantizations,
//!   bounds, residual sums, conversions. What each of these operators computes is said by [`Stage`].
//!
//! Even `int32` sums pass through floats where the library compensates for signed data. [`Trust`] says which implementations
//! are taken: those that multiply bytes without saturating (VNNI), and, where the weights allow sums of 2^24 and more, those
//! that write sums of unsigned data as they are. Signed data become unsigned for those: `x + 128`, and a bias that takes it back.
//!
//! The zero point of the data is folded into a bias (`Σ (x - z) w = Σ x w - z Σ w`), and padding, which stands for zero, is made
//! by hand where the zero point is none.

mod finish;
mod joins;
mod mean;
mod ratio;
mod real;
mod stage;
mod steps;
mod translate;
mod trust;

pub use finish::Finish;
pub use mean::{Mean, Means};
pub use stage::Stage;
pub use translate::OPERATORS;
pub use trust::Trust;
