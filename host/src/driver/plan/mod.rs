//! Lowering of a typed module to a [`Program`]: `scope` determines the evaluation order, `emit` produces the code of
//! every function over registers, `devices` decides which tensors stay in device memory, and `storage` assigns a
//! storage location to every register.
//!
//! A call to a global function with a `Compiler` attribute becomes a region; the function itself is lowered as well, as
//! the region's fallback on the host.

mod arena;
mod devices;
mod emit;
mod scope;
mod storage;

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Expr, ExprId, Id, IndexVec, Module, Name, OriginId, TensorType, Type};
use byoc_ir::tensor::{DType, Shape, Tensor};
use byoc_runtime::exec::program::{Function, Instr, Port, Program, Region, Source, Space, VERSION};
use byoc_runtime::exec::trace;
use emit::{Draft, Emitter, Sym, leaves};
use scope::Analyzer;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Result of [`plan`]: the program and its constants.
#[derive(Clone, Debug)]
pub struct LoweredProgram {
    /// Lowered program.
    pub program: Program,
    /// Values of `program.constants`, which share their bytes with the constants of the module.
    pub constants: Vec<Tensor>,
    /// Index into `constants` of each constant expression that the program reads.
    pub constant_of: BTreeMap<ExprId, u32>,
}

/// Lowers the module, starting at `@main`. `output_names` are the names of the leaves of its result; a missing name
/// becomes `output_<i>`. Regions of the backends in `device_backends` have their tensors in device memory.
///
/// # Errors
/// If the module has no `@main`, `@main` accepts or returns non-tensors, or the module is untyped.
pub fn plan(module: &Module, output_names: &[String], device_backends: &[&str]) -> Result<LoweredProgram, Diagnostic> {
    plan_in_place(module, output_names, device_backends, &InPlace::new())
}

/// Results that a region may write to the memory of an argument, as (result, argument) index pairs, by region symbol.
pub type InPlace = BTreeMap<String, Vec<[u32; 2]>>;

/// Lowers the module like [`plan`], with regions that compute in place if the argument is not read afterwards. Only the
/// storage locations of tensors differ from the result of [`plan`].
///
/// # Errors
/// Same as [`plan`].
pub fn plan_in_place(
    module: &Module,
    output_names: &[String],
    device_backends: &[&str],
    in_place: &InPlace,
) -> Result<LoweredProgram, Diagnostic> {
    let main = module.globals.get("main").ok_or_else(|| lowering_error("the module has no function @main"))?;
    let mut context = Context::new(module, device_backends, in_place);
    let entry = context.function_of("main")?;
    let mut analyzer = Analyzer::new(module);
    while let Some((name, index)) = context.queue.pop_front() {
        context.lower_global(&mut analyzer, &name, index)?;
    }
    let function = module
        .expr(*main)
        .as_function()
        .ok_or_else(|| lowering_error(format!("expected a function as @main, found type {}", module.ty(*main))))?;
    let mut inputs = Vec::new();
    for &param in &function.params {
        let name = match module.expr(param) {
            Expr::Var(var) => var.name.to_string(),
            _ => return Err(lowering_error("expected variables as parameters of @main, found a different expression")),
        };
        let types = tensors(module.ty(param), &format!("input \"{name}\" of @main"))?;
        let is_tuple = matches!(module.ty(param), Type::Tuple(_));
        inputs.extend(
            types
                .into_iter()
                .enumerate()
                .map(|(i, ty)| Port::tensor(if is_tuple { format!("{name}.{i}") } else { name.clone() }, ty)),
        );
    }
    let types = tensors(module.ty(function.body), "result of @main")?;
    let outputs = types
        .into_iter()
        .enumerate()
        .map(|(i, ty)| Port::tensor(output_names.get(i).cloned().unwrap_or_else(|| format!("output_{i}")), ty));
    let outputs = outputs.collect();
    let sources = module.origins.sources().iter();
    let sources =
        sources.map(|(_, source)| Source { name: source.name.to_string(), op: source.op.to_string() }).collect();
    let Context { functions, regions, spaces, constants, constant_of, .. } = context;
    let ports = constants
        .iter()
        .enumerate()
        .map(|(i, tensor)| Port::tensor(format!("c{i}"), TensorType::fixed(tensor.dtype(), tensor.shape())));
    let program = Program {
        version: VERSION,
        entry,
        inputs,
        outputs,
        constants: ports.collect(),
        regions,
        spaces,
        sources,
        functions: functions.into_iter().map(|function| function.expect("every queued function is lowered")).collect(),
    };
    Ok(LoweredProgram { program, constants, constant_of })
}

/// State shared by the lowering of all functions of a module.
struct Context<'m> {
    module: &'m Module,
    functions: Vec<Option<Function>>,
    globals: HashMap<Name, u32>,
    queue: VecDeque<(Name, u32)>,
    /// Function index of each literal in the current unit.
    literals: HashMap<ExprId, u32>,
    regions: Vec<Region>,
    /// Backends with device memory.
    device_backends: &'m [&'m str],
    spaces: Vec<Space>,
    in_place: &'m InPlace,
    region_of: HashMap<Name, u32>,
    constants: Vec<Tensor>,
    constant_of: BTreeMap<ExprId, u32>,
    /// Index of each constant, by address, element type and shape: expressions that share a tensor share a constant.
    constant_at: HashMap<(usize, DType, Shape), u32>,
    syms: Syms,
}

/// Values of expressions in the current function.
struct Syms {
    stamp: u32,
    values: IndexVec<ExprId, (u32, Sym)>,
}

impl Syms {
    fn get(&self, id: ExprId) -> Option<Sym> {
        let (stamp, sym) = self.values[id];
        (stamp == self.stamp).then_some(sym)
    }

    fn set(&mut self, id: ExprId, sym: Sym) {
        self.values[id] = (self.stamp, sym);
    }

    fn clear(&mut self) {
        self.stamp += 1;
    }
}

impl<'m> Context<'m> {
    fn new(module: &'m Module, device_backends: &'m [&'m str], in_place: &'m InPlace) -> Context<'m> {
        let empty_tuple = Sym::Tuple { first: 0, len: 0 };
        Context {
            module,
            functions: Vec::new(),
            globals: HashMap::new(),
            queue: VecDeque::new(),
            literals: HashMap::new(),
            regions: Vec::new(),
            device_backends,
            spaces: Vec::new(),
            in_place,
            region_of: HashMap::new(),
            constants: Vec::new(),
            constant_of: BTreeMap::new(),
            constant_at: HashMap::new(),
            syms: Syms { stamp: 0, values: IndexVec::filled((0, empty_tuple), module.nodes.len()) },
        }
    }

    fn lower_global(&mut self, analyzer: &mut Analyzer<'m>, name: &Name, index: u32) -> Result<(), Diagnostic> {
        let module = self.module;
        let with_function_name = |mut error: Diagnostic| {
            error.message = format!("@{name}: {}", error.message);
            error
        };
        let function = module.function(name).ok_or_else(|| lowering_error(format!("unknown function @{name}")))?;
        let unit = analyzer.analyze(&function.params, function.body);
        self.literals.clear();
        for &literal in &unit.literal_order {
            self.literals.insert(literal, self.functions.len() as u32);
            self.functions.push(None);
        }
        let draft =
            Emitter::function(self, &unit, None, &function.params, function.body, 0).map_err(with_function_name)?;
        self.functions[index as usize] = Some(self.finish(name.to_string(), draft));
        for (i, &literal) in unit.literal_order.iter().enumerate() {
            let Expr::Function(inner) = module.expr(literal) else { continue };
            let scope = unit.literals[&literal].scope;
            let draft = Emitter::function(self, &unit, Some(literal), &inner.params, inner.body, scope)
                .map_err(with_function_name)?;
            self.functions[self.literals[&literal] as usize] = Some(self.finish(format!("{name}.{i}"), draft));
        }
        if let Some(&region) = self.region_of.get(name) {
            self.describe_region(region, index, function.body);
        }
        Ok(())
    }

    /// Returns the index of a global function, and queues the function for lowering on first use.
    fn function_of(&mut self, name: &str) -> Result<u32, Diagnostic> {
        if let Some(&index) = self.globals.get(name) {
            return Ok(index);
        }
        let index = self.functions.len() as u32;
        let name = Name::from(name);
        self.functions.push(None);
        self.globals.insert(name.clone(), index);
        self.queue.push_back((name, index));
        Ok(index)
    }

    fn global(&mut self, id: ExprId) -> Result<u32, Diagnostic> {
        match self.module.expr(id) {
            Expr::Global(name) => self.function_of(name),
            _ => {
                Err(lowering_error(format!("expected a global function as callee, found type {}", self.module.ty(id))))
            }
        }
    }

    /// Returns the name of the global function that an expression refers to, if a backend compiles it.
    fn region_name(&self, id: ExprId) -> Option<Name> {
        let Expr::Global(name) = self.module.expr(id) else { return None };
        self.module.function(name)?.attrs.str("Compiler").map(|_| name.clone())
    }

    fn region(&mut self, name: &Name) -> Result<u32, Diagnostic> {
        if let Some(&region) = self.region_of.get(name) {
            return Ok(region);
        }
        let function = self.module.function(name).ok_or_else(|| lowering_error(format!("unknown function @{name}")))?;
        let mut inputs = Vec::new();
        for &param in &function.params {
            inputs.extend(tensors(self.module.ty(param), &format!("input of region @{name}"))?);
        }
        let outputs = tensors(self.module.ty(function.body), &format!("result of region @{name}"))?;
        let fallback = self.function_of(name)?;
        let index = self.regions.len() as u32;
        self.region_of.insert(name.clone(), index);
        let backend = function.attrs.str("Compiler").unwrap_or_default();
        let space = self.space(backend);
        self.regions.push(Region {
            symbol: function.attrs.str("global_symbol").unwrap_or(name).to_owned(),
            backend: backend.to_owned(),
            loader: String::new(),
            inputs,
            outputs,
            fallback,
            origins: Vec::new(),
            flops: 0,
            space,
        });
        Ok(index)
    }

    /// Returns the device memory of a backend; `None` if the backend's tensors are in host memory.
    fn space(&mut self, backend: &str) -> Option<u32> {
        if !self.device_backends.contains(&backend) {
            return None;
        }
        let space_index = self.spaces.iter().position(|space| space.backend == backend);
        Some(space_index.unwrap_or_else(|| {
            self.spaces.push(Space { backend: backend.to_owned() });
            self.spaces.len() - 1
        }) as u32)
    }

    /// Assigns storage locations to the registers of a function.
    fn finish(&self, name: String, draft: Draft) -> Function {
        let Draft { params, results, registers, code } = draft;
        let function = Function { name, params, results, arena: 0, device_arenas: Vec::new(), registers, code };
        let in_place =
            |region: u32| self.in_place.get(&self.regions[region as usize].symbol).map_or(&[][..], Vec::as_slice);
        storage::assign(devices::assign(function, &self.regions), &in_place)
    }

    /// Fills in the FLOPs and origins of a region once its fallback has been lowered.
    fn describe_region(&mut self, region: u32, index: u32, body: ExprId) {
        let Some(function) = &self.functions[index as usize] else { return };
        let mut flops = 0;
        for instr in &function.code {
            if let Instr::Kernel(call) = instr {
                flops = trace::flops(function, call).saturating_add(flops);
            }
        }
        let nodes = self.module.post_order(body, |_, _| true);
        let mut origins: Vec<u32> = nodes.iter().flat_map(|&id| self.origins(self.module.nodes[id].origin)).collect();
        origins.sort_unstable();
        origins.dedup();
        let region = &mut self.regions[region as usize];
        (region.flops, region.origins) = (flops, origins);
    }

    fn constant(&mut self, id: ExprId, tensor: &Arc<Tensor>) -> u32 {
        let next = self.constants.len() as u32;
        // An empty tensor may share its address with a different tensor.
        let index = if tensor.is_empty() {
            next
        } else {
            let key = (tensor.bytes().as_ptr() as usize, tensor.dtype(), tensor.shape().into());
            *self.constant_at.entry(key).or_insert(next)
        };
        if index == next {
            self.constants.push((**tensor).clone());
        }
        self.constant_of.insert(id, index);
        index
    }

    fn origins(&self, id: OriginId) -> Vec<u32> {
        self.module.origins.get(id).iter().map(|source| source.index() as u32).collect()
    }
}

/// Returns the leaf types of a type, all of which must be tensors.
fn tensors(ty: &Type, location: &str) -> Result<Vec<TensorType>, Diagnostic> {
    let tensor = |leaf: &&Type| match leaf {
        Type::Tensor(tensor) => Ok((**tensor).clone()),
        other => Err(lowering_error(format!("{location}: expected tensors, found {other}"))),
    };
    leaves(ty)?.iter().map(tensor).collect()
}

fn lowering_error(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(codes::runtime::NOT_LOWERABLE, message)
}
