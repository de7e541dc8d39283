//! Whether the clauses of a match cover every value.
//!
//! The clauses are rows of patterns and the question is which row of values meets none of them: the algorithm for
//! useless clauses (Maranget, "Warnings for pattern matching", 2007), with a stack of what is still to be tried
//! and a limit on its steps. The problem is as hard as satisfiability; programs are not.

use super::{ClausePattern, Match, Module, Name};

/// After so many steps a match is taken to be covered.
const MAX_STEPS: usize = 100_000;

/// A pattern in a row; what is not written is anything.
type Row<'a> = Vec<&'a ClausePattern>;

/// One question: the rows that are left, the values chosen so far in the order in which they are written, and how many
/// columns are open.
struct Question<'a> {
    rows: Vec<Row<'a>>,
    width: usize,
    chosen: Vec<Choice>,
}

/// Case assumed of a column.
#[derive(Clone)]
enum Choice {
    /// Anything that no row names.
    Any,
    /// A constructor with so many fields, which follow.
    Constructor(Name, usize),
    /// A tuple with so many fields, which follow.
    Tuple(usize),
}

const ANY: ClausePattern = ClausePattern::Any;

/// A value that no clause covers, as a pattern; `None` when there is none. The match is well typed.
pub(crate) fn missing(module: &Module, m: &Match) -> Option<String> {
    let rows = m.clauses.iter().map(|clause| vec![&clause.pattern]).collect();
    let mut stack = vec![Question { rows, width: 1, chosen: Vec::new() }];
    let mut steps = 0;
    while let Some(Question { rows, width, mut chosen }) = stack.pop() {
        steps += 1 + rows.len();
        if steps > MAX_STEPS {
            return None;
        }
        if width == 0 {
            match rows.is_empty() {
                true => return Some(written(&chosen)),
                false => continue,
            }
        }
        // Columns are taken from the end of a row: that is where the next value stands.
        let heads = rows.iter().filter_map(|row| row.last());
        let named = heads.clone().find(|p| !matches!(p, ClausePattern::Any | ClausePattern::Var(_)));
        match named {
            None => {
                chosen.push(Choice::Any);
                let rows = rows.into_iter().map(|mut row| {
                    row.pop();
                    row
                });
                stack.push(Question { rows: rows.collect(), width: width - 1, chosen });
            }
            Some(ClausePattern::Tuple(fields)) => {
                let count = fields.len();
                chosen.push(Choice::Tuple(count));
                stack.push(Question { rows: specialized(&rows, None, count), width: width - 1 + count, chosen });
            }
            Some(ClausePattern::Constructor { name, .. }) => {
                let def = module.types.constructor(name).and_then(|(owner, ..)| module.types.get(owner))?;
                // The first constructor is tried first, as in the definition.
                for constructor in def.constructors.iter().rev() {
                    let count = constructor.fields.len();
                    let mut chosen = chosen.clone();
                    chosen.push(Choice::Constructor(constructor.name.clone(), count));
                    let rows = specialized(&rows, Some(&constructor.name), count);
                    stack.push(Question { rows, width: width - 1 + count, chosen });
                }
            }
            Some(ClausePattern::Any | ClausePattern::Var(_)) => return None,
        }
    }
    None
}

/// The rows that can still match when the last column holds that constructor (a tuple when none is named), with its
/// fields as columns.
fn specialized<'a>(rows: &[Row<'a>], constructor: Option<&Name>, count: usize) -> Vec<Row<'a>> {
    let mut kept = Vec::new();
    for row in rows {
        let (mut rest, last) = (row.clone(), row.last().copied().unwrap_or(&ANY));
        rest.pop();
        match last {
            ClausePattern::Any | ClausePattern::Var(_) => rest.extend(std::iter::repeat_n(&ANY, count)),
            ClausePattern::Tuple(fields) => rest.extend(fields.iter().rev()),
            ClausePattern::Constructor { name, fields } if Some(name) == constructor => {
                rest.extend(fields.iter().rev())
            }
            ClausePattern::Constructor { .. } => continue,
        }
        kept.push(rest);
    }
    kept
}

/// The value as a pattern. Choices stand in the order in which a pattern is written, so one pass from the end, with a
/// stack, puts it together.
fn written(chosen: &[Choice]) -> String {
    let mut stack: Vec<String> = Vec::new();
    for choice in chosen.iter().rev() {
        let mut take = |count: usize| -> String {
            let fields: Vec<String> = (0..count).filter_map(|_| stack.pop()).collect();
            fields.join(", ")
        };
        let text = match choice {
            Choice::Any => "_".to_owned(),
            Choice::Constructor(name, 0) => name.to_string(),
            Choice::Constructor(name, count) => format!("{name}({})", take(*count)),
            Choice::Tuple(1) => format!("({},)", take(1)),
            Choice::Tuple(count) => format!("({})", take(*count)),
        };
        stack.push(text);
    }
    stack.pop().unwrap_or_else(|| "_".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::text::{ParseOptions, parse};

    /// Returns the case that the match of `@main` misses.
    fn missing(clauses: &str) -> Option<String> {
        let text = format!(
            "#[version = \"0.0.5\"]\ntype List[A] {{ Cons(A, List[A]), Nil }}\ntype Color {{ Red, Green, Blue }}\n\
             def @main(%x: _) {{ match (%x) {{ {clauses} }} }}"
        );
        let parsed = parse(&text, &ParseOptions::default());
        assert_eq!(parsed.diagnostics, []);
        let found = parsed.module.nodes.iter().find_map(|(_, node)| match &node.expr {
            crate::ir::Expr::Match(m) => Some(super::missing(&parsed.module, m)),
            _ => None,
        });
        found.expect("there is a match")
    }

    #[test]
    fn what_no_clause_is_for_is_named() {
        let missing = |clauses| missing(clauses).unwrap_or_default();
        assert_eq!(missing("_ => 1"), "");
        assert_eq!(missing("Nil => 1"), "Cons(_, _)");
        assert_eq!(missing("Cons(_, _) => 1"), "Nil");
        assert_eq!(missing("Cons(_, %t) => 1, Nil => 2"), "");
        assert_eq!(missing("Nil => 1, Cons(_, Nil) => 2"), "Cons(_, Cons(_, _))");
        assert_eq!(missing("Nil => 1, Cons(Red, _) => 2, Cons(_, Cons(_, _)) => 3"), "Cons(Green, Nil)");
        assert_eq!(missing("(Red, _) => 1, (_, Blue) => 2, (Green, Green) => 3"), "(Green, Red)");
        assert_eq!(missing("(Red, _) => 1, (_, Red) => 2, (_, _) => 3"), "");
        assert_eq!(missing(""), "_");
    }
}
