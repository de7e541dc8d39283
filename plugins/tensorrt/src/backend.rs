//! Entries of the code generator.

use crate::judge::{self, Verdicts};
use crate::library::tensorrt;
use crate::operators::{OPERATORS, PATTERNS, PRODUCTS};
use crate::options::{self, Options};
use crate::{cuda::Cuda, engine};
use byoc_plugin_api::{
    Candidate, CandidateKind, Codegen, CompiledRegion, DESCRIBE_KEY, DEVICES_KEY, Description, DeviceInfo, Error,
    LACK_KEY, Lack, Quantization, RefusalCode, Region, Result, Services, Verdict,
};
use byoc_plugin_support::refusal::CompileError;

/// Code generator `relay.ext.tensorrt`.
pub struct TensorRt {
    services: Services,
    verdicts: Verdicts,
}

impl TensorRt {
    /// Creates the code generator.
    pub fn new(services: Services) -> TensorRt {
        TensorRt { services, verdicts: Verdicts::default() }
    }

    fn check(&self, candidate: &Candidate) -> std::result::Result<(), CompileError> {
        let coded = |code: RefusalCode| {
            move |error: Error| CompileError { code, detail: error.message.to_string(), hint: error.hint.to_string() }
        };
        let library = tensorrt().map_err(coded(RefusalCode::Unavailable))?;
        let options = Options::of(&candidate.options()).map_err(coded(RefusalCode::UnsupportedAttr))?;
        judge::check_types(&candidate.graph)?;
        for input in &candidate.graph.inputs {
            options.dims_of(&input.ty).map_err(coded(RefusalCode::DynamicDim))?;
        }
        let is_region = candidate.kind == CandidateKind::Region;
        if is_region && options.prune {
            let has_product = candidate.graph.operators().iter().any(|(name, ..)| is_product(name));
            if !has_product {
                let detail = "expected a convolution or a matrix product in the region, found none";
                return Err(CompileError::new(RefusalCode::NotProfitable, detail));
            }
        }
        self.verdicts.of(library, &self.services, (&candidate.graph, &candidate.constants), &options)
    }
}

fn is_product(name: &str) -> bool {
    PRODUCTS.contains(&name) || name.strip_prefix("qnn.").is_some_and(|rest| ["conv2d", "dense"].contains(&rest))
}

impl Codegen for TensorRt {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "networks on NVIDIA GPUs: engines of TensorRT for RTX, compiled with or without a GPU".into(),
            patterns: PATTERNS.into(),
            // The parser takes zero points of 0 alone.
            quantization: Some(Quantization {
                activation: "int8".into(),
                weight: "int8".into(),
                accumulator: "int32".into(),
                symmetric: true,
                per_channel: true,
                power_of_two: false,
            }),
            operators: OPERATORS.iter().map(|&name| name.to_owned()).collect(),
            dynamic_dims: true,
            finite_math: true,
            flush_to_zero: true,
            device_memory: true,
            options: options::table(),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.check(candidate) {
            Ok(()) => Verdict::Supported,
            Err(refusal) => refusal.into(),
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        engine::compile(tensorrt()?, &self.services, region)
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        match key {
            // The description does not depend on the options; those out of range end the build before it begins.
            DESCRIBE_KEY => Options::of(&serde_json::from_slice(data).unwrap_or_default()).map(|_| None),
            LACK_KEY => Ok(tensorrt().err().map(|error| {
                let lack = Lack { reason: error.message.to_string(), hint: error.hint.to_string() };
                serde_json::to_vec(&lack).unwrap_or_default()
            })),
            // Without a GPU the list is empty: engines for named capabilities are compiled all the same.
            DEVICES_KEY => {
                let devices = Cuda::get().and_then(Cuda::devices).unwrap_or_default();
                let devices = devices.into_iter().map(|device| DeviceInfo {
                    id: device.id.to_string(),
                    name: String::new(),
                    memory: device.memory,
                    about: format!("compute capability {}", crate::library::shown_capability(device.capability)),
                });
                Ok(Some(DeviceInfo::list_to_json(&devices.collect::<Vec<_>>())))
            }
            _ => Ok(None),
        }
    }
}
