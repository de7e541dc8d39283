//! `annotate_target`: marks the values that enter and leave the operators of each target.
//!
//! Every operator call is assigned to the first target in the list that supports the operator, or `default`; a call to
//! a composite function gets the target that is the prefix of the composite's name. Each argument is then wrapped in an
//! end of the producer's target and, around that, a begin of the consumer's target. Targets assigned by an earlier run
//! are preserved, so running the pass for A and then for B is equivalent to running it for A and B, and the pass is
//! idempotent.

use super::annotation::{Annotations, DEFAULT, Mark, attrs_of};
use crate::analysis::scope::is_opaque;
use crate::pass::options::TargetRule;
use byoc_ir::diag::{Diagnostic, codes, nearest};
use byoc_ir::ir::{Attrs, Callee, Expr, ExprId, IndexVec, Module, Name, OpId};
use byoc_ir::op;
use byoc_ir::typing::Rebuild;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashSet};

/// Annotates a module according to `rules`, which list the operators of each target in priority order.
///
/// # Errors
/// If a rule names an unknown operator.
pub fn annotate_target(
    module: &Module,
    rules: &[TargetRule],
    include_non_call_ops: bool,
) -> Result<Module, Box<Diagnostic>> {
    let mut sets: Vec<HashSet<OpId>> = Vec::new();
    for rule in rules {
        let find = |name: &Name| op::lookup(name).ok_or_else(|| unknown_operator(&rule.target, name));
        sets.push(rule.operators.iter().map(find).collect::<Result<_, _>>()?);
    }
    let targets: Vec<Name> = rules.iter().map(|rule| rule.target.clone()).collect();
    annotate_target_by(module, &targets, include_non_call_ops, &mut |id| {
        let (op, _) = module.expr(id).as_op_call()?;
        sets.iter().position(|set| set.contains(&op))
    })
}

fn unknown_operator(target: &str, name: &str) -> Box<Diagnostic> {
    let message = format!("rule for \"{target}\": unknown operator \"{name}\"");
    let diagnostic = Diagnostic::error(codes::passes::UNKNOWN_TARGET_OPERATOR, message);
    Box::new(match nearest(name, op::names()) {
        Some(suggestion) => diagnostic.help(format!("did you mean \"{suggestion}\"?")),
        None => diagnostic.help("\"byoc ops\" lists the operators"),
    })
}

/// Annotates a module; `accepts` returns the index of the target to which an operator call is assigned, or `None` for
/// the target `default`.
///
/// # Errors
/// If the module is ill-typed.
pub fn annotate_target_by(
    module: &Module,
    targets: &[Name],
    include_non_call_ops: bool,
    accepts: &mut dyn FnMut(ExprId) -> Option<usize>,
) -> Result<Module, Box<Diagnostic>> {
    let mut annotator = Annotator {
        annotations: Annotations::new(),
        is_pending: expressions_to_annotate(module),
        targets,
        include_non_call_ops,
        attrs: vec![attrs_of(DEFAULT.into())],
        numbers: BTreeMap::from([(Name::from(DEFAULT), 0)]),
        target: IndexVec::filled(None, module.nodes.len()),
    };
    Rebuild::run(module, |rebuild, id, expr| Ok(annotator.visit(rebuild, id, expr, accepts)))
}

/// Returns the expressions to annotate: all expressions outside composites and opaque functions.
fn expressions_to_annotate(module: &Module) -> IndexVec<ExprId, bool> {
    let mut is_pending = IndexVec::filled(false, module.nodes.len());
    for &root in module.globals.values() {
        is_pending[root] = true;
    }
    for (id, node) in module.nodes.iter().rev() {
        let is_opaque_function =
            node.expr.as_function().is_some_and(|f| is_opaque(f) || f.attrs.get("Composite").is_some());
        if is_pending[id] && !is_opaque_function {
            node.expr.for_each_operand(|operand| is_pending[operand] = true);
        }
    }
    is_pending
}

/// Target, as an index into the annotator's lists.
type Target = usize;

struct Annotator<'a> {
    annotations: Annotations,
    is_pending: IndexVec<ExprId, bool>,
    targets: &'a [Name],
    include_non_call_ops: bool,
    /// Attributes of the annotations of each target.
    attrs: Vec<Attrs>,
    numbers: BTreeMap<Name, Target>,
    /// Target of each expression. An end has the target of its operand; variables, constants and begins have none.
    target: IndexVec<ExprId, Option<Target>>,
}

impl Annotator<'_> {
    fn visit(
        &mut self,
        rebuild: &mut Rebuild<'_>,
        id: ExprId,
        expr: &Expr,
        accepts: &mut dyn FnMut(ExprId) -> Option<usize>,
    ) -> Option<ExprId> {
        if !self.is_pending[id] {
            return None;
        }
        let module = rebuild.old;
        let mut expr = expr.clone();
        match &mut expr {
            Expr::Constant(_) | Expr::Var(_) | Expr::Global(_) | Expr::Constructor(_) => return None,
            Expr::Call(call) => match self.annotations.annotation_of(module, id) {
                Some(Mark::Begin(..)) => return None,
                Some(Mark::End(value, compiler)) => {
                    let target = match self.target[value] {
                        Some(target) => target,
                        None => self.number_of_target(compiler),
                    };
                    self.target[value].get_or_insert(target);
                    self.target[id] = Some(target);
                    let replacement = rebuild.get(value);
                    return Some(self.annotations.end(rebuild, replacement, &self.attrs[target]));
                }
                None => {
                    if let Some(Some(Mark::Begin(_, compiler))) =
                        call.args.first().map(|&a| self.annotations.annotation_of(module, a))
                        && compiler != DEFAULT
                    {
                        // The call is already annotated: the ends around it determine its target.
                        return None;
                    }
                    let target = match call.callee {
                        Callee::Op(_) => accepts(id).and_then(|i| self.targets.get(i)).cloned(),
                        Callee::Expr(callee) => match module.expr(callee) {
                            Expr::Function(f) => f
                                .attrs
                                .str("Composite")
                                .and_then(|name| name.split_once('.'))
                                .and_then(|(own, _)| self.targets.iter().find(|t| ***t == *own).cloned()),
                            Expr::Var(_) if !self.include_non_call_ops => {
                                call.callee = Callee::Expr(rebuild.get(callee));
                                for arg in &mut call.args {
                                    *arg = self.wrap_in_end(rebuild, *arg);
                                }
                                return Some(push(rebuild, id, expr));
                            }
                            _ => None,
                        },
                    };
                    if let Callee::Expr(callee) = &mut call.callee {
                        *callee = rebuild.get(*callee);
                    }
                    let target = target.map_or(0, |name| self.number_of_target(&name));
                    self.wrap(rebuild, &mut call.args, Some(target));
                    self.target[id] = Some(target);
                }
            },
            Expr::Tuple(fields) if fields.is_empty() => return None,
            Expr::Tuple(fields) => self.annotate_non_call(rebuild, id, fields),
            Expr::Project { tuple, .. } => self.annotate_non_call(rebuild, id, std::slice::from_mut(tuple)),
            Expr::RefNew(value) | Expr::RefRead(value) => {
                self.annotate_non_call(rebuild, id, std::slice::from_mut(value))
            }
            Expr::RefWrite { reference, value } => {
                let mut both_operands = [*reference, *value];
                self.annotate_non_call(rebuild, id, &mut both_operands);
                [*reference, *value] = both_operands;
            }
            Expr::Function(function) => {
                function.params.iter_mut().for_each(|p| *p = rebuild.get(*p));
                let is_composite = function.attrs.get("Composite").is_some();
                function.body = if is_composite || is_opaque(function) {
                    rebuild.get(function.body)
                } else {
                    self.wrap_in_end(rebuild, function.body)
                };
            }
            Expr::Let { var, value, body } => {
                *var = rebuild.get(*var);
                if module.expr(*value).as_function().is_some() {
                    *value = rebuild.get(*value);
                } else {
                    self.wrap(rebuild, std::slice::from_mut(value), None);
                }
                *body = self.wrap_in_end(rebuild, *body);
            }
            // As in an if, the data and the clause bodies are wrapped in the ends of their producers; the match itself
            // has no target.
            Expr::Match(m) => {
                m.data = self.wrap_in_end(rebuild, m.data);
                for clause in &mut m.clauses {
                    clause.pattern.map_vars(&mut |var| rebuild.get(var));
                    clause.body = self.wrap_in_end(rebuild, clause.body);
                }
            }
            Expr::If { cond, then, otherwise } => {
                for part in [cond, then, otherwise] {
                    *part = self.wrap_in_end(rebuild, *part);
                }
            }
        }
        Some(push(rebuild, id, expr))
    }

    /// Annotates a tuple, projection or reference operation, which is assigned the common target of its operands.
    fn annotate_non_call(&mut self, rebuild: &mut Rebuild<'_>, id: ExprId, operands: &mut [ExprId]) {
        if self.include_non_call_ops {
            self.target[id] = Some(self.wrap(rebuild, operands, None));
        } else {
            for operand in operands {
                *operand = self.wrap_in_end(rebuild, *operand);
            }
        }
    }

    /// Wraps each operand in an end of its producer's target and a begin of `target`. If `target` is `None`, the begins
    /// have the common target of all producers, or `default` if the producers' targets differ. Returns the target of
    /// the begins.
    fn wrap(&mut self, rebuild: &mut Rebuild<'_>, operands: &mut [ExprId], target: Option<Target>) -> Target {
        let module = rebuild.old;
        let mut shared_target: Option<Target> = None;
        let mut is_kept: SmallVec<[bool; 8]> = SmallVec::from_elem(false, operands.len());
        for (operand, is_kept) in operands.iter_mut().zip(&mut is_kept) {
            let mut argument_target = 0;
            let operand_id = *operand;
            match self.annotations.annotation_of(module, operand_id) {
                Some(Mark::Begin(value, compiler)) => {
                    if let Some(Mark::End(..)) = self.annotations.annotation_of(module, value) {
                        argument_target = self.target[value].unwrap_or(0);
                    }
                    *is_kept = compiler != DEFAULT;
                    *operand = rebuild.get(if *is_kept { operand_id } else { value });
                }
                Some(Mark::End(..)) => {
                    argument_target = self.target[operand_id].unwrap_or(0);
                    *operand = rebuild.get(operand_id);
                }
                None => {
                    argument_target = self.target[operand_id].unwrap_or(0);
                    *operand = self.wrap_in_end(rebuild, operand_id);
                }
            }
            shared_target = Some(match shared_target {
                Some(other) if other != argument_target => 0,
                _ => argument_target,
            });
        }
        let target = target.or(shared_target).unwrap_or(0);
        for (operand, is_kept) in operands.iter_mut().zip(is_kept) {
            if !is_kept {
                *operand = self.annotations.begin(rebuild, *operand, &self.attrs[target]);
            }
        }
        target
    }

    /// Returns the value of an operand, wrapped in an end if the operand has a target. A call without arguments counts
    /// as an input and gets no end.
    fn wrap_in_end(&mut self, rebuild: &mut Rebuild<'_>, source: ExprId) -> ExprId {
        let value = rebuild.get(source);
        if self.annotations.annotation_of(rebuild.old, source).is_some() {
            return value;
        }
        let computes = match rebuild.old.expr(source) {
            Expr::Call(call) => !call.args.is_empty(),
            Expr::Tuple(fields) => !fields.is_empty(),
            Expr::Project { .. } | Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => true,
            _ => false,
        };
        match self.target[source] {
            Some(target) if computes => self.annotations.end(rebuild, value, &self.attrs[target]),
            _ => value,
        }
    }

    fn number_of_target(&mut self, name: &str) -> Target {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let name = Name::from(name);
        self.attrs.push(attrs_of(name.clone()));
        self.numbers.insert(name, self.attrs.len() - 1);
        self.attrs.len() - 1
    }
}

/// Appends a replacement for an old expression, with the same type.
fn push(rebuild: &mut Rebuild<'_>, source: ExprId, expr: Expr) -> ExprId {
    let node = &rebuild.old.nodes[source];
    rebuild.new.module.push_typed(expr, node.ty.clone(), node.origin)
}
