//! Which expressions a function pass may touch. A function that was given to a backend (`Compiler`), is external
//! (`Extern`) or asks for it (`SkipOptimization`) is opaque, as in Relay's pass manager.

use crate::ir::{Expr, ExprId, Function, IndexVec, Module};

/// Whether passes leave the function alone.
pub fn is_opaque(function: &Function) -> bool {
    ["Compiler", "Extern", "SkipOptimization"].iter().any(|key| function.attrs.get(key).is_some())
}

/// The live expressions outside opaque functions.
pub fn touchable(module: &Module) -> IndexVec<ExprId, bool> {
    let mut touch = IndexVec::filled(false, module.nodes.len());
    for &root in module.globals.values() {
        touch[root] = true;
    }
    for (id, node) in module.nodes.iter().rev() {
        if !touch[id] {
            continue;
        }
        if let Expr::Function(function) = &node.expr
            && is_opaque(function)
        {
            continue;
        }
        node.expr.for_each_operand(|operand| touch[operand] = true);
    }
    touch
}
