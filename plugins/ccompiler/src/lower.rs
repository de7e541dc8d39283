//! Lowering of groups of operators to phases of C code, in execution order.

use crate::anchors;
use crate::fused::{Place, Stored};
use crate::group::Grouping;
use crate::lowering::Lowering;
use crate::program::{OpId, Program};
use crate::view::{View, count};

/// Lowers a region.
///
/// # Errors
/// If there is no code generation for an operator, its types or its attributes.
pub fn lower<'p, 'a>(
    program: &'p Program<'a>,
    grouping: &'p Grouping,
    symbol: &'p str,
) -> Result<Lowering<'p, 'a>, String> {
    let mut lowering = Lowering::new(program, grouping, symbol);
    for group in 0..grouping.groups.len() {
        lowering.group(group)?;
    }
    for (i, &value) in program.outputs.iter().enumerate() {
        let from = lowering.resolve(value)?;
        if from.place != Place::Output(i) {
            let to = Stored::new(Place::Output(i), View::dense(program.shape(value)));
            lowering.copy(&from, &to, program.val(value).dtype, "result")?;
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
                let (fused, _) = self.fused(number, None)?;
                self.map(&fused, comment)
            }
            Some(anchor) if self.program.get(anchor).name == "concatenate" => self.concatenate(anchor, comment),
            Some(anchor) => anchors::lower(self, number, anchor, comment),
        }
    }

    /// Copies the operands of a concatenation that were not computed in place into its result.
    fn concatenate(&mut self, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let op = self.program.get(id);
        let result = op.outputs[0];
        let rank = self.program.shape(result).len();
        let axis = op.axis("axis", 0, rank);
        let first = self.resolve(op.inputs[0])?;
        let order = if count(&first.view.shape) > 1 { first.view.memory_order() } else { (0..rank).collect() };
        let to = self
            .place_for(result, &order, &comment[0], |_| true)
            .ok_or("no storage for the result of a concatenation")?;
        let dtype = self.program.val(result).dtype;
        let mut before = 0;
        for &input in &op.inputs {
            let size = self.program.shape(input)[axis];
            let part = Stored::new(to.place, to.view.slice(axis, before, 1, size));
            let from = self.resolve(input)?;
            if from.place != part.place || from.view != part.view {
                self.copy(&from, &part, dtype, &comment[0])?;
            }
            before += size;
        }
        Ok(())
    }
}
