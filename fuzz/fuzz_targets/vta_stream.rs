#![no_main]

byoc_fuzz_targets::target!("vta_stream");
