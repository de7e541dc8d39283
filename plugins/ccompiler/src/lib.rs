//! C compiler backend.
//!
//! A region is emitted as one C file, which the system's compiler turns into a shared object. The modules:
//!
//! | file | purpose |
//! |---|---|
//! | `backend` | entries of the code generator |
//! | `support` | supported operators, and refusal reasons for all other operators |
//! | [`byoc_loops`] | the generated C: fusion, schedules, code generation per operator kind |
//! | `toolchain` | runs the compiler, with a time limit; objects are cached by content |
//! | `blob`, `loader` | blob format; loads and runs blobs |
//! | `scratch` | private temporary directories to compile in and to load from |
//!
//! The generated C is meant to be read: one function per phase, a comment per operator with the operator's nodes in the
//! model, shapes as constants, no macros beyond the prelude. The vector width is the macro `BYOC_VL`, so the same file
//! compiles for any machine; the object in the blob is built for one set of CPU features.

mod backend;
mod blob;
mod cpu;
mod loader;
mod scratch;
mod support;
mod toolchain;

#[cfg(test)]
mod tests;

byoc_plugin_api::register!(|context, registry| {
    registry.codegen("ccompiler", backend::CCompiler { services: context.services.clone() });
    registry.loader("ccompiler", loader::ObjectLoader);
    Ok(())
});

byoc_plugin_api::declare_plugin!("ccompiler", env!("CARGO_PKG_VERSION"));
