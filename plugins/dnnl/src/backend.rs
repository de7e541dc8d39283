//! Entry points of the backend: its code generator and its loader.

use crate::attributes::Attributes;
use crate::ir::RegionIr;
use crate::library::{FILE_NAME, onednn};
use crate::lower::{Packs, lower};
use crate::plan::{Plan, Step};
use crate::runtime::LoadedRegion;
use crate::translate::table;
use crate::{blob, options, patterns};
use byoc_plugin_api::{
    Attr, Candidate, CandidateKind, Codegen, CompiledRegion, Cost, DESCRIBE_KEY, Description, Dim, Error, Executable,
    Graph, LoadRequest, Loader, RefusalCode, Region, Result, Signature, Source, Verdict,
};
use byoc_plugin_support::dims;
use serde_json::json;
use std::collections::BTreeSet;

/// Loader key, as in `loadbinary_<key>`.
pub const LOADER: &str = "dnnl_json";

/// Code generator `relay.ext.dnnl`.
pub struct Dnnl;

/// Loader `loadbinary_dnnl_json`.
pub struct JsonLoader;

/// Minimum number of floating-point operations in a profitable region: about ten microseconds on one core.
const MIN_FLOPS: u64 = 20_000;

/// Maximum size in bytes of the tensors of an operator that the library's reference code computes.
const MAX_SLOW_BYTES: usize = 64 << 10;

/// Value substituted for symbolic dimensions when a region is judged.
const SAMPLE_DIM: usize = 4;

/// Returns the input dimensions, with [`SAMPLE_DIM`] substituted for each symbol.
fn sample_shapes(graph: &Graph) -> Vec<Vec<i64>> {
    let size = |dim: &Dim| {
        let size = dims::size(dim, &mut |_| Some(SAMPLE_DIM));
        size.filter(|&size| size > 0 || *dim == Dim::Known(0)).unwrap_or(SAMPLE_DIM) as i64
    };
    graph.inputs.iter().map(|input| input.ty.dims.iter().map(size).collect()).collect()
}

fn is_dynamic(graph: &Graph) -> bool {
    graph.inputs.iter().any(|input| input.ty.shape().is_none())
}

/// Returns true for a concatenation along an outermost dimension that becomes known at run time. This is how a loop
/// collects its results: in a region with the rest of its body, it would change the dimensions in every iteration.
fn appends_to_unknown_size(graph: &Graph) -> bool {
    graph.nodes.iter().filter(|node| node.op() == Some("concatenate")).any(|node| {
        let rank = node.outputs.first().map_or(0, |ty| ty.rank());
        Attributes::of(node).axis("axis", 0, rank) == Ok(0) && matches!(node.outputs[0].dims[0], Dim::Unknown(_))
    })
}

impl Codegen for Dnnl {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "runs networks on oneDNN: channels-last layouts, fused operators, packed weights".into(),
            patterns: patterns::table(),
            operators: table::operators_outside_composites().map(str::to_owned).collect(),
            dynamic_dims: true,
            cost: Cost { min_region_flops: MIN_FLOPS, min_region_operators: 1 },
            finite_math: true,
            flush_to_zero: true,
            options: options::table(),
            ..Description::default()
        })
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if key != DESCRIBE_KEY {
            return Ok(None);
        }
        let precision = options::precision(&serde_json::from_slice(data)?);
        Ok(Some(Description { precision, ..self.describe()? }.to_json().into_bytes()))
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        let library = match onednn() {
            Ok(library) => library,
            Err(error) => {
                return Verdict::refused(RefusalCode::Unavailable, error.message.as_str()).hint(error.hint.as_str());
            }
        };
        if candidate.kind == CandidateKind::Region {
            return judge_region(&candidate.graph);
        }
        if appends_to_unknown_size(&candidate.graph) {
            let detail = "concatenate: the outermost dimension is known only at run time: every size would need a plan of \
                          its own, and the host copies as fast";
            return Verdict::refused(RefusalCode::NotProfitable, detail);
        }
        let is_dynamic_graph = is_dynamic(&candidate.graph);
        let ir = match RegionIr::of(&candidate.graph, &candidate.constants, &sample_shapes(&candidate.graph)) {
            Ok(ir) => ir,
            // The substituted dimensions may be inconsistent with each other.
            Err(reason) if is_dynamic_graph && reason.code == RefusalCode::UnsupportedShape => {
                return Verdict::Supported;
            }
            Err(reason) => return reason.into(),
        };
        // `Supported` is binding, so the candidate is lowered to check that the library implements every operator.
        match lower(library, &ir, &mut Packs::default()) {
            Ok(plan) => judge_plan(&plan),
            Err(reason) => reason.into(),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let library = onednn()?;
        let (mut notes, mut report) = (Vec::new(), None);
        let mut graph = region.graph.clone();
        options::store(&mut graph, region.options);
        let (options, ignored_option) = options::of_graph(&graph);
        notes.extend(ignored_option.map(Into::into));
        if !is_dynamic(region.graph) {
            let mut ir = RegionIr::of(region.graph, region.constants, &sample_shapes(region.graph))?;
            ir.options = options;
            let plan = lower(library, &ir, &mut Packs::default())?;
            notes.push(format!("primitives: {}, workspace: {} bytes", plan.steps.len(), plan.workspace).into());
            let slow_steps = plan.steps.iter().filter(|step| step.is_slow());
            notes.extend(slow_steps.map(|step| format!("slow: {}: {}", step.label, step.implementation).into()));
            report = Some(plan.report());
        }
        let text = blob::write(&graph);
        let mut compiled_region = CompiledRegion::new(&region.graph.symbol, LOADER, text.as_bytes());
        let source = match report {
            // The steps follow the graph, as a line of their own.
            Some(steps) => format!("{text}\n{}\n", json!({ "steps": steps })),
            None => text,
        };
        compiled_region.source = Some(Source { language: "json".into(), text: source.into() }).into();
        compiled_region.notes = notes.into();
        // OpenMP creates a thread team per calling thread, so this attribute requests that all calls come from a single
        // thread.
        compiled_region.metadata.push(Attr::new("own_threads", true));
        compiled_region.metadata.push(Attr::new("library", format!("oneDNN {}", library.version)));
        Ok(compiled_region)
    }
}

/// Refuses an operator that only the library's reference code computes, unless its tensors are small: another backend or
/// the host is faster.
fn judge_plan(plan: &Plan) -> Verdict {
    match plan.steps.iter().find(|step| step.is_slow() && step.bytes() > MAX_SLOW_BYTES) {
        None => Verdict::Supported,
        Some(Step { label, implementation, .. }) => {
            let detail =
                format!("{label}: oneDNN has only slow code for these dimensions and layouts: {implementation}");
            Verdict::refused(RefusalCode::NotProfitable, detail)
        }
    }
}

/// Refuses a region whose operators are all cheap; supports all other regions.
fn judge_region(graph: &Graph) -> Verdict {
    let names: BTreeSet<&str> = graph.operators().into_iter().map(|(name, _, _)| name).collect();
    if names.iter().any(|name| table::row(name).is_some_and(|row| row.computes)) {
        return Verdict::Supported;
    }
    let names: Vec<&str> = names.into_iter().take(4).collect();
    let detail = format!("the overhead of a region with only {} exceeds its benefit", names.join(", "));
    Verdict::refused(RefusalCode::NotProfitable, detail)
}

impl Loader for JsonLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let graph = blob::read(region.blob, region.constants)?;
        if graph.symbol != region.symbol {
            let symbol = region.symbol;
            return Err(Error::new(format!("expected the graph of region {symbol}, found that of {}", graph.symbol)));
        }
        // Code generation relies on the types recorded in the graph, so they must match its operators and the tensors
        // of this run.
        region.check_signature(&Signature::of(&graph))?;
        region.services.reference(&graph, region.constants)?;
        Ok(Box::new(LoadedRegion::new(graph, region.constants, region.services)?))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(match key {
            // A blob is a graph, not native code.
            "blob.native" => Some(b"false".to_vec()),
            "byoc.files.1" => {
                let path = onednn()?.path()?.display().to_string();
                let library = json!({ "path": path, "name": FILE_NAME, "license": "Apache-2.0" });
                Some(json!([library]).to_string().into_bytes())
            }
            _ => None,
        })
    }
}
