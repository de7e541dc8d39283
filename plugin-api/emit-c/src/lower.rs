//! Lowering of groups of operators to phases of C code, in execution order.

use crate::anchors::{self, Anchor};
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
/// If there is no code generation for an operator, its types or its attributes.
pub fn lower<'p, 'a>(
    ir: &'p RegionIr<'a>,
    grouping: &'p Grouping,
    symbol: &'p str,
    form: Form,
) -> Result<Lowering<'p, 'a>, String> {
    let mut lowering = Lowering::new(ir, grouping, symbol, form);
    for group in 0..grouping.groups.len() {
        let before = lowering.phases.len();
        lowering.group(group)?;
        if let Some(last) = lowering.phases[before..].last_mut() {
            last.group = Some(group);
        }
    }
    for (i, &value) in ir.outputs.iter().enumerate() {
        let from = lowering.resolve(value)?;
        if from.place != Place::Output(i) {
            let to = Storage::new(Place::Output(i), View::dense(ir.shape(value)));
            lowering.copy(&from, &to, ir.val(value).dtype, "result")?;
        }
    }
    Ok(lowering)
}

impl Lowering<'_, '_> {
    /// Lowers one group.
    fn group(&mut self, number: usize) -> Result<(), String> {
        let grouping = self.grouping;
        let group = &grouping.groups[number];
        let mut comment: Vec<String> = group.anchor.iter().map(|&op| self.describe(op)).collect();
        comment.extend(group.members.iter().map(|&op| self.describe(op)));
        match group.anchor {
            None => {
                let (body, _) = self.loop_body(number, None)?;
                self.map(&body, comment)
            }
            Some(anchor) if anchors::program_anchor(self.ir.get(anchor).name) == Some(Anchor::Concatenate) => self.concatenate(anchor, comment),
            Some(anchor) => anchors::lower(self, number, anchor, comment),
        }
    }

    /// Copies into the result of a concatenation those operands that were not computed in place.
    fn concatenate(&mut self, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let op = self.ir.get(id);
        let result = op.outputs[0];
        let rank = self.ir.shape(result).len();
        let axis = axis(op, 0, rank)?;
        let first = self.resolve(op.inputs[0])?;
        let order = if count(&first.view.shape) > 1 && op.name == "concatenate" {
            memory_order(&first.view)
        } else {
            (0..rank).collect()
        };
        let to = self
            .place_for(result, &order, &comment[0], |_| true)
            .ok_or("no storage for the result of a concatenation")?;
        let dtype = self.ir.val(result).dtype;
        let mut before = 0;
        let stacked = op.name == "stack";
        for &input in &op.inputs {
            let size = if stacked { 1 } else { self.ir.shape(input)[axis] };
            let mut view = to.view.slice(axis, before, 1, size);
            if stacked {
                view.shape.remove(axis);
                view.strides.remove(axis);
            }
            let part = Storage::new(to.place, view);
            let from = self.resolve(input)?;
            if from.place != part.place || from.view != part.view {
                self.copy(&from, &part, dtype, &comment[0])?;
            }
            before += size;
        }
        Ok(())
    }
}
