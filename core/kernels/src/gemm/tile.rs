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

/// Rectangle of a result, to which the products of some terms are added.
pub(super) struct Block {
    pub rows: Range<usize>,
    pub columns: Range<usize>,
    /// Number of terms.
    pub terms: usize,
    /// False if the result is written, not added to.
    pub adds: bool,
}

/// Returns the numbers of rows and columns of a tile.
pub(super) fn size() -> (usize, usize) {
    match level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Avx512::TILE,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Avx2::TILE,
        Level::Baseline => Baseline::TILE,
    }
}

/// Sums of a tile: `R` rows of `V` vectors of `N` columns.
type Sums<const R: usize, const V: usize, const N: usize> = [[[f32; N]; V]; R];

/// Instruction set with vectors of `N` elements.
trait Vectors<const N: usize> {
    /// Computes a tile: the sums of the products of rows with the rows of a panel. A function of its own, which does
    /// nothing else, for in another one the compiler does not keep the sums in registers.
    ///
    /// # Safety
    /// The caller guarantees that the processor has the instruction set.
    unsafe fn multiply<const R: usize, const V: usize>(
        rows: &[&[f32]; R],
        panel: &[[[f32; N]; V]],
        out: &mut Sums<R, V, N>,
    );
}

#[inline(always)]
fn multiply<const FMA: bool, const R: usize, const V: usize, const N: usize>(
    rows: &[&[f32]; R],
    panel: &[[[f32; N]; V]],
    out: &mut Sums<R, V, N>,
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
    *out = sums;
}

// An instruction set: the number of elements of a vector, the rows of a tile and of the two smaller ones for the last rows,
// whether multiplication and addition are fused, and the features of the processor. A tile has two vectors of columns.
macro_rules! vectors {
    ($name:ident, $lanes:literal, [$rows:literal, $fewer:literal, $least:literal], $fma:literal $(, #[$enable:meta])?) => {
        struct $name;
        impl $name {
            /// Numbers of rows and columns of a tile.
            const TILE: (usize, usize) = ($rows, 2 * $lanes);

            /// Computes all tiles of a block. The processor has the instruction set.
            fn tiles(block: &Block, a: Matrix<'_>, panels: &[f32], out: &mut Output<'_>) {
                block.tiles::<$name, $rows, $fewer, $least, $lanes>(a, panels, out);
            }
        }
        impl Vectors<$lanes> for $name {
            $(#[$enable])?
            #[inline(never)]
            unsafe fn multiply<const R: usize, const V: usize>(
                rows: &[&[f32]; R],
                panel: &[[[f32; $lanes]; V]],
                out: &mut Sums<R, V, $lanes>,
            ) {
                multiply::<$fma, R, V, $lanes>(rows, panel, out);
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
vectors!(Avx512, 16, [12, 8, 4], true, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]);
#[cfg(target_arch = "x86_64")]
vectors!(Avx2, 8, [6, 4, 2], true, #[target_feature(enable = "avx2,fma")]);
vectors!(Baseline, 4, [4, 2, 1], false);

impl Block {
    /// Multiplies rows, whose terms are adjacent, with packed panels.
    pub fn multiply(&self, a: Matrix<'_>, panels: &[f32], out: &mut Output<'_>) {
        match level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Avx512::tiles(self, a, panels, out),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Avx2::tiles(self, a, panels, out),
            Level::Baseline => Baseline::tiles(self, a, panels, out),
        }
    }

    /// Computes all tiles: `A` rows each, `B` or `C` where the last rows are fewer. The processor has the instruction set
    /// `S`.
    fn tiles<S: Vectors<N>, const A: usize, const B: usize, const C: usize, const N: usize>(
        &self,
        a: Matrix<'_>,
        panels: &[f32],
        out: &mut Output<'_>,
    ) {
        let (m, n) = (self.rows.len(), self.columns.len());
        for i in (0..m).step_by(A) {
            for j in (0..n).step_by(2 * N) {
                let panel = &panels[j * self.terms..];
                match (m - i, n - j > N) {
                    (rows, true) if rows > B => self.tile::<S, A, 2, N>([i, j], a, panel, out),
                    (rows, true) if rows > C => self.tile::<S, B, 2, N>([i, j], a, panel, out),
                    (_, true) => self.tile::<S, C, 2, N>([i, j], a, panel, out),
                    (rows, false) if rows > B => self.tile::<S, A, 1, N>([i, j], a, panel, out),
                    (rows, false) if rows > C => self.tile::<S, B, 1, N>([i, j], a, panel, out),
                    (_, false) => self.tile::<S, C, 1, N>([i, j], a, panel, out),
                }
            }
        }
    }

    /// Computes the tile of at most `R` rows and `V` vectors of columns at (i, j).
    fn tile<S: Vectors<N>, const R: usize, const V: usize, const N: usize>(
        &self,
        [i, j]: [usize; 2],
        a: Matrix<'_>,
        panel: &[f32],
        out: &mut Output<'_>,
    ) {
        let (rows, columns) = (R.min(self.rows.len() - i), (V * N).min(self.columns.len() - j));
        // Rows beyond the last one repeat it and are not stored.
        let lines = std::array::from_fn(|r| &a.data[(i + r.min(rows - 1)) * a.row..][..self.terms]);
        let panel = &panel.as_chunks::<N>().0.as_chunks::<V>().0[..self.terms];
        let (first_row, first_column) = (self.rows.start + i, self.columns.start + j);
        let mut sums = [[[0.0f32; N]; V]; R];
        // SAFETY: `multiply` chose an instruction set of the processor.
        unsafe { S::multiply::<R, V>(&lines, panel, &mut sums) };
        if (rows, columns) == (R, V * N)
            && let Some(lines) = out.lines::<R>(first_row, first_column..first_column + columns)
        {
            // Loops of known length.
            for (line, sums) in lines.into_iter().zip(&sums) {
                for (to, sums) in line.as_chunks_mut::<N>().0.iter_mut().zip(sums) {
                    if self.adds {
                        to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
                    } else {
                        *to = *sums;
                    }
                }
            }
            return;
        }
        for (r, sums) in sums.iter().enumerate().take(rows) {
            let sums = &sums.as_flattened()[..columns];
            if let Some([line]) = out.lines(first_row + r, first_column..first_column + columns) {
                match self.adds {
                    true => line.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum),
                    false => line.copy_from_slice(sums),
                }
                continue;
            }
            for (column, sum) in sums.iter().enumerate() {
                let to = out.element(first_row + r, first_column + column);
                *to = if self.adds { *to + sum } else { *sum };
            }
        }
    }
}
