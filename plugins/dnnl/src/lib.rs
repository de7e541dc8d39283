//! oneDNN as a backend.
//!
//! A region is shipped as its graph in JSON and becomes, when it is loaded, a list of oneDNN's primitives over one arena. The way of
//! a region:
//!
//! | file | what it does |
//! |---|---|
//! | `patterns` | the pattern table |
//! | `attributes`, `translate` | Relay's operators, with their shapes worked out anew |
//! | `program`, `simplify` | a region in a few kinds of operators; GELU and its like found in what models write |
//! | `recurrent`, `cell` | the steps of an LSTM and a GRU behind their products: found, and computed |
//! | `row` | those products |
//! | `elementwise`, `curves` | functions that the library computes with too few digits; curves, for loops that become vector code |
//! | `qnn` | quantized operators: what is summed by the library, and the loop behind the sums |
//! | `fuse` | which operators become one primitive |
//! | `frame` | in how few dimensions a primitive may see its tensors |
//! | `view` | strided layouts; transposes, slices and reshapes that cost nothing |
//! | `join` | concatenation of channels |
//! | `narrow` | bfloat16, where its user asks for it |
//! | `winograd` | convolutions by 3 x 3 kernels with fewer multiplications |
//! | `options` | what a user may choose |
//! | `lower`, `anchors` | a layout for every tensor, a primitive for every group |
//! | `own` | where the plugin's own loops are taken instead of the library's primitives |
//! | `pack` | constants that are packed when a region is loaded |
//! | `plan`, `argument` | the steps of a run and their tensors, and one arena for all that lives during it |
//! | `runtime` | generated code, packed weights, runs |
//! | `blob`, `backend` | what is shipped; the two halves as the host sees them |
//! | `cpu` | the fastest code for the CPU at hand |
//! | `library` | finding and opening oneDNN, its C API, a safe layer over it |
//!
//! The library is opened at run time. Without it the plugin loads all the same, and refuses every operator with the line that
//! installs it.

mod anchors;
mod argument;
mod attributes;
mod backend;
mod blob;
mod cell;
mod cpu;
mod curves;
mod elementwise;
mod frame;
mod fuse;
mod join;
mod library;
mod lower;
mod narrow;
mod options;
mod own;
mod pack;
mod patterns;
mod plan;
mod program;
mod qnn;
mod recurrent;
mod row;
mod runtime;
mod simplify;
mod translate;
mod view;
mod winograd;

#[cfg(test)]
mod tests;

byoc_plugin_api::register!(|context, registry| {
    library::set_plugin_path(&context.path);
    registry.codegen("dnnl", backend::Dnnl);
    registry.loader(backend::LOADER, backend::JsonLoader);
    Ok(())
});

byoc_plugin_api::declare_plugin!("dnnl", env!("CARGO_PKG_VERSION"));
