//! Bundles: folders that hold an artifact and everything that runs it. `docs/bundle.md` describes the folder.
//!
//! A bundle is assembled on a machine where the artifact runs: every region is loaded there once, so that a bundle that
//! could not run is refused by the name of what is missing. The library side ([`write()`]) reads ELF files and asks
//! plugins for what they open at run time; it knows no backend by name. The runner's side ([`runner`]) checks every file
//! against the list of digests, opens regions in place, and writes nothing but the outputs.
//!
//! | module | contents |
//! |---|---|
//! | [`contents`] | names in the folder, its description, its list of digests |
//! | [`elf`] | dependencies of libraries and programs |
//! | [`system`] | search for libraries as the dynamic loader does it; licenses of the packages that they are from |
//! | [`required`] | files that plugins and regions need at run time |
//! | [`mod@write`] | assembly of a bundle |
//! | [`verify`] | a bundle on disk, checked |
//! | [`options`], [`runner`] | the program `byoc-run` |

pub mod contents;
pub mod elf;
pub mod options;
pub mod required;
pub mod runner;
pub mod system;
pub mod verify;
pub mod write;

pub use write::{Report, Request, write};
