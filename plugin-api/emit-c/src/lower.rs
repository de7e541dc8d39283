//! Lowering of operator groups to phases of C code, in execution order.

use crate::anchors::{self, Anchor};
use crate::externals::Externals;
use crate::form::Form;
use crate::group::Grouping;
use crate::index_space::memory_order;
use crate::loop_body::{Place, Storage};
use crate::lowering::{Lowering, axis};
use byoc_plugin_support::region::{OpId, RegionIr};
use byoc_plugin_support::view::{View, count};

/// Lowers a region.
///
/// # Errors
/// If code generation does not support an operator, its types or its attributes.
pub fn lower<'p, 'a>(
    ir: &'p RegionIr<'a>,
    grouping: &'p Grouping,
    symbol: &'p str,
    form: Form,
    externals: &'p Externals,
) -> Result<Lowering<'p, 'a>, String> {
    let mut lowering = Lowering::new(ir, grouping, symbol, form, externals);
    for group in 0..grouping.groups.len() {
        let first_phase = lowering.phases.len();
        lowering.lower_group(group)?;
        if let Some(last_phase) = lowering.phases[first_phase..].last_mut() {
            last_phase.group = Some(group);
        }
    }
    for (i, &value) in ir.outputs.iter().enumerate() {
        let source = lowering.resolve(value)?;
        if source.place != Place::Output(i) {
            let output = Storage::new(Place::Output(i), View::dense(ir.shape(value)));
            lowering.copy(&source, &output, ir.val(value).dtype, "result")?;
        }
    }
    Ok(lowering)
}

impl Lowering<'_, '_> {
    /// Lowers one group.
    fn lower_group(&mut self, group_index: usize) -> Result<(), String> {
        let grouping = self.grouping;
        let group = &grouping.groups[group_index];
        let mut comment: Vec<String> = group.anchor.iter().map(|&op| self.describe(op)).collect();
        comment.extend(group.members.iter().map(|&op| self.describe(op)));
        match group.anchor {
            None => {
                let (body, _) = self.loop_body(group_index, None)?;
                self.map(&body, comment)
            }
            Some(anchor) if self.externals.contains(self.ir.get(anchor).name) => self.lower_external(anchor, comment),
            Some(anchor) if anchors::program_anchor(self.ir.get(anchor).name) == Some(Anchor::Concatenate) => {
                self.concatenate(anchor, comment)
            }
            Some(anchor) => self.lower_anchor(group_index, anchor, comment),
        }
    }

    /// Lowers the group of an anchor.
    fn lower_anchor(&mut self, group: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let name = self.ir.get(id).name;
        match anchors::program_anchor(name) {
            Some(Anchor::Convolution) => self.convolution(group, id, comment),
            Some(Anchor::MatrixProduct) => self.matrix_product(group, id, comment),
            Some(Anchor::Pool) => self.pool(group, id, comment),
            Some(Anchor::Normalize) => self.normalize(group, id, comment),
            Some(Anchor::Reduce) => self.reduce(group, id, comment),
            Some(Anchor::Gather) => self.gather(group, id, comment),
            Some(Anchor::Pad) => self.pad(group, id, comment),
            Some(Anchor::Resize) => self.resize(group, id, comment),
            Some(Anchor::Concatenate) => {
                Err("expected an operator with an anchor lowering, found a concatenation".into())
            }
            None => Err(format!("no code generation for {name}")),
        }
    }

    /// Returns the storage for the result of a concatenation in a program if the operands are already adjacent in
    /// memory, in order, for example as operands of a longer concatenation.
    fn adjacent_storage(&mut self, id: OpId, axis: usize) -> Result<Option<Storage>, String> {
        let op = self.ir.get(id);
        let is_stored = self.ir.outputs.contains(&op.outputs[0]) || self.storage.contains_key(&op.outputs[0]);
        if self.machine().is_none() || op.name != "concatenate" || is_stored {
            return Ok(None);
        }
        let operands = op.inputs.iter().map(|&input| self.resolve(input)).collect::<Result<Vec<Storage>, String>>()?;
        let first_operand = &operands[0];
        let (stride, mut end) = (first_operand.view.strides[axis], first_operand.view.offset);
        for operand in &operands {
            let has_same_layout = (0..operand.view.shape.len()).all(|d| {
                operand.view.strides[d] == first_operand.view.strides[d] || (d != axis && operand.view.shape[d] == 1)
            });
            if operand.place != first_operand.place || !has_same_layout || operand.view.offset != end {
                return Ok(None);
            }
            end += stride * operand.view.shape[axis];
        }
        let view = View { shape: self.ir.shape(op.outputs[0]).to_vec(), ..first_operand.view.clone() };
        Ok(Some(Storage::new(first_operand.place, view)))
    }

    /// Copies the operands that were not computed in place into the result of a concatenation.
    fn concatenate(&mut self, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let op = self.ir.get(id);
        let result = op.outputs[0];
        let rank = self.ir.shape(result).len();
        let axis = axis(op, 0, rank)?;
        if let Some(storage) = self.adjacent_storage(id, axis)? {
            self.storage.insert(result, storage);
            return Ok(());
        }
        let first_operand = self.resolve(op.inputs[0])?;
        let order = if count(&first_operand.view.shape) > 1 && op.name == "concatenate" {
            memory_order(&first_operand.view)
        } else {
            (0..rank).collect()
        };
        let destination = self
            .place_for(result, &order, &comment[0], |_| true)
            .ok_or("expected storage for the result of a concatenation, found none")?;
        let dtype = self.ir.val(result).dtype;
        let mut start = 0;
        let is_stack = op.name == "stack";
        for &input in &op.inputs {
            let size = if is_stack { 1 } else { self.ir.shape(input)[axis] };
            let mut view = destination.view.slice(axis, start, 1, size);
            if is_stack {
                view.shape.remove(axis);
                view.strides.remove(axis);
            }
            let slice = Storage::new(destination.place, view);
            let source = self.resolve(input)?;
            if source.place != slice.place || source.view != slice.view {
                self.copy(&source, &slice, dtype, &comment[0])?;
            }
            start += size;
        }
        Ok(())
    }
}
