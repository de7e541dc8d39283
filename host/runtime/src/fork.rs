//! Detection of forks: the threads of a session do not exist in the child process, and a run there would wait for them
//! forever.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_plugin_api::host::entries::{current_generation, generation};

/// Generation of the process in which an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// Returns the generation of this process.
    pub fn current() -> Generation {
        Generation(generation())
    }

    /// Returns true if the process has not been forked since.
    pub fn is_current(self) -> bool {
        self.0 == current_generation()
    }

    /// Checks that the object was created in this process.
    ///
    /// # Errors
    /// E0623 if the process has been forked since.
    pub fn check(self) -> Result<(), Diagnostic> {
        if self.is_current() {
            return Ok(());
        }
        let message = "expected a model or session of this process, found one created before a fork";
        Err(Diagnostic::error(codes::runtime::MODEL_GONE, message).help("load the model in the process that runs it"))
    }
}
