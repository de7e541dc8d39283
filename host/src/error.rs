//! Errors of the library interface.

use crate::wording::Interface;
use byoc_ir::diag::{Code, Diagnostic, codes};
use byoc_runtime::Failure;
use std::fmt;
use std::sync::Arc;

/// Error with its kind. [`Error::info`] returns its code, message and help.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be read, or is invalid or unsupported.
    Model(ErrorInfo),
    /// A backend is missing or misnamed, or its plugin failed.
    Backend(ErrorInfo),
    /// An artifact cannot be read or written, is corrupt, or was built for a different machine.
    Artifact(ErrorInfo),
    /// The inputs of a run, or the memory for its outputs, do not match the model.
    Input(ErrorInfo),
    /// A run failed.
    Run(ErrorInfo),
    /// The memory limit was reached, or the system is out of memory.
    OutOfMemory(ErrorInfo),
    /// The work was cancelled.
    Cancelled(ErrorInfo),
    /// The work did not finish before its deadline.
    TimedOut(ErrorInfo),
}

/// Contents of an [`Error`], worded in terms of this library's functions. [`Error::in_interface`] rewords them in terms
/// of command-line options or of the functions of another interface.
#[derive(Clone, Debug)]
pub struct ErrorInfo {
    /// Stable code, documented on a separate page.
    pub code: Code,
    /// One-line message with the expected and the found values.
    pub message: String,
    /// Additional facts, one line each.
    pub context: Vec<String>,
    /// Remedy, if known.
    pub help: Option<String>,
    /// Additional errors of the same operation.
    pub others: Vec<Diagnostic>,
    /// This error and the additional errors, with texts that name command-line options.
    diagnostics: Arc<(Diagnostic, Vec<Diagnostic>)>,
}

impl ErrorInfo {
    fn of(diagnostics: Arc<(Diagnostic, Vec<Diagnostic>)>, interface: Interface) -> ErrorInfo {
        let Diagnostic { code, message, notes, help, .. } = interface.diagnostic(&diagnostics.0);
        let other_diagnostics = diagnostics.1.iter().map(|other| interface.diagnostic(other)).collect();
        ErrorInfo { code, message, context: notes, help, others: other_diagnostics, diagnostics }
    }
}

impl Error {
    /// Returns the contents of the error.
    pub fn info(&self) -> &ErrorInfo {
        match self {
            Error::Model(info)
            | Error::Backend(info)
            | Error::Artifact(info)
            | Error::Input(info)
            | Error::Run(info)
            | Error::OutOfMemory(info)
            | Error::Cancelled(info)
            | Error::TimedOut(info) => info,
        }
    }

    /// Returns the error with texts that name the options or functions of `interface`.
    #[must_use]
    pub fn in_interface(self, interface: Interface) -> Error {
        Error::of(ErrorInfo::of(self.info().diagnostics.clone(), interface))
    }

    /// Returns an error whose kind is determined by the code.
    fn of(info: ErrorInfo) -> Error {
        use codes::{plugins, runtime};
        match info.code {
            runtime::CANCELLED | plugins::BUILD_CANCELLED => Error::Cancelled(info),
            runtime::TIMED_OUT => Error::TimedOut(info),
            runtime::OUT_OF_MEMORY => Error::OutOfMemory(info),
            runtime::UNKNOWN_INPUT
            | runtime::INPUT_COUNT
            | runtime::INPUT_DTYPE
            | runtime::INPUT_SHAPE
            | runtime::OUTPUT_MEMORY
            | runtime::INPUT_MEMORY
            | runtime::BAD_STRING => Error::Input(info),
            Code(400..=499) => Error::Backend(info),
            Code(600..=699) => Error::Run(info),
            Code(700..=799) => Error::Artifact(info),
            _ => Error::Model(info),
        }
    }

    /// Returns the stable code.
    pub fn code(&self) -> Code {
        self.info().code
    }

    /// Returns the remedy.
    pub fn help(&self) -> Option<&str> {
        self.info().help.as_deref()
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let mut diagnostics = failure.diagnostics.into_iter();
        let mut first_info =
            diagnostics.next().unwrap_or_else(|| Diagnostic::error(codes::runtime::BAD_PROGRAM, "unknown error"));
        let line = |offset: usize, text: &str| text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        if let Some((source, label)) = failure.source.as_ref().zip(first_info.labels.first()) {
            first_info.notes.insert(0, format!("at {}:{}", source.name, line(label.span.start as usize, &source.text)));
        }
        Error::of(ErrorInfo::of(Arc::new((first_info, diagnostics.collect())), Interface::Rust))
    }
}

impl From<Diagnostic> for Error {
    fn from(diagnostic: Diagnostic) -> Error {
        Failure::from(diagnostic).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorInfo { code, message, context, help, others: other_diagnostics, .. } = self.info();
        write!(f, "{code}: {message}")?;
        for line in context {
            write!(f, "\n  note: {line}")?;
        }
        if let Some(help) = help {
            write!(f, "\n  help: {help}")?;
        }
        other_diagnostics.iter().try_for_each(|other| write!(f, "\n{other}"))
    }
}

impl std::error::Error for Error {}
