//! Invocation of the current process: its command line, and the directory of its files. By default both are derived
//! from the executable of the process; a program that runs in an interpreter sets both with [`set`].

use std::ffi::OsString;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Invocation of a program in an interpreter, such as a Python script. The executable of the process is the
/// interpreter.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Interpreter, and the arguments that make it start the program.
    pub command: Vec<OsString>,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Directory of the program's files, including `plugins`.
    pub directory: PathBuf,
}

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// Declares that the process runs a program in an interpreter. Only the first call has an effect.
pub fn set(invocation: Invocation) {
    let _ = INVOCATION.set(invocation);
}

/// Returns the command line that starts this program, without its arguments.
///
/// # Errors
/// If the path of the process executable cannot be determined.
pub fn words() -> Result<Vec<OsString>> {
    match INVOCATION.get() {
        Some(invocation) if invocation.command.iter().all(|argument| !argument.is_empty()) => {
            Ok(invocation.command.clone())
        }
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
    INVOCATION.get().map_or_else(|| std::env::args_os().skip(1).collect(), |invocation| invocation.arguments.clone())
}

/// Returns the directory of the program's files; `None` if the path of the process executable cannot be determined.
pub fn directory() -> Option<PathBuf> {
    match INVOCATION.get() {
        Some(invocation) => Some(invocation.directory.clone()),
        None => std::env::current_exe().ok().and_then(|executable| executable.parent().map(Path::to_owned)),
    }
}
