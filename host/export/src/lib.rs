//! Export of a model as a C program that requires only a C compiler and no part of byoc.
//!
//! After the build passes, the operators of `@main` become C99 functions over an arena that is planned at export
//! ([`byoc_loops::program`]). This crate adds the remaining files of the project: the interface with the model's
//! names, the constants, a program that checks recorded outputs, build files, and a report.
//!
//! | module | contents |
//! |---|---|
//! | `exported` | options, interface, external functions, as data |
//! | `names` | C identifiers from model names |
//! | `externs` | user-supplied functions and backend regions |
//! | `half_weights` | weights as float16 |
//! | `weights_file` | constants as a file |
//! | `code` | interface, functions, constants |
//! | `checking` | program that checks recorded outputs |
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

pub use exported::{Extern, Options, Port, RecordedValues, Weights};
pub use project::{Project, project};
