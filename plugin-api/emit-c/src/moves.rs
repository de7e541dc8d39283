//! Operators that read elements at computed indices: `take`, `gather`, `nn.pad`, and resizing.

use crate::index_space::memory_order;
use crate::literals::{computed, literal, loaded, value_type};
use crate::loop_body::{Load, LoopBody, Storage, address};
use crate::lowering::{Lowering, axis};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId};
use byoc_plugin_support::resize::Resize;
use byoc_plugin_support::view::View;
use std::fmt::Write;

impl Lowering<'_, '_> {
    /// Calls `points` with additional pointer declarations for `tensors`.
    fn gather_points(
        &mut self,
        body: LoopBody,
        comment: Vec<String>,
        tensors: &[(&Storage, DType)],
        first_element: impl Fn(&[String]) -> String,
    ) {
        // Loading the first element of each tensor into an unused variable adds the tensor's pointer declaration; the C
        // compiler removes the load.
        let mut body = body;
        for (i, (storage, dtype)) in tensors.iter().enumerate() {
            let mut view = View::dense(&body.domain);
            view.strides.fill(0);
            body.loads.push(Load { name: format!("unused{i}"), place: storage.place, view, dtype: *dtype });
        }
        let unused_casts: String =
            (0..tensors.len()).map(|i| format!("(void)unused{i};")).collect::<Vec<_>>().join(" ");
        body.lines.push(unused_casts);
        self.points(&body, comment, first_element);
    }

    /// Lowers `take` and `gather`.
    pub fn gather(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let data = self.resolve(op.inputs[0])?;
        let indices = self.resolve(op.inputs[1])?;
        let (data_type, index_type) = (ir.val(op.inputs[0]).dtype, ir.val(op.inputs[1]).dtype);
        let rank = data.view.shape.len();
        let order: Vec<usize> = (0..ir.shape(op.outputs[0]).len()).collect();
        let (body, _) = self.loop_body(group_index, Some(&order))?;
        let ty = value_type(data_type).ok_or_else(|| format!("{}: unsupported element type {data_type}", op.name))?;
        let axis = op.attrs().ints("axis").map(|_| axis(op, 0, rank)).transpose()?;
        let is_take = op.name == "take";
        let flat_size: i64 = data.view.shape.iter().product();
        let flat_view = if is_take && axis.is_none() { data.view.reshape(&[flat_size]) } else { None };
        let data = match (is_take, axis, flat_view) {
            (true, None, Some(view)) => Storage::new(data.place, view),
            (true, None, None) => {
                let dense = self.dense_copy(&data, data_type, &comment[0])?;
                Storage::new(dense.place, View::dense(&[flat_size]))
            }
            _ => data,
        };
        let axis = axis.unwrap_or(0);
        let size = data.view.shape[axis];
        let index_rank = indices.view.shape.len();
        let wraps = op.attrs().text("mode") == "wrap";
        let first_element = |vars: &[String]| {
            let index_vars = if is_take { vars[axis..axis + index_rank].to_vec() } else { vars.to_vec() };
            let mut index = if is_take {
                let mut index = vars[..axis].to_vec();
                index.push("index".into());
                index.extend_from_slice(&vars[axis + index_rank..]);
                index
            } else {
                vars.to_vec()
            };
            index[axis] = "index".into();
            let mut text = String::new();
            let _ =
                writeln!(text, "int64_t index = (int64_t){}[{}];", indices.place, address(&indices.view, &index_vars));
            if !is_take {
                let _ = writeln!(text, "index = index < 0 ? index + {size} : index;");
            } else if wraps {
                let _ = writeln!(text, "index = (index % {size} + {size}) % {size};");
            }
            // Out-of-range indices are clamped.
            let _ = writeln!(text, "index = index < 0 ? 0 : index >= {size} ? {size} - 1 : index;\n(void)index;");
            let element = format!("{}[{}]", data.place, address(&data.view, &index));
            let _ = writeln!(text, "const {ty} acc = {};", loaded(data_type, &element));
            text
        };
        self.gather_points(body, comment, &[(&data, data_type), (&indices, index_type)], first_element);
        Ok(())
    }

    /// Lowers `nn.pad`.
    pub fn pad(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let data = self.resolve(op.inputs[0])?;
        let dtype = ir.val(op.inputs[0]).dtype;
        let shape = ir.shape(op.inputs[0]).to_vec();
        let widths = pad_widths(op);
        let order = memory_order(&data.view);
        let (body, _) = self.loop_body(group_index, Some(&order))?;
        let body = body.permute(&order);
        let view = data.view.permute(&order);
        let value = match op.inputs.get(1) {
            Some(&v) => Some((self.resolve(v)?, ir.val(v).dtype)),
            None => None,
        };
        let mode = op.attrs().text("pad_mode").to_owned();
        let ty = value_type(dtype).ok_or_else(|| format!("{}: unsupported element type {dtype}", op.name))?;
        let first_element = |vars: &[String]| {
            let mut text = String::new();
            let (mut conditions, mut index) = (Vec::new(), Vec::new());
            for (k, &d) in order.iter().enumerate() {
                let (pad_before, pad_after) = widths.get(d).copied().unwrap_or((0, 0));
                let size = shape[d];
                if pad_before == 0 && pad_after == 0 {
                    index.push(vars[k].clone());
                    continue;
                }
                let _ = writeln!(text, "int64_t p{k} = {} - {pad_before};\n(void)p{k};", vars[k]);
                match mode.as_str() {
                    "edge" => {
                        let _ = writeln!(text, "p{k} = p{k} < 0 ? 0 : p{k} >= {size} ? {size} - 1 : p{k};");
                    }
                    "reflect" => {
                        let _ = writeln!(
                            text,
                            "p{k} = p{k} < 0 ? -p{k} : p{k} >= {size} ? 2 * ({size} - 1) - p{k} : p{k};"
                        );
                    }
                    _ => conditions.push(format!("p{k} >= 0 && p{k} < {size}")),
                }
                index.push(format!("p{k}"));
            }
            let element = loaded(dtype, &format!("{}[{}]", data.place, address(&view, &index)));
            if conditions.is_empty() {
                let _ = writeln!(text, "const {ty} acc = {element};");
            } else {
                let pad = match &value {
                    Some((storage, dtype)) => loaded(*dtype, &format!("{}[{}]", storage.place, storage.view.offset)),
                    None => literal(computed(dtype), op.attrs().float("pad_value", 0.0)),
                };
                let _ = writeln!(text, "const {ty} acc = {} ? {element} : {pad};", conditions.join(" && "));
            }
            text
        };
        let mut tensors = vec![(&data, dtype)];
        if let Some((storage, dtype)) = &value {
            tensors.push((storage, *dtype));
        }
        self.gather_points(body, comment, &tensors, first_element);
        Ok(())
    }

    /// Lowers `image.resize2d` and `nn.upsampling` with nearest or linear interpolation.
    pub fn resize(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let data = self.resolve(op.inputs[0])?;
        let dtype = ir.val(op.inputs[0]).dtype;
        let rank = data.view.shape.len();
        let is_channels_last = op.attrs().text("layout").ends_with('C');
        let (c, y, x) = if is_channels_last { (rank - 1, 1, 2) } else { (1, 2, 3) };
        let order = [0, y, x, c];
        let (body, _) = self.loop_body(group_index, Some(&order))?;
        let body = body.permute(&order);
        let view = data.view.permute(&order);
        let shape = ir.shape(op.inputs[0]).to_vec();
        let out = ir.shape(op.outputs[0]).to_vec();
        let resize = Resize::new(op)?;
        let is_nearest = resize.is_nearest;
        let first_element = |vars: &[String]| {
            let mut text = String::new();
            for (k, d, name) in [(1, y, "y"), (2, x, "x")] {
                let size = shape[d];
                let clamp = |v: &str| format!("({v} < 0 ? 0 : {v} >= {size} ? {size} - 1 : {v})");
                let coordinate = resize.coordinate(&vars[k], size, out[d]);
                let numerator = format!("p{name}");
                let _ = writeln!(text, "const int64_t {numerator} = {};\n(void){numerator};", coordinate.numerator);
                // The index along a dimension of size 1 is unused.
                let index = |variable: String, value: String| {
                    format!("const int64_t {variable} = {value};\n(void){variable};\n")
                };
                if is_nearest {
                    text.push_str(&index(format!("n{name}"), resize.nearest(&numerator, coordinate.denominator)));
                    text.push_str(&index(format!("{name}_low"), clamp(&format!("n{name}"))));
                } else {
                    let floor = format!("n{name}");
                    text.push_str(&index(floor.clone(), coordinate.floor(&numerator)));
                    let _ = writeln!(text, "const float d{name} = {};", coordinate.fraction(&numerator, &floor));
                    text.push_str(&index(format!("m{name}"), format!("{floor} + 1")));
                    text.push_str(&index(format!("{name}_low"), clamp(&floor)));
                    text.push_str(&index(format!("{name}_high"), clamp(&format!("m{name}"))));
                }
            }
            let element = |y: &str, x: &str| {
                let element = [vars[0].clone(), y.to_owned(), x.to_owned(), vars[3].clone()];
                loaded(dtype, &format!("{}[{}]", data.place, address(&view, &element)))
            };
            if is_nearest {
                let _ = writeln!(text, "const float acc = {};", element("y_low", "x_low"));
            } else {
                let _ = writeln!(
                    text,
                    "const float above = {} * (1.0f - dx) + {} * dx;",
                    element("y_low", "x_low"),
                    element("y_low", "x_high")
                );
                let _ = writeln!(
                    text,
                    "const float below = {} * (1.0f - dx) + {} * dx;",
                    element("y_high", "x_low"),
                    element("y_high", "x_high")
                );
                let _ = writeln!(text, "const float acc = above * (1.0f - dy) + below * dy;");
            }
            text
        };
        self.gather_points(body, comment, &[(&data, dtype)], first_element);
        Ok(())
    }
}

/// Reads the attribute `pad_width`: the number of elements added before and after each axis.
fn pad_widths(op: &Op<'_>) -> Vec<(i64, i64)> {
    let list = op.node.attr("pad_width").and_then(|v| v.as_list()).unwrap_or_default();
    let pairs: Option<Vec<(i64, i64)>> =
        list.iter().map(|pair| pair.as_ints().filter(|p| p.len() == 2).map(|p| (p[0], p[1]))).collect();
    pairs.unwrap_or_else(|| {
        let flat_widths: Vec<i64> = list.iter().filter_map(|v| v.as_int()).collect();
        flat_widths.chunks(2).map(|p| (p[0], p.get(1).copied().unwrap_or(0))).collect()
    })
}
