//! Loop nests over the graphs of the plugin boundary, and their text: C99, C with vector extensions, OpenCL C, CUDA C++.
//!
//! A region goes through four stages, each of which can be printed:
//!
//! 1. **Groups** ([`group`]): operators that share a loop nest, by the tables of [`operators`].
//! 2. **Nests** ([`nest`]): each group as data, made by [`lower`] over the storage of its operands.
//! 3. **Schedules** ([`schedule`]): tiles, blocks and tasks. Elementwise chains, normalized rows, reductions and windows
//!    are written as plain nests, which steps split, exchange, vectorize or divide ([`nest::transform`]). Matrix products
//!    and convolutions are written with their tiles at once, by the numbers of the schedule, and so are transposes.
//! 4. **Text** ([`print`]): functions in a dialect.
//!
//! Three [`form`]s share these stages: the tasks of a region that run on the host's threads ([`source`]), a program in C99
//! that runs alone ([`program`], [`single_file`]), and the kernels of a device ([`device`]). They differ in where operands
//! lie, and in how a product is divided. Kernels in CUDA C++ are printed and compiled by `cargo xtask check-cuda`; no
//! backend runs them yet.
//!
//! | module | purpose |
//! |---|---|
//! | `operators/` | what each operator computes, once; views, anchors, layouts, and the reasons for refusing |
//! | `group`, `index_space` | fusion; views over the index space of a nest |
//! | `nest/` | expressions, statements, loop bodies, and the steps that transform them |
//! | `lower/` | from a group to a nest, one file per kind of operator; storage of tensors |
//! | `schedule/` | tiles, blocks and tasks: functions of shapes and strides |
//! | `packing` | the order of packed operands |
//! | `print/` | dialects: `c`, `opencl`, `cuda`; the parameters of kernels |
//! | `prelude`, `prelude/*.c` | functions that the generated code calls |
//! | `stage` | the stages before the text, for readers |
//! | `externals` | external functions of a program |
//!
//! ```
//! use byoc_loops::{externals::Externals, form::Machine, program::program};
//! use byoc_plugin_api::{DType, Graph, TensorType, ValueRef};
//!
//! let mut graph = Graph::new("net");
//! let ty = TensorType::new(DType::F32, &[2, 3]);
//! let x = graph.push_input("x", ty.clone());
//! let y = graph.push_op("nn.relu", [ValueRef::of(x)], [], [ty]);
//! graph.outputs.push(ValueRef::of(y));
//! let program = program(&graph, &[], "net", Machine::GENERIC, &Externals::default()).unwrap();
//! assert!(program.steps[0].code.contains("x0 < 0.0f ? 0.0f : x0"));
//! assert_eq!(program.arena, 0);
//! ```

pub mod device;
pub mod externals;
pub mod form;
pub mod group;
mod index_space;
pub mod lower;
pub mod nest;
pub mod operators;
pub mod packing;
mod prelude;
pub mod print;
pub mod program;
pub mod schedule;
pub mod single_file;
pub mod source;
pub mod stage;
pub mod types;
