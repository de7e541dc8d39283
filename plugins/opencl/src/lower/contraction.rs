//! Contractions: matrix products, and convolutions as implicit matrix products.
//!
//! `out[g, r, c] = Σ_t Σ_k a[g, r, t, k] * b[g, t, k, c]`. Rows `r` are pixels or matrix rows, columns `c` are output
//! channels, over which the kernel is vectorized. `a` is read in place, one element at a time for all columns of a
//! tile; `b` is packed into panels as wide as a tile: when the region is loaded if `b` is a constant, otherwise by a
//! preceding kernel. A work-item accumulates a tile in registers and applies the elementwise operators of the group to
//! it. On devices with dedicated local memory, a work-group first loads the elements that its tiles share
//! ([`Lowering::local_memory_contraction`]).

use super::body::Body;
use super::panels::Operand;
use super::{Grid, Lowering, Result};
use crate::expression::vector;
use crate::kernel::{KernelText, Point, address};
use crate::layout::Axis;
use crate::pack::Packing;
use crate::program::Place;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Loop over a convolution window along one axis.
#[derive(Clone, Copy, Debug)]
pub struct Tap {
    /// Number of taps.
    pub size: i64,
    /// Distance between adjacent taps in `a`.
    pub step: i64,
    /// Dimension of the index space and window along it; `None` if no tap can be in the padding.
    pub bounds: Option<(usize, Axis)>,
}

/// Contraction over an index space of batch dimensions, row dimensions, and one column dimension.
#[derive(Clone, Debug)]
pub struct Contraction {
    /// Elementwise operators on the result, and stores.
    pub body: Body,
    /// Number of batch dimensions.
    pub batch: usize,
    /// Memory of the first operand.
    pub a: Place,
    /// View of the first element in each row of `a`.
    pub a_view: View,
    /// Loops over the window.
    pub taps: Vec<Tap>,
    /// Number of channels, and their stride in `a`.
    pub k: (i64, i64),
    /// Second operand.
    pub b: Operand,
}

/// Tile of a work-item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Number of rows.
    pub rows: i64,
    /// Number of vectors per row.
    pub vectors: i64,
    /// Number of columns per vector.
    pub width: i64,
}

impl Tile {
    /// Chooses the cheapest tile for a result of `rows` by `columns`, on a device with vectors of `native` elements and
    /// 16 vector registers, or 32 if `native` is 16.
    fn choose(rows: i64, columns: i64, native: i64) -> Tile {
        let registers = if native >= 16 { 32 } else { 16 };
        let mut best_tile: Option<(i64, Tile)> = None;
        for width in [4, 8, 16].into_iter().filter(|&width| width <= native.max(4)) {
            for vectors in 1..=3 {
                let max_rows = ((registers - vectors - 2) / vectors).min(12).min(rows);
                for tile_rows in (max_rows - 4).max(1)..=max_rows {
                    let tile_count =
                        ((rows + tile_rows - 1) / tile_rows) * ((columns + vectors * width - 1) / (vectors * width));
                    // A vector multiplication costs 2, a load costs 1.
                    let cost = tile_count * (2 * tile_rows * vectors + tile_rows + vectors);
                    if best_tile.is_none_or(|(least_cost, _)| cost < least_cost) {
                        best_tile = Some((cost, Tile { rows: tile_rows, vectors, width }));
                    }
                }
            }
        }
        best_tile.map_or(Tile { rows: 1, vectors: 1, width: 4 }, |(_, tile)| tile)
    }

    /// Returns the total number of columns in the tile.
    pub fn columns(&self) -> i64 {
        self.vectors * self.width
    }
}

impl Lowering<'_, '_> {
    /// Lowers a contraction.
    pub fn contraction(&mut self, group_index: usize, c: Contraction) -> Result<()> {
        if self.device.uses_local_memory {
            return self.local_memory_contraction(group_index, &c);
        }
        let rank = c.body.domain.len();
        let rows: i64 = c.body.domain[c.batch..rank - 1].iter().product();
        let batch: i64 = c.body.domain[..c.batch].iter().product();
        let columns = c.body.domain[rank - 1];
        let tile = Tile::choose(rows, columns, self.device.width);
        let b = self.panels(&c.b, tile.columns())?;
        let row_tiles = (rows + tile.rows - 1) / tile.rows;
        let grid = Grid { local: [1, 1, 1], items: [row_tiles, c.b.panels(tile.columns()), batch] };
        let mut text = KernelText::default();
        text.line(1, &format!("const int m0 = get_global_id(0) * {};", tile.rows));
        text.line(1, "const int panel = get_global_id(1), g = get_global_id(2);");
        self.accumulate(&mut text, &c, tile, b, rows);
        finish(self, &mut text, &c, tile, rows, &format!("panel * {}", tile.columns()));
        let (name, comment) = self.group_names(group_index);
        self.add_launch("product", text, grid, &name, &comment);
        Ok(())
    }

    /// Appends the accumulation of a tile in registers, named `s<row>_<vector>`.
    fn accumulate(&mut self, text: &mut KernelText, c: &Contraction, tile: Tile, b: Place, rows: i64) {
        let rank = c.body.domain.len();
        let ty = vector(tile.width);
        let a = text.pointer(c.a, DType::F32, false);
        let b_pointer = text.pointer(b, DType::F32, false);
        let has_bounds = c.taps.iter().any(|tap| tap.bounds.is_some());
        let zeros = has_bounds.then(|| {
            let span = (c.k.0 - 1) * c.k.1 + 1;
            let length = if c.k.1 == 1 { span } else { 1 };
            let zeros = self.constant(None, DType::F32, Packing::identity(length as u64));
            text.pointer(zeros, DType::F32, false)
        });
        write_batch_indices(text, c);
        for r in 0..tile.rows {
            let m = if rows % tile.rows == 0 { format!("m0 + {r}") } else { format!("min(m0 + {r}, {})", rows - 1) };
            text.line(1, &format!("const int m_{r} = {m};"));
            let names = row_indices(c, &format!("_{r}"));
            text.decode(1, &names, &c.body.domain[c.batch..rank - 1], &format!("m_{r}"));
            let mut indices = batch_names(c);
            indices.extend(names.iter().cloned());
            indices.push("0".into());
            text.line(1, &format!("const int a{r} = {};", address(&c.a_view, &indices)));
            for (t, tap) in c.taps.iter().enumerate() {
                if let Some((d, axis)) = &tap.bounds {
                    let index = if c.body.domain[*d] == 1 { "0".to_owned() } else { names[d - c.batch].clone() };
                    text.line(1, &format!("const int q{t}_{r} = {index} * {} - {};", axis.stride, axis.pad.0));
                }
            }
        }
        let declarations: Vec<String> = (0..tile.rows * tile.vectors)
            .map(|i| format!("s{}_{} = 0.0f", i / tile.vectors, i % tile.vectors))
            .collect();
        text.line(1, &format!("{ty} {};", declarations.join(", ")));
        let size = c.b.depth() * tile.columns();
        let group = group_offset(c);
        text.line(
            1,
            &format!(
                "global const float *w = {b_pointer} + ({group} * {} + panel) * {size};",
                c.b.panels(tile.columns())
            ),
        );
        let mut depth = 1;
        for (t, tap) in c.taps.iter().enumerate().filter(|(_, tap)| tap.size > 1) {
            text.line(depth, &format!("for (int t{t} = 0; t{t} < {}; ++t{t}) {{", tap.size));
            depth += 1;
        }
        let steps: String = c
            .taps
            .iter()
            .enumerate()
            .filter(|(_, tap)| tap.size > 1)
            .map(|(t, tap)| format!(" + t{t} * {}", tap.step))
            .collect();
        let stride = c.k.1;
        for r in 0..tile.rows {
            let element = format!("{a} + a{r}{steps}");
            let Some(zeros) = &zeros else {
                text.line(depth, &format!("global const float *x{r} = {element};"));
                continue;
            };
            let conditions: Vec<String> = c
                .taps
                .iter()
                .enumerate()
                .filter_map(|(t, tap)| {
                    let axis = tap.bounds.as_ref()?.1;
                    let position =
                        if tap.size > 1 { format!("q{t}_{r} + t{t} * {}", axis.dilation) } else { format!("q{t}_{r}") };
                    Some(format!("(uint)({position}) < {}", axis.size))
                })
                .collect();
            let conditions = conditions.join(" && ");
            if stride == 1 {
                text.line(depth, &format!("global const float *x{r} = {conditions} ? {element} : {zeros};"));
            } else {
                text.line(depth, &format!("const int in{r} = {conditions};"));
                text.line(depth, &format!("global const float *x{r} = in{r} ? {element} : {zeros};"));
                text.line(depth, &format!("const int d{r} = in{r} ? {stride} : 0;"));
            }
        }
        text.line(depth, &format!("for (int k = 0; k < {}; ++k) {{", c.k.0));
        let loads: Vec<String> = (0..tile.vectors).map(|j| format!("w{j} = vload{}({j}, w)", tile.width)).collect();
        text.line(depth + 1, &format!("const {ty} {};", loads.join(", ")));
        for r in 0..tile.rows {
            let index = match (stride, &zeros) {
                (1, _) => "k".to_owned(),
                (_, Some(_)) => format!("k * d{r}"),
                (stride, None) => format!("k * {stride}"),
            };
            let products: Vec<String> =
                (0..tile.vectors).map(|j| format!("s{r}_{j} += x{r}[{index}] * w{j};")).collect();
            text.line(depth + 1, &products.join(" "));
        }
        text.line(depth + 1, &format!("w += {};", tile.columns()));
        while depth > 0 {
            text.line(depth, "}");
            depth -= 1;
        }
    }
}

/// Returns the names of the batch indices.
pub fn batch_names(c: &Contraction) -> Vec<String> {
    (0..c.batch).map(|d| format!("b{d}")).collect()
}

/// Returns the names of the row indices.
pub fn row_indices(c: &Contraction, suffix: &str) -> Vec<String> {
    (c.batch..c.body.domain.len() - 1).map(|d| format!("i{d}{suffix}")).collect()
}

/// Appends declarations of the batch indices, decoded from `g`.
pub fn write_batch_indices(text: &mut KernelText, c: &Contraction) {
    text.decode(1, &batch_names(c), &c.body.domain[..c.batch], "g");
}

/// Formats the index of a batch's packed matrix; broadcast dimensions do not contribute.
pub fn group_offset(c: &Contraction) -> String {
    let mut stride: i64 = 1;
    let mut terms = Vec::new();
    for (d, &(size, _)) in c.b.outer.iter().enumerate().rev() {
        if size > 1 {
            terms.push(format!("b{d} * {stride}"));
        }
        stride *= size;
    }
    if terms.is_empty() { "0".to_owned() } else { format!("({})", terms.join(" + ")) }
}

/// Appends the elementwise operators and stores of a tile with accumulators `s<row>_<vector>`. The tile begins at row
/// `m0` and column `first_column`.
pub fn finish(
    lowering: &Lowering<'_, '_>,
    text: &mut KernelText,
    c: &Contraction,
    tile: Tile,
    rows: i64,
    first_column: &str,
) {
    let rank = c.body.domain.len();
    let columns = c.body.domain[rank - 1];
    let ty = vector(tile.width);
    let accumulators: Vec<String> =
        (0..tile.rows * tile.vectors).map(|i| format!("s{}_{}", i / tile.vectors, i % tile.vectors)).collect();
    text.line(1, &format!("const {ty} sums[{}] = {{{}}};", accumulators.len(), accumulators.join(", ")));
    text.line(1, &format!("for (int r = 0; r < {}; ++r) {{", tile.rows));
    text.line(2, "const int m = m0 + r;");
    // With local memory, whole tiles may lie past the last row or column.
    let in_local_memory = lowering.device.uses_local_memory;
    if in_local_memory || rows % tile.rows != 0 {
        text.line(2, &format!("if (m >= {rows})\n            break;"));
    }
    let names = row_indices(c, "");
    text.decode(2, &names, &c.body.domain[c.batch..rank - 1], "m");
    let mut indices = batch_names(c);
    indices.extend(names);
    text.line(2, &format!("for (int j = 0; j < {}; ++j) {{", tile.vectors));
    text.line(3, &format!("const int c = {first_column} + j * {};", tile.width));
    let has_partial_tiles = in_local_memory || columns % tile.columns() != 0;
    if has_partial_tiles {
        text.line(3, &format!("if (c >= {columns})\n                break;"));
    }
    let valid_columns = (columns % tile.width != 0).then(|| {
        text.line(3, &format!("const int n = min({}, {columns} - c);", tile.width));
        "n".to_owned()
    });
    text.line(3, &format!("const {ty} acc = sums[r * {} + j];", tile.vectors));
    let point = Point { indices, column: "c".into(), valid: valid_columns, width: tile.width };
    c.body.emit(lowering.ir, text, &point, 3);
    text.line(2, "}");
    text.line(1, "}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_rows_columns_and_registers() {
        let tile = Tile::choose(49, 2048, 16);
        let padded_elements =
            49_u64.next_multiple_of(tile.rows as u64) * 2048_u64.next_multiple_of(tile.columns() as u64);
        assert!(
            padded_elements * 20 <= 49 * 2048 * 21,
            "expected at most 5 % padding, found {padded_elements} elements: {tile:?}"
        );
        let tile = Tile::choose(12544, 24, 16);
        assert!(tile.rows >= 8 && tile.columns() < 48, "{tile:?}");
        assert_eq!(Tile::choose(1, 1000, 16).rows, 1);
        for native in [1, 4, 8, 16] {
            let tile = Tile::choose(1000, 1000, native);
            assert!(tile.rows * tile.vectors + tile.vectors < 32 && tile.width <= native.max(4), "{tile:?}");
        }
    }
}
