//! Matrix products of `f32`: the crates `gemm` and, for small products, `nano-gemm`, split over the pool's threads, and
//! hand-written dot products for results with few rows (a product that reads each weight once is memory-bound, not
//! compute-bound).

use super::simd::{mul_add, multiversion};
use super::split::{self, SharedPtr};
use byoc_ir::cancel;

/// Matrix in memory: elements, row stride and column stride.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    /// Elements of the matrix, beginning with element (0, 0).
    pub data: &'a [f32],
    /// Stride between rows, in elements.
    pub row: usize,
    /// Stride between columns, in elements.
    pub col: usize,
}

impl Matrix<'_> {
    /// Returns true if `rows` x `cols` elements lie inside the data.
    fn contains(&self, rows: usize, cols: usize) -> bool {
        rows == 0 || cols == 0 || (rows - 1) * self.row + (cols - 1) * self.col < self.data.len()
    }
}

/// Maximum number of multiply-adds in a product that is computed without packing its operands, and thus without scratch
/// memory. Up to this size both methods take the same time.
const MAX_UNPACKED_PRODUCTS: usize = 1 << 20;

/// Maximum number of rows in a result for which dot products beat the blocked product.
const MAX_DOT_ROWS: usize = 4;

/// Computes `out[i * out_row + j] = sum over p of a[i, p] * b[p, j]` for an m x n result, on up to `threads` threads;
/// 1 means the calling thread.
///
/// # Panics
/// If an operand or `out` is smaller than the sizes require, which is a bug in the kernel.
pub(super) fn gemm(
    threads: usize,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    assert!(m == 0 || n == 0 || out_row >= n && (m - 1) * out_row + n <= out.len(), "the result lies within `out`");
    // SAFETY: the assertion keeps the m rows of n elements inside `out`, whose exclusive borrow rules out other
    // accesses.
    unsafe { gemm_at(threads, (m, n, k), a, b, out.as_mut_ptr(), out_row) };
}

/// Variant of [`gemm`] for output rows that cannot be borrowed as one slice, because other parts of the work write the
/// elements between the rows.
///
/// # Panics
/// If an operand is smaller than the sizes require, which is a bug in the kernel.
///
/// # Safety
/// The caller guarantees that `out` points to `m` rows of `n` elements, `out_row` apart, that nothing else accesses.
pub(super) unsafe fn gemm_at(
    threads: usize,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    out: *mut f32,
    out_row: usize,
) {
    assert!(a.contains(m, k) && b.contains(k, n), "the operands have the required sizes");
    if k == 0 {
        for i in 0..m {
            // SAFETY: the caller guarantees `m` rows of `n` elements at `out` that nothing else accesses, and i < m.
            unsafe { std::slice::from_raw_parts_mut(out.add(i * out_row), n) }.fill(0.0);
        }
        return;
    }
    let shared_out = SharedPtr::at(out);
    let by_rows = m > n;
    let parts = if by_rows { threads.min(m.div_ceil(8)) } else { threads.min(n.div_ceil(16)) };
    split::for_each_part(parts, |i| {
        let rows = if by_rows { split::part(m, 8, i, parts) } else { 0..m };
        let cols = if by_rows { 0..n } else { split::part(n, 16, i, parts) };
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let a = Matrix { data: &a.data[rows.start * a.row..], ..a };
        let b = Matrix { data: &b.data[cols.start * b.col..], ..b };
        for depth_range in pieces(rows.len(), cols.len(), k) {
            if cancel::is_requested() {
                return;
            }
            let a = Matrix { data: &a.data[depth_range.start * a.row..], ..a };
            // SAFETY: the caller guarantees exclusive access to the m x n result, `split::part` assigns the rectangle
            // `rows` x `cols` to this part alone, and the assertion keeps the reads inside the operands.
            unsafe {
                let first = shared_out.get().add((rows.start + depth_range.start) * out_row + cols.start);
                block((depth_range.len(), cols.len(), k), a, b, first, out_row);
            }
        }
    });
}

/// Splits the rows of a product into chunks that take about one second each. Cancellation is polled between chunks.
fn pieces(m: usize, n: usize, k: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    const PIECE_PRODUCTS: usize = 1 << 35;
    let rows = (PIECE_PRODUCTS / n.saturating_mul(k).max(1)).next_multiple_of(256).max(256);
    (0..m).step_by(rows).map(move |first| first..(first + rows).min(m))
}

/// Computes one part of the product.
///
/// # Safety
/// The caller guarantees that `out` points to `m` rows of `n` elements, `out_row` apart, that nothing else accesses,
/// and that `a` holds `m` x `k` elements and `b` holds `k` x `n`.
unsafe fn block((m, n, k): (usize, usize, usize), a: Matrix<'_>, b: Matrix<'_>, out: *mut f32, out_row: usize) {
    if m <= MAX_DOT_ROWS && a.col == 1 && b.row == 1 && k >= 16 {
        for j in 0..n {
            let column = &b.data[j * b.col..][..k];
            for i in 0..m {
                // SAFETY: i < m and j < n, so the caller guarantees that the element is valid and accessed by nothing
                // else.
                unsafe { *out.add(i * out_row + j) = dot(&a.data[i * a.row..][..k], column) };
            }
        }
        return;
    }
    // `nano-gemm` stores results by columns, so it computes the transposed product.
    let is_unpacked = (b.col == 1 && m.saturating_mul(n).saturating_mul(k) <= MAX_UNPACKED_PRODUCTS)
        .then(|| nano_gemm::Plan::new_colmajor_lhs_and_dst_f32(n, m, k));
    let (a_row, a_col, b_row, b_col) = (a.row as isize, a.col as isize, b.row as isize, b.col as isize);
    let (a, b, out_row) = (a.data.as_ptr(), b.data.as_ptr(), out_row as isize);
    // SAFETY: the caller guarantees the sizes of the operands and exclusive access to the result, which is written,
    // never read (its factor is 0, or `read_dst` is false).
    unsafe {
        match is_unpacked {
            Some(plan) => {
                plan.execute_unchecked(n, m, k, out, 1, out_row, b, 1, b_row, a, a_col, a_row, 0.0, 1.0, false, false);
            }
            None => {
                let parallelism = gemm::Parallelism::None;
                gemm::gemm(
                    m,
                    n,
                    k,
                    out,
                    1,
                    out_row,
                    false,
                    a,
                    a_col,
                    a_row,
                    b,
                    b_col,
                    b_row,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    parallelism,
                );
            }
        }
    }
}

multiversion! {
    /// Returns the dot product, accumulated in 64 partial sums.
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        const LANES: usize = 64;
        let mut accumulators = [0.0f32; LANES];
        let (whole_a, rest_a) = a.as_chunks::<LANES>();
        let (whole_b, rest_b) = b.as_chunks::<LANES>();
        for (x, y) in whole_a.iter().zip(whole_b) {
            for i in 0..LANES {
                accumulators[i] = mul_add::<FMA>(x[i], y[i], accumulators[i]);
            }
        }
        for (i, (x, y)) in rest_a.iter().zip(rest_b).enumerate() {
            accumulators[i] = mul_add::<FMA>(*x, *y, accumulators[i]);
        }
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                accumulators[i] += accumulators[i + width];
            }
            width /= 2;
        }
        accumulators[0]
    }
}
