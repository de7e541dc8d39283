//! `byoc explain --suggest`: changes with which backends take operators that they refused.
//!
//! Each change is made on a copy of the model or of the options, and the backends judge the result. A change is suggested
//! only if operators move from the host to a backend and no more FLOPs return to the host. Changes of options come before
//! changes of the model, and those before changes of its results.

use super::args::{BuildArgs, DimChoice};
use super::inputs::InputSources;
use super::ready::{self, Request};
use byoc::driver::backend::Backend;
use byoc::driver::explanation::{Explanation, NodeRow, PlacementKind, Suggestion};
use byoc::driver::{self, BuildOptions};
use byoc::frontend::{self, LoadOptions, Loaded};
use byoc::runtime::choices::base_name;
use byoc::runtime::error::Failure;
use byoc::{ComputeFormat, io::image::Normalization};
use byoc_core::analysis::structural_equal;
use byoc_core::pass::manager::{self, RunOptions};
use byoc_core::pass::{DesiredLayout, PassOptions, RefusalCode};
use byoc_quantize::method::Method;
use byoc_quantize::scheme::Scheme;
use byoc_quantize::source::Source;
use byoc_quantize::{Keep, Options, quantize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Passes that keep the results of a model and change the operators of which it consists.
const PASSES: [&str; 5] = ["canonicalize_ops", "inline", "monomorphize", "qnn_canonicalize", "widen_float16"];

/// Operators and layouts that are tried where a layout was refused.
const LAYOUTS: [(&str, &str); 6] = [
    ("nn.conv2d", "NCHW"),
    ("nn.conv2d", "NHWC"),
    ("nn.max_pool2d", "NCHW"),
    ("nn.max_pool2d", "NHWC"),
    ("nn.avg_pool2d", "NCHW"),
    ("nn.avg_pool2d", "NHWC"),
];

/// Maximum number of FLOPs of a model that is quantized for a trial, which runs it.
const MAX_QUANTIZED_FLOPS: u64 = 20_000_000_000;

/// Change to a build.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// Another value of a backend's option.
    Option { backend: String, option: String, value: String },
    /// Another device of a backend.
    Device { backend: String, id: String },
    /// A backend before all others.
    First(String),
    /// A further backend, after the others.
    Backend(String),
    /// A lower precision of computation.
    Precision(ComputeFormat),
    /// The size 1 for symbolic dimensions.
    Dims(Vec<String>),
    /// A pass over the model.
    Pass(&'static str),
    /// Another layout of an operator.
    Layout(&'static str, &'static str),
    /// Quantization in the scheme of a backend, of the first convolution too if nothing is kept.
    Quantize { backend: String, keeps_none: bool },
}

impl Change {
    /// Returns the size of the change, in the order in which changes are suggested.
    fn rank(&self) -> usize {
        match self {
            Change::Option { .. } => 0,
            Change::Device { .. } => 1,
            Change::First(_) => 2,
            Change::Backend(_) => 3,
            Change::Precision(_) => 4,
            Change::Dims(names) => 4 + names.len(),
            Change::Pass(_) => 1000,
            Change::Layout(..) => 1001,
            Change::Quantize { keeps_none, .. } => 1002 + usize::from(*keeps_none),
        }
    }

    /// Describes the change in a few words.
    fn words(&self) -> String {
        match self {
            Change::Option { backend, option, value } => format!("option {backend}.{option}={value}"),
            Change::Device { backend, id } => format!("device {id} of {backend}"),
            Change::First(name) => format!("{name} before the other backends"),
            Change::Backend(name) => format!("{name} as a further backend"),
            Change::Precision(format) => format!("computation in {format}"),
            Change::Dims(names) => format!("size 1 for {}", names.join(", ")),
            Change::Pass(name) => format!("pass {name} over the model"),
            Change::Layout(operator, layout) => format!("layout {layout} for {operator}"),
            Change::Quantize { backend, keeps_none: false } => {
                format!("quantization in the scheme of {backend}, calibrated with samples of your own")
            }
            Change::Quantize { backend, keeps_none: true } => {
                format!("quantization of all layers in the scheme of {backend}, calibrated with samples of your own")
            }
        }
    }
}

/// Explanation of a model, and what is needed to try changes.
struct Trials<'t, 'a> {
    request: &'t mut Request<'a>,
    args: &'t BuildArgs,
    model: &'t Path,
    load: LoadOptions,
    loaded: Loaded,
    base: Explanation,
}

/// Adds suggestions to the explanation of a model, which was built with the options of `args`.
///
/// # Errors
/// If the model cannot be read again, or the work is cancelled.
pub fn suggest(
    request: &mut Request<'_>,
    args: &BuildArgs,
    model: &Path,
    inputs: &InputSources,
    explanation: &mut Explanation,
) -> Result<(), Failure> {
    let (load, _) = request.load_options(model, inputs)?;
    let load = LoadOptions { exclude_ones: true, ..load };
    let loaded = frontend::load(model, &load)?;
    let base = driver::placement(&request.session, loaded.clone(), &request.options)?;
    let mut trials = Trials { request, args, model, load, loaded, base };
    let mut suggestions: Vec<(Change, Suggestion, BTreeMap<usize, String>)> = Vec::new();
    let mut changes = trials.changes(explanation)?;
    changes.sort_by_key(Change::rank);
    for change in changes {
        trials.request.session.cancel.check(|| "changes of the model were being tried".to_owned())?;
        let Some(outcome) = trials.outcome(&change) else { continue };
        // Conversions of layouts and types around an operator stay on the host.
        let converts = matches!(change, Change::Layout(..) | Change::Quantize { .. });
        let mut moved = trials.moved(&outcome, converts);
        moved.retain(|id, _| explanation.nodes.get(*id).is_some_and(is_on_host));
        // A change of the same kind that moves the same operators is smaller.
        let covers = |(other, _, more): &(Change, Suggestion, BTreeMap<usize, String>)| {
            std::mem::discriminant(other) == std::mem::discriminant(&change)
                && moved.keys().all(|id| more.contains_key(id))
        };
        if moved.is_empty() || suggestions.iter().any(covers) {
            continue;
        }
        let suggestion = trials.suggestion(&change, &moved);
        suggestions.push((change, suggestion, moved));
    }
    suggestions.sort_by(|(a, first, _), (b, second, _)| {
        a.rank().cmp(&b.rank()).then(second.flops_share.total_cmp(&first.flops_share))
    });
    for (_, suggestion, moved) in suggestions {
        for (&id, backend) in &moved {
            add_to_operator(&mut explanation.nodes[id], backend, &suggestion);
        }
        explanation.suggestions.push(suggestion);
    }
    Ok(())
}

/// Adds a suggestion to the refusal of the backend that would take an operator, or to the first refusal.
fn add_to_operator(node: &mut NodeRow, backend: &str, suggestion: &Suggestion) {
    let index = node.refusals.iter().position(|refusal| refusal.backend == backend).unwrap_or(0);
    if let Some(refusal) = node.refusals.get_mut(index) {
        refusal.suggestions.push(suggestion.clone());
    }
}

fn is_on_host(node: &NodeRow) -> bool {
    node.placement.kind == PlacementKind::Host
}

impl Trials<'_, '_> {
    /// Returns the changes that may help with the refusals in an explanation.
    fn changes(&self, explanation: &Explanation) -> Result<Vec<Change>, Failure> {
        let on_host: Vec<&NodeRow> = explanation.nodes.iter().filter(|node| is_on_host(node)).collect();
        let mut codes: BTreeMap<&str, BTreeSet<RefusalCode>> = BTreeMap::new();
        for refusal in on_host.iter().flat_map(|node| &node.refusals) {
            codes.entry(&refusal.backend).or_default().extend(RefusalCode::parse(&refusal.code));
        }
        let has = |code: RefusalCode| codes.values().any(|codes| codes.contains(&code));
        let mut changes = Vec::new();
        if on_host.is_empty() {
            return Ok(changes);
        }
        self.add_backends(&codes, &mut changes)?;
        if has(RefusalCode::Precision) {
            let formats = [ComputeFormat::Tf32, ComputeFormat::Bf16, ComputeFormat::F16];
            changes.extend(formats.into_iter().filter(|format| *format != self.args.precision).map(Change::Precision));
        }
        if has(RefusalCode::DynamicDim) {
            let symbols = self.loaded.signature.symbols();
            let open: Vec<String> = symbols.into_iter().filter(|name| !self.loaded.bound.contains_key(name)).collect();
            changes.extend(open.iter().map(|name| Change::Dims(vec![name.clone()])));
            changes.extend((open.len() > 1).then_some(Change::Dims(open)));
        }
        if !codes.is_empty() {
            changes.extend(PASSES.map(Change::Pass));
        }
        if has(RefusalCode::UnsupportedLayout) {
            changes.extend(LAYOUTS.map(|(operator, layout)| Change::Layout(operator, layout)));
        }
        Ok(changes)
    }

    /// Adds the changes that concern the backends: options, devices, priority, further backends, quantization.
    fn add_backends(
        &self,
        codes: &BTreeMap<&str, BTreeSet<RefusalCode>>,
        changes: &mut Vec<Change>,
    ) -> Result<(), Failure> {
        let (registry, options) = (&self.request.session.registry, &self.request.options);
        let names: Vec<&String> = options.backends.iter().filter(|name| *name != "auto").collect();
        for (name, codes) in codes {
            let backend = Backend::find(registry, name)?;
            let name = base_name(name).to_owned();
            for (option, spec) in &backend.description.options {
                let is_chosen = |value: &&String| {
                    let is_option = |(other, key, _): &&(String, String, String)| *other == name && key == option;
                    options.backend_options.iter().rfind(is_option).is_some_and(|(_, _, chosen)| chosen == *value)
                };
                let values = spec.values.iter().filter(|value| !is_chosen(value));
                let values = values.map(|value| (option.clone(), value.clone()));
                changes.extend(values.map(|(option, value)| Change::Option { backend: name.clone(), option, value }));
            }
            let devices = backend.devices().unwrap_or_default();
            if devices.len() > 1 {
                let device = |id| Change::Device { backend: name.clone(), id };
                changes.extend(devices.into_iter().map(|device| device.id).map(device));
            }
            if codes.contains(&RefusalCode::LowerPriority) && names.len() > 1 {
                changes.push(Change::First(name.clone()));
            }
            let is_of_floats = [RefusalCode::UnsupportedDtype, RefusalCode::QuantScheme, RefusalCode::NoPatternMatch];
            if backend.description.quantization.is_some()
                && is_of_floats.iter().any(|code| codes.contains(code))
                && self.base.totals.flops <= MAX_QUANTIZED_FLOPS
            {
                let quantize = |keeps_none| Change::Quantize { backend: name.clone(), keeps_none };
                changes.extend([false, true].map(quantize));
            }
        }
        if names.len() == options.backends.len() && !options.host_only {
            let is_new = |name: &String| !names.iter().any(|other| base_name(other) == name);
            changes.extend(registry.backends().into_iter().filter(is_new).map(Change::Backend));
        }
        Ok(())
    }

    /// Returns the explanation after a change; `None` if the change is impossible.
    fn outcome(&mut self, change: &Change) -> Option<Explanation> {
        let mut options = BuildOptions { progress: None, contract: None, ..self.request.options.clone() };
        apply(change, &mut options);
        let loaded = self.changed_model(change, &options)?;
        let devices = self.request.session.choices.devices.clone();
        if let Change::Device { backend, id } = change {
            self.request.session.choices.devices.insert(backend.clone(), id.clone());
        }
        let outcome = driver::placement(&self.request.session, loaded, &options);
        self.request.session.choices.devices = devices;
        outcome.ok()
    }

    /// Returns the model after a change.
    fn changed_model(&self, change: &Change, options: &BuildOptions) -> Option<Loaded> {
        let host_operators = options.host_operators();
        match change {
            Change::Dims(names) => {
                let mut load = self.load.clone();
                for name in names {
                    load.open.remove(name);
                    load.dims.insert(name.clone(), 1);
                }
                frontend::load(self.model, &load).ok()
            }
            Change::Pass(pass) => self.after_pass(pass, PassOptions::default()),
            Change::Layout(operator, data) => {
                let layout = DesiredLayout { operator: (*operator).into(), data: (*data).into(), kernel: None };
                self.after_pass("convert_layout", PassOptions { layouts: vec![layout], ..PassOptions::default() })
            }
            Change::Quantize { backend, keeps_none } => self.quantized(backend, *keeps_none),
            _ if host_operators != self.load.host_operators => {
                frontend::load(self.model, &LoadOptions { host_operators, ..self.load.clone() }).ok()
            }
            _ => Some(self.loaded.clone()),
        }
    }

    fn after_pass(&self, pass: &str, options: PassOptions) -> Option<Loaded> {
        let module = self.loaded.module.clone();
        let output = manager::run(module, &[pass], &options, &mut RunOptions::default()).ok()?;
        let is_changed = structural_equal(&output.module, &self.loaded.module).is_err();
        is_changed.then(|| Loaded { module: output.module, ..self.loaded.clone() })
    }

    fn quantized(&self, backend: &str, keeps_none: bool) -> Option<Loaded> {
        let backend = Backend::find(&self.request.session.registry, backend).ok()?;
        let options = Options {
            scheme: Scheme::declared(&backend.name, backend.description.quantization.as_ref()?).ok()?,
            method: Method::parse("min-max").ok()?,
            keep: Keep { first: !keeps_none, names: Vec::new() },
            max_loss: None,
            labels: None,
            samples: Some(1),
            dims: self.loaded.bound.clone(),
        };
        let source = Source::parse("random", Normalization::default());
        let result = quantize(self.model, &source, &options, &self.request.session.pool, &|_| {}).ok()?;
        Some(Loaded { module: result.module, signature: result.signature, ..self.loaded.clone() })
    }

    /// Returns the operators that move from the host to a backend, each with the backend.
    fn moved(&self, outcome: &Explanation, may_have_host_parts: bool) -> BTreeMap<usize, String> {
        if outcome.totals.offload_share < self.base.totals.offload_share - 1e-9 {
            return BTreeMap::new();
        }
        let after: BTreeMap<(&str, &str), &NodeRow> =
            outcome.nodes.iter().map(|node| ((&*node.op, &*node.source), node)).collect();
        let is_whole = |node: &NodeRow| node.parts.iter().all(|part| part.kind == PlacementKind::Region);
        let moved = self.base.nodes.iter().filter(|node| is_on_host(node)).filter_map(|node| {
            let now = after.get(&(&*node.op, &*node.source))?;
            let is_moved = now.placement.kind == PlacementKind::Region && (may_have_host_parts || is_whole(now));
            is_moved.then(|| (node.id, now.placement.backend.clone().unwrap_or_default()))
        });
        moved.collect()
    }

    fn suggestion(&self, change: &Change, moved: &BTreeMap<usize, String>) -> Suggestion {
        let flops = |id: &usize| self.base.nodes.get(*id).map_or(0, |node| node.flops);
        let moved_flops = moved.keys().map(flops).fold(0, u64::saturating_add);
        Suggestion {
            command: self.command(change),
            change: change.words(),
            operators: moved.len(),
            flops_share: moved_flops as f64 / self.base.totals.flops.max(1) as f64,
            tried: true,
        }
    }

    /// Returns the commands that make a change and build the model with it.
    fn command(&self, change: &Change) -> String {
        let mut args = self.args.clone();
        apply_to_args(change, &mut args);
        let name = ready::name_of(self.model);
        let stem = Path::new(&name).file_stem().map_or(name.clone(), |stem| stem.to_string_lossy().into_owned());
        let artifact = quoted(&format!("{stem}.byoc"));
        let model = quoted(&self.model.display().to_string());
        let compile = |model: &str| format!("byoc compile {model}{} -o {artifact}", flags(&args));
        let file = if self.model.is_dir() { self.model.join("model.onnx") } else { self.model.to_owned() };
        let file = quoted(&file.display().to_string());
        match change {
            Change::Pass(pass) => {
                let changed = quoted(&format!("{stem}.{pass}.relay"));
                format!("byoc opt {file} --pass {pass} -o {changed} && {}", compile(&changed))
            }
            Change::Layout(operator, layout) => {
                let changed = quoted(&format!("{stem}.{}.relay", layout.to_lowercase()));
                let pass = format!("--pass convert_layout --layout {operator}={layout}");
                format!("byoc opt {file} {pass} -o {changed} && {}", compile(&changed))
            }
            Change::Quantize { backend, keeps_none } => {
                let changed = quoted(&format!("{stem}.int8.relay"));
                let keep = if *keeps_none { " --keep none" } else { "" };
                let dims = flags(&BuildArgs {
                    dims: args.dims.clone(),
                    plugins: args.plugins.clone(),
                    ..BuildArgs::default()
                });
                let quantize = format!("byoc quantize {model} --calibrate random --backend {backend}{keep}{dims}");
                format!("{quantize} -o {changed} && {}", compile(&changed))
            }
            _ => compile(&model),
        }
    }
}

/// Makes a change to the options of a build.
fn apply(change: &Change, options: &mut BuildOptions) {
    match change {
        Change::Option { backend, option, value } => {
            options.backend_options.retain(|(name, other, _)| base_name(name) != backend || other != option);
            options.backend_options.push((backend.clone(), option.clone(), value.clone()));
        }
        Change::First(first) => options.backends.sort_by_key(|name| base_name(name) != first),
        Change::Backend(name) => options.backends.push(name.clone()),
        Change::Precision(format) => options.precision = *format,
        _ => {}
    }
}

/// Makes a change to the arguments of a command.
fn apply_to_args(change: &Change, args: &mut BuildArgs) {
    let mut options = BuildOptions {
        backends: args.backend.clone(),
        backend_options: args.backend_options.clone(),
        precision: args.precision,
        ..BuildOptions::default()
    };
    apply(change, &mut options);
    args.backend = options.backends;
    args.backend_options = options.backend_options;
    args.precision = options.precision;
    match change {
        Change::Device { backend, id } => {
            args.devices.retain(|(name, _)| name != backend);
            args.devices.push((backend.clone(), id.clone()));
        }
        Change::Dims(names) => {
            args.dims.retain(|(name, _)| !names.contains(name));
            args.dims.extend(names.iter().map(|name| (name.clone(), DimChoice::Fixed(1))));
        }
        _ => {}
    }
}

/// Returns the options of a build as they are typed, each after a space.
fn flags(args: &BuildArgs) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: &str| text.push_str(&format!(" {name} {}", quoted(value)));
    if !args.backend.is_empty() {
        add("--backend", &args.backend.join(","));
    }
    args.backend_options
        .iter()
        .for_each(|(name, option, value)| add("--backend-option", &format!("{name}.{option}={value}")));
    args.devices.iter().for_each(|(name, id)| add("--device", &format!("{name}={id}")));
    if args.precision != ComputeFormat::F32 {
        add("--precision", args.precision.name());
    }
    for (name, choice) in &args.dims {
        let value = match choice {
            DimChoice::Fixed(size) => size.to_string(),
            DimChoice::Open(sizes) if sizes.is_empty() => "?".to_owned(),
            DimChoice::Open(sizes) => sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
        };
        add("--dim", &format!("{name}={value}"));
    }
    args.plugins
        .plugin_dirs
        .iter()
        .map(PathBuf::as_path)
        .for_each(|dir| add("--plugin-dir", &dir.display().to_string()));
    text
}

/// Quotes a word for a shell, where it needs to be.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=@:+%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
