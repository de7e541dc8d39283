//! Instruction sets of x86-64 that code for this machine may use. The variable `BYOC_MAX_ISA` names the highest one:
//! `avx2`, or `baseline` for none beyond x86-64 itself.

/// Returns true if the processor's AVX-512 may be used.
pub fn permits_avx512() -> bool {
    !matches!(highest().as_deref(), Some("avx2" | "baseline"))
}

/// Returns true if the processor's AVX2 may be used.
pub fn permits_avx2() -> bool {
    highest().as_deref() != Some("baseline")
}

fn highest() -> Option<String> {
    std::env::var("BYOC_MAX_ISA").ok()
}
