//! Contractions through local memory, for devices whose local memory is faster than global memory.
//!
//! A work-group computes 32 rows by 32 columns. For every 16 steps of the reduction, its work-items load the shared
//! elements of both operands into local memory, wait at a barrier, and multiply. Taps and channels form one loop.

use super::Lowering;
use super::registers::{Indices, add_products, declared_sums};
use crate::nest::stmt::Grid;
use crate::nest::transform::decode;
use crate::nest::{Expr, Loop, Place, Position, Stmt, Ty, element};
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
        let (rows, depth) = (names.row_count(), c.depth());
        let b = self.panels(&c.operand(0, SIDE))?;
        let panels = (c.columns() + SIDE - 1) / SIDE;
        let name = |name: &str| Expr::name(name);
        let [local, group] = [Position::Local, Position::Group].map(|of| move |dim: u8| Expr::Position(of, dim));
        let shared = |name: &str| Stmt::Array {
            name: name.to_owned(),
            ty: Ty::Of(DType::F32),
            len: (DEPTH * SIDE).into(),
            shared: true,
            values: Vec::new(),
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
        stmts.extend(declared_sums(TILE));
        let load = |mut body: Vec<Stmt>| {
            body.insert(0, Stmt::index("n", name("item") + name("i") * (ITEMS * ITEMS)));
            Loop::new("i", LOADS, body).into()
        };
        let step = vec![
            load(load_of_rows(&names, rows, depth)),
            load(vec![load_of_columns(b, depth)]),
            Stmt::Barrier,
            Loop::new("k", DEPTH, multiply()).into(),
            Stmt::Barrier,
        ];
        stmts.push(Loop::new("k0", depth, step).by(DEPTH).into());
        stmts.extend(names.finish(TILE, name("panel") * SIDE + name("lx") * TILE.width, true));
        let items = [panels * ITEMS, (rows + SIDE - 1) / SIDE * ITEMS, names.group_count()];
        let grid = Grid { local: [ITEMS as usize, ITEMS as usize, 1], items };
        self.push_product("shared_product", c, b, grid, comment, stmts);
        Ok(())
    }
}

/// Returns the products of the elements in local memory for one step of the reduction.
fn multiply() -> Vec<Stmt> {
    let at = Expr::name("k") * SIDE + Expr::name("lx") * TILE.width;
    let mut stmts = vec![Stmt::vector("v", TILE.width, Expr::LoadVector("bs".into(), TILE.width, Box::new(at)))];
    for r in 0..TILE.rows {
        let x = Expr::load("as", DType::F32, Expr::name("k") * SIDE + Expr::name("ly") * TILE.rows + r);
        stmts.extend(add_products(r, &x, &["v".to_owned()]));
    }
    stmts
}

/// Returns the load of one element of the second operand, from its panels.
fn load_of_columns(b: Place, depth: i64) -> Stmt {
    let (k0, n) = (|| Expr::name("k0"), || Expr::name("n"));
    let loaded = Expr::load(b, DType::F32, Expr::name("w") + k0() * SIDE + n());
    let value = match depth % DEPTH {
        0 => loaded,
        _ => (k0() + n() / SIDE).lt(depth).select(loaded, Expr::Number(DType::F32, 0.0)),
    };
    Stmt::store("bs", DType::F32, n(), value)
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
        conditions.extend(names.is_inside(t, &names.rows, &Expr::from(&tap)));
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
    stmts.push(Stmt::store("as", DType::F32, index, value));
    stmts
}
