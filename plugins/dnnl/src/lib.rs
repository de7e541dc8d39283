//! Backend that runs regions on oneDNN.
//!
//! A region is compiled into a blob that contains its graph as JSON; on loading, the graph becomes a list of oneDNN
//! primitives over one arena. Modules, in the order in which a region passes through them:
//!
//! | module | purpose |
//! |---|---|
//! | `patterns` | the pattern table |
//! | `attributes`, `translate` | Relay's operators and attributes; shape inference |
//! | `ir`, `simplify` | IR with a small set of operator kinds; recognition of GELU and similar idioms |
//! | `recurrent`, `cell` | LSTM and GRU steps after their matrix products: recognition and kernels |
//! | `gemv` | GEMV kernel for the matrix products of recurrent layers |
//! | `elementwise`, `math` | functions that oneDNN computes too imprecisely; approximations that vectorize |
//! | `qnn`, `sum_requirement` | quantized operators: the loop over the library's int32 accumulators; choice of implementations that accumulate exactly |
//! | `fuse` | grouping of operators into primitives |
//! | `dim_map`, `shape` | reduction of the rank that a primitive sees; shapes and axis orders |
//! | `concat` | concatenation along the innermost dimension |
//! | `bf16` | optional bfloat16 operands |
//! | `winograd` | 3 x 3 convolutions with fewer multiplications |
//! | `overlap` | transposed convolutions after their matrix products |
//! | `options` | region options |
//! | `lower`, `anchors` | tensor layouts, primitives for operator groups |
//! | `handwritten` | selection of hand-written kernels in place of the library's primitives |
//! | `pack` | constants packed at load time |
//! | `plan`, `argument` | steps of a run and their arguments; placement in one arena |
//! | `runtime` | generated code, packed weights, execution |
//! | `blob`, `backend` | serialized form; the backend's code generator and loader |
//! | `cpu` | dispatch on CPU features |
//! | `library` | locating and opening oneDNN, its C API, a safe layer over it |
//!
//! The library is opened at run time. If it is missing, the plugin still loads but refuses every operator, with the
//! installation command as the hint.

mod anchors;
mod argument;
mod attributes;
mod backend;
mod bf16;
mod blob;
mod cell;
mod concat;
mod cpu;
mod dim_map;
mod elementwise;
mod fuse;
mod gemv;
mod handwritten;
mod ir;
mod library;
mod lower;
mod math;
mod options;
mod overlap;
mod pack;
mod patterns;
mod plan;
mod qnn;
mod recurrent;
mod runtime;
mod shape;
mod simplify;
mod sum_requirement;
mod translate;
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
