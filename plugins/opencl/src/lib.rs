//! OpenCL devices as a backend.
//!
//! A region becomes one OpenCL C program and a list of kernel launches. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `backend` | entries of the code generator |
//! | `support` | supported operators, and the reasons for refusing others |
//! | `lower` | a region as the kernels that [`byoc_loops`] generates |
//! | `widen` | float16 in memory, float32 in kernels |
//! | `open` | sizes for open dimensions |
//! | `program`, `blob` | compiled region, its serialized form and its checks |
//! | `device/` | OpenCL library, devices, buffers, programs, launches and their completion |
//! | `plan` | device objects of a program, and its runs |
//! | `loader` | loaded regions: one plan, or one per set of input dimensions |
//!
//! The OpenCL library is opened at run time. Without it, the plugin still loads but refuses every operator, with a hint
//! that names the install command.

mod backend;
mod blob;
mod device;
mod loader;
mod lower;
mod open;
mod plan;
mod program;
mod support;
mod widen;

byoc_plugin_api::register!(|_context, registry| {
    registry.codegen("opencl", backend::OpenCl);
    registry.loader("opencl", loader::OpenClLoader::default());
    Ok(())
});

byoc_plugin_api::declare_plugin!("opencl", env!("CARGO_PKG_VERSION"));
