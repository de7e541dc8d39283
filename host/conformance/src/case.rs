//! A case: a small module, its inputs, and the claim of a backend under test. On disk, a case is a `.relay` file that
//! any `byoc` command accepts, with a comment that states its purpose, and with constants and inputs in files beside
//! it.

use byoc::error::Failure;
use byoc::frontend::{LoadOptions, relay};
use byoc::io;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Expr, Module};
use byoc_ir::tensor::Tensor;
use std::fmt;
use std::path::{Path, PathBuf};

/// Claim of a backend that a case tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Entry of the backend's pattern table, by full name.
    Pattern(String),
    /// One of the backend's single operators.
    Operator(String),
    /// Several of the backend's operators in one region.
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
    /// Parses the output of [`Display`](fmt::Display).
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
    /// Claim under test.
    pub subject: Subject,
    /// Description that distinguishes the case from others of its subject.
    pub about: String,
    /// Module, with a `@main` over tensors.
    pub module: Module,
    /// Values of the parameters.
    pub inputs: Vec<Tensor>,
}

const MARK: &str = "// byoc plugins test: ";

impl Case {
    /// Writes the case to `path`, and its tensors to files beside it.
    ///
    /// # Errors
    /// If a file cannot be written.
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
    /// If the file is not a case, or is damaged.
    pub fn read(path: &Path) -> Result<Case, Failure> {
        let loaded = relay::load(path, &LoadOptions::default())?;
        let text = io::read_text(path).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        let subject = first.strip_prefix(MARK).and_then(Subject::parse).ok_or_else(|| {
            Diagnostic::error(
                codes::plugins::BAD_CASE,
                format!("{} is not a case of a conformance run", path.display()),
            )
            .note(format!("expected a first line such as \"{MARK}operator NAME\", found \"{first}\""))
            .help("byoc plugins test FILE --out DIR writes failing cases to DIR")
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
            let message = format!("{}: expected inputs of the types of the module's parameters", file.display());
            return Err(Diagnostic::error(codes::plugins::BAD_CASE, message).into());
        }
        Ok(case)
    }

    /// Returns the element types and dimensions of the parameters.
    pub fn parameter_types(&self) -> Vec<(byoc_ir::tensor::DType, Vec<usize>)> {
        let params = self.module.main().map(|main| main.params.clone()).unwrap_or_default();
        params
            .iter()
            .filter_map(|&p| self.module.ty(p).as_tensor())
            .map(|t| (t.dtype, t.shape().map(|s| s.to_vec()).unwrap_or_default()))
            .collect()
    }

    /// Returns the case with `change` applied to its constants.
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
