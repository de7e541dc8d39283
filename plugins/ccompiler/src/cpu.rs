//! CPU features of this machine, which are part of the cache key of native code.

use byoc_plugin_support::isa;

/// Returns the compiler's flag for the processor whose code is generated.
pub fn target_flag() -> &'static str {
    match (isa::permits_avx512(), isa::permits_avx2()) {
        (true, _) => "-march=native",
        (_, true) => "-march=x86-64-v3",
        _ => "-march=x86-64",
    }
}

/// Returns the features that the compiler may use on this machine, sorted.
pub fn features() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! detect {
            ($($name:tt)*) => {
                $(if std::arch::is_x86_feature_detected!($name) {
                    names.push($name.to_owned());
                })*
            };
        }
        detect! {
            "sse3" "ssse3" "sse4.1" "sse4.2" "sse4a" "popcnt" "lzcnt" "bmi1" "bmi2" "avx" "avx2" "fma" "f16c"
            "avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl" "avx512ifma" "avx512vbmi" "avx512vbmi2"
            "avx512vnni" "avx512bitalg" "avx512vpopcntdq" "avx512bf16" "gfni" "vaes" "vpclmulqdq" "adx" "movbe" "aes"
            "pclmulqdq" "sha" "tbm" "rdrand" "rdseed"
        }
    }
    names.retain(|name| {
        let is_avx512 = name.starts_with("avx512");
        let is_avx = is_avx512 || ["avx", "avx2", "fma", "f16c", "vaes", "vpclmulqdq"].contains(&name.as_str());
        (!is_avx512 || isa::permits_avx512()) && (!is_avx || isa::permits_avx2())
    });
    names.push(std::env::consts::ARCH.to_owned());
    names.sort();
    names
}
