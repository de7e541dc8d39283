//! Matrix products of `f32`, split over the pool's threads.
//!
//! * Results of at least a few rows and columns: [tiles](tile) of the result in registers. The right operand is packed,
//!   a block at a time, into panels as wide as a tile; the left one is read in place. Where only the sums are adjacent
//!   in both operands, the smaller one is packed, which may exchange their roles.
//! * Results of few rows or columns are bound by reading the other operand, each element once: [dot products](lines)
//!   where the sums are adjacent in memory, else weighted sums of its rows.

mod lines;
#[cfg(test)]
mod tests;
mod tile;

use super::split::{self, SharedPtr};
use byoc_ir::cancel;
use std::cell::RefCell;
use std::ops::Range;
use tile::{Job, Panels};

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

impl<'a> Matrix<'a> {
    /// Returns true if `rows` x `cols` elements lie inside the data.
    fn contains(&self, rows: usize, cols: usize) -> bool {
        rows == 0 || cols == 0 || (rows - 1) * self.row + (cols - 1) * self.col < self.data.len()
    }

    fn transposed(self) -> Matrix<'a> {
        Matrix { row: self.col, col: self.row, ..self }
    }

    /// Returns the matrix without its first `row` rows and `col` columns.
    fn from(self, row: usize, col: usize) -> Matrix<'a> {
        Matrix { data: &self.data[row * self.row + col * self.col..], ..self }
    }
}

/// Right operand of a product, as it is packed.
pub(super) trait Columns: Sync {
    /// Returns elements `columns` of row `row`, written to `line` unless they lie side by side in memory.
    fn row<'x>(&'x self, row: usize, columns: Range<usize>, line: &'x mut [f32]) -> &'x [f32];
}

/// Matrix whose rows are adjacent elements.
impl Columns for Matrix<'_> {
    fn row<'x>(&'x self, row: usize, columns: Range<usize>, _: &'x mut [f32]) -> &'x [f32] {
        &self.data[row * self.row..][columns]
    }
}

/// Result of a product: `rows` x `cols` elements that one thread writes.
#[derive(Clone, Copy)]
struct Output {
    data: SharedPtr<f32>,
    /// Strides between rows and between columns, in elements.
    row: usize,
    col: usize,
}

impl Output {
    /// # Safety
    /// The caller guarantees that the result has more than `row` rows and `col` columns.
    unsafe fn from(self, row: usize, col: usize) -> Output {
        // SAFETY: as the caller guarantees, the element lies within the result.
        Output { data: SharedPtr::at(unsafe { self.data.get().add(row * self.row + col * self.col) }), ..self }
    }
}

/// Maximum number of rows or columns in a result for which dot products beat tiles.
const MAX_LINES: usize = 8;

/// Minimum number of terms for which dot products beat tiles.
const MIN_DOT_TERMS: usize = 16;

/// Maximum number of rows in a result for which weighted sums of the right operand's rows beat tiles.
const MAX_SUM_ROWS: usize = 8;

/// Terms and columns of a block of the right operand, which is packed at a time: 256 KiB, which stay in the L2 cache.
const BLOCK: [usize; 2] = [256, 256];

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
    let out = Output { data: SharedPtr::at(out), row: out_row, col: 1 };
    if k == 0 {
        // SAFETY: as the caller guarantees.
        return unsafe { clear((m, n), out) };
    }
    // A matrix with a single term or column has any stride there.
    let is_adjacent = |stride: usize, count: usize| stride == 1 || count == 1;
    let (a_by_terms, b_by_terms) = (is_adjacent(a.col, k), is_adjacent(b.row, k) && !is_adjacent(b.col, n));
    for_each_rectangle(threads, (m, n), |rows, cols| {
        let (m, n) = (rows.len(), cols.len());
        let (a, b) = (a.from(rows.start, 0), b.from(0, cols.start));
        // SAFETY: the caller guarantees exclusive access to the m x n result, of which this rectangle is a part that
        // no other thread accesses.
        unsafe {
            let out = out.from(rows.start, cols.start);
            if a_by_terms && b_by_terms && m.min(n) <= MAX_LINES && k >= MIN_DOT_TERMS {
                lines::dots((m, n, k), a, b.transposed(), out);
            } else if m <= MAX_SUM_ROWS && is_adjacent(b.col, n) {
                lines::sums((m, n, k), a, b, out);
            } else if a_by_terms && n <= MAX_LINES && k >= 4 * MIN_DOT_TERMS {
                with_scratch(|_, copy| {
                    copy.clear();
                    (0..n).for_each(|j| copy.extend((0..k).map(|p| b.data[p * b.row + j * b.col])));
                    lines::dots((m, n, k), a, Matrix { data: copy, row: k, col: 1 }, out);
                });
            } else if b_by_terms && (a_by_terms && m <= n) {
                // The transposed product packs the smaller operand.
                let out = Output { row: out.col, col: out.row, ..out };
                blocks((n, m, k), b.transposed(), &Panels::Transposed(a), out);
            } else if is_adjacent(b.col, n) {
                blocks((m, n, k), a, &Panels::Rows(&b), out);
            } else {
                blocks((m, n, k), a, &Panels::Transposed(b.transposed()), out);
            }
        }
    });
}

/// Variant of [`gemm_at`] whose right operand is gathered as it is packed.
///
/// # Panics
/// If `a` is smaller than the sizes require, which is a bug in the kernel.
///
/// # Safety
/// The caller guarantees that `out` points to `m` rows of `n` elements, `out_row` apart, that nothing else accesses.
pub(super) unsafe fn gemm_gathered(
    threads: usize,
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: &dyn Columns,
    out: *mut f32,
    out_row: usize,
) {
    assert!(a.contains(m, k), "the operand has the required size");
    let out = Output { data: SharedPtr::at(out), row: out_row, col: 1 };
    if k == 0 {
        // SAFETY: as the caller guarantees.
        return unsafe { clear((m, n), out) };
    }
    for_each_rectangle(threads, (m, n), |rows, cols| {
        let (a, b) = (a.from(rows.start, 0), Shifted { columns: b, first: cols.start });
        // SAFETY: as in `gemm_at`.
        unsafe {
            blocks((rows.len(), cols.len(), k), a, &Panels::Rows(&b), out.from(rows.start, cols.start));
        }
    });
}

/// Writes zeros: a sum without terms.
///
/// # Safety
/// The caller guarantees that `out` has `m` rows of `n` adjacent elements that nothing else accesses.
unsafe fn clear((m, n): (usize, usize), out: Output) {
    for i in 0..m {
        // SAFETY: as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(out.data.get().add(i * out.row), n) }.fill(0.0);
    }
}

/// Columns from column `first` on.
struct Shifted<'a> {
    columns: &'a dyn Columns,
    first: usize,
}

impl Columns for Shifted<'_> {
    fn row<'x>(&'x self, row: usize, columns: Range<usize>, line: &'x mut [f32]) -> &'x [f32] {
        self.columns.row(row, self.first + columns.start..self.first + columns.end, line)
    }
}

/// Calls `f(rows, columns)` for disjoint rectangles that cover an m x n result, on up to `threads` threads.
fn for_each_rectangle(threads: usize, (m, n): (usize, usize), f: impl Fn(Range<usize>, Range<usize>) + Send + Sync) {
    let (rows, columns) = tile::size();
    let (row_unit, column_unit) = (rows.min(m.div_ceil(threads)).max(1), (columns / 2).max(1));
    // The part with the most tiles decides on the time.
    let largest = |total: usize, unit: usize| total.div_ceil(unit).div_ceil(threads) * unit;
    let by_rows = largest(m, row_unit) * n.next_multiple_of(column_unit) < m * largest(n, column_unit);
    let (total, unit) = if by_rows { (m, row_unit) } else { (n, column_unit) };
    let parts = threads.min(total.div_ceil(unit));
    split::for_each_part(parts, |i| {
        let part = split::part(total, unit, i, parts);
        let (rows, columns) = if by_rows { (part, 0..n) } else { (0..m, part) };
        if !rows.is_empty() && !columns.is_empty() {
            f(rows, columns);
        }
    });
}

thread_local! {
    /// Packed block of the right operand, and copied rows of the left one.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Calls `f` with the memory of this thread for packed blocks and for copies.
fn with_scratch<R>(f: impl FnOnce(&mut Vec<f32>, &mut Vec<f32>) -> R) -> R {
    SCRATCH.with_borrow_mut(|[panels, copy]| f(panels, copy))
}

/// Computes one rectangle of a product by tiles.
///
/// # Safety
/// The caller guarantees that `out` has `m` x `n` elements that nothing else accesses.
unsafe fn blocks((m, n, k): (usize, usize, usize), a: Matrix<'_>, b: &Panels<'_>, out: Output) {
    /// Rows between two polls for cancellation.
    const ROWS: usize = 1 << 12;
    with_scratch(|panels, copy| {
        let mut first_column = 0;
        while first_column < n {
            let columns = first_column..(first_column + BLOCK[1]).min(n);
            let mut first_term = 0;
            loop {
                let terms = first_term..(first_term + BLOCK[0]).min(k);
                b.pack(terms.clone(), columns.clone(), panels);
                for first_row in (0..m).step_by(ROWS) {
                    if cancel::is_requested() {
                        return;
                    }
                    let rows = ROWS.min(m - first_row);
                    let mut a = a.from(first_row, terms.start);
                    if a.col != 1 && terms.len() != 1 {
                        copy.clear();
                        (0..rows).for_each(|i| copy.extend((0..terms.len()).map(|p| a.data[i * a.row + p * a.col])));
                        a = Matrix { data: copy, row: terms.len(), col: 1 };
                    }
                    // SAFETY: the rows and columns lie within the m x n result.
                    let out = unsafe { out.from(first_row, columns.start) };
                    let size = (rows, columns.len(), terms.len());
                    // SAFETY: as above, and nothing else accesses the result.
                    unsafe { Job { size, a, panels, out, is_first: terms.start == 0 }.run() };
                }
                first_term = terms.end;
                if first_term >= k {
                    break;
                }
            }
            first_column = columns.end;
        }
    });
}
