//! The two halves as the host sees them.

use crate::library::onednn;
use crate::lower::{Packs, lower};
use crate::program::{Program, Reason};
use crate::runtime::Region as Loaded;
use crate::{blob, options, patterns, qnn, translate};
use byoc_plugin_api::{
    Attr, Candidate, CandidateKind, Codegen, CompiledRegion, Cost, Description, Dim, Error, Executable, Graph,
    LoadRequest, Loader, RefusalCode, Region, Result, Signature, Source, Verdict,
};
use std::collections::BTreeSet;

/// The key of the loader.
pub const LOADER: &str = "dnnl_json";

/// `relay.ext.dnnl`.
pub struct Dnnl;

/// `loadbinary_dnnl_json`.
pub struct JsonLoader;

/// Operators whose presence makes a region worth it: those that compute more than they move.
const HEAVY: &[&str] = &[
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv3d",
    "nn.conv1d_transpose",
    "nn.conv2d_transpose",
    "nn.conv3d_transpose",
    "nn.dense",
    "qnn.conv2d",
    "qnn.dense",
    "nn.matmul",
    "nn.batch_matmul",
    "nn.layer_norm",
    "nn.softmax",
    "nn.global_avg_pool2d",
];

/// The fewest floating-point operations that a region is worth a call for: some ten microseconds of one core.
const LEAST_FLOPS: u64 = 20_000;

/// A stand-in for dimensions that are not known.
const SAMPLE: i64 = 4;

fn refuse(reason: Reason) -> Verdict {
    Verdict::refused(reason.code, reason.detail)
}

/// The dimensions of the inputs, with a stand-in for those that are not known. A product's name is its factors.
fn sample(graph: &Graph) -> Vec<Vec<i64>> {
    let size = |dim: &Dim| match dim {
        Dim::Known(size) => *size as i64,
        Dim::Unknown(name) => {
            name.split('*').fold(1, |all: i64, factor| all.saturating_mul(factor.parse().unwrap_or(SAMPLE)))
        }
    };
    graph.inputs.iter().map(|input| input.ty.dims.iter().map(size).collect()).collect()
}

fn is_dynamic(graph: &Graph) -> bool {
    graph.inputs.iter().any(|input| input.ty.shape().is_none())
}

impl Codegen for Dnnl {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "runs networks on oneDNN: channels-last layouts, fused operators, packed weights".into(),
            patterns: patterns::table(),
            operators: translate::OPERATORS.iter().chain(qnn::OPERATORS).map(|&name| name.to_owned()).collect(),
            dynamic_dims: true,
            cost: Cost { min_region_flops: LEAST_FLOPS, min_region_operators: 1 },
            finite_math: true,
            options: options::table(),
            ..Description::default()
        })
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
        let dynamic = is_dynamic(&candidate.graph);
        let program = match Program::of(&candidate.graph, &candidate.constants, &sample(&candidate.graph)) {
            Ok(program) => program,
            // Dimensions that were made up need not fit each other.
            Err(reason) if dynamic && reason.code == RefusalCode::UnsupportedShape => return Verdict::Supported,
            Err(reason) => return refuse(reason),
        };
        // A claim binds: the library has been asked.
        match lower(library, &program, &mut Packs::default()) {
            Ok(_) => Verdict::Supported,
            Err(reason) => refuse(reason),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let library = onednn()?;
        let mut notes = Vec::new();
        let mut graph = region.graph.clone();
        options::mark(&mut graph, region.options);
        let (options, ignored) = options::of(&graph);
        notes.extend(ignored.map(Into::into));
        if !is_dynamic(region.graph) {
            let mut program = Program::of(region.graph, region.constants, &sample(region.graph))?;
            program.options = options;
            let plan = lower(library, &program, &mut Packs::default())?;
            notes.push(format!("{} primitives, workspace {} bytes", plan.steps.len(), plan.workspace).into());
        }
        let text = blob::write(&graph);
        let mut compiled = CompiledRegion::new(&region.graph.symbol, LOADER, text.as_bytes());
        compiled.source = Some(Source { language: "json".into(), text: text.into() }).into();
        compiled.notes = notes.into();
        // OpenMP makes a team for every thread that calls it, so the host is asked to stay on one.
        compiled.metadata.push(Attr::new("own_threads", true));
        compiled.metadata.push(Attr::new("library", format!("oneDNN {}", library.version)));
        Ok(compiled)
    }
}

/// Regions that compute nothing to speak of go back to the host.
fn judge_region(graph: &Graph) -> Verdict {
    let names: BTreeSet<&str> = graph.operators().into_iter().map(|(name, _, _)| name).collect();
    if names.iter().any(|name| HEAVY.contains(name)) {
        return Verdict::Supported;
    }
    let names: Vec<&str> = names.into_iter().take(4).collect();
    let detail = format!("a region of {} alone costs more to enter than it saves", names.join(", "));
    Verdict::refused(RefusalCode::NotProfitable, detail)
}

impl Loader for JsonLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let graph = blob::read(region.blob, region.constants)?;
        if graph.symbol != region.symbol {
            let symbol = region.symbol;
            return Err(Error::new(format!("the graph of {} is given for the region {symbol}", graph.symbol)));
        }
        // Code is generated by the types that the graph states: they have to be those of its operators, and of this run.
        region.check_signature(&Signature::of(&graph))?;
        region.services.reference(&graph, region.constants)?;
        Ok(Box::new(Loaded::new(graph, region.constants, region.services)?))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        // A blob is a graph.
        Ok((key == "blob.native").then(|| b"false".to_vec()))
    }
}
