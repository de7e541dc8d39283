//! Tiles of a result that are held in registers while rows of the left operand meet a packed panel of the right one.

use super::{Columns, Matrix, Output};
use crate::simd::{Level, level, mul_add};
use std::ops::Range;

/// Right operand, as it is packed.
pub(super) enum Panels<'a> {
    /// Row by row.
    Rows(&'a dyn Columns),
    /// The transposed matrix, whose rows are adjacent elements.
    Transposed(Matrix<'a>),
}

impl Panels<'_> {
    /// Packs the block `terms` x `columns` into panels as wide as a tile, each with one row per term; a last panel of
    /// at most half the columns has half the width. Missing columns are zero.
    pub fn pack(&self, terms: Range<usize>, columns: Range<usize>, panels: &mut Vec<f32>) {
        let (k, width) = (terms.len(), size().1);
        panels.resize(k * super::BLOCK[1], 0.0);
        let panel_width = |first: usize| if columns.len() - first <= width / 2 { width / 2 } else { width };
        match self {
            Panels::Rows(source) => {
                let mut line = [0.0; super::BLOCK[1]];
                for (i, term) in terms.enumerate() {
                    let line = source.row(term, columns.clone(), &mut line[..columns.len()]);
                    for (panel, values) in line.chunks(width).enumerate() {
                        let lanes = panel_width(panel * width);
                        let to = &mut panels[panel * width * k + i * lanes..][..lanes];
                        match (<&[f32; 32]>::try_from(values), <&mut [f32; 32]>::try_from(&mut *to)) {
                            // A copy of known size takes no call.
                            (Ok(values), Ok(to)) => *to = *values,
                            _ => {
                                to[..values.len()].copy_from_slice(values);
                                to[values.len()..].fill(0.0);
                            }
                        }
                    }
                }
            }
            Panels::Transposed(matrix) => {
                for first in (0..columns.len()).step_by(width) {
                    let lanes = panel_width(first);
                    let panel = &mut panels[first * k..][..k * lanes];
                    for lane in 0..lanes {
                        let column = columns.start + first + lane;
                        if column >= columns.end {
                            panel[lane..].iter_mut().step_by(lanes).for_each(|to| *to = 0.0);
                            continue;
                        }
                        let values = &matrix.data[column * matrix.row + terms.start..][..k];
                        panel[lane..].iter_mut().step_by(lanes).zip(values).for_each(|(to, value)| *to = *value);
                    }
                }
            }
        }
    }
}

/// Product of rows with the panels of a block.
pub(super) struct Job<'a> {
    /// Numbers of rows, columns and terms.
    pub size: (usize, usize, usize),
    /// Left operand, with adjacent terms.
    pub a: Matrix<'a>,
    pub panels: &'a [f32],
    pub out: Output,
    /// True if the result is written, false if it is added to.
    pub is_first: bool,
}

/// Returns the numbers of rows and columns of a tile.
pub(super) fn size() -> (usize, usize) {
    match level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => (12, 32),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (6, 16),
        Level::Baseline => (4, 8),
    }
}

/// Instruction set with vectors of `N` elements.
trait Vectors<const N: usize> {
    /// Computes a tile: the sums of the products of rows with the rows of a panel, added to what is at `to` or written
    /// there, `stride` elements from row to row. A function of its own, for inside a larger one the compiler does not
    /// keep the sums in registers.
    ///
    /// # Safety
    /// The caller guarantees that the processor has the instruction set, and that the result has the rows and columns
    /// of the tile, which nothing else accesses.
    unsafe fn multiply<const R: usize, const V: usize, const ADDS: bool>(
        rows: &[&[f32]; R],
        panel: &[[[f32; N]; V]],
        to: *mut f32,
        stride: usize,
    );
}

/// # Safety
/// As for [`Vectors::multiply`].
#[inline(always)]
unsafe fn multiply<const FMA: bool, const R: usize, const V: usize, const N: usize, const ADDS: bool>(
    rows: &[&[f32]; R],
    panel: &[[[f32; N]; V]],
    to: *mut f32,
    stride: usize,
) {
    let rows: [&[f32]; R] = std::array::from_fn(|r| &rows[r][..panel.len()]);
    let mut sums = [[[0.0; N]; V]; R];
    for (p, values) in panel.iter().enumerate() {
        for r in 0..R {
            let factor = rows[r][p];
            for v in 0..V {
                for lane in 0..N {
                    sums[r][v][lane] = mul_add::<FMA>(factor, values[v][lane], sums[r][v][lane]);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        // SAFETY: the caller guarantees `R` rows of V * N elements.
        let to = unsafe { &mut *to.add(r * stride).cast::<[[f32; N]; V]>() };
        for v in 0..V {
            for lane in 0..N {
                to[v][lane] = if ADDS { to[v][lane] + sums[v][lane] } else { sums[v][lane] };
            }
        }
    }
}

macro_rules! vectors {
    ($name:ident, $lanes:literal, $fma:literal $(, #[$enable:meta])?) => {
        struct $name;
        impl Vectors<$lanes> for $name {
            $(#[$enable])?
            #[inline(never)]
            unsafe fn multiply<const R: usize, const V: usize, const ADDS: bool>(
                rows: &[&[f32]; R],
                panel: &[[[f32; $lanes]; V]],
                to: *mut f32,
                stride: usize,
            ) {
                // SAFETY: as the caller guarantees.
                unsafe { multiply::<$fma, R, V, $lanes, ADDS>(rows, panel, to, stride) };
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
vectors!(Avx512, 16, true, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]);
#[cfg(target_arch = "x86_64")]
vectors!(Avx2, 8, true, #[target_feature(enable = "avx2,fma")]);
vectors!(Baseline, 4, false);

impl Job<'_> {
    /// # Safety
    /// The caller guarantees that `out` has as many rows and columns as `size` says, which nothing else accesses.
    pub unsafe fn run(&self) {
        // SAFETY: `level` detected the instruction set; the rest as the caller guarantees.
        unsafe {
            match level() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => self.tiles::<Avx512, 12, 8, 4, 16>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => self.tiles::<Avx2, 6, 4, 2, 8>(),
                Level::Baseline => self.tiles::<Baseline, 4, 2, 1, 4>(),
            }
        }
    }

    /// Computes all tiles: `A` rows each, `B` or `C` where the last rows are fewer.
    ///
    /// # Safety
    /// As for [`run`](Self::run), where the processor has the instruction set `S`.
    unsafe fn tiles<S: Vectors<N>, const A: usize, const B: usize, const C: usize, const N: usize>(&self) {
        let (m, n, k) = self.size;
        for i in (0..m).step_by(A) {
            for j in (0..n).step_by(2 * N) {
                let panel = &self.panels[j * k..];
                // SAFETY: the tile begins inside the result.
                unsafe {
                    match (m - i, n - j > N) {
                        (rows, true) if rows > B => self.tile::<S, A, 2, N>(i, j, panel),
                        (rows, true) if rows > C => self.tile::<S, B, 2, N>(i, j, panel),
                        (_, true) => self.tile::<S, C, 2, N>(i, j, panel),
                        (rows, false) if rows > B => self.tile::<S, A, 1, N>(i, j, panel),
                        (rows, false) if rows > C => self.tile::<S, B, 1, N>(i, j, panel),
                        (_, false) => self.tile::<S, C, 1, N>(i, j, panel),
                    }
                }
            }
        }
    }

    /// Computes the tile of at most `R` rows and `V` vectors of columns at (i, j).
    ///
    /// # Safety
    /// As for [`tiles`](Self::tiles), where the tile begins inside the result.
    unsafe fn tile<S: Vectors<N>, const R: usize, const V: usize, const N: usize>(
        &self,
        i: usize,
        j: usize,
        panel: &[f32],
    ) {
        let (m, n, k) = self.size;
        let (rows, columns) = (R.min(m - i), (V * N).min(n - j));
        // Rows beyond the last one repeat it and are not stored.
        let lines = std::array::from_fn(|r| &self.a.data[(i + r.min(rows - 1)) * self.a.row..][..k]);
        let panel = &panel.as_chunks::<N>().0.as_chunks::<V>().0[..k];
        if (rows, columns, self.out.col) == (R, V * N, 1) {
            // SAFETY: the caller guarantees the instruction set, and the whole tile lies within the result.
            return unsafe {
                let to = self.out.from(i, j).data.get();
                match self.is_first {
                    true => S::multiply::<R, V, false>(&lines, panel, to, self.out.row),
                    false => S::multiply::<R, V, true>(&lines, panel, to, self.out.row),
                }
            };
        }
        let mut sums = [[[0.0f32; N]; V]; R];
        // SAFETY: the caller guarantees the instruction set, and the sums have the rows and columns of the tile.
        unsafe { S::multiply::<R, V, false>(&lines, panel, sums.as_mut_ptr().cast(), V * N) };
        for (r, sums) in sums.iter().enumerate().take(rows) {
            // SAFETY: row i + r has columns j to j + columns, which nothing else accesses.
            unsafe { self.store(self.out.from(i + r, j), &sums.as_flattened()[..columns]) };
        }
    }

    /// Stores a row of a tile.
    ///
    /// # Safety
    /// The caller guarantees that `out` has as many columns, which nothing else accesses.
    #[inline(always)]
    unsafe fn store(&self, out: Output, sums: &[f32]) {
        if out.col == 1 {
            // SAFETY: as the caller guarantees; the elements are adjacent.
            let out = unsafe { std::slice::from_raw_parts_mut(out.data.get(), sums.len()) };
            if self.is_first {
                out.copy_from_slice(sums);
            } else {
                out.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
            }
            return;
        }
        for (lane, sum) in sums.iter().enumerate() {
            // SAFETY: as the caller guarantees.
            let to = unsafe { &mut *out.data.get().add(lane * out.col) };
            *to = if self.is_first { *sum } else { *to + sum };
        }
    }
}
