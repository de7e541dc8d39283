//! Requirements on the library's implementations for exact integer sums.

use crate::library::{Failure, Outcome, PrimitiveDesc};
use crate::program::{Program, Reason, Taken, Val};
use byoc_plugin_api::{DType, RefusalCode};

/// Bound below which sums are exact in 32-bit floats.
pub const EXACT: i64 = 1 << 24;

/// Returns true if the CPU multiplies bytes and accumulates in `int32`. Other CPUs accumulate pairs in 16 bits, which
/// saturate.
fn cpu_multiplies() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Requirement on implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// None: no integers are summed.
    Any,
    /// Must multiply bytes without saturating.
    Exact,
    /// Additionally, must not pass sums through floats.
    Wide,
}

impl Trust {
    /// Returns the requirement for the operator that defines this value.
    ///
    /// # Errors
    /// Sums of products of bytes, on a CPU that has no instructions for them.
    pub fn of(program: &Program, value: Val) -> Taken<Trust> {
        match program.get(value).dtype {
            DType::F32 => Ok(Trust::Any),
            _ if !cpu_multiplies() => {
                let detail = "this CPU has no instructions for products of bytes (AVX512_VNNI or AVX_VNNI)";
                Err(Reason::new(RefusalCode::Unavailable, detail))
            }
            _ if program.wide.contains(&value) => Ok(Trust::Wide),
            _ => Ok(Trust::Exact),
        }
    }

    /// Returns the implementation if it meets the requirement.
    ///
    /// # Errors
    /// The reason if it does not.
    pub fn check(self, desc: PrimitiveDesc) -> Outcome<PrimitiveDesc> {
        let name = desc.implementation();
        let multiplies = name.contains("vnni") || name.contains("amx");
        match self {
            Trust::Any => Ok(desc),
            Trust::Exact | Trust::Wide if !multiplies => {
                let what =
                    format!("products of bytes that saturate: oneDNN would use {name}, without VNNI instructions");
                Err(Failure::NotTaken(what))
            }
            Trust::Wide if !name.starts_with("brg") => {
                let what = format!("sums that may reach 2^24, which oneDNN's {name} rounds to 32-bit floats");
                Err(Failure::NotTaken(what))
            }
            Trust::Exact | Trust::Wide => Ok(desc),
        }
    }
}
