//! Lowers operators to commands: each convolution and each fully connected layer with its epilogue.

use crate::command_list::{ALIGN, Command, CommandList, Epilogue, Place, Port};
use crate::device::config::Config;
use crate::device::cycles;
use crate::epilogue::{Element, EpilogueOp, Factor, MAX_SHIFT, Rounding};
use crate::layer::{Conv, Dense, Layer};
use byoc_plugin_api::{Constant, DType, Graph, RefusalCode};
use byoc_plugin_support::arena::{self, Lifetime};
use byoc_plugin_support::int8::{Hints, check_single_result};
use byoc_plugin_support::operands::elements;
use byoc_plugin_support::refusal::{CompileError, refuse, refuse_with_hint};
use byoc_plugin_support::region::{Def, Op, RegionIr, Val};
use std::collections::BTreeMap;

const HINTS: Hints = Hints {
    quantize: "run \"byoc quantize\" first: byoc quantize MODEL --calibrate DATA --backend nuc_fpga -o FILE.relay, with \
               --keep none for the first convolution, which otherwise stays in float",
    scheme: "run \"byoc quantize --backend nuc_fpga\" for a model in the quantization scheme of the device",
};

/// Lowers a region to a command list.
///
/// # Errors
/// If the device does not support an operator (the error is the first refusal), or the region has no layer.
pub fn lower(graph: &Graph, constants: &[Constant], config: &Config) -> Result<CommandList, CompileError> {
    let ir = RegionIr::new(graph, constants)?;
    ir.ops.iter().try_for_each(check_single_result)?;
    let mut lowering = Lowering { ir: &ir, config, is_fused: vec![false; ir.ops.len()], commands: Vec::new() };
    for index in 0..ir.ops.len() {
        if !lowering.is_fused[index] {
            lowering.lower_command(index)?;
        }
    }
    let commands = lowering.commands;
    if commands.is_empty() {
        return refuse(RefusalCode::NotProfitable, "the region has no convolution and no dense layer");
    }
    assign_memory(graph, &ir, commands)
}

/// Command before memory assignment.
struct PendingCommand {
    layer: Layer,
    feature: Val,
    kernel: Val,
    steps: Vec<EpilogueOp>,
    result: Val,
    comment: String,
}

struct Lowering<'a> {
    ir: &'a RegionIr<'a>,
    config: &'a Config,
    is_fused: Vec<bool>,
    commands: Vec<PendingCommand>,
}

impl Lowering<'_> {
    /// Lowers the layer at operator `index` to a command, and fuses the operators of its epilogue.
    fn lower_command(&mut self, index: usize) -> Result<(), CompileError> {
        let ir = self.ir;
        let op = &ir.ops[index];
        let layer = match op.name {
            "nn.conv2d" | "qnn.conv2d" => conv2d(ir, op)?,
            "nn.dense" | "qnn.dense" => dense(ir, op)?,
            other => {
                let detail = format!("{other} does not follow a convolution or a dense layer of the same region");
                return refuse(RefusalCode::UnsupportedOp, detail);
            }
        };
        if let Err(detail) = layer.check() {
            return refuse(RefusalCode::ResourceLimit, detail);
        }
        if let Err(detail) = cycles::check_fits(&layer, self.config) {
            let hint = "set the buffer sizes of the device in libbyoc_nuc_fpga.json next to the plugin";
            return refuse_with_hint(RefusalCode::ResourceLimit, detail, hint);
        }
        self.is_fused[index] = true;
        let (mut names, mut sources) = (vec![op.name], sources(op));
        let mut steps = Vec::new();
        let mut result = op.outputs[0];
        while !ir.outputs.contains(&result) {
            let &[user] = &ir.val(result).users[..] else { break };
            let Some(step) = step(ir, ir.get(user), result, &layer)? else { break };
            steps.extend(step);
            names.push(ir.get(user).name);
            sources.extend(self::sources(ir.get(user)));
            self.is_fused[user.index()] = true;
            result = ir.get(user).outputs[0];
        }
        sources.dedup();
        let origin = if sources.is_empty() { String::new() } else { format!(" (from {})", sources.join(", ")) };
        let comment = format!("{}{origin}", names.join(", "));
        self.commands.push(PendingCommand {
            layer,
            feature: op.inputs[0],
            kernel: op.inputs[1],
            steps,
            result,
            comment,
        });
        Ok(())
    }
}

fn sources(op: &Op<'_>) -> Vec<String> {
    op.node.sources.iter().map(|source| source.to_string()).collect()
}

/// Converts a size for the driver's signature. [`Layer::check`] rejects out-of-range sizes.
fn size(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn conv2d(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<Layer, CompileError> {
    HINTS.check_layer(ir, op)?;
    for (key, expected) in [("data_layout", "NCHW"), ("kernel_layout", "OIHW"), ("out_layout", "NCHW")] {
        let layout = op.attrs().text(key);
        if layout != expected && !(layout.is_empty() && key == "out_layout") {
            let detail = format!("{key}: expected {expected}, found {layout}");
            let hint = "convert the layout: byoc opt --pass convert_layout --layout nn.conv2d=NCHW";
            return refuse_with_hint(RefusalCode::UnsupportedLayout, detail, hint);
        }
    }
    let dilation = op.attrs().ints("dilation").unwrap_or_default();
    if dilation.iter().any(|&d| d != 1) {
        return refuse(RefusalCode::UnsupportedAttr, format!("dilation: expected [1, 1], found {dilation:?}"));
    }
    let padding = op.attrs().ints("padding").unwrap_or_default();
    let [top, left, bottom, right] = match padding[..] {
        [] => [0; 4],
        [pads] => [pads; 4],
        [y, x] => [y, x, y, x],
        [t, l, b, r] => [t, l, b, r],
        _ => {
            return refuse(
                RefusalCode::UnsupportedAttr,
                format!("padding: expected 1, 2 or 4 values, found {}", padding.len()),
            );
        }
    };
    if top != bottom || left != right {
        let detail = format!(
            "padding: expected the same on opposite sides, found {top} above, {bottom} below, {left} left and {right} right"
        );
        let hint = "pad the data with nn.pad before the convolution, and set the padding of the convolution to 0";
        return refuse_with_hint(RefusalCode::UnsupportedAttr, detail, hint);
    }
    let strides = op.attrs().ints("strides").unwrap_or_default();
    let [stride_height, stride_width] = match strides[..] {
        [] => [1; 2],
        [step_on_each_axis] => [step_on_each_axis; 2],
        [y, x] => [y, x],
        _ => {
            return refuse(
                RefusalCode::UnsupportedAttr,
                format!("strides: expected 1 or 2 values, found {}", strides.len()),
            );
        }
    };
    let groups = op.attrs().int("groups", 1);
    let attribute = |name: &str, value: i64| match u32::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => refuse(RefusalCode::UnsupportedAttr, format!("{name}: expected 0 to 4294967295, found {value}")),
    };
    let (data, kernel) = (&ir.val(op.inputs[0]).shape[..], &ir.val(op.inputs[1]).shape[..]);
    let (&[batch, channels, height, width], &[kernels, group_channels, kernel_height, kernel_width]) = (data, kernel)
    else {
        let detail = format!("data and kernel: expected rank 4, found {} and {}", data.len(), kernel.len());
        return refuse(RefusalCode::UnsupportedShape, detail);
    };
    let group = attribute("groups", groups)?;
    if Some(channels) != group_channels.checked_mul(i64::from(group)) {
        let detail =
            format!("data: expected {group} groups of {group_channels} channels, found {channels} channels in total");
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    let conv = Conv {
        batch: size(batch),
        channels: size(channels),
        height: size(height),
        width: size(width),
        kernels: size(kernels),
        group,
        pad_height: attribute("padding", top)?,
        pad_width: attribute("padding", left)?,
        kernel_height: size(kernel_height),
        kernel_width: size(kernel_width),
        stride_height: attribute("strides", stride_height)?,
        stride_width: attribute("strides", stride_width)?,
    };
    check_no_empty_tensor(ir, op)?;
    Ok(Layer::Conv2d(conv))
}

fn dense(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<Layer, CompileError> {
    HINTS.check_layer(ir, op)?;
    check_no_empty_tensor(ir, op)?;
    let (data, kernel) = (&ir.val(op.inputs[0]).shape[..], &ir.val(op.inputs[1]).shape[..]);
    let (Some((&in_features, leading)), &[out_features, terms]) = (data.split_last(), kernel) else {
        let detail = format!("kernel: expected rank 2, found {}", kernel.len());
        return refuse(RefusalCode::UnsupportedShape, detail);
    };
    if in_features != terms {
        return refuse(
            RefusalCode::UnsupportedShape,
            format!("kernel: expected {in_features} input features, found {terms}"),
        );
    }
    let batch = leading.iter().fold(1i64, |product, &dim| product.saturating_mul(dim));
    let dense = Dense { batch: size(batch), in_features: size(in_features), out_features: size(out_features) };
    Ok(Layer::Dense(dense))
}

fn check_no_empty_tensor(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<(), CompileError> {
    let values = op.inputs.iter().take(2).chain([&op.outputs[0]]);
    if let Some(shape) = values.map(|&value| &ir.val(value).shape).find(|shape| shape.contains(&0)) {
        let detail = format!("{}: expected non-empty tensors, found shape {shape:?}", op.name);
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    Ok(())
}

/// Lowers an operator that reads `value`, a result of `layer`, to epilogue operations; `None` if it cannot be part of
/// an epilogue.
fn step(ir: &RegionIr<'_>, op: &Op<'_>, value: Val, layer: &Layer) -> Result<Option<Vec<EpilogueOp>>, CompileError> {
    if !matches!(
        op.name,
        "nn.bias_add" | "add" | "nn.relu" | "clip" | "cast" | "qnn.requantize" | "fixed_point_multiply"
    ) {
        return Ok(None);
    }
    let dtype = |v: Val| ir.val(v).dtype;
    let element = |name: &str, v: Val| match Element::of(dtype(v)) {
        Some(element) => Ok(element),
        None => {
            let detail = format!("{name} of {}: expected int32, int8 or uint8, found {}", op.name, dtype(v));
            refuse(RefusalCode::UnsupportedDtype, detail)
        }
    };
    let (in_element, out_element) = (element("operand", value)?, element("result", op.outputs[0])?);
    let (operand, result) = (&ir.val(value).shape, &ir.val(op.outputs[0]).shape);
    if result != operand {
        let detail = format!("{}: expected a result of the operand's shape {operand:?}, found {result:?}", op.name);
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    Ok(Some(match op.name {
        "nn.bias_add" | "add" => {
            if in_element != Element::Int32 || out_element != Element::Int32 {
                let detail = format!("{}: expected a bias addition in int32, found {}", op.name, dtype(value));
                return refuse(RefusalCode::UnsupportedDtype, detail);
            }
            vec![bias(ir, op, value, layer)?]
        }
        "nn.relu" => vec![EpilogueOp::Clip { low: 0, high: in_element.range()[1] }],
        "clip" => vec![clip(op, in_element)?],
        "cast" => vec![EpilogueOp::Cast { to: out_element }],
        "fixed_point_multiply" => vec![fixed_point(op)?],
        _ => vec![requantize(ir, op, value, layer, out_element)?],
    }))
}

/// Returns the channel axis of a layer's result.
fn channel_axis(layer: &Layer, rank: usize) -> usize {
    if matches!(layer, Layer::Conv2d(_)) { 1 } else { rank - 1 }
}

fn bias(ir: &RegionIr<'_>, op: &Op<'_>, value: Val, layer: &Layer) -> Result<EpilogueOp, CompileError> {
    let (Some(&left), Some(&right)) = (op.inputs.first(), op.inputs.get(1)) else {
        return refuse(
            RefusalCode::UnsupportedOp,
            format!("{}: expected 2 operands, found {}", op.name, op.inputs.len()),
        );
    };
    let addend = if left == value { right } else { left };
    let Some((constant, handle)) = ir.constant(addend) else {
        return refuse(
            RefusalCode::NotConstant,
            format!("{}: expected a constant addend, found a runtime value", op.name),
        );
    };
    if handle.dtype() != DType::I32 {
        return refuse(RefusalCode::UnsupportedDtype, format!("bias: expected int32, found {}", handle.dtype()));
    }
    let (rank, shape) = (ir.val(value).shape.len(), handle.shape());
    let (axis, channels) = (channel_axis(layer, rank), layer.channels()[1]);
    if op.name == "nn.bias_add" {
        if left != value {
            let detail = "nn.bias_add: expected the sum as the first operand, found it as the second";
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
        if op.attrs().axis("axis", 1, rank) != Some(axis) {
            let detail = format!("bias: expected channel axis {axis}, found {}", op.attrs().int("axis", 1));
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
        return Ok(EpilogueOp::Bias { constant, per_channel: true });
    }
    // Broadcasting aligns shapes at the last dimension; every dimension except the channel axis must be 1.
    let has_several_values = shape.iter().product::<usize>() != 1;
    let is_per_channel = shape.iter().rev().enumerate().all(|(i, &dim)| {
        let axis_index = rank.checked_sub(i + 1);
        dim == 1 || (dim == channels && axis_index == Some(axis))
    });
    if !is_per_channel || shape.len() > rank {
        let detail = format!("bias: expected one value per channel, or one for all, found {shape:?}");
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    Ok(EpilogueOp::Bias { constant, per_channel: has_several_values })
}

fn clip(op: &Op<'_>, element: Element) -> Result<EpilogueOp, CompileError> {
    let (low, high) = (op.node.float("a_min").unwrap_or(f64::NAN), op.node.float("a_max").unwrap_or(f64::NAN));
    let [min, max] = element.range().map(f64::from);
    if low.is_nan() || high.is_nan() || low > high || low.trunc() > max || high.trunc() < min {
        let detail = format!("clip: expected a range that contains {element} values, found {low} to {high}");
        return refuse(RefusalCode::UnsupportedAttr, detail);
    }
    // Clipping an integer to a fractional bound truncates the bound.
    Ok(EpilogueOp::Clip { low: low.trunc().max(min) as i32, high: high.trunc().min(max) as i32 })
}

fn fixed_point(op: &Op<'_>) -> Result<EpilogueOp, CompileError> {
    let multiplier = op.node.int("multiplier").and_then(|m| i32::try_from(m).ok()).filter(|&m| m >= 0);
    let shift = op.node.int("shift").and_then(|shift| u32::try_from(31 - shift).ok()).filter(|&s| s <= MAX_SHIFT);
    let (Some(multiplier), Some(shift)) = (multiplier, shift) else {
        let display = |key: &str| op.node.int(key).map_or_else(|| "none".to_owned(), |value| value.to_string());
        let detail = format!(
            "fixed_point_multiply: expected a multiplier >= 0 and a shift in [-31, 31], found {} and {}",
            display("multiplier"),
            display("shift")
        );
        return refuse(RefusalCode::UnsupportedAttr, detail);
    };
    Ok(EpilogueOp::FixedPoint { factor: Factor(multiplier, shift) })
}

fn requantize(
    ir: &RegionIr<'_>,
    op: &Op<'_>,
    value: Val,
    layer: &Layer,
    out_element: Element,
) -> Result<EpilogueOp, CompileError> {
    if op.inputs.first() != Some(&value) {
        return refuse(
            RefusalCode::UnsupportedOp,
            "qnn.requantize: expected the sum as the data, found it as another operand",
        );
    }
    let scales = |input, name: &str| {
        let scales = elements(ir, op, input, DType::F32, name, |t| t.as_slice::<f32>().to_vec())?;
        match scales.iter().find(|scale| !(scale.is_finite() && **scale > 0.0)) {
            Some(scale) => {
                refuse(RefusalCode::QuantScheme, format!("{name}: expected a finite scale > 0, found {scale}"))
            }
            None => Ok(scales),
        }
    };
    let zeros = |input, name: &str| elements(ir, op, input, DType::I32, name, |t| t.as_slice::<i32>().to_vec());
    let input = scales(1, "input scale of qnn.requantize")?;
    let output = scales(3, "output scale of qnn.requantize")?;
    let output_zero = zeros(4, "output zero point of qnn.requantize")?;
    let channels = layer.channels()[1];
    let rank = ir.val(value).shape.len();
    let axis = op.attrs().axis("axis", -1, rank);
    if input.len() != 1 && (axis != Some(channel_axis(layer, rank)) || input.len() != channels) {
        let detail = format!(
            "qnn.requantize: expected 1 input scale, or {channels} along the channel axis, found {}",
            input.len()
        );
        return refuse(RefusalCode::QuantScheme, detail);
    }
    let (&[output], &[zero]) = (&output[..], &output_zero[..]) else {
        let detail = format!(
            "qnn.requantize: expected 1 output scale and 1 output zero point, found {} and {}",
            output.len(),
            output_zero.len()
        );
        return refuse(RefusalCode::QuantScheme, detail);
    };
    HINTS.check_zero_point(ir, op, 2, "input zero point of qnn.requantize")?;
    let rounding = match op.attrs().text("rounding") {
        "" | "None" | "UPWARD" => Rounding::Upward,
        "TONEAREST" => Rounding::Tonearest,
        "TOEVEN" => Rounding::Toeven,
        other => {
            return refuse(
                RefusalCode::UnsupportedAttr,
                format!("rounding of qnn.requantize: expected UPWARD, TONEAREST or TOEVEN, found {other}"),
            );
        }
    };
    let compute = op.attrs().text("compute_dtype");
    if !matches!(compute, "" | "None" | "int64") {
        let detail = format!("compute_dtype of qnn.requantize: expected int64, found {compute}");
        return refuse_with_hint(RefusalCode::UnsupportedAttr, detail, "set compute_dtype=\"int64\"");
    }
    let mut factors: Vec<Factor> = Vec::with_capacity(input.len());
    for scale in input {
        match factor(scale, output) {
            Some(factor) => factors.push(factor),
            None => {
                let detail =
                    format!("scale ratio of qnn.requantize: expected less than 2^31, found {}", scale / output);
                return refuse(RefusalCode::QuantScheme, detail);
            }
        }
    }
    if factors.windows(2).all(|pair| pair[0] == pair[1]) {
        factors.truncate(1);
    }
    Ok(EpilogueOp::Requantize { factors, rounding, zero, range: out_element.range() })
}

/// Returns the fixed-point ratio of two scales: `frexp` of the quotient in binary64, with the fraction rounded to 31
/// bits; `None` if the ratio is at least 2^31. The factor of equal scales is exactly 1.
pub fn factor(input: f32, output: f32) -> Option<Factor> {
    let ratio = f64::from(input) / f64::from(output);
    // A quotient of binary32 numbers is a normal binary64 number, so its exponent field is exact.
    let exponent = ((ratio.to_bits() >> 52) & 0x7ff) as i32 - 1022;
    let fraction = f64::from_bits((ratio.to_bits() & !(0x7ff << 52)) | (1022 << 52));
    let multiplier = (fraction * f64::from(1u32 << 31)).round() as i64;
    let (multiplier, exponent) = if multiplier == 1 << 31 { (1 << 30, exponent + 1) } else { (multiplier, exponent) };
    match u32::try_from(31 - exponent) {
        Ok(shift) if shift <= MAX_SHIFT => Some(Factor(multiplier as i32, shift)),
        // The factor is so small that every product rounds to zero.
        Ok(_) => Some(Factor(0, 1)),
        Err(_) => None,
    }
}

/// Assigns memory to every value.
fn assign_memory(graph: &Graph, ir: &RegionIr<'_>, commands: Vec<PendingCommand>) -> Result<CommandList, CompileError> {
    let mut places: BTreeMap<Val, Place> = BTreeMap::new();
    for (i, &output) in ir.outputs.iter().enumerate() {
        if !matches!(ir.val(output).def, Def::Op(..)) || places.insert(output, Place::Output(i)).is_some() {
            return refuse(
                RefusalCode::UnsupportedOp,
                format!("output {i}: expected the result of a command, found an input, a constant or another output"),
            );
        }
    }
    // Buffers: the first writing and the last reading command, and the size in bytes.
    let (mut lifetimes, mut sizes): (Vec<Option<Lifetime>>, Vec<i64>) = (Vec::new(), Vec::new());
    let mut accumulators: Vec<Option<usize>> = Vec::new();
    let mut results: BTreeMap<Val, usize> = BTreeMap::new();
    for (index, command) in commands.iter().enumerate() {
        for operand in [command.feature, command.kernel] {
            if let Some(&buffer) = results.get(&operand) {
                lifetimes[buffer] = lifetimes[buffer].map(|(first, _)| (first, index));
            }
        }
        let count = command.layer.elements()[2];
        let mut buffer = |bytes: u64| {
            lifetimes.push(Some((index, index)));
            sizes.push(bytes as i64);
            sizes.len() - 1
        };
        accumulators.push((!command.steps.is_empty()).then(|| buffer(4 * count)));
        if !places.contains_key(&command.result) {
            let element = Element::of(ir.val(command.result).dtype).unwrap_or(Element::Int32);
            results.insert(command.result, buffer(count * element.size() as u64));
        }
    }
    let (offsets, workspace) = arena::place(&sizes, &lifetimes, ALIGN as i64);
    let offset = |buffer: usize| Place::Work(offsets[buffer] as u64);
    for (&value, &buffer) in &results {
        places.insert(value, offset(buffer));
    }
    let mut is_used = vec![false; ir.constants.len()];
    let mut placed_commands = Vec::with_capacity(commands.len());
    for (command, accumulator) in commands.into_iter().zip(accumulators) {
        let mut operand = |value: Val| match ir.val(value).def {
            Def::Input(i) => Ok(Place::Input(i)),
            Def::Constant(i) => {
                is_used[i] = true;
                Ok(Place::Constant(i))
            }
            Def::Op(op, _) => match places.get(&value) {
                Some(&place) => Ok(place),
                None => refuse(
                    RefusalCode::UnsupportedOp,
                    format!("{}: expected the result of a command, found an intermediate result", ir.get(op).name),
                ),
            },
        };
        let (feature, kernel) = (operand(command.feature)?, operand(command.kernel)?);
        let out = operand(command.result)?;
        for step in &command.steps {
            if let EpilogueOp::Bias { constant, .. } = step {
                is_used[*constant] = true;
            }
        }
        let element = Element::of(ir.val(command.result).dtype).unwrap_or(Element::Int32);
        let epilogue = accumulator.map(|_| Epilogue { out, element, steps: command.steps });
        let accumulator = accumulator.map_or(out, offset);
        placed_commands.push(Command {
            layer: command.layer,
            feature,
            kernel,
            sums: accumulator,
            epilogue,
            comment: command.comment,
        });
    }
    let port = |shape: &[usize], dtype: DType| match Element::of(dtype) {
        Some(element) => Ok(Port { shape: shape.to_vec(), element }),
        None => refuse(
            RefusalCode::UnsupportedDtype,
            format!("expected inputs, outputs and constants of int8, uint8 or int32, found {dtype}"),
        ),
    };
    let ports = |values: &[Val]| -> Result<Vec<Port>, CompileError> {
        values
            .iter()
            .map(|&value| {
                let shape: Vec<usize> = ir.shape(value).iter().map(|&d| d as usize).collect();
                port(&shape, ir.val(value).dtype)
            })
            .collect()
    };
    let constants = ir.constants.iter().zip(is_used);
    let constants =
        constants.map(|(constant, is_used)| is_used.then(|| port(constant.shape(), constant.dtype())).transpose());
    let list = CommandList {
        symbol: graph.symbol.to_string(),
        inputs: ports(&ir.inputs)?,
        outputs: ports(&ir.outputs)?,
        constants: constants.collect::<Result<_, _>>()?,
        workspace: workspace as u64,
        commands: placed_commands,
    };
    match list.check() {
        Ok(()) => Ok(list),
        Err(detail) => refuse(RefusalCode::UnsupportedOp, detail),
    }
}
