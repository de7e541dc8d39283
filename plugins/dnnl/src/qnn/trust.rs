//! Which implementations of the library give the right sums.

use crate::library::{Failure, Outcome, PrimitiveDesc};
use crate::program::{Program, Reason, Taken, Val};
use byoc_plugin_api::{DType, RefusalCode};

/// Sums below this are exact in 32-bit floats.
pub const EXACT: i64 = 1 << 24;

/// Returns true if the CPU multiplies bytes and sums the products in `int32`. Others sum two of them in 16 bits, which
/// saturate.
fn cpu_multiplies() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Which implementations give the right sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// No integers.
    Any,
    /// Those that multiply bytes without saturating.
    Exact,
    /// Those that do not take sums through floats either.
    Wide,
}

impl Trust {
    /// For the operator that gives this value.
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

    /// An implementation, unless it is none of those.
    ///
    /// # Errors
    /// In words, why it is not taken.
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
