//! Translation of the boundary's graph into the IR. Only this module knows Relay's operators and their attributes.
//!
//! Shapes are inferred again from the input shapes and compared with the graph's types, so that a graph whose
//! attributes and types disagree is rejected before anything is executed.

pub mod quantized;
mod quantized_concat;
mod real;
pub mod table;

use crate::attributes::Attributes;
use crate::ir::{CompileError, Def, EltwiseParams, Kind, RegionIr, Result, Val};
use crate::library::{Window, ffi};
use byoc_plugin_api::{Constant, DType, Dim, Graph, Node, NodeKind, RefusalCode, TensorType};
use byoc_plugin_support::region::expand;
use byoc_plugin_support::view::count;
use table::Row;

fn shape_error(detail: impl Into<String>) -> CompileError {
    CompileError::new(RefusalCode::UnsupportedShape, detail)
}

fn attr_error(detail: impl Into<String>) -> CompileError {
    CompileError::new(RefusalCode::UnsupportedAttr, detail)
}

fn to_i64s(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&d| d as i64).collect()
}

impl RegionIr {
    /// Translates a graph for inputs with these dimensions.
    ///
    /// # Errors
    /// If an operator is not supported, or if dimensions do not match the graph's types; the first problem is reported.
    pub fn of(graph: &Graph, constants: &[Constant], inputs: &[Vec<i64>]) -> Result<RegionIr> {
        let mut ir = RegionIr::new(constants.to_vec());
        for (i, (input, shape)) in graph.inputs.iter().zip(inputs).enumerate() {
            check_shape(&input.ty, shape).map_err(|mismatch| shape_error(format!("input {i}: {mismatch}")))?;
            let value = ir.value(shape.clone(), input.ty.dtype, Def::Input(i));
            ir.inputs.push(value);
        }
        let mut constant_values = vec![None; constants.len()];
        let values = expand(graph, constants.len(), ir.inputs.clone(), |node, operands| {
            let values = match &node.kind {
                NodeKind::Constant(i) => {
                    let constant = &constants[*i as usize];
                    if constant.ty() != node.outputs[0] {
                        let (actual, expected) = (constant.ty(), &node.outputs[0]);
                        return Err(shape_error(format!("constant {i}: expected {expected}, found {actual}")));
                    }
                    let add_constant =
                        || ir.value(to_i64s(constant.shape()), constant.dtype(), Def::Constant(*i as usize));
                    vec![*constant_values[*i as usize].get_or_insert_with(add_constant)]
                }
                _ => translate(&mut ir, node.op().unwrap_or_default(), node, operands)?,
            };
            for (value, ty) in values.iter().zip(&node.outputs) {
                check_shape(ty, ir.shape(*value)).map_err(|mismatch| {
                    shape_error(format!("result of {}: {mismatch}", node.op().unwrap_or("a node")))
                })?;
            }
            Ok(values)
        })?;
        ir.outputs = values;
        ir.eliminate_dead_ops();
        Ok(ir)
    }
}

/// Checks that a shape matches the type in the graph.
fn check_shape(ty: &TensorType, shape: &[i64]) -> Result<(), String> {
    let is_match = ty.rank() == shape.len()
        && ty.dims.iter().zip(shape).all(|(dim, &size)| match dim {
            Dim::Known(known_dim) => *known_dim as i64 == size,
            Dim::Unknown(_) => true,
        });
    if is_match { Ok(()) } else { Err(format!("expected {ty}, found dimensions {shape:?}")) }
}

fn translate(ir: &mut RegionIr, name: &str, node: &Node, inputs: &[Val]) -> Result<Vec<Val>> {
    let with_name = |reason: CompileError| CompileError { detail: format!("{name}: {}", reason.detail), ..reason };
    let Some(row) = table::row(name) else {
        let detail = "the dnnl backend does not support this operator";
        return Err(with_name(CompileError::new(RefusalCode::UnsupportedOp, detail)));
    };
    if inputs.is_empty() || node.outputs.is_empty() {
        let (operands, results) = (inputs.len(), node.outputs.len());
        return Err(with_name(shape_error(format!(
            "expected at least 1 operand and 1 result, found {operands} and {results}"
        ))));
    }
    for (i, &input) in inputs.iter().enumerate() {
        if ir.shape(input).contains(&0) {
            return Err(with_name(shape_error(format!(
                "input {i}: expected a non-empty tensor, found shape {:?}",
                ir.shape(input)
            ))));
        }
    }
    if is_quantized(ir, row, node, inputs) {
        let mut translation = Translation { ir, node, attrs: Attributes::of(node), inputs };
        let values = translation.quantized_values(row).map_err(with_name)?;
        return check_results(ir, values).map_err(with_name);
    }
    let exact_value =
        Translation { ir: &mut *ir, node, attrs: Attributes::of(node), inputs }.exact_real(name).map_err(with_name)?;
    if let Some(value) = exact_value {
        return check_results(ir, vec![value]).map_err(with_name);
    }
    for (i, ty) in node.outputs.iter().enumerate() {
        if ty.dtype != DType::F32 && name != "isnan" {
            let detail = format!("output {i}: expected float32, found {}", ty.dtype);
            return Err(with_name(CompileError::new(RefusalCode::UnsupportedDtype, detail)));
        }
    }
    for (i, &input) in inputs.iter().enumerate() {
        let value = ir.get(input);
        let is_index = name == "take" && i == 1;
        if value.dtype != DType::F32 && !is_index {
            let detail = format!("input {i}: expected float32, found {}", value.dtype);
            return Err(with_name(CompileError::new(RefusalCode::UnsupportedDtype, detail)));
        }
    }
    let mut translation = Translation { ir, node, attrs: Attributes::of(node), inputs };
    let values = (row.translate)(&mut translation).map_err(with_name)?;
    check_results(ir, values).map_err(with_name)
}

fn check_results(ir: &RegionIr, values: Vec<Val>) -> Result<Vec<Val>> {
    let is_shapeless = |value: &Val| ir.shape(*value).iter().any(|&d| d < 1) || ir.shape(*value).len() > ffi::MAX_NDIMS;
    if let Some(value) = values.iter().find(|value| is_shapeless(value)) {
        return Err(shape_error(format!(
            "result: expected a non-empty tensor of at most {} dimensions, found shape {:?}",
            ffi::MAX_NDIMS,
            ir.shape(*value)
        )));
    }
    Ok(values)
}

/// Returns true if the operator is quantized, or if its first operand or first result consists of integers.
fn is_quantized(ir: &RegionIr, row: &Row, node: &Node, inputs: &[Val]) -> bool {
    let is_integer = |dtype: DType| matches!(dtype, DType::I8 | DType::U8 | DType::I32);
    row.is_quantized || is_integer(ir.get(inputs[0]).dtype) || is_integer(node.outputs[0].dtype)
}

/// Graph operator under translation.
pub struct Translation<'a> {
    /// IR under construction.
    pub ir: &'a mut RegionIr,
    pub node: &'a Node,
    pub attrs: Attributes<'a>,
    pub inputs: &'a [Val],
}

/// Convolution with its dimensions in canonical order: (N, C, spatial...), (O, I / groups, spatial...).
pub struct Convolution {
    pub data: Val,
    pub weight: Val,
    pub window: Window,
    pub groups: i64,
    /// Shape of the result.
    pub shape: Vec<i64>,
    /// Order of the result's dimensions.
    pub order: String,
    /// Result layout that the graph requires.
    pub out_layout: String,
}

impl Translation<'_> {
    pub fn shape(&self, value: Val) -> Vec<i64> {
        self.ir.shape(value).to_vec()
    }

    pub fn rank(&self, value: Val) -> usize {
        self.ir.shape(value).len()
    }

    pub fn input(&self, index: usize) -> Result<Val> {
        self.inputs
            .get(index)
            .copied()
            .ok_or_else(|| shape_error(format!("expected at least {} inputs, found {}", index + 1, self.inputs.len())))
    }

    /// Formats an operand for a message.
    fn description(&self, value: Val) -> String {
        let kind = if self.ir.constant(value).is_some() { "constant" } else { "runtime value" };
        format!("a {kind} of type {} and shape {:?}", self.ir.get(value).dtype, self.ir.shape(value))
    }

    fn reshape(&mut self, x: Val, shape: Vec<i64>) -> Result<Val> {
        if count(&shape) != count(self.ir.shape(x)) {
            return Err(shape_error(format!("cannot reshape {:?} to {shape:?}", self.ir.shape(x))));
        }
        Ok(self.ir.reshape(x, shape))
    }

    fn transpose(&mut self, x: Val, axes: Vec<usize>) -> Val {
        if axes.iter().enumerate().all(|(i, &axis)| i == axis) {
            return x;
        }
        let shape = axes.iter().map(|&axis| self.ir.shape(x)[axis]).collect();
        self.ir.push(Kind::Transpose(axes), &[x], shape)
    }

    /// Permutes a tensor from `layout` into the order `expected`.
    fn convert_from_layout(&mut self, x: Val, layout: &str, expected: &str) -> Result<Val> {
        let axes = layout_order(layout, expected, self.rank(x))?;
        Ok(self.transpose(x, axes))
    }

    /// Permutes a tensor from the order `order` into `layout`.
    pub fn convert_to_layout(&mut self, x: Val, order: &str, layout: &str) -> Result<Val> {
        let axes = layout_order(order, layout, self.rank(x))?;
        Ok(self.transpose(x, axes))
    }

    fn convolution(&mut self, is_transposed: bool) -> Result<Val> {
        let Convolution { data, weight, window, groups, shape, order, out_layout } =
            self.convolution_parts(is_transposed)?;
        let result = self.ir.push(Kind::Conv { window, groups, transposed: is_transposed }, &[data, weight], shape);
        self.convert_to_layout(result, &order, &out_layout)
    }

    /// Validates a convolution and returns its components.
    pub fn convolution_parts(&mut self, is_transposed: bool) -> Result<Convolution> {
        let (data, weight) = (self.inputs[0], self.input(1)?);
        let axes = self.rank(data).checked_sub(2).filter(|axes| (1..=3).contains(axes));
        let axes = axes.ok_or_else(|| shape_error(format!("data: expected rank 3 to 5, found {}", self.rank(data))))?;
        let spatial = ["W", "HW", "DHW"][axes - 1];
        let order = format!("NC{spatial}");
        // The first letter of a transposed convolution's kernel layout denotes the data channels, whatever letter Relay
        // uses.
        let letters = if is_transposed && axes == 2 { "IO" } else { "OI" };
        let kernel_order = format!("{letters}{spatial}");
        let kernel_layout = match self.attrs.text("kernel_layout") {
            "" => kernel_order.as_str(),
            other => other,
        };
        let data_layout = match self.attrs.text("data_layout") {
            "" => order.as_str(),
            other => other,
        };
        let out_layout = match self.attrs.text("out_layout") {
            "" => data_layout,
            other => other,
        }
        .to_owned();
        let data = self.convert_from_layout(data, data_layout, &order)?;
        let weight = self.convert_from_layout(weight, kernel_layout, &kernel_order)?;
        let (x, w) = (self.shape(data), self.shape(weight));
        if w.len() != x.len() {
            return Err(shape_error(format!("kernel: expected the same rank as data shape {x:?}, found shape {w:?}")));
        }
        let groups = self.attrs.int("groups", 1);
        let window = self.attrs.window(axes, &w[2..])?;
        let (in_channels, out_channels) = if is_transposed { (w[0], w[1] * groups) } else { (w[1] * groups, w[0]) };
        if groups < 1 || in_channels != x[1] || out_channels % groups != 0 || x[1] % groups != 0 {
            return Err(shape_error(format!(
                "kernel: expected channel counts that match data of shape {x:?} in {groups} groups, found shape {w:?}"
            )));
        }
        let mut shape = vec![x[0], out_channels];
        let mut window = window;
        let output_padding = self.attrs.per_axis("output_padding", axes, 0);
        for i in 0..axes {
            let extent = (w[2 + i] - 1) * window.dilation[i] + 1;
            if is_transposed {
                window.pad_after[i] -= output_padding[i];
                shape.push((x[2 + i] - 1) * window.strides[i] + extent - window.pad_before[i] - window.pad_after[i]);
            } else {
                let padded_slack = x[2 + i] + window.pad_before[i] + window.pad_after[i] - extent;
                if padded_slack < 0 {
                    return Err(shape_error(format!(
                        "kernel: expected an extent of at most {} along spatial axis {i}, found {extent}",
                        padded_slack + extent
                    )));
                }
                shape.push(padded_slack / window.strides[i] + 1);
                // oneDNN expects only the padding that the last window reaches.
                window.pad_after[i] -= padded_slack % window.strides[i];
            }
        }
        Ok(Convolution { data, weight, window, groups, shape, order, out_layout })
    }

    /// Translates `where(isnan(x), replacement, x)`.
    fn nan_replacement(&mut self) -> Result<Val> {
        let (condition, replacement, x) = (self.inputs[0], self.input(1)?, self.input(2)?);
        let nan_operand = self.ir.producer(condition).filter(|op| op.kind == Kind::IsNan).map(|op| op.inputs[0]);
        match self.ir.scalar(replacement) {
            Some(replacement) if nan_operand == Some(x) => {
                Ok(self.ir.push(Kind::NoNan(replacement), &[x], self.shape(x)))
            }
            _ => Err(attr_error("supported only as where(isnan(x), c, x) with a constant c")),
        }
    }

    fn matmul(&mut self, transpose_a: bool, transpose_b: bool) -> Result<Val> {
        let (a, b) = (self.inputs[0], self.input(1)?);
        let (mut a_shape, mut b_shape) = (self.shape(a), self.shape(b));
        let (a_rank, b_rank) = (a_shape.len(), b_shape.len());
        if a_rank < 2 || b_rank < 2 || (b_rank > 2 && a_rank != b_rank) {
            return Err(shape_error(format!("cannot multiply matrices of shapes {a_shape:?} and {b_shape:?}")));
        }
        if transpose_a {
            a_shape.swap(a_rank - 2, a_rank - 1);
        }
        if transpose_b {
            b_shape.swap(b_rank - 2, b_rank - 1);
        }
        if a_shape[a_rank - 1] != b_shape[b_rank - 2] {
            return Err(shape_error(format!("cannot multiply matrices of shapes {a_shape:?} and {b_shape:?}")));
        }
        let mut shape = a_shape;
        shape[a_rank - 1] = b_shape[b_rank - 1];
        for (d, &size) in b_shape[..b_rank - 2].iter().enumerate() {
            if shape[d] != size && shape[d] != 1 && size != 1 {
                return Err(shape_error(format!(
                    "expected batch dimensions that broadcast, found {} and {size}",
                    shape[d]
                )));
            }
            shape[d] = shape[d].max(size);
        }
        Ok(self.ir.matmul(transpose_a, transpose_b, [a, b], shape))
    }

    /// Returns the data permuted to (N, C, spatial...), its original layout, and the permuted layout.
    fn image(&mut self) -> Result<(Val, String, String)> {
        let data = self.inputs[0];
        let axes = self.rank(data).checked_sub(2).filter(|axes| (1..=3).contains(axes));
        let axes = axes.ok_or_else(|| shape_error(format!("data: expected rank 3 to 5, found {}", self.rank(data))))?;
        let order = format!("NC{}", ["W", "HW", "DHW"][axes - 1]);
        let layout = match self.attrs.text("layout") {
            "" => order.clone(),
            other => other.to_owned(),
        };
        let data = self.convert_from_layout(data, &layout, &order)?;
        let out = self.attrs.text("out_layout");
        if !out.is_empty() && out != layout {
            return Err(CompileError::new(
                RefusalCode::UnsupportedLayout,
                format!("attribute out_layout: expected {layout}, found {out}"),
            ));
        }
        Ok((data, layout, order))
    }

    fn pool(&mut self, alg: i32) -> Result<Val> {
        let dtype = self.ir.get(self.inputs[0]).dtype;
        self.pool_with(alg, dtype, |window| Kind::Pool { alg, window })
    }

    /// Adds the pooling operator that `make` returns for the pooling windows, with results of type `dtype`. `alg` is
    /// the oneDNN algorithm.
    pub fn pool_with(&mut self, alg: i32, dtype: DType, make: impl FnOnce(Window) -> Kind) -> Result<Val> {
        let (data, layout, order) = self.image()?;
        let x = self.shape(data);
        let axes = x.len() - 2;
        let kernel = self.attrs.per_axis("pool_size", axes, 1);
        let mut window = self.attrs.window(axes, &kernel)?;
        let uses_ceil_mode = self.attrs.flag("ceil_mode", false);
        let mut shape = vec![x[0], x[1]];
        for i in 0..axes {
            let extent = (kernel[i] - 1) * window.dilation[i] + 1;
            let padded_slack = x[2 + i] + window.pad_before[i] + window.pad_after[i] - extent;
            if padded_slack < 0 {
                return Err(shape_error(format!(
                    "window: expected an extent of at most {} along spatial axis {i}, found {extent}",
                    padded_slack + extent
                )));
            }
            let stride = window.strides[i];
            let floor = padded_slack / stride + 1;
            let size = match &self.node.outputs[0].dims {
                // The graph's type determines whether a partial last window produces a result.
                _ if !uses_ceil_mode => floor,
                dims => match self.spatial_dim(dims, &layout, &order, i) {
                    Some(size) if size == floor || size == floor + 1 => size,
                    found => {
                        let found = found.map_or_else(|| "an unknown number".to_owned(), |size| size.to_string());
                        return Err(attr_error(format!(
                            "attribute ceil_mode: expected {floor} or {} windows along spatial axis {i}, found {found}",
                            floor + 1
                        )));
                    }
                },
            };
            if size > floor && alg == ffi::POOLING_AVG_INCLUDE_PADDING {
                return Err(attr_error(
                    "attribute ceil_mode: partial windows are not supported with count_include_pad",
                ));
            }
            window.pad_after[i] = (size - 1) * stride + extent - x[2 + i] - window.pad_before[i];
            if window.pad_before[i] >= extent || window.pad_after[i] >= extent {
                return Err(attr_error(format!(
                    "padding: expected less than the window extent {extent}, found {} before and {} after",
                    window.pad_before[i], window.pad_after[i]
                )));
            }
            shape.push(size);
        }
        let result = self.ir.push_as(make(window), &[data], shape, dtype);
        self.convert_to_layout(result, &order, &layout)
    }

    fn spatial_dim(&self, dims: &[Dim], layout: &str, order: &str, i: usize) -> Option<i64> {
        let letter = order.chars().nth(2 + i)?;
        let position = layout.chars().position(|c| c == letter)?;
        dims.get(position)?.known().map(|size| size as i64)
    }

    fn adaptive_pool(&mut self, alg: i32, is_global: bool) -> Result<Val> {
        let (data, layout, order) = self.image()?;
        let x = self.shape(data);
        let axes = x.len() - 2;
        let output_size = self.attrs.ints("output_size").unwrap_or_default();
        let size = |i: usize| {
            if is_global { 1 } else { output_size.get(i).or(output_size.first()).copied().unwrap_or(x[2 + i]) }
        };
        let mut shape = vec![x[0], x[1]];
        let mut kernel = Vec::new();
        for i in 0..axes {
            let out = size(i);
            if out < 1 || x[2 + i] % out != 0 {
                return Err(shape_error(format!(
                    "attribute output_size: expected a divisor of {}, found {out}",
                    x[2 + i]
                )));
            }
            shape.push(out);
            kernel.push(x[2 + i] / out);
        }
        let no_padding = vec![0; axes];
        let window = Window {
            strides: kernel.clone(),
            dilation: vec![1; axes],
            kernel,
            pad_before: no_padding.clone(),
            pad_after: no_padding,
        };
        let result = self.ir.push(Kind::Pool { alg, window }, &[data], shape);
        self.convert_to_layout(result, &order, &layout)
    }

    fn layer_norm(&mut self) -> Result<Val> {
        let (data, gamma, beta) = (self.inputs[0], self.input(1)?, self.input(2)?);
        let shape = self.shape(data);
        let axis = self.attrs.axis("axis", -1, shape.len())?;
        if axis + 1 != shape.len() {
            return Err(attr_error(format!("attribute axis: expected the last axis, found {axis}")));
        }
        if !self.attrs.flag("center", true) || !self.attrs.flag("scale", true) {
            return Err(attr_error("attributes center and scale: expected true, found false"));
        }
        let epsilon = self.attrs.float("epsilon", 1e-5) as f32;
        if shape.len() < 2 {
            let row = self.reshape(data, vec![1, shape[0]])?;
            let normalized_value = self.ir.push(Kind::LayerNorm { epsilon }, &[row, gamma, beta], vec![1, shape[0]]);
            return self.reshape(normalized_value, shape);
        }
        Ok(self.ir.push(Kind::LayerNorm { epsilon }, &[data, gamma, beta], shape))
    }

    /// Translates `(x - mean) / sqrt(variance + epsilon) * gamma + beta` along an axis. The statistics are returned
    /// unchanged.
    fn batch_norm(&mut self) -> Result<Vec<Val>> {
        let (data, mean, variance) = (self.inputs[0], self.input(3)?, self.input(4)?);
        let shape = self.shape(data);
        let axis = self.attrs.axis("axis", 1, shape.len())?;
        for index in 1..5 {
            let param_shape = self.ir.shape(self.input(index)?);
            if param_shape != [shape[axis]] {
                return Err(shape_error(format!(
                    "input {index}: expected one value per index of axis {axis} of {shape:?}, found {param_shape:?}"
                )));
            }
        }
        let epsilon = self.attrs.float("epsilon", 1e-5) as f32;
        let shifted_variance = self.ir.affine(1.0, epsilon, variance);
        let mut factor = self.ir.eltwise(EltwiseParams::new(ffi::ELTWISE_POW, 1.0, -0.5), shifted_variance);
        if self.attrs.flag("scale", true) {
            factor = self.ir.binary(ffi::BINARY_MUL, factor, self.inputs[1], vec![shape[axis]]);
        }
        let mut param_shape = vec![1; shape.len() - axis];
        param_shape[0] = shape[axis];
        let (center, factor) = (self.reshape(mean, param_shape.clone())?, self.reshape(factor, param_shape.clone())?);
        let centered_data = self.ir.binary(ffi::BINARY_SUB, data, center, shape.clone());
        let mut normalized_value = self.ir.binary(ffi::BINARY_MUL, centered_data, factor, shape.clone());
        if self.attrs.flag("center", true) {
            let beta = self.reshape(self.inputs[2], param_shape)?;
            normalized_value = self.ir.binary(ffi::BINARY_ADD, normalized_value, beta, shape);
        }
        Ok(vec![normalized_value, mean, variance])
    }

    fn bias_add(&mut self) -> Result<Val> {
        let (data, bias) = (self.inputs[0], self.input(1)?);
        let shape = self.shape(data);
        let axis = self.attrs.axis("axis", 1, shape.len())?;
        if self.ir.shape(bias) != [shape[axis]] {
            return Err(shape_error(format!(
                "bias: expected one value per index of axis {axis}, found shape {:?}",
                self.ir.shape(bias)
            )));
        }
        let mut bias_shape = vec![1; shape.len() - axis];
        bias_shape[0] = shape[axis];
        let bias = self.reshape(bias, bias_shape)?;
        Ok(self.ir.binary(ffi::BINARY_ADD, data, bias, shape))
    }

    fn binary(&mut self, alg: i32) -> Result<Val> {
        let (a, b) = (self.inputs[0], self.input(1)?);
        let shape = broadcast_shape(self.ir.shape(a), self.ir.shape(b))?;
        Ok(self.ir.binary(alg, a, b, shape))
    }

    fn power(&mut self) -> Result<Val> {
        let (base, exponent) = (self.inputs[0], self.input(1)?);
        let Some(exponent_value) = self.ir.scalar(exponent).filter(|_| self.rank(base) >= self.rank(exponent)) else {
            let detail = format!("exponent: expected a constant float32 scalar, found {}", self.description(exponent));
            return Err(CompileError::new(RefusalCode::NotConstant, detail));
        };
        Ok(match exponent_value {
            1.0 => base,
            0.5 => self.ir.eltwise(EltwiseParams::plain(ffi::ELTWISE_SQRT), base),
            2.0 => {
                let shape = self.shape(base);
                self.ir.push(Kind::Binary(ffi::BINARY_MUL), &[base, base], shape)
            }
            exponent => self.ir.eltwise(EltwiseParams::new(ffi::ELTWISE_POW, 1.0, exponent), base),
        })
    }

    fn prelu(&mut self) -> Result<Val> {
        let (data, slope) = (self.inputs[0], self.input(1)?);
        let shape = self.shape(data);
        let axis = self.attrs.axis("axis", 1, shape.len())?;
        if self.ir.shape(slope) != [shape[axis]] {
            return Err(shape_error(format!(
                "slope: expected one value per index of axis {axis}, found shape {:?}",
                self.ir.shape(slope)
            )));
        }
        let mut shape_of_values = vec![1; shape.len()];
        shape_of_values[axis] = shape[axis];
        let slope = self.reshape(slope, shape_of_values)?;
        Ok(self.ir.push(Kind::Prelu, &[data, slope], shape))
    }

    fn reduce(&mut self, alg: i32) -> Result<Val> {
        let x = self.inputs[0];
        let shape = self.shape(x);
        let axes = self.attrs.reduced_axes(shape.len())?;
        if axes.is_empty() {
            return Ok(x);
        }
        let mut kept_shape = shape.clone();
        axes.iter().for_each(|&axis| kept_shape[axis] = 1);
        let spatial: Vec<usize> = (2..shape.len()).collect();
        let pool_alg = match alg {
            ffi::REDUCTION_MEAN => Some(ffi::POOLING_AVG_EXCLUDE_PADDING),
            ffi::REDUCTION_MAX => Some(ffi::POOLING_MAX),
            _ => None,
        };
        let result = match pool_alg {
            // A mean or maximum over entire planes is lowered to a pooling, which is fast for channels-last data.
            Some(alg) if axes == spatial && (3..=5).contains(&shape.len()) => {
                let (kernel, no_padding) = (shape[2..].to_vec(), vec![0; shape.len() - 2]);
                let unit_dilation = vec![1; kernel.len()];
                let window = Window {
                    strides: unit_dilation.clone(),
                    dilation: unit_dilation,
                    kernel,
                    pad_before: no_padding.clone(),
                    pad_after: no_padding,
                };
                self.ir.push(Kind::Pool { alg, window }, &[x], kept_shape.clone())
            }
            _ => self.ir.push(Kind::Reduce { alg, axes: axes.clone() }, &[x], kept_shape.clone()),
        };
        if self.attrs.flag("keepdims", false) {
            return Ok(result);
        }
        let remaining_shape = (0..shape.len()).filter(|d| !axes.contains(d)).map(|d| shape[d]).collect();
        self.reshape(result, remaining_shape)
    }

    /// Adds a concatenation of `operands` along `axis`.
    pub fn concat(&mut self, operands: &[Val], axis: usize) -> Result<Val> {
        let mut shape = self.shape(operands[0]);
        for &operand in &operands[1..] {
            let operand_shape = self.ir.shape(operand);
            let is_match = operand_shape.len() == shape.len()
                && (0..operand_shape.len()).all(|d| d == axis || operand_shape[d] == shape[d]);
            if !is_match {
                return Err(shape_error(format!(
                    "cannot concatenate shapes {shape:?} and {operand_shape:?} along axis {axis}"
                )));
            }
            shape[axis] += operand_shape[axis];
        }
        if operands.len() == 1 {
            return Ok(operands[0]);
        }
        Ok(self.ir.push(Kind::Concat { axis }, operands, shape))
    }

    fn resize(&mut self, name: &str) -> Result<Val> {
        let (data, layout, order) = self.image()?;
        let x = self.shape(data);
        if x.len() != 4 {
            return Err(shape_error(format!("data: expected rank 4, found {}", x.len())));
        }
        let (height, width) = if name == "nn.upsampling" {
            let scale_size = |size: i64, scale: f64| (size as f64 * scale).round() as i64;
            (scale_size(x[2], self.attrs.float("scale_h", 1.0)), scale_size(x[3], self.attrs.float("scale_w", 1.0)))
        } else {
            match self.attrs.ints("size").unwrap_or_default()[..] {
                [height, width] => (height, width),
                ref size => {
                    return Err(attr_error(format!("attribute size: expected a height and a width, found {size:?}")));
                }
            }
        };
        let alg = self.attrs.resampling(name, [x[2], x[3]], [height, width])?;
        let result = self.ir.push(Kind::Resample { alg }, &[data], vec![x[0], x[1], height, width]);
        self.convert_to_layout(result, &order, &layout)
    }

    fn pad(&mut self) -> Result<Val> {
        let (data, value) = (self.inputs[0], self.input(1)?);
        let mode = match self.attrs.text("pad_mode") {
            "" => "constant",
            mode => mode,
        };
        if mode != "constant" {
            return Err(attr_error(format!("attribute pad_mode: expected constant, found {mode}")));
        }
        let pad_value = self.ir.scalar(value);
        if pad_value != Some(0.0) {
            let found = pad_value.map_or_else(|| self.description(value), |pad_value| pad_value.to_string());
            return Err(attr_error(format!("pad_value: expected a constant 0, found {found}")));
        }
        let x = self.shape(data);
        let widths = self.attrs.pairs("pad_width", x.len())?;
        if let Some(&(pad_before, pad_after)) =
            widths.iter().find(|(pad_before, pad_after)| pad_before.min(pad_after) < &0)
        {
            let description = format!("attribute pad_width: expected widths >= 0, found ({pad_before}, {pad_after})");
            return Err(attr_error(&description));
        }
        let shape =
            x.iter().zip(&widths).map(|(size, (pad_before, pad_after))| size + pad_before + pad_after).collect();
        let pad_before = widths.iter().map(|&(pad_before, _)| pad_before).collect();
        Ok(self.ir.push(Kind::Pad { pad_before }, &[data], shape))
    }

    fn split(&mut self) -> Result<Vec<Val>> {
        let x = self.inputs[0];
        let shape = self.shape(x);
        let axis = self.attrs.axis("axis", 0, shape.len())?;
        let bounds = self.attrs.split_bounds(shape[axis])?;
        let slice = |this: &mut Self, start: i64, end: i64| {
            let mut begin = vec![0; shape.len()];
            begin[axis] = start;
            let mut slice_shape = shape.clone();
            slice_shape[axis] = end - start;
            this.ir.slice(x, begin, vec![1; shape.len()], slice_shape)
        };
        Ok(bounds.windows(2).map(|bound| slice(self, bound[0], bound[1])).collect())
    }

    /// Translates `take` with a single constant index along an axis.
    fn take(&mut self) -> Result<Val> {
        let (x, index) = (self.inputs[0], self.input(1)?);
        let shape = self.shape(x);
        let value = match self.ir.constant(index).map(|i| self.ir.constants[i].clone()) {
            Some(constant) if count(&to_i64s(constant.shape())) == 1 => match constant.dtype() {
                DType::I64 => constant.tensor().as_slice::<i64>()[0],
                DType::I32 => i64::from(constant.tensor().as_slice::<i32>()[0]),
                other => {
                    return Err(CompileError::new(
                        RefusalCode::UnsupportedDtype,
                        format!("index: expected int64 or int32, found {other}"),
                    ));
                }
            },
            _ => {
                let detail = format!("index: expected a constant scalar, found {}", self.description(index));
                return Err(CompileError::new(RefusalCode::NotConstant, detail));
            }
        };
        if self.attrs.ints("axis").is_none() {
            return Err(attr_error("attribute axis: expected an integer, found none"));
        }
        let batch_dims = self.attrs.int("batch_dims", 0);
        if batch_dims != 0 {
            return Err(attr_error(format!("attribute batch_dims: expected 0, found {batch_dims}")));
        }
        let axis = self.attrs.axis("axis", 0, shape.len())?;
        let value = if value < 0 { value + shape[axis] } else { value };
        if !(0..shape[axis]).contains(&value) {
            return Err(attr_error(format!("index: expected an integer in 0..{}, found {value}", shape[axis])));
        }
        let mut begin = vec![0; shape.len()];
        begin[axis] = value;
        let mut slice_shape = shape.clone();
        slice_shape[axis] = 1;
        let slice = self.ir.push(Kind::Slice { begin, step: vec![1; shape.len()] }, &[x], slice_shape.clone());
        slice_shape.splice(axis..=axis, self.shape(index));
        self.reshape(slice, slice_shape)
    }
}

/// Returns the shape that two shapes broadcast to.
fn broadcast_shape(a: &[i64], b: &[i64]) -> Result<Vec<i64>> {
    let rank = a.len().max(b.len());
    let dim_at = |shape: &[i64], d: usize| (d + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|d| match (dim_at(a, d), dim_at(b, d)) {
            (x, y) if x == y || y == 1 => Ok(x),
            (1, y) => Ok(y),
            _ => Err(shape_error(format!("cannot broadcast shapes {a:?} and {b:?}"))),
        })
        .collect()
}

/// Returns the position in `source_layout` of each letter of `target_layout`.
fn layout_order(source_layout: &str, target_layout: &str, rank: usize) -> Result<Vec<usize>> {
    let axes: Option<Vec<usize>> =
        target_layout.chars().map(|c| source_layout.chars().position(|letter| letter == c)).collect();
    axes.filter(|axes| axes.len() == rank && source_layout.len() == rank && target_layout.len() == rank).ok_or_else(
        || {
            CompileError::new(
                RefusalCode::UnsupportedLayout,
                format!("cannot convert layout {source_layout} to {target_layout}"),
            )
        },
    )
}
