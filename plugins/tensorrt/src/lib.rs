//! TensorRT for RTX as a backend: regions become serialized engines, on machines without a GPU too.
//!
//! | file | purpose |
//! |---|---|
//! | `backend` | entries of the code generator |
//! | `operators` | operators that are judged, those that count as computation |
//! | `judge` | verdicts: the parser's own, kept by operator, types and attributes |
//! | `options` | options of the user: capabilities, profiles, limits |
//! | `model` | a region as ONNX, and the parser's errors about it |
//! | `engine` | from a region to engines, one for each capability |
//! | `blob` | compiled region and its checks |
//! | `library/` | finding and opening the library; its objects, by position in their virtual tables |
//! | `cuda` | CUDA's run time, opened at run time |
//! | `memory` | memory of the device, for tensors between regions |
//! | `loader`, `region` | loaded regions, and their runs |
//!
//! The library is opened at run time. Without it the plugin still loads, and says what is missing and how to get it:
//! in `byoc plugins`, and as the reason why it takes no operator.

mod backend;
mod blob;
mod cuda;
mod engine;
mod judge;
mod library;
mod loader;
mod memory;
mod model;
mod operators;
mod options;
mod region;

#[cfg(test)]
mod tests;

byoc_plugin_api::register!(|context, registry| {
    library::set_plugin_path(&context.path);
    registry.codegen("tensorrt", backend::TensorRt::new(context.services.clone()));
    registry.loader("tensorrt", loader::EngineLoader::default());
    Ok(())
});

byoc_plugin_api::declare_plugin!("tensorrt", env!("CARGO_PKG_VERSION"));
