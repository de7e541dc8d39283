//! Loop schedules and C text over the graphs of the plugin boundary.
//!
//! One set of code generators serves two forms ([`form`]): a region of the backend `ccompiler`, whose tasks run on the
//! host's threads, and a self-contained program in C99 (`dialect` emits the text that differs). Both lower the same
//! operator groups ([`group`]) to the same loop bodies; they differ in the placement of operands and in the functions
//! that the generated code calls.
//!
//! | module | purpose |
//! |---|---|
//! | `anchors`, `check` | operators with a dedicated loop nest; the reasons for refusing them |
//! | `view_ops`, `index_space` | view operators; views over the index space of a loop nest |
//! | `literals`, `elementwise`, `quantized` | operators as C expressions, in floating-point and quantized arithmetic |
//! | `group` | fusion: assigns operators to loop nests |
//! | `lowering`, `loop_body` | tensor storage, and the loop body of a group |
//! | `lower` | emits the phases of every group |
//! | `layout`, `schedule` | convolution geometry; tiles, tasks and memory planning |
//! | `contraction`, `convolution`, `window`, `rows`, `moves` | code generation per operator kind |
//! | `direct`, `direct_window` | contractions in programs, with operands in place |
//! | `externals`, `external_call` | external functions, and calls to them |
//! | `source` | the C file of a `ccompiler` region |
//! | `program`, `single_file` | programs, and regions as self-contained files |
//! | `text`, `prelude/*.c` | C formatting helpers; functions that the generated code calls |
//!
//! ```
//! use byoc_emit_c::{externals::Externals, form::Machine, program::program};
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

pub mod anchors;
pub mod check;
mod contraction;
mod convolution;
mod dialect;
mod direct;
mod direct_window;
pub mod elementwise;
mod external_call;
pub mod externals;
pub mod form;
pub mod group;
mod index_space;
pub mod layout;
pub mod literals;
pub mod loop_body;
pub mod lower;
pub mod lowering;
mod moves;
pub mod program;
pub mod quantized;
pub mod rows;
pub mod schedule;
pub mod single_file;
pub mod source;
mod text;
pub mod view_ops;
mod window;
