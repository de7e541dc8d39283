//! Log of the refusals during partitioning, with one line per operator and reason. There are several times as many
//! lines as operators, but few distinct reasons, so the reasons are shared.

use super::super::judge::Refusal;
use byoc_ir::ir::{ExprId, IndexVec, Module, Name};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

struct Line {
    expr: ExprId,
    backend: u32,
    refusal: Arc<Refusal>,
}

/// Refusals in chronological order.
pub(super) struct RefusalLog {
    backends: Vec<Name>,
    lines: Vec<Line>,
    /// Last backend, counted from 1, that refused the expression; 0 for none.
    last_backend: IndexVec<ExprId, u32>,
}

impl RefusalLog {
    /// Creates a log for `backends` in priority order. All methods identify a backend by its position in that order.
    pub fn new(module: &Module, backends: impl Iterator<Item = Name>) -> RefusalLog {
        RefusalLog {
            backends: backends.collect(),
            lines: Vec::new(),
            last_backend: IndexVec::filled(0, module.nodes.len()),
        }
    }

    pub fn name(&self, backend: u32) -> &Name {
        &self.backends[backend as usize]
    }

    /// Returns true if `backend` was the last to refuse an expression. Backends must be processed in priority order.
    pub fn has(&self, backend: u32, expr: ExprId) -> bool {
        self.last_backend[expr] == backend + 1
    }

    /// Adds a refusal of an expression.
    pub fn add(&mut self, backend: u32, expr: ExprId, refusal: Refusal) {
        // The same reason is added for each expression of a candidate in turn.
        let refusal_ref = match self.lines.last() {
            Some(line) if *line.refusal == refusal => line.refusal.clone(),
            _ => Arc::new(refusal),
        };
        self.add_shared(backend, expr, &refusal_ref);
    }

    /// Adds a refusal whose reason is shared by many expressions.
    pub fn add_shared(&mut self, backend: u32, expr: ExprId, refusal: &Arc<Refusal>) {
        self.last_backend[expr] = backend + 1;
        self.lines.push(Line { expr, backend, refusal: refusal.clone() });
    }

    /// Takes the refusals out of the log and sorts them by expression.
    pub fn take(&mut self) -> SortedRefusals {
        let mut lines = std::mem::take(&mut self.lines);
        // The sort is stable: the reasons for one expression stay in chronological order.
        lines.sort_by_key(|line| line.expr);
        SortedRefusals { backends: self.backends.clone(), lines, next_line: 0, recent_lists: VecDeque::new() }
    }
}

/// Refusals, sorted by expression.
pub(super) struct SortedRefusals {
    backends: Vec<Name>,
    lines: Vec<Line>,
    /// Position after the lines of the last requested expression. The next search starts here, because expressions are
    /// usually requested in ascending order.
    next_line: usize,
    /// Most recent lists: adjacent expressions usually have the same reasons and share one list.
    recent_lists: VecDeque<Arc<[(Name, Arc<Refusal>)]>>,
}

impl SortedRefusals {
    /// Returns the distinct refusals of an expression, except those by `except`, the backend to which the expression is
    /// assigned.
    pub fn refusals_of(&mut self, expr: ExprId, except: Option<u32>) -> Arc<[(Name, Arc<Refusal>)]> {
        let precedes = |line: &Line| line.expr < expr;
        let mut first = self.next_line;
        let is_ascending = first == 0 || precedes(&self.lines[first - 1]);
        if !is_ascending {
            first = 0;
        }
        if self.lines.get(first).is_some_and(precedes) {
            first += self.lines[first..].partition_point(precedes);
        }
        let count = self.lines[first..].iter().take_while(|line| line.expr == expr).count();
        self.next_line = first + count;
        let lines = self.lines[first..self.next_line].iter();
        let mut lines_kept: SmallVec<[&Line; 4]> = SmallVec::new();
        for line in lines.filter(|line| Some(line.backend) != except) {
            if !lines_kept.iter().any(|k| k.backend == line.backend && k.refusal == line.refusal) {
                lines_kept.push(line);
            }
        }
        let is_same = |(name, refusal): &(Name, Arc<Refusal>), line: &&Line| {
            Arc::ptr_eq(refusal, &line.refusal) && *name == self.backends[line.backend as usize]
        };
        let is_equal =
            |list: &[_]| list.len() == lines_kept.len() && list.iter().zip(&lines_kept).all(|(a, b)| is_same(a, b));
        if let Some(existing) = self.recent_lists.iter().find(|list| is_equal(list)) {
            return existing.clone();
        }
        let with_backend = |line: &Line| (self.backends[line.backend as usize].clone(), line.refusal.clone());
        let list: Arc<[_]> = lines_kept.into_iter().map(with_backend).collect();
        if self.recent_lists.len() == 8 {
            self.recent_lists.pop_front();
        }
        self.recent_lists.push_back(list.clone());
        list
    }
}
