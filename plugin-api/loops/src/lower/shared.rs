//! Contractions through local memory, for devices whose local memory is faster than global memory.
//!
//! A work-group computes 32 rows by 32 columns. For every 16 steps of the reduction, its work-items load the shared
//! elements of both operands into local memory, wait at a barrier, and multiply. Taps and channels form one loop.

use super::panels::Width;
use super::registers::{Indices, sums};
use super::{Lowering, Phase};
use crate::nest::Step;
use crate::nest::stmt::Grid;
use crate::nest::transform::decode;
use crate::nest::{Expr, Infix, Loop, Place, Position, Stmt, Ty, element};
use crate::schedule::contraction::{Contraction, RegisterTile};
use byoc_plugin_api::DType;

/// Number of work-items per work-group along columns and along rows.
const ITEMS: i64 = 8;
/// Tile of a work-item.
const TILE: RegisterTile = RegisterTile { rows: 4, vectors: 1, width: 4 };
/// Number of rows, and of columns, per work-group.
const SIDE: i64 = ITEMS * TILE.rows;
/// Number of reduction steps between barriers.
const DEPTH: i64 = 16;
/// Number of elements of each operand that a work-item loads between barriers.
const LOADS: i64 = SIDE * DEPTH / (ITEMS * ITEMS);

impl Lowering<'_, '_> {
    /// Adds the phases of a contraction on a device with fast local memory.
    pub fn shared_contraction(&mut self, c: &Contraction, comment: Vec<String>) -> Result<(), String> {
        let names = Indices::new(c);
        let rows: i64 = names.row_dims().iter().product();
        let batch: i64 = c.body.domain[..c.parts[0]].iter().product();
        let b = self.panels(&c.operand(0), &Width::Columns(SIDE))?;
        let panels = (c.columns() + SIDE - 1) / SIDE;
        let depth = c.depth();
        let name = |name: &str| Expr::name(name);
        let local = |dim: u8| Expr::Position(Position::Local, dim);
        let group = |dim: u8| Expr::Position(Position::Group, dim);
        let shared = |name: &str| Stmt::Array {
            name: name.to_owned(),
            ty: Ty::Of(DType::F32),
            len: (DEPTH * SIDE).into(),
            shared: true,
            values: Vec::new(),
        };
        let store = |memory: &str, index: Expr, value: Expr| Stmt::Store {
            memory: memory.into(),
            dtype: DType::F32,
            index,
            value,
        };
        let mut stmts = vec![
            shared("as"),
            shared("bs"),
            Stmt::index("lx", local(0)),
            Stmt::index("ly", local(1)),
            Stmt::index("item", name("ly") * ITEMS + name("lx")),
            Stmt::index("panel", group(0)),
            Stmt::index("g", Expr::Position(Position::Global, 2)),
            Stmt::index("first_row", group(1) * SIDE),
            Stmt::index("m0", name("first_row") + name("ly") * TILE.rows),
        ];
        stmts.extend(names.declare_groups());
        stmts.push(Stmt::index("w", (names.matrix() * panels + name("panel")) * (depth * SIDE)));
        for r in 0..TILE.rows {
            let zero = Expr::Number(DType::F32, 0.0);
            stmts.push(Stmt::Var { name: format!("s{r}_0"), ty: Ty::Vector(TILE.width), value: zero });
        }
        let n = || Stmt::index("n", name("item") + name("i") * (ITEMS * ITEMS));
        let at = Expr::load(b, DType::F32, name("w") + name("k0") * SIDE + name("n"));
        let zero = || Expr::Number(DType::F32, 0.0);
        let value = match depth % DEPTH {
            0 => at,
            _ => (name("k0") + name("n") / SIDE).lt(depth).select(at, zero()),
        };
        let mut a_loads = vec![n()];
        a_loads.extend(load_of_rows(&names, rows, depth));
        let vector = Expr::LoadVector("bs".into(), TILE.width, Box::new(name("k") * SIDE + name("lx") * TILE.width));
        let mut multiply =
            vec![Stmt::Let { name: "v".into(), ty: Ty::Vector(TILE.width), value: vector, note: String::new() }];
        for r in 0..TILE.rows {
            let sum = format!("s{r}_0");
            let x = Expr::load("as", DType::F32, name("k") * SIDE + name("ly") * TILE.rows + r);
            let product = Expr::binary(Infix::Mul, x, name("v"));
            multiply.push(Stmt::Set { value: Expr::binary(Infix::Add, Expr::from(&sum), product), name: sum });
        }
        let step = vec![
            Loop::new("i", LOADS, a_loads).into(),
            Loop::new("i", LOADS, vec![n(), store("bs", name("n"), value)]).into(),
            Stmt::Barrier,
            Loop::new("k", DEPTH, multiply).into(),
            Stmt::Barrier,
        ];
        stmts.push(Loop::new("k0", depth, step).by(DEPTH).into());
        stmts.push(sums(TILE));
        stmts.push(names.finish(TILE, name("panel") * SIDE + name("lx") * TILE.width, true));
        let mut phase = Phase::new("shared_product", comment);
        phase.nest = c.nest();
        let items = [panels * ITEMS, (rows + SIDE - 1) / SIDE * ITEMS, batch];
        phase.grid = Some(Grid { local: [ITEMS as usize, ITEMS as usize, 1], items });
        phase.schedule = vec![
            Step::Pack { operand: c.b, ahead: matches!(b, Place::Packed(_)) },
            Step::Stage { operand: c.a, elements: DEPTH * SIDE },
            Step::Stage { operand: b, elements: DEPTH * SIDE },
            Step::Tile { sizes: vec![(TILE.rows, TILE.columns())] },
        ];
        phase.touch(c.a);
        phase.touch(b);
        phase.touch_all(&c.body);
        self.push(phase, stmts);
        Ok(())
    }
}

/// Returns the load of one element of the first operand. Adjacent work-items load elements of adjacent rows if the
/// operand is contiguous only across rows; otherwise, they load elements that are adjacent along the reduction.
fn load_of_rows(names: &Indices<'_>, rows: i64, depth: i64) -> Vec<Stmt> {
    let c = names.c;
    let name = |name: &str| Expr::name(name);
    let rank = c.body.domain.len();
    let is_by_rows = rank >= 2 && c.a_view.strides[rank - 2] == 1 && c.k.1 != 1;
    let (row, k) = match is_by_rows {
        true => (name("n") % SIDE, name("n") / SIDE),
        false => (name("n") / DEPTH, name("n") % DEPTH),
    };
    let mut stmts = vec![
        Stmt::index("row", row),
        Stmt::index("ks", k),
        Stmt::index("k", name("k0") + name("ks")),
        Stmt::index("m", name("first_row") + name("row")),
    ];
    stmts.extend(decode(&names.rows, names.row_dims(), &name("m")));
    let mut offset = element(&c.a_view, &names.of_row(&names.rows));
    let mut conditions: Vec<Expr> = Vec::new();
    if rows % SIDE != 0 {
        conditions.push(name("m").lt(rows));
    }
    if depth % DEPTH != 0 {
        conditions.push(name("k").lt(depth));
    }
    // `k` is the row-major index over taps and channels.
    let mut step = depth;
    for (t, &(size, stride, _)) in c.taps.iter().enumerate() {
        step /= size.max(1);
        let tap = format!("t{t}");
        stmts.push(Stmt::index(&tap, if size > 1 { name("k") / step % size } else { Expr::Index(0) }));
        offset = offset + Expr::from(&tap) * stride;
        if let Some(row) = names.guarded(t, &names.rows) {
            conditions.extend(names.is_inside(t, &Expr::from(row), &Expr::from(&tap)));
        }
    }
    let is_product = c.taps.iter().all(|tap| tap.0 == 1);
    let channel = if is_product { name("k") } else { name("k") % c.k.0 };
    if c.k.0 > 1 {
        offset = offset + channel * c.k.1;
    }
    let loaded = Expr::load(c.a, DType::F32, offset);
    let value = match conditions.into_iter().reduce(Expr::and) {
        Some(condition) => condition.select(loaded, Expr::Number(DType::F32, 0.0)),
        None => loaded,
    };
    let index = name("ks") * SIDE + name("row");
    stmts.push(Stmt::Store { memory: "as".into(), dtype: DType::F32, index, value });
    stmts
}
