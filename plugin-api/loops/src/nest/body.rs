//! Body of a loop nest: loads, computations and stores at each point of the index space.

use super::{Expr, Place, Stmt, element};
use crate::index_space::collapse;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Tensor in memory.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Memory of the tensor.
    pub place: Place,
    /// Positions of the elements in that memory.
    pub view: View,
    /// Number of zeros stored before and after the elements along each axis.
    pub border: Vec<(i64, i64)>,
}

impl Storage {
    /// Creates a tensor without a border.
    pub fn new(place: Place, view: View) -> Storage {
        let border = vec![(0, 0); view.shape.len()];
        Storage { place, view, border }
    }
}

/// Access to one element per point.
#[derive(Clone, Debug)]
pub struct Access {
    /// Local variable that holds the element.
    pub name: String,
    /// Memory.
    pub place: Place,
    /// View of the memory over the domain.
    pub view: View,
    /// Element type.
    pub dtype: DType,
}

/// Loop body: the operations at each point of an index space.
#[derive(Clone, Debug, Default)]
pub struct LoopBody {
    /// Index space.
    pub domain: Vec<i64>,
    /// Loads, which precede the statements.
    pub loads: Vec<Access>,
    /// Computations, each the declaration of a variable.
    pub lines: Vec<Stmt>,
    /// Stores, which follow the statements.
    pub stores: Vec<Access>,
}

impl LoopBody {
    /// Applies `f` to the index space and to every view over it; `None` if `f` fails for a view.
    pub fn transform(&self, f: impl Fn(&View) -> Option<View>) -> Option<LoopBody> {
        let mut body = self.clone();
        body.domain = f(&View::dense(&self.domain))?.shape;
        for view in body.views_mut() {
            *view = f(view)?;
        }
        Some(body)
    }

    /// Permutes the dimensions of the index space.
    pub fn permute(&self, axes: &[usize]) -> LoopBody {
        let mut body = self.clone();
        body.domain = axes.iter().map(|&a| self.domain[a]).collect();
        for view in body.views_mut() {
            *view = view.permute(axes);
        }
        body
    }

    /// Restricts `axis` to `len` indices that start at `begin` and are `step` apart.
    pub fn slice(&self, axis: usize, begin: i64, step: i64, len: i64) -> LoopBody {
        let mut body = self.clone();
        body.domain[axis] = len;
        for view in body.views_mut() {
            *view = view.slice(axis, begin, step, len);
        }
        body
    }

    fn views_mut(&mut self) -> impl Iterator<Item = &mut View> {
        self.loads.iter_mut().chain(&mut self.stores).map(|access| &mut access.view)
    }

    /// Returns the strides of all loads and stores.
    pub fn strides(&self) -> Vec<&[i64]> {
        self.loads.iter().chain(&self.stores).map(|access| &access.view.strides[..]).collect()
    }

    /// Merges adjacent dimensions of the index space that are contiguous in all tensors and under each of
    /// `other_strides`. `run_lengths` divides the dimensions into runs of these lengths; dimensions of different runs
    /// are not merged, and an empty run becomes one dimension of size 1. Returns the merged body, the merged strides of
    /// `other_strides`, and the number of dimensions in each run.
    pub fn collapse(&self, other_strides: &[&[i64]], run_lengths: &[usize]) -> (LoopBody, Vec<Vec<i64>>, Vec<usize>) {
        let mut all_strides = self.strides();
        all_strides.extend(other_strides);
        let (mut groups, mut lengths, mut start) = (Vec::new(), Vec::new(), 0);
        for &len in run_lengths {
            let run: Vec<&[i64]> = all_strides.iter().map(|strides| &strides[start..start + len]).collect();
            let mut merged_dims = collapse(&self.domain[start..start + len], &run);
            merged_dims.iter_mut().flatten().for_each(|d| *d += start);
            if merged_dims.is_empty() {
                merged_dims.push(Vec::new());
            }
            lengths.push(merged_dims.len());
            groups.extend(merged_dims);
            start += len;
        }
        let innermost =
            |strides: &[i64]| groups.iter().map(|g| g.last().map_or(0, |&d| strides[d])).collect::<Vec<i64>>();
        let other_strides = other_strides.iter().map(|strides| innermost(strides)).collect();
        let mut body = self.clone();
        body.domain = groups.iter().map(|g| g.iter().map(|&d| self.domain[d]).product()).collect();
        let domain = body.domain.clone();
        for view in body.views_mut() {
            view.strides = innermost(&view.strides);
            view.shape.clone_from(&domain);
        }
        (body, other_strides, lengths)
    }

    /// Returns the statements for the point with the indices `indices`.
    pub fn statements(&self, indices: &[Expr]) -> Vec<Stmt> {
        let loads = self.loads.iter().map(|load| {
            Stmt::value(&load.name, load.dtype, Expr::load(load.place, load.dtype, element(&load.view, indices)))
        });
        let stores = self
            .stores
            .iter()
            .map(|store| Stmt::store(store.place, store.dtype, element(&store.view, indices), Expr::from(&store.name)));
        loads.chain(self.lines.iter().cloned()).chain(stores).collect()
    }

    /// Returns an estimate of the work at each point: a transcendental function is far more expensive than an arithmetic
    /// operation.
    pub fn weight(&self) -> i64 {
        let mut functions = 0;
        for line in &self.lines {
            let mut has_function = false;
            for expr in line.expressions() {
                expr.visit(&mut |inner| has_function |= matches!(inner, Expr::Call(..) | Expr::Math(..)));
            }
            functions += i64::from(has_function);
        }
        1 + self.lines.len() as i64 / 2 + 4 * functions
    }
}
