//! Code generator entries: `describe`, `judge` and `compile`.

use crate::device::config::Config;
use crate::driver::DRIVERS;
use crate::{blob, lower, source, support};
use byoc_plugin_api::{Attr, Candidate, Codegen, CompiledRegion, Description, Error, Region, Result, Verdict};
use byoc_plugin_support::int8;

/// Code generator registered as `relay.ext.nuc_fpga`.
pub struct NucFpga {
    /// Device parameters, against which layers are checked.
    pub config: Config,
}

impl Codegen for NucFpga {
    fn describe(&self) -> Result<Description> {
        // Reports an unusable driver before anything is compiled for it.
        DRIVERS.from_environment()?;
        Ok(Description {
            about: "int8 convolutions and dense layers on an accelerator behind a driver, or on its software model"
                .into(),
            patterns: support::PATTERNS.into(),
            operators: support::OPERATORS.iter().map(|&name| name.to_owned()).collect(),
            quantization: Some(int8::quantization(false)),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match lower::lower(&candidate.graph, &candidate.constants, &self.config) {
            Ok(_) => Verdict::Supported,
            Err(error) => error.into(),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let symbol = region.graph.symbol.as_str();
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !symbol.chars().all(is_name_char) || !symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            return Err(Error::new(format!("region symbol: expected a C identifier, found `{symbol}`")));
        }
        let list = lower::lower(region.graph, region.constants, &self.config)?;
        let mut compiled_region = CompiledRegion::new(symbol, "nuc_fpga", blob::write(&list)?);
        let macs: u64 = list.commands.iter().map(|command| command.layer.macs()).sum();
        let calls = list.commands.len();
        compiled_region.notes.push(format!("device calls: {calls}, multiply-accumulate operations: {macs}").into());
        compiled_region.metadata.push(Attr::new("device_calls", calls as i64));
        // Declares that the source is a C program, which an exported model can contain.
        compiled_region.metadata.push(Attr::new("program_workspace", list.workspace as i64));
        Ok(compiled_region.with_source("c", source::source(&list)))
    }
}
