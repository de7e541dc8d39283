//! `cargo xtask check-cuda`: compiles the CUDA kernels of the file tests of generated code, without a GPU.

use crate::process::{cargo, install_packages, run, target_dir};

/// The runtime compiler, and the headers that kernels include.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79"];

/// Fetches the runtime compiler into the target directory if it is missing, and runs the test.
pub fn check() -> Result<(), String> {
    let folder = target_dir().join("cuda");
    let library = folder.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    install_packages(&folder, &PACKAGES)?;
    let mut test = cargo(&["test", "--workspace", "--test", "host", "--", "--ignored", "cuda_kernels_compile"]);
    run(test.env("BYOC_NVRTC", &library).env("BYOC_CUDA_INCLUDE", folder.join("nvidia/cuda_runtime/include")))
}
