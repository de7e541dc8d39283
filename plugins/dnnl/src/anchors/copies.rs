//! Lowering of operators that only copy their operands: concatenation and padding.

use crate::concat::{MAX_PARTS, Part, RowConcat};
use crate::dim_map::DimMap;
use crate::ir::{Op, Result};
use crate::library::{Desc, OneDnnError, PrimitiveDesc, ffi};
use crate::lower::{BufferView, Lowering};
use crate::plan::Operation;
use byoc_plugin_support::view::{View, count};

impl Lowering<'_> {
    /// Lowers a concatenation: to one copy per part if the parts are interleaved, to a hand-written kernel if they are
    /// rows, otherwise to a primitive.
    pub(super) fn concat(&mut self, op: &Op, axis: usize) -> Result<usize> {
        let shape = self.ir.shape(op.output).to_vec();
        let dtype = self.ir.get(op.output).dtype;
        let operands: Vec<BufferView> = op.inputs.iter().map(|&operand| self.placement(operand)).collect();
        let order =
            operands.iter().max_by_key(|operand| count(&operand.view.shape)).map(|operand| operand.view.order());
        let mut order = order.unwrap_or_default();
        let are_singletons = operands.iter().all(|operand| operand.view.shape[axis] == 1);
        if let Some(outer_axis) = axis.checked_sub(1).filter(|&d| are_singletons && shape[d] > 1) {
            // The parts are interleaved: `axis` is placed directly inside `outer_axis` in memory, in
            // preparation for merging the two.
            order.retain(|&d| d != axis);
            let position = order.iter().position(|&d| d == outer_axis).map_or(order.len(), |position| position + 1);
            order.insert(position, axis);
            let result = self.scratch_of(dtype, View::in_order(&shape, &order));
            for (i, operand) in operands.iter().enumerate() {
                let slice = BufferView { view: result.view.slice(axis, i as i64, 1, 1), ..result.clone() };
                self.copy(operand, &slice, "interleaving")?;
            }
            self.put_after_chain(op, &[], 0, result, &DimMap::plain(&shape, &shape))?;
            return Ok(0);
        }
        let result = self.scratch_of(dtype, View::in_order(&shape, &order));
        if let Some(row_join) = row_concat(&operands, axis, &order, dtype.size()) {
            return self.concat_rows(op, row_join, operands, result);
        }
        // The primitive copies each operand anyway, so operands of any layout are read in place. The library's
        // primitive cache ignores the strides of unit dimensions, but its concatenation uses them.
        let normalize =
            |operand: BufferView| BufferView { view: operand.view.normalize_unit_strides(&order), ..operand };
        let operands: Vec<BufferView> = operands.into_iter().map(normalize).collect();
        let descs = operands.iter().map(|operand| self.desc_of(operand)).collect::<Result<Vec<_>, OneDnnError>>()?;
        let dst = self.desc_of(&result)?;
        let attr = self.attr(&[])?;
        let desc_refs: Vec<&Desc> = descs.iter().collect();
        let desc = PrimitiveDesc::concat(self.library, axis, &desc_refs, &dst, &attr)?;
        if desc.is_slow() && operands.len() <= MAX_PARTS {
            let in_order = |operand: &BufferView| self.in_order(operand, &order);
            let operands = operands.iter().map(in_order).collect::<Result<Vec<_>>>()?;
            if let Some(rows) = row_concat(&operands, axis, &order, dtype.size()) {
                return self.concat_rows(op, rows, operands, result);
            }
        }
        let mut tensors: Vec<(i32, BufferView, Desc)> = operands
            .into_iter()
            .zip(descs)
            .enumerate()
            .map(|(i, (operand, desc))| (ffi::ARG_MULTIPLE_SRC + i as i32, operand, desc))
            .collect();
        tensors.push((ffi::ARG_DST, result.clone(), dst));
        self.step(desc, tensors, "concatenation")?;
        let dim_map = DimMap::plain(&shape, &shape);
        self.put_after_chain(op, &[], 0, result, &dim_map)?;
        Ok(0)
    }

    /// Adds the step of a concatenation in rows.
    fn concat_rows(
        &mut self,
        op: &Op,
        rows: RowConcat,
        operands: Vec<BufferView>,
        result: BufferView,
    ) -> Result<usize> {
        let sources = operands.into_iter().enumerate().map(|(i, operand)| (ffi::ARG_MULTIPLE_SRC + i as i32, operand));
        let tensors = sources.chain([(ffi::ARG_DST, result.clone())]).collect();
        self.handwritten_step(Operation::Concat(rows), tensors, "concatenation")?;
        let dim_map = DimMap::plain(self.ir.shape(op.output), &result.view.shape);
        self.put_after_chain(op, &[], 0, result, &dim_map)?;
        Ok(0)
    }

    /// Lowers a pad operator: fills a tensor with the byte `value` and copies the data into it.
    pub(super) fn pad(&mut self, op: &Op, pad_before: &[i64], value: u8) -> Result<usize> {
        let x = self.placement(op.inputs[0]);
        let shape = self.ir.shape(op.output).to_vec();
        let result = self.scratch_of(self.dtype(&x), View::in_order(&shape, &x.view.order()));
        let mut interior = result.clone();
        for (axis, (&begin, &size)) in pad_before.iter().zip(&x.view.shape).enumerate() {
            interior.view = interior.view.slice(axis, begin, 1, size);
        }
        self.fill(&result, value)?;
        self.copy(&x, &interior, "padding")?;
        let dim_map = DimMap::plain(&shape, &shape);
        self.put_after_chain(op, &[], 0, result, &dim_map)?;
        Ok(0)
    }
}

/// Returns the row-wise form of a concatenation whose result has the memory order `order`; `None` unless every part can
/// be read as rows in that order. The dimensions outside of `axis` are the rows.
fn row_concat(operands: &[BufferView], axis: usize, order: &[usize], size: usize) -> Option<RowConcat> {
    if operands.len() > MAX_PARTS {
        return None;
    }
    let outer = order.iter().position(|&d| d == axis)?;
    let rows: i64 = order[..outer].iter().map(|&d| operands[0].view.shape[d]).product();
    let row_part = |operand: &BufferView| {
        let columns = count(&operand.view.shape) / rows;
        let view = operand.view.permute(order).reshape(&[rows, columns])?;
        let is_dense = (columns == 1 || view.strides[1] == 1) && view.strides[0] >= 0;
        let (row, step) = (columns as usize * size, view.strides[0] as usize * size);
        is_dense.then_some(Part { bytes: row, stride: step })
    };
    let parts: Vec<Part> = operands.iter().map(row_part).collect::<Option<_>>()?;
    let stride = parts.iter().map(|part| part.bytes).sum();
    Some(RowConcat { rows: rows as usize, parts, stride })
}
