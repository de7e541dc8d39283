//! Device parameters: one flat JSON object with VTA's own keys, so existing `vta_config.json` files are accepted.

use crate::memory::Memory;
use serde::{Deserialize, Serialize};

/// Device parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Board or simulator.
    #[serde(rename = "TARGET")]
    pub target: String,
    /// Hardware version, which determines the instruction set revision.
    #[serde(rename = "HW_VER")]
    pub hw_ver: String,
    /// Base-2 logarithm of the activation width in bits.
    #[serde(rename = "LOG_INP_WIDTH")]
    pub log_inp_width: u32,
    /// Base-2 logarithm of the weight width in bits.
    #[serde(rename = "LOG_WGT_WIDTH")]
    pub log_wgt_width: u32,
    /// Base-2 logarithm of the accumulator width in bits.
    #[serde(rename = "LOG_ACC_WIDTH")]
    pub log_acc_width: u32,
    /// Base-2 logarithm of the number of rows per activation element.
    #[serde(rename = "LOG_BATCH")]
    pub log_batch: u32,
    /// Base-2 logarithm of the number of channels per element.
    #[serde(rename = "LOG_BLOCK")]
    pub log_block: u32,
    /// Base-2 logarithm of the micro-operation memory size in bytes.
    #[serde(rename = "LOG_UOP_BUFF_SIZE")]
    pub log_uop_buff_size: u32,
    /// Base-2 logarithm of the activation memory size in bytes.
    #[serde(rename = "LOG_INP_BUFF_SIZE")]
    pub log_inp_buff_size: u32,
    /// Base-2 logarithm of the weight memory size in bytes.
    #[serde(rename = "LOG_WGT_BUFF_SIZE")]
    pub log_wgt_buff_size: u32,
    /// Base-2 logarithm of the accumulator memory size in bytes.
    #[serde(rename = "LOG_ACC_BUFF_SIZE")]
    pub log_acc_buff_size: u32,
    /// Number of usable micro-operations, if fewer than the memory size allows.
    #[serde(rename = "UOP_ENTRIES", default, skip_serializing_if = "Option::is_none")]
    pub uop_entries: Option<u32>,
    /// Support for loading bytes into accumulators; `None` for the default of the target.
    #[serde(rename = "ACC_8BIT", default, skip_serializing_if = "Option::is_none")]
    pub acc_8bit: Option<bool>,
    /// True if the vector unit supports multiplication.
    #[serde(rename = "MUL", default)]
    pub mul: bool,
    /// Profile of the cycle model.
    #[serde(rename = "PROFILE", default)]
    pub profile: Profile,
}

/// Memory and instruction timing profile of the cycle model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Pynq-Z1 at 100 MHz: 3.5 bytes per cycle.
    #[default]
    Pynq,
    /// Cycle-accurate simulation of the Chisel design: 8 bytes per cycle.
    Tsim,
}

/// Instruction set revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// Hardware 0.0.1: memory IDs and vector operation codes have 2 bits.
    First,
    /// Hardware 0.0.2: memory IDs and vector operation codes have 3 bits.
    Second,
}

/// Error for a parameter that the instruction set or the hardware does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig(pub String);

impl std::fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidConfig {}

/// Maximum element size in bytes: a page of driver memory.
const MAX_ELEMENT: u64 = 4096;

impl Default for Config {
    /// Returns the parameters of VTA's sample configurations: `1x16_i8w8a32_15_15_18_17`.
    fn default() -> Config {
        Config {
            target: "sim".into(),
            hw_ver: "0.0.2".into(),
            log_inp_width: 3,
            log_wgt_width: 3,
            log_acc_width: 5,
            log_batch: 0,
            log_block: 4,
            log_uop_buff_size: 15,
            log_inp_buff_size: 15,
            log_wgt_buff_size: 18,
            log_acc_buff_size: 17,
            uop_entries: None,
            acc_8bit: None,
            mul: false,
            profile: Profile::default(),
        }
    }
}

impl Config {
    /// Parses and validates a configuration.
    ///
    /// # Errors
    /// If the text is not JSON, a key is missing, or a parameter does not fit the instruction set.
    pub fn from_json(text: &str) -> Result<Config, InvalidConfig> {
        let config: Config =
            serde_json::from_str(text).map_err(|error| InvalidConfig(format!("invalid VTA configuration: {error}")))?;
        config.check()?;
        Ok(config)
    }

    /// Checks that the parameters fit the instruction set.
    ///
    /// # Errors
    /// If a parameter does not fit. The error names the first such parameter.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let fail = |message: String| Err(InvalidConfig(message));
        let widths = [self.log_inp_width, self.log_wgt_width, self.log_acc_width];
        if widths != [3, 3, 5] {
            let [inp, wgt, acc] = widths;
            return fail(format!(
                "expected widths of 8, 8 and 32 bits (LOG_*_WIDTH 3, 3, 5), found LOG_*_WIDTH {inp}, {wgt}, {acc}"
            ));
        }
        if !["0.0.1", "0.0.2"].contains(&self.hw_ver.as_str()) {
            return fail(format!("HW_VER: expected 0.0.1 or 0.0.2, found {}", self.hw_ver));
        }
        let sizes = [
            ("LOG_BATCH", self.log_batch),
            ("LOG_BLOCK", self.log_block),
            ("LOG_UOP_BUFF_SIZE", self.log_uop_buff_size),
            ("LOG_INP_BUFF_SIZE", self.log_inp_buff_size),
            ("LOG_WGT_BUFF_SIZE", self.log_wgt_buff_size),
            ("LOG_ACC_BUFF_SIZE", self.log_acc_buff_size),
        ];
        if let Some((key, value)) = sizes.into_iter().find(|(_, value)| *value > 24) {
            return fail(format!("{key}: expected at most 24, found {value}"));
        }
        let memories = [Memory::Uop, Memory::Inp, Memory::Wgt, Memory::Acc];
        for memory in memories {
            let (log_bytes, log_element) = self.log_sizes(memory);
            if log_bytes < log_element + 1 {
                return fail(format!(
                    "LOG_{memory}_BUFF_SIZE: expected at least two elements of {} bytes, found {} bytes",
                    1u64 << log_element,
                    1u64 << log_bytes
                ));
            }
            if 1u64 << log_element > MAX_ELEMENT {
                let elements = 1u64 << log_element;
                return fail(format!(
                    "LOG_{memory}_BUFF_SIZE: expected elements of at most {MAX_ELEMENT} bytes, found {elements}"
                ));
            }
            if self.log_depth(memory) > 16 {
                return fail(format!(
                    "LOG_{memory}_BUFF_SIZE: expected at most 2^16 elements, found 2^{}",
                    self.log_depth(memory)
                ));
            }
        }
        let [uop, inp, wgt, acc] = memories.map(|memory| self.log_depth(memory));
        let field_widths = [
            ("a micro-operation", acc + inp.max(acc) + wgt, 32),
            ("word 0 of GEMM and ALU", 3 + 4 + 1 + uop + (uop + 1) + 14 + 14, 64),
            ("word 1 of GEMM", 2 * acc + 2 * inp + 2 * wgt, 64),
            ("word 1 of ALU", 4 * acc + 3 + 1 + 16, 64),
        ];
        match field_widths.into_iter().find(|(_, bits, limit)| bits > limit) {
            Some((subject, bits, limit)) => fail(format!("{subject}: expected at most {limit} bits, found {bits}")),
            None => Ok(()),
        }
    }

    /// Returns the name of the configuration, as used in bitstream names.
    pub fn name(&self) -> String {
        format!(
            "{}x{}_i{}w{}a{}_{}_{}_{}_{}",
            self.batch(),
            self.block(),
            1 << self.log_inp_width,
            1 << self.log_wgt_width,
            1 << self.log_acc_width,
            self.log_uop_buff_size,
            self.log_inp_buff_size,
            self.log_wgt_buff_size,
            self.log_acc_buff_size
        )
    }

    /// Tests whether the device loads bytes into accumulators, as the functional simulator and the OpenCL design do.
    pub fn has_acc_8bit(&self) -> bool {
        let is_of_target = ["sim", "intelfocl"].contains(&self.target.as_str());
        self.revision() == Revision::Second && self.acc_8bit.unwrap_or(is_of_target)
    }

    /// Returns the instruction set revision.
    pub fn revision(&self) -> Revision {
        if self.hw_ver == "0.0.1" { Revision::First } else { Revision::Second }
    }

    /// Returns the number of rows per activation element.
    pub fn batch(&self) -> usize {
        1 << self.log_batch
    }

    /// Returns the number of channels per element.
    pub fn block(&self) -> usize {
        1 << self.log_block
    }

    /// Returns the base-2 logarithms of a memory's size and of its element size, both in bytes.
    fn log_sizes(&self, memory: Memory) -> (u32, u32) {
        match memory {
            Memory::Uop => (self.log_uop_buff_size, 2),
            Memory::Inp => (self.log_inp_buff_size, self.log_batch + self.log_block + self.log_inp_width - 3),
            Memory::Wgt => (self.log_wgt_buff_size, 2 * self.log_block + self.log_wgt_width - 3),
            Memory::Acc => (self.log_acc_buff_size, self.log_batch + self.log_block + self.log_acc_width - 3),
            Memory::Out | Memory::Acc8 => (
                self.log_acc_buff_size + self.log_inp_width - self.log_acc_width,
                self.log_batch + self.log_block + self.log_inp_width - 3,
            ),
        }
    }

    /// Returns the base-2 logarithm of the number of elements in a memory.
    pub fn log_depth(&self, memory: Memory) -> u32 {
        let (bytes, element) = self.log_sizes(memory);
        bytes.saturating_sub(element)
    }

    /// Returns the number of elements in a memory.
    pub fn depth(&self, memory: Memory) -> usize {
        1 << self.log_depth(memory)
    }

    /// Returns the element size of a memory in bytes, which is also the unit of DRAM addresses in its transfers.
    pub fn element_bytes(&self, memory: Memory) -> usize {
        1 << self.log_sizes(memory).1
    }

    /// Returns the number of micro-operations that the device can hold.
    pub fn uop_entries(&self) -> usize {
        self.uop_entries.map_or(usize::MAX, |entries| entries as usize).min(self.depth(Memory::Uop))
    }
}
