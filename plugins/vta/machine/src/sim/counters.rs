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

impl Counters {
    /// Returns the counters with their names.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("inp_load_nbytes", self.inp_load_nbytes),
            ("wgt_load_nbytes", self.wgt_load_nbytes),
            ("acc_load_nbytes", self.acc_load_nbytes),
            ("uop_load_nbytes", self.uop_load_nbytes),
            ("out_store_nbytes", self.out_store_nbytes),
            ("gemm_counter", self.gemm_counter),
            ("alu_counter", self.alu_counter),
        ]
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.inp_load_nbytes += other.inp_load_nbytes;
        self.wgt_load_nbytes += other.wgt_load_nbytes;
        self.acc_load_nbytes += other.acc_load_nbytes;
        self.uop_load_nbytes += other.uop_load_nbytes;
        self.out_store_nbytes += other.out_store_nbytes;
        self.gemm_counter += other.gemm_counter;
        self.alu_counter += other.alu_counter;
    }
}
