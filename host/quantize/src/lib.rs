//! Post-training quantization of a float model to int8, with ranges calibrated on samples of its inputs.
//!
//! | file | contents |
//! |---|---|
//! | [`scheme`] | mapping of real numbers to integers |
//! | [`source`], [`data`], [`labels`] | calibration data and labels, read and checked |
//! | [`weight_inputs`] | weights declared as inputs, which become constants |
//! | [`model`] | float model, simplified, with its symbolic dimensions preserved |
//! | [`layers`], [`roles`] | operators executed on integers, and values that share a scale |
//! | [`runs`], [`calibrate`], [`histogram`], [`means`] | distributions and means of the values in the float model |
//! | [`range`] | range that the integers represent |
//! | [`weights`], [`rewrite`](mod@rewrite) | model with qnn operators |
//! | [`measure`](mod@measure), [`report`] | accuracy loss, layer by layer |
//! | `sensitivity` | layers that stay in float to bound the loss |
//!
//! Values and scales follow Relay's QNN dialect: a layer reads int8 and has int32 accumulators; its bias is added in
//! int32, and the accumulators are requantized to int8.

pub mod calibrate;
pub mod data;
pub mod histogram;
pub mod labels;
pub mod layers;
pub mod means;
pub mod measure;
pub mod method;
pub mod model;
pub mod range;
pub mod report;
pub mod rewrite;
pub mod roles;
pub mod runs;
pub mod scheme;
mod sensitivity;
pub mod source;
pub mod weight_inputs;
pub mod weights;

use byoc::frontend::{self, Signature};
use byoc::runtime::error::Failure;
use byoc::runtime::exec::Pool;
use byoc_ir::diag::{Diagnostic, codes, nearest};
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::op;
use calibrate::Statistics;
use histogram::Histogram;
use layers::Layer;
use measure::{Accuracy, measure};
use method::Method;
use range::Range;
use report::{Report, Row};
use rewrite::{Plan, rewrite};
use roles::{Role, Roles, inputs};
use runs::Runs;
use scheme::{Parameters, Scheme};
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Layers that stay in float.
#[derive(Clone, Debug, PartialEq)]
pub struct Keep {
    /// True to keep the first convolution in float, since it reads the model input directly and has too few channels to
    /// gain from int8.
    pub first: bool,
    /// Names of the layers' operators in the model.
    pub names: Vec<String>,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep { first: true, names: Vec::new() }
    }
}

/// Quantization options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Quantization scheme.
    pub scheme: Scheme,
    /// Method that chooses the ranges of activations.
    pub method: Method,
    /// Layers that stay in float.
    pub keep: Keep,
    /// Maximum loss; the most sensitive layers stay in float until the model meets it. The loss is the drop in accuracy
    /// if labels are given, otherwise 1 minus [`Accuracy::cosine`].
    pub max_loss: Option<f64>,
    /// Correct class of each sample; defaults to the labels in the calibration data.
    pub labels: Option<Vec<i64>>,
    /// Maximum number of calibration samples.
    pub samples: Option<usize>,
    /// Fixed values for symbolic dimensions, by name.
    pub dims: BTreeMap<String, usize>,
}

/// Quantized model.
pub struct QuantizedModel {
    /// Module with qnn operators.
    pub module: Module,
    /// Inputs and outputs of the module, under the names of the float model.
    pub signature: Signature,
    /// Per-layer report.
    pub report: Report,
    /// Non-fatal diagnostics.
    pub warnings: Vec<Diagnostic>,
}

/// Quantizes a model. `progress` is called with a description of each step.
///
/// # Errors
/// If the calibration data does not match the model (E0530 to E0532), no layer can be quantized (E0360), a layer name
/// is unknown (E0361), the number of labels differs from the number of samples (E0614), or the model cannot be read or
/// run.
pub fn quantize(
    path: &Path,
    source: &Source,
    options: &Options,
    pool: &Arc<Pool>,
    progress: &dyn Fn(&str),
) -> Result<QuantizedModel, Failure> {
    let signature = frontend::signature(path)?;
    let weight_inputs = weight_inputs::read(path, &signature, &options.dims, source)?;
    let inputs = weight_inputs.remaining(&signature);
    let samples = data::read(source, &inputs, &weight_inputs, &options.dims, options.samples)?;
    let labels = options.labels.as_ref().or(samples.labels.as_ref());
    if let Some(labels) = labels {
        labels::check(labels, samples.count)?;
    }
    progress("reading the model");
    let float_model = model::read(path, &signature, &weight_inputs, &options.dims, &samples)?;
    let mut warnings = weight_inputs.warnings;
    warnings.extend(samples.warnings.iter().cloned());
    warnings.extend(float_model.warnings);
    let runs = Runs {
        samples: &samples,
        batch: float_model.fixed_batch.unwrap_or_else(|| samples.batch()),
        open: float_model.fixed_batch.is_none(),
        pool,
    };
    if runs.count() < samples.count {
        let (batch, remaining) = (runs.batch, samples.count - runs.count());
        let message = format!("unused samples: {remaining}, because the batch size of the model is {batch}");
        warnings.push(Diagnostic::warning(codes::frontends::CALIBRATION_MISFIT, message));
    }

    let layers = layers::find(&float_model.module);
    let mut float_layers = float_layers(&layers, &options.keep)?;
    if layers.iter().enumerate().all(|(i, _)| float_layers.contains_key(&i)) {
        return Err(nothing_to_quantize(&layers, &float_layers).into());
    }
    let mut quantizer = Quantizer {
        module: &float_model.module,
        layers: &layers,
        scheme: options.scheme,
        method: options.method,
        labels: labels.map(Vec::as_slice),
        runs: &runs,
        statistics: Statistics::default(),
        progress,
    };
    let mut sensitivities = BTreeMap::new();
    if let Some(limit) = options.max_loss {
        let layer_sensitivities = sensitivity::keep_within(&mut quantizer, &mut float_layers, limit)?;
        sensitivities = layer_sensitivities;
        if layers.iter().enumerate().all(|(i, _)| float_layers.contains_key(&i)) {
            return Err(nothing_to_quantize(&layers, &float_layers).into());
        }
    }
    let roles = quantizer.roles(|i| !float_layers.contains_key(&i));
    let observed_values = observed_values(&roles);
    let end_exprs: Vec<ExprId> = observed_values.iter().map(|&id| roles.end(id)).collect();
    quantizer.observe(&roles, &end_exprs)?;
    let (ranges, parameters) = quantizer.parameters(&roles)?;
    let plan = quantizer.plan(&roles, &parameters);
    let rewritten_model = rewrite(&plan, &[])?;
    progress("measuring");
    let accuracy =
        measure(&float_model.module, &rewrite(&plan, &end_exprs)?.module, &end_exprs, quantizer.labels, &runs)?;
    let rows = rows(
        &quantizer,
        &roles,
        &float_layers,
        &sensitivities,
        &ranges,
        &parameters,
        &rewritten_model.weight_scales,
        &accuracy,
    );
    let report = Report {
        rows,
        accuracy,
        scheme: options.scheme.to_string(),
        method: options.method.to_string(),
        quantized: layers.len() - float_layers.len(),
        layers: layers.len(),
    };
    Ok(QuantizedModel { module: rewritten_model.module, signature: inputs, report, warnings })
}

/// State shared by the quantization steps.
struct Quantizer<'a> {
    module: &'a Module,
    layers: &'a [Layer],
    scheme: Scheme,
    method: Method,
    labels: Option<&'a [i64]>,
    runs: &'a Runs<'a>,
    /// Statistics of the values observed so far.
    statistics: Statistics,
    progress: &'a dyn Fn(&str),
}

impl<'a> Quantizer<'a> {
    fn roles(&self, is_selected: impl Fn(usize) -> bool) -> Roles {
        Roles::new(self.module, self.layers, is_selected)
    }

    /// Collects the missing histograms for `extra_exprs` and for the values whose ranges `roles` needs, and the missing
    /// input means of the quantized layers.
    fn observe(&mut self, roles: &Roles, extra_exprs: &[ExprId]) -> Result<(), Failure> {
        let required_exprs: BTreeSet<ExprId> =
            roles.range_exprs.values().flatten().chain(extra_exprs).copied().collect();
        let missing_exprs: Vec<ExprId> =
            required_exprs.into_iter().filter(|id| !self.statistics.histograms.contains_key(id)).collect();
        let is_quantized = |layer: &usize| matches!(roles.role_of[self.layers[*layer].call], Some(Role::Layer(_)));
        let mean_layers: Vec<usize> = (0..self.layers.len())
            .filter(|layer| is_quantized(layer) && !self.statistics.means.contains_key(layer))
            .collect();
        if missing_exprs.is_empty() && mean_layers.is_empty() {
            return Ok(());
        }
        (self.progress)("calibrating");
        let statistics = calibrate::statistics(self.module, &missing_exprs, self.layers, &mean_layers, self.runs)?;
        for (&id, histogram) in &statistics.histograms {
            if histogram.non_finite_count() > 0 {
                let name = layers::name(self.module, id);
                let message = format!(
                    "\"{name}\": expected finite values, found {} NaN or infinite values",
                    histogram.non_finite_count()
                );
                return Err(Diagnostic::error(codes::frontends::CALIBRATION_NOT_FINITE, message)
                    .note("the float model computes these values from the calibration data")
                    .help("check the scale of the calibration data: a model that overflows on it cannot be quantized")
                    .into());
            }
        }
        self.statistics.histograms.extend(statistics.histograms);
        self.statistics.means.extend(statistics.means);
        Ok(())
    }

    /// Returns the range of each group, and its scale and zero point.
    fn parameters(&self, roles: &Roles) -> Result<(BTreeMap<ExprId, Range>, BTreeMap<ExprId, Parameters>), Failure> {
        let mut ranges = BTreeMap::new();
        for (&group, values) in &roles.range_exprs {
            let histograms = values.iter().filter_map(|id| self.statistics.histograms.get(id));
            let range = histograms.map(|histogram| self.method.range(histogram, &self.scheme)).reduce(Range::union);
            ranges.insert(group, range.unwrap_or_default());
        }
        let parameters = ranges.iter().map(|(&group, &range)| (group, self.scheme.parameters(range))).collect();
        Ok((ranges, parameters))
    }

    fn plan<'p>(&'p self, roles: &'p Roles, parameters: &'p BTreeMap<ExprId, Parameters>) -> Plan<'p> {
        let Quantizer { module, layers, scheme, .. } = *self;
        Plan { module, layers, roles, parameters, means: &self.statistics.means, scheme }
    }
}

/// Returns the values that have separate scales, in evaluation order: the results of layers, additions, concatenations
/// and average pooling.
fn observed_values(roles: &Roles) -> Vec<ExprId> {
    let is_own = |role: &Role| matches!(role, Role::Layer(_) | Role::Mean(_) | Role::Add | Role::Concatenate);
    roles.role_of.iter().filter(|(_, role)| role.as_ref().is_some_and(is_own)).map(|(id, _)| id).collect()
}

fn rows(
    quantizer: &Quantizer<'_>,
    roles: &Roles,
    float_layers: &BTreeMap<usize, String>,
    sensitivities: &BTreeMap<usize, f64>,
    ranges: &BTreeMap<ExprId, Range>,
    parameters: &BTreeMap<ExprId, Parameters>,
    weight_scales: &[Option<Vec<f32>>],
    accuracy: &Accuracy,
) -> Vec<Row> {
    let mut rows: BTreeMap<ExprId, Row> = BTreeMap::new();
    for (&id, &noise) in observed_values(roles).iter().zip(&accuracy.signal_to_noise) {
        let Some(role) = &roles.role_of[id] else { continue };
        let group = roles.group(roles.end(id));
        let layer_index = match role {
            Role::Layer(layer_index) => Some(*layer_index),
            _ => None,
        };
        let input = inputs(quantizer.module, id, role).first().map(|&input| roles.group(input));
        let range = quantizer.statistics.histograms.get(&roles.end(id)).map(Histogram::range);
        let scales = layer_index.and_then(|layer_index| weight_scales.get(layer_index)?.as_ref());
        let bounds =
            |scales: &Vec<f32>| scales.iter().fold((f32::INFINITY, 0f32), |(min, max), &s| (min.min(s), max.max(s)));
        let row = Row {
            layer: layers::name(quantizer.module, id),
            operator: quantizer.module.expr(id).as_op_call().map_or("", |(operator, _)| op::get(operator).name),
            kept: None,
            range: ranges.get(&group).copied().or(range),
            output: parameters.get(&group).copied(),
            input: layer_index.and(input).and_then(|group| parameters.get(&group)).copied(),
            weight_scale: scales.map(bounds),
            signal_to_noise: noise,
            sensitivity: layer_index.and_then(|layer_index| sensitivities.get(&layer_index)).copied(),
        };
        rows.insert(id, row);
    }
    for (layer_index, reason) in float_layers {
        let layer = &quantizer.layers[*layer_index];
        let row = Row {
            layer: layer.name.clone(),
            operator: layer.operator,
            kept: Some(reason.clone()),
            range: None,
            output: None,
            input: None,
            weight_scale: None,
            signal_to_noise: None,
            sensitivity: sensitivities.get(layer_index).copied(),
        };
        rows.insert(layer.call, row);
    }
    rows.into_values().collect()
}

/// Returns the layers that stay in float because of an obstacle or a user option, each with the reason.
fn float_layers(layers: &[Layer], keep: &Keep) -> Result<BTreeMap<usize, String>, Failure> {
    let mut float_layers = BTreeMap::new();
    let mut errors = Vec::new();
    for name in &keep.names {
        let matching_layers: Vec<usize> = (0..layers.len()).filter(|&i| layers[i].name == *name).collect();
        if matching_layers.is_empty() {
            let names = layers.iter().map(|layer| layer.name.as_str());
            let error = Diagnostic::error(codes::passes::UNKNOWN_LAYER, format!("the model has no layer \"{name}\""))
                .note(format!("layers of the model: {}", names.clone().collect::<Vec<_>>().join(", ")));
            errors.push(match nearest(name, names) {
                Some(suggestion) => error.help(format!("did you mean \"{suggestion}\"?")),
                None => error,
            });
        }
        float_layers.extend(matching_layers.into_iter().map(|i| (i, "kept by name".to_owned())));
    }
    if !errors.is_empty() {
        return Err(errors.into());
    }
    if keep.first
        && let Some(first_conv) = layers.iter().position(|layer| layer.operator == "nn.conv2d")
    {
        float_layers
            .entry(first_conv)
            .or_insert_with(|| "the first convolution; --keep none quantizes it too".to_owned());
    }
    for (i, layer) in layers.iter().enumerate() {
        if let Some(obstacle_text) = &layer.obstacle {
            float_layers.insert(i, obstacle_text.clone());
        }
    }
    Ok(float_layers)
}

fn nothing_to_quantize(layers: &[Layer], float_layers: &BTreeMap<usize, String>) -> Diagnostic {
    const MAX_SHOWN: usize = 8;
    let mut error =
        Diagnostic::error(codes::passes::NOTHING_TO_QUANTIZE, "expected at least one layer to quantize, found none");
    if layers.is_empty() {
        return error.note("layers are convolutions (nn.conv2d) and matrix products (nn.dense) with constant weights");
    }
    for (i, layer) in layers.iter().enumerate().take(MAX_SHOWN) {
        let reason = float_layers.get(&i).map_or("", String::as_str);
        error = error.note(format!("{} ({}): {reason}", layer.name, layer.operator));
    }
    if layers.len() > MAX_SHOWN {
        error = error.note(format!("and {} more", layers.len() - MAX_SHOWN));
    }
    error
}
