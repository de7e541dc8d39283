//! Rewrite of the float model: layers and the operators between them become qnn operators.
//!
//! A value of the float model has up to three forms: float, 8-bit integers, and the int32 accumulators of a layer. A
//! missing form is created from an existing form at its first use; unused float forms are dead code.

use super::layers::Layer;
use super::means::ChannelMeans;
use super::roles::{Bias, Role, Roles, inputs};
use super::scheme::{Parameters, Scheme};
use super::weights;
use byoc::runtime::error::Failure;
use byoc_core::pass::PassOptions;
use byoc_core::pass::manager::{self, RunOptions};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{AttrValue, Attrs, Call, Expr, ExprId, Module, Type};
use byoc_ir::op;
use byoc_ir::tensor::Tensor;
use byoc_ir::typing::Rebuild;
use std::collections::BTreeMap;

/// Inputs of the rewrite.
pub struct Plan<'a> {
    /// Float model.
    pub module: &'a Module,
    /// Layers of the model.
    pub layers: &'a [Layer],
    /// Roles of the operators.
    pub roles: &'a Roles,
    /// Scale and zero point of each group.
    pub parameters: &'a BTreeMap<ExprId, Parameters>,
    /// Input means of the layers, used to correct their biases.
    pub means: &'a BTreeMap<usize, ChannelMeans>,
    /// Quantization scheme.
    pub scheme: Scheme,
}

/// Quantized model, with the scales of its weights.
pub struct RewrittenModel {
    /// Typed module.
    pub module: Module,
    /// Scales of each layer's weight; `None` for a layer that stays in float.
    pub weight_scales: Vec<Option<Vec<f32>>>,
}

/// Rewrites the model. The values `observed_values` of the float model become additional float results.
///
/// # Errors
/// If the rewritten module does not type-check, which would be a bug in the rewrite.
pub fn rewrite(plan: &Plan<'_>, observed_values: &[ExprId]) -> Result<RewrittenModel, Failure> {
    let mut rewriter = Rewriter {
        plan,
        forms: BTreeMap::new(),
        biases: BTreeMap::new(),
        corrections: BTreeMap::new(),
        weight_scales: vec![None; plan.layers.len()],
    };
    for (_, role) in plan.roles.role_of.iter() {
        if let Some(Role::Bias(bias)) = role {
            rewriter.biases.entry(bias.layer).or_insert(bias);
        }
    }
    let main = plan.module.globals.get("main").copied();
    let module = Rebuild::run(plan.module, |rebuild, id, expr| {
        if Some(id) == main && !observed_values.is_empty() {
            return append_results(rebuild, expr, observed_values).map(Some);
        }
        match &plan.roles.role_of[id] {
            Some(role) => rewriter.operator(rebuild, id, role).map(Some),
            None => Ok(None),
        }
    })?;
    let mut run = RunOptions { verify_each: cfg!(debug_assertions), ..RunOptions::default() };
    let output = manager::run(module, &["dead_code_elimination"], &PassOptions::default(), &mut run)
        .map_err(|e| e.diagnostics)?;
    Ok(RewrittenModel { module: output.module, weight_scales: rewriter.weight_scales })
}

/// Returns the float model with the values `observed_values` as additional results.
///
/// # Errors
/// If the rewritten module does not type-check, which would be a bug in the rewrite.
pub fn with_observed_values(module: &Module, observed_values: &[ExprId]) -> Result<Module, Failure> {
    let main = module.globals.get("main").copied();
    Ok(Rebuild::run(module, |rebuild, id, expr| {
        if Some(id) == main { append_results(rebuild, expr, observed_values).map(Some) } else { Ok(None) }
    })?)
}

/// Rebuilds `@main` to return its results, followed by `observed_values`, in one tuple.
fn append_results(
    rebuild: &mut Rebuild<'_>,
    main: &Expr,
    observed_values: &[ExprId],
) -> Result<ExprId, Box<Diagnostic>> {
    let Expr::Function(function) = main else { return rebuild.new.tuple(&[]) };
    let body = rebuild.get(function.body);
    let mut results = match rebuild.new.module.ty(body).as_tuple().map(<[Type]>::len) {
        None => vec![body],
        Some(fields) => match rebuild.new.module.expr(body) {
            Expr::Tuple(fields) => fields.to_vec(),
            _ => (0..fields).map(|i| rebuild.new.project(body, i as u32)).collect::<Result<_, _>>()?,
        },
    };
    results.extend(observed_values.iter().map(|&id| rebuild.get(id)));
    let params: Vec<ExprId> = function.params.iter().map(|&param| rebuild.get(param)).collect();
    let body = rebuild.new.tuple(&results)?;
    rebuild.new.function(&params, body, Type::Unknown, function.attrs.clone())
}

/// Integer forms of a value.
#[derive(Default)]
struct IntegerForms {
    quantized: Option<ExprId>,
    accumulator: Option<Accumulator>,
}

/// int32 accumulators of a layer.
#[derive(Clone)]
struct Accumulator {
    id: ExprId,
    /// Per-channel scales, or a single per-tensor scale.
    scales: Vec<f32>,
    /// Channel axis.
    axis: usize,
}

struct Rewriter<'p> {
    plan: &'p Plan<'p>,
    forms: BTreeMap<ExprId, IntegerForms>,
    /// First bias added to the accumulators of each layer, by layer index.
    biases: BTreeMap<usize, &'p Bias>,
    /// Per-channel corrections of the layer biases, by the call of the layer.
    corrections: BTreeMap<ExprId, Vec<f32>>,
    weight_scales: Vec<Option<Vec<f32>>>,
}

impl Rewriter<'_> {
    /// Creates the integer form of an operator's result, and returns the result's float form.
    fn operator(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId, role: &Role) -> Result<ExprId, Box<Diagnostic>> {
        let Some((operator, call)) = self.plan.module.expr(id).as_op_call() else { return rebuild.copy(id) };
        let result = match role {
            Role::Layer(layer_index) => {
                let accumulator = self.layer(rebuild, *layer_index, call)?;
                return self.dequantized_accumulator(rebuild, id, accumulator);
            }
            Role::Bias(bias) => {
                let accumulator = self.bias(rebuild, bias, op::get(operator).name, call)?;
                return self.dequantized_accumulator(rebuild, id, accumulator);
            }
            Role::RectifiedAccumulator => {
                let Some(accumulator) =
                    self.forms.get(&call.args[0]).and_then(|integer_forms| integer_forms.accumulator.clone())
                else {
                    return rebuild.copy(id);
                };
                let relu = rebuild.new.op("nn.relu", &[accumulator.id], Attrs::none())?;
                return self.dequantized_accumulator(rebuild, id, Accumulator { id: relu, ..accumulator });
            }
            Role::Activation { lo, hi } => self.activation(rebuild, call.args[0], *lo, *hi)?,
            Role::Mean(size) => self.mean(rebuild, id, call, *size)?,
            Role::Add => self.add(rebuild, id, call)?,
            Role::Concatenate => self.concatenate(rebuild, id, call)?,
            Role::Passthrough => {
                let data = self.quantized_form(rebuild, call.args[0])?;
                rebuild.new.push(Expr::op(operator, [data], call.attrs.clone()))?
            }
        };
        self.forms.entry(id).or_default().quantized = Some(result);
        let Parameters { scale, zero_point } = self.parameters(id);
        let args = [result, float_scalar(rebuild, scale), int_scalar(rebuild, zero_point)];
        rebuild.new.op("qnn.dequantize", &args, Attrs::none())
    }

    /// Records the accumulators of an expression, and returns their float form.
    fn dequantized_accumulator(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        accumulator: Accumulator,
    ) -> Result<ExprId, Box<Diagnostic>> {
        let args = [accumulator.id, float_vector(rebuild, &accumulator.scales), int_scalar(rebuild, 0)];
        let float = rebuild.new.op("qnn.dequantize", &args, channel_axis_attrs(&accumulator))?;
        self.forms.entry(id).or_default().accumulator = Some(accumulator);
        Ok(float)
    }

    fn layer(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        layer_index: usize,
        call: &Call,
    ) -> Result<Accumulator, Box<Diagnostic>> {
        let layer = &self.plan.layers[layer_index];
        let data = self.quantized_form(rebuild, call.args[0])?;
        let Parameters { scale, zero_point } = self.parameters(call.args[0]);
        let Some(weight) = self.plan.module.expr(call.args[1]).as_constant() else {
            let id = rebuild.get(call.args[1]);
            return Ok(Accumulator { id, scales: vec![1.0], axis: 0 });
        };
        let bias = self.biases.get(&layer_index).map_or(&[][..], |bias| &bias.values);
        let quantized_weight = weights::quantize(weight, layer.weight_axis, bias, scale, &self.plan.scheme);
        let means = self.plan.means.get(&layer_index);
        let errors = means.and_then(|means| weights::mean_errors(layer, weight, &quantized_weight, means));
        let channels = weight.shape()[layer.weight_axis];
        let shape = weight.shape().to_vec();
        // The quantized constant keeps the origin of the float constant.
        let origin = self.plan.module.nodes[call.args[1]].origin;
        let saved_origin = rebuild.new.origin.replace(origin);
        let weight = rebuild.new.constant(quantized_weight.values);
        rebuild.new.origin = saved_origin;
        let args = [
            data,
            weight,
            int_scalar(rebuild, zero_point),
            int_scalar(rebuild, 0),
            float_scalar(rebuild, scale),
            float_vector(rebuild, &quantized_weight.scales),
        ];
        let mut attrs = call.attrs.with("out_dtype", "int32");
        let operator = match layer.operator {
            "nn.conv2d" => {
                let kernel = call.attrs.str("kernel_layout").unwrap_or("OIHW");
                let size = |axis: char| kernel.find(axis).map_or(1, |index| shape[index] as i64);
                attrs = attrs.with("channels", channels as i64).with("kernel_size", [size('H'), size('W')]);
                "qnn.conv2d"
            }
            _ => {
                attrs = attrs.with("units", channels as i64);
                "qnn.dense"
            }
        };
        let id = rebuild.new.op(operator, &args, attrs)?;
        let scales: Vec<f32> = quantized_weight.scales.iter().map(|s| s * scale).collect();
        self.weight_scales[layer_index] = Some(quantized_weight.scales);
        let accumulator = Accumulator { id, scales, axis: layer.channel_axis };
        match errors {
            Some(errors) => self.correct(rebuild, layer_index, accumulator, &errors),
            None => Ok(accumulator),
        }
    }

    /// Corrects the bias of a layer by the mean errors of its channels, or adds a bias if it has none. Accumulators
    /// with users besides their bias are not corrected, because two biases of the maximum magnitude could overflow
    /// int32.
    fn correct(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        layer_index: usize,
        accumulator: Accumulator,
        errors: &[f64],
    ) -> Result<Accumulator, Box<Diagnostic>> {
        let correction: Vec<f32> = errors.iter().map(|error| -error as f32).collect();
        if self.biases.contains_key(&layer_index) {
            let call = self.plan.layers[layer_index].call;
            if self.plan.roles.only_user(call).is_some() {
                self.corrections.insert(call, correction);
            }
            return Ok(accumulator);
        }
        let value = weights::quantize_bias(&correction, &[correction.len()], &accumulator.scales, 0);
        if value.as_slice::<i32>().iter().all(|&v| v == 0) {
            return Ok(accumulator);
        }
        let args = [accumulator.id, rebuild.new.constant(value)];
        let axis = Attrs::new([("axis", AttrValue::Int(accumulator.axis as i64))]);
        let id = rebuild.new.op("nn.bias_add", &args, axis)?;
        Ok(Accumulator { id, ..accumulator })
    }

    fn bias(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        bias: &Bias,
        operator: &str,
        call: &Call,
    ) -> Result<Accumulator, Box<Diagnostic>> {
        let Some(accumulator) =
            self.forms.get(&bias.accumulator).and_then(|integer_forms| integer_forms.accumulator.clone())
        else {
            return Ok(Accumulator { id: rebuild.get(bias.accumulator), scales: vec![1.0], axis: 0 });
        };
        let rank = rebuild.new.module.ty(accumulator.id).as_tensor().map_or(0, |t| t.dims.len());
        let dims_after = rank - 1 - accumulator.axis;
        let (values, shape) = match self.corrections.get(&bias.accumulator) {
            Some(correction) => correct_bias(bias, correction, dims_after),
            None => (bias.values.clone(), bias.shape.clone()),
        };
        let value = rebuild.new.constant(weights::quantize_bias(&values, &shape, &accumulator.scales, dims_after));
        let id = rebuild.new.op(operator, &[accumulator.id, value], call.attrs.clone())?;
        Ok(Accumulator { id, ..accumulator })
    }

    fn activation(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        data: ExprId,
        lo: f64,
        hi: f64,
    ) -> Result<ExprId, Box<Diagnostic>> {
        let quantized_data = self.quantized_form(rebuild, data)?;
        let Parameters { scale, zero_point } = self.parameters(data);
        let (min, max) = self.plan.scheme.limits();
        let bound = |value: f64| {
            let steps = (value / f64::from(scale)).round() + f64::from(zero_point);
            steps.clamp(f64::from(min), f64::from(max))
        };
        let (lower, upper) = (bound(lo), bound(hi));
        if lower <= f64::from(min) && upper >= f64::from(max) {
            // The range of the integers already enforces the bounds of the activation.
            return Ok(quantized_data);
        }
        if lower == 0.0 && hi == f64::INFINITY {
            return rebuild.new.op("nn.relu", &[quantized_data], Attrs::none());
        }
        rebuild.new.op(
            "clip",
            &[quantized_data],
            Attrs::new([("a_min", AttrValue::Float(lower)), ("a_max", AttrValue::Float(upper))]),
        )
    }

    fn mean(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        call: &Call,
        size: Option<[usize; 2]>,
    ) -> Result<ExprId, Box<Diagnostic>> {
        let data = self.quantized_form(rebuild, call.args[0])?;
        let (input_parameters, output_parameters) = (self.parameters(call.args[0]), self.parameters(id));
        let args = [
            data,
            float_scalar(rebuild, input_parameters.scale),
            int_scalar(rebuild, input_parameters.zero_point),
            float_scalar(rebuild, output_parameters.scale),
            int_scalar(rebuild, output_parameters.zero_point),
        ];
        let attrs = match size {
            None => call.attrs.clone(),
            Some(size) => {
                let layout = call.attrs.get("layout").cloned();
                let window = [("pool_size", AttrValue::ints(size.map(|n| n as i64)))];
                Attrs::new(window.into_iter().chain(layout.map(|layout| ("layout", layout))))
            }
        };
        rebuild.new.op("qnn.avg_pool2d", &args, attrs)
    }

    fn add(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId, call: &Call) -> Result<ExprId, Box<Diagnostic>> {
        let (a, b) = (self.quantized_form(rebuild, call.args[0])?, self.quantized_form(rebuild, call.args[1])?);
        let mut args = vec![a, b];
        for value in [call.args[0], call.args[1], id] {
            let Parameters { scale, zero_point } = self.parameters(value);
            args.extend([float_scalar(rebuild, scale), int_scalar(rebuild, zero_point)]);
        }
        rebuild.new.op("qnn.add", &args, Attrs::none())
    }

    fn concatenate(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId, call: &Call) -> Result<ExprId, Box<Diagnostic>> {
        let fields = inputs(self.plan.module, id, &Role::Concatenate);
        let (mut data, mut scales, mut zero_points) = (Vec::new(), Vec::new(), Vec::new());
        for field in fields {
            data.push(self.quantized_form(rebuild, field)?);
            let Parameters { scale, zero_point } = self.parameters(field);
            scales.push(float_scalar(rebuild, scale));
            zero_points.push(int_scalar(rebuild, zero_point));
        }
        let Parameters { scale, zero_point } = self.parameters(id);
        let args = [
            rebuild.new.tuple(&data)?,
            rebuild.new.tuple(&scales)?,
            rebuild.new.tuple(&zero_points)?,
            float_scalar(rebuild, scale),
            int_scalar(rebuild, zero_point),
        ];
        rebuild.new.op("qnn.concatenate", &args, call.attrs.clone())
    }

    fn parameters(&self, id: ExprId) -> Parameters {
        let unknown = Parameters { scale: 1.0, zero_point: 0 };
        self.plan.parameters.get(&self.plan.roles.group(id)).copied().unwrap_or(unknown)
    }

    /// Returns the 8-bit form of a value. At its first use, it is created by requantizing accumulators or by quantizing
    /// the float form.
    fn quantized_form(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId) -> Result<ExprId, Box<Diagnostic>> {
        let integer_forms = self.forms.entry(id).or_default();
        if let Some(existing) = integer_forms.quantized {
            return Ok(existing);
        }
        let accumulator = integer_forms.accumulator.clone();
        let Parameters { scale, zero_point } = self.parameters(id);
        // The conversion has the origin of the operator that produced the value.
        let saved_origin = rebuild.new.origin.replace(self.plan.module.nodes[id].origin);
        let (output_scale, zero) = (float_scalar(rebuild, scale), int_scalar(rebuild, zero_point));
        let dtype = ("out_dtype", AttrValue::from(self.plan.scheme.activation));
        let new_quantized = match accumulator {
            Some(accumulator) => {
                let args = [
                    accumulator.id,
                    float_vector(rebuild, &accumulator.scales),
                    int_scalar(rebuild, 0),
                    output_scale,
                    zero,
                ];
                rebuild.new.op("qnn.requantize", &args, channel_axis_attrs(&accumulator).with(dtype.0, dtype.1))
            }
            None => {
                let args = [rebuild.get(id), output_scale, zero];
                rebuild.new.op("qnn.quantize", &args, Attrs::new([dtype]))
            }
        }?;
        rebuild.new.origin = saved_origin;
        self.forms.entry(id).or_default().quantized = Some(new_quantized);
        Ok(new_quantized)
    }
}

/// Adds per-channel corrections to a bias, and returns the values and their shape. `dims_after` dimensions follow the
/// channel axis.
fn correct_bias(bias: &Bias, correction: &[f32], dims_after: usize) -> (Vec<f32>, Vec<usize>) {
    let float = |channel: usize| bias.values.get(channel).unwrap_or(&bias.values[0]);
    let values: Vec<f32> = correction.iter().enumerate().map(|(channel, v)| float(channel) + v).collect();
    let shape = if bias.values.len() == values.len() {
        bias.shape.clone()
    } else {
        weights::per_channel(values.len(), dims_after)
    };
    (values, shape)
}

/// Returns the channel axis attribute if the scales are per-channel, otherwise no attributes.
fn channel_axis_attrs(accumulator: &Accumulator) -> Attrs {
    if accumulator.scales.len() > 1 {
        Attrs::new([("axis", AttrValue::Int(accumulator.axis as i64))])
    } else {
        Attrs::none()
    }
}

fn float_scalar(rebuild: &mut Rebuild<'_>, value: f32) -> ExprId {
    rebuild.new.constant(Tensor::scalar(value))
}

fn float_vector(rebuild: &mut Rebuild<'_>, values: &[f32]) -> ExprId {
    match values {
        [scale] => float_scalar(rebuild, *scale),
        scales => rebuild.new.constant(Tensor::from_slice(&[scales.len()], scales)),
    }
}

fn int_scalar(rebuild: &mut Rebuild<'_>, value: i32) -> ExprId {
    rebuild.new.constant(Tensor::scalar(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers;
    use crate::range::Range;
    use byoc::driver::plan::plan;
    use byoc::io::random::Random;
    use byoc::runtime::exec::{Executor, Pool};
    use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
    use std::sync::Arc;

    /// Quantization step of the inputs, which every scheme of [`SCHEMES`] represents exactly.
    const STEP: f32 = 0.125;
    const SCHEMES: [&str; 4] =
        ["symmetric", "symmetric,per-tensor", "symmetric,power-of-two", "asymmetric,uint8,power-of-two"];

    /// Returns multiples of `STEP`, from 0 to 127 times, with a different mean in each channel.
    fn input(shape: &[usize], axis: usize) -> Tensor {
        let mut random = Random::new(7);
        let mut values: Vec<f32> = (0..shape.iter().product())
            .map(|i| {
                let channel = i / inner_size(shape, axis) % shape[axis];
                (random.uniform() * (20 + 100 * channel / shape[axis]) as f64).floor() as f32 * STEP
            })
            .collect();
        values[0] = 127.0 * STEP;
        Tensor::from_slice(shape, &values)
    }

    fn inner_size(shape: &[usize], axis: usize) -> usize {
        shape[axis + 1..].iter().product()
    }

    /// Returns the per-channel mean of `a - b` over all samples and positions.
    fn mean_differences(a: &Tensor, b: &Tensor, axis: usize) -> Vec<f64> {
        let (channels, inner) = (a.shape()[axis], inner_size(a.shape(), axis));
        let mut accumulator = vec![0.0; channels];
        for (i, (a, b)) in a.as_slice::<f32>().iter().zip(b.as_slice::<f32>()).enumerate() {
            accumulator[i / inner % channels] += f64::from(*a) - f64::from(*b);
        }
        accumulator.into_iter().map(|sum| sum * channels as f64 / a.len() as f64).collect()
    }

    fn run(module: &Module, x: &Tensor) -> Vec<Tensor> {
        let lowered_program = plan(module, &[], &[]).unwrap();
        let pool = Arc::new(Pool::new(1).unwrap());
        let executor = Executor::new(lowered_program.program, lowered_program.constants, Vec::new(), pool).unwrap();
        executor.run(std::slice::from_ref(x)).unwrap()
    }

    /// Parses a module, with `WEIGHT` replaced by a weight of the given shape and `BIAS` by a bias of `channels`
    /// values.
    fn module(body: &str, x: &Tensor, weight: &[usize], channels: usize) -> Module {
        let mut random = Random::new(1);
        let mut constant = |shape: &[usize]| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.normal() as f32).collect();
            Arc::new(Tensor::from_slice(shape, &values))
        };
        let constants = [constant(weight), constant(&[channels])];
        let shape: Vec<String> = x.shape().iter().map(usize::to_string).collect();
        let body = body.replace("WEIGHT", "meta[relay.Constant][0]").replace("BIAS", "meta[relay.Constant][1]");
        let text =
            format!("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[({}), float32]) {{ {body} }}", shape.join(", "));
        let parsed_module = parse(&text, &ParseOptions { constants: &constants });
        assert!(parsed_module.diagnostics.is_empty(), "{:?}", parsed_module.diagnostics);
        byoc_core::pass::infer_type(&parsed_module.module).unwrap()
    }

    /// Quantizes all layers of a module, using the range of `x` for every layer.
    fn quantized_form(
        module: &Module,
        x: &Tensor,
        scheme: Scheme,
        means: &BTreeMap<usize, ChannelMeans>,
    ) -> RewrittenModel {
        let layers = layers::find(module);
        let roles = Roles::new(module, &layers, |_| true);
        let range = Range { lo: 0.0, hi: x.as_slice::<f32>().iter().fold(0.0, |max, &v| f64::from(v).max(max)) };
        let parameters = roles.range_exprs.keys().map(|&group| (group, scheme.parameters(range))).collect();
        let plan = Plan { module, layers: &layers, roles: &roles, parameters: &parameters, means, scheme };
        rewrite(&plan, &[]).unwrap()
    }

    fn means(module: &Module, x: &Tensor) -> BTreeMap<usize, ChannelMeans> {
        let input_means = |layer: &Layer| {
            let mut means = ChannelMeans::new(layer.input_channel_axis);
            means.add(x);
            means
        };
        layers::find(module).iter().map(input_means).enumerate().collect()
    }

    /// Checks that bias correction restores the mean of each output channel of a single layer, and that the means are
    /// wrong without the correction. All filter taps must read values with the same mean.
    fn check(body: &str, x: &Tensor, axis: usize, weight: &[usize], channels: usize) {
        let module = module(body, x, weight, channels);
        let float_result = run(&module, x);
        for scheme in SCHEMES {
            let scheme = Scheme::parse(scheme).unwrap();
            let errors =
                |rewritten: &RewrittenModel| mean_differences(&run(&rewritten.module, x)[0], &float_result[0], axis);
            let errors_before = errors(&quantized_form(&module, x, scheme, &BTreeMap::new()));
            let corrected_model = quantized_form(&module, x, scheme, &means(&module, x));
            let errors_after = errors(&corrected_model);
            let scales = corrected_model.weight_scales[0].as_ref().unwrap();
            let step = f64::from(scales.iter().fold(0f32, |max, &s| max.max(s)) * STEP);
            // The remaining error is the rounding error of the bias and of the float accumulators.
            assert!(
                errors_after.iter().all(|e| e.abs() <= 0.5 * step + 1e-4),
                "{body} {scheme}: expected errors of at most half the step {step}, found {errors_after:?}"
            );
            let norm = |errors: &[f64]| errors.iter().map(|e| e * e).sum::<f64>().sqrt();
            assert!(
                norm(&errors_before) > 5.0 * norm(&errors_after),
                "{body} {scheme}: expected a fivefold reduction, found {errors_before:?} and {errors_after:?}"
            );
        }
    }

    #[test]
    fn corrected_bias_restores_the_mean_of_each_channel() {
        let image = input(&[3, 8, 5, 5], 1);
        check("nn.bias_add(nn.conv2d(%x, WEIGHT), BIAS)", &image, 1, &[6, 8, 1, 1], 6);
        check("add(nn.conv2d(%x, WEIGHT), 0.5f)", &image, 1, &[6, 8, 1, 1], 6);
        check("nn.bias_add(nn.conv2d(%x, WEIGHT, groups=2), BIAS)", &image, 1, &[6, 4, 1, 1], 6);
        let last_input = input(&[3, 5, 5, 8], 3);
        for (kernel, weight) in [("HWIO", [1, 1, 8, 6]), ("OHWI", [6, 1, 1, 8])] {
            let conv = format!("nn.conv2d(%x, WEIGHT, data_layout=\"NHWC\", kernel_layout=\"{kernel}\")");
            check(&format!("add({conv}, BIAS)"), &last_input, 3, &weight, 6);
            check(&format!("add({conv}, 0.5f)"), &last_input, 3, &weight, 6);
        }
        let rows = input(&[40, 12], 1);
        check("nn.bias_add(nn.dense(%x, WEIGHT), BIAS)", &rows, 1, &[7, 12], 7);
    }

    #[test]
    fn kernel_positions_add_up() {
        // If every channel of an image is constant, all filter taps read values with the same mean.
        let values: Vec<f32> = (0..2 * 4 * 9).map(|i| [10.0, 40.0, 90.0, 127.0][i / 9 % 4] * STEP).collect();
        let image = Tensor::from_slice(&[2, 4, 3, 3], &values);
        check("nn.bias_add(nn.conv2d(%x, WEIGHT), BIAS)", &image, 1, &[5, 4, 3, 3], 5);
    }

    #[test]
    fn layer_without_bias_gets_one() {
        check("nn.conv2d(%x, WEIGHT)", &input(&[3, 8, 5, 5], 1), 1, &[6, 8, 1, 1], 6);
        check("nn.dense(%x, WEIGHT)", &input(&[40, 12], 1), 1, &[7, 12], 7);
        let x = input(&[40, 12], 1);
        let module = module("nn.dense(%x, WEIGHT)", &x, &[7, 12], 7);
        let biases = |means: &BTreeMap<usize, ChannelMeans>| {
            let module = quantized_form(&module, &x, Scheme::SYMMETRIC, means).module;
            print(&module, &PrintOptions::default()).text.matches("nn.bias_add").count()
        };
        assert_eq!((biases(&BTreeMap::new()), biases(&means(&module, &x))), (0, 1));
        // Inputs with a mean of 0 need no correction.
        let zeros = Tensor::from_slice(&[2, 12], &[0f32; 24]);
        assert_eq!(biases(&means(&module, &zeros)), 0);
    }

    #[test]
    fn accumulators_with_other_users_than_the_bias_are_not_corrected() {
        let x = input(&[40, 12], 1);
        let body = "%0 = nn.dense(%x, WEIGHT); (nn.bias_add(%0, BIAS), %0)";
        let module = module(body, &x, &[7, 12], 7);
        let corrected_result = run(&quantized_form(&module, &x, Scheme::SYMMETRIC, &means(&module, &x)).module, &x);
        let uncorrected_result = run(&quantized_form(&module, &x, Scheme::SYMMETRIC, &BTreeMap::new()).module, &x);
        assert!(corrected_result == uncorrected_result);
    }
}
