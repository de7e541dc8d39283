//! Verdicts: what never goes is refused by a table, the rest is asked of the library's parser.
//!
//! A verdict depends on operators, types and attributes, and on the values of small constants (sizes, axes, indices);
//! it is kept by their digest, as a network repeats its layers.

use crate::library::{Network, TensorRt};
use crate::operators::COMMON;
use crate::options::{Capability, Options};
use crate::{engine, model};
use byoc_plugin_api::{Constant, DType, Dim, Graph, NodeKind, RefusalCode, Services, TensorType};
use byoc_plugin_support::refusal::{CompileError, refuse};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Element types of tensors at the border of an engine.
const DTYPES: [DType; 8] =
    [DType::F32, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I32, DType::I64, DType::BOOL];
/// Maximum number of dimensions.
const MAX_RANK: usize = 8;
/// Maximum number of elements of a constant whose values may decide a verdict.
const MAX_SMALL_ELEMENTS: usize = 64;
/// Maximum number of verdicts that are kept.
const MAX_VERDICTS: usize = 1 << 16;

/// Verdicts by digest.
#[derive(Default)]
pub struct Verdicts(Mutex<BTreeMap<[u8; 32], Result<(), CompileError>>>);

impl Verdicts {
    /// Returns the verdict on a graph, from the parser unless it is known.
    ///
    /// # Errors
    /// The refusal.
    pub fn of(
        &self,
        library: &TensorRt,
        services: &Services,
        (graph, constants): (&Graph, &[Constant]),
        options: &Options,
    ) -> Result<(), CompileError> {
        let key = digest(graph, constants, options);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return known;
        }
        let verdict = ask(library, services, (graph, constants), options);
        let mut verdicts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if verdicts.len() < MAX_VERDICTS {
            verdicts.insert(key, verdict.clone());
        }
        verdict
    }
}

/// Refuses element types and ranks that no engine has, empty tensors, and dimensions that the data decide.
///
/// # Errors
/// The refusal.
pub fn check_types(graph: &Graph) -> Result<(), CompileError> {
    let outputs = graph.output_types();
    for (role, ty) in graph.inputs.iter().map(|input| ("input", &input.ty)).chain(outputs.map(|ty| ("output", ty))) {
        if !DTYPES.contains(&ty.dtype) {
            let list = DTYPES.map(|dtype| dtype.to_string()).join(", ");
            return refuse(RefusalCode::UnsupportedDtype, format!("{role}: expected {list}, found {}", ty.dtype));
        }
        if ty.rank() > MAX_RANK {
            let detail = format!("{role}: expected at most {MAX_RANK} dimensions, found {}", ty.rank());
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
        if ty.dims.iter().any(|dim| *dim == Dim::Known(0)) {
            return refuse(
                RefusalCode::UnsupportedShape,
                format!("{role}: expected a tensor with elements, found none"),
            );
        }
        if ty.dims.iter().any(|dim| matches!(dim, Dim::Unknown(name) if name.is_empty() || name == "?")) {
            let detail =
                format!("{role}: expected dimensions that follow from those of the inputs, found unknown ones");
            return refuse(RefusalCode::DynamicDim, detail);
        }
    }
    Ok(())
}

/// Digest of what a verdict depends on.
fn digest(graph: &Graph, constants: &[Constant], options: &Options) -> [u8; 32] {
    let mut anonymous = graph.clone();
    strip(&mut anonymous);
    let mut hasher = blake3::Hasher::new();
    hasher.update(anonymous.to_json().as_bytes());
    hasher.update(format!("{:?} {:?}", options.capabilities, options.profile).as_bytes());
    for constant in constants {
        hasher.update(constant.dtype().to_string().as_bytes());
        let is_small = constant.shape().iter().product::<usize>() <= MAX_SMALL_ELEMENTS;
        if is_small {
            hasher.update(constant.bytes());
        }
    }
    *hasher.finalize().as_bytes()
}

/// Removes the names of a graph and of the bodies in it, which do not bear on a verdict.
fn strip(graph: &mut Graph) {
    // Composites hold operators and loops, loops only operators, so the stack is at most three deep.
    let mut stack = vec![graph];
    while let Some(graph) = stack.pop() {
        graph.symbol = "".into();
        for node in &mut graph.nodes {
            node.sources.clear();
            if let NodeKind::Composite(composite) = &mut node.kind {
                stack.push(&mut composite.body);
            }
        }
    }
}

/// Asks the parser, compares inputs and outputs of the network with those of the graph, and builds an engine where the
/// parser's consent is no promise.
fn ask(
    library: &TensorRt,
    services: &Services,
    (graph, constants): (&Graph, &[Constant]),
    options: &Options,
) -> Result<(), CompileError> {
    let model = model::write(services, graph, constants)?;
    let parsed = Network::parse(library, &model.bytes, |network| {
        model::check_ports(network, graph, &model)?;
        if !needs_trial(graph, options) {
            return Ok(());
        }
        let built = engine::build(network, options, &model, graph, services);
        built.map(drop).map_err(|error| CompileError {
            code: RefusalCode::UnsupportedOp,
            detail: format!("{}: {}", names(graph), error.message),
            hint: error.hint.to_string(),
        })
    });
    parsed.unwrap_or_else(|errors| Err(model::refusal_of(&errors, graph, &model)))
}

/// Returns true if an engine is built before the verdict: for operators and types that not every engine has, and for the
/// oldest capability, which lacks more than others.
fn needs_trial(graph: &Graph, options: &Options) -> bool {
    let operators = graph.operators();
    let is_common = |name: &str| COMMON.contains(&name);
    let is_float = |ty: &TensorType| ty.dtype == DType::F32;
    options.capabilities.contains(&Capability::Of(75))
        || !operators.iter().all(|(name, node, _)| is_common(name) && node.outputs.iter().all(is_float))
}

/// Lists the first operators of a graph.
fn names(graph: &Graph) -> String {
    let operators = graph.operators();
    let list: Vec<&str> = operators.iter().take(3).map(|(name, ..)| *name).collect();
    list.join(", ")
}
