//! Exhaustiveness check of `match`.
//!
//! The clauses are rows of a pattern matrix, and the check searches for a row of values that no clause matches. It uses
//! the algorithm for useless clauses (Maranget, "Warnings for pattern matching", 2007), with an explicit stack of open
//! subproblems and a step limit. The problem is NP-complete in general, but not hard for programs found in practice.

use crate::ir::{ClausePattern, Match, Module, Name};

/// Maximum number of steps, each of which looks at one row; a match that needs more is assumed to be exhaustive.
const MAX_STEPS: usize = 1_000_000;

/// Row of the pattern matrix.
type Row<'a> = Vec<&'a ClausePattern>;

/// Open subproblem: the remaining rows, the choices made so far in prefix order, and the number of open columns.
struct Subproblem<'a> {
    rows: Vec<Row<'a>>,
    width: usize,
    choices: Vec<Choice>,
}

/// Case assumed for a column.
#[derive(Clone)]
enum Choice {
    /// Any value, as no row has a constructor or tuple pattern in the column.
    Any,
    /// A constructor and its number of fields; the choices for the fields follow.
    Constructor(Name, usize),
    /// A tuple and its number of fields; the choices for the fields follow.
    Tuple(usize),
}

const ANY: ClausePattern = ClausePattern::Any;

/// Returns a value that no clause covers, as a pattern, or `None` if the match is exhaustive. The match must be well
/// typed.
pub(crate) fn missing(module: &Module, m: &Match) -> Option<String> {
    let rows = m.clauses.iter().map(|clause| vec![&clause.pattern]).collect();
    let mut stack = vec![Subproblem { rows, width: 1, choices: Vec::new() }];
    let mut steps = 0;
    while let Some(Subproblem { rows, width, mut choices }) = stack.pop() {
        steps += 1 + rows.len();
        if steps > MAX_STEPS {
            return None;
        }
        if width == 0 {
            match rows.is_empty() {
                true => return Some(describe_choices(&choices)),
                false => continue,
            }
        }
        // Rows are stored in reverse: the last element is the next column.
        let heads = rows.iter().filter_map(|row| row.last());
        let constructors = heads.clone().find(|p| !matches!(p, ClausePattern::Any | ClausePattern::Var(_)));
        match constructors {
            None => {
                choices.push(Choice::Any);
                let rows = rows.into_iter().map(|mut row| {
                    row.pop();
                    row
                });
                stack.push(Subproblem { rows: rows.collect(), width: width - 1, choices });
            }
            Some(ClausePattern::Tuple(fields)) => {
                let count = fields.len();
                choices.push(Choice::Tuple(count));
                stack.push(Subproblem { rows: specialize(&rows, None, count), width: width - 1 + count, choices });
            }
            Some(ClausePattern::Constructor { name, .. }) => {
                let def = module.types.constructor(name).and_then(|(owner, ..)| module.types.get(owner))?;
                // Pushed in reverse so that constructors are tried in the order of the definition.
                for constructor in def.constructors.iter().rev() {
                    steps += rows.len();
                    if steps > MAX_STEPS {
                        return None;
                    }
                    let count = constructor.fields.len();
                    let mut choices = choices.clone();
                    choices.push(Choice::Constructor(constructor.name.clone(), count));
                    let rows = specialize(&rows, Some(&constructor.name), count);
                    stack.push(Subproblem { rows, width: width - 1 + count, choices });
                }
            }
            Some(ClausePattern::Any | ClausePattern::Var(_)) => return None,
        }
    }
    None
}

/// Returns the rows that can still match if the last column holds `constructor` (a tuple if `None`); its `count` fields
/// become columns.
fn specialize<'a>(rows: &[Row<'a>], constructor: Option<&Name>, count: usize) -> Vec<Row<'a>> {
    let mut specialized_rows = Vec::new();
    for row in rows {
        let (mut remaining_row, last) = (row.clone(), row.last().copied().unwrap_or(&ANY));
        remaining_row.pop();
        match last {
            ClausePattern::Any | ClausePattern::Var(_) => remaining_row.extend(std::iter::repeat_n(&ANY, count)),
            ClausePattern::Tuple(fields) => remaining_row.extend(fields.iter().rev()),
            ClausePattern::Constructor { name, fields } if Some(name) == constructor => {
                remaining_row.extend(fields.iter().rev())
            }
            ClausePattern::Constructor { .. } => continue,
        }
        specialized_rows.push(remaining_row);
    }
    specialized_rows
}

/// Formats a value as a pattern. The choices are in prefix order, so one reverse pass with a stack assembles the
/// pattern.
fn describe_choices(choices: &[Choice]) -> String {
    let mut stack: Vec<String> = Vec::new();
    for choice in choices.iter().rev() {
        let mut take_fields = |count: usize| -> String {
            let fields: Vec<String> = (0..count).filter_map(|_| stack.pop()).collect();
            fields.join(", ")
        };
        let text = match choice {
            Choice::Any => "_".to_owned(),
            Choice::Constructor(name, 0) => name.to_string(),
            Choice::Constructor(name, count) => format!("{name}({})", take_fields(*count)),
            Choice::Tuple(1) => format!("({},)", take_fields(1)),
            Choice::Tuple(count) => format!("({})", take_fields(*count)),
        };
        stack.push(text);
    }
    stack.pop().unwrap_or_else(|| "_".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::text::{ParseOptions, parse};

    /// Returns the value that the match in `@main` does not cover.
    fn missing(clauses: &str) -> Option<String> {
        let text = format!(
            "#[version = \"0.0.5\"]\ntype List[A] {{ Cons(A, List[A]), Nil }}\ntype Color {{ Red, Green, Blue }}\n\
             def @main(%x: _) {{ match (%x) {{ {clauses} }} }}"
        );
        let program = parse(&text, &ParseOptions::default());
        assert_eq!(program.diagnostics, []);
        let match_expr = program.module.nodes.iter().find_map(|(_, node)| match &node.expr {
            crate::ir::Expr::Match(m) => Some(super::missing(&program.module, m)),
            _ => None,
        });
        match_expr.expect("@main contains a match")
    }

    #[test]
    fn names_first_uncovered_value() {
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
