//! Modules of Python programs, and the passes over them.
//!
//! The functions of a [`RelayModule`] are expressions of the arena, or a module of the compiler, or both: a pass takes the
//! module out of the arena once, and its result goes back only when the program looks at an expression. Types are inferred
//! when a pass first asks for them, and kept. A pass is a function from one module to another; it runs without the lock of
//! the interpreter, except for checks of patterns that are functions in Python.

use super::arena::{self, Pin};
use super::arguments;
use super::expr::{self, Expr, ExprRef};
use super::failure;
use super::pattern::PatternSpec;
use super::types::{self, Type};
use crate::error;
use byoc::Diagnostic;
use byoc::runtime::Failure;
use byoc_core::analysis::{structural_equal, verifier};
use byoc_core::pass::{
    self, Candidate, DesiredLayout, Judge, PassOptions, Question, Refusal, RefusalCode, TargetRule, Verdict, manager,
};
use byoc_core::pattern::Entry;
use byoc_ir::diag::{Span, codes};
use byoc_ir::ir::{
    Attrs, Constructor, Expr as IrExpr, ExprId, Function, IndexVec, Module as IrModule, Name, Origins, TypeDef,
    TypeDefs,
};
use byoc_ir::text::{ParseOptions, Parsed, PrintOptions, parse, print};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Global functions and type definitions. A pass leaves it unchanged and returns another module.
#[pyclass(frozen, module = "byoc._byoc")]
pub struct RelayModule {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Functions in the arena; empty if they are only in `ir`.
    functions: BTreeMap<Name, Held>,
    types: Arc<TypeDefs>,
    /// The same functions as a module for passes.
    ir: Option<Ir>,
}

#[derive(Clone)]
struct Ir {
    module: Arc<IrModule>,
    /// The module with all types, once they have been inferred.
    typed: Option<Arc<IrModule>>,
    /// True if the functions are in the arena as well.
    is_adopted: bool,
}

/// Expression of the arena that a module keeps alive.
struct Held(u32);

impl Held {
    fn new(expr: &Expr) -> Held {
        Held(arena::with(|arena| {
            let id = expr.id(arena);
            arena.retain(id)
        }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        arena::with(|arena| arena.release(self.0));
    }
}

impl RelayModule {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn of_ir(module: IrModule, is_typed: bool) -> RelayModule {
        let types = module.types.clone();
        let module = Arc::new(module);
        let ir = Some(Ir { module: module.clone(), typed: is_typed.then_some(module), is_adopted: false });
        RelayModule { state: Mutex::new(State { functions: BTreeMap::new(), types, ir }) }
    }

    /// Returns the functions as a module for passes.
    fn ir(&self) -> Ir {
        let mut state = self.lock();
        if let Some(ir) = &state.ir {
            return ir.clone();
        }
        let mut module = IrModule { types: state.types.clone(), ..IrModule::default() };
        arena::with(|arena| {
            for (name, held) in &state.functions {
                // Functions share no expressions, although the objects of the program may.
                let (root, mut map) = (arena.id(held.0), HashMap::new());
                arena.extract_into(root, &mut map, &mut module, |_| {});
                module.globals.insert(name.clone(), map[&root]);
            }
        });
        let ir = Ir { module: Arc::new(module), typed: None, is_adopted: true };
        state.ir = Some(ir.clone());
        ir
    }

    /// Returns the module with its types.
    pub fn typed(&self, py: Python<'_>) -> PyResult<Arc<IrModule>> {
        let ir = self.ir();
        if let Some(typed) = ir.typed {
            return Ok(typed);
        }
        let outcome = py.detach(|| {
            let faults = verifier::structure_faults(&ir.module);
            if !faults.is_empty() {
                return Err(faults);
            }
            let mut module = (*ir.module).clone();
            arguments::complete(&mut module);
            pass::infer_type_in_place(&mut module, &[]).map(|()| module)
        });
        let module = Arc::new(outcome.map_err(|faults| failure::of_faults(py, faults))?);
        let mut state = self.lock();
        if let Some(ir) = &mut state.ir {
            ir.typed = Some(module.clone());
        }
        Ok(module)
    }

    /// Makes the functions expressions of the arena.
    fn adopt(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let Some(ir) = state.ir.clone().filter(|ir| !ir.is_adopted) else { return state };
        let roots: Vec<ExprId> = ir.module.globals.values().copied().collect();
        state.functions = arena::with(|arena| {
            let roots = arena.adopt(&ir.module, &roots, &[]);
            let held = |id| Held(arena.retain(id));
            ir.module.globals.keys().cloned().zip(roots.into_iter().map(held)).collect()
        });
        state.ir = Some(Ir { is_adopted: true, ..ir });
        state
    }

    fn change(&self, py: Python<'_>, change: impl FnOnce(&mut State) -> PyResult<()>) -> PyResult<()> {
        let _ = py;
        let mut state = self.adopt();
        change(&mut state)?;
        state.ir = None;
        Ok(())
    }
}

/// Options of a pass, passed from Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    include_non_call_ops: bool,
    bind_constants: bool,
    module_name: String,
    compiler: Option<String>,
    inline_bound_to: Vec<String>,
    /// Operator, layout of the data, layout of the weights.
    layouts: Vec<(String, String, Option<String>)>,
    /// Target and its operators.
    annotate: Vec<(String, Vec<String>)>,
}

impl Options {
    fn options(self) -> PassOptions {
        let layout = |(operator, data, kernel): (String, String, Option<String>)| DesiredLayout {
            operator: operator.into(),
            data: data.into(),
            kernel: kernel.map(Name::from),
        };
        let rule = |(target, operators): (String, Vec<String>)| TargetRule {
            target: target.into(),
            operators: operators.into_iter().map(Name::from).collect(),
        };
        PassOptions {
            include_non_call_ops: self.include_non_call_ops,
            bind_constants: self.bind_constants,
            module_name: self.module_name,
            compiler: self.compiler,
            inline_bound_to: self.inline_bound_to,
            layouts: self.layouts.into_iter().map(layout).collect(),
            annotate: self.annotate.into_iter().map(rule).collect(),
            ..PassOptions::default()
        }
    }
}

/// Judge that asks functions in Python.
struct Checks<'py> {
    py: Python<'py>,
    /// Check of each entry of the table, by number; the number is the entry's `check`.
    checks: Vec<Option<Py<PyAny>>>,
    /// First exception of a check.
    error: Option<PyErr>,
}

impl Checks<'_> {
    fn ask(&mut self, check: &Py<PyAny>, id: ExprId) -> PyResult<bool> {
        check.bind(self.py).call1((expr::wrap(self.py, id)?,))?.extract()
    }
}

impl Judge for Checks<'_> {
    fn judge(&mut self, module: &IrModule, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let Question::Pattern(entry) = question else { return vec![Verdict::Supported; candidates.len()] };
        let index = entry.check.as_ref().and_then(|check| check.parse::<usize>().ok()).unwrap_or(usize::MAX);
        let Some(Some(check)) = self.checks.get(index) else { return vec![Verdict::Supported; candidates.len()] };
        let check = check.clone_ref(self.py);
        let _pin = Pin::new();
        let roots: Vec<ExprId> = candidates.iter().flat_map(|c| c.outputs.iter().copied()).collect();
        let roots = arena::with(|arena| arena.adopt(module, &roots, &[]));
        let refused = || Verdict::Refused(Refusal::new(RefusalCode::NoPatternMatch, "the check returned False"));
        let mut verdicts = Vec::with_capacity(candidates.len());
        for id in roots {
            let answer = match &self.error {
                Some(_) => false,
                None => self.ask(&check, id).unwrap_or_else(|error| {
                    self.error = Some(error);
                    false
                }),
            };
            verdicts.push(if answer { Verdict::Supported } else { refused() });
        }
        verdicts
    }
}

#[pymethods]
impl RelayModule {
    #[new]
    fn new() -> RelayModule {
        RelayModule { state: Mutex::default() }
    }

    /// Parses a module in the text format, with an expression at the end as `@main`.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<RelayModule> {
        let mut parsed = parse_text(py, text)?;
        parsed.define_main().map_err(failure::of_diagnostic(py))?;
        Ok(RelayModule::of_ir(parsed.module, false))
    }

    /// Parses an expression in the text format.
    #[staticmethod]
    fn parse_expr<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
        let parsed = parse_text(py, text)?;
        let Some(root) = parsed.root else {
            let message = "expected an expression, found a module";
            return Err(error::of(py, Diagnostic::error(codes::text::UNEXPECTED_TOKEN, message)));
        };
        let _pin = Pin::new();
        let id = arena::with(|arena| arena.adopt(&parsed.module, &[root], &[])[0]);
        expr::wrap(py, id)
    }

    /// Returns a module with the same functions.
    fn copy(&self) -> RelayModule {
        let state = self.adopt();
        let functions = state.functions.iter().map(|(name, held)| {
            arena::with(|arena| arena.retain_handle(held.0));
            (name.clone(), Held(held.0))
        });
        RelayModule {
            state: Mutex::new(State {
                functions: functions.collect(),
                types: state.types.clone(),
                ir: state.ir.clone(),
            }),
        }
    }

    /// Returns the names of the functions, sorted.
    fn names(&self) -> Vec<String> {
        let state = self.lock();
        match &state.ir {
            Some(ir) => ir.module.globals.keys().map(ToString::to_string).collect(),
            None => state.functions.keys().map(ToString::to_string).collect(),
        }
    }

    /// Returns a function.
    fn get<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let _pin = Pin::new();
        let state = self.adopt();
        let id = state.functions.get(name).map(|held| arena::with(|arena| arena.id(held.0)));
        drop(state);
        id.map(|id| expr::wrap(py, id)).transpose()
    }

    /// Sets a function.
    fn set(&self, py: Python<'_>, name: &str, function: ExprRef<'_>) -> PyResult<()> {
        let is_function = arena::with(|arena| matches!(arena.module.expr(function.id(arena)), IrExpr::Function(_)));
        if !is_function {
            return Err(PyTypeError::new_err(format!("@{name}: expected a Function, found another expression")));
        }
        self.change(py, |state| {
            state.functions.insert(name.into(), Held::new(&function));
            Ok(())
        })
    }

    /// Removes a function.
    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.change(py, |state| {
            state.functions.remove(name);
            Ok(())
        })
    }

    /// Defines a type with its parameters and constructors, each with the types of its fields.
    fn define_type(
        &self,
        py: Python<'_>,
        name: &str,
        params: Vec<String>,
        constructors: Vec<(String, Vec<PyRef<'_, Type>>)>,
    ) -> PyResult<()> {
        let constructor = |(name, fields): &(String, Vec<PyRef<'_, Type>>)| Constructor {
            name: name.as_str().into(),
            fields: fields.iter().map(|field| field.ty.clone()).collect(),
        };
        let def = TypeDef {
            params: params.into_iter().map(Name::from).collect(),
            constructors: constructors.iter().map(constructor).collect(),
            is_extern: false,
        };
        self.change(py, |state| match Arc::make_mut(&mut state.types).define(name.into(), def) {
            None => Ok(()),
            Some(name) => {
                let message = format!("expected a new name, found the name {name} of a type or constructor");
                Err(error::of(py, Diagnostic::error(codes::text::DUPLICATE_NAME, message)))
            }
        })
    }

    /// Returns the type definitions: name, parameters, and constructors with the types of their fields.
    fn type_defs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let types = self.lock().types.clone();
        let list = PyList::empty(py);
        for (name, def) in types.iter() {
            let constructors = PyList::empty(py);
            for constructor in &def.constructors {
                let fields: Vec<_> =
                    constructor.fields.iter().map(|field| types::wrap(py, field)).collect::<PyResult<_>>()?;
                constructors.append((constructor.name.to_string(), fields))?;
            }
            let params: Vec<String> = def.params.iter().map(ToString::to_string).collect();
            list.append((name.to_string(), params, constructors))?;
        }
        Ok(list)
    }

    /// Adds the type definitions of another module that this one lacks.
    fn import_types(&self, py: Python<'_>, other: &RelayModule) -> PyResult<()> {
        let types = other.lock().types.clone();
        self.change(py, |state| {
            let mine = Arc::make_mut(&mut state.types);
            for (name, def) in types.iter() {
                if mine.get(name).is_none() {
                    mine.define(name.clone(), def.clone());
                }
            }
            Ok(())
        })
    }

    /// Returns the text of the module.
    fn text(&self, py: Python<'_>, types: bool, metadata: bool) -> PyResult<String> {
        let ir = self.ir();
        let options = PrintOptions { types, metadata, ..PrintOptions::default() };
        let printed = print(&ir.module, &options).complete();
        Ok(printed.map_err(|diagnostic| error::of(py, diagnostic))?.text)
    }

    /// Returns the first difference from another module; `None` if they are equal.
    fn difference(&self, other: &RelayModule) -> Option<String> {
        // Types count as known wherever they follow from the rest.
        let typed = |module: &RelayModule| {
            let ir = module.ir();
            if let Some(typed) = ir.typed {
                return typed;
            }
            let mut module = (*ir.module).clone();
            arguments::complete(&mut module);
            let _ = pass::infer_type_in_place(&mut module, &[]);
            Arc::new(module)
        };
        structural_equal(&typed(self), &typed(other)).err().map(|difference| difference.to_string())
    }

    /// Returns a hash that equal modules share.
    fn digest(&self) -> u64 {
        let module = self.ir().module;
        let mut hasher = DefaultHasher::new();
        for (name, &root) in &module.globals {
            (name, expr::digest(&module, root, |_| false)).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Returns the module with all types.
    fn infer_type(&self, py: Python<'_>) -> PyResult<RelayModule> {
        let module = self.typed(py)?;
        let types = module.types.clone();
        let ir = Some(Ir { module: module.clone(), typed: Some(module), is_adopted: false });
        Ok(RelayModule { state: Mutex::new(State { functions: BTreeMap::new(), types, ir }) })
    }

    /// Returns the names of the passes with their descriptions.
    #[staticmethod]
    fn passes() -> Vec<(&'static str, &'static str)> {
        manager::PASSES.iter().map(|pass| (pass.name, pass.doc)).collect()
    }

    /// Runs a pass. Returns the new module and the warnings.
    fn run(&self, py: Python<'_>, name: &str, options: Options) -> PyResult<(RelayModule, Vec<String>)> {
        let pass = manager::find(name).map_err(failure::of_diagnostic(py))?;
        let module = self.typed(py)?;
        let options = options.options();
        let mut warnings = Vec::new();
        let outcome = py.detach(|| {
            error::catch_panics(|| (pass.run)(&module, &options, &mut warnings).map_err(|e| byoc::Error::from(*e)))
        });
        let module = error::result(py, outcome)?;
        Ok((RelayModule::of_ir(module, true), messages(&warnings)))
    }

    /// Applies a table of patterns: name, pattern, and check or `None`. Returns the new module and the warnings.
    fn merge_composite(
        &self,
        py: Python<'_>,
        table: Vec<(String, PatternSpec<'_>, Option<Py<PyAny>>)>,
    ) -> PyResult<(RelayModule, Vec<String>)> {
        let module = self.typed(py)?;
        let mut entries = Vec::new();
        let mut checks = Vec::new();
        for (index, (name, pattern, check)) in table.into_iter().enumerate() {
            let pattern = pattern.pattern(py)?;
            let check_name = Some(Name::from(index.to_string()));
            entries.push(Entry { name: name.into(), pattern, check: check_name, span: Span::default() });
            checks.push(check);
        }
        let mut judge = Checks { py, checks, error: None };
        let mut warnings = Vec::new();
        let merged = pass::merge_composite(&module, &entries, &mut judge, &mut |_, _| {}, &mut warnings);
        if let Some(error) = judge.error {
            return Err(error);
        }
        Ok((RelayModule::of_ir(merged.map_err(failure::of_diagnostic(py))?, true), messages(&warnings)))
    }

    /// Annotates the operators of targets: name and, by operator, a check or `None`.
    fn annotate_target(
        &self,
        py: Python<'_>,
        targets: Vec<(String, HashMap<String, Option<Py<PyAny>>>)>,
        include_non_call_ops: bool,
    ) -> PyResult<RelayModule> {
        let module = self.typed(py)?;
        let names: Vec<Name> = targets.iter().map(|(name, _)| name.as_str().into()).collect();
        let mut rules = Vec::new();
        for (_, operators) in targets {
            let mut rule = HashMap::new();
            for (operator, check) in operators {
                rule.insert(expr::find_op(py, &operator)?, check);
            }
            rules.push(rule);
        }
        let _pin = Pin::new();
        let mut map: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
        let mut first_error = None;
        let mut ask = |id: ExprId, check: &Py<PyAny>| -> PyResult<bool> {
            let root = match map[id] {
                Some(root) => root,
                None => {
                    let roots: Vec<ExprId> = module.globals.values().copied().collect();
                    arena::with(|arena| arena.adopt_into(&module, &roots, &mut map));
                    arena::with(|arena| arena.adopt_into(&module, &[id], &mut map))[0]
                }
            };
            check.bind(py).call1((expr::wrap(py, root)?,))?.extract()
        };
        let annotated = pass::annotate_target_by(&module, &names, include_non_call_ops, &mut |id| {
            let (op, _) = module.expr(id).as_op_call()?;
            if first_error.is_some() {
                return None;
            }
            rules.iter().position(|rule| match rule.get(&op) {
                None => false,
                Some(None) => true,
                Some(Some(check)) => ask(id, check).unwrap_or_else(|error| {
                    first_error.get_or_insert(error);
                    false
                }),
            })
        });
        match first_error {
            Some(error) => Err(error),
            None => Ok(RelayModule::of_ir(annotated.map_err(failure::of_diagnostic(py))?, true)),
        }
    }
}

pub fn messages(warnings: &[Diagnostic]) -> Vec<String> {
    warnings.iter().map(|warning| format!("{}: {}", warning.code, warning.message)).collect()
}

fn parse_text(py: Python<'_>, text: &str) -> PyResult<Parsed> {
    let mut parsed = parse(text, &ParseOptions::default());
    let diagnostics = std::mem::take(&mut parsed.diagnostics);
    match diagnostics.is_empty() {
        true => Ok(parsed),
        false => Err(error::of(py, Failure::from(diagnostics).in_source("text", text))),
    }
}

/// Runs `transform` on an expression as the body of a function of its free variables, or on a function itself. The
/// variables keep their identity.
pub fn transform_expr<'py>(
    py: Python<'py>,
    root: &Expr,
    transform: impl FnOnce(&IrModule) -> PyResult<IrModule>,
) -> PyResult<Bound<'py, PyAny>> {
    let _pin = Pin::new();
    let (mut module, sources, params, is_function) = arena::with(|arena| {
        let id = root.id(arena);
        let mut extract = arena.extract(id);
        if let IrExpr::Function(function) = extract.module.expr(extract.root) {
            let params = function.params.clone();
            extract.module.globals.insert("main".into(), extract.root);
            return (extract.module, extract.sources, params, true);
        }
        let free = arena.free_vars(id);
        let params: Vec<ExprId> =
            extract.sources.iter().filter(|(_, source)| free.contains(source)).map(|(id, _)| id).collect();
        let ty = extract.module.ty(extract.root).clone();
        let function = Function::new(params.iter().copied(), extract.root, ty, Attrs::none());
        let main = extract.module.push(IrExpr::Function(Box::new(function.clone())), Origins::none());
        extract.module.globals.insert("main".into(), main);
        (extract.module, extract.sources, function.params, false)
    });
    // What has no type yet is reported when the whole module is inferred.
    arguments::complete(&mut module);
    let _ = pass::infer_type_in_place(&mut module, &[]);
    let result = transform(&module)?;
    if structural_equal(&module, &result).is_ok() {
        let id = arena::with(|arena| root.id(arena));
        return expr::wrap(py, id);
    }
    let id = arena::with(|arena| {
        let main = result.globals["main"];
        let function = result.expr(main).as_function()?;
        let known: Vec<(ExprId, ExprId)> =
            function.params.iter().zip(&params).map(|(&new, &old)| (new, sources[old])).collect();
        let root = if is_function { main } else { function.body };
        arena.adopt(&result, &[root], &known).first().copied()
    });
    expr::wrap(py, id.expect("a pass keeps @main"))
}

/// Runs a pass on the expression alone.
#[pyfunction]
pub fn run_on_expr<'py>(
    py: Python<'py>,
    expr: ExprRef<'py>,
    name: &str,
    options: Options,
) -> PyResult<Bound<'py, PyAny>> {
    let pass = manager::find(name).map_err(failure::of_diagnostic(py))?;
    let options = options.options();
    transform_expr(py, &expr, |module| {
        (pass.run)(module, &options, &mut Vec::new()).map_err(failure::of_diagnostic(py))
    })
}

/// Moves each match of a pattern into a function with the given attributes, if the check accepts it.
#[pyfunction]
#[pyo3(signature = (expr, pattern, attrs, check=None))]
pub fn partition_expr<'py>(
    py: Python<'py>,
    expr: ExprRef<'py>,
    pattern: PatternSpec<'py>,
    attrs: &Bound<'py, PyDict>,
    check: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (pattern, attrs) = (pattern.pattern(py)?, super::attrs::of_any(Some(attrs.as_any()))?);
    let mut failure = None;
    let result = transform_expr(py, &expr, |module| {
        let ask = |module: &IrModule, id: ExprId| -> PyResult<bool> {
            let Some(check) = &check else { return Ok(true) };
            let root = arena::with(|arena| arena.adopt(module, &[id], &[])[0]);
            check.bind(py).call1((expr::wrap(py, root)?,))?.extract()
        };
        let mut check = |module: &IrModule, id: ExprId| {
            failure.is_none()
                && ask(module, id).unwrap_or_else(|error| {
                    failure = Some(error);
                    false
                })
        };
        pattern.partition(module, &attrs, &mut check, &mut Vec::new()).map_err(failure::of_diagnostic(py))
    });
    failure.map_or(result, Err)
}
