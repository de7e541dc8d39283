//! Entries of the code generator: `describe`, `judge` and `compile`.

use crate::blob::{self, Header, Types};
use crate::loader::Object;
use crate::{cpu, support, toolchain};
use byoc_loops::externals::Externals;
use byoc_loops::form::{Form, Machine};
use byoc_loops::group::{Fusion, Grouping};
use byoc_loops::lower::lower;
use byoc_loops::operators::views::is_view_op;
use byoc_loops::source::{Source, source};
use byoc_loops::stage::{self, Stage};
use byoc_plugin_api as api;
use byoc_plugin_api::{
    Attr, Candidate, CandidateKind, Codegen, CompiledRegion, Description, Error, RefusalCode, Region, Result,
    Signature, Verdict,
};
use byoc_plugin_support::region::{RegionIr, Val};

/// Code generator registered as `relay.ext.ccompiler`.
pub struct CCompiler {
    /// Host services, polled for cancellation while the C compiler runs.
    pub services: api::Services,
}

/// Generated C code of a region.
struct GeneratedCode {
    source: Source,
    inputs: Vec<Vec<usize>>,
    outputs: Vec<Vec<usize>>,
}

fn generate(graph: &api::Graph, constants: &[api::Constant]) -> std::result::Result<GeneratedCode, String> {
    let ir = RegionIr::new(graph, constants).map_err(|error| error.detail)?;
    let externals = Externals::default();
    let grouping = Grouping::new(&ir, Fusion::Always, &externals);
    let symbol = sanitize(&graph.symbol);
    let lowering = lower(&ir, &grouping, &symbol, Form::Tasks, &externals)?;
    let source = source(&lowering, &symbol);
    let dims = |values: &[Val]| values.iter().map(|&v| ir.shape(v).iter().map(|&d| d as usize).collect()).collect();
    Ok(GeneratedCode { inputs: dims(&ir.inputs), outputs: dims(&ir.outputs), source })
}

/// Returns a stage of a region before its text.
fn stage_text(graph: &api::Graph, constants: &[api::Constant], stage: Stage) -> std::result::Result<String, String> {
    let ir = RegionIr::new(graph, constants).map_err(|error| error.detail)?;
    let externals = Externals::default();
    let grouping = Grouping::new(&ir, Fusion::Always, &externals);
    Ok(stage::text(&lower(&ir, &grouping, &sanitize(&graph.symbol), Form::Tasks, &externals)?, stage))
}

/// Replaces characters that a C identifier must not contain.
fn sanitize(symbol: &str) -> String {
    let mut name: String = symbol.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.insert_str(0, "region_");
    }
    name
}

impl Codegen for CCompiler {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "generates C and compiles it with the system's C compiler".into(),
            patterns: support::patterns(),
            operators: support::operators(),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        if let Err(error) = toolchain::toolchain() {
            return Verdict::refused(RefusalCode::Unavailable, error.message.as_str()).hint(error.hint.as_str());
        }
        let ir = match RegionIr::new(&candidate.graph, &candidate.constants) {
            Ok(ir) => ir,
            Err(error) => return error.into(),
        };
        for op in &ir.ops {
            match support::check(&ir, op) {
                Verdict::Supported => {}
                refusal => return refusal,
            }
        }
        if candidate.kind == CandidateKind::Region {
            if ir.ops.iter().all(|op| is_view_op(op.name)) {
                let detail = "the region has only view operators and computes nothing";
                return Verdict::refused(RefusalCode::NotProfitable, detail);
            }
            if ir.ops.len() > support::MAX_OPERATORS {
                let detail = format!(
                    "expected at most {1} operators in a region, found {0}: a C compiler would take minutes",
                    ir.ops.len(),
                    support::MAX_OPERATORS
                );
                return Verdict::refused(RefusalCode::ResourceLimit, detail);
            }
            return Verdict::Supported;
        }
        // The verdict is binding, so the code is generated once before the operator is declared supported.
        match generate(&candidate.graph, &candidate.constants) {
            Ok(_) => Verdict::Supported,
            Err(reason) => Verdict::refused(RefusalCode::UnsupportedAttr, reason),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let generated_code = generate(region.graph, region.constants)?;
        let symbol = region.graph.symbol.to_string();
        if sanitize(&symbol) != symbol {
            return Err(Error::new(format!("region symbol: expected a C identifier, found `{symbol}`")));
        }
        let cache = toolchain::cache_settings(region.options);
        let compiler = toolchain::toolchain()?;
        let text = &generated_code.source.text;
        let object = compiler.compile(text, cache.as_ref(), &self.services)?;
        // Reports a missing symbol at compile time instead of at load time.
        Object::open(&object, &symbol)?;
        let header = Header {
            symbol: symbol.clone(),
            features: cpu::features(),
            compiler: compiler.version.clone(),
            inputs: generated_code.inputs,
            outputs: generated_code.outputs,
            types: Some(Types::new(&Signature::of(region.graph), region.constants)),
            kept: generated_code.source.kept,
            source: 0,
            object: 0,
        };
        let features = header.features.join(",");
        let bytes = blob::write(header, text, &object)?;
        let mut compiled_region = CompiledRegion::new(&symbol, "ccompiler", bytes);
        compiled_region.source = Some(api::Source { language: "c".into(), text: text.as_str().into() }).into();
        if region.options["program"] == "c" {
            let program = byoc_loops::single_file::single_file(region.graph, region.constants, Machine::GENERIC)?;
            compiled_region.metadata.push(Attr::new("program_workspace", program.workspace));
            compiled_region.metadata.push(Attr::new("program_constant_bytes", program.constant_bytes as i64));
            compiled_region.source = Some(api::Source { language: "c".into(), text: program.text.into() }).into();
        }
        if let Some(Ok(stage)) = region.options["stage"].as_str().map(str::parse::<Stage>) {
            let text = stage_text(region.graph, region.constants, stage)?;
            compiled_region.source = Some(api::Source { language: stage.to_string().into(), text: text.into() }).into();
        }
        let workspace = generated_code.source.workspace;
        compiled_region.notes.push(
            format!("workspace: {workspace} bytes, packed constants: {} bytes", generated_code.source.packed).into(),
        );
        compiled_region.metadata.push(Attr::new("cpu_features", features));
        compiled_region.metadata.push(Attr::new("compiler", compiler.version.as_str()));
        Ok(compiled_region)
    }
}
