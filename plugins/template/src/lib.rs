//! Minimal complete backend: an example to start from, and a stand-in for hardware that does not exist yet.
//!
//! Name, patterns and single operators come from a JSON file beside the library with the library's name
//! (`libbyoc_template.so` reads `libbyoc_template.json`); see `Config`. The blob of a region is its graph as JSON,
//! and the host's reference kernels run it. Each run is logged. In an exported program a region is C of the crate
//! `byoc-emit-c`.

use byoc_emit_c::form::Machine;
use byoc_emit_c::single_file::single_file;
use byoc_plugin_api::program::{self, Answer, Program, Request};
use byoc_plugin_api::{
    Call, Candidate, Codegen, CompiledRegion, Description, Error, Executable, Graph, LoadRequest, Loader, Prepared,
    Region, Result, Services, Signature, Verdict,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

byoc_plugin_api::declare_plugin!("template", env!("CARGO_PKG_VERSION"));
byoc_plugin_api::register!(|context, registry| {
    let config = Config::load_beside(&context.path)?;
    context.name = config.name.clone();
    registry.loader(&config.name, Template { config: config.clone() });
    registry.codegen(&config.name.clone(), Template { config });
    Ok(())
});

/// Content of the file beside the library. Missing keys have the values of [`Config::default`].
#[derive(Clone, Deserialize)]
#[serde(default)]
struct Config {
    /// Name of the backend, as in `--backend NAME`.
    name: String,
    /// Entries of the pattern table.
    patterns: Vec<String>,
    /// Single operators.
    operators: Vec<String>,
    /// True if dimensions that are only known at run time are supported.
    dynamic_dims: bool,
    /// Preferred layouts per operator: of the data, then of the kernel.
    layouts: BTreeMap<String, Vec<String>>,
}

impl Default for Config {
    fn default() -> Config {
        let pattern =
            "conv2d_bias_relu: nn.relu(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))";
        let operators = ["nn.conv2d", "nn.dense", "nn.bias_add", "add", "multiply", "nn.relu"];
        Config {
            name: "template".into(),
            patterns: vec![pattern.into()],
            operators: operators.map(String::from).to_vec(),
            dynamic_dims: false,
            layouts: BTreeMap::new(),
        }
    }
}

impl Config {
    fn load_beside(library: &Path) -> Result<Config> {
        let path = library.with_extension("json");
        if !path.exists() {
            return Ok(Config::default());
        }
        let invalid = |problem: String| Error::new(format!("{}: {problem}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
        let value: Map<String, Value> = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        for (key, value) in &value {
            let Some((_, kind, is_valid)) = KEYS.iter().find(|(known, ..)| known == key) else {
                let closest = KEYS.iter().map(|(known, ..)| *known).min_by_key(|known| strsim::levenshtein(known, key));
                let closest = closest.filter(|closest| strsim::levenshtein(closest, key) <= 3);
                let hint = closest.map(|closest| format!("; did you mean \"{closest}\"?")).unwrap_or_default();
                let known: Vec<&str> = KEYS.iter().map(|(known, ..)| *known).collect();
                return Err(
                    invalid(format!("unknown key \"{key}\"{hint}")).hint(format!("the keys are {}", known.join(", ")))
                );
            };
            if !is_valid(value) {
                return Err(invalid(format!("\"{key}\": expected {kind}, found {value}")));
            }
        }
        let config: Config =
            serde_json::from_value(Value::Object(value)).map_err(|error| invalid(error.to_string()))?;
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if config.name.is_empty() || !config.name.chars().all(is_name_char) {
            let name = &config.name;
            return Err(invalid(format!("\"{name}\" is not a valid name: expected letters, digits, \"_\" and \"-\"")));
        }
        Ok(config)
    }
}

/// Keys of the file: name, description of the value, and check of the value.
const KEYS: [(&str, &str, fn(&Value) -> bool); 5] = [
    ("name", "a string", Value::is_string),
    ("patterns", "a list of strings, one per entry", is_string_list),
    ("operators", "a list of strings, one per operator", is_string_list),
    ("dynamic_dims", "true or false", Value::is_boolean),
    ("layouts", "an object with a list of strings per operator", is_map_of_string_lists),
];

fn is_string_list(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
}

fn is_map_of_string_lists(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.values().all(is_string_list))
}

struct Template {
    config: Config,
}

impl Codegen for Template {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            about: "runs its regions by the host's reference kernels and logs each call".into(),
            patterns: self.config.patterns.join("\n"),
            operators: self.config.operators.clone(),
            dynamic_dims: self.config.dynamic_dims,
            layouts: self.config.layouts.clone(),
            ..Description::default()
        })
    }

    fn judge(&self, _: &Candidate) -> Verdict {
        // The reference kernels support every operator.
        Verdict::Supported
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let json = region.graph.to_json();
        Ok(CompiledRegion::new(&region.graph.symbol, &self.config.name, json.clone()).with_source("json", json))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if key != program::KEY {
            return Ok(None);
        }
        let region = Request::read(data)?;
        let answer = match single_file(&region.graph, &region.constants, Machine::GENERIC) {
            Ok(file) => Answer::Program(Program {
                source: file.text,
                workspace: u64::try_from(file.workspace).unwrap_or_default(),
                constant_bytes: file.constant_bytes,
                ..Program::default()
            }),
            Err(reason) => Answer::Refused { reason, hint: String::new() },
        };
        Ok(Some(answer.to_json()))
    }
}

impl Loader for Template {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let text = std::str::from_utf8(region.blob).map_err(|error| Error::new(format!("the blob: {error}")))?;
        let graph = Graph::from_json(text)?;
        if graph.symbol != region.symbol {
            return Err(format!("the blob defines {}, not {}", graph.symbol, region.symbol).into());
        }
        graph.check(region.constants.len())?;
        region.check_signature(&Signature::of(&graph))?;
        Ok(Box::new(LoggedRegion {
            name: self.config.name.clone(),
            symbol: region.symbol.to_owned(),
            reference: region.services.reference(&graph, region.constants)?,
            services: region.services.clone(),
        }))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        // The blob is a graph, not native code.
        Ok((key == "blob.native").then(|| b"false".to_vec()))
    }
}

/// Region that runs on the host's reference kernels and logs each call.
struct LoggedRegion {
    name: String,
    symbol: String,
    reference: Box<dyn Executable>,
    services: Services,
}

impl Executable for LoggedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        self.reference.prepare(inputs)
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        // The targets of `tracing` are compile-time constants, but the name of this backend is configured.
        if self.services.log_level() >= Some(tracing::Level::INFO) {
            let message = format!("{}({:?}) -> {:?}", self.symbol, call.inputs, call.outputs);
            self.services.log(tracing::Level::INFO, &self.name, &message);
        }
        self.reference.run(call)
    }
}
