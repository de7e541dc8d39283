//! Requirements on the library's implementations for exact integer sums.

use crate::cpu::has_vnni;
use crate::ir::{CompileError, RegionIr, Result, Val};
use crate::library::{Attr, OneDnnError, PrimitiveDesc};
use byoc_plugin_api::{DType, RefusalCode};

/// Bound below which integer sums are exact in float32.
pub const F32_EXACT_BOUND: i64 = 1 << 24;

/// Requirement on the implementation of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumRequirement {
    /// No requirement: no integers are accumulated.
    Any,
    /// Requires accumulation of 8-bit products without saturation.
    Exact,
    /// Additionally requires that sums do not pass through floats.
    Wide,
}

impl SumRequirement {
    /// Returns the requirement for the operator that defines this value.
    ///
    /// # Errors
    /// If the operator accumulates 8-bit products and the CPU lacks int8 dot-product instructions.
    pub fn of(ir: &RegionIr, value: Val) -> Result<SumRequirement> {
        match ir.get(value).dtype {
            DType::F32 => Ok(SumRequirement::Any),
            _ if !has_vnni() => {
                let detail =
                    "expected a CPU with int8 dot-product instructions, found neither AVX512_VNNI nor AVX_VNNI";
                Err(CompileError::new(RefusalCode::Unavailable, detail))
            }
            _ if ir.wide_sums.contains(&value) => Ok(SumRequirement::Wide),
            _ => Ok(SumRequirement::Exact),
        }
    }

    /// Returns `desc`, which was made with the attributes `attr`, if its implementation meets the requirement.
    ///
    /// # Errors
    /// If the implementation saturates 8-bit products, or rounds sums to floats although the requirement excludes it.
    pub fn check(self, desc: PrimitiveDesc, attr: &Attr) -> Result<PrimitiveDesc, OneDnnError> {
        let name = desc.implementation();
        let multiplies = name.contains("vnni") || name.contains("amx");
        match self {
            SumRequirement::Any => Ok(desc),
            SumRequirement::Exact | SumRequirement::Wide if !multiplies => {
                let text = format!(
                    "expected an implementation with VNNI instructions, found {name}, which saturates 8-bit products"
                );
                Err(OneDnnError::Unsupported(text))
            }
            // Post-ops are computed in floats in any case.
            SumRequirement::Wide if !name.starts_with("brg") && !attr.has_post_ops() => {
                let text = format!(
                    "expected an implementation that is exact for sums >= 2^24, found {name}, which rounds to float32"
                );
                Err(OneDnnError::Unsupported(text))
            }
            SumRequirement::Exact | SumRequirement::Wide => Ok(desc),
        }
    }
}
