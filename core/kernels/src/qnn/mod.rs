//! Kernels on bytes that represent real numbers.
//!
//! Each gives the same bits as its operator's naive reference: sums of products are exact modulo 2^32 in any order,
//! and rescaling is computed by the same formulas.

mod contraction;
mod elementwise;
mod engine;
mod epilogue;
mod lookup;
mod pool;
mod tile;
mod transpose;
mod weights;
