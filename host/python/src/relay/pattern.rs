//! Patterns, and matching and rewriting of expressions by patterns.

use super::arena::{self, Pin};
use super::arguments::complete;
use super::attrs;
use super::expr::{self, ExprRef};
use super::types::{self, DimArgument, Type};
use crate::error;
use byoc::Diagnostic;
use byoc::runtime::Failure;
use byoc_core::pass::{find_matches, infer_type_in_place};
use byoc_core::pattern::{Match, Pattern, PatternId, PatternNode, parse_pattern};
use byoc_ir::diag::codes;
use byoc_ir::ir::{Attrs, Callee, Expr as IrExpr, ExprId, Function, Id, IndexVec, Origins, Type as IrType};
use byoc_ir::op;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// Pattern passed from Python: its nodes, each a tuple of a kind and arguments, operands before users, the root last.
#[derive(FromPyObject)]
#[pyo3(transparent)]
pub struct PatternSpec<'py>(Bound<'py, PyList>);

impl PatternSpec<'_> {
    /// Builds the pattern.
    pub fn pattern(&self, py: Python<'_>) -> PyResult<Pattern> {
        let mut items: Vec<Bound<'_, PyAny>> = self.0.iter().collect();
        // The root, if other nodes follow it.
        let mut root = items.len().checked_sub(1);
        if let Some((kind, value)) = items.last().and_then(|item| item.extract::<(String, Bound<'_, PyAny>)>().ok()) {
            match kind.as_str() {
                "root" => {
                    root = Some(value.extract()?);
                    items.pop();
                }
                "notation" if items.len() == 1 => {
                    let text: String = value.extract()?;
                    let parsed = parse_pattern(&text).map_err(|errors| error::of(py, Failure::from(errors)))?;
                    return Ok(parsed.0);
                }
                _ => {}
            }
        }
        let mut nodes: IndexVec<PatternId, PatternNode> = IndexVec::new();
        for item in &items {
            let node = node(py, item.cast::<PyTuple>()?, nodes.len(), items.len())?;
            nodes.push(node);
        }
        match root.filter(|root| *root < nodes.len()) {
            Some(root) => Ok(Pattern { nodes, root: PatternId::new(root) }),
            None => Err(bad_pattern(py, "expected a pattern, found none".into())),
        }
    }
}

fn bad_pattern(py: Python<'_>, message: String) -> PyErr {
    error::of(py, Diagnostic::error(codes::passes::PATTERN_SYNTAX, message))
}

fn node(py: Python<'_>, parts: &Bound<'_, PyTuple>, len: usize, count: usize) -> PyResult<PatternNode> {
    let kind: String = parts.get_item(0)?.extract()?;
    let id = |index: usize| -> PyResult<PatternId> {
        match index < len {
            true => Ok(PatternId::new(index)),
            false => Err(bad_pattern(py, format!("{kind}: expected an operand before node {len}, found {index}"))),
        }
    };
    let operand = |i: usize| id(parts.get_item(i)?.extract()?);
    let list = |i: usize| -> PyResult<Option<Box<[PatternId]>>> {
        let indices: Option<Vec<usize>> = parts.get_item(i)?.extract()?;
        indices.map(|indices| indices.into_iter().map(&id).collect()).transpose()
    };
    Ok(match kind.as_str() {
        "wildcard" => PatternNode::Wildcard,
        "redirect" => match parts.get_item(1)?.extract::<usize>()? {
            target if target < count => PatternNode::Redirect(PatternId::new(target)),
            target => return Err(bad_pattern(py, format!("expected a node < {count}, found {target}"))),
        },
        "var" => PatternNode::Var(parts.get_item(1)?.extract::<Option<String>>()?.map(Into::into)),
        "constant" => PatternNode::Constant,
        "literal" => {
            let literal: ExprRef<'_> = parts.get_item(1)?.extract()?;
            let tensor = arena::with(|arena| arena.module.expr(literal.id(arena)).as_constant().cloned());
            PatternNode::Literal(tensor.ok_or_else(|| bad_pattern(py, "expected a constant".into()))?)
        }
        "op" => PatternNode::Op(expr::find_op(py, &parts.get_item(1)?.extract::<String>()?)?),
        "call" => PatternNode::Call { callee: operand(1)?, args: list(2)? },
        "tuple" => PatternNode::Tuple(list(1)?),
        "project" => PatternNode::Project { tuple: operand(1)?, index: parts.get_item(2)?.extract()? },
        "if" => PatternNode::If { cond: operand(1)?, then: operand(2)?, otherwise: operand(3)? },
        "let" => PatternNode::Let { var: operand(1)?, value: operand(2)?, body: operand(3)? },
        "function" => PatternNode::Function { params: list(1)?, body: operand(2)? },
        "alt" => PatternNode::Alt(operand(1)?, operand(2)?),
        "dominates" => {
            PatternNode::Dominates { parent: operand(1)?, path: operand(2)?, child: operand(3)?, free: false }
        }
        "typed" => {
            let ty: PyRef<'_, Type> = parts.get_item(2)?.extract()?;
            PatternNode::Typed(operand(1)?, ty.ty.clone())
        }
        "dtype" => PatternNode::OfDtype(operand(1)?, types::dtype(py, &parts.get_item(2)?.extract::<String>()?)?),
        "shape" => {
            let dims: Vec<Option<DimArgument>> = parts.get_item(2)?.extract()?;
            PatternNode::OfShape(operand(1)?, types::dims(py, dims)?)
        }
        "attrs" => PatternNode::WithAttrs(operand(1)?, attrs::of_any(Some(&parts.get_item(2)?))?),
        other => return Err(bad_pattern(py, format!("expected a kind of pattern, found \"{other}\""))),
    })
}

/// Returns what each node of the pattern matched: the node's index, and an expression or the name of an operator.
fn bindings<'py>(py: Python<'py>, matched: &Match, expr_of: impl Fn(ExprId) -> ExprId) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (pattern, callee) in &matched.bindings {
        let value = match callee {
            Callee::Op(op) => op::get(*op).name.into_pyobject(py)?.into_any(),
            Callee::Expr(id) => expr::wrap(py, expr_of(*id))?,
        };
        list.append((pattern.index(), value))?;
    }
    Ok(list)
}

/// Matches a pattern at the expression. Returns what each node of the pattern matched, or `None`.
#[pyfunction]
pub fn match_pattern<'py>(
    py: Python<'py>,
    expr: ExprRef<'py>,
    pattern: PatternSpec<'py>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let pattern = pattern.pattern(py)?;
    let _pin = Pin::new();
    let mut extract = arena::with(|arena| arena.extract(expr.id(arena)));
    // A type error is no match of a pattern for a type.
    complete(&mut extract.module);
    let _ = infer_type_in_place(&mut extract.module, &[extract.root]);
    let matched = pattern.matches(&extract.module, extract.root);
    matched.map(|matched| bindings(py, &matched, |id| extract.sources[id])).transpose()
}

/// Rewrites the matches of a pattern once. `callback` takes the root before and after the operands were rewritten,
/// and what the nodes of the pattern matched, and returns an expression.
#[pyfunction]
pub fn rewrite_once<'py>(
    py: Python<'py>,
    expr: ExprRef<'py>,
    pattern: PatternSpec<'py>,
    callback: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let pattern = pattern.pattern(py)?;
    let _pin = Pin::new();
    let mut extract = arena::with(|arena| arena.extract(expr.id(arena)));
    complete(&mut extract.module);
    let _ = infer_type_in_place(&mut extract.module, &[extract.root]);
    // The root counts as used, as it would be in a function.
    let root = extract.root;
    let main = Function::new([], root, IrType::Unknown, Attrs::none());
    let main = match extract.module.expr(root) {
        IrExpr::Function(_) => root,
        _ => extract.module.push(IrExpr::Function(Box::new(main)), Origins::none()),
    };
    extract.module.globals.insert("main".into(), main);
    let groups = find_matches(&extract.module, &pattern);
    let mut rewritten: IndexVec<ExprId, ExprId> = IndexVec::new();
    for (id, &source) in extract.sources.iter() {
        let new_id = arena::with(|arena| {
            // Operands precede their users in the extract; those of the arena have other ids.
            let new: Vec<ExprId> = {
                let mut operands = Vec::new();
                extract.module.expr(id).for_each_operand(|operand| operands.push(rewritten[operand]));
                operands
            };
            let mut next = new.into_iter();
            let mut copy = arena.module.expr(source).clone();
            let mut changed = false;
            copy.map_operands(|operand| {
                let new = next.next().unwrap_or(operand);
                changed |= new != operand;
                new
            });
            if changed { arena.push(copy) } else { source }
        });
        let result = match groups.get(&id) {
            None => new_id,
            Some(matched) => {
                let current = |at: ExprId| if at == id { new_id } else { rewritten[at] };
                let bindings = bindings(py, matched, current)?;
                let answer = callback.call1((expr::wrap(py, source)?, expr::wrap(py, new_id)?, bindings))?;
                let answer: ExprRef<'_> = answer.extract()?;
                arena::with(|arena| answer.id(arena))
            }
        };
        rewritten.push(result);
    }
    expr::wrap(py, rewritten[root])
}
