//! Operators that move elements: `concatenate` and `take`.

use super::map::grid;
use super::{Lowering, Result, Storage, axis, element_type};
use crate::kernel::{KernelText, address};
use crate::program::Place;
use crate::view_ops::memory_order;
use byoc_plugin_support::region::Op;
use byoc_plugin_support::view::{View, count};

impl Lowering<'_, '_> {
    /// Lowers `concatenate` to a copy of each operand. An intermediate result has the memory order of the largest
    /// operand.
    pub fn concatenate(&mut self, op: &Op<'_>) -> Result<()> {
        let value = op.outputs[0];
        let shape = self.ir.shape(value).to_vec();
        let dtype = self.ir.val(value).dtype;
        let axis = axis(op, 0, shape.len())?;
        let operands: Vec<Storage> = op.inputs.iter().map(|&input| self.resolve(input)).collect::<Result<_>>()?;
        let storage = match self.ir.outputs.iter().position(|&output| output == value) {
            Some(output) => Storage { place: Place::Output(output), view: View::dense(&shape) },
            None => {
                let largest_operand = operands.iter().max_by_key(|operand| count(&operand.view.shape));
                let order =
                    largest_operand.map_or_else(|| (0..shape.len()).collect(), |operand| memory_order(&operand.view));
                Storage { place: self.allocate(&shape, dtype), view: View::in_order(&shape, &order) }
            }
        };
        let mut start = 0;
        for operand in operands {
            let size = operand.view.shape[axis];
            let slice = Storage { place: storage.place, view: storage.view.slice(axis, start, 1, size) };
            self.copy(&operand, &slice, dtype, op.name)?;
            start += size;
        }
        self.storage.insert(value, storage);
        Ok(())
    }

    /// Lowers `take`, with indices clipped or wrapped to the extent of the axis.
    pub fn take(&mut self, op: &Op<'_>) -> Result<()> {
        let (data, indices) = (self.resolve(op.inputs[0])?, self.resolve(op.inputs[1])?);
        let value = op.outputs[0];
        let (out, dtype) = (self.ir.shape(value).to_vec(), self.ir.val(value).dtype);
        let axis = match op.attrs().ints("axis") {
            Some(_) => axis(op, 0, data.view.shape.len())?,
            None => 0,
        };
        let data = match op.attrs().ints("axis") {
            Some(_) => data,
            // Without an axis, indices refer to the flattened data.
            None => {
                let dense = self.dense(&data, dtype, op.name)?;
                Storage { view: View::dense(&[count(&data.view.shape)]), ..dense }
            }
        };
        let destination_place = match self.ir.outputs.iter().position(|&output| output == value) {
            Some(output) => Place::Output(output),
            None => self.allocate(&out, dtype),
        };
        let destination = Storage { place: destination_place, view: View::dense(&out) };
        let index_rank = indices.view.shape.len();
        let size = data.view.shape[axis];
        let index_type = self.ir.val(op.inputs[1]).dtype;
        let columns = count(&out[axis + index_rank..]);
        let rows = count(&out[..axis + index_rank]);
        let mut text = KernelText::default();
        let grid = grid(columns, rows);
        text.write_positions(&grid);
        let names: Vec<String> = (0..out.len()).map(|d| format!("i{d}")).collect();
        text.decode(1, &names[..axis + index_rank], &out[..axis + index_rank], "m");
        text.decode(1, &names[axis + index_rank..], &out[axis + index_rank..], "x");
        let index_pointer = text.pointer(indices.place, index_type, false);
        let index_offset = address(&indices.view, &names[axis..axis + index_rank]);
        text.line(1, &format!("{} k = {index_pointer}[{index_offset}];", element_type(index_type)));
        if op.attrs().text("mode") == "wrap" {
            text.line(1, &format!("k %= {size};"));
            text.line(1, &format!("k = k < 0 ? k + {size} : k;"));
        } else {
            text.line(1, &format!("k = k < 0 ? 0 : (k >= {size} ? {} : k);", size - 1));
        }
        let mut source_index: Vec<String> = names[..axis].to_vec();
        source_index.push("(int)k".into());
        source_index.extend(names[axis + index_rank..].iter().cloned());
        let source_pointer = text.pointer(data.place, dtype, false);
        let destination_pointer = text.pointer(destination.place, dtype, true);
        // An index along a unit axis is 0 and does not contribute to the address.
        let (source, target) = (address(&data.view, &source_index), address(&destination.view, &names));
        text.line(1, &format!("{destination_pointer}[{target}] = {source_pointer}[{source}];"));
        self.storage.insert(value, destination);
        let comment = op.outputs.first().and_then(|&v| self.ir.producer(v)).map(|id| self.describe(id));
        self.add_launch("take", text, grid, op.name, &comment.unwrap_or_default());
        Ok(())
    }
}
