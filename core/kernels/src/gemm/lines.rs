//! Products with few rows or columns, which read each element of the other operand once.

use super::{Matrix, Output};
use crate::simd::{Level, level, mul_add, multiversion};
use byoc_ir::cancel::Ticks;

/// Computes `out[i, j] = sum over p of a[i, p] * b[j, p]`, where the terms of both operands are adjacent.
pub(super) fn dots(k: usize, a: Matrix<'_>, b: Matrix<'_>, mut out: Output<'_>) {
    let (m, n) = (out.rows, out.cols);
    if m < n {
        // The operand with more lines is read once.
        return dots(k, b, a, out.transposed());
    }
    let mut ticks = Ticks::every(4 * n * k);
    for i in (0..m).step_by(4) {
        if ticks.is_requested() {
            return;
        }
        for j in (0..n).step_by(2) {
            let (rows, columns) = ((m - i).min(4), (n - j).min(2));
            let a = std::array::from_fn(|r| &a.data[(i + r.min(rows - 1)) * a.row..][..k]);
            let b = std::array::from_fn(|c| &b.data[(j + c.min(columns - 1)) * b.row..][..k]);
            for (r, sums) in dots_of(&a, &b, columns).iter().enumerate().take(rows) {
                for (c, sum) in sums.iter().enumerate().take(columns) {
                    *out.element(i + r, j + c) = *sum;
                }
            }
        }
    }
}

/// Returns the dot products of four lines with the first `columns` of two.
fn dots_of(a: &[&[f32]; 4], b: &[&[f32]; 2], columns: usize) -> [[f32; 2]; 4] {
    match (columns, has_wide_vectors()) {
        (1, true) => {
            let mut sums = [[[0.0; 32]; 1]; 4];
            wide_dots_4x1(a, &[b[0]], &mut sums);
            wide_totals_4x1(&sums).map(|[sum]| [sum, 0.0])
        }
        (1, false) => {
            let mut sums = [[[0.0; 16]; 1]; 4];
            dots_4x1(a, &[b[0]], &mut sums);
            totals_4x1(&sums).map(|[sum]| [sum, 0.0])
        }
        (_, true) => {
            let mut sums = [[[0.0; 16]; 2]; 4];
            wide_dots_4x2(a, b, &mut sums);
            wide_totals_4x2(&sums)
        }
        (_, false) => {
            let mut sums = [[[0.0; 8]; 2]; 4];
            dots_4x2(a, b, &mut sums);
            totals_4x2(&sums)
        }
    }
}

#[inline(always)]
fn total_32(sums: &[f32; 32]) -> f32 {
    total_16(&std::array::from_fn(|lane| sums[lane] + sums[lane + 16]))
}

#[inline(always)]
fn total_16(sums: &[f32; 16]) -> f32 {
    total_8(&std::array::from_fn(|lane| sums[lane] + sums[lane + 8]))
}

#[inline(always)]
fn total_8(sums: &[f32; 8]) -> f32 {
    let [a, b, c, d]: [f32; 4] = std::array::from_fn(|lane| sums[lane] + sums[lane + 4]);
    (a + c) + (b + d)
}

/// Returns true if vectors of 16 elements are computed at once.
fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return level() == Level::Avx512;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

// As many partial sums as registers hold, and as the latency of an addition asks for. The compiler keeps them in
// registers only in a function that does nothing else.
multiversion! {
    fn totals_4x1(sums: &[[[f32; 16]; 1]; 4]) -> [[f32; 1]; 4] {
        sums.each_ref().map(|[sums]| [total_16(sums)])
    }

    fn totals_4x2(sums: &[[[f32; 8]; 2]; 4]) -> [[f32; 2]; 4] {
        sums.each_ref().map(|sums| sums.each_ref().map(total_8))
    }

    fn wide_totals_4x1(sums: &[[[f32; 32]; 1]; 4]) -> [[f32; 1]; 4] {
        sums.each_ref().map(|[sums]| [total_32(sums)])
    }

    fn wide_totals_4x2(sums: &[[[f32; 16]; 2]; 4]) -> [[f32; 2]; 4] {
        sums.each_ref().map(|sums| sums.each_ref().map(total_16))
    }

    fn dots_4x1(a: &[&[f32]; 4], b: &[&[f32]; 1], out: &mut [[[f32; 16]; 1]; 4]) {
        products::<FMA, 4, 1, 16>(a, b, out);
    }

    fn dots_4x2(a: &[&[f32]; 4], b: &[&[f32]; 2], out: &mut [[[f32; 8]; 2]; 4]) {
        products::<FMA, 4, 2, 8>(a, b, out);
    }

    fn wide_dots_4x1(a: &[&[f32]; 4], b: &[&[f32]; 1], out: &mut [[[f32; 32]; 1]; 4]) {
        products::<FMA, 4, 1, 32>(a, b, out);
    }

    fn wide_dots_4x2(a: &[&[f32]; 4], b: &[&[f32]; 2], out: &mut [[[f32; 16]; 2]; 4]) {
        products::<FMA, 4, 2, 16>(a, b, out);
    }

    fn add_to_1(out: [&mut [f32]; 1], rows: &[&[f32]; 4], factors: &[[f32; 4]; 1]) {
        add_rows::<FMA, 1>(out, rows, factors);
    }

    fn add_to_4(out: [&mut [f32]; 4], rows: &[&[f32]; 4], factors: &[[f32; 4]; 4]) {
        add_rows::<FMA, 4>(out, rows, factors);
    }
}

/// Adds the products of four rows with one factor each to every row of `out`.
#[inline(always)]
fn add_rows<const FMA: bool, const M: usize>(mut out: [&mut [f32]; M], rows: &[&[f32]; 4], factors: &[[f32; 4]; M]) {
    let columns = rows[0].len();
    let rows = rows.map(|row| &row[..columns]);
    out.iter_mut().for_each(|out| *out = &mut std::mem::take(out)[..columns]);
    for j in 0..columns {
        for i in 0..M {
            let mut sum = out[i][j];
            for r in 0..4 {
                sum = mul_add::<FMA>(rows[r][j], factors[i][r], sum);
            }
            out[i][j] = sum;
        }
    }
}

/// Computes the dot products of `A` lines with `B` lines, each in `N` partial sums.
#[inline(always)]
fn products<const FMA: bool, const A: usize, const B: usize, const N: usize>(
    a: &[&[f32]; A],
    b: &[&[f32]; B],
    out: &mut [[[f32; N]; B]; A],
) {
    let chunks = a[0].len() / N;
    let (a_rest, b_rest) = (a.map(|line| &line[chunks * N..]), b.map(|line| &line[chunks * N..]));
    let a: [&[[f32; N]]; A] = std::array::from_fn(|r| &a[r].as_chunks::<N>().0[..chunks]);
    let b: [&[[f32; N]]; B] = std::array::from_fn(|c| &b[c].as_chunks::<N>().0[..chunks]);
    let mut sums = [[[0.0f32; N]; B]; A];
    for p in 0..chunks {
        for r in 0..A {
            for c in 0..B {
                for lane in 0..N {
                    sums[r][c][lane] = mul_add::<FMA>(a[r][p][lane], b[c][p][lane], sums[r][c][lane]);
                }
            }
        }
    }
    *out = sums;
    for r in 0..A {
        for c in 0..B {
            for (x, y) in a_rest[r].iter().zip(b_rest[c]) {
                out[r][c][0] = mul_add::<FMA>(*x, *y, out[r][c][0]);
            }
        }
    }
}

/// Computes `out[i, j] = sum over p of a[i, p] * b[p, j]`, where the elements of each row of `b` and of `out` are
/// adjacent: each row of the result is a weighted sum of the rows of `b`.
pub(super) fn sums(k: usize, a: Matrix<'_>, b: Matrix<'_>, out: &mut Output<'_>) {
    /// Columns of the result that stay in the L1 cache while rows are added.
    const COLUMNS: usize = 1024;
    const NONE: &[f32] = &[0.0; COLUMNS];
    let (m, n) = (out.rows, out.cols);
    let mut ticks = Ticks::every(4 * m * n.min(COLUMNS));
    for first in (0..n).step_by(COLUMNS) {
        let columns = first..(first + COLUMNS).min(n);
        for i in 0..m {
            out.lines(i, columns.clone()).into_iter().for_each(|[line]| line.fill(0.0));
        }
        for p in (0..k).step_by(4) {
            if ticks.is_requested() {
                return;
            }
            let rows = std::array::from_fn(|r| match p + r < k {
                true => &b.data[(p + r) * b.row..][columns.clone()],
                false => &NONE[..columns.len()],
            });
            let factors =
                |i: usize| std::array::from_fn(|r| if p + r < k { a.data[i * a.row + (p + r) * a.col] } else { 0.0 });
            for i in (0..m / 4 * 4).step_by(4) {
                let factors = std::array::from_fn(|line| factors(i + line));
                out.lines(i, columns.clone()).into_iter().for_each(|lines| add_to_4(lines, &rows, &factors));
            }
            for i in m / 4 * 4..m {
                out.lines(i, columns.clone()).into_iter().for_each(|line| add_to_1(line, &rows, &[factors(i)]));
            }
        }
    }
}
