//! Common part of the frontends: inputs and outputs as a model file declares them, and the binding of their dimensions.
//!
//! The dimensions of the inputs are bound before a model is imported (by name, or by the shapes of the given inputs),
//! so that the shape arithmetic in exported models folds to constants during import. A dimension stays symbolic only on
//! explicit request, so that no module is compiled for arbitrary dimensions by accident.

use crate::cancel;
use crate::diag::{Diagnostic, Reports, codes, list, nearest};
use crate::ir::{Dim, Module, Type};
use crate::tensor::{DType, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Input bindings, specified before the model is read.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Values of symbolic dimensions, by name.
    pub dims: BTreeMap<String, usize>,
    /// Names of dimensions that stay symbolic, regardless of `dims` and `input_shapes`.
    pub open: BTreeSet<String>,
    /// Sizes of a specialized program, by dimension: the other fields bind or open the remaining dimensions.
    pub specialized: BTreeMap<String, usize>,
    /// True to keep symbolic every dimension that neither `dims` nor `input_shapes` binds.
    pub open_unbound: bool,
    /// True if a symbolic dimension may be assumed to differ from 1 where the rank of a result depends on it. The caller
    /// then adds a program for the size 1 of each dimension in [`Loaded::excluded_ones`].
    pub exclude_ones: bool,
    /// Input shapes, by input name.
    pub input_shapes: BTreeMap<String, Vec<usize>>,
    /// Names of the optional inputs that the program takes as inputs, after the others. Every other optional input,
    /// unless it has a shape in `input_shapes`, is a constant with its default value.
    pub given: BTreeSet<String>,
    /// Structures that become one operator, which only the host runs.
    pub host_operators: HostOperators,
    /// True to leave all optional inputs to a program of their own, whatever shapes are given, so that each run decides.
    pub keeps_optional: bool,
}

/// Structures that become one operator, which only the host runs. Others become operators that backends can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostOperators {
    /// None: the program is compiled without the host.
    #[default]
    None,
    /// Decision trees, recurrent layers whose steps are many or unknown, and those that quantize their state.
    Long,
    /// Decision trees, and all recurrent layers: no backend takes part.
    All,
}

/// Kind of the value that a port holds. A value that is no tensor takes several ports: the first has its name and its
/// kind, the others follow as [`PortKind::Part`], named after it ([`PortKind::parts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortKind {
    /// Tensor of numbers.
    #[default]
    Tensor,
    /// Tensor of strings: their spans, then their bytes; see [`crate::tensor::strings`].
    Strings,
    /// Sequence of tensors of one rank: the elements of all of them, a vector, then their shapes, one row each.
    Sequence,
    /// Sequence of tensors of strings: like [`PortKind::Sequence`], with spans as elements, and then the bytes.
    StringSequence,
    /// Tensor that may be absent: a sequence of at most one.
    Optional,
    /// Sequence of tensors that may be absent: like [`PortKind::Sequence`], and then whether it is present.
    OptionalSequence,
    /// Sequence of maps from integers to numbers: a matrix with a row of values for each map, then the keys.
    Maps,
    /// Sequence of maps from strings to numbers: a matrix of values, then the spans and the bytes of the keys.
    StringMaps,
    /// Further tensor of the value whose port stands before it.
    Part,
}

impl PortKind {
    const NAMES: [(PortKind, &'static str); 9] = [
        (PortKind::Tensor, "tensor"),
        (PortKind::Strings, "strings"),
        (PortKind::Sequence, "sequence"),
        (PortKind::StringSequence, "string_sequence"),
        (PortKind::Optional, "optional"),
        (PortKind::OptionalSequence, "optional_sequence"),
        (PortKind::Maps, "maps"),
        (PortKind::StringMaps, "string_maps"),
        (PortKind::Part, "part"),
    ];

    /// Returns the name in artifacts.
    pub fn name(self) -> &'static str {
        PortKind::NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Returns the kind of that name.
    pub fn parse(name: &str) -> Option<PortKind> {
        PortKind::NAMES.iter().find(|(_, own_name)| *own_name == name).map(|(kind, _)| *kind)
    }

    /// Returns the ends of the names of the further ports, which follow the name of the value.
    pub fn parts(self) -> &'static [&'static str] {
        match self {
            PortKind::Tensor | PortKind::Part => &[],
            PortKind::Strings => &[".bytes"],
            PortKind::Sequence | PortKind::Optional => &[".shapes"],
            PortKind::StringSequence => &[".shapes", ".bytes"],
            PortKind::OptionalSequence => &[".shapes", ".present"],
            PortKind::Maps => &[".keys"],
            PortKind::StringMaps => &[".keys", ".bytes"],
        }
    }
}

/// Input or output of a model, as the file declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct PortInfo {
    /// Name of the input or output in the file.
    pub name: String,
    /// Element type of the input or output.
    pub dtype: DType,
    /// Dimensions, fixed or symbolic. `None` if the file does not specify the rank.
    pub dims: Option<Vec<Dim>>,
    /// Kind of the value.
    pub kind: PortKind,
}

impl PortInfo {
    /// Creates the port of a tensor of numbers.
    pub fn tensor(name: impl Into<String>, dtype: DType, dims: Option<Vec<Dim>>) -> PortInfo {
        PortInfo { name: name.into(), dtype, dims, kind: PortKind::Tensor }
    }

    /// Formats the type of the tensor; `string` is the element type of tensors of strings.
    pub fn type_text(&self) -> String {
        let text = match &self.dims {
            Some(dims) => Type::tensor_of(self.dtype, dims.iter().cloned()).to_string(),
            None => format!("Tensor[?, {}]", self.dtype),
        };
        if self.kind == PortKind::Strings { text.replace(self.dtype.name(), "string") } else { text }
    }
}

/// Inputs and outputs of a model, as the file declares them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// Inputs, in the order of the parameters of `@main`; a value that is no tensor has several.
    pub inputs: Vec<PortInfo>,
    /// Outputs, in the order of the result fields. Their declared dimensions are informational only.
    pub outputs: Vec<PortInfo>,
    /// Inputs with a default value, in the order of the file; `@main` has no parameters for them.
    pub optional: Vec<OptionalInput>,
    /// Names of all inputs in the order of the file, each with `true` if the input has a default value.
    pub declared: Vec<(String, bool)>,
}

/// Input with a default value.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionalInput {
    /// Input as declared.
    pub port: PortInfo,
    /// True if only a program that was built for the purpose takes another value. In files of older formats, every weight
    /// is an optional input.
    pub is_weight: bool,
}

impl Signature {
    /// Returns the names of the symbolic dimensions of the inputs, sorted.
    pub fn symbols(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .inputs
            .iter()
            .flat_map(|input| input.dims.iter().flatten())
            .flat_map(Dim::symbols)
            .map(|name| name.to_string())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Moves the optional inputs with one of the given names to the end of the inputs.
    pub fn with_given(mut self, options: &LoadOptions) -> Signature {
        if options.keeps_optional {
            return self;
        }
        let is_given = |name: &String| options.given.contains(name) || options.input_shapes.contains_key(name);
        let (given, optional) = self.optional.into_iter().partition(|input| is_given(&input.port.name));
        self.optional = optional;
        let given: Vec<OptionalInput> = given;
        self.inputs.extend(given.into_iter().map(|input| input.port));
        self
    }
}

/// Result of reading a model.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Module whose `@main` takes the inputs in order and returns the output, or a tuple of the outputs.
    pub module: Module,
    /// Inputs and outputs, as the file declares them.
    pub signature: Signature,
    /// Default values of the last inputs, which [`LoadOptions::given`] names.
    pub defaults: Vec<Tensor>,
    /// Values of the bound symbolic dimensions, by name.
    pub bound: BTreeMap<String, usize>,
    /// Names of the symbolic dimensions that the module assumes to differ from 1.
    pub excluded_ones: BTreeSet<String>,
    /// Non-fatal diagnostics.
    pub warnings: Vec<Diagnostic>,
    /// BLAKE3 digest of the model's bytes, in hexadecimal.
    pub digest: String,
    /// True if the digest covers everything that was read, false if tensors came from other files.
    pub is_self_contained: bool,
}

/// Creates the diagnostic for an unreadable model file.
pub fn unreadable(path: &Path, error: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::error(codes::frontends::UNREADABLE_MODEL, format!("cannot read {}: {error}", path.display()))
}

/// Binds the input dimensions. Returns the parameter types of `@main` and the values of the bound dimensions.
///
/// # Errors
/// If a binding names an unknown input or dimension, a shape does not match, or a dimension or rank remains unbound.
pub fn bind(
    signature: &Signature,
    options: &LoadOptions,
) -> Result<(Vec<Type>, BTreeMap<String, usize>), Vec<Diagnostic>> {
    let mut errors = Reports::default();
    let check_cancelled = |i: usize| match i % 1024 {
        0 => cancel::check(|| "the inputs of the model were being read".to_owned()).map_err(|reason| vec![reason]),
        _ => Ok(()),
    };
    let binding_error = |message: String| Diagnostic::error(codes::frontends::BAD_BINDING, message);
    let symbols = signature.symbols();
    let named_dims = options.dims.keys().chain(&options.open).chain(options.specialized.keys());
    for name in named_dims.filter(|name| !symbols.contains(name)) {
        let mut diagnostic = binding_error(format!("the model has no symbolic dimension \"{name}\""));
        diagnostic = match (nearest(name, symbols.iter().map(String::as_str)), symbols.as_slice()) {
            (Some(near), _) => diagnostic.help(format!("did you mean \"{near}\"?")),
            (None, []) => diagnostic.note("all dimensions of the model are fixed"),
            (None, all) => diagnostic.note(format!("symbolic dimensions: {}", list(all, ", "))),
        };
        errors.add(|| diagnostic);
    }
    let all_inputs = || signature.inputs.iter().chain(signature.optional.iter().map(|input| &input.port));
    for name in options.input_shapes.keys().filter(|name| !all_inputs().any(|input| input.name == **name)) {
        let names: Vec<&str> = signature.inputs.iter().map(|i| i.name.as_str()).collect();
        let mut diagnostic = binding_error(format!("the model has no input \"{name}\"")).note(match names.as_slice() {
            [] => "the model has no inputs".to_owned(),
            names => format!("model inputs: {}", list(names, ", ")),
        });
        if let Some(near) = nearest(name, names) {
            diagnostic = diagnostic.help(format!("did you mean \"{near}\"?"));
        }
        errors.add(|| diagnostic);
    }

    let mut bound: BTreeMap<String, usize> = options.dims.clone();
    let is_bound_by_shape = |name: &str| !options.open.contains(name) && !options.specialized.contains_key(name);
    bound.retain(|name, _| is_bound_by_shape(name));
    let mut sizes = bound.clone();
    for input in &signature.inputs {
        let (Some(dims), Some(shape)) = (&input.dims, options.input_shapes.get(&input.name)) else { continue };
        let is_compatible = dims.len() == shape.len()
            && dims.iter().zip(shape).all(|(dim, &size)| match dim {
                Dim::Fixed(n) => *n == size,
                Dim::Any => true,
                dim => match dim.name() {
                    Some(name) => *sizes.entry(name.to_string()).or_insert(size) == size,
                    None => true,
                },
            });
        if !is_compatible {
            let bindings: Vec<String> = dims
                .iter()
                .flat_map(Dim::symbols)
                .filter_map(|name| sizes.get(&**name).map(|size| format!("{name} = {size}")))
                .collect();
            let expected = input.type_text();
            let mut diagnostic =
                binding_error(format!("input \"{}\": expected {expected}, found {shape:?}", input.name));
            if !bindings.is_empty() {
                diagnostic = diagnostic.note(format!("where {}", list(bindings, ", ")));
            }
            errors.add(|| diagnostic);
        }
    }

    bound = sizes;
    bound.retain(|name, _| is_bound_by_shape(name));
    bound.extend(options.specialized.clone());

    let mut identifiers = Identifiers::default();
    let unbound_symbols = symbols.iter().filter(|name| options.open_unbound && !bound.contains_key(*name));
    let symbolic_names = options.open.iter().chain(unbound_symbols).map(String::as_str);
    let open_names: BTreeSet<&str> = symbolic_names.filter(|name| !options.specialized.contains_key(*name)).collect();
    let dims_of_symbol: BTreeMap<&str, Dim> =
        open_names.into_iter().map(|name| (name, Dim::symbol(identifiers.unique(name)))).collect();
    let mut types = Vec::new();
    let mut inputs_of_unbound: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (i, input) in signature.inputs.iter().enumerate() {
        check_cancelled(i)?;
        let shape_option = options.input_shapes.get(&input.name);
        let shape: Option<Vec<Dim>> = match (&input.dims, shape_option) {
            (None, shape_option) => {
                if shape_option.is_none() {
                    errors.add(|| {
                        Diagnostic::error(
                            codes::frontends::UNBOUND_DIMENSION,
                            format!("the model does not specify the rank of input \"{}\"", input.name),
                        )
                        .help(format!("pass a value for the input: --input {}=FILE", input.name))
                    });
                }
                // The shapes of an input sequence, of which only their rank is bound, unless it is empty.
                let is_free = |axis: usize, n: usize| input.kind == PortKind::Part && axis == 0 && n > 0;
                let dim = |(axis, &n): (usize, &usize)| if is_free(axis, n) { Dim::Any } else { Dim::Fixed(n) };
                shape_option.map(|shape| shape.iter().enumerate().map(dim).collect())
            }
            (Some(dims), _) => dims
                .iter()
                .enumerate()
                .map(|(axis, dim)| match dim {
                    Dim::Symbolic(_) => {
                        for name in dim.symbols() {
                            if !dims_of_symbol.contains_key(&**name) && !bound.contains_key(&**name) {
                                inputs_of_unbound.entry(name.to_string()).or_default().push(&input.name);
                            }
                        }
                        let size_of = |name: &str| bound.get(name).map(|&n| Dim::Fixed(n));
                        Some(dim.with_dims(|name| dims_of_symbol.get(name).cloned().or_else(|| size_of(name))))
                    }
                    Dim::Any if input.kind != PortKind::Tensor => Some(Dim::Any),
                    Dim::Any => {
                        Some(shape_option.and_then(|shape| shape.get(axis)).map_or(Dim::Any, |&n| Dim::Fixed(n)))
                    }
                    fixed => Some(fixed.clone()),
                })
                .collect(),
        };
        let ty = Type::tensor_of(input.dtype, shape.unwrap_or_default());
        if let Some(fault) = ty.tensor_fault() {
            errors.add(|| binding_error(format!("input \"{}\": {fault}", input.name)));
        }
        types.push(ty);
    }
    for (name, inputs) in inputs_of_unbound {
        errors.add(|| {
            let inputs = list(inputs.iter().map(|input| format!("input \"{input}\"")), " and ");
            Diagnostic::error(
                codes::frontends::UNBOUND_DIMENSION,
                format!("unbound symbolic dimension \"{name}\" of {inputs}"),
            )
            .help(format!(
                "bind it with --dim {name}=N, or pass the input to \"byoc run\"; --dim \"{name}=?\" keeps it symbolic"
            ))
        });
    }
    if errors.is_empty() { Ok((types, bound)) } else { Err(errors.into_vec()) }
}

/// Generator of unique text-format identifiers, which consist of letters, digits and underscores.
#[derive(Default)]
pub struct Identifiers {
    used: std::collections::HashSet<String>,
    /// Next suffix of each identifier that is taken.
    suffixes: std::collections::HashMap<String, usize>,
}

impl Identifiers {
    /// Returns `name` as an identifier, with a numeric suffix if the identifier is taken.
    pub fn unique(&mut self, name: &str) -> String {
        let mut stem: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
        if !stem.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            stem.insert(0, '_');
        }
        if self.used.insert(stem.clone()) {
            return stem;
        }
        let suffix = self.suffixes.entry(stem.clone()).or_insert(1);
        loop {
            let candidate = format!("{stem}_{suffix}");
            *suffix += 1;
            if self.used.insert(candidate.clone()) {
                return candidate;
            }
        }
    }
}
