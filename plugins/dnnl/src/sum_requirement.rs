//! Requirements on the library's implementations for exact integer sums.

use crate::ir::{CompileError, RegionIr, Result, Val};
use crate::library::{OneDnnError, PrimitiveDesc};
use byoc_plugin_api::{DType, RefusalCode};

/// Bound below which sums are exact in 32-bit floats.
pub const F32_EXACT_BOUND: i64 = 1 << 24;

/// Returns true if the CPU multiplies bytes and accumulates in `int32`. Other CPUs accumulate pairs in 16 bits, which
/// saturate.
fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return [is_x86_feature_detected!("avx512vnni"), is_x86_feature_detected!("avxvnni")].contains(&true);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Requirement on implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumRequirement {
    /// None: no integers are summed.
    Any,
    /// Must multiply bytes without saturating.
    Exact,
    /// Additionally, must not pass sums through floats.
    Wide,
}

impl SumRequirement {
    /// Returns the requirement for the operator that defines this value.
    ///
    /// # Errors
    /// Sums of products of bytes, on a CPU that has no instructions for them.
    pub fn of(ir: &RegionIr, value: Val) -> Result<SumRequirement> {
        match ir.get(value).dtype {
            DType::F32 => Ok(SumRequirement::Any),
            _ if !has_vnni() => {
                let detail = "this CPU has no instructions for products of bytes (AVX512_VNNI or AVX_VNNI)";
                Err(CompileError::new(RefusalCode::Unavailable, detail))
            }
            _ if ir.wide_sums.contains(&value) => Ok(SumRequirement::Wide),
            _ => Ok(SumRequirement::Exact),
        }
    }

    /// Returns the implementation if it meets the requirement.
    ///
    /// # Errors
    /// The reason if it does not.
    pub fn check(self, desc: PrimitiveDesc) -> Result<PrimitiveDesc, OneDnnError> {
        let name = desc.implementation();
        let multiplies = name.contains("vnni") || name.contains("amx");
        match self {
            SumRequirement::Any => Ok(desc),
            SumRequirement::Exact | SumRequirement::Wide if !multiplies => {
                let text =
                    format!("products of bytes that saturate: oneDNN would use {name}, without VNNI instructions");
                Err(OneDnnError::Unsupported(text))
            }
            SumRequirement::Wide if !name.starts_with("brg") => {
                let text = format!("sums that may reach 2^24, which oneDNN's {name} rounds to 32-bit floats");
                Err(OneDnnError::Unsupported(text))
            }
            SumRequirement::Exact | SumRequirement::Wide => Ok(desc),
        }
    }
}
