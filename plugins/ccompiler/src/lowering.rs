//! Storage of every tensor, and the loop body of each group over that storage.
//!
//! Activations of convolutions and pools are stored with the channels innermost, so that channels fill the vector
//! lanes. The input of a convolution has a border of zeros as wide as the padding, so that taps need no bounds checks.

use crate::elementwise::{c_type, expression, int_literal, literal, operand_view};
use crate::fused::{Fused, Load, Place, Store, Stored};
use crate::group::{Grouping, index_in};
use crate::layout;
use crate::program::{Def, Op, OpId, Program, Val, is_view_op, transpose_axes, view_through};
use crate::view::View;
use byoc_plugin_api::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Part of the region function whose tasks may run in parallel. Phases run one after another.
#[derive(Debug, Default)]
pub struct Phase {
    /// Description of the computation, one entry per line.
    pub comment: Vec<String>,
    /// Functions and constants defined before the region function.
    pub code: String,
    /// Statements in the region function.
    pub call: String,
    /// Workspace buffers that the phase accesses.
    pub buffers: BTreeSet<usize>,
}

impl Phase {
    /// Records an access of the phase to `place`.
    pub fn touch(&mut self, place: Place) {
        if let Place::Work(buffer) = place {
            self.buffers.insert(buffer);
        }
    }

    /// Records accesses of the phase to all memory of a loop body.
    pub fn touch_all(&mut self, fused: &Fused) {
        for (place, _) in fused.places() {
            self.touch(place);
        }
    }
}

/// Buffer in the workspace.
#[derive(Debug)]
pub struct Buffer {
    /// Size in bytes.
    pub bytes: i64,
    /// Description of the content.
    pub comment: String,
}

/// Constant that is packed when the region is loaded.
#[derive(Debug)]
pub struct Packed {
    /// Size in floats.
    pub floats: i64,
    /// Description of the content.
    pub comment: String,
    /// Statements of the packing function that write it.
    pub code: String,
}

/// State and result of lowering a region. Other files add `impl` blocks with the code generation per kind of operator.
pub struct Lowering<'p, 'a> {
    /// Region being lowered.
    pub program: &'p Program<'a>,
    /// Groups of the region.
    pub grouping: &'p Grouping,
    /// Symbol of the region, the prefix of all names.
    pub symbol: &'p str,
    /// Storage of each value that has one.
    pub stored: BTreeMap<Val, Stored>,
    /// Buffers in the workspace.
    pub buffers: Vec<Buffer>,
    /// Constants packed at load time.
    pub packed: Vec<Packed>,
    /// Phases emitted so far.
    pub phases: Vec<Phase>,
}

impl<'p, 'a> Lowering<'p, 'a> {
    /// Creates the state before any group is lowered.
    pub fn new(program: &'p Program<'a>, grouping: &'p Grouping, symbol: &'p str) -> Lowering<'p, 'a> {
        Lowering {
            program,
            grouping,
            symbol,
            stored: BTreeMap::new(),
            buffers: Vec::new(),
            packed: Vec::new(),
            phases: Vec::new(),
        }
    }

    /// Formats the declaration of a pointer in a task function.
    pub fn pointer(&self, place: Place, dtype: DType, qualifier: &str) -> String {
        let ty = c_type(dtype).unwrap_or("void");
        let from = match place {
            Place::Input(i) => format!("args->in[{i}]"),
            Place::Output(i) => format!("args->out[{i}]"),
            Place::Constant(i) => format!("args->constants[{i}]"),
            Place::Packed(i) => format!("(const void *)(args->packed + {}_at_p{i})", self.symbol),
            Place::Work(i) => format!("(void *)(args->work + {}_at_w{i})", self.symbol),
        };
        format!("    {qualifier}{ty} *restrict {place} = {from};\n")
    }

    /// Formats the declarations of all pointers of a loop body.
    pub fn pointers(&self, fused: &Fused) -> String {
        let mut text = String::new();
        for (place, dtype) in fused.places() {
            let written = fused.stores.iter().any(|s| s.place == place);
            text.push_str(&self.pointer(place, dtype, if written { "" } else { "const " }));
        }
        text
    }

    /// Describes an operator for the comment of a phase: name, shapes and source nodes.
    pub fn describe(&self, id: OpId) -> String {
        let op = self.program.get(id);
        let shape = |v: &Val| {
            let dims: Vec<String> = self.program.shape(*v).iter().map(i64::to_string).collect();
            format!("({})", dims.join(", "))
        };
        let inputs: Vec<String> = op.inputs.iter().map(shape).collect();
        let outputs: Vec<String> = op.outputs.iter().map(shape).collect();
        let mut text = format!("{}: {} -> {}", op.name, inputs.join(", "), outputs.join(", "));
        if !op.node.sources.is_empty() {
            let sources: Vec<&str> = op.node.sources.iter().map(|s| s.as_str()).collect();
            let _ = write!(text, "  [{}]", sources.join(", "));
        }
        // Names from the model must neither end the comment nor continue it.
        text.replace("*/", "* /").replace("/*", "/ *").replace(['\n', '\r', '\\'], " ")
    }

    /// Returns the name of the functions of the next phase.
    pub fn phase_name(&self) -> String {
        format!("{}_phase{}", self.symbol, self.phases.len())
    }

    /// Adds a buffer to the workspace and returns its index.
    pub fn buffer(&mut self, elements: i64, dtype: DType, comment: String) -> usize {
        // Vector code may read up to one vector past the end; it never writes there.
        let bytes = elements * dtype.size() as i64 + 64;
        self.buffers.push(Buffer { bytes, comment });
        self.buffers.len() - 1
    }

    /// Returns the storage of a value, and copies the value if a view operator cannot be expressed as a strided view.
    pub fn resolve(&mut self, value: Val) -> Result<Stored, String> {
        let mut chain = Vec::new();
        let mut at = value;
        let mut stored = loop {
            if let Some(stored) = self.stored.get(&at) {
                break stored.clone();
            }
            let dense = View::dense(self.program.shape(at));
            match self.program.val(at).def {
                Def::Input(i) => break Stored::new(Place::Input(i), dense),
                Def::Constant(i) => break Stored::new(Place::Constant(i), dense),
                Def::Op(op, k) if is_view_op(self.program.get(op).name) => {
                    chain.push((op, k, at));
                    at = self.program.get(op).inputs[0];
                }
                Def::Op(op, _) => return Err(format!("{} is used before it is computed", self.program.get(op).name)),
            }
        };
        for (id, k, to) in chain.into_iter().rev() {
            let op = self.program.get(id);
            stored = match view_through(self.program, op, k, &stored.view) {
                Some(view) => {
                    let border = match op.name {
                        "transpose" => transpose_axes(op, view.shape.len()).iter().map(|&a| stored.border[a]).collect(),
                        "copy" => stored.border,
                        _ => vec![(0, 0); view.shape.len()],
                    };
                    Stored { place: stored.place, view, border }
                }
                None => {
                    let shape = stored.view.shape.clone();
                    let dense = self.dense_copy(&stored, self.program.val(to).dtype, &self.describe(id))?;
                    let view = view_through(self.program, op, k, &View::dense(&shape));
                    let view =
                        view.ok_or_else(|| format!("{}: the shapes of input and output do not match", op.name))?;
                    Stored::new(dense.place, view)
                }
            };
            self.stored.insert(to, stored.clone());
        }
        Ok(stored)
    }

    /// Emits a row-major copy in the workspace.
    pub fn dense_copy(&mut self, from: &Stored, dtype: DType, comment: &str) -> Result<Stored, String> {
        let order: Vec<usize> = (0..from.view.shape.len()).collect();
        let to = self.allocate(&from.view.shape, &order, &[], dtype, comment);
        self.copy(from, &to, dtype, comment)?;
        Ok(to)
    }

    /// Emits a phase that copies a tensor.
    pub fn copy(&mut self, from: &Stored, to: &Stored, dtype: DType, comment: &str) -> Result<(), String> {
        let fused = Fused {
            domain: to.view.shape.clone(),
            loads: vec![Load { name: "x".into(), place: from.place, view: from.view.clone(), dtype }],
            lines: Vec::new(),
            stores: vec![Store { value: "x".into(), place: to.place, view: to.view.clone(), dtype }],
            acc: None,
        };
        self.map(&fused, vec![format!("copy to another layout, for {comment}")])
    }

    /// Allocates a tensor in the workspace with its dimensions in `order`, outermost first, and a border of zeros.
    pub fn allocate(
        &mut self,
        shape: &[i64],
        order: &[usize],
        border: &[(i64, i64)],
        dtype: DType,
        comment: &str,
    ) -> Stored {
        let border: Vec<(i64, i64)> = (0..shape.len()).map(|d| border.get(d).copied().unwrap_or((0, 0))).collect();
        let strides = lying_strides(shape, order, &border);
        let offset = (0..shape.len()).map(|d| border[d].0 * strides[d]).sum();
        let elements = (0..shape.len()).map(|d| shape[d] + border[d].0 + border[d].1).product();
        let buffer = self.buffer(elements, dtype, comment.to_owned());
        let place = Place::Work(buffer);
        if border.iter().any(|&b| b != (0, 0)) {
            let mut phase = Phase { comment: vec![format!("the zero border of {place}")], ..Phase::default() };
            phase.buffers.insert(buffer);
            let pointer = format!("(void *)((char *)work + {}_at_{place})", self.symbol);
            phase.call = border_code(&pointer, shape, order, &border, elements);
            self.phases.push(phase);
        }
        Stored { place, view: View { shape: shape.to_vec(), strides, offset }, border }
    }

    /// Returns a value with its channels innermost and a border of zeros at least as wide as `border`; with
    /// `past_the_end`, one that may be read up to one vector past its end. Emits a copy if the value is not stored this
    /// way.
    pub fn channels_last(
        &mut self,
        value: Val,
        channel: usize,
        border: &[(i64, i64)],
        past_the_end: bool,
        comment: &str,
    ) -> Result<Stored, String> {
        let stored = self.resolve(value)?;
        let innermost = stored.view.strides[channel] == 1 || stored.view.shape[channel] == 1;
        let wide = border.iter().zip(&stored.border).all(|(want, have)| want.0 <= have.0 && want.1 <= have.1);
        let bordered = border.iter().any(|&b| b != (0, 0));
        // Only buffers in the workspace may be read past the end.
        let readable = !past_the_end || matches!(stored.place, Place::Work(_));
        if innermost && (wide || !bordered) && readable {
            return Ok(stored);
        }
        let mut order: Vec<usize> = (0..stored.view.shape.len()).filter(|&d| d != channel).collect();
        order.push(channel);
        let dtype = self.program.val(value).dtype;
        let shape = stored.view.shape.clone();
        let to = self.allocate(&shape, &order, border, dtype, comment);
        self.copy(&stored, &to, dtype, comment)?;
        Ok(to)
    }

    /// Returns the widest zero border that the users of a value need, per dimension.
    fn wanted_border(&self, value: Val) -> Vec<(i64, i64)> {
        let rank = self.program.shape(value).len();
        let mut border = vec![(0, 0); rank];
        // Worklist of values; each with a map from its dimensions to those of the original value.
        let mut open = vec![(value, (0..rank).collect::<Vec<usize>>())];
        let mut budget = 64;
        while let Some((at, dims)) = open.pop() {
            budget -= 1;
            if budget == 0 {
                break;
            }
            for &user in &self.program.val(at).users {
                let op = self.program.get(user);
                match op.name {
                    "transpose" => {
                        let axes = transpose_axes(op, dims.len());
                        open.push((op.outputs[0], axes.iter().map(|&a| dims[a]).collect()));
                    }
                    "concatenate" => open.push((op.outputs[0], dims.clone())),
                    _ if op.inputs[0] == at => {
                        for (d, want) in layout::border(self.program, op).into_iter().enumerate() {
                            let have = &mut border[dims[d]];
                            *have = (have.0.max(want.0), have.1.max(want.1));
                        }
                    }
                    _ => {}
                }
            }
        }
        border
    }

    /// Returns true if a value is used outside of the group, directly or through view operators.
    fn escapes(&self, value: Val, group: usize) -> bool {
        let mut open = vec![value];
        while let Some(at) = open.pop() {
            if self.program.outputs.contains(&at) {
                return true;
            }
            for &user in &self.program.val(at).users {
                let op = self.program.get(user);
                if is_view_op(op.name) {
                    open.extend(&op.outputs);
                } else if self.grouping.of[user.index()] != Some(group) {
                    return true;
                }
            }
        }
        false
    }

    /// Chooses the storage of a value that is about to be computed: the output of the region, a slice of the result of
    /// a concatenation, or a new buffer with the dimensions in `order`; `None` if none of these satisfies `fits`.
    pub fn place_for(
        &mut self,
        value: Val,
        order: &[usize],
        comment: &str,
        fits: impl Fn(&View) -> bool,
    ) -> Option<Stored> {
        if let Some(stored) = self.stored.get(&value) {
            return Some(stored.clone()).filter(|s| fits(&s.view));
        }
        let shape = self.program.shape(value).to_vec();
        let dtype = self.program.val(value).dtype;
        let order = row_major_if_equal(&shape, order);
        let row_major = order.windows(2).all(|w| w[0] < w[1]);
        let output = self.program.outputs.iter().position(|&v| v == value);
        let dense = View::dense(&shape);
        if let Some(i) = output.filter(|_| row_major && fits(&dense)) {
            let stored = Stored::new(Place::Output(i), dense);
            self.stored.insert(value, stored.clone());
            return Some(stored);
        }
        if let Some(slice) = self.slice_of_concatenation(value, &order, comment) {
            if fits(&slice.view) {
                return Some(slice);
            }
            self.stored.remove(&value);
        }
        let border = self.wanted_border(value);
        let lying = View { strides: lying_strides(&shape, &order, &border), ..dense };
        let border = if fits(&lying) { border } else { Vec::new() };
        let stored = self.allocate(&shape, &order, &border, dtype, comment);
        if !fits(&stored.view) {
            return None;
        }
        self.stored.insert(value, stored.clone());
        Some(stored)
    }

    /// Returns the slice of a concatenation's result for one of its operands, if the operand can be computed in place.
    fn slice_of_concatenation(&mut self, value: Val, order: &[usize], comment: &str) -> Option<Stored> {
        // Nested concatenations, from the innermost to the outermost.
        let mut path = Vec::new();
        let mut at = value;
        while let Some(&user) = self.program.val(at).users.iter().find(|&&u| self.program.get(u).name == "concatenate")
        {
            let op = self.program.get(user);
            if self.program.outputs.contains(&op.outputs[0]) || path.len() > 256 {
                break;
            }
            path.push((user, at));
            at = op.outputs[0];
        }
        if path.is_empty() {
            return None;
        }
        let dtype = self.program.val(at).dtype;
        let mut stored = match self.stored.get(&at) {
            Some(stored) => stored.clone(),
            None => {
                let shape = self.program.shape(at).to_vec();
                let order = row_major_if_equal(&shape, order);
                let border = self.wanted_border(at);
                let stored = self.allocate(&shape, &order, &border, dtype, comment);
                self.stored.insert(at, stored.clone());
                stored
            }
        };
        for (concatenation, part) in path.into_iter().rev() {
            let op = self.program.get(concatenation);
            let rank = stored.view.shape.len();
            let axis = op.axis("axis", 0, rank);
            let mut before = 0;
            for &input in &op.inputs {
                if input == part {
                    break;
                }
                before += self.program.shape(input)[axis];
            }
            let size = self.program.shape(part)[axis];
            let mut border = stored.border.clone();
            if stored.border[axis] != (0, 0) {
                border[axis] = (0, 0);
            }
            stored = Stored { place: stored.place, view: stored.view.slice(axis, before, 1, size), border };
            self.stored.entry(part).or_insert_with(|| stored.clone());
        }
        // A value that occurs twice in the concatenation is computed in place at its first occurrence.
        Some(stored)
    }

    /// Builds the loop body of a group, resolves its operands and chooses the storage of its results. `order` is the
    /// order of the dimensions of the results in memory; the default is that of the largest operand. Returns the body
    /// and the order.
    pub fn fused(&mut self, number: usize, order: Option<&[usize]>) -> Result<(Fused, Vec<usize>), String> {
        let grouping: &'p Grouping = self.grouping;
        let group = &grouping.groups[number];
        let mut fused = Fused { domain: group.domain.clone(), ..Fused::default() };
        let mut names: BTreeMap<Val, String> = BTreeMap::new();
        let mut loaded: BTreeMap<(Val, Vec<i64>, i64), String> = BTreeMap::new();
        let mut like: Option<(usize, Vec<usize>)> = None;
        if let Some(anchor) = group.anchor {
            names.insert(self.program.get(anchor).outputs[0], "acc".into());
            fused.acc = Some("acc".into());
        }
        for &member in &group.members {
            let op: &Op<'_> = self.program.get(member);
            let index = group.index[&op.outputs[0]].clone();
            let mut args = Vec::new();
            for (i, &input) in op.inputs.iter().enumerate() {
                if let Some((source, _)) = index_in(self.program, group, input) {
                    let name = names.get(&source).ok_or("a group is out of order")?;
                    args.push(name.clone());
                    continue;
                }
                if let Some(text) = self.scalar(input) {
                    args.push(text);
                    continue;
                }
                let stored = self.resolve(input)?;
                let wide = operand_view(self.program, op, i, &stored.view)
                    .ok_or_else(|| format!("{}: operand {i} does not broadcast", op.name))?;
                let dtype = self.program.val(input).dtype;
                let (place, view) = match index.pull_back(&wide, &group.domain) {
                    Some(view) => (stored.place, view),
                    None => {
                        // A copy in the layout of the domain is always readable as a strided view.
                        let dense: Vec<usize> = (0..group.domain.len()).collect();
                        let to = self.allocate(&group.domain, &dense, &[], dtype, &self.describe(member));
                        let from = Stored::new(stored.place, wide);
                        let target = Stored::new(to.place, index.clone());
                        self.copy(&from, &target, dtype, &self.describe(member))?;
                        (to.place, to.view)
                    }
                };
                let distinct = view.strides.iter().zip(&view.shape).filter(|(s, d)| **s != 0 || **d == 1).count();
                if like.as_ref().is_none_or(|(best, _)| distinct > *best) {
                    like = Some((distinct, view.memory_order()));
                }
                let key = (input, view.strides.clone(), view.offset);
                let name = loaded.entry(key).or_insert_with(|| {
                    let name = format!("x{}", fused.loads.len());
                    fused.loads.push(Load { name: name.clone(), place, view, dtype });
                    name
                });
                args.push(name.clone());
            }
            let text = expression(self.program, op, &args)
                .ok_or_else(|| format!("{} has no expression for {}", op.name, self.program.val(op.inputs[0]).dtype))?;
            let name = format!("t{}", fused.lines.len());
            let dtype = self.program.val(op.outputs[0]).dtype;
            let ty = c_type(dtype).ok_or_else(|| format!("{}: no C type for the result type {dtype}", op.name))?;
            fused.lines.push(format!("const {ty} {name} = {text}; /* {} */", op.name));
            names.insert(op.outputs[0], name);
        }
        let dense: Vec<usize> = (0..group.domain.len()).collect();
        let order = match (order, like) {
            (Some(order), _) => order.to_vec(),
            (None, Some((_, order))) => order,
            (None, None) => dense,
        };
        for (value, name) in &names {
            if !self.escapes(*value, number) {
                continue;
            }
            let index = &group.index[value];
            // Order of the value's own dimensions that corresponds to `order` for the domain.
            let seen = self.domain_order(index, &group.domain, &order);
            let comment = format!("{} of {}", name, self.symbol);
            let comment = self.program.producer(*value).map_or(comment, |op| self.describe(op));
            let domain = &group.domain;
            let fits = |view: &View| index.pull_back(view, domain).is_some();
            let dtype = self.program.val(*value).dtype;
            let stored = match self.place_for(*value, &seen, &comment, fits) {
                Some(stored) => stored,
                None => {
                    // Storage in the layout of the domain is always possible.
                    let dense: Vec<usize> = (0..domain.len()).collect();
                    let place = self.allocate(domain, &dense, &[], dtype, &comment).place;
                    let stored = Stored::new(place, index.clone());
                    self.stored.insert(*value, stored.clone());
                    stored
                }
            };
            let view = index.pull_back(&stored.view, domain).ok_or("no storage for a result")?;
            fused.stores.push(Store { value: name.clone(), place: stored.place, view, dtype });
        }
        Ok((fused, order))
    }

    /// Translates `order`, an order of the domain's dimensions in memory, to the dimensions of a value.
    fn domain_order(&self, index: &View, domain: &[i64], order: &[usize]) -> Vec<usize> {
        let rank = index.shape.len();
        if index.shape == domain && index.is_dense() {
            return order.to_vec();
        }
        // Strides of the domain stored in that order; a value that permutes the domain has the corresponding order.
        let mut strides = vec![0; domain.len()];
        let mut elements = 1;
        for &d in order.iter().rev() {
            strides[d] = elements;
            elements *= domain[d];
        }
        let lying = View { shape: domain.to_vec(), strides, offset: 0 };
        let by_place = index.memory_order();
        let permuted: Vec<i64> = by_place.iter().map(|&d| index.shape[d]).collect();
        match lying.reshape(&permuted) {
            Some(view) => {
                let mut strides = vec![0; rank];
                for (k, &d) in by_place.iter().enumerate() {
                    strides[d] = view.strides[k];
                }
                View { shape: index.shape.clone(), strides, offset: 0 }.memory_order()
            }
            None => by_place,
        }
    }

    /// Returns the C literal of a constant with one element; `None` for any other value.
    fn scalar(&self, value: Val) -> Option<String> {
        let mut at = value;
        while let Some(op) = self.program.producer(at) {
            if !is_view_op(self.program.get(op).name) {
                return None;
            }
            at = self.program.get(op).inputs[0];
        }
        let constant = self.program.constant(at)?;
        if constant.shape().iter().product::<usize>() != 1 {
            return None;
        }
        let tensor = constant.tensor();
        Some(match constant.dtype() {
            DType::F32 => literal(DType::F32, f64::from(tensor.as_slice::<f32>()[0])),
            DType::F64 => literal(DType::F64, tensor.as_slice::<f64>()[0]),
            DType::I64 => int_literal(DType::I64, i128::from(tensor.as_slice::<i64>()[0])),
            DType::I32 => int_literal(DType::I32, i128::from(tensor.as_slice::<i32>()[0])),
            DType::BOOL => u8::from(tensor.as_slice::<u8>()[0] != 0).to_string(),
            _ => return None,
        })
    }
}

/// Returns row-major order if `order` differs from it only in the position of dimensions of size 1, otherwise `order`.
fn row_major_if_equal(shape: &[i64], order: &[usize]) -> Vec<usize> {
    let real: Vec<usize> = order.iter().copied().filter(|&d| shape[d] != 1).collect();
    if real.windows(2).all(|w| w[0] < w[1]) { (0..shape.len()).collect() } else { order.to_vec() }
}

/// Returns the strides of a buffer with its dimensions in `order` and a border.
fn lying_strides(shape: &[i64], order: &[usize], border: &[(i64, i64)]) -> Vec<i64> {
    let mut strides = vec![0; shape.len()];
    let mut elements = 1;
    for &d in order.iter().rev() {
        strides[d] = elements;
        let (before, after) = border.get(d).copied().unwrap_or((0, 0));
        elements *= shape[d] + before + after;
    }
    strides
}

/// Formats the statements that zero the border of a buffer with its dimensions in `order`.
fn border_code(pointer: &str, shape: &[i64], order: &[usize], border: &[(i64, i64)], elements: i64) -> String {
    let mut code = String::new();
    let mut outer = 1;
    let mut inner = elements;
    for &d in order {
        let (before, after) = border[d];
        let size = before + shape[d] + after;
        inner /= size;
        if (before, after) != (0, 0) {
            let _ = writeln!(
                code,
                "    byoc_zero_border({pointer}, {outer}, {}, {}, {});",
                size * inner,
                before * inner,
                after * inner
            );
        }
        outer *= size;
    }
    code
}
