//! Schedules of loop nests that visit each point once: elementwise chains, transposes, reductions.

use super::tasks;
use crate::nest::body::LoopBody;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::{View, count};

/// Number of rows per transpose block.
pub const TRANSPOSE_BLOCK: i64 = 64;

/// Returns the number of tasks among which the rows of a plain loop nest are divided, or its points if there is only one
/// row; `None` for an empty index space.
pub fn point_tasks(body: &LoopBody) -> Option<i64> {
    let (len, rows) = body.domain.split_last().map_or((1, 1), |(&len, outer)| (len, count(outer)));
    let tasks = tasks(len * rows * body.weight(), 65_536, 16, if rows == 1 { len } else { rows });
    (len * rows != 0).then_some(tasks)
}

/// Blocked transpose of two dimensions: `across` is contiguous in the source, the last dimension in the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// Dimension that is contiguous in the source.
    pub across: usize,
    /// All dimensions but the last, with `across` counted in blocks.
    pub dims: Vec<i64>,
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
        let mut dims = outer.to_vec();
        dims[across] = (outer[across] + TRANSPOSE_BLOCK - 1) / TRANSPOSE_BLOCK;
        let tasks = tasks(count(&body.domain), 32_768, 16, count(&dims));
        Some(Transpose { across, dims, tasks })
    }
}

/// Schedule of a reduction, which combines one group of elements per point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// True if the innermost dimension is not reduced, so that the reduction is vectorized over neighboring groups.
    pub across: bool,
    /// Number of groups that are reduced together.
    pub block: i64,
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
        Reduction { across: is_across, block, tasks: tasks(elements, 32_768, 16, items) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::body::Access;
    use crate::nest::{Expr, Place, Stmt};

    fn copy(domain: &[i64], from: &[i64]) -> LoopBody {
        let view = |strides: &[i64]| View { shape: domain.to_vec(), strides: strides.to_vec(), offset: 0 };
        let access = |place, view| vec![Access { name: "x".into(), place, view, dtype: DType::F32 }];
        let (loads, stores) = (access(Place::Input(0), view(from)), access(Place::Output(0), View::dense(domain)));
        LoopBody { domain: domain.to_vec(), loads, stores, ..LoopBody::default() }
    }

    #[test]
    fn one_row_is_divided_and_no_points_are_no_phase() {
        assert_eq!(point_tasks(&copy(&[1 << 20], &[1])), Some(16));
        assert_eq!(point_tasks(&copy(&[3, 1 << 18], &[1 << 18, 1])), Some(3), "a task has at least one row");
        assert_eq!(point_tasks(&copy(&[3, 0], &[0, 1])), None);
        let mut body = copy(&[64, 256], &[256, 1]);
        assert_eq!(point_tasks(&body), Some(1));
        let exponential = Expr::Math("exp", DType::F32, vec![Expr::name("x")]);
        body.lines = vec![Stmt::value("y", DType::F32, exponential); 4];
        assert!(point_tasks(&body) > Some(1), "an exponential is more work");
    }

    #[test]
    fn transposes_are_blocked_where_both_sides_are_long() {
        let transpose = Transpose::new(&copy(&[100, 32], &[1, 100])).unwrap();
        assert_eq!((transpose.across, &transpose.dims[..]), (0, &[2][..]));
        assert_eq!(Transpose::new(&copy(&[100, 32], &[32, 1])), None, "the same innermost dimension");
        assert_eq!(Transpose::new(&copy(&[4, 32], &[1, 4])), None, "too narrow");
    }

    #[test]
    fn reductions_fill_the_lanes_with_kept_elements() {
        let rows = Reduction::new(&View { shape: vec![10, 300], strides: vec![0, 1], offset: 0 }, 1 << 20);
        assert_eq!((rows.across, rows.block, rows.tasks), (true, 128, 16));
        let innermost_reduction = Reduction::new(&View { shape: vec![10], strides: vec![64], offset: 0 }, 640);
        assert_eq!(innermost_reduction, Reduction { across: false, block: 1, tasks: 1 });
    }
}
