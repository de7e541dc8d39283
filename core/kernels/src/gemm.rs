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
use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts_mut;
use tile::{Block, Panels};

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

/// Result of a product, or a rectangle of one: elements that nothing else accesses.
pub(super) struct Output<'a> {
    data: SharedPtr<f32>,
    rows: usize,
    cols: usize,
    /// Strides between rows and between columns, in elements.
    strides: [usize; 2],
    borrow: PhantomData<&'a mut [f32]>,
}

impl<'a> Output<'a> {
    /// Creates a result of `rows` x `cols` elements, whose rows are `stride` apart.
    ///
    /// # Panics
    /// If `data` is too small.
    pub fn of(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Output<'a> {
        let last = rows.saturating_sub(1) * stride + cols;
        assert!(rows == 0 || stride >= cols && last <= data.len(), "the result lies within the data");
        // SAFETY: the assertion keeps the rows inside the data, which are borrowed exclusively.
        unsafe { Output::at(data.as_mut_ptr(), rows, cols, stride) }
    }

    /// Variant of [`of`](Output::of) for rows that cannot be borrowed as one slice, because other parts of the work write
    /// the elements between them.
    ///
    /// # Safety
    /// The caller guarantees that `data` points to `rows` rows of `cols` elements, `stride` apart, which nothing else
    /// accesses during `'a`.
    pub unsafe fn at(data: *mut f32, rows: usize, cols: usize, stride: usize) -> Output<'a> {
        Output { data: SharedPtr::at(data), rows, cols, strides: [stride, 1], borrow: PhantomData }
    }

    fn transposed(self) -> Output<'a> {
        Output { rows: self.cols, cols: self.rows, strides: [self.strides[1], self.strides[0]], ..self }
    }

    /// Returns the address of an element. An address is no access.
    fn address(&self, row: usize, col: usize) -> *mut f32 {
        self.data.get().wrapping_add(row * self.strides[0] + col * self.strides[1])
    }

    /// Returns columns `cols` of `N` rows from `row` on, if the elements of a row are adjacent.
    fn lines<const N: usize>(&mut self, row: usize, cols: Range<usize>) -> Option<[&mut [f32]; N]> {
        assert!(row + N <= self.rows && cols.end <= self.cols, "the rows lie within the result");
        // SAFETY: the assertion keeps the rows inside the result, they do not overlap, and `self` is borrowed.
        let line = |i: usize| unsafe { from_raw_parts_mut(self.address(row + i, cols.start), cols.len()) };
        (self.strides[1] == 1).then(|| std::array::from_fn(line))
    }

    /// Returns an element.
    fn element(&mut self, row: usize, col: usize) -> &mut f32 {
        assert!(row < self.rows && col < self.cols, "the element lies within the result");
        // SAFETY: the assertion keeps the element inside the result, and `self` is borrowed.
        unsafe { &mut *self.address(row, col) }
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

/// Computes `out[i, j] = sum over p of a[i, p] * b[p, j]`, where p is below `k`, on up to `threads` threads; 1 means the
/// calling thread.
///
/// # Panics
/// If an operand is smaller than the sizes require, which is a bug in the kernel.
pub(super) fn gemm(threads: usize, k: usize, a: Matrix<'_>, b: Matrix<'_>, mut out: Output<'_>) {
    assert!(a.contains(out.rows, k) && b.contains(k, out.cols), "the operands have the required sizes");
    if k == 0 {
        return clear(&mut out);
    }
    // A matrix with a single term or column has any stride there.
    let is_adjacent = |stride: usize, count: usize| stride == 1 || count == 1;
    let a_by_terms = is_adjacent(a.col, k);
    for_each_rectangle(threads, out, |first_row, first_column, mut out| {
        let (m, n) = (out.rows, out.cols);
        let (a, b) = (a.from(first_row, 0), b.from(0, first_column));
        let b_by_terms = is_adjacent(b.row, k) && !is_adjacent(b.col, n);
        if a_by_terms && b_by_terms && m.min(n) <= MAX_LINES && k >= MIN_DOT_TERMS {
            lines::dots(k, a, b.transposed(), out);
        } else if m <= MAX_SUM_ROWS && is_adjacent(b.col, n) {
            lines::sums(k, a, b, &mut out);
        } else if a_by_terms && n <= MAX_LINES && k >= 4 * MIN_DOT_TERMS {
            with_scratch(|_, copy| {
                copy.clear();
                (0..n).for_each(|j| copy.extend((0..k).map(|p| b.data[p * b.row + j * b.col])));
                lines::dots(k, a, Matrix { data: copy, row: k, col: 1 }, out);
            });
        } else if b_by_terms && a_by_terms && m <= n {
            // The transposed product packs the smaller operand.
            blocks(k, b.transposed(), &Panels::Transposed(a), out.transposed());
        } else if is_adjacent(b.col, n) {
            blocks(k, a, &Panels::Rows(&b), out);
        } else {
            blocks(k, a, &Panels::Transposed(b.transposed()), out);
        }
    });
}

/// Variant of [`gemm`] whose right operand is gathered as it is packed.
///
/// # Panics
/// If `a` is smaller than the sizes require, which is a bug in the kernel.
pub(super) fn gemm_gathered(threads: usize, k: usize, a: Matrix<'_>, b: &dyn Columns, mut out: Output<'_>) {
    assert!(a.contains(out.rows, k), "the operand has the required size");
    if k == 0 {
        return clear(&mut out);
    }
    for_each_rectangle(threads, out, |first_row, first_column, out| {
        let b = Shifted { columns: b, first: first_column };
        blocks(k, a.from(first_row, 0), &Panels::Rows(&b), out);
    });
}

/// Writes zeros: sums without terms.
fn clear(out: &mut Output<'_>) {
    for row in 0..out.rows {
        (0..out.cols).for_each(|col| *out.element(row, col) = 0.0);
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

/// Calls `f(row, column, rectangle)` for disjoint rectangles that cover a result, with the place of their first elements,
/// on up to `threads` threads.
fn for_each_rectangle(threads: usize, out: Output<'_>, f: impl Fn(usize, usize, Output<'_>) + Send + Sync) {
    let (m, n) = (out.rows, out.cols);
    let (rows, columns) = tile::size();
    let (row_unit, column_unit) = (rows.min(m.div_ceil(threads)).max(1), (columns / 2).max(1));
    // The part with the most tiles decides on the time.
    let largest = |total: usize, unit: usize| total.div_ceil(unit).div_ceil(threads) * unit;
    let by_rows = largest(m, row_unit) * n.next_multiple_of(column_unit) < m * largest(n, column_unit);
    let (total, unit) = if by_rows { (m, row_unit) } else { (n, column_unit) };
    let parts = threads.min(total.div_ceil(unit));
    let (data, strides) = (out.data, out.strides);
    split::for_each_part(parts, |i| {
        let part = split::part(total, unit, i, parts);
        let (rows, columns) = if by_rows { (part, 0..n) } else { (0..m, part) };
        if !rows.is_empty() && !columns.is_empty() {
            let first = data.get().wrapping_add(rows.start * strides[0] + columns.start * strides[1]);
            let (data, borrow) = (SharedPtr::at(first), PhantomData);
            f(rows.start, columns.start, Output { data, rows: rows.len(), cols: columns.len(), strides, borrow });
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
fn blocks(k: usize, a: Matrix<'_>, b: &Panels<'_>, mut out: Output<'_>) {
    /// Rows between two polls for cancellation.
    const ROWS: usize = 1 << 12;
    let (m, n) = (out.rows, out.cols);
    with_scratch(|panels, copy| {
        for first_column in (0..n).step_by(BLOCK[1]) {
            let columns = first_column..(first_column + BLOCK[1]).min(n);
            for first_term in (0..k).step_by(BLOCK[0]) {
                let terms = first_term..(first_term + BLOCK[0]).min(k);
                b.pack(terms.clone(), columns.clone(), panels);
                for first_row in (0..m).step_by(ROWS) {
                    if cancel::is_requested() {
                        return;
                    }
                    let rows = first_row..(first_row + ROWS).min(m);
                    let mut a = a.from(first_row, terms.start);
                    if a.col != 1 && terms.len() != 1 {
                        let row = |i: usize| (0..terms.len()).map(move |p| a.data[i * a.row + p * a.col]);
                        copy.clear();
                        (0..rows.len()).for_each(|i| copy.extend(row(i)));
                        a = Matrix { data: copy, row: terms.len(), col: 1 };
                    }
                    let block = Block { rows, columns: columns.clone(), terms: terms.len(), adds: first_term > 0 };
                    block.multiply(a, panels, &mut out);
                }
            }
        }
    });
}
