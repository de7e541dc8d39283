//! Ready model version: its configuration, and the validation and execution of its requests.

use crate::batch::{Job, JobResult, Scheduler};
use crate::datatype::Datatype;
use crate::error::{Result, ServeError, Status};
use crate::outputs::{OutputMemory, Part};
use crate::proto::{self, ModelConfig, ModelMetadataResponse, TensorMetadata};
use crate::request::{
    InferRequest, InferResponse, InputData, InputTensor, OutputData, OutputTensor, RequestedOutput, SharedSpan,
};
use crate::shared_memory::{Region, Regions, is_in_place};
use crate::stats::{FailReason, Stats};
use crate::strings;
use byoc::{DType, Model, Tensor};
use byoc_ir::diag::codes::serving;
use byoc_ir::tensor::{Storage, byte_count, element_count};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Input or output of a model, as specified in requests.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub dtype: DType,
    /// Dimensions, including the batch dimension; -1 for an unknown dimension.
    pub shape: Vec<i64>,
    /// Dimensions of the model without the batch dimension, if the configuration has a `reshape`.
    pub reshape: Option<Vec<i64>>,
    /// Class names.
    pub labels: Vec<String>,
    /// Position of the port among those of the model.
    pub port: usize,
    /// Position of the port with the bytes, if the elements are strings.
    pub bytes_port: Option<usize>,
}

impl Spec {
    /// Returns the datatype in the protocol.
    pub fn datatype(&self) -> Datatype {
        if self.bytes_port.is_some() { Datatype::Bytes } else { Datatype::Fixed(self.dtype) }
    }

    /// Returns the name of the datatype in the protocol.
    pub fn datatype_name(&self) -> &'static str {
        self.datatype().name().unwrap_or_default()
    }
}

/// Ready model version.
#[derive(Debug)]
pub struct ServedModel {
    pub name: String,
    pub version: u64,
    pub config: ModelConfig,
    pub model: Model,
    pub inputs: Vec<Spec>,
    /// Inputs with a default value, which a request may contain. They have no batch dimension.
    pub optional_inputs: Vec<Spec>,
    pub outputs: Vec<Spec>,
    pub scheduler: Scheduler,
    pub stats: Arc<Stats>,
}

impl ServedModel {
    /// Returns the model metadata.
    pub fn metadata(&self, versions: Vec<String>) -> ModelMetadataResponse {
        let tensor = |spec: &Spec| TensorMetadata {
            name: spec.name.clone(),
            datatype: spec.datatype_name().to_owned(),
            shape: spec.shape.clone(),
        };
        ModelMetadataResponse {
            name: self.name.clone(),
            versions,
            platform: if self.config.platform.is_empty() { &self.config.backend } else { &self.config.platform }
                .clone(),
            inputs: self.inputs.iter().map(tensor).collect(),
            outputs: self.outputs.iter().map(tensor).collect(),
            properties: BTreeMap::from([
                ("backend".to_owned(), self.config.backend.clone()),
                ("max_batch_size".to_owned(), self.config.max_batch_size.to_string()),
            ]),
        }
    }

    /// Serves a request that arrived at `arrival`.
    ///
    /// # Errors
    /// If the request does not match the model, exceeds a limit or its deadline, or its run fails.
    pub async fn infer(
        &self,
        request: InferRequest,
        regions: &Regions,
        arrival: Instant,
        deadline: Instant,
    ) -> Result<InferResponse> {
        // If the client disconnects, this future is dropped, and the request is counted as cancelled.
        let mut outcome = OutcomeRecorder { stats: &self.stats, arrival, reason: FailReason::Canceled, is_done: false };
        let id = request.id.clone();
        let result = self.infer_counted(request, regions, deadline, &mut outcome).await;
        if let Err(error) = &result {
            outcome.reason = match error.status {
                Status::Unavailable => FailReason::Rejected,
                Status::Cancelled | Status::DeadlineExceeded => FailReason::Canceled,
                Status::Internal => FailReason::Backend,
                _ => FailReason::Other,
            };
        }
        result.map_err(|error| error.with_request_id(&id))
    }

    async fn infer_counted(
        &self,
        request: InferRequest,
        regions: &Regions,
        deadline: Instant,
        outcome: &mut OutcomeRecorder<'_>,
    ) -> Result<InferResponse> {
        let InferRequest { id, params, inputs, outputs } = request;
        let (inputs_in_order, memory, has_optional, timeout) = (Vec::new(), None, false, None);
        let mut job = Job { inputs: inputs_in_order, memory, rows: 1, has_optional, priority: 0, timeout, deadline };
        for (name, value) in &params {
            match name.as_str() {
                "priority" => job.priority = value.count(name)?,
                "timeout" => {
                    let micros = value.count(name)?;
                    job.timeout = (micros > 0).then(|| Duration::from_micros(micros));
                }
                "sequence_id" if value.count(name).is_ok_and(|id| id == 0) => {}
                "sequence_start" | "sequence_end" if value.bool(name).is_ok_and(|is_set| !is_set) => {}
                "sequence_id" | "sequence_start" | "sequence_end" => {
                    let message = format!("'{name}': byoc serve does not support request sequences");
                    return Err(ServeError::not_served(message));
                }
                name if name.starts_with("triton_") => {
                    let message = format!("expected parameters that do not start with 'triton_', found '{name}'");
                    return Err(ServeError::bad_request(message));
                }
                _ => {}
            }
        }
        let requested_outputs = self.check_outputs(outputs, regions)?;
        let in_place_spans = self.take_inputs(inputs, regions, &mut job)?;
        job.memory = self.output_memory(&requested_outputs)?;
        let rows = job.rows;
        let result = self.scheduler.run(job).await?;
        in_place_spans.iter().try_for_each(|(region, span)| region.check_intact(span))?;
        let outputs =
            requested_outputs.into_iter().map(|output| self.output(output, &result)).collect::<Result<Vec<_>>>()?;
        outcome.is_done = true;
        self.stats.record_success(rows.max(1) as u64, result.queue, &result.times, outcome.arrival.elapsed());
        Ok(InferResponse { model: self.name.clone(), version: self.version.to_string(), id, outputs })
    }

    /// Resolves the requested outputs. The request retains its shared-memory regions even if a client unregisters them.
    fn check_outputs(&self, outputs: Vec<RequestedOutput>, regions: &Regions) -> Result<Vec<OutputRequest>> {
        if outputs.is_empty() {
            let default_request =
                |index| OutputRequest { index, output: RequestedOutput::default(), region_span: None };
            return Ok((0..self.outputs.len()).map(default_request).collect());
        }
        let mut output_requests: Vec<OutputRequest> = Vec::with_capacity(outputs.len());
        for output in outputs {
            let Some(index) = self.outputs.iter().position(|spec| spec.name == output.name) else {
                let output_names: Vec<&str> = self.outputs.iter().map(|spec| spec.name.as_str()).collect();
                let message = format!(
                    "unexpected inference output '{}' for model '{}': expected one of {}",
                    clip(&output.name),
                    self.name,
                    names(&output_names)
                );
                return Err(ServeError::bad_tensor(message));
            };
            if output_requests.iter().any(|other| other.index == index) {
                let message = format!("expected each output once, found '{}' twice", output.name);
                return Err(ServeError::bad_tensor(message));
            }
            let region_span = output.shared_span.as_ref().map(|span| regions.locate(span)).transpose()?;
            output_requests.push(OutputRequest { index, output, region_span });
        }
        Ok(output_requests)
    }

    /// Returns memory for the outputs if their dimensions are known and the request provides shared memory for at least
    /// one output that can be written in place.
    fn output_memory(&self, output_requests: &[OutputRequest]) -> Result<Option<OutputMemory>> {
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for port in self.model.outputs() {
            let Some(shape) = port.ty.shape() else { return Ok(None) };
            outputs.push((port.ty.dtype, shape, None));
        }
        for request in output_requests {
            let (Some(span), Some((region, index))) = (&request.output.shared_span, &request.region_span) else {
                continue;
            };
            let spec = &self.outputs[request.index];
            if spec.bytes_port.is_some() {
                continue;
            }
            let Some((dtype, shape, memory)) = outputs.get_mut(spec.port) else { continue };
            let size = byte_count(*dtype, shape).unwrap_or(usize::MAX);
            if is_in_place(*dtype, size) && size as u64 <= span.byte_size {
                *memory = region.borrow_writable(*index, size);
            }
        }
        if outputs.iter().all(|(.., memory)| memory.is_none()) {
            return Ok(None);
        }
        OutputMemory::new(outputs).map(Some)
    }

    /// Converts the inputs of a request to tensors in model order, and returns the shared memory that is read in place.
    fn take_inputs(
        &self,
        inputs: Vec<InputTensor>,
        regions: &Regions,
        job: &mut Job,
    ) -> Result<Vec<(Arc<Region>, SharedSpan)>> {
        let mut in_place_spans = Vec::new();
        self.check_names(&inputs)?;
        let mut rows = None;
        let port_count = self.model.inputs().len();
        let mut tensors: Vec<Option<Tensor>> = vec![None; port_count + self.optional_inputs.len()];
        for input in inputs {
            let mut specs = self.all_inputs().enumerate();
            let Some((index, spec)) = specs.find(|(_, spec)| spec.name == input.name) else { continue };
            let is_optional = index >= self.inputs.len();
            let is_batched = self.config.max_batch_size > 0 && !is_optional;
            if input.datatype != spec.datatype_name() {
                return Err(ServeError::bad_tensor(format!(
                    "inference input '{}' data-type is '{}', but model '{}' expects '{}'",
                    spec.name,
                    clip(&input.datatype),
                    self.name,
                    spec.datatype_name()
                )));
            }
            let shape = self.check_shape(spec, &input.shape, is_batched)?;
            job.has_optional |= is_optional;
            if is_batched {
                let row_count = shape.first().copied().unwrap_or_default();
                if *rows.get_or_insert(row_count) != row_count {
                    return Err(ServeError::bad_tensor(format!(
                        "input '{}' batch size does not match other inputs for '{}': expected {}, found {row_count}",
                        spec.name,
                        self.name,
                        rows.unwrap_or_default()
                    )));
                }
            }
            if let Some(bytes_port) = spec.bytes_port {
                let [spans, bytes] = self.strings(spec, &shape, input.data, regions)?;
                (tensors[spec.port], tensors[bytes_port]) = (Some(spans), Some(bytes));
                continue;
            }
            let port = if is_optional { port_count + spec.port } else { spec.port };
            tensors[port] = Some(self.tensor(spec, &shape, input.data, regions, &mut in_place_spans)?);
        }
        job.rows = rows.unwrap_or(1);
        job.inputs = match job.has_optional {
            false => tensors.into_iter().flatten().collect(),
            true => {
                let ports = self.model.inputs().iter().chain(self.model.optional_inputs());
                let names = ports.map(|port| port.name.clone());
                let named = names.zip(tensors).filter_map(|(name, tensor)| Some((name, tensor?)));
                self.model.loaded().bind(named).map_err(byoc::Error::from)?
            }
        };
        Ok(in_place_spans)
    }

    /// Iterates over the inputs of the model, the optional ones last.
    fn all_inputs(&self) -> impl Iterator<Item = &Spec> {
        self.inputs.iter().chain(&self.optional_inputs)
    }

    fn check_names(&self, inputs: &[InputTensor]) -> Result<()> {
        for (i, input) in inputs.iter().enumerate() {
            if inputs[..i].iter().any(|other| other.name == input.name) {
                let message = format!("expected each input once, found '{}' twice", clip(&input.name));
                return Err(ServeError::bad_tensor(message));
            }
        }
        let missing_names: Vec<&str> = self.inputs.iter().map(|spec| spec.name.as_str()).collect();
        let missing_names: Vec<&str> =
            missing_names.into_iter().filter(|name| !inputs.iter().any(|input| input.name == *name)).collect();
        let unknown_input = inputs.iter().find(|input| !self.all_inputs().any(|spec| spec.name == input.name));
        if missing_names.is_empty() && unknown_input.is_none() {
            return Ok(());
        }
        let given_names: Vec<&str> = inputs.iter().take(64).map(|input| clip(&input.name)).collect();
        if let (Some(unknown_input), true) = (unknown_input, inputs.len() == self.inputs.len()) {
            return Err(ServeError::bad_tensor(format!(
                "unexpected inference input '{}' for model '{}': missing required input(s) {}",
                clip(&unknown_input.name),
                self.name,
                names(&missing_names)
            )));
        }
        let missing_names = if missing_names.is_empty() {
            String::new()
        } else {
            format!(", but missing required input(s) {}", names(&missing_names))
        };
        Err(ServeError::bad_tensor(format!(
            "expected {} inputs but got {} inputs for model '{}'. Got input(s) {}{missing_names}.",
            self.inputs.len(),
            inputs.len(),
            self.name,
            names(&given_names)
        )))
    }

    /// Checks an input shape against the model, and converts it to unsigned dimensions.
    fn check_shape(&self, spec: &Spec, shape: &[i64], is_batched: bool) -> Result<Vec<usize>> {
        let matches_spec = shape.len() == spec.shape.len()
            && shape
                .iter()
                .zip(&spec.shape)
                .all(|(&actual, &expected)| actual >= 0 && (expected < 0 || actual == expected));
        let sizes: Option<Vec<usize>> = shape.iter().map(|&size| usize::try_from(size).ok()).collect();
        let Some(sizes) = sizes.filter(|_| matches_spec) else {
            let note = if is_batched {
                format!(". NOTE: the first dimension is the batch size, of at most {}", self.config.max_batch_size)
            } else {
                String::new()
            };
            return Err(ServeError::bad_tensor(format!(
                "unexpected shape for input '{}' for model '{}'. Expected {}, got {}{note}.",
                spec.name,
                self.name,
                dims(&spec.shape),
                dims(shape.get(..64).unwrap_or(shape))
            )));
        };
        if is_batched && shape.first().is_some_and(|&rows| rows > i64::from(self.config.max_batch_size)) {
            return Err(ServeError::bad_tensor(format!(
                "inference request batch-size must be <= {} for '{}', found {}",
                self.config.max_batch_size, self.name, sizes[0]
            )));
        }
        Ok(sizes)
    }

    /// Returns the spans and the bytes of an input of strings.
    fn strings(&self, spec: &Spec, shape: &[usize], data: InputData, regions: &Regions) -> Result<[Tensor; 2]> {
        let [spans, bytes] = match data {
            InputData::Bytes(bytes) => strings::read(&spec.name, shape, &bytes),
            InputData::Shared(span) => strings::read(&spec.name, shape, regions.read(&span)?.as_ref()),
        }?;
        Ok([self.with_model_shape(spec, shape, spans)?, bytes])
    }

    fn tensor(
        &self,
        spec: &Spec,
        shape: &[usize],
        data: InputData,
        regions: &Regions,
        in_place_spans: &mut Vec<(Arc<Region>, SharedSpan)>,
    ) -> Result<Tensor> {
        let Some(expected) = byte_count(spec.dtype, shape) else {
            let message = format!("input '{}': the size of shape {shape:?} exceeds the address space", spec.name);
            return Err(ServeError::bad_tensor(message));
        };
        let check = |size: u64| {
            if size == expected as u64 {
                return Ok(());
            }
            Err(ServeError::bad_tensor(format!(
                "input '{}' got unexpected byte size {size}, expected {expected}",
                spec.name
            )))
        };
        let storage: Arc<dyn Storage> = match data {
            InputData::Bytes(bytes) => {
                check(bytes.len() as u64)?;
                Arc::new(bytes)
            }
            InputData::Shared(span) => {
                check(span.byte_size)?;
                let (region, index) = regions.locate(&span)?;
                match is_in_place(spec.dtype, expected).then(|| region.borrow(index, expected)).flatten() {
                    Some(bytes) => {
                        in_place_spans.push((region, span));
                        Arc::new(bytes)
                    }
                    None => Arc::new(regions.read(&span)?),
                }
            }
        };
        if spec.dtype == DType::Bool
            && let Some(invalid_byte) = (*storage).as_ref().iter().find(|byte| **byte > 1)
        {
            let message = format!("input '{}': expected Boolean elements of 0 or 1, found {invalid_byte}", spec.name);
            return Err(ServeError::bad_tensor(message));
        }
        let tensor = Tensor::from_storage(spec.dtype, shape, storage)
            .ok_or_else(|| ServeError::overloaded(format!("not enough memory for input '{}'", spec.name)))?;
        self.with_model_shape(spec, shape, tensor)
    }

    /// Reshapes an input as the configuration states.
    fn with_model_shape(&self, spec: &Spec, shape: &[usize], tensor: Tensor) -> Result<Tensor> {
        let Some(model_dims) = &spec.reshape else { return Ok(tensor) };
        let batch = usize::from(self.config.max_batch_size > 0);
        resolve(model_dims, &shape[..batch], tensor.len()).and_then(|shape| tensor.reshaped(&shape)).ok_or_else(|| {
            let message = format!("input '{}': shape {shape:?} cannot be reshaped to {}", spec.name, dims(model_dims));
            ServeError::bad_tensor(message)
        })
    }

    fn output(&self, request: OutputRequest, result: &JobResult) -> Result<OutputTensor> {
        let OutputRequest { index, output: output_request, region_span } = request;
        let spec = &self.outputs[index];
        let Some(part) = result.outputs.get(spec.port) else {
            let message =
                format!("output '{}': expected more than {index} results, found {}", spec.name, result.outputs.len());
            return Err(ServeError::new(Status::Internal, serving::BAD_TENSOR, message));
        };
        let mut shape = part.shape();
        if spec.reshape.is_some() {
            let batch = usize::from(self.config.max_batch_size > 0);
            let count = element_count(&shape).unwrap_or_default();
            let config_dims = &spec.shape[batch..];
            shape = resolve(config_dims, &shape[..batch], count).ok_or_else(|| {
                let message =
                    format!("output '{}': shape {shape:?} cannot be reshaped to {}", spec.name, dims(config_dims));
                ServeError::new(Status::Internal, serving::BAD_TENSOR, message)
            })?;
        }
        let (name, binary) = (spec.name.clone(), output_request.binary);
        if output_request.classes > 0 && spec.bytes_port.is_some() {
            let message = format!("output '{name}': expected a classification of numbers, found one of strings");
            return Err(ServeError::bad_request(message));
        }
        if output_request.classes > 0 {
            let (shape, bytes) = self.classes(spec, part, output_request.classes);
            let data = OutputData::Bytes(bytes);
            return Ok(OutputTensor { name, datatype: Datatype::Bytes, shape, data, binary });
        }
        let bytes = match spec.bytes_port.and_then(|port| result.outputs.get(port)) {
            Some(bytes) => strings::write(&spec.name, &part.tensor, &bytes.tensor)?,
            None => part.bytes(),
        };
        let data = match output_request.shared_span.zip(region_span) {
            None => OutputData::Bytes(bytes),
            Some((mut span, (region, index))) => {
                let size = bytes.len() as u64;
                if size > span.byte_size {
                    return Err(ServeError::new(
                        Status::Internal,
                        serving::SHARED_MEMORY,
                        format!(
                            "shared memory size specified with the request for output '{name}' ({} bytes) should be \
                             at least {size} bytes to hold the results",
                            span.byte_size
                        ),
                    ));
                }
                if part.is_in_place {
                    region.check_intact(&span)?;
                } else {
                    region.write(&span, index, &bytes)?;
                }
                span.byte_size = size;
                OutputData::Shared(span)
            }
        };
        let shape = shape.into_iter().map(|size| size as i64).collect();
        Ok(OutputTensor { name, datatype: spec.datatype(), shape, data, binary })
    }

    /// Returns the largest values of each row as `value:index` or `value:index:label`.
    fn classes(&self, spec: &Spec, part: &Part, class_limit: u64) -> (Vec<i64>, Bytes) {
        let shape = part.shape();
        let bytes = part.bytes();
        let is_batched = self.config.max_batch_size > 0;
        let rows = if is_batched { shape.first().copied().unwrap_or(1) } else { 1 };
        let values =
            Tensor::from_bytes(spec.dtype, &shape, &bytes).map(|tensor| tensor.view().to_f64s()).unwrap_or_default();
        let classes = values.len().checked_div(rows).unwrap_or_default();
        let class_count = usize::try_from(class_limit).unwrap_or(usize::MAX).min(classes);
        let mut text = Vec::new();
        for row in values.chunks(classes.max(1)) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            for &class in &order[..class_count.min(order.len())] {
                let mut entry = format!("{:.6}:{class}", row[class]);
                if let Some(label) = spec.labels.get(class) {
                    entry.push(':');
                    entry.push_str(label);
                }
                text.extend_from_slice(&(entry.len() as u32).to_le_bytes());
                text.extend_from_slice(entry.as_bytes());
            }
        }
        let class_count = class_count as i64;
        (if is_batched { vec![rows as i64, class_count] } else { vec![class_count] }, text.into())
    }
}

/// Requested output: its index, its format, and its location in shared memory.
struct OutputRequest {
    index: usize,
    output: RequestedOutput,
    region_span: Option<(Arc<Region>, u64)>,
}

/// Guard that records a request as failed on drop, unless `is_done` is set.
struct OutcomeRecorder<'a> {
    stats: &'a Stats,
    arrival: Instant,
    reason: FailReason,
    is_done: bool,
}

impl Drop for OutcomeRecorder<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.stats.record_failure(self.reason, self.arrival.elapsed());
        }
    }
}

/// Returns the shape `batch` followed by `dims`, with an unknown dimension inferred from the element count `count`;
/// `None` if no such shape exists.
pub fn resolve(dims: &[i64], batch: &[usize], count: usize) -> Option<Vec<usize>> {
    let known_sizes = dims.iter().filter(|&&size| size >= 0).map(|&size| size as usize).chain(batch.iter().copied());
    let inferred_size = known_sizes
        .into_iter()
        .try_fold(1usize, usize::checked_mul)
        .and_then(|known_product| count.checked_div(known_product));
    let mut shape = batch.to_vec();
    for &size in dims {
        shape.push(if size >= 0 { size as usize } else { inferred_size? });
    }
    (element_count(&shape)? == count).then_some(shape)
}

/// Returns dimensions as Triton prints them.
pub fn dims(shape: &[i64]) -> String {
    let sizes: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", sizes.join(","))
}

fn names(names: &[&str]) -> String {
    let quoted_names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", quoted_names.join(","))
}

/// Truncates a name from a request for messages.
pub fn clip(name: &str) -> &str {
    name.char_indices().nth(100).map_or(name, |(end, _)| &name[..end])
}

/// Checks the tensors of a configuration against the inputs or outputs of a model.
///
/// # Errors
/// If the model has no tensor with that name, or its type differs.
pub fn check_spec(
    kind: &str,
    config_tensors: &[(String, i32, Vec<i64>, Option<Vec<i64>>)],
    specs: &mut [Spec],
    is_batched: bool,
) -> Result<()> {
    for (name, data_type, config_dims, reshape) in config_tensors {
        let Some(spec) = specs.iter_mut().find(|spec| spec.name == *name) else {
            let model_names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            let message =
                format!("expected an {kind} of the model, found '{name}'; the model has {}", names(&model_names));
            return Err(ServeError::repository(message));
        };
        let datatype_number = spec.datatype().number();
        let data_types = proto::enumeration("DataType").unwrap_or_default();
        let type_name = |number: i32| data_types.get(number as usize).copied().unwrap_or_default();
        if *data_type != 0 && *data_type != datatype_number {
            return Err(ServeError::repository(format!(
                "{kind} '{name}': expected data_type {} as in the model, found {}",
                type_name(datatype_number),
                type_name(*data_type)
            )));
        }
        let batch = usize::from(is_batched);
        let model_dims = &spec.shape[batch.min(spec.shape.len())..];
        let reshaped_dims = reshape.as_ref().unwrap_or(config_dims);
        let dims_agree = reshaped_dims.len() == model_dims.len()
            && reshaped_dims
                .iter()
                .zip(model_dims)
                .all(|(config_dim, model_dim)| *model_dim < 0 || config_dim == model_dim);
        if !dims_agree {
            let note = if is_batched { ", without the batch dimension, which max_batch_size > 0 adds" } else { "" };
            return Err(ServeError::repository(format!(
                "{kind} '{name}': expected dims {} as in the model{note}, found {}",
                dims(model_dims),
                dims(reshaped_dims)
            )));
        }
        let unknown_count = |dims: &[i64]| dims.iter().filter(|size| **size < 0).count();
        if let Some(reshape) = reshape
            && (unknown_count(reshape) > 1 || unknown_count(config_dims) > 1)
        {
            let message = format!(
                "{kind} '{name}': expected at most one unknown dimension with a reshape, found {} in dims and {} in reshape",
                unknown_count(config_dims),
                unknown_count(reshape)
            );
            return Err(ServeError::repository(message));
        }
        let mut shape = spec.shape[..batch.min(spec.shape.len())].to_vec();
        shape.extend(config_dims);
        spec.shape = shape;
        spec.reshape.clone_from(reshape);
    }
    Ok(())
}
