//! Contractions in programs: operands are read in place, and taps in the padding are skipped.
//!
//! The sums match [`crate::schedule::contraction`], but no operand is copied: a convolution's data has no zero border,
//! and where a window reaches into the padding, the loops over its taps start later or end earlier. Interior rows are
//! computed in tiles, border rows one at a time. A constant operand is laid out in panels at code generation; a
//! non-constant operand is read with its strides.

use crate::literals::{c_type, storage_type};
use crate::loop_body::{LoopBody, Place, address};
use crate::lowering::{ConstantArray, Lowering, Phase, weight_bytes};
use crate::schedule::contraction::{Contraction, TapGuard, Types, best_tile};
use crate::schedule::round_up;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::{View, count};
use std::fmt::Write;

/// Maximum size in bytes of a panel of a non-constant operand; the panel is on the stack.
const MAX_PANEL: i64 = 16_384;

/// Operand `b` of a contraction in a program.
struct Operand {
    place: Place,
    /// Offset of the first element, per group, as a C expression.
    offset: String,
    /// True if the columns are stored in panels.
    panels: bool,
    /// Strides of the two tap axes and of the channels; for panels, in units of the panel width.
    strides: [i64; 3],
    /// Stride from one column to the next.
    column: i64,
}

/// Sum over the two tap axes and the channels, outermost first.
pub(crate) struct Sums {
    /// Number of terms and stride in `a` for each level.
    pub levels: [(i64, i64); 3],
    /// Guards of the two tap axes.
    pub guards: [Option<TapGuard>; 2],
}

impl Sums {
    /// Extracts the summation levels of a contraction.
    ///
    /// # Errors
    /// If there are more than two kernel axes.
    pub fn new(c: &Contraction) -> Result<Sums, String> {
        let mut taps = c.taps.clone();
        let mut guards = c.guards.clone();
        guards.resize(taps.len(), None);
        while taps.len() < 2 {
            taps.insert(0, (1, 0, 0));
            guards.insert(0, None);
        }
        let ([y, x], [gy, gx]) = (&taps[..], &guards[..]) else {
            return Err(format!("expected at most 2 kernel axes, found {}", taps.len()));
        };
        Ok(Sums { levels: [(y.0, y.1), (x.0, x.1), (c.k.0, c.k.1)], guards: [*gy, *gx] })
    }
}

impl Lowering<'_, '_> {
    /// Emits the phase of a contraction in a program.
    pub fn direct_contraction(&mut self, c: &Contraction, comment: Vec<String>) -> Result<(), String> {
        let machine = self.machine().ok_or("direct contraction: expected a program, found a region")?;
        let Sums { levels, guards } = Sums::new(c)?;
        let [groups, rows] = c.parts;
        // Guarded rows keep their dimensions, because the guards need their indices.
        let has_guards = guards.iter().any(Option::is_some);
        let mut parts = vec![groups];
        parts.extend(if has_guards { vec![1; rows] } else { vec![rows] });
        parts.push(1);
        let mut b_strides = vec![0; c.body.domain.len()];
        let is_constant = matches!(c.b, Place::Constant(_));
        let mut packed_groups = 1;
        for d in (0..groups).rev().filter(|&d| c.b_groups[d] != 0) {
            b_strides[d] = if is_constant { packed_groups } else { c.b_groups[d] };
            packed_groups *= c.body.domain[d];
        }
        let (body, strides, lengths) = c.body.collapse(&[&c.a_view.strides, &b_strides], &parts);
        let a_view = View { shape: body.domain.clone(), strides: strides[0].clone(), offset: c.a_view.offset };
        let b_view = View { shape: body.domain.clone(), strides: strides[1].clone(), offset: 0 };
        let (groups, columns) = (lengths[0], c.columns());
        let rows: usize = lengths[1..lengths.len() - 1].iter().sum();
        let mut vars: Vec<String> = (0..groups).map(|d| format!("g{d}")).collect();
        vars.extend((0..rows).map(|d| format!("r{d}")));
        vars.push("c".into());
        let last_row_dim = groups + rows - 1;
        let len = body.domain[last_row_dim];

        // Range of the last row dimension in which no tap is in the padding.
        let bounds = guards
            .iter()
            .zip(levels)
            .find_map(|(guard, (taps, _))| guard.filter(|g| g.row == rows - 1).map(|g| g.inside(taps, len)));
        let (low, high) = bounds.unwrap_or((0, len));
        // Vector code reads whole panels, which are padded with zeros; plain code needs no padding.
        let is_float = c.types == Types::FLOAT;
        let panel_bytes = levels.iter().map(|l| l.0).product::<i64>() * 4 * machine.lanes;
        let is_product = levels[0].0 == 1 && levels[1].0 == 1;
        let has_vector_code = machine.vectors && is_float && (is_constant || (is_product && panel_bytes <= MAX_PANEL));
        let (mr, vectors) =
            best_tile((high - low).max(1), round_up(columns, machine.lanes) / machine.lanes, machine.registers);
        let depth_of = |levels: &[(i64, i64); 3]| levels.iter().map(|l| l.0).product::<i64>();
        let padded_columns = if has_vector_code { round_up(columns, machine.lanes) } else { columns };
        let mut nr = (vectors * machine.lanes).min(padded_columns);
        while has_vector_code && !is_constant && nr > machine.lanes && depth_of(&levels) * 4 * nr > MAX_PANEL {
            nr -= machine.lanes;
        }
        let b = self.operand(c, nr, padded_columns, packed_groups, &b_view, &vars)?;
        let has_local_panel = has_vector_code && !b.panels;

        let (a_type, b_type) = (storage_type(c.types.a).unwrap_or("float"), storage_type(c.types.b).unwrap_or("float"));
        let sum_type = c_type(c.types.sum).unwrap_or("float");
        let kernel = if has_vector_code { "byoc_vector_tile".to_owned() } else { tile_name(c.types.a, c.types.b) };
        if !has_vector_code {
            self.kernels.insert((c.types.a, c.types.b));
        }
        let name = self.phase_name();
        let mut code = self.head(&name);
        let w = &mut code;
        w.push_str(&self.pointers_of(&body, &[(c.a, c.types.a), (b.place, c.types.b)]));
        let _ = writeln!(w, "    {sum_type} t[{}];", mr * nr);
        if has_local_panel {
            let _ = writeln!(w, "    float panel[{}];", depth_of(&levels) * nr);
        }
        let mut depth = 1;
        let open_loop = |w: &mut String, depth: &mut usize, var: &str, n: i64| {
            let pad = "    ".repeat(*depth);
            if n == 1 {
                let _ = writeln!(w, "{pad}const int64_t {var} = 0;\n{pad}(void){var};");
            } else {
                let _ = writeln!(w, "{pad}for (int64_t {var} = 0; {var} < {n}; ++{var}) {{");
                *depth += 1;
            }
        };
        for (var, &n) in vars.iter().zip(&body.domain).take(groups) {
            open_loop(w, &mut depth, var, n);
        }
        let pad = "    ".repeat(depth);
        let is_whole_panel = nr >= padded_columns;
        if is_whole_panel {
            let _ = writeln!(w, "{pad}const int64_t column = 0;\n{pad}(void)column;");
        } else {
            let _ = writeln!(w, "{pad}for (int64_t column = 0; column < {padded_columns}; column += {nr}) {{");
            depth += 1;
        }
        let pad = "    ".repeat(depth);
        let tail = padded_columns % nr;
        let width =
            if tail == 0 { nr.to_string() } else { format!("column + {nr} <= {padded_columns} ? {nr} : {tail}") };
        let _ = writeln!(w, "{pad}const int width = {width};");
        let column_count = if padded_columns == columns {
            "width".to_owned()
        } else {
            let _ =
                writeln!(w, "{pad}const int real = column + width <= {columns} ? width : (int)({columns} - column);");
            "real".to_owned()
        };
        if has_local_panel {
            let offset = b.offset.trim_start_matches(" + ");
            let _ = writeln!(w, "{pad}for (int64_t k = 0; k < {}; ++k)", levels[2].0);
            let _ = writeln!(w, "{pad}    for (int64_t j = 0; j < width; ++j)");
            let _ = writeln!(
                w,
                "{pad}        panel[k * width + j] = j < {column_count} ? {}[{offset} + k * {} + (column + j) * {}] \
                 : 0.0f;",
                b.place, b.strides[2], b.column
            );
        }
        for (var, &n) in vars.iter().zip(&body.domain).take(last_row_dim).skip(groups) {
            open_loop(w, &mut depth, var, n);
        }
        // Tap ranges of the axes whose row index is already fixed.
        let pad = "    ".repeat(depth);
        for (i, guard) in guards.iter().enumerate() {
            if let Some(guard) = guard.filter(|g| g.row != rows - 1) {
                w.push_str(&guard.text(i, &vars[groups + guard.row], levels[i].0, &pad));
            }
        }
        if mr == 1 {
            let _ = writeln!(w, "{pad}const int rows = 1;");
            let _ = writeln!(w, "{pad}for (int64_t row = 0; row < {len}; ++row) {{");
        } else {
            let _ = writeln!(w, "{pad}int rows = 1;");
            let _ = writeln!(w, "{pad}for (int64_t row = 0; row < {len}; row += rows) {{");
            let border_case =
                if (low, high) == (0, len) { String::new() } else { format!("row < {low} || row >= {high} ? 1 : ") };
            let _ = writeln!(w, "{pad}    rows = {border_case}row + {mr} <= {high} ? {mr} : (int)({high} - row);");
        }
        depth += 1;
        let pad = "    ".repeat(depth);
        for (i, guard) in guards.iter().enumerate() {
            if let Some(guard) = guard.filter(|g| g.row == rows - 1) {
                w.push_str(&guard.text(i, "row", levels[i].0, &pad));
            }
        }
        let mut index = vars.clone();
        index[last_row_dim] = "row".into();
        let mut a_at = address(&a_view, &index);
        let mut b_at = b.offset.clone();
        if has_local_panel {
            b_at = "0".to_owned();
        } else if b.panels {
            let depth: i64 = levels.iter().map(|l| l.0).product();
            b_at = format!("{b_at} + column * {depth}");
        } else {
            b_at = format!("{b_at} + column * {}", b.column);
        }
        let strides = if has_local_panel { [1, 1, 1] } else { b.strides };
        let times =
            |stride: i64| if b.panels || has_local_panel { format!("{stride} * width") } else { stride.to_string() };
        let mut arguments = String::new();
        for (i, (n, stride)) in levels.into_iter().enumerate() {
            let guard = guards.get(i).copied().flatten();
            let n = if guard.is_some() { format!("to{i} - from{i}") } else { n.to_string() };
            if guard.is_some() {
                let _ = write!(a_at, " + from{i} * {stride}");
                let _ = write!(b_at, " + from{i} * {}", times(strides[i]));
            }
            let _ = write!(arguments, "{n}, {stride}, {}, ", times(strides[i]));
        }
        let zero = if c.types.sum == DType::F32 { String::new() } else { format!("{}, ", c.a_zero) };
        let _ = writeln!(w, "{pad}const {a_type} *a = {} + ({a_at});", c.a);
        let b_source = if has_local_panel { "panel".to_owned() } else { b.place.to_string() };
        let _ = writeln!(w, "{pad}const {b_type} *b = {b_source} + ({});", b_at.trim_start_matches(" + "));
        let row_stride = a_view.strides[last_row_dim];
        let is_contiguous = b.column == 1 || has_local_panel;
        let remaining_rows = (high - low).max(0) % mr;
        let mut row_counts = vec![mr];
        row_counts.extend(
            [remaining_rows, 1]
                .into_iter()
                .filter(|&n| n != 0 && n != mr && (n != 1 || remaining_rows == 1 || (low, high) != (0, len))),
        );
        row_counts.dedup();
        let mut widths = vec![nr];
        if tail != 0 && nr < padded_columns {
            widths.push(tail);
        }
        let mut calls = Vec::new();
        for &r in &row_counts {
            for &n in &widths {
                let function = if is_contiguous { kernel.clone() } else { format!("{kernel}_strided") };
                let column = if is_contiguous { String::new() } else { format!("{}, ", b.column) };
                let arguments = arguments.replace("width", &n.to_string());
                let call = format!("{function}({r}, {n}, {row_stride}, {arguments}{column}{zero}a, b, t);");
                let mut tests = Vec::new();
                if row_counts.len() > 1 {
                    tests.push(format!("rows == {r}"));
                }
                if widths.len() > 1 {
                    tests.push(format!("width == {n}"));
                }
                calls.push((tests.join(" && "), call));
            }
        }
        let call_count = calls.len();
        for (i, (test, call)) in calls.iter().enumerate() {
            let head = match i {
                _ if call_count == 1 => String::new(),
                0 => format!("if ({test})\n{pad}    "),
                i if i + 1 == call_count => format!("else\n{pad}    "),
                _ => format!("else if ({test})\n{pad}    "),
            };
            let _ = writeln!(w, "{pad}{head}{call}");
        }
        let row = &vars[last_row_dim];
        let _ = writeln!(w, "{pad}for (int64_t i = 0; i < rows; ++i) {{");
        let _ = writeln!(w, "{pad}    const int64_t {row} = row + i;\n{pad}    (void){row};");
        let _ = writeln!(w, "{pad}    for (int64_t j = 0; j < {column_count}; ++j) {{");
        let _ = writeln!(w, "{pad}        const int64_t c = column + j;\n{pad}        (void)c;");
        let _ = writeln!(w, "{pad}        const {sum_type} acc = t[i * width + j];");
        w.push_str(&body.statements(&vars, depth + 2));
        let _ = writeln!(w, "{pad}    }}\n{pad}}}");
        for level in (1..depth).rev() {
            let _ = writeln!(w, "{}}}", "    ".repeat(level));
        }
        let _ = writeln!(w, "}}\n");
        let mut phase = Phase { comment, code, ..Phase::default() };
        phase.call = self.call(&name, 1);
        phase.touch(c.a);
        phase.touch(b.place);
        phase.touch_all(&body);
        self.phases.push(phase);
        Ok(())
    }

    /// Lays out a constant `b` in panels of `nr` columns; a non-constant operand is read in place.
    fn operand(
        &mut self,
        c: &Contraction,
        nr: i64,
        padded_columns: i64,
        packed_groups: i64,
        b_view: &View,
        vars: &[String],
    ) -> Result<Operand, String> {
        let mut taps = c.taps.clone();
        while taps.len() < 2 {
            taps.insert(0, (1, 0, 0));
        }
        let [(n0, _, s0), (n1, _, s1)] = taps[..] else {
            return Err(format!("expected at most 2 kernel axes, found {}", taps.len()));
        };
        let (k, _, sk) = c.k;
        let columns = c.columns();
        let Place::Constant(index) = c.b else {
            let view = View { offset: c.b_offset, ..b_view.clone() };
            return Ok(Operand {
                place: c.b,
                offset: address(&view, vars),
                panels: false,
                strides: [s0, s1, sk],
                column: c.b_column,
            });
        };
        let depth = n0 * n1 * k;
        let dims: Vec<i64> = (0..c.parts[0]).filter(|&d| c.b_groups[d] != 0).map(|d| c.body.domain[d]).collect();
        let group_strides: Vec<i64> = c.b_groups.iter().copied().filter(|&s| s != 0).collect();
        let groups_view = View { shape: dims, strides: group_strides, offset: c.b_offset };
        let constant_count = self.ir.constants.len();
        let constant = self.ir.constants.get(index);
        let constant =
            constant.ok_or_else(|| format!("expected constant indices < {constant_count}, found {index}"))?;
        let size = c.types.b.size();
        let bytes = constant.bytes();
        let mut data = Vec::with_capacity((packed_groups * depth * columns) as usize * size);
        for start in offsets(&groups_view) {
            for column in (0..padded_columns).step_by(nr.max(1) as usize) {
                let width = nr.min(padded_columns - column);
                for i in 0..n0 {
                    for j in 0..n1 {
                        for l in 0..k {
                            for n in 0..width {
                                if column + n >= columns {
                                    data.resize(data.len() + size, 0);
                                    continue;
                                }
                                let element = start + i * s0 + j * s1 + l * sk + (column + n) * c.b_column;
                                data.extend_from_slice(weight_bytes(bytes, element, size)?);
                            }
                        }
                    }
                }
            }
        }
        let comment = format!("{packed_groups} x {depth} x {columns}, in panels of {nr} columns");
        let array = self.constant_array(ConstantArray { dtype: c.types.b, bytes: data, comment });
        let offset = match &address(b_view, vars)[..] {
            "0" => String::new(),
            index => format!("({index}) * {}", depth * padded_columns),
        };
        Ok(Operand { place: Place::Packed(array), offset, panels: true, strides: [n1 * k, k, 1], column: 1 })
    }

    /// Returns the index of a constant array in the program; adds the array unless the program already has an equal
    /// one.
    pub fn constant_array(&mut self, array: ConstantArray) -> usize {
        if let Some(index) =
            self.arrays.iter().position(|existing| existing.dtype == array.dtype && existing.bytes == array.bytes)
        {
            return index;
        }
        self.arrays.push(array);
        self.arrays.len() - 1
    }

    /// Formats the pointer declarations for a loop body and for the additional tensors `read`.
    pub fn pointers_of(&self, body: &LoopBody, read: &[(Place, DType)]) -> String {
        let mut text = self.pointers(body);
        for &(place, dtype) in read {
            let name = format!("*{place} =");
            let restrict = format!("restrict {place} =");
            if !text.contains(&name) && !text.contains(&restrict) {
                text.push_str(&self.pointer(place, dtype, "const "));
            }
        }
        text
    }
}

/// Returns the name of the tile function for the operand types `a` and `b`.
pub fn tile_name(a: DType, b: DType) -> String {
    if a == DType::F32 && b == DType::F32 { "byoc_tile".into() } else { format!("byoc_tile_{a}_{b}") }
}

/// Returns the offset of each element of a view, in row-major order.
fn offsets(view: &View) -> impl Iterator<Item = i64> + '_ {
    (0..count(&view.shape)).map(|index| {
        let (mut remaining, mut offset) = (index, view.offset);
        for d in (0..view.shape.len()).rev() {
            offset += remaining % view.shape[d] * view.strides[d];
            remaining /= view.shape[d];
        }
        offset
    })
}

impl TapGuard {
    /// Returns the input index that a tap reads at an output index.
    fn input_index(&self, output: i64, tap: i64) -> i64 {
        output * self.scale + self.base + tap * self.step
    }

    /// Returns the range of output indices below `len` at which all `taps` taps read elements rather than padding.
    pub fn inside(&self, taps: i64, len: i64) -> (i64, i64) {
        let reads = |output: i64| (0..taps).all(|tap| (0..self.size).contains(&self.input_index(output, tap)));
        let Some(low) = (0..len).find(|&output| reads(output)) else { return (0, 0) };
        let high = (low..len).find(|&output| !reads(output)).unwrap_or(len);
        (low, high)
    }

    /// Returns true if no tap of the `len` outputs is in the padding.
    pub fn is_idle(&self, taps: i64, len: i64) -> bool {
        self.inside(taps, len) == (0, len)
    }

    /// Formats the declarations of the range of taps that read elements: the first tap and the exclusive end.
    pub fn text(&self, i: usize, output: &str, taps: i64, pad: &str) -> String {
        let TapGuard { scale, base, step, size, .. } = *self;
        let times = if scale == 1 { output.to_owned() } else { format!("{output} * {scale}") };
        let mut text = format!("{pad}const int64_t base{i} = {times} + ({base});\n");
        let (start, end) = if step > 0 {
            (format!("byoc_first_tap(base{i}, {step})"), format!("byoc_end_tap(base{i}, {step}, {size}, {taps})"))
        } else {
            let backward_step = -step;
            (format!("byoc_first_tap({} - base{i}, {backward_step})", size - 1), {
                format!("byoc_end_tap({} - base{i}, {backward_step}, {size}, {taps})", size - 1)
            })
        };
        let _ = writeln!(text, "{pad}const int64_t from{i} = {start};");
        let _ = writeln!(text, "{pad}const int64_t to{i} = {end};");
        text
    }
}
