//! Storage of every tensor.
//!
//! Activations of convolutions and pooling are stored with the channels innermost, so that the code is vectorized over
//! channels. In a region, the input of a convolution has a zero border as wide as the padding, so that taps need no
//! bounds checks.

use super::{Lowering, Phase, axis};
use crate::form::{Concatenation, Form};
use crate::index_space::memory_order;
use crate::nest::body::{Access, LoopBody, Storage};
use crate::nest::{Expr, Place, Stmt};
use crate::operators::layout;
use crate::operators::views::{is_view_op, view_through};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Def, OpId, Val};
use byoc_plugin_support::view::{View, strides_in_order};

impl Lowering<'_, '_> {
    /// Returns the storage of a value, copying the value if a view operator cannot be expressed as a strided view.
    pub fn resolve(&mut self, value: Val) -> Result<Storage, String> {
        let mut chain = Vec::new();
        let mut current = value;
        let mut storage = loop {
            if let Some(storage) = self.storage.get(&current) {
                break storage.clone();
            }
            let dense = View::dense(self.ir.shape(current));
            match self.ir.val(current).def {
                Def::Input(i) => break Storage::new(Place::Input(i), dense),
                Def::Constant(i) => break Storage::new(Place::Constant(i), dense),
                Def::Op(op, k) if is_view_op(self.ir.get(op).name) => {
                    chain.push((op, k, current));
                    current = self.ir.get(op).inputs[0];
                }
                Def::Op(op, _) => {
                    let name = self.ir.get(op).name;
                    return Err(format!(
                        "expected operators in topological order, found a use of {name} before its definition"
                    ));
                }
            }
        };
        for (id, k, value) in chain.into_iter().rev() {
            let op = self.ir.get(id);
            storage = match view_through(self.ir, op, k, &storage.view) {
                Some(view) => {
                    let rank = view.shape.len();
                    let border = match op.name {
                        "transpose" => {
                            let axes = op.attrs().permutation(rank).ok_or_else(|| {
                                let found = op.attrs().ints("axes").unwrap_or_default();
                                format!("transpose: axes: expected a permutation of {rank} axes, found {found:?}")
                            })?;
                            axes.into_iter().map(|a| storage.border[a]).collect()
                        }
                        "copy" => storage.border,
                        _ => vec![(0, 0); rank],
                    };
                    Storage { place: storage.place, view, border }
                }
                None => {
                    let shape = storage.view.shape.clone();
                    let dense = self.dense_copy(&storage, self.ir.val(value).dtype, &self.describe(id));
                    let view = view_through(self.ir, op, k, &View::dense(&shape));
                    let view = view.ok_or_else(|| {
                        let result = self.ir.shape(value);
                        format!(
                            "{}: expected an operand that can be viewed as shape {result:?}, found shape {shape:?}",
                            op.name
                        )
                    })?;
                    Storage::new(dense.place, view)
                }
            };
            self.storage.insert(value, storage.clone());
        }
        Ok(storage)
    }

    /// Emits a row-major copy in the workspace.
    pub fn dense_copy(&mut self, source: &Storage, dtype: DType, comment: &str) -> Storage {
        let destination = self.allocate_dense(&source.view.shape, dtype, comment);
        self.copy(source, &destination, dtype, comment);
        destination
    }

    /// Emits a copy in the workspace with dimension `axis` innermost and a zero border.
    pub fn copy_with_innermost(
        &mut self,
        source: &Storage,
        axis: usize,
        border: &[(i64, i64)],
        dtype: DType,
        comment: &str,
    ) -> Storage {
        let mut order: Vec<usize> = (0..source.view.shape.len()).filter(|&d| d != axis).collect();
        order.push(axis);
        let destination = self.allocate(&source.view.shape, &order, border, dtype, comment);
        self.copy(source, &destination, dtype, comment);
        destination
    }

    /// Emits a phase that copies a tensor.
    pub fn copy(&mut self, source: &Storage, destination: &Storage, dtype: DType, comment: &str) {
        // A float16 is copied as a bit pattern, without conversion.
        let dtype = if dtype == DType::F16 { DType::U16 } else { dtype };
        let access = |of: &Storage| vec![Access { name: "x".into(), place: of.place, view: of.view.clone(), dtype }];
        let domain = destination.view.shape.clone();
        let body = LoopBody { domain, loads: access(source), lines: Vec::new(), stores: access(destination) };
        self.map("copy", &body, vec![format!("copy to another layout, for {comment}")]);
    }

    /// Allocates a row-major tensor in the workspace.
    pub fn allocate_dense(&mut self, shape: &[i64], dtype: DType, comment: &str) -> Storage {
        self.allocate(shape, &(0..shape.len()).collect::<Vec<_>>(), &[], dtype, comment)
    }

    /// Allocates a tensor in the workspace with its dimensions in `order`, outermost first, and a zero border.
    pub fn allocate(
        &mut self,
        shape: &[i64],
        order: &[usize],
        border: &[(i64, i64)],
        dtype: DType,
        comment: &str,
    ) -> Storage {
        let border: Vec<(i64, i64)> = (0..shape.len()).map(|d| border.get(d).copied().unwrap_or((0, 0))).collect();
        let strides = bordered_strides(shape, order, &border);
        let offset = (0..shape.len()).map(|d| border[d].0 * strides[d]).sum();
        let elements = (0..shape.len()).map(|d| shape[d] + border[d].0 + border[d].1).product();
        let buffer = self.buffer(elements, dtype, comment.to_owned());
        let place = Place::Work(buffer);
        if border.iter().any(|&b| b != (0, 0)) {
            let body = zeroed_border(place, shape, order, &border, elements);
            let comment = vec![format!("the zero border of {place}")];
            self.push(Phase::of("border", comment, &[place], &LoopBody::default()), body);
        }
        Storage { place, view: View { shape: shape.to_vec(), strides, offset }, border }
    }

    /// Returns a value with its channels innermost and a zero border at least as wide as `border`; with
    /// `reads_past_end`, the memory is also readable up to one vector past the end. Emits a copy if the value is stored
    /// differently.
    pub fn channels_last(
        &mut self,
        value: Val,
        channel: usize,
        border: &[(i64, i64)],
        reads_past_end: bool,
        comment: &str,
    ) -> Result<Storage, String> {
        let storage = self.resolve(value)?;
        if self.form != Form::Tasks {
            // Programs and devices read any layout in place and skip the taps in the padding.
            return Ok(storage);
        }
        let is_innermost = storage.view.strides[channel] == 1 || storage.view.shape[channel] == 1;
        let has_border = border.iter().zip(&storage.border).all(|(required_pads, existing_pads)| {
            required_pads.0 <= existing_pads.0 && required_pads.1 <= existing_pads.1
        });
        let has_nonzero_border = border.iter().any(|&b| b != (0, 0));
        // Only buffers in the workspace may be read past the end.
        let is_readable = !reads_past_end || matches!(storage.place, Place::Work(_));
        if is_innermost && (has_border || !has_nonzero_border) && is_readable {
            return Ok(storage);
        }
        Ok(self.copy_with_innermost(&storage, channel, border, self.ir.val(value).dtype, comment))
    }

    /// Returns the widest zero border that any user of a value needs, for each dimension.
    fn required_border(&self, value: Val) -> Vec<(i64, i64)> {
        let rank = self.ir.shape(value).len();
        let mut border = vec![(0, 0); rank];
        if self.form != Form::Tasks {
            return border;
        }
        // Values to visit, each with a map from its dimensions to the dimensions of `value`.
        let mut worklist = vec![(value, (0..rank).collect::<Vec<usize>>())];
        let mut budget = 64;
        while let Some((value, dims)) = worklist.pop() {
            budget -= 1;
            if budget == 0 {
                break;
            }
            for &user in &self.ir.val(value).users {
                let op = self.ir.get(user);
                match op.name {
                    "transpose" => {
                        let Some(axes) = op.attrs().permutation(dims.len()) else { continue };
                        worklist.push((op.outputs[0], axes.iter().map(|&a| dims[a]).collect()));
                    }
                    "concatenate" => worklist.push((op.outputs[0], dims.clone())),
                    _ if op.inputs[0] == value => {
                        for (d, required_pads) in layout::border(self.ir, op).into_iter().enumerate() {
                            let existing_pads = &mut border[dims[d]];
                            *existing_pads =
                                (existing_pads.0.max(required_pads.0), existing_pads.1.max(required_pads.1));
                        }
                    }
                    _ => {}
                }
            }
        }
        border
    }

    /// Returns true if a value is used outside the group, directly or through view operators.
    pub(super) fn is_used_outside(&self, value: Val, group: usize) -> bool {
        let mut worklist = vec![value];
        while let Some(value) = worklist.pop() {
            if self.ir.outputs.contains(&value) {
                return true;
            }
            for &user in &self.ir.val(value).users {
                let op = self.ir.get(user);
                if is_view_op(op.name) {
                    worklist.extend(&op.outputs);
                } else if self.grouping.of[user.index()] != Some(group) {
                    return true;
                }
            }
        }
        false
    }

    /// Chooses the storage of a value that is about to be computed: the output of the region, a slice of a
    /// concatenation's result, or a new buffer with the dimensions in `order`; `None` if no candidate satisfies `fits`.
    pub fn place_for(
        &mut self,
        value: Val,
        order: &[usize],
        comment: &str,
        fits: impl Fn(&View) -> bool,
    ) -> Option<Storage> {
        if let Some(storage) = self.storage.get(&value) {
            return Some(storage.clone()).filter(|s| fits(&s.view));
        }
        let shape = self.ir.shape(value).to_vec();
        let dtype = self.ir.val(value).dtype;
        let order = row_major_if_equal(&shape, order);
        // Programs and devices write results in place, whatever the memory order.
        let is_row_major = self.form != Form::Tasks || order.windows(2).all(|w| w[0] < w[1]);
        let output = self.ir.outputs.iter().position(|&v| v == value);
        let dense = View::dense(&shape);
        if let Some(i) = output.filter(|_| is_row_major && fits(&dense)) {
            let storage = Storage::new(Place::Output(i), dense);
            self.storage.insert(value, storage.clone());
            return Some(storage);
        }
        if let Some(slice) = self.slice_of_concatenation(value, &order, comment) {
            if fits(&slice.view) {
                return Some(slice);
            }
            self.storage.remove(&value);
        }
        let border = self.required_border(value);
        let bordered_view = View { strides: bordered_strides(&shape, &order, &border), ..dense };
        let border = if fits(&bordered_view) { border } else { Vec::new() };
        let storage = self.allocate(&shape, &order, &border, dtype, comment);
        if !fits(&storage.view) {
            return None;
        }
        self.storage.insert(value, storage.clone());
        Some(storage)
    }

    /// Returns the slice of a concatenation's result that holds `value`, if `value` can be computed in place.
    fn slice_of_concatenation(&mut self, value: Val, order: &[usize], comment: &str) -> Option<Storage> {
        // Nested concatenations, from the innermost to the outermost.
        let mut path = Vec::new();
        let mut current = value;
        let policy = if let Form::Program(_, policy) = self.form { policy } else { Concatenation::First };
        if policy == Concatenation::Copied {
            return None;
        }
        let is_concatenation = |user: &&OpId| self.ir.get(**user).name == "concatenate";
        while let Some(&user) = match policy {
            Concatenation::Last => self.ir.val(current).users.iter().rev().find(is_concatenation),
            _ => self.ir.val(current).users.iter().find(is_concatenation),
        } {
            let op = self.ir.get(user);
            if self.ir.outputs.contains(&op.outputs[0]) || path.len() > 256 {
                break;
            }
            path.push((user, current));
            current = op.outputs[0];
        }
        if path.is_empty() {
            return None;
        }
        let dtype = self.ir.val(current).dtype;
        let mut storage = match self.storage.get(&current) {
            Some(storage) => storage.clone(),
            None => {
                let shape = self.ir.shape(current).to_vec();
                let order = row_major_if_equal(&shape, order);
                let border = self.required_border(current);
                let storage = self.allocate(&shape, &order, &border, dtype, comment);
                self.storage.insert(current, storage.clone());
                storage
            }
        };
        for (concatenation, operand) in path.into_iter().rev() {
            let op = self.ir.get(concatenation);
            let rank = storage.view.shape.len();
            let axis = axis(op, 0, rank).ok()?;
            let inputs_before = op.inputs.iter().take_while(|&&input| input != operand);
            let start = inputs_before.map(|&input| self.ir.shape(input)[axis]).sum();
            storage.view = storage.view.slice(axis, start, 1, self.ir.shape(operand)[axis]);
            storage.border[axis] = (0, 0);
            self.storage.entry(operand).or_insert_with(|| storage.clone());
        }
        // A value that occurs twice in the concatenation is computed in place at its first occurrence.
        Some(storage)
    }

    /// Translates the memory order `order` of the domain's dimensions to the dimensions of a value.
    pub(super) fn domain_order(&self, index: &View, domain: &[i64], order: &[usize]) -> Vec<usize> {
        let rank = index.shape.len();
        if index.shape == domain && index.is_dense() {
            return order.to_vec();
        }
        // The domain stored in `order` determines the order of a value that permutes the domain.
        let ordered_view = View::in_order(domain, order);
        let dims_in_memory_order = memory_order(index);
        let permuted_shape: Vec<i64> = dims_in_memory_order.iter().map(|&d| index.shape[d]).collect();
        match ordered_view.reshape(&permuted_shape) {
            Some(view) => {
                let mut strides = vec![0; rank];
                for (k, &d) in dims_in_memory_order.iter().enumerate() {
                    strides[d] = view.strides[k];
                }
                memory_order(&View { shape: index.shape.clone(), strides, offset: 0 })
            }
            None => dims_in_memory_order,
        }
    }
}

/// Returns row-major order if `order` differs from it only in the position of dimensions of size 1, otherwise `order`.
fn row_major_if_equal(shape: &[i64], order: &[usize]) -> Vec<usize> {
    let ordered_dims: Vec<usize> = order.iter().copied().filter(|&d| shape[d] != 1).collect();
    if ordered_dims.windows(2).all(|w| w[0] < w[1]) { (0..shape.len()).collect() } else { order.to_vec() }
}

/// Returns the strides of a buffer with its dimensions in `order` and a border.
fn bordered_strides(shape: &[i64], order: &[usize], border: &[(i64, i64)]) -> Vec<i64> {
    let border = border.iter().copied().chain(std::iter::repeat((0, 0)));
    let shape: Vec<i64> = shape.iter().zip(border).map(|(size, pads)| pads.0 + size + pads.1).collect();
    strides_in_order(&shape, order)
}

/// Returns the calls that zero the border of a buffer with its dimensions in `order`.
fn zeroed_border(place: Place, shape: &[i64], order: &[usize], border: &[(i64, i64)], elements: i64) -> Vec<Stmt> {
    let mut calls = Vec::new();
    let mut outer = 1;
    let mut inner_elements = elements;
    for &d in order {
        let (pad_before, pad_after) = border[d];
        let size = pad_before + shape[d] + pad_after;
        inner_elements /= size;
        if (pad_before, pad_after) != (0, 0) {
            let sizes = [outer, size * inner_elements, pad_before * inner_elements, pad_after * inner_elements];
            let address = Expr::address(place, DType::F32, Expr::Index(0));
            let arguments = [address].into_iter().chain(sizes.map(Expr::Index)).collect();
            calls.push(Stmt::Call("byoc_zero_border".into(), arguments));
        }
        outer *= size;
    }
    calls
}
