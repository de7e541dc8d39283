//! State of the parser: the frames of its stack, and the states of its loop.

use super::Token;
use crate::ir::{Attrs, Clause, ClausePattern, ExprId, ExprList, Name, OpId, Type};

/// State of the loop.
pub(super) enum State {
    /// Start of an item, or of its next statement.
    Item,
    /// Start of an operand.
    Operand,
    /// End of an expression that a call, a projection or an infix operator may continue; holds the expression and its
    /// start.
    After(ExprId, u32),
    /// End of a complete expression.
    Complete(ExprId),
    /// End of the outermost expression.
    Done(ExprId),
}

/// Unfinished construct.
pub(super) enum ParseFrame {
    /// `let %x = ...`; the variable is already bound if the value is a function literal.
    LetValue { name: Token, var: ExprId, bound: bool },
    /// `%N = ...`
    GraphValue { number: Token },
    /// An item with statements: its lets begin at `lets`, its scope at `scope`.
    Sequence { lets: u32, scope: u32 },
    /// `( ...`; the finished fields begin at `values`.
    Paren { start: u32, values: u32, comma: bool },
    /// `callee( ...`
    Arguments { target: Target, start: u32, values: u32, attrs: u32 },
    /// `left op ...`
    Infix { op: Infix, left: ExprId, start: u32 },
    /// `if ( ...`
    Condition { start: u32 },
    /// `if (cond) { ...`
    Then { start: u32, scope: u32, cond: ExprId },
    /// `if (cond) { then } else { ...`
    Otherwise { start: u32, scope: u32, cond: ExprId, then: ExprId },
    /// Head of a function and `{ ...`
    Body(Box<Head>),
    /// `match ( ...`
    MatchData { start: u32, is_complete: bool },
    /// `match (data) { pattern => ...`
    Clause(Box<OpenMatch>),
}

/// Callee of the call being parsed.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Op(OpId),
    /// Unknown operator, which has already been reported.
    UnknownOp,
    Value(ExprId),
    RefNew,
    RefRead,
    RefWrite,
}

/// Infix operator: its precedence, and its name in the operator table.
#[derive(Clone, Copy)]
pub(super) struct Infix {
    pub(super) precedence: u8,
    pub(super) name: &'static str,
}

/// Head of a function, before its body.
pub(super) struct Head {
    pub(super) start: u32,
    /// Name of a global; `None` for a function literal.
    pub(super) name: Option<Token>,
    pub(super) type_params: Box<[Name]>,
    pub(super) params: ExprList,
    pub(super) ret: Type,
    pub(super) attrs: Attrs,
    /// Scope to restore after the body.
    pub(super) scope: u32,
    /// Number of enclosing type parameters.
    pub(super) outer_type_params: u32,
}

/// Match whose clauses are being read.
pub(super) struct OpenMatch {
    pub(super) start: u32,
    pub(super) data: ExprId,
    pub(super) is_complete: bool,
    pub(super) clauses: Vec<Clause>,
    /// Pattern of the clause whose body is being read.
    pub(super) pattern: Option<ClausePattern>,
    /// True if the body of the current clause is enclosed in braces.
    pub(super) has_braces: bool,
    /// Scope to restore after a clause.
    pub(super) scope: u32,
}
