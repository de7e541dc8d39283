//! Contractions in programs: operands are read in place, and taps in the padding are skipped.
//!
//! No operand is copied: a convolution's data has no zero border, and where a window reaches into the padding, the loops
//! over its taps start later or end earlier. Interior rows are computed in tiles, border rows one at a time. A constant
//! operand is laid out in panels at code generation; any other one is read with its strides.

use super::tile::{dispatch_last, finish};
use super::window::tap_range;
use super::{Lowering, Phase};
use crate::form::Machine;
use crate::nest::transform::nest;
use crate::nest::{Expr, Loop, Memory, Place, Stmt, Ty, element, indices};
use crate::schedule::contraction::{Contraction, Merged, TapGuard, best_tile};
use crate::schedule::round_up;
use crate::types::Types;
use byoc_plugin_api::DType;

/// Maximum size in bytes of a panel of a non-constant operand; the panel is on the stack.
const MAX_PANEL: i64 = 16_384;

/// Sum over the two tap axes and the channels, outermost first.
pub(crate) struct Sums {
    /// Number of terms, stride in `a` and stride in `b` for each level.
    pub levels: [(i64, i64, i64); 3],
    /// Guards of the two tap axes.
    guards: [Option<TapGuard>; 2],
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
        let (&[y, x], &[gy, gx]) = (&taps[..], &guards[..]) else {
            return Err(format!("expected at most 2 kernel axes, found {}", taps.len()));
        };
        Ok(Sums { levels: [y, x, c.k], guards: [gy, gx] })
    }

    /// Returns the tiles of `most` rows along the row dimension `row`, of `len` rows.
    pub fn tiles(&self, row: usize, len: i64, most: impl FnOnce(i64) -> i64) -> RowTiles {
        let mut guards = self.guards.iter().zip(self.levels).filter_map(|(guard, level)| Some(((*guard)?, level.0)));
        let inside =
            guards.find(|(guard, _)| guard.row == row).map_or((0, len), |(guard, taps)| guard.inside(taps, len));
        RowTiles { most: most((inside.1 - inside.0).max(1)), inside, len }
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
}

/// Tiles of rows: whole ones where no tap is in the padding, single rows elsewhere.
pub(crate) struct RowTiles {
    /// Maximum number of rows in a tile.
    pub most: i64,
    /// Range of the rows at which no tap is in the padding.
    inside: (i64, i64),
    /// Number of rows.
    len: i64,
}

impl RowTiles {
    /// Returns the numbers of rows that tiles have.
    pub fn counts(&self) -> Vec<i64> {
        let RowTiles { most, inside: (low, high), len } = *self;
        let rest = (high - low).max(0) % most;
        let mut counts = vec![most];
        counts.extend((rest > 1).then_some(rest));
        counts.extend((most > 1 && (rest == 1 || (low, high) != (0, len))).then_some(1));
        counts
    }

    /// Returns the loop over tiles, which declares `row` and `rows`.
    pub fn loops(&self, mut body: Vec<Stmt>) -> Vec<Stmt> {
        let RowTiles { most, inside: (low, high), len } = *self;
        if most == 1 {
            return vec![Stmt::index("rows", 1), Loop::new("row", len, body).into()];
        }
        let row = || Expr::name("row");
        let inside = (Expr::Index(high) - row()).min(most);
        let is_border = row().lt(low).or(row().ge(high));
        let rows = if (low, high) == (0, len) { inside } else { is_border.select(1, inside) };
        body.insert(0, Stmt::Set { name: "rows".into(), value: rows });
        vec![Stmt::variable("rows", Ty::Index, 1), Loop::new("row", len, body).by("rows").into()]
    }
}

/// Place from which a tile reads `b`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Panels, which are laid out at code generation.
    Panels,
    /// Panel on the stack, copied for each group and each run of columns.
    Local,
    /// Tensor, with its strides.
    InPlace,
}

/// Contraction of a program.
struct Direct<'c> {
    c: &'c Contraction,
    sums: Sums,
    merged: Merged,
    vars: Vec<String>,
    rows: RowTiles,
    /// Number of columns in a tile.
    width: i64,
    /// Number of columns, with those that pad the last panel.
    padded: i64,
    /// True for tiles of vectors.
    has_vectors: bool,
    /// Memory of `b`, or of its panels.
    b: Place,
    source: Source,
}

impl<'c> Direct<'c> {
    /// Chooses the tiles. Vector code reads whole panels, which are padded with zeros; plain code needs no padding.
    fn new(c: &'c Contraction, machine: Machine) -> Result<Direct<'c>, String> {
        let sums = Sums::new(c)?;
        let is_constant = matches!(c.b, Place::Constant(_));
        // Guarded rows keep their dimensions, because the guards need their indices.
        let merged = c.merge(is_constant, sums.guards.iter().any(Option::is_some));
        let is_product = sums.levels[0].0 == 1 && sums.levels[1].0 == 1;
        let lanes = machine.lanes;
        let has_vectors = machine.vectors
            && c.types == Types::FLOAT
            && (is_constant || (is_product && c.depth() * 4 * lanes <= MAX_PANEL));
        let mut vectors = 1;
        let rows = sums.tiles(merged.rows - 1, merged.row_len(), |len| {
            let best = best_tile(len, round_up(c.columns(), lanes) / lanes, machine.registers);
            vectors = best.1;
            best.0
        });
        let padded = if has_vectors { round_up(c.columns(), lanes) } else { c.columns() };
        let mut width = (vectors * lanes).min(padded);
        while has_vectors && !is_constant && width > lanes && c.depth() * 4 * width > MAX_PANEL {
            width -= lanes;
        }
        let source = match is_constant {
            true => Source::Panels,
            false if has_vectors => Source::Local,
            false => Source::InPlace,
        };
        Ok(Direct { c, sums, vars: merged.vars(), merged, rows, width, padded, has_vectors, b: c.b, source })
    }

    /// Returns the number of columns in the last tile; 0 if it is full.
    fn tail(&self) -> i64 {
        self.padded % self.width
    }

    fn column(&self) -> Expr {
        if self.width == self.padded { Expr::Index(0) } else { Expr::name("column") }
    }

    fn width(&self) -> Expr {
        if self.tail() == 0 { Expr::Index(self.width) } else { Expr::name("width") }
    }

    /// Returns the number of columns of a tile that exist.
    fn real(&self) -> Expr {
        if self.padded == self.c.columns() { self.width() } else { Expr::name("real") }
    }

    /// Returns the stride in `b` of a level of the sums. In panels, it is a multiple of the width.
    fn stride(&self, level: usize, width: Expr) -> Expr {
        let (taps, channels) = (self.sums.levels[1].0, self.sums.levels[2].0);
        match self.source {
            Source::InPlace => Expr::Index(self.sums.levels[level].2),
            _ => width * [taps * channels, channels, 1][level],
        }
    }

    /// Declares the pointers to the first elements that a tile reads.
    fn pointers(&self) -> [Stmt; 2] {
        let (c, column) = (self.c, self.column());
        let group = element(&self.merged.b_view, &indices(&self.vars));
        let (memory, mut b) = match self.source {
            Source::Panels => (self.b.into(), group * (c.depth() * self.padded) + column * c.depth()),
            Source::Local => (Memory::Local("panel".into()), Expr::Index(0)),
            Source::InPlace => (self.b.into(), group + c.b_offset + column * c.b_column),
        };
        let mut index = indices(&self.vars);
        index[self.merged.last_row()] = Expr::name("row");
        let mut a = element(&self.merged.a_view, &index);
        for i in 0..2 {
            a = a + self.sums.skipped(i, self.sums.levels[i].1);
            b = b + self.sums.skipped(i, self.stride(i, self.width()));
        }
        let types = c.types;
        [
            Stmt::pointer("a", types.a, Expr::address(c.a, types.a, a)),
            Stmt::pointer("b", types.b, Expr::address(memory, types.b, b)),
        ]
    }

    /// Returns the call that computes a tile of known size.
    fn call(&self, rows: i64, width: i64) -> Stmt {
        let (c, types) = (self.c, self.c.types);
        let mut arguments = vec![rows.into(), width.into(), self.merged.a_view.strides[self.merged.last_row()].into()];
        for i in 0..3 {
            arguments.extend([self.sums.count(i), self.sums.levels[i].1.into(), self.stride(i, width.into())]);
        }
        let is_strided = c.b_column != 1 && self.source == Source::InPlace;
        arguments.extend(is_strided.then_some(Expr::Index(c.b_column)));
        arguments.extend((types.sum != DType::F32).then_some(Expr::Index(c.a_zero)));
        arguments.extend(["a", "b", "t"].map(Expr::from));
        let name = if self.has_vectors { "byoc_vector_tile".to_owned() } else { tile_name(types.a, types.b) };
        Stmt::Call(if is_strided { format!("{name}_strided") } else { name }, arguments)
    }

    /// Returns the calls that compute a tile, by its numbers of rows and columns.
    fn calls(&self) -> Vec<Stmt> {
        let row_counts = self.rows.counts();
        let mut widths = vec![self.width];
        widths.extend(Some(self.tail()).filter(|&tail| tail != 0));
        let sizes = row_counts.iter().flat_map(|&rows| widths.iter().map(move |&width| (rows, width)));
        let cases = sizes.map(|(rows, width)| {
            let (is_rows, is_width) = (Expr::name("rows").equal(rows), Expr::name("width").equal(width));
            let condition = match (row_counts.len() > 1, widths.len() > 1) {
                (true, true) => is_rows.and(is_width),
                (false, true) => is_width,
                _ => is_rows,
            };
            (condition, vec![self.call(rows, width)])
        });
        dispatch_last(cases.collect())
    }

    /// Returns the statements for a panel of columns.
    fn in_panel(&self) -> Vec<Stmt> {
        let (merged, vars, column) = (&self.merged, &self.vars, self.column());
        let mut in_tile = self.sums.bounds_of(merged.rows - 1, "row");
        in_tile.extend(self.pointers());
        in_tile.extend(self.calls());
        let sum = self.c.types.sum;
        in_tile.push(finish(&merged.body, vars, sum, self.width(), column.clone(), self.real()));
        let mut in_row = self.sums.bounds_before(merged.rows - 1, &vars[merged.groups..]);
        in_row.extend(self.rows.loops(in_tile));
        let mut stmts = Vec::new();
        if self.tail() != 0 {
            stmts.push(Stmt::index("width", (Expr::Index(self.padded) - column.clone()).min(self.width)));
        }
        stmts.push(Stmt::index("real", (Expr::Index(self.c.columns()) - column).min(self.width())));
        if self.source == Source::Local {
            stmts.push(self.local_panel());
        }
        stmts.extend(nest(&vars[merged.groups..merged.last_row()], merged.outer_row_dims(), in_row));
        stmts
    }

    /// Copies a panel of `b` to the stack; columns past the end are zeros.
    fn local_panel(&self) -> Stmt {
        let (c, k, j) = (self.c, Expr::name("k"), Expr::name("j"));
        let start = element(&self.merged.b_view, &indices(&self.vars)) + c.b_offset;
        let index = start + k.clone() * c.k.2 + (self.column() + j.clone()) * c.b_column;
        let loaded = Expr::load(c.b, DType::F32, index);
        let value = j.clone().lt(self.real()).select(loaded, Expr::Number(DType::F32, 0.0));
        let store = Stmt::store("panel", DType::F32, k * self.width() + j, value);
        Loop::new("k", c.k.0, vec![Loop::new("j", self.width(), vec![store]).into()]).into()
    }

    /// Returns the statements of the phase.
    fn main(&self) -> Vec<Stmt> {
        let mut in_group = self.in_panel();
        if self.width != self.padded {
            in_group = vec![Loop::new("column", self.padded, in_group).by(self.width).into()];
        }
        let mut stmts = vec![Stmt::array("t", self.c.types.sum, self.rows.most * self.width)];
        if self.source == Source::Local {
            stmts.push(Stmt::array("panel", DType::F32, self.c.depth() * self.width));
        }
        stmts.extend(nest(&self.vars[..self.merged.groups], self.merged.group_dims(), in_group));
        stmts
    }
}

impl Lowering<'_, '_> {
    /// Adds the phase of a contraction in a program.
    pub fn direct_contraction(
        &mut self,
        c: &Contraction,
        machine: Machine,
        comment: Vec<String>,
    ) -> Result<(), String> {
        let mut direct = Direct::new(c, machine)?;
        if direct.source == Source::Panels {
            direct.b = self.panels(&c.operand(direct.padded, direct.width))?;
        }
        if !direct.has_vectors {
            self.kernels.insert((c.types.a, c.types.b));
        }
        let phase = Phase { nest: c.nest(), ..Phase::of("product", comment, &[c.a, direct.b], &direct.merged.body) };
        self.push(phase, direct.main());
        Ok(())
    }
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
    pub fn bounds(&self, i: usize, output: &Expr, taps: i64) -> [Stmt; 3] {
        let TapGuard { scale, base, step, size, .. } = *self;
        let position = output.clone() * scale + base;
        // Backwards, the taps run from the other end.
        let start = if step > 0 { position } else { Expr::Index(size - 1) - position };
        let name = format!("base{i}");
        let [from, to] = tap_range(i, &name, step.abs(), size, taps);
        [Stmt::index(&name, start), from, to]
    }
}
