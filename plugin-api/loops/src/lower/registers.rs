//! Contractions on a device: each work-item accumulates a tile in registers.
//!
//! `a` is read in place, one element at a time for all columns of a tile. Where a tap may be in the padding, the element
//! is read from a row of zeros instead, so that the loop has no branch.

use super::panels::Width;
use super::{Lowering, PackedConstant, Phase};
use crate::nest::Step;
use crate::nest::body::LoopBody;
use crate::nest::stmt::Grid;
use crate::nest::transform::{decode, variable};
use crate::nest::{Expr, Infix, Loop, Place, Position, Stmt, Ty, element, indices, numbered};
use crate::packing::Packing;
use crate::schedule::contraction::{Contraction, RegisterTile};
use byoc_plugin_api::DType;

/// Zeros that stand for the padding of `a`.
struct Zeros {
    place: Place,
}

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

    /// Returns the condition under which the tap of axis `t` at `tap` reads an element; `None` if it always does.
    pub fn is_inside(&self, t: usize, row: &Expr, tap: &Expr) -> Option<Expr> {
        let guard = (*self.c.guards.get(t)?)?;
        let position = row.clone() * guard.scale + guard.base + tap.clone() * guard.step;
        // A negative position is a large unsigned number.
        Some(Expr::Call("byoc_is_below", vec![position, guard.size.into()]))
    }

    /// Returns the index along the row dimension of the guard of axis `t`.
    pub fn guarded<'n>(&self, t: usize, rows: &'n [String]) -> Option<&'n String> {
        let guard = (*self.c.guards.get(t)?)?;
        // Guards count the dimensions after the groups.
        rows.get(guard.row)
    }

    /// Returns the loop over a tile's rows, which applies the operators of the group to the sums `sums[r * vectors + j]`
    /// and stores the results. The tile begins at row `m0` and column `first_column`.
    pub fn finish(&self, tile: RegisterTile, first_column: Expr, is_partial: bool) -> Stmt {
        let body: &LoopBody = &self.c.body;
        let columns = self.c.columns();
        let row_count: i64 = self.row_dims().iter().product();
        let mut point = indices(&self.groups);
        point.extend(indices(&self.rows));
        point.push(Expr::name("c"));
        let at = Expr::name("r") * tile.vectors + Expr::name("j");
        let mut lanes = vec![Stmt::value("acc", DType::F32, Expr::load("sums", DType::F32, at))];
        lanes.extend(body.statements(&point));
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
        Loop::new("r", tile.rows, in_row).into()
    }
}

/// Returns the declaration of the sums of a tile as an array, from one variable per vector.
pub fn sums(tile: RegisterTile) -> Stmt {
    let count = tile.rows * tile.vectors;
    let values = (0..count).map(|i| Expr::name(format!("s{}_{}", i / tile.vectors, i % tile.vectors))).collect();
    Stmt::Array { name: "sums".into(), ty: Ty::Vector(tile.width), len: count.into(), shared: false, values }
}

impl Lowering<'_, '_> {
    /// Adds the phases of a contraction on a device without fast local memory.
    pub fn register_contraction(&mut self, c: &Contraction, lanes: i64, comment: Vec<String>) -> Result<(), String> {
        let names = Indices::new(c);
        let rows: i64 = names.row_dims().iter().product();
        let batch: i64 = c.body.domain[..c.parts[0]].iter().product();
        let tile = RegisterTile::choose(rows, c.columns(), lanes);
        let operand = c.operand(0);
        let b = self.panels(&operand, &Width::Columns(tile.columns()))?;
        let panels = (c.columns() + tile.columns() - 1) / tile.columns();
        let zeros = c.guards.iter().any(Option::is_some).then(|| {
            let span = if c.k.1 == 1 { c.k.0 } else { 1 };
            let packing = Packing::identity(span);
            let comment = "zeros for the padding".to_owned();
            let packed = PackedConstant { constant: None, dtype: DType::F32, packing, width: None, comment };
            Zeros { place: Place::Packed(self.packed_constant(packed)) }
        });
        let position = |dim: u8| Expr::Position(Position::Global, dim);
        let mut stmts = vec![
            Stmt::index("m0", position(0) * tile.rows),
            Stmt::index("panel", position(1)),
            Stmt::index("g", position(2)),
        ];
        stmts.extend(names.declare_groups());
        let mut row_names = Vec::new();
        for r in 0..tile.rows {
            let m = Expr::name("m0") + r;
            let m = if rows % tile.rows == 0 { m } else { m.min(rows - 1) };
            stmts.push(Stmt::index(format!("m_{r}"), m));
            let of_row: Vec<String> = names.rows.iter().map(|row| format!("{row}_{r}")).collect();
            stmts.extend(decode(&of_row, names.row_dims(), &Expr::name(format!("m_{r}"))));
            stmts.push(Stmt::index(format!("a{r}"), element(&c.a_view, &names.of_row(&of_row))));
            row_names.push(of_row);
        }
        for i in 0..tile.rows * tile.vectors {
            let name = format!("s{}_{}", i / tile.vectors, i % tile.vectors);
            stmts.push(Stmt::Var { name, ty: Ty::Vector(tile.width), value: Expr::Number(DType::F32, 0.0) });
        }
        let size = operand.depth() * tile.columns();
        stmts.push(variable("w", (names.matrix() * panels + Expr::name("panel")) * size));

        // A single tap needs no loop; without a tap, the sum is empty.
        let taps: Vec<Expr> = (0..c.taps.len())
            .map(|t| if c.taps[t].0 != 1 { Expr::name(format!("t{t}")) } else { Expr::Index(0) })
            .collect();
        let stride = c.k.1;
        let mut in_taps = Vec::new();
        for (r, of_row) in row_names.iter().enumerate() {
            let taps_offset = taps.iter().zip(&c.taps).fold(Expr::Index(0), |sum, (t, tap)| sum + t.clone() * tap.1);
            let address = Expr::address(c.a, DType::F32, Expr::name(format!("a{r}")) + taps_offset);
            let inside = (0..taps.len())
                .filter_map(|t| {
                    let row = names.guarded(t, of_row)?;
                    names.is_inside(t, &Expr::from(row), &taps[t])
                })
                .reduce(Expr::and);
            let (value, step) = match (inside, &zeros) {
                (Some(inside), Some(zeros)) => {
                    let name = format!("in{r}");
                    in_taps.push(Stmt::index(&name, inside));
                    let is_inside = Expr::from(&name).not_equal(0);
                    let zeros = Expr::address(zeros.place, DType::F32, Expr::Index(0));
                    let step = if stride == 1 { Expr::Index(1) } else { is_inside.clone().select(stride, 0) };
                    (is_inside.select(address, zeros), step)
                }
                _ => (address, Expr::Index(stride)),
            };
            in_taps.push(Stmt::Pointer { name: format!("x{r}"), dtype: DType::F32, value });
            in_taps.push(Stmt::index(format!("d{r}"), step));
        }
        let mut in_sum: Vec<Stmt> = (0..tile.vectors)
            .map(|j| Stmt::Let {
                name: format!("w{j}"),
                ty: Ty::Vector(tile.width),
                value: Expr::LoadVector(b.into(), tile.width, Box::new(Expr::name("w") + j * tile.width)),
                note: String::new(),
            })
            .collect();
        for r in 0..tile.rows {
            let step = if stride == 1 { Expr::Index(1) } else { Expr::name(format!("d{r}")) };
            let x = Expr::load(format!("x{r}").as_str(), DType::F32, Expr::name("k") * step);
            for j in 0..tile.vectors {
                let sum = format!("s{r}_{j}");
                let product = Expr::binary(Infix::Mul, x.clone(), Expr::name(format!("w{j}")));
                in_sum.push(Stmt::Set { value: Expr::binary(Infix::Add, Expr::from(&sum), product), name: sum });
            }
        }
        in_sum.push(Stmt::Set { name: "w".into(), value: Expr::name("w") + tile.columns() });
        in_taps.push(Loop::new("k", c.k.0, in_sum).into());
        let loops = (0..taps.len()).rev().filter(|&t| c.taps[t].0 != 1);
        stmts.extend(loops.fold(in_taps, |body, t| vec![Loop::new(&format!("t{t}"), c.taps[t].0, body).into()]));
        stmts.push(sums(tile));
        stmts.push(names.finish(tile, Expr::name("panel") * tile.columns(), false));
        let mut phase = Phase::new("product", comment);
        phase.nest = c.nest();
        phase.grid = Some(Grid { local: [1; 3], items: [(rows + tile.rows - 1) / tile.rows, panels, batch] });
        phase.schedule = vec![
            Step::Pack { operand: c.b, ahead: matches!(b, Place::Packed(_)) },
            Step::Tile { sizes: vec![(tile.rows, tile.columns())] },
        ];
        phase.touch(c.a);
        phase.touch(b);
        phase.touch_all(&c.body);
        self.push(phase, stmts);
        Ok(())
    }
}
