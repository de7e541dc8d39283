#![no_main]

byoc_fuzz_targets::target!("blob_vta");
