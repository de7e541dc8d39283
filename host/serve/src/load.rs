//! Loading of a model version: compilation, completion of the configuration, warm-up.

use crate::artifact_cache::Slot;
use crate::batch::{Policy, Scheduler, Settings};
use crate::config::ConfigFile;
use crate::datatype::Datatype;
use crate::error::{Result, ServeError, Status};
use crate::outputs::with_batch_dim;
use crate::proto::{
    ModelConfig, ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelOutput, ModelQueuePolicy, ModelWarmup,
    WarmupChoice, WarmupInput,
};
use crate::served::{ServedModel, Spec, check_spec, dims, resolve};
use crate::stats::Stats;
use crate::strings;
use byoc::io::beneath::Siblings;
use byoc::runtime::cancel::Cancel;
use byoc::runtime::limits;
use byoc::runtime::value::has_other_values;
use byoc::{Compilation, CompileOptions, Interface, Model, Port, RunOptions, Session, Source, Tensor};
use byoc_ir::tensor::{element_count, random};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum size of a label file in bytes.
const MAX_LABELS: usize = 16 << 20;

/// Threads, backends and defaults shared by all models.
pub struct Engine {
    pub session: Session,
    /// Compilation options for models other than artifacts.
    pub options: CompileOptions,
    /// Batching defaults for models without a corresponding configuration.
    pub defaults: Defaults,
    /// Time limit for loading a model, with its warm-up.
    pub load_timeout: Duration,
}

/// Batching defaults from the command line.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub max_batch_size: u32,
    pub preferred_batch_size: Vec<u32>,
    pub max_queue_delay_microseconds: u64,
    pub max_queue_size: u32,
    pub instances: u32,
}

/// Source of a model version.
#[derive(Clone, Debug)]
pub struct VersionSource {
    pub version: u64,
    /// Path, or contents sent by a client.
    pub source: Source,
    /// File name, whose extension determines the format.
    pub file_name: String,
    /// Directory with the files named in the configuration.
    pub folder: Option<PathBuf>,
}

/// Loads a model version; setting `cancel` ends the load.
///
/// # Errors
/// If the model cannot be opened or compiled, the configuration does not match the model, or the load is cancelled.
pub fn load(
    engine: &Engine,
    name: &str,
    file: &ConfigFile,
    source: VersionSource,
    stats: Arc<Stats>,
    cancel: &Cancel,
) -> Result<ServedModel> {
    let start = Instant::now();
    let model = open(engine, &source, cancel)?;
    for warning in model.warnings_in(Interface::CommandLine) {
        tracing::warn!(target: "byoc::serve", model = name, version = source.version, "{}: {}", warning.code, warning.message);
    }
    for field in &file.ignored_fields {
        tracing::warn!(target: "byoc::serve", model = name, field, "the configuration field has no effect");
    }
    let (mut inputs, mut outputs) = (specs(model.inputs())?, specs(model.outputs())?);
    let optional_inputs = specs(model.optional_inputs())?;
    let mut config = complete(engine, name, file, &inputs, &outputs)?;
    let batched = config.max_batch_size > 0;
    let declared_specs: Vec<_> = config
        .input
        .iter()
        .map(|input| {
            (input.name.clone(), input.data_type, input.dims.clone(), input.reshape.as_ref().map(|r| r.shape.clone()))
        })
        .collect();
    check_spec("input", &declared_specs, &mut inputs, batched)?;
    let declared_specs: Vec<_> = config
        .output
        .iter()
        .map(|output| {
            (
                output.name.clone(),
                output.data_type,
                output.dims.clone(),
                output.reshape.as_ref().map(|r| r.shape.clone()),
            )
        })
        .collect();
    check_spec("output", &declared_specs, &mut outputs, batched)?;
    fill_tensors(&mut config, &inputs, &outputs);
    read_labels(&config, source.folder.as_deref(), &mut outputs)?;
    let mut settings = settings(engine, &config)?;
    for warm_up in &config.model_warmup {
        run_warm_up(&model, &inputs, warm_up, batched, source.folder.as_deref(), cancel)?;
    }
    if has_other_values(model.inputs()) || has_other_values(model.outputs()) {
        // The bytes of strings and the tensors of sequences have no batch dimension.
        settings.joins = false;
    }
    if settings.joins && !keeps_items_apart(&model, &inputs, cancel) {
        tracing::warn!(
            target: "byoc::serve", model = name,
            "the results of an item depend on the other items of its batch: requests are not batched"
        );
        settings.joins = false;
    }
    cancel
        .check(|| format!("'{name}' is compiled and warmed up"))
        .map_err(|error| ServeError::from(byoc::Error::from(error)))?;
    // Frees the memory of the two-item run in `keeps_items_apart`, which the model would otherwise retain.
    model.release_memory();
    let scheduler = Scheduler::new(model.clone(), settings, stats.clone(), &engine.session.cancel)?;
    stats.record_load(start.elapsed(), memory(&model));
    Ok(ServedModel {
        name: name.to_owned(),
        version: source.version,
        config,
        model,
        inputs,
        optional_inputs,
        outputs,
        scheduler,
        stats,
    })
}

/// Opens an artifact, or loads a model from the cache, or compiles it if it is not cached.
fn open(engine: &Engine, version_source: &VersionSource, cancel: &Cancel) -> Result<Model> {
    let (session, source) = (&engine.session, version_source.source.clone());
    if version_source.file_name.ends_with(".byoc") {
        return Ok(Compilation::open(source).and_then(|compilation| Model::of(session, compilation))?);
    }
    let slot = Slot::of(session, &engine.options, &source);
    if let Some(model) = slot.as_ref().and_then(|slot| slot.load(session)) {
        return Ok(model);
    }
    let compilation = Compilation::new(session, source, &engine.options.clone().cancel(cancel.clone()))?;
    // A compilation with warnings is not cached, so that the next start compiles the model again.
    if let Some(slot) = slot.filter(|_| compilation.warnings().is_empty()) {
        slot.store(&compilation);
    }
    Ok(Model::of(session, compilation)?)
}

/// Returns the total size of the weights and of the intermediate results of one run, in bytes.
fn memory(model: &Model) -> u64 {
    let program = model.loaded().executor().program();
    let weight = |port: &Port| {
        let shape: Option<Vec<usize>> = port.ty.dims.iter().map(|dim| dim.fixed()).collect();
        shape.and_then(|shape| byoc_ir::tensor::byte_count(port.ty.dtype, &shape)).unwrap_or_default()
    };
    let weights = program.constants.iter().map(weight).fold(0, usize::saturating_add);
    weights.saturating_add(model.plan().arena_bytes) as u64
}

fn specs(ports: &[Port]) -> Result<Vec<Spec>> {
    strings::tensors(ports)
        .into_iter()
        .map(|(index, bytes_port)| {
            let port = &ports[index];
            let dtype = port.ty.dtype;
            if Datatype::Fixed(dtype).name().is_none() {
                let message = format!("'{}': expected an element type of the protocol, found {dtype}", port.name);
                return Err(ServeError::repository(message));
            }
            let shape = port.ty.dims.iter().map(|dim| dim.fixed().map_or(-1, |size| size as i64)).collect();
            let (name, labels) = (port.name.clone(), Vec::new());
            Ok(Spec { name, dtype, shape, reshape: None, labels, port: index, bytes_port })
        })
        .collect()
}

/// Completes a configuration from the model, as Triton does: if the configuration does not specify batching and the
/// first dimension of every input and output is unknown, requests are batched.
fn complete(engine: &Engine, name: &str, file: &ConfigFile, inputs: &[Spec], outputs: &[Spec]) -> Result<ModelConfig> {
    let mut config = file.config.clone();
    if !config.name.is_empty() && config.name != name {
        let message = format!("name: expected '{name}', the name of the directory, found '{}'", config.name);
        return Err(ServeError::repository(message));
    }
    name.clone_into(&mut config.name);
    for (field, value, accepted_values) in [
        ("platform", &config.platform, &["", "onnxruntime_onnx", "byoc"][..]),
        ("backend", &config.backend, &["", "onnxruntime", "byoc"][..]),
    ] {
        if !accepted_values.contains(&value.as_str()) {
            let message = format!("{field}: expected 'byoc' or '{}', found '{value}'", accepted_values[1]);
            return Err(ServeError::repository(message));
        }
    }
    if config.backend.is_empty() {
        config.backend = if config.platform == "onnxruntime_onnx" { "onnxruntime" } else { "byoc" }.to_owned();
    }
    if config.platform.is_empty() {
        config.platform = if config.backend == "onnxruntime" { "onnxruntime_onnx" } else { "byoc" }.to_owned();
    }
    let is_open = |spec: &&Spec| spec.shape.first().is_some_and(|size| *size < 0);
    let fixed_port = inputs.iter().chain(outputs).find(|spec| !is_open(spec));
    let is_auto = !file.has_max_batch_size && config.input.is_empty() && config.output.is_empty();
    if is_auto && fixed_port.is_none() && !inputs.is_empty() && engine.defaults.max_batch_size > 0 {
        config.max_batch_size = i32::try_from(engine.defaults.max_batch_size).unwrap_or(i32::MAX);
        let batching = config.dynamic_batching.get_or_insert_with(|| ModelDynamicBatching {
            preferred_batch_size: engine.defaults.preferred_batch_size.iter().map(|&size| size as i32).collect(),
            max_queue_delay_microseconds: engine.defaults.max_queue_delay_microseconds,
            ..ModelDynamicBatching::default()
        });
        batching.preferred_batch_size.retain(|&size| size <= config.max_batch_size);
    }
    if let (1.., Some(fixed_port)) = (config.max_batch_size, fixed_port) {
        return Err(ServeError::repository(format!(
            "max_batch_size: expected 0, found {}: '{}' of the model has dims {} without an unknown first dimension",
            config.max_batch_size,
            fixed_port.name,
            dims(&fixed_port.shape)
        )));
    }
    if config.max_batch_size > 0 && inputs.is_empty() {
        return Err(ServeError::repository(format!(
            "max_batch_size: expected 0 for a model without inputs, found {}",
            config.max_batch_size
        )));
    }
    if config.max_batch_size == 0 && config.dynamic_batching.is_some() {
        return Err(ServeError::repository("dynamic_batching: expected max_batch_size > 0, found 0"));
    }
    if config.instance_group.is_empty() {
        config.instance_group.push(ModelInstanceGroup {
            name: format!("{name}_0"),
            count: engine.defaults.instances as i32,
            kind: 2,
            ..ModelInstanceGroup::default()
        });
    }
    Ok(config)
}

/// Adds the inputs and outputs missing from the configuration.
fn fill_tensors(config: &mut ModelConfig, inputs: &[Spec], outputs: &[Spec]) {
    let batch = usize::from(config.max_batch_size > 0);
    let inner = |spec: &Spec| spec.shape.get(batch..).unwrap_or_default().to_vec();
    for spec in inputs {
        let data_type = spec.datatype().number();
        match config.input.iter_mut().find(|input| input.name == spec.name) {
            Some(input) => input.data_type = data_type,
            None => {
                let input =
                    ModelInput { name: spec.name.clone(), data_type, dims: inner(spec), ..ModelInput::default() };
                config.input.push(input);
            }
        }
    }
    for spec in outputs {
        let data_type = spec.datatype().number();
        match config.output.iter_mut().find(|output| output.name == spec.name) {
            Some(output) => output.data_type = data_type,
            None => {
                let output =
                    ModelOutput { name: spec.name.clone(), data_type, dims: inner(spec), ..ModelOutput::default() };
                config.output.push(output);
            }
        }
    }
}

fn read_labels(config: &ModelConfig, dir: Option<&Path>, outputs: &mut [Spec]) -> Result<()> {
    for output in config.output.iter().filter(|output| !output.label_filename.is_empty()) {
        let label_error = |reason: String| {
            ServeError::repository(format!("label_filename: expected a label file in the model's directory: {reason}"))
        };
        let name = Path::new(&output.label_filename);
        let Some(dir) = dir.filter(|_| name.components().count() == 1 && name.file_name().is_some()) else {
            return Err(label_error(format!("found '{}'", output.label_filename)));
        };
        let file_error = |error: &dyn std::fmt::Display| label_error(format!("{}: {error}", dir.join(name).display()));
        let file = files_beside_config(dir).open(&output.label_filename).map_err(|error| file_error(&error))?;
        let text = byoc::io::text_of(&file, MAX_LABELS).map_err(|error| file_error(&error))?;
        if let Some(spec) = outputs.iter_mut().find(|spec| spec.name == output.name) {
            spec.labels = text.lines().map(|line| line.trim().to_owned()).collect();
        }
    }
    Ok(())
}

/// Returns the files that a model's configuration may name.
fn files_beside_config(dir: &Path) -> Siblings {
    Siblings::of(&dir.join("config.pbtxt"), None)
}

fn settings(engine: &Engine, config: &ModelConfig) -> Result<Settings> {
    let default_queue = engine.defaults.max_queue_size as usize;
    let policy = |policy: Option<&ModelQueuePolicy>| {
        let policy = policy.cloned().unwrap_or_default();
        let timeout = policy.default_timeout_microseconds;
        Policy {
            timeout: (timeout > 0).then(|| Duration::from_micros(timeout)),
            delays: policy.timeout_action == 1,
            allows_override: policy.allow_timeout_override,
            max_queue: if policy.max_queue_size == 0 { default_queue } else { policy.max_queue_size as usize },
        }
    };
    let max_batch = config.max_batch_size.max(0) as usize;
    let batching = config.dynamic_batching.clone().unwrap_or_default();
    let mut preferred_sizes: Vec<usize> =
        batching.preferred_batch_size.iter().map(|&size| size.max(1) as usize).collect();
    preferred_sizes.sort_unstable();
    if let Some(size) = preferred_sizes.last().filter(|size| **size > max_batch) {
        let message = format!("preferred_batch_size: expected at most max_batch_size ({max_batch}), found {size}");
        return Err(ServeError::repository(message));
    }
    let instances = config.instance_group.iter().map(|group| group.count.max(1) as usize).sum::<usize>();
    const MAX_INSTANCES: usize = 64;
    if instances > MAX_INSTANCES {
        let message = format!("instance_group: expected at most {MAX_INSTANCES} instances, found {instances}");
        return Err(ServeError::repository(message));
    }
    Ok(Settings {
        max_batch,
        joins: config.dynamic_batching.is_some() && max_batch > 1,
        preferred_sizes,
        delay: Duration::from_micros(batching.max_queue_delay_microseconds),
        levels: batching.priority_levels,
        default_level: batching.default_priority_level,
        policy: policy(batching.default_queue_policy.as_ref()),
        policies: batching
            .priority_queue_policy
            .iter()
            .map(|(level, queue_policy)| (*level, policy(Some(queue_policy))))
            .collect(),
        instances,
    })
}

fn run_warm_up(
    model: &Model,
    inputs: &[Spec],
    warm_up: &ModelWarmup,
    is_batched: bool,
    dir: Option<&Path>,
    cancel: &Cancel,
) -> Result<()> {
    let warm_up_error = |reason: &str| ServeError::repository(format!("model_warmup: {reason}"));
    let mut tensors = vec![Tensor::empty(); model.inputs().len()];
    for spec in inputs {
        let mut shape: Vec<i64> = spec.shape.clone();
        let warm_up_input = warm_up.inputs.get(&spec.name);
        if let Some(warm_up_input) = warm_up_input {
            let batch = usize::from(is_batched);
            if warm_up_input.dims.len() + batch != shape.len() {
                return Err(warm_up_error(&format!(
                    "input '{}': expected dims {}, found {}",
                    spec.name,
                    dims(&shape),
                    dims(&warm_up_input.dims)
                )));
            }
            shape[batch..].copy_from_slice(&warm_up_input.dims);
        }
        if is_batched && let Some(batch_dim) = shape.first_mut() {
            *batch_dim = i64::from(warm_up.batch_size.max(1));
        }
        let shape: Vec<usize> = shape.iter().map(|&size| if size < 0 { 1 } else { size as usize }).collect();
        let batch = usize::from(is_batched).min(shape.len());
        let model_shape = match &spec.reshape {
            None => shape,
            Some(model_dims) => element_count(&shape)
                .and_then(|count| resolve(model_dims, &shape[..batch], count))
                .ok_or_else(|| {
                    let model_dims = dims(model_dims);
                    warm_up_error(&format!("input '{}': shape {shape:?} cannot be reshaped to {model_dims}", spec.name))
                })?,
        };
        let tensor = warm_up_tensor(spec, &model_shape, warm_up_input, dir);
        tensors[spec.port] = tensor.map_err(|reason| warm_up_error(&format!("input '{}': {reason}", spec.name)))?;
    }
    let options = RunOptions { cancel: Some(cancel.clone()), ..RunOptions::default() };
    for _ in 0..warm_up.count.max(1) {
        model.run_with(&tensors, &options).map_err(|error| warm_up_error(&error.to_string()))?;
    }
    Ok(())
}

/// Returns the input of a warm-up run: zeros, random values, or the contents of a file in the model's `warmup`
/// directory.
fn warm_up_tensor(
    spec: &Spec,
    shape: &[usize],
    warm_up_input: Option<&WarmupInput>,
    dir: Option<&Path>,
) -> std::result::Result<Tensor, String> {
    // Empty strings, whose bytes are empty.
    if spec.bytes_port.is_some() {
        return Tensor::zeros(spec.dtype, shape).map_err(|error| error.to_string());
    }
    let file = match warm_up_input.and_then(|input| input.choice.as_ref()) {
        Some(WarmupChoice::RandomData(true)) if spec.dtype.is_float() => {
            return random::try_tensor(spec.dtype, shape, 0).map_err(|error| error.to_string());
        }
        Some(WarmupChoice::InputDataFile(file)) => file,
        _ => return Tensor::zeros(spec.dtype, shape).map_err(|error| error.to_string()),
    };
    let expected = byoc_ir::tensor::byte_count(spec.dtype, shape)
        .ok_or_else(|| format!("the size of shape {shape:?} exceeds the address space"))?;
    let name = Path::new(file);
    let Some(dir) = dir.filter(|_| name.components().count() == 1 && name.file_name().is_some()) else {
        return Err(format!("input_data_file: expected a file in the model's warmup directory, found '{file}'"));
    };
    let path = dir.join("warmup").join(name);
    let file_error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = files_beside_config(dir).open(&format!("warmup/{file}")).map_err(|error| file_error(&error))?;
    let size = file.metadata().map_err(|error| file_error(&error))?.len();
    if size != expected as u64 {
        return Err(file_error(&format!("expected a file of {expected} bytes, found {size}")));
    }
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes).map_err(|error| file_error(&error))?;
    Tensor::from_bytes(spec.dtype, shape, &bytes)
        .ok_or_else(|| format!("{}: not enough memory for {expected} bytes", path.display()))
}

/// Maximum size in bytes of an input for which [`keeps_items_apart`] compares results.
const MAX_COMPARED_BYTES: usize = 64 << 20;

/// Compares the results of two items in one batch with the results of separate runs. Returns true if the results agree,
/// or if the model cannot run on generated inputs.
fn keeps_items_apart(model: &Model, inputs: &[Spec], cancel: &Cancel) -> bool {
    let budget = MAX_COMPARED_BYTES.min(limits::max_memory() / 8);
    let cancel = cancel.part(Some(Duration::from_secs(10)));
    let options = RunOptions { cancel: Some(cancel), ..RunOptions::default() };
    let item = |spec: &Spec, rows: usize, seed: u64| -> Option<Tensor> {
        let mut shape: Vec<usize> = spec.shape.iter().map(|&size| if size < 0 { 1 } else { size as usize }).collect();
        *shape.first_mut()? = rows;
        byoc_ir::tensor::byte_count(spec.dtype, &shape).filter(|bytes| *bytes <= budget)?;
        if spec.dtype.is_float() {
            random::try_tensor(spec.dtype, &shape, seed)
        } else {
            Tensor::zeros(spec.dtype, &shape)
        }
        .ok()
    };
    if inputs.iter().any(|spec| spec.reshape.is_some()) {
        return true;
    }
    let joined_inputs: Option<Vec<Tensor>> = inputs.iter().zip(1..).map(|(spec, seed)| item(spec, 2, seed)).collect();
    let Some(joined_inputs) = joined_inputs else { return true };
    let Ok(joined_outputs) = model.run_with(&joined_inputs, &options) else { return true };
    let joined_outputs = joined_outputs.into_tensors();
    for row in 0..2 {
        let single_inputs: Option<Vec<Tensor>> = joined_inputs.iter().map(|tensor| rows_of(tensor, row)).collect();
        let Some(single_inputs) = single_inputs else { return true };
        let Ok(outputs) = model.run_with(&single_inputs, &options) else { return true };
        for (joined_output, single_output) in joined_outputs.iter().zip(outputs.into_tensors()) {
            let Some(joined_output) = rows_of(joined_output, row) else { return false };
            let single_output = with_batch_dim(single_output, joined_output.shape().len());
            if joined_output.shape() != single_output.shape() || !outputs_agree(&joined_output, &single_output) {
                return false;
            }
        }
    }
    true
}

/// Returns one row of a two-row tensor.
fn rows_of(tensor: &Tensor, row: usize) -> Option<Tensor> {
    let mut shape = tensor.shape().to_vec();
    let batch_dim = shape.first_mut().filter(|rows| **rows == 2)?;
    *batch_dim = 1;
    let half_bytes = tensor.bytes().len() / 2;
    Tensor::from_bytes(tensor.dtype(), &shape, &tensor.bytes()[row * half_bytes..(row + 1) * half_bytes])
}

/// Tests whether two results agree within the tolerance for a different summation order.
fn outputs_agree(a: &Tensor, b: &Tensor) -> bool {
    if !a.dtype().is_float() {
        return a.bytes() == b.bytes();
    }
    let scale = b.view().f64s().filter(|value| value.is_finite()).fold(0.0, |max: f64, value| max.max(value.abs()));
    let is_near = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-3 * scale + 1e-6;
    a.view().f64s().zip(b.view().f64s()).all(|(a, b)| is_near(a, b))
}

/// Returns the error for a directory without a model file.
pub fn missing_file_error(dir: &Path, names: &[&str]) -> ServeError {
    let message = format!("expected one of {} in {}, found none", names.join(", "), dir.display());
    ServeError::new(Status::InvalidArgument, byoc_ir::diag::codes::serving::REPOSITORY, message)
}
