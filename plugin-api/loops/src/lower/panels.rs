//! Operands of contractions and of depthwise convolutions, packed into panels of columns.

use super::{ConstantArray, Lowering, PackedConstant, Phase};
use crate::form::Form;
use crate::nest::transform::{decode, share};
use crate::nest::{Expr, Loop, Place, Stmt, element, indices, numbered};
use crate::packing::Packing;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Number of columns in a panel.
#[derive(Clone, Debug)]
pub enum Width {
    /// Known number.
    Columns(i64),
    /// Name of the number, which the C compiler knows.
    Name(String),
}

impl Width {
    fn expr(&self) -> Expr {
        match self {
            Width::Columns(columns) => Expr::Index(*columns),
            Width::Name(name) => Expr::from(name),
        }
    }
}

/// Operand to be packed.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Memory before packing.
    pub place: Place,
    /// Element type.
    pub dtype: DType,
    /// Order of the elements; the width is that of the panels if it is known.
    pub packing: Packing,
}

impl Operand {
    /// Returns the number of rows per panel.
    pub fn depth(&self) -> i64 {
        self.packing.inner.iter().map(|step| step.0).product()
    }

    /// Returns the number of elements of the panels of one point of the outer loops.
    pub fn group_size(&self) -> i64 {
        self.depth() * self.packing.padded_columns().unwrap_or(0)
    }

    /// Returns true if a phase packs the operand at each run: it is not a constant, or not one with elements in order.
    pub fn is_packed_at_run(&self) -> bool {
        let is_constant = matches!(self.place, Place::Constant(_)) && self.packing.source_elements().is_some();
        self.depth() > 0 && !is_constant
    }

    /// Returns statements that pack the operand into `to`, for the outer loops `from..end` over their row-major index.
    fn statements(&self, to: Place, width: &Expr, [from, end]: [Expr; 2]) -> Vec<Stmt> {
        let Packing { offset, outer, columns, inner, .. } = &self.packing;
        let dims: Vec<i64> = outer.iter().map(|step| step.0).collect();
        let vars = numbered("b", dims.len());
        let source = View { strides: outer.iter().map(|step| step.1).collect(), shape: dims.clone(), offset: *offset };
        let column = Expr::name("column");
        let mut arguments = vec![
            Expr::address(to, self.dtype, Expr::name("g") * self.group_size() + column.clone() * self.depth()),
            Expr::address(self.place, self.dtype, element(&source, &indices(&vars))),
            column,
            Expr::Index(columns.0),
            Expr::Index(self.packing.padded_columns().unwrap_or(0)),
            width.clone(),
        ];
        // The function has three loops inside a panel.
        let missing = 3usize.saturating_sub(inner.len());
        let inner = std::iter::repeat_n(&(1, 0), missing).chain(inner);
        arguments.extend(inner.flat_map(|&(size, stride)| [Expr::Index(size), Expr::Index(stride)]));
        arguments.push(Expr::Index(columns.1));
        let mut stmts = decode(&vars, &dims, &Expr::name("g"));
        let call = Stmt::Call("byoc_pack_panel".into(), arguments);
        let padded_columns = self.packing.padded_columns().unwrap_or(0);
        stmts.push(Loop::new("column", padded_columns, vec![call]).by(width.clone()).into());
        vec![Loop::new("g", end, stmts).starting(from).into()]
    }
}

/// Returns the statements that pack constant `index` when a region is loaded.
pub fn packing_statements(index: usize, packed: &PackedConstant) -> Vec<Stmt> {
    let Some(constant) = packed.constant else { return Vec::new() };
    let operand = Operand { place: Place::Constant(constant), dtype: packed.dtype, packing: packed.packing.clone() };
    let width = match &packed.width {
        Some(name) => Expr::from(name),
        None => Expr::Index(packed.packing.width),
    };
    let groups: i64 = packed.packing.outer.iter().map(|step| step.0).product();
    operand.statements(Place::Packed(index), &width, [Expr::Index(0), Expr::Index(groups)])
}

impl Lowering<'_, '_> {
    /// Packs an operand into panels: a constant when the region is loaded or the program is generated, anything else in a
    /// phase of its own. Returns the memory of the panels.
    ///
    /// # Errors
    /// If there are too many elements, or a constant is too short.
    pub fn panels(&mut self, b: &Operand, width: &Width) -> Result<Place, String> {
        let mut packing = b.packing.clone();
        if let Width::Columns(columns) = width {
            packing.width = *columns;
        }
        let b = &Operand { packing, ..b.clone() };
        let Some(elements) = b.packing.elements() else {
            return Err(format!("expected at most 2^31 elements in panels of {:?} columns, found more", width));
        };
        // A sum without terms reads nothing.
        if b.depth() == 0 {
            return Ok(b.place);
        }
        let comment = format!("{} x {} columns in panels", b.depth(), b.packing.columns.0);
        if let (Place::Constant(index), Some(source_elements)) = (b.place, b.packing.source_elements()) {
            let constant = self.ir.constants.get(index).ok_or("expected a constant of the region, found none")?;
            let found = constant.bytes().len() / b.dtype.size();
            if source_elements > found as i64 {
                return Err(format!("expected weight indices < {found}, found {}", source_elements - 1));
            }
            if let Form::Program(..) = self.form {
                let bytes = b.packing.pack(constant.bytes(), b.dtype.size());
                return Ok(Place::Packed(self.constant_array(ConstantArray { dtype: b.dtype, bytes, comment })));
            }
            let width = if let Width::Name(name) = width { Some(name.clone()) } else { None };
            let packing = b.packing.clone();
            let packed = PackedConstant { constant: Some(index), dtype: b.dtype, packing, width, comment };
            return Ok(Place::Packed(self.packed_constant(packed)));
        }
        let place = Place::Work(self.buffer(elements, b.dtype, comment.clone()));
        let mut phase = Phase::new("pack", vec![format!("an operand, {comment}")]);
        phase.touch(b.place);
        phase.touch(place);
        if let (Form::Device(_), Width::Columns(width)) = (self.form, width) {
            let Packing { offset, outer, columns, inner, .. } = &b.packing;
            let padded_columns = b.packing.padded_columns().unwrap_or(0);
            let loops: Vec<(i64, i64)> = outer.iter().chain(inner).copied().collect();
            let vars = numbered("i", loops.len() + 1);
            let dims: Vec<i64> = loops.iter().map(|step| step.0).chain([padded_columns]).collect();
            let strides = loops.iter().map(|step| step.1).chain([columns.1]).collect();
            let source = View { shape: dims.clone(), strides, offset: *offset };
            let index = indices(&vars);
            // `[outer][panel][inner][column in panel]`.
            let (outer_count, x) = (outer.len(), index[loops.len()].clone());
            let row_major = |range: std::ops::Range<usize>| {
                range.fold(Expr::Index(0), |sum, d| {
                    sum * dims[d] + if dims[d] == 1 { 0.into() } else { index[d].clone() }
                })
            };
            let panel = row_major(0..outer_count) * (padded_columns / width) + x.clone() / *width;
            let row = panel * b.depth() + row_major(outer_count..loops.len());
            let loaded = Expr::load(b.place, b.dtype, element(&source, &index));
            let value = match padded_columns == columns.0 {
                true => loaded,
                false => x.clone().lt(columns.0).select(loaded, Expr::Number(b.dtype, 0.0)),
            };
            let stmts =
                vec![Stmt::Store { memory: place.into(), dtype: b.dtype, index: row * *width + x % *width, value }];
            self.push_points(phase, &vars, &dims, stmts, 1);
            return Ok(place);
        }
        let groups: i64 = b.packing.outer.iter().map(|step| step.0).product();
        phase.tasks = self.form.tasks((elements / 16384).clamp(1, groups.min(24)));
        let range = share(groups, &Expr::name("task"), phase.tasks);
        self.push(phase, b.statements(place, &width.expr(), range));
        Ok(place)
    }
}
