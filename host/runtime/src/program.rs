//! The running program: the command that restarts it, and the directory of its files. By default both are derived from
//! the executable of the process; a program inside an interpreter sets both with [`set`].

use std::ffi::OsString;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Program started by an interpreter, such as a Python script: the running executable is the interpreter.
#[derive(Clone, Debug)]
pub struct Program {
    /// Interpreter, and the arguments that make it start the program.
    pub command: Vec<OsString>,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Directory of the program's files, including `plugins`.
    pub folder: PathBuf,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Sets the program of the process. Only the first call has an effect.
pub fn set(program: Program) {
    let _ = PROGRAM.set(program);
}

/// Returns the command line that starts this program, without its arguments.
///
/// # Errors
/// If the path of the process executable cannot be determined.
pub fn words() -> Result<Vec<OsString>> {
    match PROGRAM.get() {
        Some(program) if program.command.iter().all(|argument| !argument.is_empty()) => Ok(program.command.clone()),
        Some(_) => Err(Error::other("the interpreter did not provide the path of its executable")),
        None => Ok(vec![std::env::current_exe()?.into()]),
    }
}

/// Returns a command that starts this program, without arguments.
///
/// # Errors
/// Same as [`words`].
pub fn command() -> Result<Command> {
    let command_words = words()?;
    let mut command = Command::new(&command_words[0]);
    command.args(&command_words[1..]);
    Ok(command)
}

/// Returns the arguments of this program, without its name.
pub fn arguments() -> Vec<OsString> {
    PROGRAM.get().map_or_else(|| std::env::args_os().skip(1).collect(), |program| program.arguments.clone())
}

/// Returns the directory of the program's files; `None` if the path of the process executable cannot be determined.
pub fn folder() -> Option<PathBuf> {
    match PROGRAM.get() {
        Some(program) => Some(program.folder.clone()),
        None => std::env::current_exe().ok().and_then(|executable| executable.parent().map(Path::to_owned)),
    }
}
