//! Counters with the names of VTA's own simulator.

use serde::{Deserialize, Serialize};

/// Bytes moved and steps executed by a stream. Padding is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Number of activation bytes loaded.
    pub inp_load_nbytes: u64,
    /// Number of weight bytes loaded.
    pub wgt_load_nbytes: u64,
    /// Number of accumulator bytes loaded.
    pub acc_load_nbytes: u64,
    /// Number of micro-operation bytes loaded.
    pub uop_load_nbytes: u64,
    /// Number of result bytes stored.
    pub out_store_nbytes: u64,
    /// Number of matrix unit steps, excluding resets.
    pub gemm_counter: u64,
    /// Number of vector unit steps.
    pub alu_counter: u64,
}

impl Counters {
    /// Returns the counters with their names.
    pub fn by_name(&self) -> [(&'static str, u64); 7] {
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
