//! Operands of contractions and of depthwise convolutions, packed into panels of columns.

use super::{ConstantArray, Lowering, PackedConstant, Phase};
use crate::form::Form;
use crate::nest::body::LoopBody;
use crate::nest::transform::{decode, divided};
use crate::nest::{Expr, Loop, Place, Stmt, element, indices, numbered};
use crate::packing::Packing;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::{View, count};

/// Operand to be packed.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Memory before packing.
    pub place: Place,
    /// Element type.
    pub dtype: DType,
    /// Order of the elements.
    pub packing: Packing,
    /// Name of the number of columns in a panel, where the C compiler chooses it by the length of its vectors.
    pub width: Option<String>,
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

    /// Returns statements that pack the operand into `to`, divided by the outer loops among `tasks` tasks.
    fn statements(&self, to: Place, tasks: i64) -> Vec<Stmt> {
        let Packing { offset, outer, columns, inner, .. } = &self.packing;
        let width = self.width.as_ref().map_or(Expr::Index(self.packing.width), Expr::from);
        let dims: Vec<i64> = outer.iter().map(|step| step.0).collect();
        let vars = numbered("b", dims.len());
        let source = View { strides: outer.iter().map(|step| step.1).collect(), shape: dims.clone(), offset: *offset };
        let (column, padded_columns) = (Expr::name("column"), self.packing.padded_columns().unwrap_or(0));
        let mut arguments = vec![
            Expr::address(to, self.dtype, Expr::name("g") * self.group_size() + column.clone() * self.depth()),
            Expr::address(self.place, self.dtype, element(&source, &indices(&vars))),
            column,
            Expr::Index(columns.0),
            Expr::Index(padded_columns),
            width.clone(),
        ];
        // The function has three loops inside a panel.
        let missing = 3usize.saturating_sub(inner.len());
        let inner = std::iter::repeat_n(&(1, 0), missing).chain(inner);
        arguments.extend(inner.flat_map(|&(size, stride)| [Expr::Index(size), Expr::Index(stride)]));
        arguments.push(Expr::Index(columns.1));
        let mut stmts = decode(&vars, &dims, &Expr::name("g"));
        let call = Stmt::Call("byoc_pack_panel".into(), arguments);
        stmts.push(Loop::new("column", padded_columns, vec![call]).by(width).into());
        vec![divided("g", count(&dims), "task", tasks, stmts)]
    }

    /// Returns the dimensions `i0`, `i1`, and so on of a nest that packs the operand into `to`, one element per point, and
    /// the statements for a point. The elements of `to` are `[outer][panel][inner][column in panel]`.
    fn gather(&self, to: Place) -> (Vec<i64>, Vec<Stmt>) {
        let Packing { offset, outer, columns, inner, width, .. } = &self.packing;
        let padded_columns = self.packing.padded_columns().unwrap_or(0);
        let loops: Vec<(i64, i64)> = outer.iter().chain(inner).copied().collect();
        let dims: Vec<i64> = loops.iter().map(|step| step.0).chain([padded_columns]).collect();
        let strides = loops.iter().map(|step| step.1).chain([columns.1]).collect();
        let source = View { shape: dims.clone(), strides, offset: *offset };
        let index = indices(&numbered("i", dims.len()));
        let x = index[loops.len()].clone();
        let digit = |d: usize| if dims[d] == 1 { Expr::Index(0) } else { index[d].clone() };
        let row_major = |range: std::ops::Range<usize>| range.fold(Expr::Index(0), |sum, d| sum * dims[d] + digit(d));
        let panel = row_major(0..outer.len()) * (padded_columns / width) + x.clone() / *width;
        let row = panel * self.depth() + row_major(outer.len()..loops.len());
        let loaded = Expr::load(self.place, self.dtype, element(&source, &index));
        let value = match padded_columns == columns.0 {
            true => loaded,
            false => x.clone().lt(columns.0).select(loaded, Expr::Number(self.dtype, 0.0)),
        };
        let store = Stmt::store(to, self.dtype, row * *width + x % *width, value);
        (dims, vec![store])
    }
}

/// Returns the statements that pack constant `index` when a region is loaded.
pub fn packing_statements(index: usize, packed: &PackedConstant) -> Vec<Stmt> {
    let Some(constant) = packed.constant else { return Vec::new() };
    let PackedConstant { dtype, packing, width, .. } = packed.clone();
    Operand { place: Place::Constant(constant), dtype, packing, width }.statements(Place::Packed(index), 1)
}

impl Lowering<'_, '_> {
    /// Packs an operand into panels: a constant when the region is loaded or the program is generated, anything else in a
    /// phase of its own. Returns the memory of the panels.
    ///
    /// # Errors
    /// If there are too many elements, or a constant is too short.
    pub fn panels(&mut self, b: &Operand) -> Result<Place, String> {
        let elements = b.packing.elements().ok_or("expected at most 2^31 elements in panels, found more")?;
        // A sum without terms reads nothing.
        if b.depth() == 0 {
            return Ok(b.place);
        }
        let comment = format!("{} x {} columns in panels", b.depth(), b.packing.columns.0);
        if let (Place::Constant(index), Some(elements)) = (b.place, b.packing.source_elements()) {
            return self.constant_panels(b, index, elements, comment);
        }
        let place = Place::Work(self.buffer(elements, b.dtype, comment.clone()));
        let comment = vec![format!("an operand, {comment}")];
        let mut phase = Phase::of("pack", comment, &[b.place, place], &LoopBody::default());
        if let Form::Device(_) = self.form {
            let (dims, stmts) = b.gather(place);
            self.push_points(phase, &numbered("i", dims.len()), &dims, stmts, 1);
            return Ok(place);
        }
        let groups: i64 = b.packing.outer.iter().map(|step| step.0).product();
        phase.tasks = self.form.tasks((elements / 16384).clamp(1, groups.min(24)));
        let stmts = b.statements(place, phase.tasks);
        self.push(phase, stmts);
        Ok(place)
    }

    /// Packs constant `index`, of which `elements` elements are read.
    fn constant_panels(&mut self, b: &Operand, index: usize, elements: i64, comment: String) -> Result<Place, String> {
        let constant = self.ir.constants.get(index).ok_or("expected a constant of the region, found none")?;
        let (dtype, found) = (b.dtype, constant.bytes().len() / b.dtype.size());
        if elements > found as i64 {
            return Err(format!("expected weight indices < {found}, found {}", elements - 1));
        }
        if let Form::Program(..) = self.form {
            let bytes = b.packing.pack(constant.bytes(), dtype.size());
            return Ok(Place::Packed(self.constant_array(ConstantArray { dtype, bytes, comment })));
        }
        let (packing, width) = (b.packing.clone(), b.width.clone());
        let packed = PackedConstant { constant: Some(index), dtype, packing, width, comment };
        Ok(Place::Packed(self.packed_constant(packed)))
    }
}
