//! Bundles: directories with an artifact and everything needed to run it. `docs/bundle.md` describes the layout.
//!
//! A bundle is assembled on a machine where the artifact runs: every region is loaded once during assembly. If the
//! bundle could not run, the assembly therefore fails, with an error that names the missing component. The assembly
//! ([`write()`]) reads ELF files and queries plugins for the files that they open at run time; it does not depend on
//! specific backends. The runner ([`runner`]) checks every file against the digest list, opens regions in place, and
//! writes only the outputs.
//!
//! | module | contents |
//! |---|---|
//! | [`contents`] | file names, description and digest list |
//! | [`elf`] | dependencies of libraries and executables |
//! | [`system`] | library search in the order of the dynamic loader; licenses of the installed packages |
//! | [`required`] | files that plugins and regions need at run time |
//! | [`mod@write`] | assembly of a bundle |
//! | [`verify`] | verification of a bundle on disk |
//! | [`options`], [`runner`] | executable `byoc-run` |

pub mod contents;
pub mod elf;
pub mod options;
pub mod required;
pub mod runner;
pub mod system;
pub mod verify;
pub mod write;

pub use write::{Report, Request, write};
