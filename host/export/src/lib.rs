//! Export of a model as a C program that needs a C compiler and nothing of byoc.
//!
//! The operators of `@main` after the passes of the build become functions in C99 over an arena that is planned here
//! ([`byoc_emit_c::program`]). This crate adds the rest of the project: the interface with the model's names, the
//! constants, a program that checks recorded outputs, build files, and a report.
//!
//! | module | contents |
//! |---|---|
//! | `exported` | options, interface, functions from outside, as data |
//! | `names` | C identifiers from names of the model |
//! | `externs` | functions of the user, and regions of backends |
//! | `half_weights` | weights as float16 |
//! | `weights_file` | constants as a file |
//! | `code` | interface, functions, constants |
//! | `checking` | the program that runs recorded inputs |
//! | `build_files` | Makefile and CMakeLists.txt |
//! | `report` | sizes and operations, as text and as JSON |
//! | `project` | from a built model to the files of a project |

mod build_files;
mod checking;
mod code;
mod exported;
mod externs;
mod half_weights;
mod names;
mod project;
mod report;
mod weights_file;

pub use exported::{Extern, Options, Port, Recorded, Weights};
pub use project::{Project, project};
