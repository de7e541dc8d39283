//! Sliding-window operators: depthwise convolution and pooling, vectorized over channels.

use crate::literals::{computed, literal, loaded, storage_type, value_type};
use crate::loop_body::{LoopBody, Place, address};
use crate::lowering::{Lowering, PackedConstant, Phase};
use crate::quantized;
use crate::schedule::window::{Depthwise, Pooling};
use crate::text::{decode, share_loop};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId, RegionIr};
use byoc_plugin_support::view::View;
use std::fmt::Write;

/// Reduction of a pooling window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pool {
    Max,
    /// Mean. If the flag is true, the divisor counts padding elements.
    Average(bool),
}

/// Range that a window covers along one axis.
enum Range {
    /// Window of `size` elements every `stride` elements, with dilation and padding (before, after).
    Window { size: i64, stride: i64, dilation: i64, pad: (i64, i64) },
    /// Entire axis, divided into the given number of ranges as evenly as possible.
    Adaptive(i64),
}

/// Returns the scale and zero point of the data of a `qnn.avg_pool2d`, then those of its result.
fn pool_scales(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<(f32, i64, f32, i64), String> {
    let scale = |i: usize| quantized::scale(ir, op.inputs[i]);
    let zero = |i: usize| quantized::zero_point(ir, op.inputs[i]);
    let parameters = || Some((scale(1)?, zero(2)?, scale(3)?, zero(4)?));
    parameters().ok_or_else(|| {
        format!("{}: expected constant per-tensor scales and zero points, found per-channel or runtime values", op.name)
    })
}

impl Lowering<'_, '_> {
    /// Emits a depthwise convolution. The index space is `[n, pixels.., channel]`.
    pub fn depthwise(
        &mut self,
        body: LoopBody,
        a: Place,
        a_view: View,
        taps: Vec<(i64, i64, i64)>,
        (b, b_offset, b_channel): (Place, i64, i64),
        comment: Vec<String>,
    ) -> Result<(), String> {
        let mut taps = taps;
        while taps.len() < 2 {
            taps.insert(0, (1, 0, 0));
        }
        let [(n0, s0, w0), (n1, s1, w1)] = taps[..] else {
            return Err(format!("expected at most 2 kernel axes, found {}", taps.len()));
        };
        let rank = body.domain.len();
        let Depthwise { channels, padded: padded_channels, len, rows, pixels, tasks } =
            Depthwise::new(&body.domain, n0 * n1);
        let name = self.phase_name();
        let dims = format!("{n0}, {w0}, {n1}, {w1}, {channels}, {b_channel}");
        let b = match b {
            Place::Constant(i) => {
                let index = self.packed.len();
                let code =
                    format!("    byoc_pack_channels(p{index}, (const float *)constants[{i}] + {b_offset}, {dims});\n");
                let comment = format!("constant {i}, taps by channels");
                self.packed.push(PackedConstant { floats: n0 * n1 * padded_channels, comment, code });
                Place::Packed(index)
            }
            place => {
                let destination =
                    Place::Work(self.buffer(n0 * n1 * padded_channels, DType::F32, "weights, taps by channels".into()));
                let mut code = format!("static void {name}_pack(void *arg, int64_t task) {{\n");
                let _ = writeln!(code, "    const {}_args *args = arg;\n    (void)task;", self.symbol);
                code.push_str(&self.pointer(place, DType::F32, "const "));
                code.push_str(&self.pointer(destination, DType::F32, ""));
                let _ = writeln!(code, "    byoc_pack_channels({destination}, {place} + {b_offset}, {dims});\n}}\n");
                let mut phase = Phase { comment: vec!["weights, taps by channels".into()], code, ..Phase::default() };
                phase.call = format!("    byoc_run(pool, 1, {name}_pack, &args);\n");
                phase.touch(place);
                phase.touch(destination);
                self.phases.push(phase);
                destination
            }
        };
        let mut vars: Vec<String> = (0..rank - 1).map(|d| format!("r{d}")).collect();
        vars.push("c".into());
        let outer_vars = &vars[..rank - 2];
        let params: String = outer_vars.iter().map(|v| format!("int64_t {v}, ")).collect();
        let args: String = outer_vars.iter().map(|v| format!("{v}, ")).collect();
        let unused_vars: String = outer_vars.iter().map(|v| format!("(void){v}; ")).collect();
        let last_var = &vars[rank - 2];

        let mut code = String::new();
        let w = &mut code;
        let _ = writeln!(w, "enum {{");
        let _ = writeln!(w, "    {name}_pixels = BYOC_PICK({pixels}, {}), /* pixels of a tile */", pixels.min(5));
        let _ = writeln!(w, "    {name}_nr = 2 * BYOC_VL, /* channels of a tile */");
        let _ = writeln!(
            w,
            "    {name}_tail = {padded_channels} % {name}_nr, /* channels of the last tile, 0 if it is full */"
        );
        let _ = writeln!(
            w,
            "    {name}_row_tail = {len} % {name}_pixels /* pixels of the last tile of a row, 0 if it is full */"
        );
        let _ = writeln!(w, "}};\n");
        let _ = writeln!(
            w,
            "static BYOC_INLINE void {name}_finish(const {0}_args *args, const float *restrict t, {params}int64_t row, int64_t rows, int64_t column, int64_t columns) {{",
            self.symbol
        );
        w.push_str(&self.pointers(&body));
        let _ = writeln!(w, "    {unused_vars}(void)row; (void)column; (void)args;");
        let _ = writeln!(w, "    for (int64_t i = 0; i < rows; ++i) {{");
        let _ = writeln!(w, "        const int64_t {last_var} = row + i;\n        (void){last_var};");
        let _ = writeln!(w, "        BYOC_IVDEP\n        for (int64_t j = 0; j < columns; ++j) {{");
        let _ = writeln!(w, "            const int64_t c = column + j;\n            (void)c;");
        let _ = writeln!(w, "            const float acc = t[i * {name}_nr + j];");
        w.push_str(&body.statements(&vars, 3));
        let _ = writeln!(w, "        }}\n    }}\n}}\n");

        let pixel_stride = a_view.strides[rank - 2];
        w.push_str(&self.head(&name));
        w.push_str(&self.pointer(a, DType::F32, "const "));
        w.push_str(&self.pointer(b, DType::F32, "const "));
        let _ = writeln!(w, "    float BYOC_ALIGNED t[{name}_pixels * {name}_nr];");
        w.push_str(self.unused_task(tasks));
        let _ = writeln!(w, "    {}", share_loop("r", &rows.to_string(), "task", tasks));
        w.push_str(&decode(outer_vars, &body.domain[..rank - 2], "r", 2));
        let _ = writeln!(w, "        for (int64_t column = 0; column < {padded_channels}; column += {name}_nr) {{");
        let _ =
            writeln!(w, "            const int full = {name}_tail == 0 || column + {name}_nr <= {padded_channels};");
        let _ = writeln!(w, "            for (int64_t row = 0; row < {len}; row += {name}_pixels) {{");
        let mut index = vars.clone();
        index[rank - 2] = "row".into();
        index[rank - 1] = "column".into();
        let _ = writeln!(w, "                const float *x = {a} + {};", address(&a_view, &index));
        let _ = writeln!(w, "                const int whole = {name}_row_tail == 0 || row + {name}_pixels <= {len};");
        let (pixel_count, nr, row_tail, tail) =
            (format!("{name}_pixels"), format!("{name}_nr"), format!("{name}_row_tail"), format!("{name}_tail"));
        let pad = "                    ";
        let mut call = |condition: &str, rows: &str, width: &str| {
            let columns = if channels % 16 == 0 {
                width.to_owned()
            } else {
                format!("({channels} - column < {width} ? {channels} - column : {width})")
            };
            let _ = writeln!(w, "                {condition} {{");
            let _ = writeln!(
                w,
                "{pad}byoc_depthwise({rows}, ({width}) / BYOC_VL, {name}_nr, {pixel_stride}, {n0}, {s0}, {n1}, {s1}, {padded_channels}, x, {b} + column, t);"
            );
            let _ = writeln!(w, "{pad}{name}_finish(args, t, {args}row, {rows}, column, {columns});");
        };
        call("if (full && whole)", &pixel_count, &nr);
        call("} else if (full)", &row_tail, &nr);
        call("} else if (whole)", &pixel_count, &tail);
        call("} else", &row_tail, &tail);
        let _ = writeln!(w, "                }}\n            }}\n        }}\n    }}\n}}\n");

        let mut phase = Phase { comment, code, ..Phase::default() };
        phase.call = self.call(&name, tasks);
        phase.touch(a);
        phase.touch(b);
        phase.touch_all(&body);
        self.phases.push(phase);
        Ok(())
    }

    /// Lowers max, average, global and adaptive pooling.
    pub fn pool(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let shape = ir.shape(op.inputs[0]).to_vec();
        let rank = shape.len();
        let axes = rank - 2;
        let c = if op.attrs().text("layout").ends_with('C') { rank - 1 } else { 1 };
        let spatial: Vec<usize> = if c == 1 { (2..rank).collect() } else { (1..rank - 1).collect() };
        let out = ir.shape(op.outputs[0]).to_vec();
        let pool = if op.name.contains("max") {
            Pool::Max
        } else {
            Pool::Average(op.attrs().flag("count_include_pad", false))
        };
        let is_whole_window = op.name.contains("global") || op.name.contains("adaptive");
        let (sizes, strides) = (op.attrs().per_axis("pool_size", axes, 1), op.attrs().per_axis("strides", axes, 1));
        let (dilation, pads) = (op.attrs().per_axis("dilation", axes, 1), op.attrs().padding(axes));
        let ranges: Vec<Range> = (0..axes)
            .map(|i| {
                if is_whole_window {
                    Range::Adaptive(out[spatial[i]])
                } else {
                    Range::Window { size: sizes[i], stride: strides[i], dilation: dilation[i], pad: pads[i] }
                }
            })
            .collect();
        let data = self.channels_last(op.inputs[0], c, &[], false, &comment[0])?;
        let mut order = vec![0];
        order.extend(&spatial);
        order.push(c);
        let (body, _) = self.loop_body(group_index, Some(&order))?;
        let body = body.permute(&order);
        let x = data.view.permute(&order);
        let channels = shape[c];
        let taps = sizes.iter().fold(out.iter().product(), |n: i64, &size| n.saturating_mul(size));
        let Pooling { block, blocks, items, tasks } =
            Pooling::new(channels, &body.domain[..axes], shape.iter().product::<i64>().max(taps));
        let tasks = self.tasks(tasks);
        let name = self.phase_name();
        let mut vars: Vec<String> = (0..=axes).map(|d| format!("r{d}")).collect();
        vars.push("c".into());

        let mut code = String::new();
        let w = &mut code;
        w.push_str(&self.head(&name));
        let mut pointers = self.pointers(&body);
        let data_pointer = self.pointer(data.place, ir.val(op.inputs[0]).dtype, "const ");
        if !pointers.contains(&format!("{} =", data.place)) {
            pointers.push_str(&data_pointer);
        }
        w.push_str(&pointers);
        let dtype = ir.val(op.inputs[0]).dtype;
        let unsupported_dtype = || format!("{}: unsupported element type {dtype}", op.name);
        let ty = value_type(dtype).ok_or_else(unsupported_dtype)?;
        let stored_type = storage_type(dtype).ok_or_else(unsupported_dtype)?;
        let accumulator_type = computed(dtype);
        // Scale and zero point of the data, then those of the result.
        let scales = if op.name == "qnn.avg_pool2d" { Some(pool_scales(ir, op)?) } else { None };
        if accumulator_type != DType::F32 && pool != Pool::Max && scales.is_none() {
            return Err(format!("{}: expected float32, found {dtype}", op.name));
        }
        let sum = if scales.is_some() { "int32_t" } else { ty };
        let _ = writeln!(w, "    {sum} t[{block}];");
        w.push_str(self.unused_task(tasks));
        let _ = writeln!(w, "    {}", share_loop("item", &items.to_string(), "task", tasks));
        let _ = writeln!(
            w,
            "        const int64_t first = {};",
            if blocks == 1 { "0".to_owned() } else { format!("item % {blocks} * {block}") }
        );
        let _ = writeln!(w, "        const int64_t n = {channels} - first < {block} ? {channels} - first : {block};");
        w.push_str(&decode(
            &vars[..axes],
            &body.domain[..axes],
            &(if blocks == 1 { "item".to_owned() } else { format!("(item / {blocks})") }),
            2,
        ));
        let last_var = &vars[axes];
        let _ =
            writeln!(w, "        for (int64_t {last_var} = 0; {last_var} < {}; ++{last_var}) {{", body.domain[axes]);
        for (i, range) in ranges.iter().enumerate() {
            let size = shape[spatial[i]];
            let v = &vars[1 + i];
            match range {
                Range::Adaptive(parts) => {
                    let _ = writeln!(
                        w,
                        "            const int64_t from{i} = {v} * {size} / {parts}, to{i} = (({v} + 1) * {size} + {parts} - 1) / {parts};"
                    );
                }
                Range::Window { size: kernel, stride, dilation, pad } => {
                    let _ = writeln!(w, "            const int64_t at{i} = {v} * {stride} - {};", pad.0);
                    let skip = if *dilation == 1 {
                        "0".to_owned()
                    } else {
                        format!("(-at{i} + {dilation} - 1) / {dilation} * {dilation} + at{i}")
                    };
                    let _ = writeln!(w, "            const int64_t from{i} = at{i} < 0 ? {skip} : at{i};");
                    let end = (kernel - 1) * dilation + 1;
                    let _ = writeln!(
                        w,
                        "            const int64_t to{i} = at{i} + {end} < {size} ? at{i} + {end} : {size};"
                    );
                }
            }
        }
        if let Pool::Average(include) = pool {
            let counts: Vec<String> = ranges
                .iter()
                .enumerate()
                .map(|(i, range)| match range {
                    Range::Window { size, pad, dilation, .. } if include => {
                        // A window that extends past the padding counts elements only up to the end of the padding.
                        let (limit, end) = (shape[spatial[i]] + pad.1, (size - 1) * dilation + 1);
                        format!("(at{i} + {end} <= {limit} ? {size} : ({limit} - at{i} + {dilation} - 1) / {dilation})")
                    }
                    Range::Window { dilation, .. } if *dilation != 1 => {
                        format!("((to{i} - from{i} + {dilation} - 1) / {dilation})")
                    }
                    _ => format!("(to{i} - from{i})"),
                })
                .collect();
            // With `ceil_mode`, a window may be entirely in the padding; a count of at least 1 makes its mean 0.
            let _ = writeln!(w, "            const float count = fmaxf((float)({}), 1.0f);", counts.join(" * "));
        }
        let start = match (pool, accumulator_type) {
            (Pool::Max, DType::F32) => "-INFINITY",
            (Pool::Max, DType::I8) => "INT8_MIN",
            (Pool::Max, DType::I32) => "INT32_MIN",
            (Pool::Max, DType::U8) => "0",
            (Pool::Max, _) => return Err(format!("{}: unsupported element type {dtype}", op.name)),
            (Pool::Average(_), DType::F32) => "0.0f",
            (Pool::Average(_), _) => "0",
        };
        let _ = writeln!(w, "            for (int64_t j = 0; j < n; ++j)\n                t[j] = {start};");
        let mut depth = 3;
        for (i, range) in ranges.iter().enumerate() {
            let step = match range {
                Range::Window { dilation, .. } => *dilation,
                Range::Adaptive(_) => 1,
            };
            let pad = "    ".repeat(depth);
            let _ = writeln!(w, "{pad}for (int64_t y{i} = from{i}; y{i} < to{i}; y{i} += {step}) {{");
            depth += 1;
        }
        let pad = "    ".repeat(depth);
        let mut index = vec![vars[0].clone()];
        index.extend((0..axes).map(|i| format!("y{i}")));
        index.push("first".into());
        let _ = writeln!(w, "{pad}const {stored_type} *x = {} + {};", data.place, address(&x, &index));
        let step = x.strides[rank - 1];
        let element = if step == 1 || channels == 1 { "x[j]".to_owned() } else { format!("x[j * {step}]") };
        let element = loaded(dtype, &element);
        let _ = writeln!(w, "{pad}for (int64_t j = 0; j < n; ++j)");
        if pool == Pool::Max && accumulator_type != DType::F32 {
            let _ = writeln!(w, "{pad}    t[j] = t[j] > {element} ? t[j] : {element};");
        } else if pool == Pool::Max {
            let _ = writeln!(w, "{pad}    t[j] = t[j] != t[j] || t[j] > {element} ? t[j] : {element};");
        } else if let Some((_, zero, ..)) = scales {
            let _ = writeln!(w, "{pad}    t[j] += (int32_t){element} - ({zero});");
        } else {
            let _ = writeln!(w, "{pad}    t[j] += {element};");
        }
        for level in (3..depth).rev() {
            let _ = writeln!(w, "{}}}", "    ".repeat(level));
        }
        let _ = writeln!(w, "            BYOC_IVDEP\n            for (int64_t j = 0; j < n; ++j) {{");
        let _ = writeln!(w, "                const int64_t c = first + j;\n                (void)c;");
        let result = match scales {
            Some((in_scale, _, out_scale, zero)) => {
                // The quotient is computed in float64, so that the mean is rounded to float32 only once.
                let mean =
                    format!("(float)((double)t[j] / (double)count) * {}", literal(DType::F32, f64::from(in_scale)));
                quantized::quantized(dtype, &mean, out_scale, zero)
            }
            None if pool == Pool::Max => "t[j]".to_owned(),
            None => "t[j] / count".to_owned(),
        };
        let _ = writeln!(w, "                const {ty} acc = {result};");
        w.push_str(&body.statements(&vars, 4));
        let _ = writeln!(w, "            }}\n        }}\n    }}\n}}\n");
        let mut phase = Phase { comment, code, ..Phase::default() };
        phase.call = self.call(&name, tasks);
        phase.touch(data.place);
        phase.touch_all(&body);
        self.phases.push(phase);
        Ok(())
    }
}
