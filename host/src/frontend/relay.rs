//! Modules in the Relay text format, with large constants in a safetensors file next to the text.
//!
//! `model.relay` is accompanied by `model.relay.safetensors` or `model.safetensors`; `meta[relay.Constant][i]` in the
//! text is the tensor named `i` in that file.
//!
//! Names of inputs and outputs that Relay's notation cannot spell are kept in the attributes `input_names` and `output_names`
//! of `@main`.

use super::{LoadOptions, Loaded, PortInfo, Signature, unreadable};
use crate::io;
use byoc_core::analysis::verifier;
use byoc_core::pass::{infer_type, monomorphize};
use byoc_ir::diag::{Diagnostic, Lines, Span, codes, list, nearest};
use byoc_ir::ir::{AttrValue, Dim, Expr, ExprId, Fault, Id, IndexVec, Module, OpId, Origins, Source, Type};
use byoc_ir::op;
use byoc_ir::tensor::Tensor;
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use byoc_runtime::error::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Position of each expression in the text.
type Spans = IndexVec<ExprId, Span>;

/// Parses a module, without inferring types or binding dimensions.
///
/// # Errors
/// If the text is invalid (every error is reported), or the weights file is missing or corrupt.
pub fn read(path: &Path) -> Result<Module, Failure> {
    parse_file(path).map(|text| text.module)
}

/// Reads a module and verifies its structure; the types remain as written.
///
/// # Errors
/// If the text is invalid (every error is reported), or the module violates the structural rules.
pub fn read_verified(path: &Path) -> Result<Module, Failure> {
    let ParsedText { source, module, spans } = parse_file(path)?;
    let faults = verifier::structure_faults(&module);
    if faults.is_empty() {
        return Ok(module);
    }
    let diagnostics: Vec<Diagnostic> = faults.into_iter().map(|fault| fault.located(&spans)).collect();
    Err(Failure::from(diagnostics).in_source(&path.display().to_string(), &source))
}

/// Reads a module, which need not have a `@main`, and infers its types; named dimensions remain unknown.
///
/// # Errors
/// If the module is invalid; all errors that can be detected together are reported.
pub fn read_typed(path: &Path) -> Result<Module, Failure> {
    let ParsedText { source, module, spans } = parse_file(path)?;
    infer_types(path, &module, &source, &spans)
}

fn infer_types(path: &Path, module: &Module, source: &str, spans: &Spans) -> Result<Module, Failure> {
    infer_type(module).map_err(|faults| {
        let diagnostics: Vec<Diagnostic> = faults.into_iter().map(|fault| fault.located(spans)).collect();
        Failure::from(diagnostics).in_source(&path.display().to_string(), source)
    })
}

/// Reads a module with `@main` and infers its types. Named dimensions are bound as `options` specifies; the remaining
/// dimensions stay unknown.
///
/// # Errors
/// If the module is invalid; all errors that can be detected together are reported.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, Failure> {
    let text = parse_file(path)?;
    let mut module = text.module;
    name_origins(&mut module, &text.source, &text.spans);
    let bound = bind(&mut module, options)?;
    let module = infer_types(path, &module, &text.source, &text.spans)?;
    let module = monomorphize(&module)?;
    let signature = signature(&module)?;
    let digest = io::mapped::digest(text.source.as_bytes()).to_hex().to_string();
    let (defaults, excluded_ones, warnings) = (Vec::new(), BTreeSet::new(), Vec::new());
    Ok(Loaded { module, signature, defaults, bound, excluded_ones, warnings, digest, is_self_contained: false })
}

/// Prepares a module that was built in memory. Operators without an origin are named after their position in the module;
/// named dimensions are bound as `options` specifies.
///
/// # Errors
/// If the module is invalid, or has no `@main`.
pub fn of_module(module: &Module, options: &LoadOptions) -> Result<Loaded, Failure> {
    let faults = verifier::structure_faults(module);
    if !faults.is_empty() {
        return Err(Failure::from(faults.into_iter().map(|fault| fault.diagnostic).collect::<Vec<_>>()));
    }
    let mut module = module.clone();
    for (id, op) in operator_calls(&module) {
        if module.nodes[id].origin == Origins::none() {
            let name = format!("%{}", id.index()).as_str().into();
            module.nodes[id].origin = module.origins.add_source(Source { name, op: op::get(op).name.into() });
        }
    }
    let bound = bind(&mut module, options)?;
    let diagnostics = |faults: Vec<Fault>| faults.into_iter().map(|fault| fault.diagnostic).collect::<Vec<_>>();
    let module = infer_type(&module).map_err(diagnostics)?;
    let module = monomorphize(&module)?;
    let signature = signature(&module)?;
    let (defaults, excluded_ones, warnings) = (Vec::new(), BTreeSet::new(), Vec::new());
    let digest = String::new();
    Ok(Loaded { module, signature, defaults, bound, excluded_ones, warnings, digest, is_self_contained: false })
}

fn operator_calls(module: &Module) -> Vec<(ExprId, OpId)> {
    module.nodes.iter().filter_map(|(id, node)| Some((id, node.expr.as_op_call()?.0))).collect()
}

/// Writes a module as text, and the constants that the text does not contain to a file beside it. Either both files or
/// neither file is written.
///
/// # Errors
/// If a file cannot be written, the text exceeds the memory limit, or the work is cancelled.
pub fn write(path: &Path, module: &Module) -> Result<(), Diagnostic> {
    let module_text = print(module, &PrintOptions::default()).complete()?;
    let text = module_text.text.as_bytes();
    if module_text.constants.is_empty() {
        return io::write_together(&[(path, text)]);
    }
    let named_constants = module_text.constants.iter().enumerate().map(|(i, tensor)| (i.to_string(), &**tensor));
    let [weights, _] = weights_files(path);
    let bytes = io::weights::serialize(named_constants).map_err(|e| io::cannot_write(&weights, &e))?;
    io::write_together(&[(&weights, &bytes), (path, text)])
}

/// Attributes of `@main` with the names of its inputs and outputs.
const INPUT_NAMES: &str = "input_names";
const OUTPUT_NAMES: &str = "output_names";

/// Returns a typed module whose `@main` keeps the names of the ports of `names`, where its own names differ.
///
/// # Errors
/// If the module has no `@main`, or it has other values than tensors as inputs and outputs.
pub fn with_names(module: &Module, names: &Signature) -> Result<Module, Diagnostic> {
    let own = signature(module)?;
    let mut module = module.clone();
    let Some(&main) = module.globals.get("main") else { return Ok(module) };
    for (key, own, ports) in [(INPUT_NAMES, &own.inputs, &names.inputs), (OUTPUT_NAMES, &own.outputs, &names.outputs)] {
        let differs = own.iter().zip(ports).any(|(own, port)| own.name != port.name);
        if own.len() == ports.len()
            && differs
            && let Expr::Function(function) = &mut module.nodes[main].expr
        {
            let list = ports.iter().map(|port| AttrValue::from(spelled(&port.name).as_str()));
            function.attrs = function.attrs.with(key, AttrValue::List(list.collect()));
        }
    }
    Ok(module)
}

/// Spells a name as a string of Relay's notation, which has no escapes: other characters are written as `%XX`.
fn spelled(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if matches!(c, '"' | '\\' | '%') || c.is_control() {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
        } else {
            text.push(c);
        }
    }
    text
}

/// Returns the name that a string spells.
fn unspelled(text: &str) -> String {
    let (bytes, mut name, mut i) = (text.as_bytes(), Vec::new(), 0);
    while i < bytes.len() {
        let code = text.get(i + 1..i + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (bytes[i], code) {
            (b'%', Some(byte)) => {
                name.push(byte);
                i += 3;
            }
            (byte, _) => {
                name.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&name).into_owned()
}

/// Returns the names in an attribute of `@main`, if there are `count` of them.
fn kept_names(module: &Module, key: &str, count: usize) -> Option<Vec<String>> {
    let AttrValue::List(names) = module.main()?.attrs.get(key)? else { return None };
    let names: Option<Vec<String>> = names.iter().map(|name| name.as_str().map(unspelled)).collect();
    names.filter(|names| names.len() == count)
}

/// Returns the names of the parameters of `@main`, as the model has them.
fn input_names(module: &Module, params: &[ExprId]) -> Vec<String> {
    let own = || {
        params.iter().filter_map(|&param| match module.expr(param) {
            Expr::Var(var) => Some(var.name.to_string()),
            _ => None,
        })
    };
    kept_names(module, INPUT_NAMES, params.len()).unwrap_or_else(|| own().collect())
}

struct ParsedText {
    source: String,
    module: Module,
    spans: Spans,
}

fn parse_file(path: &Path) -> Result<ParsedText, Failure> {
    let source = io::read_text(path).map_err(|e| unreadable(path, e))?;
    let (constants, missing_file) = match weights_files(path).into_iter().find(|file| file.exists()) {
        Some(file) => (read_constants(&file)?, None),
        None => (Vec::new(), Some(weights_files(path))),
    };
    let mut parsed_text = parse(&source, &ParseOptions { constants: &constants });
    if !parsed_text.diagnostics.is_empty() {
        let mut diagnostics = parsed_text.diagnostics;
        let has_unreadable_constants = diagnostics.iter().any(|d| d.code == codes::text::BAD_METADATA);
        if let Some(files) = missing_file.filter(|_| has_unreadable_constants) {
            let searched_files: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
            diagnostics.push(
                Diagnostic::error(
                    codes::frontends::MISSING_WEIGHTS,
                    format!("{}: missing weights file", path.display()),
                )
                .note(format!("looked for {}", searched_files.join(" and "))),
            );
        }
        return Err(Failure::from(diagnostics).in_source(&path.display().to_string(), &source));
    }
    parsed_text.define_main().map_err(|error| Failure::from(*error).in_source(&path.display().to_string(), &source))?;
    Ok(ParsedText { source, module: parsed_text.module, spans: parsed_text.spans })
}

/// Returns the candidate weights files for a text file, the default first.
fn weights_files(path: &Path) -> [PathBuf; 2] {
    let mut weights_path = path.as_os_str().to_owned();
    weights_path.push(".safetensors");
    [PathBuf::from(weights_path), path.with_extension("safetensors")]
}

/// Reads the tensors named 0, 1, and so on.
fn read_constants(file: &Path) -> Result<Vec<Arc<Tensor>>, Diagnostic> {
    let mut tensors = io::weights::read(file)?;
    let constants: Vec<Arc<Tensor>> = (0..).map_while(|i| tensors.remove(&i.to_string())).map(Arc::new).collect();
    match tensors.keys().next() {
        None => Ok(constants),
        Some(name) => Err(Diagnostic::error(
            codes::frontends::MISSING_WEIGHTS,
            format!(
                "{}: expected only tensors named 0, 1, ..., found \"{name}\" and {} numbered tensors",
                file.display(),
                constants.len()
            ),
        )
        .note("the constants of a module are named 0, 1, and so on, without gaps")),
    }
}

/// Names each operator call after its position in the text.
fn name_origins(module: &mut Module, source: &str, spans: &Spans) {
    let lines = Lines::of(source);
    for (id, op) in operator_calls(module) {
        let start = spans.get(id).map_or(0, |span| span.start as usize);
        let line = lines.line(start);
        let column = start - lines.range(line).start + 1;
        let name = format!("{line}:{column}").as_str().into();
        module.nodes[id].origin = module.origins.add_source(Source { name, op: op::get(op).name.into() });
    }
}

/// Binds all occurrences of named dimensions according to the values in `options.dims` and the shapes in
/// `options.input_shapes`.
fn bind(module: &mut Module, options: &LoadOptions) -> Result<BTreeMap<String, usize>, Vec<Diagnostic>> {
    let binding_error = |message: String| Diagnostic::error(codes::frontends::BAD_BINDING, message);
    let mut names: Vec<String> = Vec::new();
    for ty in annotations(module) {
        visit_dims(ty, &mut |dim| {
            for name in dim.symbols() {
                if !names.iter().any(|n| **n == **name) {
                    names.push(name.to_string());
                }
            }
        });
    }
    names.sort();
    let mut errors = Vec::new();
    let mut bound = options.dims.clone();
    for name in options.dims.keys().chain(&options.open).filter(|name| !names.contains(name)) {
        let mut error = binding_error(format!("the module has no named dimension \"{name}\""));
        if let Some(suggestion) = nearest(name, names.iter().map(String::as_str)) {
            error = error.help(format!("did you mean \"{suggestion}\"?"));
        }
        errors.push(error);
    }
    let params: Vec<_> = module.main().map(|main| main.params.to_vec()).unwrap_or_default();
    let kept_names = kept_names(module, INPUT_NAMES, params.len());
    for (name, shape) in &options.input_shapes {
        let is_kept = |index: usize| kept_names.as_ref().is_some_and(|names| names[index] == *name);
        let param = params.iter().enumerate().filter_map(|(index, &p)| match module.expr(p) {
            Expr::Var(var) if *var.name == **name || is_kept(index) => Some(&var.annotation),
            _ => None,
        });
        let Some(annotation) = param.into_iter().next() else {
            let error = binding_error(format!("the module has no input \"{name}\""));
            errors.push(error.note(format!("inputs of @main: {}", list(input_names(module, &params), ", "))));
            continue;
        };
        let Some(tensor) = annotation.as_tensor() else { continue };
        let is_compatible = tensor.dims.len() == shape.len()
            && tensor.dims.iter().zip(shape).all(|(dim, &size)| match dim {
                Dim::Fixed(n) => *n == size,
                Dim::Any => true,
                unbound => match unbound.name() {
                    Some(name) => *bound.entry(name.to_string()).or_insert(size) == size,
                    // An expression over dimensions is checked at run time.
                    None => true,
                },
            });
        if !is_compatible {
            errors.push(binding_error(format!("input \"{name}\": expected {annotation}, found {shape:?}")));
        }
    }
    bound.retain(|name, _| !options.open.contains(name));
    if !errors.is_empty() {
        return Err(errors);
    }
    if !bound.is_empty() {
        let ids: Vec<_> = module.nodes.ids().collect();
        for id in ids {
            match &mut module.nodes[id].expr {
                Expr::Var(var) => var.annotation = substitute(&var.annotation, &bound),
                Expr::Function(function) => function.ret = substitute(&function.ret, &bound),
                _ => {}
            }
        }
    }
    Ok(bound)
}

fn annotations(module: &Module) -> impl Iterator<Item = &Type> {
    module.nodes.iter().filter_map(|(_, node)| match &node.expr {
        Expr::Var(var) => Some(&var.annotation),
        Expr::Function(function) => Some(&function.ret),
        _ => None,
    })
}

fn visit_dims(ty: &Type, visit: &mut impl FnMut(&Dim)) {
    ty.walk(&mut |part, _| {
        if let Type::Tensor(tensor) = part {
            tensor.dims.iter().for_each(&mut *visit);
        }
        part.has_open_dims()
    });
}

/// Replaces the bound dimensions in a type with their values.
fn substitute(ty: &Type, bound: &BTreeMap<String, usize>) -> Type {
    ty.map_leaves(&Type::has_open_dims, &mut |leaf, _| {
        let tensor = leaf.as_tensor()?;
        let dims = tensor.dims.iter().map(|dim| dim.with_sizes(|name| bound.get(name).copied()));
        Some(Type::tensor_of(tensor.dtype, dims))
    })
}

/// Returns the inputs and outputs of `@main`, with tuples flattened. A result is named by its position, and a field of
/// a tuple parameter by the parameter name, a dot and the position.
fn signature(module: &Module) -> Result<Signature, Diagnostic> {
    let main = module.main().ok_or_else(|| {
        let names: Vec<String> = module.globals.keys().map(|name| format!("@{name}")).collect();
        let error = Diagnostic::error(codes::frontends::BROKEN_MODEL, "the module has no @main");
        if names.is_empty() { error } else { error.note(format!("functions of the module: {}", names.join(", "))) }
    })?;
    let port = |name: String, ty: &Type| -> Result<PortInfo, Diagnostic> {
        let tensor = ty.as_tensor().ok_or_else(|| {
            let message = format!("{name} of @main: expected tensors, found {ty}");
            Diagnostic::error(codes::frontends::BAD_NODE, message)
                .note("inputs and outputs of @main are tensors and tuples of tensors")
        })?;
        Ok(PortInfo::tensor(name, tensor.dtype, Some(tensor.dims.to_vec())))
    };
    let mut inputs = Vec::new();
    for &param in &main.params {
        if let Expr::Var(var) = module.expr(param) {
            let ty = module.ty(param);
            let name = |i| if ty.as_tuple().is_some() { format!("{}.{i}", var.name) } else { var.name.to_string() };
            for (i, leaf) in tensor_types(ty).into_iter().enumerate() {
                inputs.push(port(name(i), leaf)?);
            }
        }
    }
    let results = tensor_types(module.ty(main.body)).into_iter().enumerate();
    let mut outputs: Vec<PortInfo> =
        results.map(|(i, ty)| port(format!("output_{i}"), ty)).collect::<Result<_, _>>()?;
    for (key, ports) in [(INPUT_NAMES, &mut inputs), (OUTPUT_NAMES, &mut outputs)] {
        let names = kept_names(module, key, ports.len()).unwrap_or_default();
        ports.iter_mut().zip(names).for_each(|(port, name)| port.name = name);
    }
    let declared = inputs.iter().map(|input| (input.name.clone(), false)).collect();
    Ok(Signature { inputs, outputs, optional: Vec::new(), declared })
}

/// Returns the leaves of a type from left to right, with nested tuples flattened.
fn tensor_types(ty: &Type) -> Vec<&Type> {
    let mut tensor_types = Vec::new();
    ty.walk(&mut |part, _| {
        let is_tuple = matches!(part, Type::Tuple(_));
        if !is_tuple {
            tensor_types.push(part);
        }
        is_tuple
    });
    tensor_types
}
