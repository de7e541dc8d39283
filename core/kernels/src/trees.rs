//! Ensembles of decision trees, checked and packed once.

use super::{Kernel, Offer, Packs, Spec, split};
use byoc_ir::op::trees::{Aggregate, Mode, NAN_IS_TRUE};
use byoc_ir::tensor::{DType, Element, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "ml.tree_ensemble", make } }
inventory::submit! { Packs("ml.tree_ensemble") }

/// Number of trees in which a row descends at a time: a step waits for the memory of the one before it, those of other
/// trees do not.
const GROUP: usize = 8;

/// Inner node. A child c < 0 is the leaf -1 - c.
#[derive(Clone, Copy)]
struct Branch<T> {
    value: T,
    feature: u32,
    mode: Mode,
    nan_is_first: bool,
    /// The second child, and then the first one: the index is 1 if the comparison holds.
    children: [i32; 2],
}

struct Forest<T> {
    branches: Vec<Branch<T>>,
    roots: Vec<i32>,
    /// Weights (leaves, targets).
    weights: Vec<T>,
    targets: usize,
    features: usize,
    aggregate: Aggregate,
    /// Mode of all branches, none of which treats NaN as a case of its own.
    mode: Option<Mode>,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    match spec.inputs[0].dtype {
        DType::F32 => Some(Box::new(Forest::<f32>::new(spec)?)),
        DType::F64 => Some(Box::new(Forest::<f64>::new(spec)?)),
        _ => None,
    }
}

/// Number that trees compare and add.
trait Number: Element + PartialOrd + Send + Sync {
    fn combine(self, other: Self, aggregate: Aggregate) -> Self;
}

macro_rules! number {
    ($($ty:ty)*) => {$(
        impl Number for $ty {
            fn combine(self, other: $ty, aggregate: Aggregate) -> $ty {
                match aggregate {
                    Aggregate::Sum => self + other,
                    Aggregate::Min => self.min(other),
                    Aggregate::Max => self.max(other),
                }
            }
        }
    )*};
}
number!(f32 f64);

impl<T: Number> Forest<T> {
    /// Reads constant trees; `None` if they are no constants, or invalid, which the reference reports.
    fn new(spec: &Spec<'_>) -> Option<Forest<T>> {
        let [nodes, values, roots, weights] = [1, 2, 3, 4].map(|i| spec.constants.get(i).copied().flatten());
        let (nodes, values, roots, weights) = (nodes?.view(), values?.view(), roots?.view(), weights?.view());
        let (features, targets) = (*spec.inputs[0].shape()?.get(1)?, *weights.shape.get(1)?);
        let branch = |(node, value): (&[i32; 4], &T)| {
            let [feature, mode, first, second] = *node;
            let feature = u32::try_from(feature).ok().filter(|&feature| (feature as usize) < features)?;
            let nan_is_first = mode & NAN_IS_TRUE != 0;
            let mode = *Mode::ALL.get(usize::try_from(mode & !NAN_IS_TRUE).ok()?)?;
            Some(Branch { value: *value, feature, mode, nan_is_first, children: [second, first] })
        };
        let nodes = nodes.as_slice::<i32>().as_chunks::<4>().0;
        let branches: Vec<Branch<T>> = nodes.iter().zip(values.as_slice::<T>()).map(branch).collect::<Option<_>>()?;
        let first_mode = branches.first().map_or(Mode::LessEqual, |branch| branch.mode);
        let is_uniform = branches.iter().all(|branch| branch.mode == first_mode && !branch.nan_is_first);
        let forest = Forest {
            branches,
            roots: roots.as_slice::<i32>().to_vec(),
            weights: weights.as_slice::<T>().to_vec(),
            targets,
            features,
            aggregate: Aggregate::of(&spec.params())?,
            mode: is_uniform.then_some(first_mode),
        };
        (!forest.roots.is_empty() && forest.is_valid(weights.shape[0])).then_some(forest)
    }

    /// Tests whether every child exists, and no node is below itself.
    fn is_valid(&self, leaves: usize) -> bool {
        let exists = |&child: &i32| match usize::try_from(child) {
            Ok(node) => node < self.branches.len(),
            Err(_) => (-1 - i64::from(child)) < leaves as i64,
        };
        if !self.roots.iter().chain(self.branches.iter().flat_map(|branch| &branch.children)).all(exists) {
            return false;
        }
        // A node is removed once all nodes above it are; nodes on a cycle remain.
        let mut parents = vec![0usize; self.branches.len()];
        let inner = |branch: &Branch<T>| branch.children.into_iter().filter_map(|child| usize::try_from(child).ok());
        self.branches.iter().flat_map(inner).for_each(|child| parents[child] += 1);
        let mut free: Vec<usize> = (0..parents.len()).filter(|&node| parents[node] == 0).collect();
        let mut removed = 0;
        while let Some(node) = free.pop() {
            removed += 1;
            for child in inner(&self.branches[node]) {
                parents[child] -= 1;
                if parents[child] == 0 {
                    free.push(child);
                }
            }
        }
        removed == parents.len()
    }

    /// Adds the weights of the leaves that a row reaches. `goes_first` tells whether a node continues with its first
    /// child.
    #[inline(always)]
    fn score(&self, row: &[T], scores: &mut [T], goes_first: impl Fn(&Branch<T>, T) -> bool) {
        for (group, roots) in self.roots.chunks(GROUP).enumerate() {
            // A leaf keeps its place until all trees of the group have reached theirs.
            let mut places = [-1; GROUP];
            places[..roots.len()].copy_from_slice(roots);
            while places.iter().any(|&at| at >= 0) {
                for at in &mut places {
                    let branch = &self.branches[(*at).max(0) as usize];
                    let next = branch.children[usize::from(goes_first(branch, row[branch.feature as usize]))];
                    *at = if *at < 0 { *at } else { next };
                }
            }
            for (tree, &at) in places[..roots.len()].iter().enumerate() {
                let weights = &self.weights[(-1 - at) as usize * self.targets..][..self.targets];
                if (group, tree) == (0, 0) {
                    scores.copy_from_slice(weights);
                } else {
                    let pairs = scores.iter_mut().zip(weights);
                    pairs.for_each(|(score, &weight)| *score = score.combine(weight, self.aggregate));
                }
            }
        }
    }
}

impl<T: Number> Kernel for Forest<T> {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let data = inputs[0].as_slice::<T>();
        let out = outputs[0].as_mut_slice::<T>();
        let work = inputs[0].shape[0] * self.roots.len() * 16;
        split::for_each_chunk(out, self.targets, work, |i, scores| {
            let row = &data[i * self.features..][..self.features];
            match self.mode {
                Some(Mode::LessEqual) => self.score(row, scores, |branch, x| x <= branch.value),
                Some(Mode::Less) => self.score(row, scores, |branch, x| x < branch.value),
                _ => self.score(row, scores, |branch, x| {
                    // Only NaN differs from itself.
                    let is_nan = x.partial_cmp(&x).is_none();
                    branch.mode.holds(x, branch.value) || (is_nan && branch.nan_is_first)
                }),
            }
        });
        Ok(())
    }
}
