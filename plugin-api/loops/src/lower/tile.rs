//! Tiles: the loops over a tile that was accumulated in a local array, and the choice among tiles of several sizes.

use crate::nest::body::LoopBody;
use crate::nest::{Expr, Loop, Mode, Stmt, indices};
use crate::operators::quantized;
use crate::types::Types;
use byoc_plugin_api::DType;

/// Tile in the local array `t`, to which the elementwise operators of a group are applied.
pub struct Tile<'b> {
    /// Operators, over the index space of the contraction.
    pub body: &'b LoopBody,
    /// Names of the indices.
    pub vars: &'b [String],
    /// Number of elements of `t` between rows.
    pub stride: Expr,
    /// Number of rows, from `row` on.
    pub rows: Expr,
    /// Number of columns, from `column` on.
    pub columns: Expr,
    /// Type of the sums.
    pub sum: DType,
}

impl Tile<'_> {
    /// Returns the loops over the tile.
    pub fn finish(&self) -> Stmt {
        let rank = self.vars.len();
        let at = Expr::name("i") * self.stride.clone() + Expr::name("j");
        let mut point = vec![
            Stmt::index(&self.vars[rank - 1], Expr::name("column") + Expr::name("j")),
            Stmt::value("acc", self.sum, Expr::load("t", self.sum, at)),
        ];
        point.extend(self.body.statements(&indices(self.vars)));
        let columns = Loop::new("j", self.columns.clone(), point).mode(Mode::Simd);
        let row = Stmt::index(&self.vars[rank - 2], Expr::name("row") + Expr::name("i"));
        Loop::new("i", self.rows.clone(), vec![row, columns.into()]).into()
    }
}

/// Returns a branch: the first of `cases` whose condition holds; the last one has none.
pub fn dispatch(cases: Vec<(Option<Expr>, Vec<Stmt>)>) -> Vec<Stmt> {
    cases.into_iter().rev().fold(Vec::new(), |otherwise, (condition, then)| match condition {
        Some(condition) => vec![Stmt::If { condition, then, otherwise }],
        None => then,
    })
}

/// Returns a branch among cases, the last one of which needs no condition.
pub fn dispatch_last(cases: Vec<(Expr, Vec<Stmt>)>) -> Vec<Stmt> {
    let count = cases.len();
    let cases = cases.into_iter().enumerate();
    dispatch(cases.map(|(i, (condition, stmts))| ((i + 1 < count).then_some(condition), stmts)).collect())
}

/// Returns the product of an element of the data and one of the weights.
pub fn product(types: Types, a_zero: i64, a: Expr, b: Expr) -> Expr {
    if types.sum == DType::F32 {
        return a * b;
    }
    quantized::distance(types.a, &a, a_zero) * b.cast(types.sum)
}
