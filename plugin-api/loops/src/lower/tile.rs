//! Tiles: the loops over a tile that was accumulated in a local array, and the choice among tiles of several sizes.

use crate::nest::body::LoopBody;
use crate::nest::{Expr, Function, Infix, Loop, Mode, Parameter, Stmt, indices};
use crate::operators::quantized;
use crate::types::Types;
use byoc_plugin_api::DType;

/// Returns the loops over a tile of sums in the local array `t`, which apply the operators of a group: over `rows` rows
/// from `row` on, `stride` elements of `t` apart, and over `columns` columns from `column` on.
pub fn finish(
    body: &LoopBody,
    vars: &[String],
    sum: DType,
    stride: impl Into<Expr>,
    column: impl Into<Expr>,
    columns: impl Into<Expr>,
) -> Stmt {
    let rank = vars.len();
    let at = Expr::name("i") * stride + Expr::name("j");
    let mut point = vec![
        Stmt::index(&vars[rank - 1], Expr::binary(Infix::Add, column.into(), Expr::name("j"))),
        Stmt::value("acc", sum, Expr::load("t", sum, at)),
    ];
    point.extend(body.statements(&indices(vars)));
    let columns = Loop::new("j", columns, point).mode(Mode::Simd);
    let row = Stmt::index(&vars[rank - 2], Expr::name("row") + Expr::name("i"));
    Loop::new("i", "rows", vec![row, columns.into()]).into()
}

/// Tile of the tasks of a region. Its size, and those of the tiles at the end of the rows and the columns, are constants
/// that the C compiler computes from the length of its vectors.
pub struct VectorTile<'b> {
    /// Name of the function of the tasks, the prefix of the other names.
    pub name: String,
    /// Operators, over the index space of the tiles.
    pub body: &'b LoopBody,
    /// Names of the indices.
    pub vars: &'b [String],
    /// True if the rows of a narrow tile are adjacent in `t`, false if they are as far apart as those of a full tile.
    pub is_dense: bool,
    /// End of the name of the number of rows, and the words for rows, columns and a tile's columns in comments.
    pub words: [&'static str; 4],
    /// Number of rows.
    pub rows: Expr,
    /// Number of columns.
    pub columns: Expr,
    /// Number of rows of the last tile of a row; 0 if it is full.
    pub row_tail: Expr,
    /// Number of columns of the last tile; 0 if it is full.
    pub tail: Expr,
}

impl<'b> VectorTile<'b> {
    /// Creates a tile whose rows are as far apart as those of a full one.
    pub fn new(name: String, words: [&'static str; 4], body: &'b LoopBody, vars: &'b [String]) -> VectorTile<'b> {
        let [rows, columns, row_tail, tail] =
            [words[0], "nr", "row_tail", "tail"].map(|suffix| Expr::name(format!("{name}_{suffix}")));
        VectorTile { name, body, vars, is_dense: false, words, rows, columns, row_tail, tail }
    }

    /// Returns the indices outside of a tile.
    pub fn outer_vars(&self) -> &[String] {
        &self.vars[..self.vars.len() - 2]
    }

    fn row_len(&self) -> i64 {
        self.body.domain[self.vars.len() - 2]
    }

    /// Declares `whole`, which is not 0 for a tile with all of its rows.
    pub fn whole(&self) -> Stmt {
        let ends_inside = (Expr::name("row") + self.rows.clone()).le(self.row_len());
        Stmt::index("whole", self.row_tail.clone().equal(0).or(ends_inside))
    }

    /// Returns the calls that compute and finish a tile, one of four by `full` and `whole`. `describe` returns the first
    /// arguments of `function` for a number of rows and a width, and the number of columns that exist.
    pub fn calls(&self, function: &str, describe: impl Fn(&Expr, &Expr) -> (Vec<Expr>, Expr)) -> Vec<Stmt> {
        let (is_full, is_whole) = (Expr::name("full").not_equal(0), Expr::name("whole").not_equal(0));
        let calls = |rows: &Expr, width: &Expr| {
            let (mut arguments, columns) = describe(rows, width);
            arguments.extend(["a", "b", "t"].map(Expr::from));
            let mut finish = vec![Expr::name("args"), Expr::name("t")];
            finish.extend(indices(self.outer_vars()));
            finish.extend([Expr::name("row"), rows.clone(), Expr::name("column"), columns]);
            finish.extend(self.is_dense.then(|| width.clone()));
            vec![Stmt::Call(function.to_owned(), arguments), Stmt::Call(format!("{}_finish", self.name), finish)]
        };
        dispatch(vec![
            (Some(is_full.clone().and(is_whole.clone())), calls(&self.rows, &self.columns)),
            (Some(is_full), calls(&self.row_tail, &self.columns)),
            (Some(is_whole), calls(&self.rows, &self.tail)),
            (None, calls(&self.row_tail, &self.tail)),
        ])
    }

    /// Returns the functions of the phase: the one that finishes a tile, and the one of the tasks, with the statements
    /// `main` and tiles of `rows` by `columns`.
    pub fn functions(&self, [rows, columns]: [Expr; 2], padded_columns: i64, main: Vec<Stmt>) -> Vec<Function> {
        let [suffix, row_word, column_word, block] = self.words;
        let (tail, row_tail) =
            (Expr::Index(padded_columns) % self.columns.clone(), Expr::Index(self.row_len()) % self.rows.clone());
        let constants = vec![
            (suffix, rows, format!("{row_word} of a tile")),
            ("nr", columns, format!("{column_word} of a tile")),
            ("tail", tail, format!("{column_word} of the last {block}, 0 if it is full")),
            ("row_tail", row_tail, format!("{row_word} of the last tile of a row, 0 if it is full")),
        ];
        let named = |(suffix, value, comment)| (format!("{}_{suffix}", self.name), value, comment);
        let constants = constants.into_iter().map(named).collect();
        let stride = if self.is_dense { Expr::name("width") } else { self.columns.clone() };
        let index = |name: &str| Parameter::Index(name.to_owned());
        let mut parameters = vec![Parameter::Floats("t".into())];
        parameters.extend(self.outer_vars().iter().map(|var| index(var)));
        parameters.extend(["row", "rows", "column", "columns"].map(index));
        parameters.extend(self.is_dense.then(|| index("width")));
        let finish = Function {
            name: format!("{}_finish", self.name),
            parameters: Some(parameters),
            body: vec![finish(self.body, self.vars, DType::F32, stride, "column", "columns")],
            ..Function::default()
        };
        vec![finish, Function { name: self.name.clone(), constants, body: main, ..Function::default() }]
    }
}

/// Returns a branch: the first of `cases` whose condition holds; the last one has none.
fn dispatch(cases: Vec<(Option<Expr>, Vec<Stmt>)>) -> Vec<Stmt> {
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
    quantized::difference(types.a, &a, &quantized::integer(a_zero)) * b.cast(types.sum)
}
