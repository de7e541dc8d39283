//! Common form of convolutions and matrix products: a sum of products over taps and channels.
//!
//! `out[g, r, c] = Σ_t Σ_k a[g, r, t, k] * b[g, t, k, c]`. Rows `r` are pixels or rows of a matrix; columns `c` are
//! output channels, over which the code is vectorized. `a` is read in place, with each element broadcast to all lanes;
//! `b` is packed into panels as wide as a tile, at load time if it is constant and otherwise in a preceding phase. A
//! tile of rows and columns is accumulated in registers, stored on the stack, and then passed through the elementwise
//! operators of the group.

use crate::loop_body::{Place, address};
use crate::lowering::{Lowering, PackedConstant, Phase};
use crate::schedule::contraction::{Contraction, Schedule, Tasks, Tile};
use crate::schedule::{LANES, round_up};
use crate::text::{decode, digit, share_loop};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;
use std::fmt::Write;

impl Lowering<'_, '_> {
    /// Emits the phases of a contraction.
    pub fn contraction(&mut self, c: Contraction, comment: Vec<String>) -> Result<(), String> {
        if self.machine().is_some() {
            return self.direct_contraction(&c, comment);
        }
        let Schedule {
            body,
            a_view,
            b_index,
            groups,
            rows,
            columns,
            sums,
            depth,
            padded: padded_columns,
            tile,
            packed_groups,
            packed_size,
            tasks,
            ..
        } = &Schedule::new(&c)?;
        let (groups, rows, columns, depth, packed_size) = (*groups, *rows, *columns, *depth, *packed_size);
        let row_dims = &body.domain[groups..groups + rows];
        let len = row_dims[rows - 1];
        let outer_rows: i64 = row_dims[..rows - 1].iter().product();
        let group_count: i64 = body.domain[..groups].iter().product();
        let Tasks { groups: group_tasks, rows: row_tasks, columns: column_tasks } = *tasks;
        let name = self.phase_name();
        let (b, packing) = self.pack(&c, &name, *packed_groups, packed_size)?;

        let mut vars: Vec<String> = (0..groups).map(|d| format!("g{d}")).collect();
        vars.extend((0..rows).map(|d| format!("r{d}")));
        vars.push("c".into());
        let outer_vars = &vars[..groups + rows - 1];
        let params: String = outer_vars.iter().map(|v| format!("int64_t {v}, ")).collect();
        let args: String = outer_vars.iter().map(|v| format!("{v}, ")).collect();
        let unused_vars: String = outer_vars.iter().map(|v| format!("(void){v}; ")).collect();
        let last_row = &vars[groups + rows - 1];

        let mut code = String::new();
        let w = &mut code;
        let Tile { wide, narrow } = *tile;
        let _ = writeln!(w, "enum {{");
        let _ = writeln!(w, "    {name}_mr = BYOC_PICK({}, {}), /* rows of a tile */", wide.0, narrow.0);
        let _ = writeln!(w, "    {name}_nr = BYOC_PICK({}, {}) * BYOC_VL, /* columns of a tile */", wide.1, narrow.1);
        let _ = writeln!(
            w,
            "    {name}_tail = {} % {name}_nr, /* columns of the last panel, 0 if it is full */",
            padded_columns
        );
        let _ = writeln!(
            w,
            "    {name}_row_tail = {len} % {name}_mr /* rows of the last tile of a row, 0 if it is full */"
        );
        let _ = writeln!(w, "}};\n");

        w.push_str(&packing);
        // Function that applies the group's elementwise operators to a tile of accumulators.
        let _ = writeln!(
            w,
            "static BYOC_INLINE void {name}_finish(const {0}_args *args, const float *restrict t, {params}int64_t row, int64_t rows, int64_t column, int64_t columns) {{",
            self.symbol
        );
        w.push_str(&self.pointers(body));
        let _ = writeln!(w, "    {unused_vars}(void)row; (void)column; (void)args;");
        let _ = writeln!(w, "    for (int64_t i = 0; i < rows; ++i) {{");
        let _ = writeln!(w, "        const int64_t {last_row} = row + i;\n        (void){last_row};");
        let _ = writeln!(w, "        BYOC_IVDEP\n        for (int64_t j = 0; j < columns; ++j) {{");
        let _ = writeln!(w, "            const int64_t c = column + j;\n            (void)c;");
        let _ = writeln!(w, "            const float acc = t[i * {name}_nr + j];");
        w.push_str(&body.statements(&vars, 3));
        let _ = writeln!(w, "        }}\n    }}\n}}\n");

        let row_stride = a_view.strides[groups + rows - 1];
        let [(n0, s0), (n1, s1), (n2, s2)] = *sums;
        w.push_str(&self.head(&name));
        w.push_str(&self.pointer(c.a, DType::F32, "const "));
        w.push_str(&self.pointer(b, DType::F32, "const "));
        let _ = writeln!(
            w,
            "    enum {{ mr = {name}_mr, nr = {name}_nr, tail = {name}_tail, row_tail = {name}_row_tail }};\n    \
             enum {{ tiles_in_row = ({len} + mr - 1) / mr, tiles = {outer_rows} * tiles_in_row, panels = ({padded_columns} + nr - 1) / nr }};"
        );
        let _ = writeln!(w, "    const int64_t m = {};\n    (void)m;", digit("task", column_tasks, row_tasks));
        let _ = writeln!(w, "    const int64_t n = {};\n    (void)n;", digit("task", 1, column_tasks));
        let group = if group_tasks == 1 { "0".to_owned() } else { digit("task", column_tasks * row_tasks, 0) };
        let _ = writeln!(w, "    const int64_t group = {group};\n    (void)group;");
        if group_tasks * row_tasks * column_tasks == 1 {
            let _ = writeln!(w, "    (void)task;");
        }
        let _ = writeln!(w, "    float BYOC_ALIGNED t[mr * nr];");
        let _ = writeln!(w, "    {}", share_loop("g", &group_count.to_string(), "group", group_tasks));
        w.push_str(&decode(&vars[..groups], &body.domain[..groups], "g", 2));
        let _ = writeln!(w, "        {}", share_loop("panel", "panels", "n", column_tasks));
        let _ = writeln!(w, "            const int64_t column = panel * nr;");
        let b_at = match &address(b_index, &vars)[..] {
            "0" => String::new(),
            index => format!(" + ({index}) * {packed_size}"),
        };
        let _ = writeln!(w, "            const float *b = {b}{b_at} + column * {depth};");
        let _ = writeln!(w, "            const int full = tail == 0 || panel + 1 < panels;");
        let _ = writeln!(w, "            {}", share_loop("tile", "tiles", "m", row_tasks));
        let _ = writeln!(w, "                const int64_t row = tile % tiles_in_row * mr;");
        let outer_row = if outer_rows == 1 { "0" } else { "(tile / tiles_in_row)" };
        w.push_str(&decode(&vars[groups..groups + rows - 1], &row_dims[..rows - 1], outer_row, 4));
        let mut tile_vars = vars.clone();
        tile_vars[groups + rows - 1] = "row".into();
        let _ = writeln!(w, "                const float *a = {} + {};", c.a, address(a_view, &tile_vars));
        let _ = writeln!(w, "                const int whole = row_tail == 0 || row + mr <= {len};");
        let sum_args = format!("{row_stride}, {n0}, {s0}, {n1}, {s1}, {n2}, {s2}, a, b, t");
        // Because of the padding to `LANES`, even a full panel may hold fewer columns than its width.
        let panel_width = if columns % LANES == 0 {
            "nr".to_owned()
        } else {
            format!("({columns} - column < nr ? {columns} - column : nr)")
        };
        let last_width = format!("{columns} - (panels - 1) * nr");
        for (condition, rows, width, columns) in [
            ("if (full && whole) {", "mr", "nr", &panel_width),
            ("} else if (full) {", "row_tail", "nr", &panel_width),
            ("} else if (whole) {", "mr", "tail", &last_width),
            ("} else {", "row_tail", "tail", &last_width),
        ] {
            let _ = writeln!(w, "                {condition}");
            let _ = writeln!(w, "                    byoc_tile({rows}, {width} / BYOC_VL, nr, {sum_args});");
            let _ = writeln!(w, "                    {name}_finish(args, t, {args}row, {rows}, column, {columns});");
        }
        let _ = writeln!(w, "                }}\n            }}\n        }}\n    }}\n}}\n");

        let mut phase = Phase { comment, code, ..Phase::default() };
        phase.call = format!("    byoc_run(pool, {}, {name}, &args);\n", group_tasks * row_tasks * column_tasks);
        phase.touch(c.a);
        phase.touch(b);
        phase.touch_all(body);
        self.phases.push(phase);
        Ok(())
    }

    /// Packs `b` into panels, at load time if it is constant and otherwise in a separate phase. Returns the packed
    /// memory and the code of the packing function, which is empty for a constant.
    fn pack(
        &mut self,
        c: &Contraction,
        contraction: &str,
        packed_groups: i64,
        packed_size: i64,
    ) -> Result<(Place, String), String> {
        let mut taps = c.taps.clone();
        while taps.len() < 2 {
            taps.insert(0, (1, 0, 0));
        }
        let [(n0, _, s0), (n1, _, s1)] = taps[..] else {
            return Err(format!("expected at most 2 kernel axes, found {}", taps.len()));
        };
        let (k, _, sk) = c.k;
        let (columns, group_dims) = (c.columns(), &c.body.domain[..c.parts[0]]);
        let depth = n0 * n1 * k;
        let padded_columns = round_up(columns, LANES);
        let column_stride = c.b_column;
        let used_dims: Vec<usize> = (0..group_dims.len()).filter(|&d| c.b_groups[d] != 0).collect();
        let dims: Vec<i64> = used_dims.iter().map(|&d| group_dims[d]).collect();
        let vars: Vec<String> = (0..dims.len()).map(|d| format!("b{d}")).collect();
        let groups_view = View {
            shape: dims.clone(),
            strides: used_dims.iter().map(|&d| c.b_groups[d]).collect(),
            offset: c.b_offset,
        };
        let offset = address(&groups_view, &vars);
        let source = match c.b {
            Place::Constant(i) => format!("((const float *)constants[{i}])"),
            place => place.to_string(),
        };
        let group = if packed_groups == 1 { String::new() } else { format!("g * {packed_size} + ") };
        let call = |destination: &str, nr: &str| {
            format!(
                "byoc_pack_panel({destination} + {group}column * {depth}, {source} + {offset}, column, {columns}, {nr}, {n0}, {s0}, {n1}, {s1}, {k}, {sk}, {column_stride});"
            )
        };
        if let Place::Constant(i) = c.b {
            let index = self.packed.len();
            let nr = format!("{contraction}_nr");
            let mut code = format!("    for (int64_t g = 0; g < {packed_groups}; ++g) {{\n");
            code.push_str(&decode(&vars, &dims, "g", 2));
            let _ = writeln!(code, "        for (int64_t column = 0; column < {padded_columns}; column += {nr})");
            let _ = writeln!(code, "            {}", call(&format!("p{index}"), &nr));
            code.push_str("    }\n");
            let comment = format!("constant {i} in panels");
            self.packed.push(PackedConstant { floats: packed_groups * packed_size, comment, code });
            return Ok((Place::Packed(index), String::new()));
        }
        let comment = "an operand in panels".to_owned();
        let destination = Place::Work(self.buffer(packed_groups * packed_size, DType::F32, comment.clone()));
        let name = format!("{contraction}_pack");
        let mut code = String::new();
        let _ = writeln!(code, "static void {name}(void *arg, int64_t task) {{");
        let _ = writeln!(code, "    const {}_args *args = arg;", self.symbol);
        code.push_str(&self.pointer(c.b, DType::F32, "const "));
        code.push_str(&self.pointer(destination, DType::F32, ""));
        let tasks = (packed_groups * packed_size / 16384).clamp(1, packed_groups.min(24));
        code.push_str(self.unused_task(tasks));
        let _ = writeln!(code, "    {}", share_loop("g", &packed_groups.to_string(), "task", tasks));
        code.push_str(&decode(&vars, &dims, "g", 2));
        let nr = format!("{contraction}_nr");
        let _ = writeln!(code, "        for (int64_t column = 0; column < {padded_columns}; column += {nr})");
        let _ = writeln!(code, "            {}", call(&destination.to_string(), &nr));
        let _ = writeln!(code, "    }}\n}}\n");
        let mut phase = Phase { comment: vec![comment], ..Phase::default() };
        phase.call = self.call(&name, tasks);
        phase.touch(c.b);
        phase.touch(destination);
        self.phases.push(phase);
        Ok((destination, code))
    }
}
