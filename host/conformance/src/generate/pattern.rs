//! Generates a module that matches a given pattern.
//!
//! Operands that the pattern describes are generated before the call that uses them; the remaining operands follow from
//! the recipe of the operator. The cases of an entry cover the combinations of its alternatives. The recursion follows
//! the pattern, whose depth is bounded.

use super::Generator;
use super::draw::Fill;
use super::recipes::{self, Argument, Constraint, Operand};
use byoc_core::pass::{AcceptAll, Backend, ControlFlow, partition_for};
use byoc_core::pattern::{Entry, Pattern, PatternId, PatternNode};
use byoc_ir::ir::{Attrs, ExprId, Module};
use byoc_ir::op::{self, OpDef, OpPattern};
use std::collections::{HashMap, VecDeque};

/// Generates an expression that the pattern matches, and returns its root; `None` if this draw fails, or if the pattern
/// contains functions, `if` or `let`, which no region contains. `operand`, if any, replaces the first wildcard.
pub(super) fn build(generator: &mut Generator, pattern: &Pattern, operand: Option<ExprId>) -> Option<ExprId> {
    let wildcard_exprs = operand.into_iter().collect();
    let mut builder = PatternBuilder { generator, pattern, built: HashMap::new(), wildcard_exprs, depth: 0 };
    let root = builder.make(pattern.root)?;
    builder.wildcard_exprs.is_empty().then_some(root)
}

/// Returns true if the entry matches the entire module.
pub(super) fn matches(entry: &Entry, module: &Module) -> bool {
    let table = [entry.clone()];
    let mut judge = AcceptAll;
    let mut backends = [Backend {
        name: "t".into(),
        table: &table,
        operators: &[],
        control_flow: ControlFlow::default(),
        judge: &mut judge,
    }];
    let Ok((_, report)) = partition_for(module, &mut backends, "default") else { return false };
    let composites = || report.regions.iter().flat_map(|region| &region.composites);
    // All operators must match, because a pattern with optional parts may match only a part of the module generated for
    // it.
    report.operators.iter().all(|operator| composites().any(|c| c.nodes.contains(&operator.expr)))
        && composites().next().is_some()
}

struct PatternBuilder<'w> {
    generator: &'w mut Generator,
    pattern: &'w Pattern,
    built: HashMap<PatternId, ExprId>,
    /// Expressions to substitute for the next wildcards: the given operand, or those of a `dominates` pattern.
    wildcard_exprs: VecDeque<ExprId>,
    /// Current recursion depth.
    depth: usize,
}

/// Maximum recursion depth in a recursive pattern.
const MAX_DEPTH: usize = 12;

impl PatternBuilder<'_> {
    fn make(&mut self, id: PatternId) -> Option<ExprId> {
        if let Some(&expr) = self.built.get(&id) {
            return Some(expr);
        }
        let expr = match &self.pattern.nodes[id] {
            PatternNode::Wildcard | PatternNode::Var(_) => match self.wildcard_exprs.pop_front() {
                Some(candidates) => candidates,
                None => self.leaf(id, &self.any_operand()),
            },
            PatternNode::Constant => self.leaf(id, &self.any_operand()),
            PatternNode::Literal(tensor) => self.generator.builder.constant((**tensor).clone()),
            PatternNode::Call { callee, args } => {
                let (callee, args) = (*callee, args.clone());
                self.call(callee, args.as_deref(), &Attrs::none())?
            }
            PatternNode::Tuple(Some(fields)) => {
                let fields: Option<Vec<ExprId>> = fields.iter().map(|&field| self.make(field)).collect();
                self.generator.builder.tuple(&fields?).ok()?
            }
            PatternNode::Project { tuple, index } => {
                let (tuple, index) = (self.make(*tuple)?, index.unwrap_or(0));
                self.generator.builder.project(tuple, index).ok()?
            }
            PatternNode::Alt(left, right) => {
                let branch = if self.generator.choose_alternative() { *left } else { *right };
                self.make(branch)?
            }
            PatternNode::Redirect(target) => {
                // The recursion ends when a draw selects the non-recursive side of an alternative.
                self.depth += 1;
                let expr = if self.depth > MAX_DEPTH { None } else { self.make(*target) };
                self.depth -= 1;
                expr?
            }
            PatternNode::Dominates { parent, path, child, .. } => self.build_dominated(*parent, *path, *child)?,
            PatternNode::Typed(inner, ty) => {
                let tensor = ty.as_tensor()?;
                let shape = tensor.shape().map(|s| s.to_vec());
                self.build_typed(*inner, Some(tensor.dtype), shape)?
            }
            PatternNode::OfDtype(inner, dtype) => self.build_typed(*inner, Some(*dtype), None)?,
            PatternNode::OfShape(inner, dims) => {
                let shape = dims.iter().map(|d| d.fixed().unwrap_or(3)).collect();
                self.build_typed(*inner, None, Some(shape))?
            }
            PatternNode::WithAttrs(inner, attrs) => {
                let (inner, attrs) = (*inner, attrs.clone());
                match &self.pattern.nodes[inner] {
                    PatternNode::Call { callee, args } => {
                        let (callee, args) = (*callee, args.clone());
                        self.call(callee, args.as_deref(), &attrs)?
                    }
                    _ => return None,
                }
            }
            PatternNode::Op(_)
            | PatternNode::Tuple(None)
            | PatternNode::If { .. }
            | PatternNode::Let { .. }
            | PatternNode::Function { .. } => return None,
        };
        self.built.insert(id, expr);
        Some(expr)
    }

    fn any_operand(&self) -> Operand {
        // Default shape for a leaf without constraints from a call.
        Operand { dtype: self.generator.sampler.theme.dtype, shape: vec![3, 4], fill: Fill::Free, weight: false }
    }

    fn leaf(&mut self, id: PatternId, operand: &Operand) -> ExprId {
        let is_constant = matches!(self.pattern.nodes[id], PatternNode::Constant);
        let is_parameter = matches!(self.pattern.nodes[id], PatternNode::Var(_));
        let operand = Operand { weight: operand.weight && !is_parameter, ..operand.clone() };
        self.generator.operand(&operand, is_constant)
    }

    /// Returns true if the pattern node accepts an arbitrary operand, which is then generated from the recipe of the
    /// enclosing call.
    fn is_open(&self, id: PatternId) -> bool {
        let leaf =
            matches!(self.pattern.nodes[id], PatternNode::Wildcard | PatternNode::Var(_) | PatternNode::Constant);
        let is_constant = matches!(self.pattern.nodes[id], PatternNode::Constant);
        leaf && !self.built.contains_key(&id) && (is_constant || self.wildcard_exprs.is_empty())
    }

    fn build_typed(
        &mut self,
        inner: PatternId,
        dtype: Option<byoc_ir::tensor::DType>,
        shape: Option<Vec<usize>>,
    ) -> Option<ExprId> {
        let dtype_before = self.generator.sampler.theme.dtype;
        self.generator.sampler.theme.dtype = dtype.unwrap_or(dtype_before);
        let expr = if self.is_open(inner) {
            let mut operand = self.any_operand();
            operand.shape = shape.unwrap_or_else(|| self.generator.sampler.shape_of_rank(1, 4));
            let leaf = self.leaf(inner, &operand);
            self.built.insert(inner, leaf);
            Some(leaf)
        } else {
            self.make(inner)
        };
        self.generator.sampler.theme.dtype = dtype_before;
        expr
    }

    fn call(&mut self, callee: PatternId, args: Option<&[PatternId]>, forced: &Attrs) -> Option<ExprId> {
        let def = self.callee(callee, args.map(<[PatternId]>::len))?;
        let Some(args) = args else {
            let Some(operand_expr) = self.wildcard_exprs.pop_front() else {
                return self.generator.call(def, &[], forced);
            };
            let constraints = [Constraint::One(self.generator.type_of_expr(operand_expr)?)];
            return self.generator.call_on(def, &constraints, &[Some(operand_expr)], forced);
        };
        let mut constraints = vec![Constraint::Any; args.len()];
        let mut bound = vec![None; args.len()];
        // Either operand of an elementwise operator may determine the shape of the result.
        let combines = matches!(def.pattern, OpPattern::ElemWise | OpPattern::Broadcast);
        let is_reversed = combines && self.generator.sampler.chance(2);
        let order: Vec<usize> = if is_reversed { (0..args.len()).rev().collect() } else { (0..args.len()).collect() };
        for i in order {
            let arg = args[i];
            if self.is_open(arg) {
                continue;
            }
            // The recipe provides the fields of a tuple that accept an arbitrary operand.
            if let PatternNode::Tuple(Some(fields)) = &self.pattern.nodes[arg]
                && !self.built.contains_key(&arg)
            {
                let fields = fields.clone();
                let mut types = Vec::with_capacity(fields.len());
                for &field in &fields {
                    types.push(if self.is_open(field) {
                        None
                    } else {
                        let expr = self.make(field)?;
                        Some(self.generator.type_of_expr(expr)?)
                    });
                }
                constraints[i] = Constraint::Tuple(types);
                continue;
            }
            let outer = self.generator.sampler.shape_hint.take();
            if combines {
                let known_type = constraints.iter().find_map(|constraints| match constraints {
                    Constraint::One((_, shape)) => Some(shape.clone()),
                    _ => None,
                });
                self.generator.sampler.shape_hint = known_type.or_else(|| outer.clone());
            }
            let expr = self.make(arg);
            self.generator.sampler.shape_hint = outer;
            let expr = expr?;
            constraints[i] = match self.generator.type_of_expr(expr) {
                Some(known_type) => Constraint::One(known_type),
                None => Constraint::Tuple(self.fields(expr)?),
            };
            bound[i] = Some(expr);
        }
        let recipe = recipes::propose(def, &mut self.generator.sampler, &constraints)?;
        if recipe.args.len() < args.len() {
            return None;
        }
        let attrs = forced.iter().fold(recipe.attrs, |attrs, (key, value)| attrs.with(key, value.clone()));
        let mut arguments = Vec::with_capacity(args.len());
        for (i, (&arg, argument)) in args.iter().zip(&recipe.args).enumerate() {
            arguments.push(match (bound[i], argument) {
                (Some(expr), _) => expr,
                (None, Argument::One(operand)) => {
                    // An earlier argument may already have generated this node: `multiply(*x, *x)`.
                    let expr = match self.built.get(&arg) {
                        Some(&expr) => expr,
                        None if i > 0 && self.generator.sampler.restrictions.constants => {
                            self.generator.operand(operand, true)
                        }
                        None => self.leaf(arg, operand),
                    };
                    self.built.insert(arg, expr);
                    expr
                }
                (None, Argument::Tuple(operands)) => {
                    let fields = match &self.pattern.nodes[arg] {
                        PatternNode::Tuple(Some(fields)) => fields.to_vec(),
                        _ => Vec::new(),
                    };
                    let mut values = Vec::with_capacity(operands.len());
                    for (k, operand) in operands.iter().enumerate() {
                        values.push(match fields.get(k) {
                            Some(&field) => match self.built.get(&field) {
                                Some(&expr) => expr,
                                None => {
                                    let leaf = self.leaf(field, operand);
                                    self.built.insert(field, leaf);
                                    leaf
                                }
                            },
                            None => self.generator.operand(operand, false),
                        });
                    }
                    self.generator.builder.tuple(&values).ok()?
                }
            });
        }
        // Adds the required arguments that the pattern does not mention.
        for argument in recipe.args.iter().skip(args.len()).take(def.arity.min.saturating_sub(args.len())) {
            if let Argument::One(operand) = argument {
                arguments.push(self.generator.operand(operand, false));
            }
        }
        // A pattern matches the operands of a commutative operator in either order.
        if def.properties.commutative && arguments.len() == 2 && self.generator.sampler.chance(2) {
            arguments.swap(0, 1);
        }
        self.generator.builder.op(def.name, &arguments, attrs).ok()
    }

    fn fields(&self, tuple: ExprId) -> Option<Vec<Option<recipes::ValueType>>> {
        let fields = self.generator.builder.module.ty(tuple).as_tuple()?;
        Some(fields.iter().map(|f| Some((f.as_tensor()?.dtype, f.as_tensor()?.shape()?.to_vec()))).collect())
    }

    /// Returns the called operator: the named operator, or an operator of the required class.
    fn callee(&mut self, id: PatternId, args: Option<usize>) -> Option<&'static OpDef> {
        match &self.pattern.nodes[id] {
            PatternNode::Op(op) => Some(op::get(*op)),
            PatternNode::Alt(left, right) => {
                let branch = if self.generator.choose_alternative() { *left } else { *right };
                self.callee(branch, args)
            }
            PatternNode::WithAttrs(inner, attrs) if matches!(self.pattern.nodes[*inner], PatternNode::Wildcard) => {
                let class = attrs.get("TOpPattern")?.as_int()?;
                let is_match = |def: &&&'static OpDef| {
                    def.pattern as i64 == class
                        && args.is_none_or(|n| (def.arity.min..=def.arity.max).contains(&n))
                        && def.pattern != OpPattern::Opaque
                        && def.reference.is_some()
                        && !def.properties.annotation
                };
                let operators: Vec<&'static OpDef> = op::table().iter().filter(is_match).copied().collect();
                (!operators.is_empty()).then(|| self.generator.sampler.pick(&operators))
            }
            PatternNode::WithAttrs(inner, _) => self.callee(*inner, args),
            _ => None,
        }
    }

    /// Generates the parent, a path of one or two steps from the parent, and the child. The first wildcard of the child
    /// is the end of the path, the second wildcard the parent.
    fn build_dominated(&mut self, parent: PatternId, path: PatternId, child: PatternId) -> Option<ExprId> {
        let start = self.make(parent)?;
        let mut position = start;
        for _ in 0..self.generator.sampler.int(1, 2) {
            self.discard(path);
            self.wildcard_exprs = VecDeque::from([position]);
            position = self.make(path)?;
        }
        self.discard(child);
        self.wildcard_exprs = VecDeque::from([position, start]);
        let expr = self.make(child);
        self.wildcard_exprs.clear();
        expr
    }

    /// Discards the expressions generated for a subpattern, so that its next use generates new expressions.
    fn discard(&mut self, id: PatternId) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            self.built.remove(&id);
            pending.extend(Pattern::operands(&self.pattern.nodes[id]));
        }
    }
}
