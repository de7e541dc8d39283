//! CPU features of this machine, under the names that compilers use.

/// Returns the sorted names of the CPU features that native code may use.
pub fn features() -> Vec<String> {
    let mut detected_features: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! probe {
            ($($name:tt),*) => {
                $(if std::arch::is_x86_feature_detected!($name) { detected_features.push($name); })*
            };
        }
        probe!(
            "sse4.2",
            "popcnt",
            "avx",
            "avx2",
            "bmi1",
            "bmi2",
            "f16c",
            "fma",
            "avx512f",
            "avx512bw",
            "avx512cd",
            "avx512dq",
            "avx512vl",
            "avx512vnni",
            "avx512bf16",
            "avx512fp16",
            "avx512vbmi",
            "avxvnni"
        );
    }
    detected_features.sort_unstable();
    detected_features.into_iter().map(String::from).collect()
}
