//! Evaluates whole programs with the naive operator references.
//!
//! An expression is evaluated once per activation of its scope, when it is first needed there.

use byoc_ir::ir::{Callee, ClausePattern, Expr, ExprId, Module, Name, ScopeId, Scopes};
use byoc_ir::op;
use byoc_ir::tensor::Tensor;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

#[derive(Clone)]
pub enum Value {
    Tensor(Tensor),
    Tuple(Vec<Value>),
    Function(ExprId, Option<Rc<Frame>>),
    Cell(Rc<RefCell<Value>>),
    /// Constructor applied to its arguments.
    Data(Name, Vec<Value>),
    Constructor(Name),
}

/// Activation of a scope.
pub struct Frame {
    scope: ScopeId,
    parent: Option<Rc<Frame>>,
    values: RefCell<HashMap<ExprId, Value>>,
}

impl Frame {
    fn open(scope: ScopeId, parent: Option<Rc<Frame>>) -> Rc<Frame> {
        Rc::new(Frame { scope, parent, values: RefCell::default() })
    }
}

pub struct Evaluator<'m> {
    module: &'m Module,
    scopes: Scopes,
}

impl<'m> Evaluator<'m> {
    pub fn new(module: &'m Module) -> Evaluator<'m> {
        Evaluator { module, scopes: Scopes::of_module(module) }
    }

    /// Calls a global function.
    pub fn run(&self, name: &str, args: &[Value]) -> Value {
        self.call(&Value::Function(self.module.globals[name], None), args.to_vec())
    }

    fn call(&self, callee: &Value, args: Vec<Value>) -> Value {
        let (id, parent) = match callee {
            Value::Constructor(name) => return Value::Data(name.clone(), args),
            Value::Function(id, parent) => (id, parent),
            _ => panic!("expected a function or a constructor as callee"),
        };
        let function = self.module.expr(*id).as_function().unwrap();
        let frame = Frame::open(self.scopes.opened[*id].unwrap(), parent.clone());
        frame.values.borrow_mut().extend(function.params.iter().copied().zip(args));
        self.value(function.body, &frame)
    }

    fn value(&self, id: ExprId, frame: &Rc<Frame>) -> Value {
        match self.module.expr(id) {
            Expr::Constant(tensor) => return Value::Tensor((**tensor).clone()),
            Expr::Global(name) => return Value::Function(self.module.globals[name], None),
            Expr::Constructor(name) => return Value::Constructor(name.clone()),
            Expr::Var(var) => {
                let mut current = Some(frame);
                while let Some(frame) = current {
                    if let Some(value) = frame.values.borrow().get(&id) {
                        return value.clone();
                    }
                    current = frame.parent.as_ref();
                }
                panic!("unbound variable %{}", var.name);
            }
            _ => {}
        }
        let scope = self.scopes.scope_of[id].unwrap();
        let mut scope_frame = frame;
        while scope_frame.scope != scope {
            scope_frame = scope_frame.parent.as_ref().expect("an expression is used inside its scope");
        }
        if let Some(value) = scope_frame.values.borrow().get(&id) {
            return value.clone();
        }
        let value = self.compute(id, scope_frame);
        scope_frame.values.borrow_mut().insert(id, value.clone());
        value
    }

    fn compute(&self, id: ExprId, frame: &Rc<Frame>) -> Value {
        let value = |id: ExprId| self.value(id, frame);
        let opened_scope = self.scopes.opened[id];
        let branch = |offset: u32| Frame::open(offset_scope(opened_scope.unwrap(), offset), Some(frame.clone()));
        match self.module.expr(id) {
            Expr::Tuple(fields) => Value::Tuple(fields.iter().map(|&f| value(f)).collect()),
            Expr::Project { tuple, index } => match value(*tuple) {
                Value::Tuple(fields) => fields[*index as usize].clone(),
                _ => panic!("expected a tuple to project, found {}", self.module.ty(*tuple)),
            },
            Expr::Call(call) => match call.callee {
                // Annotations may wrap values of any type.
                Callee::Op(op) if op::get(op).name.starts_with("annotation.") => value(call.args[0]),
                Callee::Op(op) => {
                    let args: Vec<op::Value> = call.args.iter().map(|&arg| operand(value(arg))).collect();
                    let mut results = op::evaluate(op, &call.attrs, &args, 1 << 24).unwrap();
                    match self.module.ty(id).as_tuple() {
                        Some(_) => Value::Tuple(results.into_iter().map(Value::Tensor).collect()),
                        None => Value::Tensor(results.remove(0)),
                    }
                }
                Callee::Expr(callee) => {
                    let callee = value(callee);
                    self.call(&callee, call.args.iter().map(|&arg| value(arg)).collect())
                }
            },
            Expr::Let { var, value: bound, body } => {
                let inner = branch(0);
                // A function may call itself by the name that it is bound to.
                let bound = match self.module.expr(*bound) {
                    Expr::Function(_) => Value::Function(*bound, Some(inner.clone())),
                    _ => value(*bound),
                };
                inner.values.borrow_mut().insert(*var, bound);
                self.value(*body, &inner)
            }
            Expr::If { cond, then, otherwise } => {
                let Value::Tensor(cond) = value(*cond) else {
                    panic!("expected a tensor as condition, found {}", self.module.ty(*cond))
                };
                match cond.bytes()[0] {
                    0 => self.value(*otherwise, &branch(1)),
                    _ => self.value(*then, &branch(0)),
                }
            }
            Expr::Match(m) => {
                let data = value(m.data);
                for (at, clause) in m.clauses.iter().enumerate() {
                    let mut vars = HashMap::new();
                    if matches_value(&clause.pattern, &data, &mut vars) {
                        let inner = branch(at as u32);
                        inner.values.borrow_mut().extend(vars);
                        return self.value(clause.body, &inner);
                    }
                }
                panic!("expected a clause that matches a value of type {}, found none", self.module.ty(m.data))
            }
            Expr::Function(_) => Value::Function(id, Some(frame.clone())),
            Expr::RefNew(inner) => Value::Cell(Rc::new(RefCell::new(value(*inner)))),
            Expr::RefRead(cell) => match value(*cell) {
                Value::Cell(cell) => cell.borrow().clone(),
                _ => panic!("expected a reference to read, found {}", self.module.ty(*cell)),
            },
            Expr::RefWrite { reference, value: operand } => {
                let (target, operand) = (value(*reference), value(*operand));
                let Value::Cell(cell) = target else {
                    panic!("expected a reference to write, found {}", self.module.ty(*reference))
                };
                *cell.borrow_mut() = operand;
                Value::Tuple(Vec::new())
            }
            Expr::Constant(_) | Expr::Global(_) | Expr::Constructor(_) | Expr::Var(_) => {
                unreachable!("leaves are resolved before evaluation")
            }
        }
    }
}

/// Returns true if a value matches a pattern, and binds the variables of the pattern.
fn matches_value(pattern: &ClausePattern, value: &Value, vars: &mut HashMap<ExprId, Value>) -> bool {
    match (pattern, value) {
        (ClausePattern::Any, _) => true,
        (ClausePattern::Var(var), _) => {
            vars.insert(*var, value.clone());
            true
        }
        (ClausePattern::Constructor { name, fields }, Value::Data(made_by, values)) => {
            name == made_by && fields.iter().zip(values).all(|(p, v)| matches_value(p, v, vars))
        }
        (ClausePattern::Tuple(fields), Value::Tuple(values)) => {
            fields.iter().zip(values).all(|(p, v)| matches_value(p, v, vars))
        }
        _ => panic!("expected a pattern of the type of the value"),
    }
}

/// Returns the scope `offset` scopes after `first`; an if opens one scope per branch.
fn offset_scope(first: ScopeId, offset: u32) -> ScopeId {
    use byoc_ir::ir::Id;
    ScopeId::new(first.index() + offset as usize)
}

fn operand(value: Value) -> op::Value {
    let tensor = |value: Value| match value {
        Value::Tensor(tensor) => tensor,
        _ => panic!("expected tensors as operands"),
    };
    match value {
        Value::Tuple(fields) => op::Value::Tuple(fields.into_iter().map(tensor).collect()),
        other => op::Value::Tensor(tensor(other)),
    }
}

/// Collects every tensor in a value, left to right.
pub fn tensors(value: &Value) -> Vec<Tensor> {
    match value {
        Value::Tensor(tensor) => vec![tensor.clone()],
        Value::Tuple(fields) => fields.iter().flat_map(tensors).collect(),
        Value::Cell(cell) => tensors(&cell.borrow()),
        Value::Data(_, fields) => fields.iter().flat_map(tensors).collect(),
        Value::Function(..) | Value::Constructor(_) => Vec::new(),
    }
}
