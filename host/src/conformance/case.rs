//! A case: a small program, its inputs, and whose part of a backend it tries. On disk it is a `.relay` file that any
//! `byoc` command takes, with a comment that says what it is for, its constants and its inputs beside it.

use crate::error::Failure;
use crate::frontend::{LoadOptions, relay};
use crate::io;
use byoc_core::diag::{Diagnostic, codes};
use byoc_core::ir::{Expr, Module};
use byoc_core::tensor::Tensor;
use std::fmt;
use std::path::{Path, PathBuf};

/// Which of a backend's claims a case tries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// An entry of its pattern table, by its full name.
    Pattern(String),
    /// One of its single operators.
    Operator(String),
    /// Several of them in one region.
    Region,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Pattern(name) => write!(f, "pattern {name}"),
            Subject::Operator(name) => write!(f, "operator {name}"),
            Subject::Region => f.write_str("region"),
        }
    }
}

impl Subject {
    /// Reads what [`Display`](fmt::Display) writes.
    pub fn parse(text: &str) -> Option<Subject> {
        match text.split_once(' ') {
            Some(("pattern", name)) => Some(Subject::Pattern(name.to_owned())),
            Some(("operator", name)) => Some(Subject::Operator(name.to_owned())),
            _ if text == "region" => Some(Subject::Region),
            _ => None,
        }
    }
}

/// A case.
#[derive(Clone)]
pub struct Case {
    /// What it tries.
    pub subject: Subject,
    /// What sets it apart from the other cases of its subject, in words.
    pub about: String,
    /// The program: `@main` over tensors.
    pub module: Module,
    /// The values of its parameters.
    pub inputs: Vec<Tensor>,
}

const MARK: &str = "// byoc plugins test: ";

impl Case {
    /// Writes the case to `path` and beside it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, path: &Path, notes: &[String]) -> Result<(), Diagnostic> {
        relay::write(path, &self.module)?;
        let unreadable = |e: std::io::Error| Diagnostic::error(codes::frontends::UNREADABLE_MODEL, e.to_string());
        let program = io::read_text(path).map_err(unreadable)?;
        let mut text = format!("{MARK}{}\n// {}\n", self.subject, self.about);
        for line in notes.iter().flat_map(|note| note.lines()) {
            text.push_str(&format!("// {line}\n"));
        }
        text.push_str(&program);
        io::write_atomically(path, |file| std::io::Write::write_all(file, text.as_bytes()))?;
        let named = self.inputs.iter().enumerate().map(|(i, tensor)| (i.to_string(), tensor));
        io::weights::write(&inputs_file(path), named)
    }

    /// Reads a case.
    ///
    /// # Errors
    /// A file that is no case, or is damaged.
    pub fn read(path: &Path) -> Result<Case, Failure> {
        let loaded = relay::load(path, &LoadOptions::default())?;
        let text = io::read_text(path).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        let subject = first.strip_prefix(MARK).and_then(Subject::parse).ok_or_else(|| {
            Diagnostic::error(codes::plugins::BAD_CASE, format!("{} is no case of a conformance run", path.display()))
                .note(format!("its first line is \"{first}\", \"{MARK}operator NAME\" or the like is wanted"))
                .help("byoc plugins test FILE --out DIR writes the cases that fail to DIR")
        })?;
        let about = text.lines().nth(1).unwrap_or_default().trim_start_matches("// ").to_owned();
        let file = inputs_file(path);
        let mut stored = io::weights::read(&file)?;
        let inputs: Vec<Tensor> = (0..stored.len()).map_while(|i| stored.remove(&i.to_string())).collect();
        let case = Case { subject, about, module: loaded.module, inputs };
        let types = case.parameter_types();
        let fit = types.len() == case.inputs.len()
            && types
                .iter()
                .zip(&case.inputs)
                .all(|((dtype, shape), tensor)| *dtype == tensor.dtype() && *shape == tensor.shape());
        if !fit {
            let message = format!("{}: the inputs do not fit the program", file.display());
            return Err(Diagnostic::error(codes::plugins::BAD_CASE, message).into());
        }
        Ok(case)
    }

    /// Element types and dimensions of the parameters.
    pub fn parameter_types(&self) -> Vec<(byoc_core::tensor::DType, Vec<usize>)> {
        let params = self.module.main().map(|main| main.params.clone()).unwrap_or_default();
        params
            .iter()
            .filter_map(|&p| self.module.ty(p).as_tensor())
            .map(|t| (t.dtype, t.shape().map(|s| s.to_vec()).unwrap_or_default()))
            .collect()
    }

    /// The same case with `change` made to its constants.
    pub fn with_constants(&self, change: impl Fn(&Tensor) -> Tensor) -> Case {
        let mut case = self.clone();
        let ids: Vec<_> = case.module.nodes.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Expr::Constant(tensor) = &case.module.nodes[id].expr {
                let changed = change(tensor);
                case.module.nodes[id].expr = Expr::Constant(changed.into());
            }
        }
        case
    }
}

fn inputs_file(path: &Path) -> PathBuf {
    path.with_extension("inputs.safetensors")
}
