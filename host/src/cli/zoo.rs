//! `byoc zoo`: standard architectures with seeded weights.

use super::args::ZooArgs;
use crate::error::Failure;
use crate::{io, zoo};
use prost::Message;
use std::io::Write;
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &ZooArgs) -> Result<ExitCode, Failure> {
    io::check_writable(&args.output)?;
    let model = zoo::build(&args.name, args.seed)?;
    io::write_atomically(&args.output, |file| file.write_all(&model.encode_to_vec()))?;
    Ok(ExitCode::SUCCESS)
}
