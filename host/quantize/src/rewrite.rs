//! Rewriting of the float model: its layers, and the operators between them, become qnn operators.
//!
//! A value of the float model has up to three forms: float, 8-bit integers, and the int32 accumulators of a layer. Each
//! form is created from another at its first use; unused float forms are dead code.

use super::layers::Layer;
use super::roles::{Bias, Role, Roles, inputs};
use super::scheme::{Parameters, Scheme};
use super::weights;
use byoc::error::Failure;
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
    /// Quantization scheme.
    pub scheme: Scheme,
}

/// Quantized model, with the scales of its weights.
pub struct Rewritten {
    /// Typed module.
    pub module: Module,
    /// Scales of each layer's weight; `None` for a layer that stays in float.
    pub weight_scales: Vec<Option<Vec<f32>>>,
}

/// Rewrites the model. The values `observed_values` of the float model become additional results, as float.
///
/// # Errors
/// If the types of the result do not agree, which would be a bug in the rewrite.
pub fn rewrite(plan: &Plan<'_>, observed_values: &[ExprId]) -> Result<Rewritten, Failure> {
    let mut rewriter = Rewriter {
        plan,
        forms: BTreeMap::new(),
        biases: BTreeMap::new(),
        weight_scales: vec![None; plan.layers.len()],
    };
    for (_, role) in plan.roles.of.iter() {
        if let Some(Role::Bias(bias)) = role {
            rewriter.biases.entry(bias.layer).or_insert(bias);
        }
    }
    let main = plan.module.globals.get("main").copied();
    let module = Rebuild::run(plan.module, |rebuild, id, expr| {
        if Some(id) == main && !observed_values.is_empty() {
            return append_results(rebuild, expr, observed_values).map(Some);
        }
        match &plan.roles.of[id] {
            Some(role) => rewriter.operator(rebuild, id, role).map(Some),
            None => Ok(None),
        }
    })?;
    let mut run = RunOptions { verify_each: cfg!(debug_assertions), ..RunOptions::default() };
    let ran = manager::run(module, &["dead_code_elimination"], &PassOptions::default(), &mut run)
        .map_err(|e| e.diagnostics)?;
    Ok(Rewritten { module: ran.module, weight_scales: rewriter.weight_scales })
}

/// Returns the float model with the values `observed_values` as additional results.
///
/// # Errors
/// If the types of the result do not agree, which would be a bug in the rewrite.
pub fn observed(module: &Module, observed_values: &[ExprId]) -> Result<Module, Failure> {
    let main = module.globals.get("main").copied();
    Ok(Rebuild::run(module, |rebuild, id, expr| {
        if Some(id) == main { append_results(rebuild, expr, observed_values).map(Some) } else { Ok(None) }
    })?)
}

/// Rebuilds `@main` with additional results after its own, all in one tuple.
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
    sums: Option<Sums>,
}

/// int32 accumulators of a layer.
#[derive(Clone)]
struct Sums {
    id: ExprId,
    /// Scale of each channel, or one for all.
    scales: Vec<f32>,
    /// Axis of the channels.
    axis: usize,
}

struct Rewriter<'p> {
    plan: &'p Plan<'p>,
    forms: BTreeMap<ExprId, IntegerForms>,
    /// First bias of each layer.
    biases: BTreeMap<usize, &'p Bias>,
    weight_scales: Vec<Option<Vec<f32>>>,
}

impl Rewriter<'_> {
    /// Creates the integer form of an operator's result, and returns its float form.
    fn operator(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId, role: &Role) -> Result<ExprId, Box<Diagnostic>> {
        let Some((operator, call)) = self.plan.module.expr(id).as_op_call() else { return rebuild.copy(id) };
        let quantized = match role {
            Role::Layer(number) => {
                let sums = self.layer(rebuild, *number, call)?;
                return self.sums(rebuild, id, sums);
            }
            Role::Bias(bias) => {
                let sums = self.bias(rebuild, bias, op::get(operator).name, call)?;
                return self.sums(rebuild, id, sums);
            }
            Role::Activation { lo, hi } => self.activation(rebuild, call.args[0], *lo, *hi)?,
            Role::Mean(size) => self.mean(rebuild, id, call, *size)?,
            Role::Add => self.add(rebuild, id, call)?,
            Role::Concatenate => self.concatenate(rebuild, id, call)?,
            Role::Passthrough => {
                let data = self.quantized(rebuild, call.args[0])?;
                rebuild.new.push(Expr::op(operator, [data], call.attrs.clone()))?
            }
        };
        self.forms.entry(id).or_default().quantized = Some(quantized);
        let Parameters { scale, zero_point } = self.parameters(id);
        let args = [quantized, float_scalar(rebuild, scale), int_scalar(rebuild, zero_point)];
        rebuild.new.op("qnn.dequantize", &args, Attrs::none())
    }

    /// Records the accumulators of an expression, and returns their float form.
    fn sums(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId, sums: Sums) -> Result<ExprId, Box<Diagnostic>> {
        let args = [sums.id, float_vector(rebuild, &sums.scales), int_scalar(rebuild, 0)];
        let float = rebuild.new.op("qnn.dequantize", &args, channel_axis_attrs(&sums))?;
        self.forms.entry(id).or_default().sums = Some(sums);
        Ok(float)
    }

    fn layer(&mut self, rebuild: &mut Rebuild<'_>, number: usize, call: &Call) -> Result<Sums, Box<Diagnostic>> {
        let layer = &self.plan.layers[number];
        let data = self.quantized(rebuild, call.args[0])?;
        let Parameters { scale, zero_point } = self.parameters(call.args[0]);
        let Some(weight) = self.plan.module.expr(call.args[1]).as_constant() else {
            let id = rebuild.get(call.args[1]);
            return Ok(Sums { id, scales: vec![1.0], axis: 0 });
        };
        let bias = self.biases.get(&number).map_or(&[][..], |bias| &bias.values);
        let quantized = weights::quantize(weight, layer.weight_axis, bias, scale, &self.plan.scheme);
        let channels = weight.shape()[layer.weight_axis];
        let shape = weight.shape().to_vec();
        // The quantized constant keeps the origin of the float constant.
        let origin = self.plan.module.nodes[call.args[1]].origin;
        let saved_origin = rebuild.new.origin.replace(origin);
        let weight = rebuild.new.constant(quantized.values);
        rebuild.new.origin = saved_origin;
        let args = [
            data,
            weight,
            int_scalar(rebuild, zero_point),
            int_scalar(rebuild, 0),
            float_scalar(rebuild, scale),
            float_vector(rebuild, &quantized.scales),
        ];
        let mut attrs = call.attrs.with("out_dtype", "int32");
        let operator = match layer.operator {
            "nn.conv2d" => {
                let kernel = call.attrs.str("kernel_layout").unwrap_or("OIHW");
                let size = |axis: char| kernel.find(axis).map_or(1, |at| shape[at] as i64);
                attrs = attrs.with("channels", channels as i64).with("kernel_size", [size('H'), size('W')]);
                "qnn.conv2d"
            }
            _ => {
                attrs = attrs.with("units", channels as i64);
                "qnn.dense"
            }
        };
        let id = rebuild.new.op(operator, &args, attrs)?;
        let scales: Vec<f32> = quantized.scales.iter().map(|s| s * scale).collect();
        self.weight_scales[number] = Some(quantized.scales);
        Ok(Sums { id, scales, axis: layer.channel_axis })
    }

    fn bias(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        bias: &Bias,
        operator: &str,
        call: &Call,
    ) -> Result<Sums, Box<Diagnostic>> {
        let Some(sums) = self.forms.get(&bias.sums).and_then(|forms| forms.sums.clone()) else {
            return Ok(Sums { id: rebuild.get(bias.sums), scales: vec![1.0], axis: 0 });
        };
        let rank = rebuild.new.module.ty(sums.id).as_tensor().map_or(0, |t| t.dims.len());
        let value = weights::quantize_bias(&bias.values, &bias.shape, &sums.scales, rank - 1 - sums.axis);
        let value = rebuild.new.constant(value);
        let id = rebuild.new.op(operator, &[sums.id, value], call.attrs.clone())?;
        Ok(Sums { id, ..sums })
    }

    fn activation(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        data: ExprId,
        lo: f64,
        hi: f64,
    ) -> Result<ExprId, Box<Diagnostic>> {
        let quantized = self.quantized(rebuild, data)?;
        let Parameters { scale, zero_point } = self.parameters(data);
        let (least, greatest) = self.plan.scheme.limits();
        let bound = |value: f64| {
            let steps = (value / f64::from(scale)).round() + f64::from(zero_point);
            steps.clamp(f64::from(least), f64::from(greatest))
        };
        let (low, high) = (bound(lo), bound(hi));
        if low <= f64::from(least) && high >= f64::from(greatest) {
            // The range of the integers already enforces the bounds of the activation.
            return Ok(quantized);
        }
        if low == 0.0 && hi == f64::INFINITY {
            return rebuild.new.op("nn.relu", &[quantized], Attrs::none());
        }
        rebuild.new.op(
            "clip",
            &[quantized],
            Attrs::new([("a_min", AttrValue::Float(low)), ("a_max", AttrValue::Float(high))]),
        )
    }

    fn mean(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        call: &Call,
        size: Option<[usize; 2]>,
    ) -> Result<ExprId, Box<Diagnostic>> {
        let data = self.quantized(rebuild, call.args[0])?;
        let (from, to) = (self.parameters(call.args[0]), self.parameters(id));
        let args = [
            data,
            float_scalar(rebuild, from.scale),
            int_scalar(rebuild, from.zero_point),
            float_scalar(rebuild, to.scale),
            int_scalar(rebuild, to.zero_point),
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
        let (a, b) = (self.quantized(rebuild, call.args[0])?, self.quantized(rebuild, call.args[1])?);
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
            data.push(self.quantized(rebuild, field)?);
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

    /// Returns the 8-bit form of a value: accumulators are requantized, and a float value is quantized.
    fn quantized(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId) -> Result<ExprId, Box<Diagnostic>> {
        let forms = self.forms.entry(id).or_default();
        if let Some(quantized) = forms.quantized {
            return Ok(quantized);
        }
        let sums = forms.sums.clone();
        let Parameters { scale, zero_point } = self.parameters(id);
        // The conversion has the origin of the operator that produced the value.
        let saved_origin = rebuild.new.origin.replace(self.plan.module.nodes[id].origin);
        let (to, zero) = (float_scalar(rebuild, scale), int_scalar(rebuild, zero_point));
        let dtype = ("out_dtype", AttrValue::from(self.plan.scheme.activation));
        let quantized = match sums {
            Some(sums) => {
                let args = [sums.id, float_vector(rebuild, &sums.scales), int_scalar(rebuild, 0), to, zero];
                rebuild.new.op("qnn.requantize", &args, channel_axis_attrs(&sums).with(dtype.0, dtype.1))
            }
            None => {
                let args = [rebuild.get(id), to, zero];
                rebuild.new.op("qnn.quantize", &args, Attrs::new([dtype]))
            }
        }?;
        rebuild.new.origin = saved_origin;
        self.forms.entry(id).or_default().quantized = Some(quantized);
        Ok(quantized)
    }
}

/// Returns the attributes that give the channel axis, if there is a scale per channel.
fn channel_axis_attrs(sums: &Sums) -> Attrs {
    if sums.scales.len() > 1 { Attrs::new([("axis", AttrValue::Int(sums.axis as i64))]) } else { Attrs::none() }
}

fn float_scalar(rebuild: &mut Rebuild<'_>, value: f32) -> ExprId {
    rebuild.new.constant(Tensor::scalar(value))
}

fn float_vector(rebuild: &mut Rebuild<'_>, values: &[f32]) -> ExprId {
    match values {
        [one] => float_scalar(rebuild, *one),
        many => rebuild.new.constant(Tensor::from_slice(&[many.len()], many)),
    }
}

fn int_scalar(rebuild: &mut Rebuild<'_>, value: i32) -> ExprId {
    rebuild.new.constant(Tensor::scalar(value))
}
