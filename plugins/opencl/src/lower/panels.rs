//! Operands of contractions, packed into panels of columns as wide as a tile.

use super::{Lowering, Result, Storage};
use crate::kernel::{KernelText, address};
use crate::pack::{Loop, Packing};
use crate::program::Place;
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::refuse;
use byoc_plugin_support::view::View;

/// Operand that is packed into panels of columns.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Storage before packing.
    pub storage: Storage,
    /// Extent and stride of each dimension outside the panels.
    pub outer: Vec<(i64, i64)>,
    /// Number and stride of the columns.
    pub columns: (i64, i64),
    /// Extent and stride of each dimension inside a panel: taps and channels.
    pub inner: Vec<(i64, i64)>,
}

impl Operand {
    /// Returns the number of rows per panel.
    pub fn depth(&self) -> i64 {
        self.inner.iter().map(|step| step.0).product()
    }

    /// Returns the number of panels that are `width` columns wide.
    pub fn panels(&self, width: i64) -> i64 {
        (self.columns.0 + width - 1) / width
    }
}

impl Lowering<'_, '_> {
    /// Packs an operand into panels of `width` columns: when the region is loaded if the operand is a constant,
    /// otherwise by a kernel. Returns the place of the panels.
    pub fn panels(&mut self, b: &Operand, width: i64) -> Result<Place> {
        let batches: i64 = b.outer.iter().map(|step| step.0).product();
        let elements = [b.depth(), batches, b.panels(width), width].into_iter().try_fold(1i64, i64::checked_mul);
        if elements.is_none_or(|elements| elements > i64::from(i32::MAX)) {
            let found = elements.map_or_else(|| "at least 2^63".to_owned(), |elements| elements.to_string());
            let detail = format!("expected fewer than 2^31 elements in panels of {width} columns, found {found}");
            return refuse(RefusalCode::ResourceLimit, detail);
        }
        let to_unsigned = |loops: &[(i64, i64)]| -> Option<Vec<Loop>> {
            loops.iter().map(|&(size, stride)| Some((size as u64, u64::try_from(stride).ok()?))).collect()
        };
        let source = self.source_constant(b.storage.place);
        if let Some(constant) = source
            && let (Some(outer), Some(inner_loops), Some(columns)) =
                (to_unsigned(&b.outer), to_unsigned(&b.inner), to_unsigned(&[b.columns]))
        {
            let offset = b.storage.view.offset as u64;
            let packing = Packing { offset, outer, columns: columns[0], width: width as u64, inner: inner_loops };
            return Ok(self.constant(Some(constant), DType::F32, packing));
        }
        let depth = b.depth();
        let batch: i64 = b.outer.iter().map(|step| step.0).product();
        let padded_columns = b.panels(width) * width;
        let panel_place = self.allocate(&[batch, padded_columns, depth], DType::F32);
        let mut text = KernelText::default();
        let grid = super::map::grid(padded_columns, depth * batch);
        text.write_positions(&grid);
        let dims: Vec<(i64, i64)> = b.outer.iter().chain(&b.inner).copied().collect();
        let names: Vec<String> = (0..dims.len()).map(|d| format!("i{d}")).collect();
        text.decode(1, &names, &dims.iter().map(|dim| dim.0).collect::<Vec<_>>(), "m");
        let view = View {
            shape: dims.iter().map(|dim| dim.0).chain([b.columns.0]).collect(),
            strides: dims.iter().map(|dim| dim.1).chain([b.columns.1]).collect(),
            offset: b.storage.view.offset,
        };
        let source_pointer = text.pointer(b.storage.place, DType::F32, false);
        let target = text.pointer(panel_place, DType::F32, true);
        let indices: Vec<String> = names.into_iter().chain(["x".to_owned()]).collect();
        let value = format!("{source_pointer}[{}]", address(&view, &indices));
        let value = if padded_columns == b.columns.0 { value } else { format!("x < {} ? {value} : 0.0f", b.columns.0) };
        let m = if depth * batch == 1 { "0" } else { "m" };
        let panels = b.panels(width);
        text.line(
            1,
            &format!(
                "{target}[(({m} / {depth} * {panels} + x / {width}) * {depth} + {m} % {depth}) * {width} + x % {width}] = {value};"
            ),
        );
        self.add_launch("pack", text, grid, "pack", "product operand, packed into column panels");
        Ok(panel_place)
    }

    /// Returns the index of the region constant that a place contains unchanged; `None` for any other place.
    fn source_constant(&self, place: Place) -> Option<usize> {
        let Place::Constant(i) = place else { return None };
        let packed_constant = &self.packed[i];
        let elements = packed_constant.packing.elements()?;
        packed_constant.constant.filter(|_| packed_constant.packing == Packing::identity(elements))
    }
}
