//! Code generator entries: `describe`, `judge` and `compile`.

use crate::driver::DRIVERS;
use crate::image::{Image, Simulator};
use crate::{blob, lower, plan, source, support};
use byoc_plugin_api::{
    Attr, BackendOption, Candidate, CandidateKind, Codegen, CompiledRegion, Description, Error, Graph, RefusalCode,
    Region, Result, Verdict,
};
use byoc_plugin_support::int8;
use byoc_plugin_support::refusal::{CompileError, refuse};
use byoc_vta_machine::config::{Config, Profile};
use byoc_vta_program::emit::Runs;
use serde_json::Value;

/// Code generator registered as `relay.ext.vta`.
pub struct Vta {
    /// Device parameters.
    pub config: Config,
}

/// Returns the user-supplied value of a backend option; `None` if the option is unset.
pub fn option<'v>(options: &'v Value, name: &str) -> Option<&'v str> {
    options["backend_options"][name].as_str()
}

impl Vta {
    fn verdict(&self, candidate: &Candidate) -> std::result::Result<(), CompileError> {
        let network = lower::lower(&candidate.graph, &candidate.constants)?;
        plan::check(&network, &self.config)?;
        let has_sums = network.nodes.iter().any(|node| matches!(node.kind, lower::Kind::Conv(_)));
        if candidate.kind == CandidateKind::Region && !has_sums {
            return refuse(RefusalCode::NotProfitable, "expected a convolution or a dense layer, found none");
        }
        Ok(())
    }
}

impl Codegen for Vta {
    fn describe(&self) -> Result<Description> {
        // Reports an unusable driver before anything is compiled for it.
        DRIVERS.from_environment()?;
        let option = |about: &str, values: &[&str]| BackendOption {
            about: about.into(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
            ..BackendOption::default()
        };
        let simulator = BackendOption { load: true, ..option("Rules of the simulator", &Simulator::NAMES) };
        Ok(Description {
            about: format!(
                "int8 layers on the Versatile Tensor Accelerator ({}), or on its simulator",
                self.config.name()
            ),
            patterns: support::PATTERNS.into(),
            operators: support::OPERATORS.iter().map(|&name| name.to_owned()).collect(),
            quantization: Some(int8::quantization(true)),
            options: [
                ("profile".to_owned(), option("Memory timing profile of the cycle model", &["pynq", "tsim"])),
                ("runs".to_owned(), option("Granularity of device runs", &["region", "layer"])),
                ("simulator".to_owned(), simulator),
            ]
            .into(),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.verdict(candidate) {
            Ok(()) => Verdict::Supported,
            Err(error) => error.into(),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let symbol = symbol(region.graph)?;
        let network = lower::lower(region.graph, region.constants)?;
        let runs = if option(region.options, "runs") == Some("layer") { Runs::PerLayer } else { Runs::Whole };
        let config = match option(region.options, "profile") {
            Some("tsim") => Config { profile: Profile::Tsim, ..self.config.clone() },
            Some("pynq") => Config { profile: Profile::Pynq, ..self.config.clone() },
            _ => self.config.clone(),
        };
        let mut image = plan::plan(&network, symbol, &config, runs)?;
        image.simulator = Simulator::named(option(region.options, "simulator"));
        let mut compiled_region = CompiledRegion::new(symbol, "vta", blob::write(&image)?);
        let Image { layers, stream, .. } = &image;
        let (cycles, steps) = (image.cycles(), layers.iter().map(|layer| layer.gemm_steps).sum::<u64>());
        let note = format!("layers: {}, instructions: {}, predicted cycles: {cycles}", layers.len(), stream.len());
        compiled_region.notes.push(note.into());
        compiled_region.metadata.push(Attr::new("device", self.config.name().as_str()));
        compiled_region.metadata.push(Attr::new("predicted_cycles", cycles as i64));
        compiled_region.metadata.push(Attr::new("gemm_steps", steps as i64));
        if region.options["program"] == "c" {
            let program = source::export(&image, region.constants)?;
            compiled_region.metadata.push(Attr::new("program_workspace", program.workspace as i64));
            compiled_region.metadata.push(Attr::new("program_status", true));
            compiled_region.metadata.push(Attr::new("program_constant_bytes", program.constant_bytes as i64));
            compiled_region = compiled_region.with_source("c", program.text);
        } else if region.options["source"] == true || source::is_small(&image) {
            compiled_region = compiled_region.with_source("c", source::source(&image, region.constants)?);
        }
        Ok(compiled_region)
    }
}

/// Returns the symbol of a region; fails unless it is a C identifier.
fn symbol(graph: &Graph) -> Result<&str> {
    let symbol = graph.symbol.as_str();
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !symbol.chars().all(is_name_char) || !symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return Err(Error::new(format!("region symbol: expected a C identifier, found `{symbol}`")));
    }
    Ok(symbol)
}
