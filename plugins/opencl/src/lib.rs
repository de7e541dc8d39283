//! OpenCL devices as a backend.
//!
//! A region becomes one OpenCL C program and a list of kernel launches. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `backend` | entries of the code generator |
//! | `support`, `anchors` | supported operators, and the reasons for refusing others |
//! | `fusion` | divides the operators among kernels |
//! | `view_ops`, `layout` | views instead of copies; roles of dimensions |
//! | `expression`, `kernel` | OpenCL C expressions for operators; kernel text |
//! | `lower/` | storage, and code generation per kind of operator |
//! | `arena`, `pack` | memory of intermediate results; packed constants |
//! | `widen` | float16 in memory, float32 in kernels |
//! | `open` | sizes for open dimensions |
//! | `program`, `blob` | compiled region, its serialized form and its checks |
//! | `device/` | OpenCL library, devices, buffers, programs, launches and their completion |
//! | `plan` | device objects of a program, and its runs |
//! | `loader` | loaded regions: one plan, or one per set of input dimensions |
//!
//! The OpenCL library is opened at run time. Without it, the plugin still loads but refuses every operator, with a hint
//! that names the install command.

mod anchors;
mod arena;
mod backend;
mod blob;
mod device;
mod expression;
mod fusion;
mod kernel;
mod layout;
mod loader;
mod lower;
mod open;
mod pack;
mod plan;
mod program;
mod support;
mod view_ops;
mod widen;

byoc_plugin_api::register!(|_context, registry| {
    registry.codegen("opencl", backend::OpenCl);
    registry.loader("opencl", loader::OpenClLoader::default());
    Ok(())
});

byoc_plugin_api::declare_plugin!("opencl", env!("CARGO_PKG_VERSION"));
