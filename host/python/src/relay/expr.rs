//! Expressions as Python objects: handles of the arena.

use super::arena::{self, Arena, Pin};
use super::arguments;
use super::attrs::{self, Attributes};
use super::classes::{Kind, create};
use super::failure;
use super::types::{self, Type};
use crate::array::{array_of, tensor_of};
use crate::error;
use byoc::{Diagnostic, Port, TensorType};
use byoc_core::analysis::structural_equal_exprs;
use byoc_core::pass::infer_type_in_place;
use byoc_ir::diag::{codes, nearest};
use byoc_ir::ir::{
    Call, Callee, Clause, ClausePattern, Expr as IrExpr, ExprId, Function, Match, Module as IrModule, Name, OpId,
    Type as IrType,
};
use byoc_ir::op::{self, AttrKind, Default};
use byoc_ir::tensor::DType;
use byoc_ir::text::{PrintOptions, print_expr};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Handle of an expression.
#[pyclass(frozen, subclass, module = "byoc._byoc")]
pub struct Expr {
    handle: u32,
}

impl Drop for Expr {
    fn drop(&mut self) {
        arena::with(|arena| arena.release(self.handle));
    }
}

/// Returns the Python object of an expression.
pub fn wrap<'py>(py: Python<'py>, id: ExprId) -> PyResult<Bound<'py, PyAny>> {
    let (handle, kind) = arena::with(|arena| (arena.retain(id), kind(arena.module.expr(id))));
    let object = handle
        .into_pyobject(py)
        .map_err(PyErr::from)
        .and_then(|number| create(py, kind, &py.get_type::<Expr>(), number.into_any()));
    arena::with(|arena| arena.release(handle));
    object
}

/// Appends an expression, and returns its Python object.
fn append<'py>(py: Python<'py>, create: impl FnOnce(&Arena) -> IrExpr) -> PyResult<Bound<'py, PyAny>> {
    let pin = Pin::new();
    let id = arena::with(|arena| {
        let expr = create(arena);
        arena.push(expr)
    });
    let object = wrap(py, id);
    drop(pin);
    drop(arena::with(Arena::sweep));
    object
}

fn kind(expr: &IrExpr) -> Kind {
    match expr {
        IrExpr::Constant(_) => Kind::Constant,
        IrExpr::Var(_) => Kind::Var,
        IrExpr::Global(_) => Kind::GlobalVar,
        IrExpr::Constructor(_) => Kind::Constructor,
        IrExpr::Tuple(_) => Kind::Tuple,
        IrExpr::Project { .. } => Kind::TupleGetItem,
        IrExpr::Call(_) => Kind::Call,
        IrExpr::Let { .. } => Kind::Let,
        IrExpr::If { .. } => Kind::If,
        IrExpr::Match(_) => Kind::Match,
        IrExpr::Function(_) => Kind::Function,
        IrExpr::RefNew(_) => Kind::RefCreate,
        IrExpr::RefRead(_) => Kind::RefRead,
        IrExpr::RefWrite { .. } => Kind::RefWrite,
    }
}

/// Expression argument.
pub type ExprRef<'py> = PyRef<'py, Expr>;

impl Expr {
    /// Returns the id in the arena, which must be locked or pinned.
    pub fn id(&self, arena: &Arena) -> ExprId {
        arena.id(self.handle)
    }
}

fn ids(exprs: &[ExprRef<'_>], arena: &Arena) -> Vec<ExprId> {
    exprs.iter().map(|expr| expr.id(arena)).collect()
}

/// Looks up an operator.
///
/// # Errors
/// If the table has no such operator; the help suggests the nearest name.
pub fn find_op(py: Python<'_>, name: &str) -> PyResult<OpId> {
    op::lookup(name).ok_or_else(|| {
        let diagnostic = Diagnostic::error(codes::types::UNKNOWN_OPERATOR, format!("unknown operator \"{name}\""));
        error::of(
            py,
            match nearest(name, op::names()) {
                Some(near) => diagnostic.help(format!("did you mean \"{near}\"?")),
                None => diagnostic.help("\"byoc ops\" lists the operators"),
            },
        )
    })
}

/// Callee passed from Python: the name of an operator, or an expression.
#[derive(FromPyObject)]
enum CalleeArgument<'py> {
    Op(String),
    Expr(ExprRef<'py>),
}

/// Pattern of a clause passed from Python: `None`, a variable, or a pair of a constructor's name (or `None` for a tuple)
/// and the patterns of the fields.
fn clause_pattern(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<ClausePattern> {
    if value.is_none() {
        return Ok(ClausePattern::Any);
    }
    if let Ok(var) = value.cast::<Expr>() {
        return Ok(ClausePattern::Var(arena::with(|arena| var.get().id(arena))));
    }
    if depth == byoc_ir::text::MAX_NESTING {
        return Err(PyTypeError::new_err("expected patterns of at most 64 levels, found more"));
    }
    let (name, fields): (Option<String>, Vec<Bound<'_, PyAny>>) = value.extract()?;
    let fields =
        fields.iter().map(|field| clause_pattern(field, depth + 1)).collect::<PyResult<Box<[ClausePattern]>>>()?;
    Ok(match name {
        Some(name) => ClausePattern::Constructor { name: name.into(), fields },
        None => ClausePattern::Tuple(fields),
    })
}

fn pattern_to_python<'py>(py: Python<'py>, pattern: &ClausePattern) -> PyResult<Bound<'py, PyAny>> {
    let list = |fields: &[ClausePattern]| -> PyResult<Bound<'py, PyList>> {
        let fields: Vec<_> = fields.iter().map(|field| pattern_to_python(py, field)).collect::<PyResult<_>>()?;
        PyList::new(py, fields)
    };
    Ok(match pattern {
        ClausePattern::Any => py.None().into_bound(py),
        ClausePattern::Var(var) => wrap(py, *var)?,
        ClausePattern::Constructor { name, fields } => (name.to_string(), list(fields)?).into_pyobject(py)?.into_any(),
        ClausePattern::Tuple(fields) => (None::<String>, list(fields)?).into_pyobject(py)?.into_any(),
    })
}

#[pymethods]
impl Expr {
    #[new]
    fn new(handle: u32) -> PyResult<Expr> {
        match arena::with(|arena| arena.retain_handle(handle)) {
            true => Ok(Expr { handle }),
            false => Err(PyTypeError::new_err("expected an expression of byoc.relay")),
        }
    }

    #[staticmethod]
    fn constant<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let port = Port::tensor("constant", TensorType::fixed(DType::F32, &[]));
        let tensor = Arc::new(tensor_of(value, &port)?);
        append(py, |_| IrExpr::Constant(tensor))
    }

    #[staticmethod]
    fn var<'py>(py: Python<'py>, name: &str, annotation: Option<PyRef<'py, Type>>) -> PyResult<Bound<'py, PyAny>> {
        let annotation = annotation.map_or(IrType::Unknown, |ty| ty.ty.clone());
        append(py, |_| IrExpr::var(name, annotation))
    }

    #[staticmethod]
    #[pyo3(name = "global_")]
    fn global<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        append(py, |_| IrExpr::Global(name.into()))
    }

    #[staticmethod]
    fn constructor<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        append(py, |_| IrExpr::Constructor(name.into()))
    }

    #[staticmethod]
    fn tuple<'py>(py: Python<'py>, fields: Vec<ExprRef<'py>>) -> PyResult<Bound<'py, PyAny>> {
        append(py, |arena| IrExpr::Tuple(ids(&fields, arena).into()))
    }

    #[staticmethod]
    fn project<'py>(py: Python<'py>, tuple: ExprRef<'py>, index: u32) -> PyResult<Bound<'py, PyAny>> {
        append(py, |arena| IrExpr::Project { tuple: tuple.id(arena), index })
    }

    #[staticmethod]
    #[pyo3(signature = (callee, args, attrs=None))]
    fn call<'py>(
        py: Python<'py>,
        callee: CalleeArgument<'py>,
        args: Vec<ExprRef<'py>>,
        attrs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let op = match &callee {
            CalleeArgument::Op(name) => Some(find_op(py, name)?),
            CalleeArgument::Expr(_) => None,
        };
        let given = attrs::of_any(attrs)?;
        let is_normalized = attrs.and_then(|attrs| attrs.cast::<Attributes>().ok()).is_some_and(|a| a.get().op == op);
        let attrs = match op.filter(|_| !is_normalized) {
            Some(op) => op::normalize_attrs(op::get(op), given).map_err(|diagnostic| error::of(py, *diagnostic))?,
            None => given,
        };
        append(py, |arena| {
            let callee = match (&callee, op) {
                (CalleeArgument::Expr(callee), _) => Callee::Expr(callee.id(arena)),
                (CalleeArgument::Op(_), op) => Callee::Op(op.expect("the operator was found")),
            };
            IrExpr::Call(Box::new(Call { callee, args: ids(&args, arena).into(), attrs }))
        })
    }

    #[staticmethod]
    fn let_<'py>(
        py: Python<'py>,
        var: ExprRef<'py>,
        value: ExprRef<'py>,
        body: ExprRef<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        append(py, |arena| IrExpr::Let { var: var.id(arena), value: value.id(arena), body: body.id(arena) })
    }

    #[staticmethod]
    fn if_<'py>(
        py: Python<'py>,
        cond: ExprRef<'py>,
        then: ExprRef<'py>,
        otherwise: ExprRef<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        append(py, |arena| IrExpr::If { cond: cond.id(arena), then: then.id(arena), otherwise: otherwise.id(arena) })
    }

    #[staticmethod]
    fn match_<'py>(
        py: Python<'py>,
        data: ExprRef<'py>,
        clauses: Vec<(Bound<'py, PyAny>, ExprRef<'py>)>,
        complete: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _pin = Pin::new();
        let mut converted = Vec::new();
        for (pattern, body) in &clauses {
            let pattern = clause_pattern(pattern, 0)?;
            converted.push(Clause { pattern, body: arena::with(|arena| body.id(arena)) });
        }
        append(py, |arena| IrExpr::Match(Box::new(Match { data: data.id(arena), clauses: converted.into(), complete })))
    }

    #[staticmethod]
    #[pyo3(signature = (params, body, ret=None, type_params=vec![], attrs=None))]
    fn function<'py>(
        py: Python<'py>,
        params: Vec<ExprRef<'py>>,
        body: ExprRef<'py>,
        ret: Option<PyRef<'py, Type>>,
        type_params: Vec<String>,
        attrs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let attrs = attrs::of_any(attrs)?;
        let ret = ret.map_or(IrType::Unknown, |ty| ty.ty.clone());
        append(py, |arena| {
            let type_params = type_params.into_iter().map(Name::from).collect();
            let params = ids(&params, arena).into();
            IrExpr::Function(Box::new(Function { type_params, params, body: body.id(arena), ret, attrs }))
        })
    }

    #[staticmethod]
    fn ref_new<'py>(py: Python<'py>, value: ExprRef<'py>) -> PyResult<Bound<'py, PyAny>> {
        append(py, |arena| IrExpr::RefNew(value.id(arena)))
    }

    #[staticmethod]
    fn ref_read<'py>(py: Python<'py>, reference: ExprRef<'py>) -> PyResult<Bound<'py, PyAny>> {
        append(py, |arena| IrExpr::RefRead(reference.id(arena)))
    }

    #[staticmethod]
    fn ref_write<'py>(py: Python<'py>, reference: ExprRef<'py>, value: ExprRef<'py>) -> PyResult<Bound<'py, PyAny>> {
        append(py, |arena| IrExpr::RefWrite { reference: reference.id(arena), value: value.id(arena) })
    }

    /// Returns the parts of the expression, as the functions that create expressions take them.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let _pin = Pin::new();
        let expr = arena::with(|arena| arena.module.expr(self.id(arena)).clone());
        let list = |ids: &[ExprId]| -> PyResult<Bound<'py, PyList>> {
            let objects: Vec<_> = ids.iter().map(|id| wrap(py, *id)).collect::<PyResult<_>>()?;
            PyList::new(py, objects)
        };
        match expr {
            IrExpr::Constant(tensor) => (array_of(py, (*tensor).clone())?,).into_pyobject(py),
            IrExpr::Var(var) => {
                let annotation = (var.annotation != IrType::Unknown).then(|| types::wrap(py, &var.annotation));
                (var.name.to_string(), annotation.transpose()?).into_pyobject(py)
            }
            IrExpr::Global(name) | IrExpr::Constructor(name) => (name.to_string(),).into_pyobject(py),
            IrExpr::Tuple(fields) => (list(&fields)?,).into_pyobject(py),
            IrExpr::Project { tuple, index } => (wrap(py, tuple)?, index).into_pyobject(py),
            IrExpr::Call(call) => {
                let op = match call.callee {
                    Callee::Op(op) => Some(op),
                    Callee::Expr(_) => None,
                };
                let attrs = Bound::new(py, Attributes::new(op, call.attrs))?;
                let callee = match call.callee {
                    Callee::Op(op) => op::get(op).name.into_pyobject(py)?.into_any(),
                    Callee::Expr(callee) => wrap(py, callee)?,
                };
                (callee, list(&call.args)?, attrs).into_pyobject(py)
            }
            IrExpr::Let { var, value, body } => (wrap(py, var)?, wrap(py, value)?, wrap(py, body)?).into_pyobject(py),
            IrExpr::If { cond, then, otherwise } => {
                (wrap(py, cond)?, wrap(py, then)?, wrap(py, otherwise)?).into_pyobject(py)
            }
            IrExpr::Match(m) => {
                let clauses = PyList::empty(py);
                for clause in &m.clauses {
                    clauses.append((pattern_to_python(py, &clause.pattern)?, wrap(py, clause.body)?))?;
                }
                (wrap(py, m.data)?, clauses, m.complete).into_pyobject(py)
            }
            IrExpr::Function(function) => {
                let ret = (function.ret != IrType::Unknown).then(|| types::wrap(py, &function.ret)).transpose()?;
                let type_params: Vec<String> = function.type_params.iter().map(ToString::to_string).collect();
                let attrs = Bound::new(py, Attributes::new(None, function.attrs))?;
                (list(&function.params)?, wrap(py, function.body)?, ret, type_params, attrs).into_pyobject(py)
            }
            IrExpr::RefNew(value) | IrExpr::RefRead(value) => (wrap(py, value)?,).into_pyobject(py),
            IrExpr::RefWrite { reference, value } => (wrap(py, reference)?, wrap(py, value)?).into_pyobject(py),
        }
    }

    /// Returns the type; `None` if it is not known yet.
    #[getter]
    fn known_type<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let ty = arena::with(|arena| arena.module.ty(self.id(arena)).clone());
        (ty != IrType::Unknown).then(|| types::wrap(py, &ty)).transpose()
    }

    /// Returns the expressions that this one reaches, each once, operands before users.
    fn post_order<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let _pin = Pin::new();
        let order = arena::with(|arena| arena.module.post_order(self.id(arena), |_, _| true));
        order.into_iter().map(|id| wrap(py, id)).collect()
    }

    /// Returns the free variables, in order of their first use.
    fn free_vars<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let _pin = Pin::new();
        let vars = arena::with(|arena| arena.free_vars(self.id(arena)));
        vars.into_iter().map(|id| wrap(py, id)).collect()
    }

    /// Returns the expression with some expressions replaced.
    fn substitute<'py>(
        &self,
        py: Python<'py>,
        replacements: Vec<(ExprRef<'py>, ExprRef<'py>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _pin = Pin::new();
        let id = arena::with(|arena| {
            let root = self.id(arena);
            let mut map: HashMap<ExprId, ExprId> =
                replacements.iter().map(|(from, to)| (from.id(arena), to.id(arena))).collect();
            for id in arena.module.post_order(root, |_, _| true) {
                if !map.contains_key(&id) {
                    let new = arena.with_operands(id, |operand| map.get(&operand).copied().unwrap_or(operand));
                    map.insert(id, new);
                }
            }
            map[&root]
        });
        wrap(py, id)
    }

    /// Returns the expression with the types that follow from all of it.
    fn infer_type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let _pin = Pin::new();
        let outcome = arena::with(|arena| {
            let mut extract = arena.extract(self.id(arena));
            arguments::complete(&mut extract.module);
            infer_type_in_place(&mut extract.module, &[extract.root])?;
            let known: Vec<(ExprId, ExprId)> = extract
                .sources
                .iter()
                .filter(|(_, source)| matches!(arena.module.expr(**source), IrExpr::Var(_)))
                .map(|(id, source)| (id, *source))
                .collect();
            for (id, source) in &known {
                arena.module.nodes[*source].ty = extract.module.nodes[*id].ty.clone();
            }
            Ok(arena.adopt(&extract.module, &[extract.root], &known)[0])
        });
        match outcome {
            Ok(id) => wrap(py, id),
            Err(faults) => Err(failure::of_faults(py, faults)),
        }
    }

    /// Returns the text of the expression.
    fn text(&self, py: Python<'_>, types: bool) -> PyResult<String> {
        let extract = arena::with(|arena| arena.extract(self.id(arena)));
        let options = PrintOptions { types, ..PrintOptions::default() };
        let text = print_expr(&extract.module, extract.root, &options).complete();
        Ok(text.map_err(|diagnostic| error::of(py, diagnostic))?.text)
    }

    /// Returns the text of the expression with the values of all constants.
    fn text_with_constants(&self, py: Python<'_>) -> PyResult<String> {
        let extract = arena::with(|arena| arena.extract(self.id(arena)));
        let options = PrintOptions { metadata: true, ..PrintOptions::default() };
        let text = print_expr(&extract.module, extract.root, &options).complete();
        Ok(text.map_err(|diagnostic| error::of(py, diagnostic))?.text)
    }

    /// Returns the first difference from another expression; `None` if they are equal. Unless `map_free_vars`, free
    /// variables must be the same.
    fn difference(&self, other: &Expr, map_free_vars: bool) -> Option<String> {
        let (mut a, mut b, same_vars) = arena::with(|arena| {
            let (left, right) = (self.id(arena), other.id(arena));
            let same_vars = map_free_vars || arena.free_vars(left) == arena.free_vars(right);
            (arena.extract(left), arena.extract(right), same_vars)
        });
        // Types count as known wherever they follow from the rest.
        for side in [&mut a, &mut b] {
            arguments::complete(&mut side.module);
            let _ = infer_type_in_place(&mut side.module, &[side.root]);
        }
        match structural_equal_exprs((&a.module, a.root), (&b.module, b.root)) {
            Err(difference) => Some(difference.to_string()),
            Ok(()) if !same_vars => Some("the free variables differ".into()),
            Ok(()) => None,
        }
    }

    /// Returns a hash that equal expressions share. Unless `map_free_vars`, it depends on the names of free variables.
    fn digest(&self, map_free_vars: bool) -> u64 {
        let (extract, free) = arena::with(|arena| {
            let root = self.id(arena);
            let free = if map_free_vars { Vec::new() } else { arena.free_vars(root) };
            (arena.extract(root), free)
        });
        let is_free = |id| free.contains(&extract.sources[id]);
        digest(&extract.module, extract.root, is_free)
    }

    /// Returns true if both are the same expression; globals and constructors are the same if their names are.
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let Ok(other) = other.cast::<Expr>() else { return false };
        let other = other.get();
        self.handle == other.handle
            || arena::with(|arena| match (arena.module.expr(self.id(arena)), arena.module.expr(other.id(arena))) {
                (IrExpr::Global(a), IrExpr::Global(b)) | (IrExpr::Constructor(a), IrExpr::Constructor(b)) => a == b,
                _ => false,
            })
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        arena::with(|arena| match arena.module.expr(self.id(arena)) {
            IrExpr::Global(name) | IrExpr::Constructor(name) => name.hash(&mut hasher),
            _ => self.handle.hash(&mut hasher),
        });
        hasher.finish()
    }
}

/// Hashes the structure of an expression: operands by position, variables by the order of their first use.
pub fn digest(module: &IrModule, root: ExprId, is_free: impl Fn(ExprId) -> bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut position = HashMap::new();
    for (index, id) in module.post_order(root, |_, _| true).into_iter().enumerate() {
        position.insert(id, index);
        let expr = module.expr(id);
        (kind(expr) as usize).hash(&mut hasher);
        expr.for_each_operand(|operand| position[&operand].hash(&mut hasher));
        match expr {
            IrExpr::Constant(tensor) => (tensor.dtype().name(), tensor.shape(), tensor.bytes()).hash(&mut hasher),
            IrExpr::Var(var) if is_free(id) => var.name.hash(&mut hasher),
            IrExpr::Var(_) => module.ty(id).hash(&mut hasher),
            IrExpr::Global(name) | IrExpr::Constructor(name) => name.hash(&mut hasher),
            IrExpr::Project { index, .. } => index.hash(&mut hasher),
            IrExpr::Call(call) => {
                if let Callee::Op(op) = call.callee {
                    op.hash(&mut hasher);
                }
                format!("{:?}", call.attrs).hash(&mut hasher);
            }
            IrExpr::Function(function) => format!("{:?}", function.attrs).hash(&mut hasher),
            _ => {}
        }
    }
    hasher.finish()
}

impl Arena {
    /// Returns the expression with other operands: the same one if none differs.
    pub fn with_operands(&mut self, id: ExprId, map: impl Fn(ExprId) -> ExprId) -> ExprId {
        let mut expr = self.module.expr(id).clone();
        let mut changed = false;
        expr.map_operands(|operand| {
            let new = map(operand);
            changed |= new != operand;
            new
        });
        if changed { self.push(expr) } else { id }
    }
}

/// Returns the operator table: for each operator its name, the names of its arguments, the minimum number of arguments,
/// its attributes (name, kind, required, default, description), its description, and its fusion pattern.
#[pyfunction]
pub fn operators(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyTuple>>> {
    let attr = |attr: &op::AttrDef| -> PyResult<_> {
        let kind = match attr.kind {
            AttrKind::Int => "int",
            AttrKind::Float => "float",
            AttrKind::Bool => "bool",
            AttrKind::Str => "str",
            AttrKind::DType => "dtype",
            AttrKind::Ints => "ints",
            AttrKind::Floats => "floats",
            AttrKind::IntOrInts => "int_or_ints",
        };
        let default = attrs::to_python(py, &attr.default.value())?;
        Ok((attr.name, kind, attr.default == Default::Required, default, attr.doc))
    };
    let row = |def: &&'static op::OpDef| -> PyResult<_> {
        let attrs = def.attrs.iter().map(attr).collect::<PyResult<Vec<_>>>()?;
        (def.name, def.inputs.to_vec(), def.arity.min, attrs, def.doc, def.pattern as i64).into_pyobject(py)
    };
    op::table().iter().map(row).collect()
}

/// Returns a dictionary from the names of the attributes of an operator to their values for given attributes; used to
/// check arguments before a call is created.
#[pyfunction]
pub fn checked_attrs(py: Python<'_>, name: &str, values: &Bound<'_, PyDict>) -> PyResult<Attributes> {
    let op = find_op(py, name)?;
    let attrs = op::normalize_attrs(op::get(op), attrs::of_any(Some(values.as_any()))?)
        .map_err(|diagnostic| error::of(py, *diagnostic))?;
    Ok(Attributes::new(Some(op), attrs))
}
