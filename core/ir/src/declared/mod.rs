//! Operators that are not Relay's: a vendor declares them, with their form in ONNX, their types as shape expressions, and a
//! decomposition into known operators where there is one.
//!
//! A declared operator is an entry of the operator table like any other, so that the text form, patterns, passes and
//! backends know it. It is added while the process runs, and stays: its plugin is never unloaded either. The table is
//! append-only, so an [`OpId`] keeps its meaning.
//!
//! Two things follow from the order of registration: a decomposition is checked when its operator is not yet in the
//! table, so it cannot refer to itself, however indirectly; and of two declarations of one name, only equal ones are
//! accepted.

mod decompose;
mod read;
mod relation;

use crate::ir::{AttrValue, Dim, Module, OpId, Type};
use crate::op::{self, AttrDef, ErrorModel, Evaluation, OpDef, Params, Properties};
use crate::tensor::{DType, TensorView, TensorViewMut};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Implementation of an operator by a function of the process, which computes the outputs from the inputs.
pub type Function =
    Box<dyn Fn(&Params<'_>, &[TensorView<'_>], &mut [TensorViewMut<'_>]) -> Evaluation + Send + Sync + 'static>;

/// Form of an operator in ONNX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxForm {
    /// Domain: `com.vendor`.
    pub domain: String,
    /// Name in the domain.
    pub name: String,
    /// First version of the domain's operator set with this meaning.
    pub version: i64,
}

/// Input or output of a declared operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Name; empty for an output.
    pub name: &'static str,
    /// Permitted element types of an input; any if there are none.
    pub dtypes: Vec<DType>,
    /// Name of the input whose element type an output has; empty if `dtypes` has the type of the output.
    pub same_dtype: String,
    /// True if any number of dimensions precedes `dims`: `...` in the declaration.
    pub leading: bool,
    /// Dimensions: numbers and names for an input, expressions over these for an output. `None` for any.
    pub dims: Option<Vec<Dim>>,
}

/// Declared operator.
pub struct Declared {
    /// Name in Relay.
    pub name: &'static str,
    /// Plugin or program that declares it.
    pub plugin: String,
    /// Form in ONNX, if it has one.
    pub onnx: Option<OnnxForm>,
    /// Inputs.
    pub inputs: Vec<Port>,
    /// Outputs; none if the decomposition gives their types.
    pub outputs: Vec<Port>,
    /// Body of a function in Relay text, over the names of the inputs (`%data`) and of the attributes (`$beta`).
    pub decomposition: Option<String>,
    /// Sizes that the names of dimensions may have in generated cases.
    pub sizes: BTreeMap<String, Vec<usize>>,
    function: Option<Function>,
    /// The declaration, to be compared with another one of the same name.
    source: Value,
}

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Declared({}, {})", self.name, self.plugin)
    }
}

impl Declared {
    /// Returns the declaration of an operator; `None` for an operator of Relay.
    pub fn of(def: &OpDef) -> Option<&'static Declared> {
        def.declaration?.downcast_ref()
    }

    /// Returns true if the operator can be computed without a backend.
    pub fn has_reference(&self) -> bool {
        self.decomposition.is_some() || self.function.is_some()
    }

    /// Returns the decomposition for a call, as a module whose `@main` takes the arguments of the call. `None` without a
    /// decomposition.
    ///
    /// # Errors
    /// If the decomposition is not well typed for these arguments.
    pub fn decompose(
        &self,
        params: &Params<'_>,
        args: &[Type],
    ) -> Option<Result<Module, Box<crate::diag::Diagnostic>>> {
        self.decomposition.as_ref().map(|text| decompose::module_of(self, text, params, args))
    }

    /// Returns the types of arguments for which the declaration can be checked: each name of a dimension is the first of
    /// its sizes, or 4.
    fn sample(&self) -> Vec<Type> {
        let size = |name: &str| Some(self.sizes.get(name).and_then(|sizes| sizes.first()).copied().unwrap_or(4));
        let types = self.inputs.iter().map(|input| {
            let dims = input.dims.iter().flatten().map(|dim| dim.with_sizes(size).number());
            let leading = (input.leading || input.dims.is_none()).then_some(2);
            let shape: Vec<usize> = leading.into_iter().chain(dims).collect();
            Type::tensor(input.dtypes.first().copied().unwrap_or(DType::F32), &shape)
        });
        types.collect()
    }
}

/// Declares an operator, as `{"name": ..., "inputs": [...], ...}`; see docs/boundary.md. A declaration equal to an earlier
/// one of the same name changes nothing.
///
/// # Errors
/// What is wrong with the declaration, one line each, with the key at fault.
pub fn declare(plugin: &str, source: &Value, function: Option<Function>) -> Result<OpId, Vec<String>> {
    static DECLARING: Mutex<()> = Mutex::new(());
    let _guard = DECLARING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(id) = source["name"].as_str().and_then(op::lookup) {
        return existing(id, plugin, source).map_err(|fault| vec![fault]);
    }
    let (declared, attrs, about, ulps) = read::read(plugin, source, function)?;
    let names: Vec<&'static str> = declared.inputs.iter().map(|input| input.name).collect();
    let has_reference = declared.has_reference();
    let declared: &'static Declared = Box::leak(Box::new(declared));
    let error = if ulps == 0.0 { ErrorModel::Exact } else { ErrorModel::Ulps(ulps) };
    let def = OpDef {
        name: declared.name,
        doc: leak(about),
        arity: op::Arity::exactly(names.len()),
        inputs: Box::leak(names.into_boxed_slice()),
        attrs: Box::leak(attrs.into_boxed_slice()),
        pattern: op::OpPattern::Opaque,
        relation: relation::relate,
        reference: has_reference.then_some(decompose::evaluate as op::Reference),
        flops: decompose::flops,
        properties: Properties::EXACT.error(error),
        declaration: Some(declared),
    };
    let def: &'static OpDef = Box::leak(Box::new(def));
    check(declared, def)?;
    Ok(op::add(def))
}

/// Returns the id of an operator that is declared again.
fn existing(id: OpId, plugin: &str, source: &Value) -> Result<OpId, String> {
    let def = op::get(id);
    match Declared::of(def) {
        None => Err(format!("\"name\": expected a name that no operator of Relay has, found {}", def.name)),
        Some(declared) if declared.source == *source => Ok(id),
        Some(declared) => Err(format!(
            "\"name\": {plugin} declares {}, which {} declares otherwise: rename one of them",
            def.name, declared.plugin
        )),
    }
}

/// Checks types and decomposition on sample arguments.
fn check(declared: &'static Declared, def: &'static OpDef) -> Result<(), Vec<String>> {
    let attrs = def.attrs.iter().filter(|attr| attr.default == op::Default::Required);
    let attrs = crate::ir::Attrs::new(attrs.map(|attr| (attr.name, sample_value(attr))));
    let args = declared.sample();
    let values = vec![None; args.len()];
    let fault = |key: &str, error: &crate::diag::Diagnostic| {
        let notes = error.notes.iter().map(|note| format!(": {note}"));
        vec![format!("\"{key}\": {}{}", error.message, notes.collect::<String>())]
    };
    let ret = def.infer(&attrs, &args, &values);
    let key = if declared.outputs.is_empty() { "decomposition" } else { "outputs" };
    let ret = ret.map_err(|error| fault(key, &error))?;
    let Some(module) = declared.decompose(&Params::new(def, &attrs), &args) else { return Ok(()) };
    let module = module.map_err(|error| fault("decomposition", &error))?;
    let found = module.main().map(|main| module.ty(main.body).clone()).unwrap_or(Type::Unknown);
    if found == ret {
        return Ok(());
    }
    Err(vec![format!(
        "\"decomposition\": expected the type of \"outputs\", {ret}, found {found}, for sample arguments"
    )])
}

fn sample_value(attr: &AttrDef) -> AttrValue {
    match attr.kind {
        op::AttrKind::Float => AttrValue::Float(1.0),
        op::AttrKind::Bool => AttrValue::Bool(false),
        op::AttrKind::Str => AttrValue::Str("".into()),
        op::AttrKind::Ints | op::AttrKind::Floats => AttrValue::ints([1]),
        _ => AttrValue::Int(1),
    }
}

/// Returns the operator that a node of ONNX calls: of those with this domain and name, the newest that is not newer than
/// `version`.
pub fn by_onnx(domain: &str, name: &str, version: i64) -> Option<(&'static OpDef, &'static Declared)> {
    let candidates = all().filter(|(_, declared)| {
        declared.onnx.as_ref().is_some_and(|form| form.domain == domain && form.name == name && form.version <= version)
    });
    candidates.max_by_key(|(_, declared)| declared.onnx.as_ref().map_or(0, |form| form.version))
}

/// Returns the declared operators, in the order of their declaration.
pub fn all() -> impl Iterator<Item = (&'static OpDef, &'static Declared)> {
    op::added().into_iter().filter_map(|def| Some((def, Declared::of(def)?)))
}

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}
