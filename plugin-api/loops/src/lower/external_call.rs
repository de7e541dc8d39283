//! Calls to external functions: user-supplied functions, and functions of backend regions.
//!
//! Operands and results are row-major and contiguous. A region function takes pointer arrays and a workspace; an
//! operator function takes a `byoc_call` (`byoc_extern.h` of the project), which describes tensors and attributes.

use super::{ConstantArray, Lowering, Phase, weight_bytes};
use crate::externals::REGION;
use crate::nest::{Place, Stmt};
use crate::print::c_types::{int_literal, literal, storage_type};
use byoc_plugin_api::{AttrValue, DType};
use byoc_plugin_support::region::{Op, OpId, Val};
use byoc_plugin_support::view::{View, count};
use std::fmt::Write;

/// Alignment of a region's workspace in bytes.
const WORKSPACE_ALIGN: i64 = 64;

impl Lowering<'_, '_> {
    /// Lowers a call to an external function.
    pub fn lower_external(&mut self, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let op = self.ir.get(id);
        let mut phase = Phase::new("call", comment);
        let mut inputs: Vec<(Place, i64, DType)> = Vec::new();
        for &input in &op.inputs {
            let dtype = self.ir.val(input).dtype;
            let storage = self.resolve(input)?;
            let storage =
                if storage.view.is_dense() { storage } else { self.dense_copy(&storage, dtype, &phase.comment[0])? };
            inputs.push((storage.place, storage.view.offset, dtype));
        }
        let mut outputs: Vec<(Place, i64, DType)> = Vec::new();
        for &output in &op.outputs {
            let order: Vec<usize> = (0..self.ir.shape(output).len()).collect();
            let storage = self.place_for(output, &order, &phase.comment[0], View::is_dense);
            let storage = match storage {
                Some(storage) => storage,
                None => {
                    let shape = self.ir.shape(output).to_vec();
                    let storage = self.allocate(&shape, &order, &[], self.ir.val(output).dtype, &phase.comment[0]);
                    self.storage.insert(output, storage.clone());
                    storage
                }
            };
            outputs.push((storage.place, storage.view.offset, self.ir.val(output).dtype));
        }
        let kernel = self.permuted_kernel(op, &mut inputs)?;
        let mut named: Vec<(Place, DType, bool)> = Vec::new();
        for (places, is_written) in [(&outputs, true), (&inputs, false)] {
            named.extend(places.iter().map(|&(place, _, dtype)| (place, dtype, is_written)));
        }
        named.iter().for_each(|&(place, ..)| phase.touch(place));
        let mut code = String::new();
        let argument = |(place, offset, _): &(Place, i64, DType)| {
            if *offset == 0 { place.to_string() } else { format!("{place} + {offset}") }
        };
        if op.name == REGION {
            let symbol = op.attrs().text("symbol");
            let externals = self.externals;
            let region = externals.regions.get(symbol);
            let region = region.ok_or_else(|| format!("region {symbol}: expected C source, found none"))?;
            let workspace = if region.workspace == 0 {
                "0".to_owned()
            } else {
                let buffer =
                    self.buffer(region.workspace + WORKSPACE_ALIGN - 1, DType::I8, format!("workspace of {symbol}"));
                phase.touch(Place::Work(buffer));
                named.push((Place::Work(buffer), DType::I8, true));
                format!("(void *)(((uintptr_t)w{buffer} + {0}u) & ~(uintptr_t){0}u)", WORKSPACE_ALIGN - 1)
            };
            let constants: Vec<&str> = region.constants.iter().map(|c| c.as_deref().unwrap_or("0")).collect();
            let w = &mut code;
            let _ =
                writeln!(w, "    const void *inputs[{}];\n    void *outputs[{}];", inputs.len().max(1), outputs.len());
            let _ = writeln!(w, "    const void *constants[{}];", constants.len().max(1));
            if inputs.is_empty() {
                let _ = writeln!(w, "    inputs[0] = 0;");
            }
            if constants.is_empty() {
                let _ = writeln!(w, "    constants[0] = 0;");
            }
            for (i, constant) in constants.iter().enumerate() {
                let _ = writeln!(w, "    constants[{i}] = {constant};");
            }
            for (i, input) in inputs.iter().enumerate() {
                let _ = writeln!(w, "    inputs[{i}] = {};", argument(input));
            }
            for (i, output) in outputs.iter().enumerate() {
                let _ = writeln!(w, "    outputs[{i}] = {};", argument(output));
            }
            let call = format!("{symbol}(inputs, outputs, constants, {workspace})");
            let _ = match region.status {
                true => writeln!(w, "    if ({call} != 0)\n        *args->status = -2;"),
                false => writeln!(w, "    {call};"),
            };
        } else {
            let inputs: Vec<String> = inputs.iter().map(argument).collect();
            let outputs: Vec<String> = outputs.iter().map(argument).collect();
            code.push_str(&self.call_of(op, &inputs, &outputs, kernel.as_ref()));
        }
        let lines = code.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned()).collect();
        self.push(phase, vec![Stmt::Foreign(lines, named)]);
        Ok(())
    }

    /// Permutes a convolution's constant weight into the layout that the function expects. Returns the layout and the
    /// shape if they differ from the model's.
    fn permuted_kernel(
        &mut self,
        op: &Op<'_>,
        inputs: &mut [(Place, i64, DType)],
    ) -> Result<Option<(String, Vec<i64>)>, String> {
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
        let view = View { offset, ..View::dense(self.ir.shape(op.inputs[1])) }.permute(&axes);
        let (size, bytes) = (dtype.size(), self.ir.constants[index].bytes());
        let mut data = Vec::with_capacity(bytes.len());
        for element in 0..count(&view.shape) {
            let (mut remaining, mut offset) = (element, view.offset);
            for d in (0..view.shape.len()).rev() {
                offset += remaining % view.shape[d] * view.strides[d];
                remaining /= view.shape[d];
            }
            data.extend_from_slice(weight_bytes(bytes, offset, size)?);
        }
        let array = self.constant_array(ConstantArray {
            dtype,
            bytes: data,
            comment: format!("{kernel_layout} {:?}", view.shape),
        });
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
        let w = &mut text;
        let shape_of = |i: usize, value: Val| match kernel {
            Some((_, shape)) if i == 1 && op.inputs.get(1) == Some(&value) => shape.clone(),
            _ => self.ir.shape(value).to_vec(),
        };
        let mut declare = |kind: &str, values: &[Val]| {
            for (i, &value) in values.iter().enumerate() {
                let shape = if kind == "input" { shape_of(i, value) } else { self.ir.shape(value).to_vec() };
                let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
                let dims = if dims.is_empty() { "1".to_owned() } else { dims.join(", ") };
                let _ = writeln!(w, "    static const int32_t {kind}_shape{i}[] = {{{dims}}};");
            }
        };
        declare("input", &op.inputs);
        declare("output", &op.outputs);
        let mut attributes = Vec::new();
        for attr in &op.node.attrs {
            let key = attr.key.as_str();
            let row = match &attr.value {
                AttrValue::Int(v) => (Some(vec![*v]), *v as f64, String::new()),
                AttrValue::Bool(v) => (Some(vec![i64::from(*v)]), f64::from(u8::from(*v)), String::new()),
                AttrValue::Float(v) => (None, *v, String::new()),
                AttrValue::Str(v) => (None, 0.0, v.to_string()),
                list => match list.as_ints() {
                    Some(ints) => (Some(ints), 0.0, String::new()),
                    None => continue,
                },
            };
            let (ints, float, text) = row;
            let text = match kernel {
                Some((layout, _)) if key == "kernel_layout" => layout.clone(),
                _ => text,
            };
            let ints = ints.unwrap_or_default();
            let pointer = if ints.is_empty() {
                "0".to_owned()
            } else {
                let list: Vec<String> = ints.iter().map(|v| int_literal(DType::I64, i128::from(*v))).collect();
                let _ = writeln!(w, "    static const int64_t attribute_{key}[] = {{{}}};", list.join(", "));
                format!("attribute_{key}")
            };
            let float = literal(DType::F64, float);
            attributes.push(format!("{{\"{key}\", {}, {pointer}, {float}, \"{}\"}}", ints.len(), quote(&text)));
        }
        let count = attributes.len();
        if count > 0 {
            let _ = writeln!(
                w,
                "    static const byoc_attribute attributes[] = {{\n        {},\n    }};",
                attributes.join(",\n        ")
            );
        }
        let _ = writeln!(
            w,
            "    byoc_input inputs[{}];\n    byoc_output outputs[{}];\n    byoc_call call;",
            inputs.len(),
            outputs.len()
        );
        for (kind, pointers, values) in [("input", inputs, &op.inputs), ("output", outputs, &op.outputs)] {
            for (i, (pointer, &value)) in pointers.iter().zip(values).enumerate() {
                let _ = writeln!(
                    w,
                    "    {kind}s[{i}].data = {pointer};\n    {kind}s[{i}].type = \"{}\";\n    {kind}s[{i}].rank = {};\n    \
                     {kind}s[{i}].shape = {kind}_shape{i};",
                    self.ir.val(value).dtype,
                    self.ir.shape(value).len()
                );
            }
        }
        let sources: Vec<&str> = op.node.sources.iter().map(|s| s.as_str()).collect();
        let _ = writeln!(
            w,
            "    call.operator_name = \"{}\";\n    call.node = \"{}\";",
            op.name,
            quote(&sources.join(", "))
        );
        let _ = writeln!(w, "    call.inputs = inputs;\n    call.input_count = {};", inputs.len());
        let _ = writeln!(w, "    call.outputs = outputs;\n    call.output_count = {};", outputs.len());
        let _ = writeln!(
            w,
            "    call.attributes = {};\n    call.attribute_count = {count};",
            if count > 0 { "attributes" } else { "0" }
        );
        let function = self.externals.operators.get(op.name).map_or("", |f| f.name.as_str());
        let _ = writeln!(w, "    {function}(&call);");
        text
    }
}

/// Returns `text` with an underscore in place of each character that must not appear in a C string literal.
fn quote(text: &str) -> String {
    text.chars()
        .map(|c| if c == '"' || c == '\\' || c == '?' || !c.is_ascii() || c.is_control() { '_' } else { c })
        .collect()
}

/// Returns the reason that a user-supplied function cannot compute an operator of these types; `None` if it can.
pub fn unsupported(ir: &byoc_plugin_support::region::RegionIr<'_>, op: &Op<'_>) -> Option<String> {
    let unsupported_dtype =
        op.inputs.iter().chain(&op.outputs).map(|&v| ir.val(v).dtype).find(|dtype| storage_type(*dtype).is_none())?;
    Some(format!("unsupported element type {unsupported_dtype}"))
}
