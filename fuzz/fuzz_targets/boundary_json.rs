#![no_main]

byoc_fuzz_targets::target!("boundary_json");
