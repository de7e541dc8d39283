//! Dispatch on CPU features.

use crate::library::{ISA_BF16, ISA_VNNI, onednn};
use byoc_plugin_support::isa::permits_avx512;

/// Returns true if the CPU supports AVX-512, whose vectors hold 16 `float32` values.
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return permits_avx512() && is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Returns true if the library uses bfloat16 dot-product instructions. Without them it emulates bfloat16, which is slower
/// than `float32`.
pub fn has_bf16() -> bool {
    onednn().is_ok_and(|library| library.isa & ISA_BF16 != 0)
}

/// Returns true if the library uses int8 dot-product instructions that accumulate in `int32` (VNNI). Without them, pairs
/// of products are accumulated in 16 bits, which saturate.
pub fn has_vnni() -> bool {
    onednn().is_ok_and(|library| ISA_VNNI.iter().any(|isa| library.isa & isa != 0))
}

/// Defines a function that returns the variant of `$code` for the widest vectors of this CPU; `$code` is inlined into
/// each variant.
macro_rules! fastest {
    ($(#[$doc:meta])* $name:ident: unsafe fn($($arg:ident: $ty:ty),* $(,)?) = $code:expr) => {
        $(#[$doc])*
        fn $name() -> unsafe fn($($ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
            unsafe fn avx512($($arg: $ty),*) {
                // SAFETY: the caller fulfills the safety requirements of `$code`.
                unsafe { $code($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            unsafe fn avx2($($arg: $ty),*) {
                // SAFETY: the caller fulfills the safety requirements of `$code`.
                unsafe { $code($($arg),*) }
            }
            unsafe fn plain($($arg: $ty),*) {
                // SAFETY: the caller fulfills the safety requirements of `$code`.
                unsafe { $code($($arg),*) }
            }
            static CHOSEN: std::sync::OnceLock<unsafe fn($($ty),*)> = std::sync::OnceLock::new();
            *CHOSEN.get_or_init(|| {
                #[cfg(target_arch = "x86_64")]
                {
                    use byoc_plugin_support::isa::{permits_avx2, permits_avx512};
                    if permits_avx512()
                        && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vl")
                    {
                        return avx512;
                    }
                    if permits_avx2() && is_x86_feature_detected!("avx2") {
                        return avx2;
                    }
                }
                plain
            })
        }
    };
}

pub(crate) use fastest;
