//! OpenCL devices as a backend.
//!
//! A region becomes one program of OpenCL C and a list of launches of its kernels. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `backend` | entries of the code generator |
//! | `support`, `anchors` | supported operators, and the reasons for refusing others |
//! | `fusion` | divides the operators among kernels |
//! | `view_ops`, `layout` | views instead of copies; roles of dimensions |
//! | `expression`, `kernel` | operators as expressions; text of a kernel |
//! | `lower/` | storage, and code generation per kind of operator |
//! | `arena`, `pack` | places of intermediate results; constants in the order in which kernels read them |
//! | `widen` | float16 in memory, float32 in kernels |
//! | `open` | sizes for open dimensions |
//! | `program`, `blob` | compiled region, its serialized form and its checks |
//! | `device/` | the library, devices, buffers, programs, launches, and the wait |
//! | `plan` | objects of a program on a device, and its runs |
//! | `loader` | loaded regions: a plan, or one for each set of dimensions |
//!
//! The library is opened at run time. Without it the plugin still loads, and refuses every operator with the command that
//! installs one.

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
