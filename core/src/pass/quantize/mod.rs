//! Passes over quantized modules.

mod calls;
mod fake_quantization_to_integer;
mod fuse_dequantize;
mod fuse_requantize;
mod qnn_canonicalize;
mod tabulate;

pub use fake_quantization_to_integer::fake_quantization_to_integer;
pub use fuse_requantize::fuse_requantize;
pub use qnn_canonicalize::qnn_canonicalize;
pub use tabulate::tabulate;
