//! libFuzzer entry points of the fuzz targets.

use byoc::io::random::Random;
use byoc_fuzz::driver::execute;
pub use libfuzzer_sys;

/// Runs a target on one input.
///
/// # Panics
/// If the target reports a violation.
pub fn run(name: &str, bytes: &[u8]) {
    let target = byoc_fuzz::target(name).unwrap_or_else(|| panic!("expected the name of a fuzz target, found {name}"));
    if let Err(message) = execute(target, bytes) {
        panic!("{message}");
    }
}

/// Mutates an input in place, with the target's format-specific mutation, and returns the new length.
pub fn mutate(name: &str, data: &mut [u8], size: usize, seed: u32) -> usize {
    let target = byoc_fuzz::target(name).unwrap_or_else(|| panic!("expected the name of a fuzz target, found {name}"));
    let mut random = Random::new(u64::from(seed));
    // With an empty corpus, libFuzzer starts with a line feed, which is replaced with a seed here. Artifact
    // targets, whose seeds are compiled, and targets whose inputs encode random choices have no corpus.
    let is_seeded = size < 8;
    let input = if is_seeded {
        let mut seeds = (target.seeds)();
        seeds.swap_remove(seed as usize % seeds.len())
    } else {
        data[..size].to_vec()
    };
    let bytes = if is_seeded && !input.is_empty() { input } else { (target.mutate)(&input, &mut random) };
    let size = bytes.len().min(data.len());
    data[..size].copy_from_slice(&bytes[..size]);
    size
}

/// Defines a libFuzzer target.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::run($name, bytes));
        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, _max: usize, seed: u32| {
            $crate::mutate($name, data, size, seed)
        });
    };
}
