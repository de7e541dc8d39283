//! Schedule of convolutions and matrix products: a sum of products over taps and channels.
//!
//! `out[g, r, c] = Σ_t Σ_k a[g, r, t, k] * b[g, t, k, c]`. Rows `r` are pixels or matrix rows. Columns `c` are output
//! channels or matrix columns, over which the code is vectorized. A tile of rows and columns is accumulated in
//! registers.

use super::{LANES, round_up};
use crate::nest::body::LoopBody;
use crate::nest::{Place, product_indices};
use crate::types::Types;
use byoc_plugin_support::view::{View, count};

/// Sum of products over taps and channels.
pub struct Contraction {
    /// Index space `[groups.., rows.., column]` and the operations applied to each sum.
    pub body: LoopBody,
    /// Number of group dimensions and number of row dimensions.
    pub parts: [usize; 2],
    /// Memory of `a`.
    pub a: Place,
    /// View of `a` over the index space; the stride of the column is 0.
    pub a_view: View,
    /// Number of taps, and their strides in `a` and in `b`, per kernel axis.
    pub taps: Vec<(i64, i64, i64)>,
    /// Number of channels, and their strides in `a` and in `b`.
    pub k: (i64, i64, i64),
    /// Memory of `b`.
    pub b: Place,
    /// Offset of the first element of `b`.
    pub b_offset: i64,
    /// Stride of `b` per group dimension; 0 if the groups share `b`.
    pub b_groups: Vec<i64>,
    /// Stride of `b` from one column to the next.
    pub b_column: i64,
    /// Guard per kernel axis; `None` or absent if every tap along the axis reads an element.
    pub guards: Vec<Option<TapGuard>>,
    /// Element types.
    pub types: Types,
    /// Zero point of `a`, subtracted from each element.
    pub a_zero: i64,
}

/// Mapping from kernel taps to data along one axis: output `o` at tap `t` reads index `o * scale + base + t * step`,
/// or the padding if the index is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapGuard {
    /// Row dimension along which the output index `o` runs.
    pub row: usize,
    /// Increment of the input index per output.
    pub scale: i64,
    /// Input index of output 0 at tap 0.
    pub base: i64,
    /// Increment of the input index per tap.
    pub step: i64,
    /// Number of data elements along the axis.
    pub size: i64,
}

/// Contraction whose adjacent dimensions are merged where they are contiguous in all operands.
#[derive(Debug)]
pub struct Merged {
    /// Operations on each sum, over the merged index space `[groups.., rows.., column]`.
    pub body: LoopBody,
    /// View of `a` over the merged index space.
    pub a_view: View,
    /// View that maps the merged index space to the matrices of `b`: to their numbers if `b` is packed, otherwise to the
    /// positions of their first elements.
    pub b_view: View,
    /// Number of merged group dimensions.
    pub groups: usize,
    /// Number of merged row dimensions.
    pub rows: usize,
}

impl Contraction {
    /// Returns the number of columns, the last dimension of the index space.
    pub fn columns(&self) -> i64 {
        self.body.domain.last().copied().unwrap_or(1)
    }

    /// Returns the number of terms of each sum.
    pub fn depth(&self) -> i64 {
        self.taps.iter().map(|tap| tap.0).product::<i64>() * self.k.0
    }

    /// Merges the groups and, unless `keeps_rows`, the rows. Groups that share `b` share its packed copy.
    pub fn merge(&self, is_packed: bool, keeps_rows: bool) -> Merged {
        let [groups, rows] = self.parts;
        let mut b_strides = vec![0; self.body.domain.len()];
        let mut matrices = 1;
        for d in (0..groups).rev().filter(|&d| self.b_groups[d] != 0) {
            b_strides[d] = if is_packed { matrices } else { self.b_groups[d] };
            matrices *= self.body.domain[d];
        }
        let row_runs = if keeps_rows { vec![1; rows] } else { vec![rows] };
        let runs = [&[groups][..], &row_runs, &[1]].concat();
        let (body, strides, lengths) = self.body.collapse(&[&self.a_view.strides, &b_strides], &runs);
        let view = |i: usize, offset| View { shape: body.domain.clone(), strides: strides[i].clone(), offset };
        let (a_view, b_view) = (view(0, self.a_view.offset), view(1, 0));
        Merged { a_view, b_view, groups: lengths[0], rows: lengths[1..lengths.len() - 1].iter().sum(), body }
    }

    /// Returns the sizes of the sums and their strides in `a`, outermost first; neighbors that are contiguous in `a` are
    /// merged.
    fn sums(&self) -> Result<[(i64, i64); 3], String> {
        let mut sums: Vec<(i64, i64)> = Vec::new();
        let levels = self.taps.iter().map(|tap| (tap.0, tap.1)).chain([(self.k.0, self.k.1)]);
        for level in levels.filter(|level| level.0 != 1) {
            match sums.last_mut() {
                Some(last) if last.1 == level.0 * level.1 => *last = (last.0 * level.0, level.1),
                _ => sums.push(level),
            }
        }
        while sums.len() < 3 {
            sums.insert(0, (1, 0));
        }
        let count = sums.len();
        <[_; 3]>::try_from(sums)
            .map_err(|_| format!("expected a sum over at most 3 non-contiguous dimensions, found {count}"))
    }
}

impl Merged {
    /// Returns the names of the indices.
    pub fn vars(&self) -> Vec<String> {
        product_indices(self.groups, self.rows)
    }

    /// Returns the dimensions of the groups.
    pub fn group_dims(&self) -> &[i64] {
        &self.body.domain[..self.groups]
    }

    /// Returns the dimensions of the rows but the last one, which is tiled.
    pub fn outer_row_dims(&self) -> &[i64] {
        &self.body.domain[self.groups..self.last_row()]
    }

    /// Returns the last dimension of the rows.
    pub fn last_row(&self) -> usize {
        self.groups + self.rows - 1
    }

    /// Returns the number of rows along the last dimension of the rows.
    pub fn row_len(&self) -> i64 {
        self.body.domain[self.last_row()]
    }
}

/// Number of tasks along each part of the index space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// Number of tasks along the groups.
    pub groups: i64,
    /// Number of tasks along the rows of a group.
    pub rows: i64,
    /// Number of tasks along the columns of a group.
    pub columns: i64,
}

/// Loop nest of a contraction.
#[derive(Debug)]
pub struct Schedule {
    /// Merged index space; the last row dimension is tiled.
    pub merged: Merged,
    /// Summation dimensions and their strides in `a`, outermost first.
    pub sums: [(i64, i64); 3],
    /// Number of columns in the packed `b`, including padding.
    pub padded: i64,
    /// Tile that is accumulated in registers, as rows and vectors, for vectors of 512 bits.
    pub wide: (i64, i64),
    /// Tile for vectors of 256 bits.
    pub narrow: (i64, i64),
    /// Division into tasks.
    pub tasks: Tasks,
}

impl Schedule {
    /// Schedules a contraction.
    ///
    /// # Errors
    /// If the summation dimensions of `a` cannot be merged into at most three.
    pub fn new(c: &Contraction) -> Result<Schedule, String> {
        let merged = c.merge(true, false);
        let (sums, padded, len) = (c.sums()?, round_up(c.columns(), LANES), merged.row_len());
        let (wide, narrow) = (best_tile(len, padded / 16, 32), best_tile(len, padded / 8, 16));
        let tasks = Tasks::new(&merged, sums, padded, wide);
        Ok(Schedule { merged, sums, padded, wide, narrow, tasks })
    }
}

impl Tasks {
    /// Divides a contraction: the number of tasks depends on the amount of work; the split into rows and columns minimizes
    /// the memory traffic.
    fn new(merged: &Merged, sums: [(i64, i64); 3], padded_columns: i64, tile: (i64, i64)) -> Tasks {
        let (group_count, outer_rows) = (count(merged.group_dims()), count(merged.outer_row_dims()));
        let (len, columns) = (merged.row_len(), merged.body.domain[merged.last_row() + 1]);
        let depth: i64 = sums.iter().map(|sum| sum.0).product();
        let flops = 2 * group_count * outer_rows * len * columns * depth;
        // Groups that are too small for separate tasks share a task.
        let groups_per_task = (group_count / 24).max(1).min((1_500_000 / (flops / group_count).max(1)).max(1));
        if groups_per_task > 1 {
            return Tasks { groups: (group_count + groups_per_task - 1) / groups_per_task, rows: 1, columns: 1 };
        }
        let target_tasks = (flops / 1_500_000).clamp(1, 24);
        let tiles = outer_rows * ((len + tile.0 - 1) / tile.0);
        let panels = (padded_columns / 16 + tile.1 - 1) / tile.1;
        let tasks_per_group = (target_tasks + group_count - 1) / group_count;
        let (mut row_tasks, mut column_tasks, mut min_traffic) = (1, 1, i64::MAX);
        for n in 1..=panels.min(tasks_per_group) {
            let m = ((tasks_per_group + n - 1) / n).min(tiles);
            let traffic = m * depth * columns + n * outer_rows * len * depth / 4;
            if m * n >= tasks_per_group.min(tiles * panels) && traffic < min_traffic {
                (row_tasks, column_tasks, min_traffic) = (m, n, traffic);
            }
        }
        // The rows of a task stay in the L2 cache while the task iterates over the panels.
        let bytes = outer_rows * len * depth.min(4 * sums[2].0.max(1)) * 4;
        Tasks { groups: group_count, rows: row_tasks.max((bytes / (512 << 10)).min(tiles / 4)), columns: column_tasks }
    }
}

/// Returns the tile, in rows and vectors, with the least estimated time for `len` rows and `vectors` column vectors.
/// The registers hold the accumulators, the vectors of `b` and one element of `a`. An iteration costs one multiply-add
/// per accumulator, but no fewer than are needed to hide the latency of a multiply-add.
pub fn best_tile(len: i64, vectors: i64, registers: i64) -> (i64, i64) {
    let mut best_tile = ((1, 1), f64::INFINITY);
    for nv in 1..=vectors.min(8) {
        for mr in 1..=len.min(16) {
            if mr * nv + nv + 1 > registers {
                continue;
            }
            let cost = |rows: i64, width: i64| {
                let accumulators = (rows * width) as f64;
                // The last bound is the cost of the loads: the vectors of `b`, and one broadcast per row.
                accumulators.max(8.0).max((width + rows) as f64 * 0.8) + 0.5
            };
            let column_cost = |width: i64| {
                (len / mr) as f64 * cost(mr, width) + if len % mr > 0 { cost(len % mr, width) } else { 0.0 }
            };
            let total_cost = (vectors / nv) as f64 * column_cost(nv)
                + if vectors % nv > 0 { column_cost(vectors % nv) } else { 0.0 };
            if total_cost < best_tile.1 - 1e-9 {
                best_tile = ((mr, nv), total_cost);
            }
        }
    }
    best_tile.0
}

/// Tile of a work-item of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterTile {
    /// Number of rows.
    pub rows: i64,
    /// Number of vectors per row.
    pub vectors: i64,
    /// Number of columns per vector.
    pub width: i64,
}

impl RegisterTile {
    /// Chooses the cheapest tile for a result of `rows` by `columns`, on a device with vectors of `native` elements and
    /// 16 vector registers, or 32 if `native` is 16.
    pub fn choose(rows: i64, columns: i64, native: i64) -> RegisterTile {
        let registers = if native >= 16 { 32 } else { 16 };
        let mut best_tile: Option<(i64, RegisterTile)> = None;
        for width in [4, 8, 16].into_iter().filter(|&width| width <= native.max(4)) {
            for vectors in 1..=3 {
                let max_rows = ((registers - vectors - 2) / vectors).min(12).min(rows);
                for tile_rows in (max_rows - 4).max(1)..=max_rows {
                    let tile_count =
                        ((rows + tile_rows - 1) / tile_rows) * ((columns + vectors * width - 1) / (vectors * width));
                    // A vector multiplication costs 2, a load costs 1.
                    let cost = tile_count * (2 * tile_rows * vectors + tile_rows + vectors);
                    if best_tile.is_none_or(|(least_cost, _)| cost < least_cost) {
                        best_tile = Some((cost, RegisterTile { rows: tile_rows, vectors, width }));
                    }
                }
            }
        }
        best_tile.map_or(RegisterTile { rows: 1, vectors: 1, width: 4 }, |(_, tile)| tile)
    }

    /// Returns the total number of columns in the tile.
    pub fn columns(&self) -> i64 {
        self.vectors * self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a batched matrix product of `groups` pairs of matrices, `rows` x `depth` by `depth` x `columns`.
    fn matmul(groups: i64, rows: i64, columns: i64, depth: i64) -> Contraction {
        let domain = vec![groups, rows, columns];
        let a_view = View { shape: domain.clone(), strides: vec![rows * depth, depth, 0], offset: 0 };
        Contraction {
            body: LoopBody { domain, ..LoopBody::default() },
            parts: [1, 1],
            a: Place::Input(0),
            a_view,
            taps: Vec::new(),
            k: (depth, 1, columns),
            b: Place::Input(1),
            b_offset: 0,
            b_groups: vec![depth * columns],
            b_column: 1,
            guards: Vec::new(),
            types: Types::FLOAT,
            a_zero: 0,
        }
    }

    #[test]
    fn tiles_stay_within_the_registers() {
        for (rows, columns) in [(1, 16), (7, 48), (56, 64), (196, 1000), (3, 5)] {
            for (lanes, registers) in [(16, 32), (8, 16)] {
                let (mr, nv) = best_tile(rows, round_up(columns, LANES) / lanes, registers);
                assert!(mr >= 1 && mr <= rows && nv >= 1 && mr * nv + nv < registers, "{mr} x {nv}");
                assert!(nv * lanes <= round_up(columns, LANES), "{nv} vectors for {columns} columns");
            }
        }
        assert_eq!(best_tile(1, 1, 32), (1, 1));
    }

    #[test]
    fn small_products_are_one_task_and_large_ones_are_divided() {
        let small_schedule = Schedule::new(&matmul(1, 4, 16, 8)).unwrap();
        assert_eq!(small_schedule.tasks, Tasks { groups: 1, rows: 1, columns: 1 });
        let large_schedule = Schedule::new(&matmul(1, 1024, 1024, 1024)).unwrap();
        assert!(large_schedule.tasks.rows * large_schedule.tasks.columns > 8, "{:?}", large_schedule.tasks);
        let batched_schedule = Schedule::new(&matmul(480, 2, 16, 8)).unwrap();
        assert!(
            batched_schedule.tasks.groups < 480 && batched_schedule.tasks.rows * batched_schedule.tasks.columns == 1,
            "{:?}",
            batched_schedule.tasks
        );
        assert_eq!(batched_schedule.merged.b_view.strides[0], 1);
    }

    #[test]
    fn contiguous_sums_are_merged() {
        // A 3 x 3 kernel over 8 channels, channels innermost: the taps of a row are contiguous with the channels.
        let mut c = matmul(1, 10, 16, 8);
        (c.taps, c.k) = (vec![(3, 800, 0), (3, 8, 0)], (8, 1, 16));
        let schedule = Schedule::new(&c).unwrap();
        assert_eq!(schedule.sums, [(1, 0), (3, 800), (24, 1)]);
        assert_eq!(c.depth(), 72);
        c.taps = vec![(3, 8000, 0), (3, 800, 0), (3, 80, 0)];
        assert!(Schedule::new(&c).is_err());
        assert_eq!(schedule.merged.body.domain.len(), schedule.merged.groups + schedule.merged.rows + 1);
    }

    #[test]
    fn groups_that_share_b_share_the_packed_one() {
        let mut c = matmul(6, 4, 32, 8);
        c.b_groups = vec![0];
        let schedule = Schedule::new(&c).unwrap();
        assert_eq!(schedule.padded, 32);
        assert!(schedule.merged.b_view.strides.iter().all(|&stride| stride == 0));
    }

    #[test]
    fn tiles_fit_rows_columns_and_registers() {
        let tile = RegisterTile::choose(49, 2048, 16);
        let padded_elements =
            49_u64.next_multiple_of(tile.rows as u64) * 2048_u64.next_multiple_of(tile.columns() as u64);
        assert!(
            padded_elements * 20 <= 49 * 2048 * 21,
            "expected at most 5 % padding, found {padded_elements} elements: {tile:?}"
        );
        let tile = RegisterTile::choose(12544, 24, 16);
        assert!(tile.rows >= 8 && tile.columns() < 48, "{tile:?}");
        assert_eq!(RegisterTile::choose(1, 1000, 16).rows, 1);
        for native in [1, 4, 8, 16] {
            let tile = RegisterTile::choose(1000, 1000, native);
            assert!(tile.rows * tile.vectors + tile.vectors < 32 && tile.width <= native.max(4), "{tile:?}");
        }
    }
}
