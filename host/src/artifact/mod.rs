//! Placeholder until the artifact lands.
use crate::build::Compiled;
use byoc_core::diag::Diagnostic;
use std::path::Path;
/// stub
pub struct Artifact;
impl Artifact {
    /// stub
    pub fn into_compiled(self) -> Compiled {
        unimplemented!()
    }
}
/// stub
pub fn open(_: &Path) -> Result<Artifact, Diagnostic> {
    unimplemented!()
}
/// stub
pub fn write(_: &Path, _: &Compiled) -> Result<(), Diagnostic> {
    unimplemented!()
}
