//! `byoc zoo`: standard architectures with seeded weights.

use super::args::ZooArgs;
use super::output_file;
use crate::architectures;
use byoc::runtime::error::Failure;
use prost::Message;
use std::io::Write;
use std::process::ExitCode;

/// Writes a standard architecture with seeded weights as a model.
pub fn run(args: &ZooArgs) -> Result<ExitCode, Failure> {
    output_file::check([args.output.as_path()])?;
    let model = architectures::build(&args.name, args.seed)?;
    output_file::write(&args.output, |file| file.write_all(&model.encode_to_vec()))?;
    Ok(ExitCode::SUCCESS)
}
