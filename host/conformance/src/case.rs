//! Test cases: each has a small module, its inputs, and the backend claim under test. On disk, a case is a `.relay`
//! file that any `byoc` command accepts, with a comment that states its purpose, and with constants and inputs in
//! adjacent files.

use byoc::frontend::{LoadOptions, relay};
use byoc::io;
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Dim, Expr, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::with_dtype;
use std::fmt;
use std::path::{Path, PathBuf};

/// Backend claim under test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Pattern-table entry of the backend, by full name.
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

/// Parameter dimensions that a case leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// The first dimension of each parameter, as in a model with an open batch size.
    First,
    /// All dimensions.
    All,
}

impl Open {
    /// Returns the type of a parameter with its open dimensions as symbols. Equal dimensions share a symbol, because
    /// the operators of the case may require equality; a dimension of 1 stays fixed, because it broadcasts.
    pub fn parameter_type(self, dtype: DType, shape: &[usize]) -> Type {
        let dims = shape.iter().enumerate().map(|(axis, &size)| match (self, axis) {
            _ if size == 1 => Dim::Fixed(size),
            (Open::First, 0) | (Open::All, _) => Dim::symbol(format!("n{size}").as_str()),
            _ => Dim::Fixed(size),
        });
        Type::tensor_of(dtype, dims)
    }
}

/// Test conditions of a case besides its module and inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Claims whose operators are in the same module as the subject's operator.
    pub context: Vec<Subject>,
    /// Dimensions that are known only at run time.
    pub open: Option<Open>,
    /// Option of the backend, with its value.
    pub option: Option<(String, String)>,
    /// Entries that receive the option.
    pub option_scope: OptionScope,
    /// Device of the backend.
    pub device: Option<String>,
    /// True if the tensors are in device memory.
    pub is_on_device: bool,
    /// Address-space headroom of the plugin in KiB.
    pub memory: Option<u64>,
}

/// Entries that receive the option of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptionScope {
    /// All entries that can receive the option.
    #[default]
    All,
    /// Entry `load` of a region that was compiled without the option.
    Load,
    /// Runs of a region that was compiled and loaded without the option.
    Run,
}

impl OptionScope {
    const ALL: [OptionScope; 3] = [OptionScope::All, OptionScope::Load, OptionScope::Run];

    /// Returns the key in a case file.
    fn key(self) -> &'static str {
        match self {
            OptionScope::All => "option",
            OptionScope::Load => "option at load",
            OptionScope::Run => "option of runs",
        }
    }
}

const SETTING: &str = "// with ";

impl Setting {
    /// Returns true if the setting has no conditions besides neighboring claims.
    pub fn is_plain(&self) -> bool {
        let Setting { context: _, open, option, option_scope: _, device, is_on_device, memory } = self;
        open.is_none() && option.is_none() && device.is_none() && !is_on_device && memory.is_none()
    }

    /// Formats the setting as the lines of a case file.
    fn lines(&self) -> String {
        let mut lines = String::new();
        let open_dims = self.open.map(|open_dims| if open_dims == Open::All { "all" } else { "first" });
        let context = self.context.iter().map(|claim| Some(format!("context: {claim}")));
        let key = self.option_scope.key();
        let lines_of_setting = [
            open_dims.map(|dims| format!("open dimensions: {dims}")),
            self.option.as_ref().map(|(name, value)| format!("{key}: {name}={value}")),
            self.device.as_ref().map(|device| format!("device: {device}")),
            self.is_on_device.then(|| "tensors: in the memory of the device".to_owned()),
            self.memory.map(|kib| format!("memory: {kib} KiB")),
        ];
        context.chain(lines_of_setting).flatten().for_each(|setting| lines.push_str(&format!("{SETTING}{setting}\n")));
        lines
    }

    /// Parses the setting of a case file.
    fn parse(text: &str) -> Setting {
        let mut setting = Setting::default();
        for line in text.lines().map_while(|line| line.starts_with("//").then_some(line)) {
            match line.strip_prefix(SETTING).and_then(|entry| entry.split_once(": ")) {
                Some(("open dimensions", "all")) => setting.open = Some(Open::All),
                Some(("open dimensions", _)) => setting.open = Some(Open::First),
                Some(("context", claim)) => setting.context.extend(Subject::parse(claim)),
                Some((key, description)) if key.starts_with("option") => {
                    let scope = OptionScope::ALL.into_iter().find(|scope| scope.key() == key);
                    let option = description.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
                    (setting.option, setting.option_scope) = (option, scope.unwrap_or_default());
                }
                Some(("device", id)) => setting.device = Some(id.to_owned()),
                Some(("tensors", _)) => setting.is_on_device = true,
                Some(("memory", description)) => {
                    setting.memory = description.split_whitespace().next().and_then(|kib| kib.parse().ok());
                }
                _ => {}
            }
        }
        setting
    }
}

/// Test case: a module, its inputs, and the claim under test.
#[derive(Clone)]
pub struct Case {
    /// Claim under test.
    pub subject: Subject,
    /// Description that distinguishes the case from other cases of its subject.
    pub description: String,
    /// Test conditions.
    pub setting: Setting,
    /// Module, with a `@main` over tensors.
    pub module: Module,
    /// Parameter values.
    pub inputs: Vec<Tensor>,
}

const MARK: &str = "// byoc plugins test: ";

impl Case {
    /// Writes the case to `path`, and its tensors to adjacent files.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, path: &Path, notes: &[String]) -> Result<(), Diagnostic> {
        relay::write(path, &self.module)?;
        let read_error = |e: std::io::Error| Diagnostic::error(codes::frontends::UNREADABLE_MODEL, e.to_string());
        let program = io::read_text(path).map_err(read_error)?;
        let mut text = format!("{MARK}{}\n// {}\n{}", self.subject, self.description, self.setting.lines());
        for line in notes.iter().flat_map(|note| note.lines()) {
            text.push_str(&format!("// {line}\n"));
        }
        text.push_str(&program);
        io::write_atomically(path, |file| std::io::Write::write_all(file, text.as_bytes()))?;
        let named_inputs = self.inputs.iter().enumerate().map(|(i, tensor)| (i.to_string(), tensor));
        io::weights::write(&inputs_file(path), named_inputs)
    }

    /// Reads a case.
    ///
    /// # Errors
    /// If the file cannot be read, is not a case, or is corrupt.
    pub fn read(path: &Path) -> Result<Case, Failure> {
        let model = relay::load(path, &LoadOptions::default())?;
        let text = io::read_text(path).unwrap_or_default();
        let first_line = text.lines().next().unwrap_or_default();
        let subject = first_line.strip_prefix(MARK).and_then(Subject::parse).ok_or_else(|| {
            let message = format!(
                "{}: expected a first line such as \"{MARK}operator NAME\", found \"{first_line}\"",
                path.display()
            );
            Diagnostic::error(codes::plugins::BAD_CASE, message)
                .note("the first line of a case names the pattern or operator to test")
                .help("byoc plugins test FILE --out DIR writes failing cases to DIR")
        })?;
        let description = text.lines().nth(1).unwrap_or_default().trim_start_matches("// ").to_owned();
        let file = inputs_file(path);
        let mut tensors = io::weights::read(&file)?;
        let inputs: Vec<Tensor> = (0..tensors.len()).map_while(|i| tensors.remove(&i.to_string())).collect();
        let case = Case { subject, description, setting: Setting::parse(&text), module: model.module, inputs };
        if !case.has_matching_inputs() {
            let params = case.module.main().map(|main| main.params.clone()).unwrap_or_default();
            let expected: Vec<String> = params.iter().map(|&param| case.module.ty(param).to_string()).collect();
            let found: Vec<String> =
                case.inputs.iter().map(|input| Type::tensor(input.dtype(), input.shape()).to_string()).collect();
            let (expected, found) = (expected.join(", "), found.join(", "));
            let message = format!("{}: expected inputs of types ({expected}), found ({found})", file.display());
            return Err(Diagnostic::error(codes::plugins::BAD_CASE, message).into());
        }
        Ok(case)
    }

    /// Returns true if each parameter has an input of its type; an open dimension matches any number.
    fn has_matching_inputs(&self) -> bool {
        let params = self.module.main().map(|main| main.params.clone()).unwrap_or_default();
        params.len() == self.inputs.len()
            && params.iter().zip(&self.inputs).all(|(&param, tensor)| {
                self.module.ty(param).as_tensor().is_some_and(|ty| {
                    let fits = |(dim, size): (&Dim, &usize)| dim.fixed().is_none_or(|expected| expected == *size);
                    ty.dtype == tensor.dtype()
                        && ty.dims.len() == tensor.shape().len()
                        && ty.dims.iter().zip(tensor.shape()).all(fits)
                })
            })
    }

    /// Returns the case with `change` applied to its constants.
    pub fn with_constants(&self, change: impl Fn(&Tensor) -> Tensor) -> Case {
        let mut case = self.clone();
        let ids: Vec<_> = case.module.nodes.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Expr::Constant(tensor) = &case.module.nodes[id].expr {
                let changed_tensor = change(tensor);
                case.module.nodes[id].expr = Expr::Constant(changed_tensor.into());
            }
        }
        case
    }
}

fn inputs_file(path: &Path) -> PathBuf {
    path.with_extension("inputs.safetensors")
}

/// Returns a tensor with the elements in reverse order.
pub fn reverse(tensor: &Tensor) -> Tensor {
    Tensor::build(tensor.dtype(), tensor.shape(), |bytes| {
        bytes.copy_from_slice(tensor.bytes());
        with_dtype!(tensor.dtype(), T => bytemuck::cast_slice_mut::<u8, T>(bytes).reverse());
    })
    .expect("a case fits within the memory limit")
}
