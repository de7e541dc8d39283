//! Quantized operators: integers with scales and zero points, which are constants in every model.

use super::{Argument, Constraint, Operand, Recipe, argument_type, attrs, operand, products, recipe, weight};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::{self, OpDef};
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let name = def.name.strip_prefix("qnn.")?;
    let narrow = if sampler.theme.dtype == DType::U8 { DType::U8 } else { DType::I8 };
    let tensors = &constraints[..constraints.len().min(2)];
    match name.strip_prefix("contrib_").and_then(|name| name.rsplit_once('_')) {
        Some((product, "requantize")) => return fused_product(product, sampler, narrow, tensors, true),
        Some(("dynamic", "quantize")) => {
            return recipe([operand(DType::F32, vec![4, 6], Fill::Within(-3.0, 3.0))], Attrs::none());
        }
        Some((product, "dequantize")) => return fused_product(product, sampler, narrow, tensors, false),
        _ if name.starts_with("contrib_lookup") => return lookup(def, sampler, narrow),
        _ => {}
    }
    if matches!(name, "conv2d" | "conv2d_transpose" | "dense" | "batch_matmul") {
        let float_op = op::get(op::lookup(&format!("nn.{name}"))?);
        let theme = sampler.theme;
        sampler.theme.dtype = narrow;
        let float_recipe = products::propose(float_op, sampler, tensors);
        sampler.theme = theme;
        let Recipe { mut args, attrs } = float_recipe?;
        // Models with uint8 activations mostly have int8 weights.
        if let (Argument::One(weight), DType::U8) = (&mut args[1], narrow)
            && argument_type(constraints, 1).is_none()
            && (sampler.restrictions.symmetric || sampler.chance(2))
        {
            weight.dtype = DType::I8;
        }
        let per_channel = match (&args[1], name) {
            (Argument::One(weight), "dense") if sampler.chance(2) => weight.shape.first().copied(),
            _ => None,
        };
        for input in &def.inputs[2..] {
            let dims = if input.starts_with("kernel") { per_channel.into_iter().collect() } else { Vec::new() };
            args.push(parameter(sampler, input, dims));
        }
        return recipe(args, attrs.without("out_dtype"));
    }
    let shape = argument_type(constraints, 0).map_or_else(|| sampler.shape_of_rank(1, 4), |k| k.1);
    if name == "concatenate" {
        return concatenate(sampler, narrow, constraints);
    }
    let dtype = argument_type(constraints, 0).map_or_else(
        || match name {
            "quantize" => DType::F32,
            "requantize" if sampler.chance(2) => DType::I32,
            _ => narrow,
        },
        |k| k.0,
    );
    let shape = if name.contains("pool") && shape.len() != 4 { sampler.shape(4) } else { shape };
    let fill = if dtype == DType::I32 { Fill::Within(-40_000.0, 40_000.0) } else { Fill::Terms };
    let mut args = vec![operand(dtype, shape.clone(), fill.clone())];
    for (i, input) in def.inputs.iter().enumerate().skip(1) {
        if input.contains("scale") || input.contains("zero_point") {
            args.push(parameter(sampler, input, Vec::new()));
        } else {
            let (dtype, shape) = argument_type(constraints, i).unwrap_or_else(|| (dtype, shape.clone()));
            args.push(operand(dtype, shape, fill.clone()));
        }
    }
    let mut pairs: Vec<(&'static str, AttrValue)> = Vec::new();
    match name {
        "quantize" => pairs.push(("rounding", sampler.pick(&["TONEAREST", "TOEVEN"]).into())),
        "requantize" if !sampler.common_attrs => {
            pairs.push(("rounding", sampler.pick(&["UPWARD", "TONEAREST", "TOEVEN"]).into()));
            pairs.push(("compute_dtype", sampler.pick(&["int64", "float32"]).into()));
        }
        "avg_pool2d" => {
            pairs.push(("pool_size", super::ints([2, 2])));
            pairs.push(("strides", super::ints([1 + sampler.below(2), 1 + sampler.below(2)])));
        }
        "softmax" => pairs.push(("axis", sampler.axis(shape.len()).into())),
        _ => {}
    }
    pairs.retain(|(key, _)| def.attr(key).is_some());
    recipe(args, Attrs::new(pairs))
}

/// Proposes a function of bytes by its table.
fn lookup(def: &'static OpDef, sampler: &mut Sampler, narrow: DType) -> Option<Recipe> {
    let shape = sampler.shape_of_rank(1, 3);
    let operands = def.inputs.len() - 1;
    let data = (0..operands).map(|_| operand(narrow, shape.clone(), Fill::Free));
    let table = weight(DType::U8, vec![256usize.pow(operands as u32)], Fill::Free);
    recipe(data.chain([table]).collect::<Vec<_>>(), Attrs::none())
}

/// Proposes a convolution or matrix product with bias and requantization, or with a conversion to real numbers.
fn fused_product(
    product: &str,
    sampler: &mut Sampler,
    narrow: DType,
    tensors: &[Constraint],
    is_requantized: bool,
) -> Option<Recipe> {
    let float_op = op::get(op::lookup(&format!("nn.{product}"))?);
    let theme = sampler.theme;
    sampler.theme.dtype = narrow;
    let float_recipe = products::propose(float_op, sampler, tensors);
    sampler.theme = theme;
    let Recipe { mut args, attrs } = float_recipe?;
    let Argument::One(kernel) = &args[1] else { return None };
    let order = attrs.get("kernel_layout").and_then(AttrValue::as_str).unwrap_or("O");
    let channels = *kernel.shape.get(order.find('O').unwrap_or(0))?;
    if !is_requantized {
        args.push(weight(DType::F32, vec![channels], Fill::Within(-4.0, 4.0)));
        for input in ["input_zero_point", "kernel_zero_point", "scale"] {
            args.push(parameter(sampler, input, Vec::new()));
        }
        return recipe(args, attrs.without("out_dtype"));
    }
    args.push(weight(DType::I32, vec![channels], Fill::Within(-500.0, 500.0)));
    for input in ["input_zero_point", "kernel_zero_point", "sum_scale", "output_scale", "output_zero_point"] {
        args.push(parameter(sampler, input, Vec::new()));
    }
    let rounding = if sampler.common_attrs { "UPWARD" } else { sampler.pick(&["UPWARD", "TONEAREST", "TOEVEN"]) };
    recipe(args, attrs.without("out_dtype").with("rounding", rounding))
}

fn parameter(sampler: &mut Sampler, name: &str, dims: Vec<usize>) -> Argument {
    if name.contains("scale") {
        return weight(DType::F32, dims, scale_fill(sampler));
    }
    weight(DType::I32, dims, zero_point_fill(sampler))
}

fn scale_fill(sampler: &Sampler) -> Fill {
    match sampler.scheme {
        Some(scheme) if scheme.power_of_two => Fill::PowerOfTwo(-6, -1),
        _ => Fill::Within(0.02, 0.4),
    }
}

fn zero_point_fill(sampler: &mut Sampler) -> Fill {
    let is_symmetric = sampler.restrictions.symmetric || sampler.scheme.is_some_and(|scheme| scheme.symmetric);
    if is_symmetric || sampler.chance(3) { Fill::Within(0.0, 0.0) } else { Fill::Within(0.0, 9.0) }
}

fn concatenate(sampler: &mut Sampler, narrow: DType, constraints: &[Constraint]) -> Option<Recipe> {
    let fields = match constraints.first() {
        Some(Constraint::Tuple(fields)) => fields.clone(),
        _ => vec![None; sampler.int(1, 3) as usize],
    };
    // The tuples of scales and of zero points have one field per tensor.
    let field_count = fields.len();
    let field_type = fields.iter().flatten().next().cloned();
    let (dtype, shape) = field_type.unwrap_or_else(|| (narrow, sampler.shape_of_rank(1, 4)));
    let field_operand =
        |dtype, shape: &[usize], fill: Fill, weight| Operand { dtype, shape: shape.to_vec(), fill, weight };
    let data = fields.into_iter().map(|field| {
        let (dtype, shape) = field.unwrap_or_else(|| (dtype, shape.clone()));
        field_operand(dtype, &shape, Fill::Terms, false)
    });
    let data = data.collect();
    let scales = (0..field_count).map(|_| field_operand(DType::F32, &[], scale_fill(sampler), true)).collect();
    let zeros = (0..field_count).map(|_| field_operand(DType::I32, &[], zero_point_fill(sampler), true)).collect();
    let (scale, zero) = (parameter(sampler, "scale", Vec::new()), parameter(sampler, "zero_point", Vec::new()));
    let axis = sampler.axis(shape.len());
    let args = [Argument::Tuple(data), Argument::Tuple(scales), Argument::Tuple(zeros), scale, zero];
    recipe(args, attrs([("axis", axis.into())]))
}
