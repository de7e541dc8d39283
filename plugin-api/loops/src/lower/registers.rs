//! Contractions on a device: each work-item accumulates a tile in registers.
//!
//! `a` is read in place, one element at a time for all columns of a tile. Where a tap may be in the padding, the element
//! is read from a row of zeros instead, so that the loop has no branch.

use super::{Lowering, PackedConstant, Phase};
use crate::nest::stmt::Grid;
use crate::nest::transform::decode;
use crate::nest::{Expr, Infix, Loop, Place, Position, Stmt, Ty, element, indices, numbered};
use crate::packing::Packing;
use crate::schedule::contraction::{Contraction, RegisterTile};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::count;

/// Indices of a contraction on a device.
pub struct Indices<'c> {
    /// Contraction.
    pub c: &'c Contraction,
    /// Names of the indices of the groups.
    pub groups: Vec<String>,
    /// Names of the indices of the rows.
    pub rows: Vec<String>,
}

impl<'c> Indices<'c> {
    /// Creates the indices.
    pub fn new(c: &'c Contraction) -> Indices<'c> {
        Indices { c, groups: numbered("b", c.parts[0]), rows: numbered("i", c.parts[1]) }
    }

    /// Returns the dimensions of the rows.
    pub fn row_dims(&self) -> &[i64] {
        &self.c.body.domain[self.c.parts[0]..self.c.parts[0] + self.c.parts[1]]
    }

    /// Returns the number of rows of a group.
    pub fn row_count(&self) -> i64 {
        count(self.row_dims())
    }

    /// Returns the number of groups.
    pub fn group_count(&self) -> i64 {
        count(&self.c.body.domain[..self.c.parts[0]])
    }

    /// Declares the indices of the groups from `g`.
    pub fn declare_groups(&self) -> Vec<Stmt> {
        decode(&self.groups, &self.c.body.domain[..self.c.parts[0]], &Expr::name("g"))
    }

    /// Returns the number of a group's matrix `b`; groups that share `b` have the same one.
    pub fn matrix(&self) -> Expr {
        let c = self.c;
        let own_groups = (0..c.parts[0]).filter(|&d| c.b_groups[d] != 0);
        own_groups.fold(Expr::Index(0), |number, d| number * c.body.domain[d] + Expr::from(&self.groups[d]))
    }

    /// Returns the indices of the first element of a row in `a`.
    pub fn of_row(&self, rows: &[String]) -> Vec<Expr> {
        let mut index = indices(&self.groups);
        index.extend(indices(rows));
        index.push(Expr::Index(0));
        index
    }

    /// Returns the condition under which the tap of axis `t` at `tap` reads an element for a row; `None` if it always
    /// does.
    pub fn is_inside(&self, t: usize, rows: &[String], tap: &Expr) -> Option<Expr> {
        let guard = (*self.c.guards.get(t)?)?;
        // Guards count the dimensions after the groups.
        let position = Expr::from(rows.get(guard.row)?) * guard.scale + guard.base + tap.clone() * guard.step;
        // A negative position is a large unsigned number.
        Some(Expr::Call("byoc_is_below", vec![position, guard.size.into()]))
    }

    /// Declares the sums as an array, and returns it with the loop over a tile's rows, which applies the operators of the group to the sums `sums[r * vectors + j]`
    /// and stores the results. The tile begins at row `m0` and column `first_column`.
    pub fn finish(&self, tile: RegisterTile, first_column: Expr, is_partial: bool) -> [Stmt; 2] {
        let (columns, row_count) = (self.c.columns(), self.row_count());
        let mut point = indices(&self.groups);
        point.extend(indices(&self.rows));
        point.push(Expr::name("c"));
        let at = Expr::name("r") * tile.vectors + Expr::name("j");
        let mut lanes = vec![Stmt::value("acc", DType::F32, Expr::load("sums", DType::F32, at))];
        lanes.extend(self.c.body.statements(&point));
        let first = Expr::name("first");
        let mut in_vector = vec![Stmt::index("first", first_column + Expr::name("j") * tile.width)];
        if is_partial || columns % tile.columns() != 0 {
            in_vector.push(Stmt::Break(first.clone().ge(columns)));
        }
        let end = (columns % tile.width != 0).then_some(columns);
        in_vector.push(Stmt::Lanes { var: "c".into(), first, width: tile.width, end, body: lanes });
        let mut in_row = vec![Stmt::index("m", Expr::name("m0") + Expr::name("r"))];
        if is_partial || row_count % tile.rows != 0 {
            in_row.push(Stmt::Break(Expr::name("m").ge(row_count)));
        }
        in_row.extend(decode(&self.rows, self.row_dims(), &Expr::name("m")));
        in_row.push(Loop::new("j", tile.vectors, in_vector).into());
        [sums(tile), Loop::new("r", tile.rows, in_row).into()]
    }
}

/// Returns the names of the sums of a tile, one per vector: `s0_0`, `s0_1`, and so on.
fn sum_names(tile: RegisterTile) -> impl Iterator<Item = String> {
    (0..tile.rows * tile.vectors).map(move |i| format!("s{}_{}", i / tile.vectors, i % tile.vectors))
}

/// Declares the sums of a tile.
pub fn declared_sums(tile: RegisterTile) -> impl Iterator<Item = Stmt> {
    sum_names(tile).map(move |name| Stmt::variable(name, Ty::Vector(tile.width), Expr::Number(DType::F32, 0.0)))
}

/// Adds the products of an element and vectors to the sums of a row.
pub fn add_products(row: i64, x: &Expr, vectors: &[String]) -> impl Iterator<Item = Stmt> {
    vectors.iter().enumerate().map(move |(j, vector)| {
        let name = format!("s{row}_{j}");
        let product = Expr::binary(Infix::Mul, x.clone(), Expr::from(vector));
        Stmt::Set { value: Expr::binary(Infix::Add, Expr::from(&name), product), name }
    })
}

/// Returns the declaration of the sums of a tile as an array, from one variable per vector.
fn sums(tile: RegisterTile) -> Stmt {
    let values: Vec<Expr> = sum_names(tile).map(Expr::name).collect();
    let len = (tile.rows * tile.vectors).into();
    Stmt::Array { name: "sums".into(), ty: Ty::Vector(tile.width), len, shared: false, values }
}

impl Lowering<'_, '_> {
    /// Adds the phases of a contraction on a device without fast local memory.
    pub fn register_contraction(&mut self, c: &Contraction, lanes: i64, comment: Vec<String>) -> Result<(), String> {
        let names = Indices::new(c);
        let rows = names.row_count();
        let tile = RegisterTile::choose(rows, c.columns(), lanes);
        let b = self.panels(&c.operand(0, tile.columns()))?;
        let panels = (c.columns() + tile.columns() - 1) / tile.columns();
        let zeros = c.guards.iter().any(Option::is_some).then(|| {
            let packing = Packing::identity(if c.k.1 == 1 { c.k.0 } else { 1 });
            let comment = "zeros for the padding".to_owned();
            let packed = PackedConstant { constant: None, dtype: DType::F32, packing, width: None, comment };
            Place::Packed(self.packed_constant(packed))
        });
        let position = |dim: u8| Expr::Position(Position::Global, dim);
        let mut stmts = vec![
            Stmt::index("m0", position(0) * tile.rows),
            Stmt::index("panel", position(1)),
            Stmt::index("g", position(2)),
        ];
        stmts.extend(names.declare_groups());
        let row_names: Vec<Vec<String>> =
            (0..tile.rows).map(|r| names.rows.iter().map(|row| format!("{row}_{r}")).collect()).collect();
        for (r, of_row) in row_names.iter().enumerate() {
            let m = Expr::name("m0") + r as i64;
            let m = if rows % tile.rows == 0 { m } else { m.min(rows - 1) };
            stmts.push(Stmt::index(format!("m_{r}"), m));
            stmts.extend(decode(of_row, names.row_dims(), &Expr::name(format!("m_{r}"))));
            stmts.push(Stmt::index(format!("a{r}"), element(&c.a_view, &names.of_row(of_row))));
        }
        stmts.extend(declared_sums(tile));
        let first = (names.matrix() * panels + Expr::name("panel")) * (c.depth() * tile.columns());
        stmts.push(Stmt::variable("w", Ty::Index, first));
        stmts.extend(taps(&names, &row_names, zeros, multiply_rows(c, tile, b)));
        stmts.extend(names.finish(tile, Expr::name("panel") * tile.columns(), false));
        let items = [(rows + tile.rows - 1) / tile.rows, panels, names.group_count()];
        self.push_product("product", c, b, Grid { local: [1; 3], items }, comment, stmts);
        Ok(())
    }

    /// Adds the phase of a contraction whose operands are `a` and the panels `b`.
    pub fn push_product(
        &mut self,
        kind: &'static str,
        c: &Contraction,
        b: Place,
        grid: Grid,
        comment: Vec<String>,
        stmts: Vec<Stmt>,
    ) {
        let phase = Phase::of(kind, comment, &[c.a, b], &c.body);
        self.push(Phase { nest: c.nest(), grid: Some(grid), ..phase }, stmts);
    }
}

/// Returns the loop over the channels, which multiplies an element of each row by the vectors of a row of the panel.
fn multiply_rows(c: &Contraction, tile: RegisterTile, b: Place) -> Stmt {
    let vectors = numbered("w", tile.vectors as usize);
    let loads = vectors.iter().zip(0..).map(|(name, j)| {
        let at = Box::new(Expr::name("w") + j * tile.width);
        Stmt::vector(name, tile.width, Expr::LoadVector(b.into(), tile.width, at))
    });
    let mut stmts: Vec<Stmt> = loads.collect();
    for r in 0..tile.rows {
        let step = if c.k.1 == 1 { Expr::Index(1) } else { Expr::name(format!("d{r}")) };
        let x = Expr::load(format!("x{r}").as_str(), DType::F32, Expr::name("k") * step);
        stmts.extend(add_products(r, &x, &vectors));
    }
    stmts.push(Stmt::Set { name: "w".into(), value: Expr::name("w") + tile.columns() });
    Loop::new("k", c.k.0, stmts).into()
}

/// Returns the loops over the taps around `channels`: each row reads `a`, or `zeros` where the tap is in the padding.
fn taps(names: &Indices<'_>, row_names: &[Vec<String>], zeros: Option<Place>, channels: Stmt) -> Vec<Stmt> {
    let (c, stride) = (names.c, names.c.k.1);
    // A single tap needs no loop; without a tap, the sum is empty.
    let has_loop = |t: &usize| c.taps[*t].0 != 1;
    let tap = |t: usize| if has_loop(&t) { Expr::name(format!("t{t}")) } else { Expr::Index(0) };
    let all_taps = 0..c.taps.len();
    let mut stmts = Vec::new();
    for (r, of_row) in row_names.iter().enumerate() {
        let taps_offset = all_taps.clone().fold(Expr::Index(0), |sum, t| sum + tap(t) * c.taps[t].1);
        let mut value = Expr::address(c.a, DType::F32, Expr::name(format!("a{r}")) + taps_offset);
        let mut step = Expr::Index(stride);
        let inside = all_taps.clone().filter_map(|t| names.is_inside(t, of_row, &tap(t))).reduce(Expr::and);
        if let (Some(inside), Some(zeros)) = (inside, zeros) {
            let name = format!("in{r}");
            stmts.push(Stmt::index(&name, inside));
            let is_inside = Expr::from(&name).not_equal(0);
            value = is_inside.clone().select(value, Expr::address(zeros, DType::F32, Expr::Index(0)));
            step = if stride == 1 { step } else { is_inside.select(stride, 0) };
        }
        stmts.push(Stmt::pointer(format!("x{r}"), DType::F32, value));
        stmts.push(Stmt::index(format!("d{r}"), step));
    }
    stmts.push(channels);
    let loops = all_taps.rev().filter(has_loop);
    loops.fold(stmts, |body, t| vec![Loop::new(&format!("t{t}"), c.taps[t].0, body).into()])
}
