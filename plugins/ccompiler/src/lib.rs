//! The C compiler as a backend.
//!
//! A region becomes one file of C, which the system's compiler makes into a shared object. The way of a region:
//!
//! | file | what it does |
//! |---|---|
//! | `support` | which operators are taken, and why others are not |
//! | `program` | opens composites, numbers values, knows which operators only look at data in another way |
//! | `group` | fusion: which operators share a loop nest |
//! | `lower` | one phase of code per group; `anchors` says whose code that is |
//! | `lowering` | where every tensor is stored, and the loop body of a group; `layout` how convolutions lie over their data |
//! | `contraction`, `convolution`, `window`, `rows`, `moves`, `elementwise` | the code of each kind of operator |
//! | `text` | small pieces of C |
//! | `source`, `prelude/*.c` | the whole file; the functions that every region shares |
//! | `process` | ends what does not end |
//! | `toolchain`, `cache` | runs the compiler; keeps objects by content |
//! | `blob`, `loader` | what is shipped, and how it is loaded and run |
//! | `scratch` | folders of this process alone, to compile in and to load from |
//!
//! The C is written for people too: one function per phase, a comment for each operator with the nodes of the model that
//! it comes from, shapes as constants, no macros beyond the prelude. It adapts to the vector width by `BYOC_VL`, so the same
//! file compiles for any machine; the shipped object is a variant of it for some CPU features.

mod anchors;
mod backend;
mod blob;
mod cache;
mod contraction;
mod convolution;
mod cpu;
mod elementwise;
mod fused;
mod group;
mod layout;
mod loader;
mod lower;
mod lowering;
mod moves;
mod process;
mod program;
mod rows;
mod scratch;
mod source;
mod support;
mod text;
mod toolchain;
mod view;
mod window;

#[cfg(test)]
mod tests;

byoc_plugin_api::register!(|context, registry| {
    registry.codegen("ccompiler", backend::CCompiler { services: context.services.clone() });
    registry.loader("ccompiler", loader::ObjectLoader);
    Ok(())
});

byoc_plugin_api::declare_plugin!("ccompiler", env!("CARGO_PKG_VERSION"));
