//! Replaces float operators between dequantization and quantization with integer operators:
//! `qnn.quantize(op(qnn.dequantize(..)))` becomes the operator of the QNN dialect, as in Relay's pass of this name.
//!
//! A real value is tracked as integers with a constant scale and zero point: from `qnn.dequantize`, through operators
//! that move or select elements, and as the `int32` accumulators of a convolution or a matrix product with its bias.
//! When the value is quantized, the integers are requantized. An elementwise operator, average pooling or a
//! concatenation has a quantized form only together with the `qnn.quantize` that follows. A `clip` or `nn.relu` before
//! a `qnn.quantize` is moved after it: rounding is monotonic, so the result is the same.
//!
//! A quantization whose `compute_dtype` is float32 keeps its float operators.
//!
//! Results may differ from the results of the float operators by one step of the output's scale, because accumulators
//! and requantized operands are rounded where the float operators do not round.

use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{AttrValue, Attrs, Call, Expr, ExprId, Module, OriginId};
use byoc_ir::op;
use byoc_ir::op::qnn::numerics::{Rounding, range};
use byoc_ir::op::qnn::quantize_f32;
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Rebuild;
use std::collections::HashMap;

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// Integer representation of a real tensor.
#[derive(Clone, Copy, Debug)]
struct Affine {
    value: ExprId,
    /// Constant scale: a scalar, or a vector along `axis`.
    scale: ExprId,
    /// Constant zero point: a scalar, or a vector along `axis`.
    zero_point: ExprId,
    axis: usize,
    /// Origin of the replaced model operators, inherited by the operators that are built from these integers.
    origin: OriginId,
}

/// Rewrites operators between `qnn.dequantize` and `qnn.quantize` as integer operators.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn fake_quantization_to_integer(module: &Module) -> Result<Module> {
    let is_rewritable = rewritable_exprs(module);
    let mut representations = Representations { by_value: HashMap::new() };
    Rebuild::run(module, |rebuild, id, expr| {
        let Some((operator, call)) = expr.as_op_call() else { return Ok(None) };
        if !is_rewritable[id] {
            return Ok(None);
        }
        let name = op::get(operator).name;
        if name == "qnn.quantize" {
            if call.attrs.str("compute_dtype") == Some("float32") {
                return Ok(None);
            }
            return representations.quantize(rebuild, call);
        }
        let copy = rebuild.copy(id)?;
        if let Some(affine) = representations.derive(rebuild, name, call, copy)? {
            representations.by_value.insert(copy, affine);
        }
        Ok(Some(copy))
    })
}

/// Integer representations of real values in the new module.
struct Representations {
    by_value: HashMap<ExprId, Affine>,
}

fn constant<'a>(rebuild: &'a Rebuild<'_>, id: ExprId) -> Option<&'a Tensor> {
    rebuild.new.module.expr(id).as_constant().map(|t| &**t)
}

fn floats(rebuild: &Rebuild<'_>, id: ExprId) -> Option<Vec<f32>> {
    constant(rebuild, id).filter(|t| t.dtype() == DType::F32).map(|t| t.as_slice::<f32>().to_vec())
}

fn dtype(rebuild: &Rebuild<'_>, id: ExprId) -> Option<DType> {
    rebuild.new.module.ty(id).as_tensor().map(|t| t.dtype)
}

fn rank(rebuild: &Rebuild<'_>, id: ExprId) -> usize {
    rebuild.new.module.ty(id).as_tensor().map_or(0, |t| t.dims.len())
}

fn is_narrow(rebuild: &Rebuild<'_>, id: ExprId) -> bool {
    dtype(rebuild, id).is_some_and(|d| d.is_int() && d.size() <= 2)
}

/// Tests for integers whose products can be added in 32 bits.
fn has_8_bits(rebuild: &Rebuild<'_>, id: ExprId) -> bool {
    dtype(rebuild, id).is_some_and(|d| d.is_int() && d.size() == 1)
}

impl Affine {
    /// Returns true if the scale and the zero point have one element each.
    fn is_single(&self, rebuild: &Rebuild<'_>) -> bool {
        [self.scale, self.zero_point].into_iter().all(|p| constant(rebuild, p).is_some_and(|t| t.len() == 1))
    }
}

fn resolve_axis(axis: i64, rank: usize) -> usize {
    (if axis < 0 { axis + rank as i64 } else { axis }).max(0) as usize
}

impl Representations {
    /// Returns the integer representation of argument `i` of a call.
    fn arg(&self, rebuild: &Rebuild<'_>, call: &Call, i: usize) -> Option<Affine> {
        self.by_value.get(&rebuild.get(*call.args.get(i)?)).copied()
    }

    /// Derives the integer representation of `copy`, the result of a call, from the representations of its arguments.
    fn derive(&self, rebuild: &mut Rebuild<'_>, name: &str, call: &Call, copy: ExprId) -> Result<Option<Affine>> {
        if dtype(rebuild, copy) != Some(DType::F32) {
            return Ok(None);
        }
        let origin = rebuild.new.module.nodes[copy].origin;
        if name == "qnn.dequantize" {
            let [value, scale, zero_point] = [0, 1, 2].map(|i| rebuild.get(call.args[i]));
            let is_constant = constant(rebuild, scale).is_some() && constant(rebuild, zero_point).is_some();
            let axis = call.attrs.get("axis").and_then(AttrValue::as_int).unwrap_or(-1);
            let axis = resolve_axis(axis, rank(rebuild, value));
            return Ok(is_constant.then_some(Affine { value, scale, zero_point, axis, origin }));
        }
        let Some(data) = self.arg(rebuild, call, 0) else { return Ok(None) };
        match name {
            _ if op::lookup(name).is_some_and(|operator| op::get(operator).properties.selects) => {
                let mut axis = data.axis;
                if !data.is_single(rebuild) {
                    let axes = match (name, call.attrs.get("axes")) {
                        ("copy", _) => None,
                        ("transpose", axes) => Some(axes.and_then(AttrValue::as_ints).unwrap_or_default()),
                        _ => return Ok(None),
                    };
                    if let Some(axes) = axes {
                        let rank = rank(rebuild, data.value);
                        let source_axis = |i: usize| axes.get(i).map_or(rank - 1 - i, |&a| resolve_axis(a, rank));
                        let Some(axis_out) = (0..rank).find(|&i| source_axis(i) == axis) else { return Ok(None) };
                        axis = axis_out;
                    }
                }
                let mut args = vec![data.value];
                args.extend(call.args[1..].iter().map(|&arg| rebuild.get(arg)));
                let value = rebuild.new.op(name, &args, call.attrs.clone())?;
                Ok(Some(Affine { value, axis, ..data }))
            }
            // Accumulators are clipped after requantization; see `quantize`.
            "nn.relu" if data.is_single(rebuild) && is_narrow(rebuild, data.value) => {
                let Some(zero) = constant(rebuild, data.zero_point).map(|t| t.as_slice::<i32>()[0]) else {
                    return Ok(None);
                };
                let Some(dtype) = dtype(rebuild, data.value) else { return Ok(None) };
                let (low, high) = range(dtype);
                let attrs = [("a_min", i64::from(zero).clamp(low, high) as f64), ("a_max", high as f64)];
                let attrs = Attrs::new(attrs.map(|(key, value)| (key, AttrValue::Float(value))));
                let value = rebuild.new.op("clip", &[data.value], attrs)?;
                Ok(Some(Affine { value, ..data }))
            }
            "nn.conv2d" | "nn.dense" | "nn.batch_matmul" => self.contraction(rebuild, name, call, data),
            "nn.bias_add" => {
                let axis = call.attrs.get("axis").and_then(AttrValue::as_int).unwrap_or(1);
                self.bias(rebuild, call, data, axis)
            }
            "add" => {
                let bias = rebuild.get(call.args[1]);
                let ty = (rebuild.new.module.ty(bias).as_tensor(), rebuild.new.module.ty(data.value).as_tensor());
                let is_matching =
                    matches!(ty, (Some(b), Some(d)) if b.dims.len() == 1 && d.dims.last() == b.dims.first());
                if is_matching { self.bias(rebuild, call, data, -1) } else { Ok(None) }
            }
            _ => Ok(None),
        }
    }

    /// Builds the accumulators of a convolution or a matrix product. The scale of the accumulators is the product of
    /// the operands' scales.
    fn contraction(&self, rebuild: &mut Rebuild<'_>, name: &str, call: &Call, data: Affine) -> Result<Option<Affine>> {
        let Some(weight) = self.arg(rebuild, call, 1) else { return Ok(None) };
        let quantized = match name {
            "nn.conv2d" => "qnn.conv2d",
            "nn.dense" => "qnn.dense",
            _ => "qnn.batch_matmul",
        };
        let layout = call.attrs.str("kernel_layout").unwrap_or("OIHW");
        let (weight_axis, axis) = match name {
            "nn.conv2d" => {
                let layout_of = |key: &str| call.attrs.str(key).filter(|layout| !layout.is_empty());
                let out = layout_of("out_layout").or(layout_of("data_layout")).unwrap_or("NCHW");
                (layout.find('O').unwrap_or(0), out.find('C').unwrap_or(1))
            }
            _ => (0, rank(rebuild, data.value).saturating_sub(1)),
        };
        let is_per_channel = !weight.is_single(rebuild);
        let is_supported = data.is_single(rebuild)
            && has_8_bits(rebuild, data.value)
            && has_8_bits(rebuild, weight.value)
            && (!is_per_channel || weight.axis == weight_axis && name != "nn.batch_matmul");
        let (Some(input), Some(kernel)) = (floats(rebuild, data.scale), floats(rebuild, weight.scale)) else {
            return Ok(None);
        };
        let products: Vec<f32> = kernel.iter().map(|kernel| input[0] * kernel).collect();
        if !is_supported || products.iter().any(|p| !(p.is_finite() && *p > 0.0)) {
            return Ok(None);
        }
        let args = [data.value, weight.value, data.zero_point, weight.zero_point, data.scale, weight.scale];
        let value = rebuild.new.op(quantized, &args, call.attrs.with("out_dtype", "int32"))?;
        rebuild.inherit_origin(value, data.origin);
        rebuild.inherit_origin(value, weight.origin);
        let shape: &[usize] = if products.len() == 1 { &[] } else { &[products.len()] };
        let scale = rebuild.new.constant(Tensor::from_slice(shape, &products));
        let zero_point = rebuild.new.constant(Tensor::scalar(0i32));
        let origin = rebuild.new.module.nodes[value].origin;
        Ok(Some(Affine { value, scale, zero_point, axis, origin }))
    }

    /// Builds the sum of accumulators and a bias of the same scale.
    fn bias(&self, rebuild: &mut Rebuild<'_>, call: &Call, data: Affine, axis: i64) -> Result<Option<Affine>> {
        let axis_of_data = resolve_axis(axis, rank(rebuild, data.value));
        let is_zero = constant(rebuild, data.zero_point).is_some_and(|t| t.as_slice::<i32>().iter().all(|&z| z == 0));
        if dtype(rebuild, data.value) != Some(DType::I32)
            || !is_zero
            || !data.is_single(rebuild) && data.axis != axis_of_data
        {
            return Ok(None);
        }
        let real = rebuild.get(call.args[1]);
        let is_equal = |a: &[f32], b: &[f32]| {
            let value_at = |v: &[f32], i: usize| v[i.min(v.len() - 1)];
            !a.is_empty() && !b.is_empty() && (0..a.len().max(b.len())).all(|i| value_at(a, i) == value_at(b, i))
        };
        let scales = |rebuild: &Rebuild<'_>, affine: Affine| floats(rebuild, affine.scale).unwrap_or_default();
        let bias = match self.by_value.get(&real).copied() {
            Some(bias)
                if dtype(rebuild, bias.value) == Some(DType::I32)
                    && is_equal(&scales(rebuild, bias), &scales(rebuild, data))
                    && constant(rebuild, bias.zero_point)
                        .is_some_and(|t| t.as_slice::<i32>().iter().all(|&z| z == 0)) =>
            {
                bias.value
            }
            // A constant, or the dequantized integers of a constant, is quantized with the scale of the accumulators.
            explicit => {
                let is_constant = constant(rebuild, real).is_some()
                    || explicit.is_some_and(|bias| constant(rebuild, bias.value).is_some());
                if !is_constant {
                    return Ok(None);
                }
                let attrs = Attrs::new([
                    ("axis", AttrValue::Int(0)),
                    ("out_dtype", DType::I32.into()),
                    ("rounding", "TOEVEN".into()),
                ]);
                rebuild.new.op("qnn.quantize", &[real, data.scale, data.zero_point], attrs)?
            }
        };
        let attrs = Attrs::new([("axis", AttrValue::Int(axis))]);
        let value = rebuild.new.op("nn.bias_add", &[data.value, bias], attrs)?;
        let mut origin = data.origin;
        if let Some(bias) = self.by_value.get(&real) {
            rebuild.inherit_origin(value, bias.origin);
            origin = rebuild.new.module.origins.union(origin, bias.origin);
        }
        Ok(Some(Affine { value, origin, ..data }))
    }

    /// Builds the replacement for a `qnn.quantize`, if the integer representation of its operand is known.
    fn quantize(&self, rebuild: &mut Rebuild<'_>, call: &Call) -> Result<Option<ExprId>> {
        let [real, scale, zero_point] = [0, 1, 2].map(|i| rebuild.get(call.args[i]));
        let parameters =
            floats(rebuild, scale).zip(constant(rebuild, zero_point).map(|t| t.as_slice::<i32>().to_vec()));
        let Some((scales, zeros)) = parameters else { return Ok(None) };
        let is_per_tensor = scales.len() == 1 && zeros.len() == 1;
        let out = call.attrs.get("out_dtype").and_then(AttrValue::as_dtype).unwrap_or(DType::I8);
        let axis = call.attrs.get("axis").and_then(AttrValue::as_int).unwrap_or(-1);
        let target = Target {
            scale,
            zero_point,
            axis: (!is_per_tensor).then(|| resolve_axis(axis, rank(rebuild, real))),
            out,
            rounding: call.attrs.str("rounding").unwrap_or("TONEAREST").into(),
        };
        // Bounds of the `clip` and `nn.relu` calls before the quantization, outermost first.
        let mut bounds: Vec<(f32, f32)> = Vec::new();
        let mut origins = Vec::new();
        let mut inner = real;
        while is_per_tensor && !self.by_value.contains_key(&inner) {
            let Some((operator, clip_call)) = rebuild.new.module.expr(inner).as_op_call() else { break };
            let limit = |key: &str| clip_call.attrs.get(key).and_then(AttrValue::as_float).unwrap_or(0.0) as f32;
            bounds.push(match op::get(operator).name {
                "clip" => (limit("a_min"), limit("a_max")),
                "nn.relu" => (0.0, f32::INFINITY),
                _ => break,
            });
            origins.push(rebuild.new.module.nodes[inner].origin);
            inner = clip_call.args[0];
        }
        let Some(mut value) = self.integers(rebuild, inner, &target)? else { return Ok(None) };
        let rounding = Rounding::parse(&target.rounding).unwrap_or(Rounding::ToNearest);
        for (low, high) in bounds.into_iter().rev() {
            let limits = range(out);
            let quantize_bound = |bound: f32| f64::from(quantize_f32(bound, scales[0], zeros[0], limits, rounding));
            if (quantize_bound(low), quantize_bound(high)) != (limits.0 as f64, limits.1 as f64) {
                let attrs = Attrs::new([("a_min", quantize_bound(low).into()), ("a_max", quantize_bound(high).into())]);
                value = rebuild.new.op("clip", &[value], attrs)?;
            }
        }
        for origin in origins {
            rebuild.inherit_origin(value, origin);
        }
        Ok(Some(value))
    }

    /// Converts the real value `real` to integers with the quantization `target`.
    fn integers(&self, rebuild: &mut Rebuild<'_>, real: ExprId, target: &Target) -> Result<Option<ExprId>> {
        if let Some(affine) = self.by_value.get(&real).copied() {
            let is_compatible = affine.is_single(rebuild) || target.axis.is_none_or(|axis| axis == affine.axis);
            if !is_compatible {
                return Ok(None);
            }
            let is_equal =
                |a: ExprId, b: ExprId| constant(rebuild, a).zip(constant(rebuild, b)).is_some_and(|(a, b)| a == b);
            if dtype(rebuild, affine.value) == Some(target.out)
                && is_equal(affine.scale, target.scale)
                && is_equal(affine.zero_point, target.zero_point)
                && target.axis.is_none_or(|axis| axis == affine.axis)
            {
                rebuild.inherit_origin(affine.value, affine.origin);
                return Ok(Some(affine.value));
            }
            let axis = target.axis.unwrap_or(affine.axis) as i64;
            let attrs = Attrs::new([
                ("axis", AttrValue::Int(axis)),
                ("rounding", target.rounding.as_str().into()),
                ("compute_dtype", "float32".into()),
                ("out_dtype", target.out.into()),
            ]);
            let args = [affine.value, affine.scale, affine.zero_point, target.scale, target.zero_point];
            let value = rebuild.new.op("qnn.requantize", &args, attrs)?;
            rebuild.inherit_origin(value, affine.origin);
            return Ok(Some(value));
        }
        if target.axis.is_some() {
            return Ok(None);
        }
        let Some((operator, call)) = rebuild.new.module.expr(real).as_op_call() else { return Ok(None) };
        let (name, call) = (op::get(operator).name, call.clone());
        let origin = rebuild.new.module.nodes[real].origin;
        let operands: Vec<ExprId> = match rebuild.new.module.expr(call.args[0]) {
            Expr::Tuple(fields) if name == "concatenate" => fields.to_vec(),
            _ => call.args.to_vec(),
        };
        let affines: Option<Vec<Affine>> = operands.iter().map(|arg| self.by_value.get(arg).copied()).collect();
        let Some(affines) = affines.filter(|affines| !affines.is_empty()) else { return Ok(None) };
        let is_compatible = affines.iter().all(|a| {
            a.is_single(rebuild) && is_narrow(rebuild, a.value) && dtype(rebuild, a.value) == Some(target.out)
        });
        if !is_compatible {
            return Ok(None);
        }
        let Some(value) = quantized(rebuild, name, &call, &affines, target)? else { return Ok(None) };
        rebuild.inherit_origin(value, origin);
        for affine in affines {
            rebuild.inherit_origin(value, affine.origin);
        }
        Ok(Some(value))
    }
}

/// Quantization parameters of a `qnn.quantize`.
struct Target {
    scale: ExprId,
    zero_point: ExprId,
    /// Axis of the scale and the zero point; `None` if both have one element.
    axis: Option<usize>,
    out: DType,
    rounding: String,
}

/// Builds the quantized form of an operator on operands with scalar scales and zero points.
fn quantized(
    rebuild: &mut Rebuild<'_>,
    name: &str,
    call: &Call,
    affines: &[Affine],
    target: &Target,
) -> Result<Option<ExprId>> {
    let first = affines[0];
    let arguments = [first.value, first.scale, first.zero_point, target.scale, target.zero_point];
    let (quantized, attrs) = match (name, affines) {
        ("add" | "subtract" | "multiply", [l, r]) => {
            let quantized = match name {
                "add" => "qnn.add",
                "subtract" => "qnn.subtract",
                _ => "qnn.mul",
            };
            let scales = [l.scale, r.scale].map(|s| floats(rebuild, s).map_or(0.0, |s| s[0]));
            if name == "multiply" && !(scales[0] * scales[1]).is_normal() {
                return Ok(None);
            }
            let args =
                [l.value, r.value, l.scale, l.zero_point, r.scale, r.zero_point, target.scale, target.zero_point];
            return rebuild.new.op(quantized, &args, Attrs::none()).map(Some);
        }
        ("concatenate", _) => {
            let fields: [Vec<ExprId>; 3] = [
                affines.iter().map(|a| a.value).collect(),
                affines.iter().map(|a| a.scale).collect(),
                affines.iter().map(|a| a.zero_point).collect(),
            ];
            let mut args = Vec::with_capacity(5);
            for fields in fields {
                args.push(rebuild.new.tuple(&fields)?);
            }
            args.extend([target.scale, target.zero_point]);
            return rebuild.new.op("qnn.concatenate", &args, call.attrs.clone()).map(Some);
        }
        ("nn.avg_pool2d", [_]) => ("qnn.avg_pool2d", call.attrs.clone()),
        ("nn.global_avg_pool2d", [_]) => {
            let layout = call.attrs.str("layout").unwrap_or("NCHW");
            let Some(shape) = rebuild.new.module.ty(first.value).as_tensor().and_then(|t| t.shape()) else {
                return Ok(None);
            };
            let sizes: Option<Vec<i64>> =
                ['H', 'W'].iter().map(|&c| layout.find(c).and_then(|i| shape.get(i)).map(|&d| d as i64)).collect();
            let Some(sizes) = sizes.filter(|sizes| !sizes.contains(&0)) else { return Ok(None) };
            ("qnn.avg_pool2d", call.attrs.with("pool_size", sizes))
        }
        ("nn.softmax" | "nn.leaky_relu", [_]) => {
            (if name == "nn.softmax" { "qnn.softmax" } else { "qnn.leaky_relu" }, call.attrs.clone())
        }
        ("tanh" | "exp" | "sqrt" | "rsqrt" | "erf" | "sigmoid" | "log" | "abs", [_]) => {
            return rebuild.new.op(&format!("qnn.{name}"), &arguments, Attrs::none()).map(Some);
        }
        _ => return Ok(None),
    };
    rebuild.new.op(quantized, &arguments, attrs).map(Some)
}
