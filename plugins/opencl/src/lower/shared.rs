//! Contractions through local memory, for devices whose local memory is faster than global memory.
//!
//! A work-group computes 32 rows by 32 columns. For every 16 steps of the reduction, its work-items load the shared
//! elements of both operands into local memory, wait at a barrier, and multiply. Taps and channels form one loop.

use super::contraction::{Contraction, Tile, batch_names, finish, group_offset, row_indices, write_batch_indices};
use super::{Grid, Lowering, Result};
use crate::kernel::{KernelText, address};
use byoc_plugin_api::DType;

/// Number of work-items per work-group along columns and along rows.
const ITEMS: i64 = 8;
/// Tile of a work-item.
const TILE: Tile = Tile { rows: 4, vectors: 1, width: 4 };
/// Number of rows, and of columns, per work-group.
const SIDE: i64 = ITEMS * TILE.rows;
/// Number of reduction steps between barriers.
const DEPTH: i64 = 16;
/// Number of elements of each operand that a work-item loads between barriers.
const LOADS: i64 = SIDE * DEPTH / (ITEMS * ITEMS);

impl Lowering<'_, '_> {
    /// Adds the local-memory kernel for a contraction.
    pub fn local_memory_contraction(&mut self, group_index: usize, c: &Contraction) -> Result<()> {
        let rank = c.body.domain.len();
        let rows: i64 = c.body.domain[c.batch..rank - 1].iter().product();
        let batch: i64 = c.body.domain[..c.batch].iter().product();
        let b = self.panels(&c.b, SIDE)?;
        let panels = c.b.panels(SIDE);
        let items = [panels * ITEMS, (rows + SIDE - 1) / SIDE * ITEMS, batch];
        let grid = Grid { local: [ITEMS as usize, ITEMS as usize, 1], items };
        let mut text = KernelText::default();
        let a = text.pointer(c.a, DType::F32, false);
        let b = text.pointer(b, DType::F32, false);
        let depth = c.b.depth();
        text.line(1, &format!("local float as[{DEPTH}][{SIDE}], bs[{DEPTH}][{SIDE}];"));
        text.line(1, "const int lx = get_local_id(0), ly = get_local_id(1);");
        text.line(1, &format!("const int item = ly * {ITEMS} + lx;"));
        text.line(1, "const int panel = get_group_id(0), g = get_global_id(2);");
        text.line(1, &format!("const int m0 = get_group_id(1) * {SIDE} + ly * {};", TILE.rows));
        write_batch_indices(&mut text, c);
        let group = group_offset(c);
        text.line(1, &format!("global const float *w = {b} + ({group} * {panels} + panel) * {};", depth * SIDE));
        text.line(1, "float4 s0_0 = 0.0f, s1_0 = 0.0f, s2_0 = 0.0f, s3_0 = 0.0f;");
        text.line(1, &format!("for (int k0 = 0; k0 < {depth}; k0 += {DEPTH}) {{"));
        text.line(2, &format!("for (int i = 0; i < {LOADS}; ++i) {{"));
        self.load_rows(&mut text, c, &a, rows);
        text.line(2, "}");
        text.line(2, &format!("for (int i = 0; i < {LOADS}; ++i) {{"));
        text.line(3, &format!("const int n = item + i * {};", ITEMS * ITEMS));
        let value = format!("w[k0 * {SIDE} + n]");
        let value = if depth % DEPTH == 0 { value } else { format!("k0 + n / {SIDE} < {depth} ? {value} : 0.0f") };
        text.line(3, &format!("bs[n / {SIDE}][n % {SIDE}] = {value};"));
        text.line(2, "}");
        text.line(2, "barrier(CLK_LOCAL_MEM_FENCE);");
        text.line(2, &format!("for (int k = 0; k < {DEPTH}; ++k) {{"));
        text.line(3, "const float4 v = vload4(lx, bs[k]);");
        for r in 0..TILE.rows {
            text.line(3, &format!("s{r}_0 += as[k][ly * {} + {r}] * v;", TILE.rows));
        }
        text.line(2, "}");
        text.line(2, "barrier(CLK_LOCAL_MEM_FENCE);");
        text.line(1, "}");
        finish(self, &mut text, c, TILE, rows, &format!("panel * {SIDE} + lx * {}", TILE.width));
        let (name, comment) = self.group_names(group_index);
        self.add_launch("shared_product", text, grid, &name, &comment);
        Ok(())
    }

    /// Appends the load of one element of the first operand. Adjacent work-items load elements of adjacent rows if the
    /// operand is contiguous only across rows; otherwise, they load elements that are adjacent along the reduction.
    fn load_rows(&mut self, text: &mut KernelText, c: &Contraction, a: &str, rows: i64) {
        let rank = c.body.domain.len();
        let depth = c.b.depth();
        text.line(3, &format!("const int n = item + i * {};", ITEMS * ITEMS));
        let is_by_rows = rank >= 2 && c.a_view.strides[rank - 2] == 1 && c.k.1 != 1;
        let (row, k) = if is_by_rows {
            (format!("n % {SIDE}"), format!("n / {SIDE}"))
        } else {
            (format!("n / {DEPTH}"), format!("n % {DEPTH}"))
        };
        text.line(3, &format!("const int row = {row}, ks = {k}, k = k0 + ks;"));
        text.line(3, &format!("const int m = get_group_id(1) * {SIDE} + row;"));
        let names = row_indices(c, "");
        text.decode(3, &names, &c.body.domain[c.batch..rank - 1], "m");
        let mut indices = batch_names(c);
        indices.extend(names.iter().cloned());
        indices.push("0".into());
        let mut offset = address(&c.a_view, &indices);
        let mut conditions: Vec<String> = Vec::new();
        if rows % SIDE != 0 {
            conditions.push(format!("m < {rows}"));
        }
        if depth % DEPTH != 0 {
            conditions.push(format!("k < {depth}"));
        }
        // `k` is the row-major index over taps and channels.
        let mut step = depth;
        for (t, tap) in c.taps.iter().enumerate() {
            step /= tap.size;
            if tap.size > 1 {
                text.line(3, &format!("const int t{t} = k / {step} % {};", tap.size));
                offset.push_str(&format!(" + t{t} * {}", tap.step));
            }
            if let Some((d, axis)) = &tap.bounds {
                let index = if c.body.domain[*d] == 1 { "0" } else { &names[d - c.batch] };
                let tap_offset = if tap.size > 1 { format!(" + t{t} * {}", axis.dilation) } else { String::new() };
                conditions
                    .push(format!("(uint)({index} * {} - {}{tap_offset}) < {}", axis.stride, axis.pad.0, axis.size));
            }
        }
        if c.k.0 > 1 {
            let channel =
                if c.taps.iter().all(|tap| tap.size == 1) { "k".to_owned() } else { format!("k % {}", c.k.0) };
            offset.push_str(&format!(" + {channel} * {}", c.k.1));
        }
        let value = format!("{a}[{offset}]");
        let value = if conditions.is_empty() { value } else { format!("{} ? {value} : 0.0f", conditions.join(" && ")) };
        text.line(3, &format!("as[ks][row] = {value};"));
    }
}
