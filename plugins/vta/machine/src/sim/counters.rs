//! Counters of VTA's own simulator, by its names.

use serde::{Deserialize, Serialize};

/// Bytes moved and steps computed by a stream. Padding is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Bytes of activations that were loaded.
    pub inp_load_nbytes: u64,
    /// Bytes of weights that were loaded.
    pub wgt_load_nbytes: u64,
    /// Bytes of accumulators that were loaded.
    pub acc_load_nbytes: u64,
    /// Bytes of micro-operations that were loaded.
    pub uop_load_nbytes: u64,
    /// Bytes of results that were stored.
    pub out_store_nbytes: u64,
    /// Steps of the matrix unit, without resets.
    pub gemm_counter: u64,
    /// Steps of the vector unit.
    pub alu_counter: u64,
}
