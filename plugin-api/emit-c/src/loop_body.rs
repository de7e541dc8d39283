//! Body of a loop nest: loads, computations and stores at each point of the index space.

use crate::index_space::collapse;
use crate::literals::{loaded, stored, value_type};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// Memory that the generated code accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Input of the region, by index.
    Input(usize),
    /// Output of the region, by index.
    Output(usize),
    /// Constant in the host's memory, by index.
    Constant(usize),
    /// Constant packed into a different layout: at load time for a region, at code generation for a program.
    Packed(usize),
    /// Buffer in the workspace.
    Work(usize),
}

impl fmt::Display for Place {
    /// Writes the name of the pointer in the generated code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Input(i) => write!(f, "in{i}"),
            Place::Output(i) => write!(f, "out{i}"),
            Place::Constant(i) => write!(f, "k{i}"),
            Place::Packed(i) => write!(f, "p{i}"),
            Place::Work(i) => write!(f, "w{i}"),
        }
    }
}

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

/// Load of one element per point.
#[derive(Clone, Debug)]
pub struct Load {
    /// Local variable that holds the element.
    pub name: String,
    /// Memory that is read.
    pub place: Place,
    /// View of the memory over the domain.
    pub view: View,
    /// Element type.
    pub dtype: DType,
}

/// Store of one element per point.
#[derive(Clone, Debug)]
pub struct Store {
    /// Local variable whose value is stored.
    pub value: String,
    /// Memory that is written.
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
    pub loads: Vec<Load>,
    /// Statements, one per line.
    pub lines: Vec<String>,
    /// Stores, which follow the statements.
    pub stores: Vec<Store>,
    /// Variable that holds the anchor's result.
    pub acc: Option<String>,
}

impl LoopBody {
    /// Applies `f` to the index space and to every view over it; `None` if `f` fails for a view.
    pub fn transform(&self, f: impl Fn(&View) -> Option<View>) -> Option<LoopBody> {
        let mut body = self.clone();
        body.domain = f(&View::dense(&self.domain))?.shape;
        for load in &mut body.loads {
            load.view = f(&load.view)?;
        }
        for store in &mut body.stores {
            store.view = f(&store.view)?;
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
        self.loads.iter_mut().map(|l| &mut l.view).chain(self.stores.iter_mut().map(|s| &mut s.view))
    }

    /// Returns the strides of all loads and stores.
    pub fn strides(&self) -> Vec<&[i64]> {
        let loads = self.loads.iter().map(|l| &l.view.strides[..]);
        loads.chain(self.stores.iter().map(|s| &s.view.strides[..])).collect()
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

    /// Returns all memory that the body reads or writes, with the element type of the access.
    pub fn places(&self) -> BTreeSet<(Place, DType)> {
        let loads = self.loads.iter().map(|l| (l.place, l.dtype));
        loads.chain(self.stores.iter().map(|s| (s.place, s.dtype))).collect()
    }

    /// Formats the statements for the point with the indices `vars`, indented by `indent` levels.
    pub fn statements(&self, vars: &[String], indent: usize) -> String {
        let mut text = String::new();
        let pad = "    ".repeat(indent);
        for load in &self.loads {
            let ty = value_type(load.dtype).unwrap_or("void");
            let element = format!("{}[{}]", load.place, address(&load.view, vars));
            let _ = writeln!(text, "{pad}const {ty} {} = {};", load.name, loaded(load.dtype, &element));
        }
        for line in &self.lines {
            let _ = writeln!(text, "{pad}{line}");
        }
        for store in &self.stores {
            let value = stored(store.dtype, &store.value);
            let _ = writeln!(text, "{pad}{}[{}] = {value};", store.place, address(&store.view, vars));
        }
        text
    }
}

/// Formats the offset of the element with the indices `vars` as a C expression.
pub fn address(view: &View, vars: &[String]) -> String {
    let mut terms = Vec::new();
    if view.offset != 0 {
        terms.push(view.offset.to_string());
    }
    for (d, &stride) in view.strides.iter().enumerate() {
        if stride == 0 || view.shape[d] == 1 {
            continue;
        }
        terms.push(if stride == 1 { vars[d].clone() } else { format!("{} * {stride}", vars[d]) });
    }
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}
