//! Calls to external functions: user-supplied functions, and functions of backend regions.
//!
//! Operands and results are row-major and contiguous. A region function takes pointer arrays and a workspace; an
//! operator function takes a `byoc_call` (`byoc_extern.h` of the project), which describes tensors and attributes.

use super::{ConstantArray, Lowering, Phase};
use crate::externals::REGION;
use crate::nest::body::LoopBody;
use crate::nest::{Place, Stmt};
use crate::packing;
use crate::print::c_types::{int_literal, literal, storage_type};
use byoc_plugin_api::{AttrValue, DType};
use byoc_plugin_support::region::{Op, OpId, RegionIr};
use byoc_plugin_support::view::View;
use std::fmt::Write;

/// Alignment of a region's workspace in bytes.
const WORKSPACE_ALIGN: i64 = 64;

/// Memory of an operand or a result, its offset, and the type of its elements.
type Operand = (Place, i64, DType);

impl Lowering<'_, '_> {
    /// Lowers a call to an external function.
    pub fn lower_external(&mut self, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let op = self.ir.get(id);
        let mut inputs: Vec<Operand> = Vec::new();
        for &input in &op.inputs {
            let (dtype, mut storage) = (self.ir.val(input).dtype, self.resolve(input)?);
            if !storage.view.is_dense() {
                storage = self.dense_copy(&storage, dtype, &comment[0]);
            }
            inputs.push((storage.place, storage.view.offset, dtype));
        }
        let mut outputs: Vec<Operand> = Vec::new();
        for &output in &op.outputs {
            let (dtype, shape) = (self.ir.val(output).dtype, self.ir.shape(output).to_vec());
            let order: Vec<usize> = (0..shape.len()).collect();
            let storage = match self.place_for(output, &order, &comment[0], View::is_dense) {
                Some(storage) => storage,
                None => {
                    let storage = self.allocate_dense(&shape, dtype, &comment[0]);
                    self.storage.insert(output, storage.clone());
                    storage
                }
            };
            outputs.push((storage.place, storage.view.offset, dtype));
        }
        let kernel = self.permuted_kernel(op, &mut inputs)?;
        let named = |operands: &[Operand], is_written: bool| -> Vec<(Place, DType, bool)> {
            operands.iter().map(|&(place, _, dtype)| (place, dtype, is_written)).collect()
        };
        let mut named = [named(&outputs, true), named(&inputs, false)].concat();
        let argument = |(place, offset, _): &Operand| {
            if *offset == 0 { place.to_string() } else { format!("{place} + {offset}") }
        };
        let [inputs, outputs] = [&inputs, &outputs].map(|operands| operands.iter().map(argument).collect::<Vec<_>>());
        let code = match op.name {
            REGION => self.call_of_region(op.attrs().text("symbol"), &inputs, &outputs, &mut named)?,
            _ => self.call_of(op, &inputs, &outputs, kernel.as_ref()),
        };
        let places: Vec<Place> = named.iter().map(|&(place, ..)| place).collect();
        let phase = Phase::of("call", comment, &places, &LoopBody::default());
        self.push(phase, vec![Stmt::Foreign(code.lines().map(str::to_owned).collect(), named)]);
        Ok(())
    }

    /// Formats the call to the function of a backend region, and allocates its workspace.
    fn call_of_region(
        &mut self,
        symbol: &str,
        inputs: &[String],
        outputs: &[String],
        named: &mut Vec<(Place, DType, bool)>,
    ) -> Result<String, String> {
        let region = self.externals.regions.get(symbol);
        let region = region.ok_or_else(|| format!("region {symbol}: expected C source, found none"))?;
        let mut workspace = "0".to_owned();
        if region.workspace != 0 {
            let bytes = region.workspace + WORKSPACE_ALIGN - 1;
            let buffer = self.buffer(bytes, DType::I8, format!("workspace of {symbol}"));
            named.push((Place::Work(buffer), DType::I8, true));
            workspace = format!("(void *)(((uintptr_t)w{buffer} + {0}u) & ~(uintptr_t){0}u)", WORKSPACE_ALIGN - 1);
        }
        let constants: Vec<String> =
            region.constants.iter().map(|name| name.clone().unwrap_or_else(|| "0".into())).collect();
        let mut code = format!("const void *inputs[{}];\nvoid *outputs[{}];\n", inputs.len().max(1), outputs.len());
        let _ = writeln!(code, "const void *constants[{}];", constants.len().max(1));
        for (name, values) in [("inputs", inputs), ("constants", &constants)] {
            if values.is_empty() {
                let _ = writeln!(code, "{name}[0] = 0;");
            }
        }
        for (name, values) in [("constants", &constants[..]), ("inputs", inputs), ("outputs", outputs)] {
            for (i, value) in values.iter().enumerate() {
                let _ = writeln!(code, "{name}[{i}] = {value};");
            }
        }
        let call = format!("{symbol}(inputs, outputs, constants, {workspace})");
        code.push_str(&match region.status {
            true => format!("if ({call} != 0)\n    *args->status = -2;\n"),
            false => format!("{call};\n"),
        });
        Ok(code)
    }

    /// Permutes a convolution's constant weight into the layout that the function expects. Returns the layout and the
    /// shape if they differ from the model's.
    fn permuted_kernel(&mut self, op: &Op<'_>, inputs: &mut [Operand]) -> Result<Option<(String, Vec<i64>)>, String> {
        let kernel_layout = self.externals.operators.get(op.name).map(|f| f.kernel_layout.clone()).unwrap_or_default();
        let model_layout = op.attrs().text("kernel_layout");
        if kernel_layout.is_empty() || kernel_layout == model_layout {
            return Ok(None);
        }
        let axis_order: Option<Vec<usize>> = kernel_layout.chars().map(|letter| model_layout.find(letter)).collect();
        let axes = axis_order.filter(|axes| axes.len() == model_layout.len() && !model_layout.is_empty());
        let axes = axes.ok_or_else(|| {
            format!(
                "{}: kernel layout: expected a permutation of \"{model_layout}\", found \"{kernel_layout}\"",
                op.name
            )
        })?;
        let (Place::Constant(index), offset, dtype) = inputs[1] else {
            return Err(format!(
                "{}: layout {kernel_layout}: expected a constant weight, found a runtime value",
                op.name
            ));
        };
        let view = View::dense(self.ir.shape(op.inputs[1])).permute(&axes);
        let (size, constant) = (dtype.size(), self.ir.constants[index].bytes());
        let mut bytes = Vec::with_capacity(constant.len());
        let loops: Vec<(i64, i64)> = view.shape.iter().copied().zip(view.strides).collect();
        for element in packing::offsets(&loops) {
            bytes.extend_from_slice(weight_bytes(constant, offset + element, size)?);
        }
        let comment = format!("{kernel_layout} {:?}", view.shape);
        let array = self.constant_array(ConstantArray { dtype, bytes, comment });
        inputs[1] = (Place::Packed(array), 0, dtype);
        Ok(Some((kernel_layout, view.shape)))
    }

    /// Formats the call to an operator function.
    fn call_of(
        &self,
        op: &Op<'_>,
        inputs: &[String],
        outputs: &[String],
        kernel: Option<&(String, Vec<i64>)>,
    ) -> String {
        let mut text = String::new();
        for (kind, values) in [("input", &op.inputs), ("output", &op.outputs)] {
            for (i, &value) in values.iter().enumerate() {
                let shape = match kernel {
                    Some((_, shape)) if (kind, i) == ("input", 1) => shape,
                    _ => self.ir.shape(value),
                };
                let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
                let dims = if dims.is_empty() { "1".to_owned() } else { dims.join(", ") };
                let _ = writeln!(text, "static const int32_t {kind}_shape{i}[] = {{{dims}}};");
            }
        }
        let attributes = attributes(op, kernel.map(|(layout, _)| layout.as_str()), &mut text);
        let count = attributes.len();
        if count > 0 {
            let list = attributes.join(",\n    ");
            let _ = writeln!(text, "static const byoc_attribute attributes[] = {{\n    {list},\n}};");
        }
        let _ = writeln!(text, "byoc_input inputs[{}];\nbyoc_output outputs[{}];", inputs.len(), outputs.len());
        text.push_str("byoc_call call;\n");
        for (kind, pointers, values) in [("input", inputs, &op.inputs), ("output", outputs, &op.outputs)] {
            for (i, (pointer, &value)) in pointers.iter().zip(values).enumerate() {
                let (dtype, rank) = (self.ir.val(value).dtype, self.ir.shape(value).len());
                let _ = writeln!(text, "{kind}s[{i}].data = {pointer};\n{kind}s[{i}].type = \"{dtype}\";");
                let _ = writeln!(text, "{kind}s[{i}].rank = {rank};\n{kind}s[{i}].shape = {kind}_shape{i};");
            }
        }
        let sources: Vec<&str> = op.node.sources.iter().map(|s| s.as_str()).collect();
        let list = if count > 0 { "attributes" } else { "0" };
        let function = self.externals.operators.get(op.name).map_or("", |f| f.name.as_str());
        for (field, value) in [
            ("operator_name", format!("\"{}\"", op.name)),
            ("node", format!("\"{}\"", quote(&sources.join(", ")))),
            ("inputs", "inputs".to_owned()),
            ("input_count", inputs.len().to_string()),
            ("outputs", "outputs".to_owned()),
            ("output_count", outputs.len().to_string()),
            ("attributes", list.to_owned()),
            ("attribute_count", count.to_string()),
        ] {
            let _ = writeln!(text, "call.{field} = {value};");
        }
        let _ = writeln!(text, "{function}(&call);");
        text
    }
}

/// Returns the initializers of an operator's attributes, with `layout` as the layout of the kernel, and appends the arrays
/// that they refer to.
fn attributes(op: &Op<'_>, layout: Option<&str>, arrays: &mut String) -> Vec<String> {
    let mut attributes = Vec::new();
    for attr in &op.node.attrs {
        let key = attr.key.as_str();
        let (ints, float, text) = match &attr.value {
            AttrValue::Int(v) => (vec![*v], *v as f64, String::new()),
            AttrValue::Bool(v) => (vec![i64::from(*v)], f64::from(u8::from(*v)), String::new()),
            AttrValue::Float(v) => (Vec::new(), *v, String::new()),
            AttrValue::Str(v) => (Vec::new(), 0.0, v.to_string()),
            list => match list.as_ints() {
                Some(ints) => (ints, 0.0, String::new()),
                None => continue,
            },
        };
        let text = layout.filter(|_| key == "kernel_layout").unwrap_or(&text);
        let pointer = if ints.is_empty() { "0".to_owned() } else { format!("attribute_{key}") };
        if !ints.is_empty() {
            let list: Vec<String> = ints.iter().map(|v| int_literal(DType::I64, i128::from(*v))).collect();
            let _ = writeln!(arrays, "static const int64_t {pointer}[] = {{{}}};", list.join(", "));
        }
        let float = literal(DType::F64, float);
        attributes.push(format!("{{\"{key}\", {}, {pointer}, {float}, \"{}\"}}", ints.len(), quote(text)));
    }
    attributes
}

/// Returns the bytes of the element at `index` in a constant; `size` is the size of an element in bytes.
fn weight_bytes(bytes: &[u8], index: i64, size: usize) -> Result<&[u8], String> {
    let start = usize::try_from(index).ok().and_then(|index| index.checked_mul(size));
    start
        .and_then(|start| bytes.get(start..)?.get(..size))
        .ok_or_else(|| format!("expected weight indices < {}, found {index}", bytes.len() / size))
}

/// Returns `text` with an underscore in place of each character that must not appear in a C string literal.
fn quote(text: &str) -> String {
    text.chars()
        .map(|c| if c == '"' || c == '\\' || c == '?' || !c.is_ascii() || c.is_control() { '_' } else { c })
        .collect()
}

/// Returns the reason that a user-supplied function cannot compute an operator of these types; `None` if it can.
pub fn unsupported(ir: &RegionIr<'_>, op: &Op<'_>) -> Option<String> {
    let unsupported_dtype =
        op.inputs.iter().chain(&op.outputs).map(|&v| ir.val(v).dtype).find(|dtype| storage_type(*dtype).is_none())?;
    Some(format!("unsupported element type {unsupported_dtype}"))
}
