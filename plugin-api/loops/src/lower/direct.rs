//! Contractions in programs: operands are read in place, and taps in the padding are skipped.
//!
//! No operand is copied: a convolution's data has no zero border, and where a window reaches into the padding, the loops
//! over its taps start later or end earlier. Interior rows are computed in tiles, border rows one at a time. A constant
//! operand is laid out in panels at code generation; any other one is read with its strides.

use super::panels::Width;
use super::tile::{Tile, dispatch_last};
use super::{Lowering, Phase};
use crate::nest::Step;
use crate::nest::transform::{nest, variable};
use crate::nest::{Expr, Loop, Memory, Place, Stmt, element, indices, numbered};
use crate::schedule::contraction::{Contraction, TapGuard, best_tile};
use crate::schedule::round_up;
use crate::types::Types;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Maximum size in bytes of a panel of a non-constant operand; the panel is on the stack.
const MAX_PANEL: i64 = 16_384;

/// Sum over the two tap axes and the channels, outermost first.
pub(crate) struct Sums {
    /// Number of terms and stride in `a` for each level.
    pub levels: [(i64, i64); 3],
    /// Guards of the two tap axes.
    pub guards: [Option<TapGuard>; 2],
}

impl Sums {
    /// Extracts the summation levels of a contraction.
    ///
    /// # Errors
    /// If there are more than two kernel axes.
    pub fn new(c: &Contraction) -> Result<Sums, String> {
        let mut taps = c.taps.clone();
        let mut guards = c.guards.clone();
        guards.resize(taps.len(), None);
        while taps.len() < 2 {
            taps.insert(0, (1, 0, 0));
            guards.insert(0, None);
        }
        let ([y, x], [gy, gx]) = (&taps[..], &guards[..]) else {
            return Err(format!("expected at most 2 kernel axes, found {}", taps.len()));
        };
        Ok(Sums { levels: [(y.0, y.1), (x.0, x.1), (c.k.0, c.k.1)], guards: [*gy, *gx] })
    }

    /// Returns the number of terms.
    pub fn depth(&self) -> i64 {
        self.levels.iter().map(|level| level.0).product()
    }

    /// Returns the range of the row dimension `row`, of `len` rows, in which no tap along it is in the padding.
    pub fn inside(&self, row: usize, len: i64) -> (i64, i64) {
        let mut guards = self.guards.iter().zip(self.levels).filter_map(|(guard, level)| Some(((*guard)?, level.0)));
        guards.find(|(guard, _)| guard.row == row).map_or((0, len), |(guard, taps)| guard.inside(taps, len))
    }

    /// Returns the number of taps of axis `i` that read elements.
    pub fn count(&self, i: usize) -> Expr {
        match self.guards.get(i) {
            Some(Some(_)) => Expr::name(format!("to{i}")) - Expr::name(format!("from{i}")),
            _ => Expr::Index(self.levels[i].0),
        }
    }

    /// Returns the distance to the first tap of axis `i` that reads an element, in memory with the stride `step`.
    pub fn skipped(&self, i: usize, step: impl Into<Expr>) -> Expr {
        match self.guards.get(i) {
            Some(Some(_)) => Expr::name(format!("from{i}")) * step,
            _ => Expr::Index(0),
        }
    }

    /// Declares the tap ranges of the axes whose row dimension is `row`, with the index `var`.
    pub fn bounds_of(&self, row: usize, var: &str) -> Vec<Stmt> {
        let mut stmts = Vec::new();
        for (i, guard) in self.guards.iter().enumerate() {
            if let Some(guard) = guard.filter(|guard| guard.row == row) {
                stmts.extend(guard.bounds(i, &Expr::name(var), self.levels[i].0));
            }
        }
        stmts
    }

    /// Declares the tap ranges of the axes whose row dimension is before `last`; `vars` are the indices of the rows.
    pub fn bounds_before(&self, last: usize, vars: &[String]) -> Vec<Stmt> {
        (0..last).flat_map(|row| self.bounds_of(row, &vars[row])).collect()
    }

    /// Returns the numbers of rows that tiles of `most` rows have, given the rows without padding.
    pub fn row_counts(&self, most: i64, (low, high): (i64, i64), len: i64) -> Vec<i64> {
        let rest = (high - low).max(0) % most;
        let mut counts = vec![most];
        counts.extend((rest > 1).then_some(rest));
        counts.extend((most > 1 && (rest == 1 || (low, high) != (0, len))).then_some(1));
        counts
    }

    /// Returns the loop over tiles of rows, which declares `row` and `rows`: whole tiles where no tap is in the padding,
    /// single rows elsewhere.
    pub fn row_tiles(&self, most: i64, (low, high): (i64, i64), len: i64, mut body: Vec<Stmt>) -> Vec<Stmt> {
        let row = || Expr::name("row");
        let mut stmts = Vec::new();
        if most > 1 {
            let inside = (Expr::Index(high) - row()).min(most);
            let is_border = row().lt(low).or(row().ge(high));
            let rows = if (low, high) == (0, len) { inside } else { is_border.select(1, inside) };
            body.insert(0, Stmt::Set { name: "rows".into(), value: rows });
            stmts.push(variable("rows", 1));
        } else {
            stmts.push(Stmt::index("rows", 1));
        }
        let step = if most > 1 { Expr::name("rows") } else { Expr::Index(1) };
        stmts.push(Loop::new("row", len, body).by(step).into());
        stmts
    }
}

impl Lowering<'_, '_> {
    /// Adds the phase of a contraction in a program.
    pub fn direct_contraction(&mut self, c: &Contraction, comment: Vec<String>) -> Result<(), String> {
        let machine = self.machine().ok_or("direct contraction: expected a program, found a region")?;
        let sums = Sums::new(c)?;
        let [groups, rows] = c.parts;
        // Guarded rows keep their dimensions, because the guards need their indices.
        let has_guards = sums.guards.iter().any(Option::is_some);
        let mut parts = vec![groups];
        parts.extend(if has_guards { vec![1; rows] } else { vec![rows] });
        parts.push(1);
        let mut b_strides = vec![0; c.body.domain.len()];
        let is_constant = matches!(c.b, Place::Constant(_));
        let mut packed_groups = 1;
        for d in (0..groups).rev().filter(|&d| c.b_groups[d] != 0) {
            b_strides[d] = if is_constant { packed_groups } else { c.b_groups[d] };
            packed_groups *= c.body.domain[d];
        }
        let (body, strides, lengths) = c.body.collapse(&[&c.a_view.strides, &b_strides], &parts);
        let a_view = View { shape: body.domain.clone(), strides: strides[0].clone(), offset: c.a_view.offset };
        let b_view = View { shape: body.domain.clone(), strides: strides[1].clone(), offset: 0 };
        let (groups, columns) = (lengths[0], c.columns());
        let rows: usize = lengths[1..lengths.len() - 1].iter().sum();
        let mut vars = numbered("g", groups);
        vars.extend(numbered("r", rows));
        vars.push("c".into());
        let last_row_dim = groups + rows - 1;
        let len = body.domain[last_row_dim];
        let (low, high) = sums.inside(rows - 1, len);

        // Vector code reads whole panels, which are padded with zeros; plain code needs no padding.
        let depth = sums.depth();
        let is_product = sums.levels[0].0 == 1 && sums.levels[1].0 == 1;
        let has_vector_code = machine.vectors
            && c.types == Types::FLOAT
            && (is_constant || (is_product && depth * 4 * machine.lanes <= MAX_PANEL));
        let (mr, vectors) =
            best_tile((high - low).max(1), round_up(columns, machine.lanes) / machine.lanes, machine.registers);
        let padded_columns = if has_vector_code { round_up(columns, machine.lanes) } else { columns };
        let mut nr = (vectors * machine.lanes).min(padded_columns);
        while has_vector_code && !is_constant && nr > machine.lanes && depth * 4 * nr > MAX_PANEL {
            nr -= machine.lanes;
        }
        let has_local_panel = has_vector_code && !is_constant;
        let b_place = match is_constant {
            true => self.panels(&c.operand(padded_columns), &Width::Columns(nr))?,
            false => c.b,
        };

        if !has_vector_code {
            self.kernels.insert((c.types.a, c.types.b));
        }
        let is_single_panel = nr >= padded_columns;
        let tail = padded_columns % nr;
        let column = || if is_single_panel { Expr::Index(0) } else { Expr::name("column") };
        let width = || if tail == 0 || is_single_panel { Expr::Index(nr) } else { Expr::name("width") };
        // In panels, the distance between taps and channels is a multiple of the width.
        let channels = sums.levels[2].0;
        let in_panels = is_constant || has_local_panel;
        let tap_strides: Vec<i64> = {
            let mut strides: Vec<i64> = c.taps.iter().map(|tap| tap.2).collect();
            while strides.len() < 2 {
                strides.insert(0, 0);
            }
            strides.push(c.k.2);
            strides
        };
        let stride_of = |i: usize, width: Expr| match in_panels {
            true => width * [sums.levels[1].0 * channels, channels, 1][i],
            false => Expr::Index(tap_strides[i]),
        };
        let group = element(&b_view, &indices(&vars));
        let mut b_index = match (is_constant, has_local_panel) {
            (true, _) => group * (depth * padded_columns) + column() * depth,
            (false, true) => Expr::Index(0),
            (false, false) => group + c.b_offset + column() * c.b_column,
        };
        let mut index = indices(&vars);
        index[last_row_dim] = Expr::name("row");
        let mut a_index = element(&a_view, &index);
        for i in 0..2 {
            a_index = a_index + sums.skipped(i, sums.levels[i].1);
            b_index = b_index + sums.skipped(i, stride_of(i, width()));
        }
        let b_memory = if has_local_panel { Memory::Local("panel".into()) } else { b_place.into() };
        let is_contiguous = c.b_column == 1 || in_panels;
        let row_stride = a_view.strides[last_row_dim];
        let mut cases = Vec::new();
        let row_counts = sums.row_counts(mr, (low, high), len);
        let mut widths = vec![nr];
        widths.extend((tail != 0 && !is_single_panel).then_some(tail));
        for &r in &row_counts {
            for &n in &widths {
                let mut arguments = vec![Expr::Index(r), Expr::Index(n), Expr::Index(row_stride)];
                for i in 0..3 {
                    arguments.extend([sums.count(i), sums.levels[i].1.into(), stride_of(i, n.into())]);
                }
                arguments.extend((!is_contiguous).then_some(Expr::Index(c.b_column)));
                arguments.extend((c.types.sum != DType::F32).then_some(Expr::Index(c.a_zero)));
                arguments.extend(["a", "b", "t"].map(Expr::from));
                let name =
                    if has_vector_code { "byoc_vector_tile".to_owned() } else { tile_name(c.types.a, c.types.b) };
                let name = if is_contiguous { name } else { format!("{name}_strided") };
                let is_rows = Expr::name("rows").equal(r);
                let is_width = Expr::name("width").equal(n);
                let condition = match (row_counts.len() > 1, widths.len() > 1) {
                    (true, true) => is_rows.and(is_width),
                    (false, true) => is_width,
                    _ => is_rows,
                };
                cases.push((condition, vec![Stmt::Call(name, arguments)]));
            }
        }
        let real = if padded_columns == columns { width() } else { Expr::name("real") };
        let pointer = |name: &str, memory: Memory, dtype: DType, index: Expr| Stmt::Pointer {
            name: name.to_owned(),
            dtype,
            value: Expr::address(memory, dtype, index),
        };
        let mut in_tile = sums.bounds_of(rows - 1, "row");
        in_tile.push(pointer("a", c.a.into(), c.types.a, a_index));
        in_tile.push(pointer("b", b_memory, c.types.b, b_index));
        in_tile.extend(dispatch_last(cases));
        let tile = Tile {
            body: &body,
            vars: &vars,
            stride: width(),
            rows: Expr::name("rows"),
            columns: real.clone(),
            sum: c.types.sum,
        };
        let mut finish = tile.finish();
        finish.substitute("column", &column());
        in_tile.push(finish);
        let mut in_row = sums.bounds_before(rows - 1, &vars[groups..]);
        in_row.extend(sums.row_tiles(mr, (low, high), len, in_tile));
        let mut in_panel = Vec::new();
        if tail != 0 && !is_single_panel {
            in_panel.push(Stmt::index("width", (Expr::Index(padded_columns) - column()).min(nr)));
        }
        in_panel.push(Stmt::index("real", (Expr::Index(columns) - column()).min(width())));
        if has_local_panel {
            in_panel.push(local_panel(c, &b_view, &vars, column(), width(), real));
        }
        in_panel.extend(nest(&vars[groups..last_row_dim], &body.domain[groups..last_row_dim], in_row));
        let in_group = match is_single_panel {
            true => in_panel,
            false => vec![Loop::new("column", padded_columns, in_panel).by(nr).into()],
        };
        let mut stmts = vec![Stmt::array("t", c.types.sum, mr * nr)];
        if has_local_panel {
            stmts.push(Stmt::array("panel", DType::F32, depth * nr));
        }
        stmts.extend(nest(&vars[..groups], &body.domain[..groups], in_group));
        let mut phase = Phase::new("product", comment);
        phase.nest = c.nest();
        phase.schedule = vec![Step::Pack { operand: c.b, ahead: is_constant }, Step::Tile { sizes: vec![(mr, nr)] }];
        phase.touch(c.a);
        phase.touch(b_place);
        phase.touch_all(&body);
        self.push(phase, stmts);
        Ok(())
    }
}

/// Copies a panel of a product's second operand to the stack; columns past the end are zeros.
fn local_panel(c: &Contraction, b_view: &View, vars: &[String], column: Expr, width: Expr, real: Expr) -> Stmt {
    let (k, j) = (Expr::name("k"), Expr::name("j"));
    let start = element(b_view, &indices(vars)) + c.b_offset;
    let index = start + k.clone() * c.k.2 + (column + j.clone()) * c.b_column;
    let value = j.clone().lt(real).select(Expr::load(c.b, DType::F32, index), Expr::Number(DType::F32, 0.0));
    let store = Stmt::Store { memory: "panel".into(), dtype: DType::F32, index: k * width.clone() + j, value };
    Loop::new("k", c.k.0, vec![Loop::new("j", width, vec![store]).into()]).into()
}

/// Returns the name of the tile function for the operand types `a` and `b`.
pub fn tile_name(a: DType, b: DType) -> String {
    if a == DType::F32 && b == DType::F32 { "byoc_tile".into() } else { format!("byoc_tile_{a}_{b}") }
}

impl TapGuard {
    /// Returns the input index that a tap reads at an output index.
    fn input_index(&self, output: i64, tap: i64) -> i64 {
        output * self.scale + self.base + tap * self.step
    }

    /// Returns the range of output indices below `len` at which all `taps` taps read elements rather than padding.
    pub fn inside(&self, taps: i64, len: i64) -> (i64, i64) {
        let reads = |output: i64| (0..taps).all(|tap| (0..self.size).contains(&self.input_index(output, tap)));
        let Some(low) = (0..len).find(|&output| reads(output)) else { return (0, 0) };
        let high = (low..len).find(|&output| !reads(output)).unwrap_or(len);
        (low, high)
    }

    /// Returns true if no tap of the `len` outputs is in the padding.
    pub fn is_idle(&self, taps: i64, len: i64) -> bool {
        self.inside(taps, len) == (0, len)
    }

    /// Declares the range of taps that read elements, `from{i}` to `to{i}`.
    pub fn bounds(&self, i: usize, output: &Expr, taps: i64) -> Vec<Stmt> {
        let TapGuard { scale, base, step, size, .. } = *self;
        let position = output.clone() * scale + base;
        // Backwards, the taps run from the other end.
        let start = if step > 0 { position } else { Expr::Index(size - 1) - position };
        let name = format!("base{i}");
        let (at, step) = (Expr::from(&name), Expr::Index(step.abs()));
        vec![
            Stmt::index(&name, start),
            Stmt::index(format!("from{i}"), Expr::Call("byoc_first_tap", vec![at.clone(), step.clone()])),
            Stmt::index(format!("to{i}"), Expr::Call("byoc_end_tap", vec![at, step, size.into(), taps.into()])),
        ]
    }
}
