//! Schedules of loop nests that visit each point once: elementwise chains, transposes, reductions.

use super::tasks;
use crate::nest::body::LoopBody;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::{View, count};

/// Number of rows per transpose block.
pub const TRANSPOSE_BLOCK: i64 = 64;

/// Schedule of a plain loop nest: rows along the last dimension, divided into tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Points {
    /// Number of rows.
    pub rows: i64,
    /// Number of points in a row.
    pub len: i64,
    /// Number of tasks among which the rows are divided, or the points if there is only one row.
    pub tasks: i64,
}

impl Points {
    /// Schedules a loop body; `None` for an empty index space.
    pub fn new(body: &LoopBody) -> Option<Points> {
        let (len, rows) = match body.domain.split_last() {
            Some((&len, outer)) => (len, count(outer)),
            None => (1, 1),
        };
        let tasks = tasks(len * rows * body.weight(), 65_536, 16, if rows == 1 { len } else { rows });
        (len * rows != 0).then_some(Points { rows, len, tasks })
    }
}

/// Blocked transpose of two dimensions: `across` is contiguous in the source, the last dimension in the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// Dimension that is contiguous in the source.
    pub across: usize,
    /// Extent of the dimension `across`.
    pub rows: i64,
    /// Extent of the last dimension.
    pub columns: i64,
    /// All dimensions but the last, with `across` counted in blocks.
    pub dims: Vec<i64>,
    /// Number of blocks.
    pub items: i64,
    /// Number of tasks.
    pub tasks: i64,
}

impl Transpose {
    /// Schedules a float32 copy whose source and target have different innermost dimensions; `None` for any other body.
    pub fn new(body: &LoopBody) -> Option<Transpose> {
        let ([load], [_], []) = (&body.loads[..], &body.stores[..], &body.lines[..]) else { return None };
        let (&columns, outer) = body.domain.split_last()?;
        let strides = &load.view.strides;
        let across = (0..outer.len()).find(|&d| strides[d] == 1 && outer[d] >= 8)?;
        if strides[outer.len()] <= 1 || columns < 8 || load.dtype != DType::F32 {
            return None;
        }
        // Blocks of rows are distributed over the tasks together with the remaining dimensions.
        let rows = outer[across];
        let mut dims = outer.to_vec();
        dims[across] = (rows + TRANSPOSE_BLOCK - 1) / TRANSPOSE_BLOCK;
        let items: i64 = dims.iter().product();
        Some(Transpose { across, rows, columns, items, tasks: tasks(count(&body.domain), 32_768, 16, items), dims })
    }
}

/// Schedule of a reduction, which combines one group of elements per point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// True if the innermost dimension is not reduced, so that the reduction is vectorized over neighboring groups.
    pub across: bool,
    /// Number of groups that are reduced together.
    pub block: i64,
    /// Number of blocks along the innermost dimension.
    pub blocks: i64,
    /// Number of blocks in the index space.
    pub items: i64,
    /// Number of tasks.
    pub tasks: i64,
}

impl Reduction {
    /// Schedules a reduction over `elements` elements; `x` is the view of the first element of each group.
    pub fn new(x: &View, elements: i64) -> Reduction {
        let last_dim = x.shape.len() - 1;
        let len = x.shape[last_dim];
        let is_across = x.strides[last_dim] == 1 && len >= 4;
        let block = if is_across { len.min(128) } else { 1 };
        let blocks = (len + block - 1) / block;
        let items = count(&x.shape[..last_dim]) * blocks;
        Reduction { across: is_across, block, blocks, items, tasks: tasks(elements, 32_768, 16, items) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::body::{Load, Store};
    use crate::nest::{Expr, Place, Stmt};

    fn copy(domain: &[i64], from: &[i64]) -> LoopBody {
        let view = |strides: &[i64]| View { shape: domain.to_vec(), strides: strides.to_vec(), offset: 0 };
        let load = Load { name: "x".into(), place: Place::Input(0), view: view(from), dtype: DType::F32 };
        let store = Store { value: "x".into(), place: Place::Output(0), view: View::dense(domain), dtype: DType::F32 };
        LoopBody { domain: domain.to_vec(), loads: vec![load], stores: vec![store], ..LoopBody::default() }
    }

    #[test]
    fn one_row_is_divided_and_no_points_are_no_phase() {
        assert_eq!(Points::new(&copy(&[1 << 20], &[1])), Some(Points { rows: 1, len: 1 << 20, tasks: 16 }));
        assert_eq!(Points::new(&copy(&[3, 1 << 18], &[1 << 18, 1])).unwrap().tasks, 3, "a task has at least one row");
        assert_eq!(Points::new(&copy(&[3, 0], &[0, 1])), None);
        let mut body = copy(&[64, 256], &[256, 1]);
        assert_eq!(Points::new(&body).unwrap().tasks, 1);
        let exponential = Expr::Math("exp", DType::F32, vec![Expr::name("x")]);
        body.lines = vec![Stmt::value("y", DType::F32, exponential); 4];
        assert!(Points::new(&body).unwrap().tasks > 1, "an exponential is more work");
    }

    #[test]
    fn transposes_are_blocked_where_both_sides_are_long() {
        let transpose = Transpose::new(&copy(&[100, 32], &[1, 100])).unwrap();
        assert_eq!((transpose.across, &transpose.dims[..], transpose.items), (0, &[2][..], 2));
        assert_eq!(Transpose::new(&copy(&[100, 32], &[32, 1])), None, "the same innermost dimension");
        assert_eq!(Transpose::new(&copy(&[4, 32], &[1, 4])), None, "too narrow");
    }

    #[test]
    fn reductions_fill_the_lanes_with_kept_elements() {
        let rows = Reduction::new(&View { shape: vec![10, 300], strides: vec![0, 1], offset: 0 }, 1 << 20);
        assert_eq!((rows.across, rows.block, rows.blocks, rows.items), (true, 128, 3, 30));
        let innermost_reduction = Reduction::new(&View { shape: vec![10], strides: vec![64], offset: 0 }, 640);
        assert_eq!(innermost_reduction, Reduction { across: false, block: 1, blocks: 10, items: 10, tasks: 1 });
    }
}
