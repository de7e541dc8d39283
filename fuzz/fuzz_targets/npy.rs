#![no_main]

byoc_fuzz_targets::target!("npy");
