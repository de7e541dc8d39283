//! The prelude: functions that the generated code calls, in parts that are included if they are needed.

use crate::nest::stmt::visit;
use crate::nest::{Expr, Stmt};
use crate::print::Dialect;
use byoc_plugin_api::DType;
use std::collections::BTreeSet;

/// Part of the prelude: the beginnings of the names of functions that need it, and its text.
pub type Part = (&'static [&'static str], &'static str);

const BORDER: Part = (&["byoc_zero_border"], include_str!("prelude/border.c"));
const PACK: Part = (&["byoc_pack_panel"], include_str!("prelude/pack.c"));
const TRANSPOSE: Part = (&["byoc_transpose"], include_str!("prelude/transpose.c"));
const TILE: Part = (&["byoc_tile"], include_str!("prelude/tile.c"));
const VECTOR_TILE: Part = (&["byoc_vector_tile"], include_str!("prelude/vector_tile.c"));
const DEPTHWISE: Part = (&["byoc_vector_depthwise"], include_str!("prelude/depthwise.c"));
const TAPS: Part = (&["byoc_first_tap", "byoc_end_tap"], include_str!("prelude/taps.c"));
const MATH: Part = (
    &["byoc_exp", "byoc_sigmoid", "byoc_tanh", "byoc_erf", "byoc_floor_", "byoc_softmax", "byoc_log_softmax"],
    include_str!("prelude/math.c"),
);
const ROWS: Part =
    (&["byoc_row_", "byoc_softmax", "byoc_log_softmax", "byoc_layer_norm"], include_str!("prelude/rows.c"));
const SOFTMAX: Part = (&["byoc_softmax", "byoc_log_softmax"], include_str!("prelude/softmax.c"));
const QUANTIZED: Part = (
    &["byoc_int32", "byoc_difference", "byoc_clamp", "byoc_saturate", "byoc_rescale", "byoc_sum", "byoc_subtraction"],
    include_str!("prelude/quantized.c"),
);

/// Parts for the tasks of a region, in order.
pub const TASKS: &[Part] = &[BORDER, PACK, TRANSPOSE, TILE, DEPTHWISE, TAPS, MATH, ROWS, SOFTMAX];

/// Parts for a program, in order.
pub const PROGRAM: &[Part] = &[TRANSPOSE, TAPS, VECTOR_TILE, DEPTHWISE, MATH, ROWS, SOFTMAX, QUANTIZED];

/// Names of the functions that statements call.
#[derive(Debug, Default)]
pub struct Calls(BTreeSet<String>);

impl Calls {
    /// Adds the functions that statements call when they are printed in a dialect.
    pub fn add(&mut self, dialect: &impl Dialect, stmts: &[Stmt]) {
        let mut add = |text: &str| {
            if let Some((name, _)) = text.split_once('(') {
                self.0.insert(name.to_owned());
            }
        };
        visit(stmts, &mut |stmt| {
            match stmt {
                Stmt::Call(name, _) => add(&format!("{name}(")),
                Stmt::Store { dtype: DType::F16, .. } => add("byoc_to_half("),
                _ => {}
            }
            for expr in stmt.expressions() {
                expr.visit(&mut |inner| match inner {
                    Expr::Call(name, _) => add(&format!("{name}(")),
                    Expr::Math(name, dtype, _) => add(&dialect.math(name, *dtype, 1, &[])),
                    Expr::Load(_, DType::F16, _) => add("byoc_from_half("),
                    _ => {}
                });
            }
        });
    }

    /// Returns true if the name of a function begins with `prefix`.
    pub fn has(&self, prefix: &str) -> bool {
        self.0.range(prefix.to_owned()..).next().is_some_and(|name| name.starts_with(prefix))
    }

    /// Returns the texts of the parts that the functions need.
    pub fn needed(&self, parts: &'static [Part]) -> impl Iterator<Item = &'static str> {
        let is_needed = |part: &&Part| part.0.iter().any(|prefix| self.has(prefix));
        parts.iter().filter(is_needed).map(|part| part.1)
    }
}
