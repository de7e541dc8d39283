//! Partitioning for backends in priority order. Every operator is assigned to a backend, or reported with reasons.
//!
//! Each backend in turn gives verdicts on the operators that are still free: first on the matches of its pattern table,
//! then on single operators, then on the regions formed from the accepted units. Refused operators stay free for the
//! next backend. All backends work on one graph over the original module, which is rebuilt once at the end. Regions
//! grow along edges from producer to consumer wherever that creates no cycle, but never across functions or let bodies.
//! A projection joins the region of its tuple, and a tuple with one user joins the region of that user, so that regions
//! exchange tensors.

use super::grouping::{Grouping, emit};
use super::judge::{Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict, request_verdicts};
use super::outline::{Naming, Outline, Shared, define_and_call, sanitize};
use super::refusals::RefusalLog;
use super::region_graph::{RegionGraph, for_each_flow};
use super::report::{ExprIds, OperatorReport, RegionReport, Report};
use crate::analysis::scope::Bodies;
use crate::pattern::{Entry, PatternNode};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Expr, ExprId, ExprList, FuncType, IndexVec, Module, Name, OpId, Type};
use byoc_ir::op;
use byoc_ir::typing::Rebuild;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Backend that operators can be assigned to.
pub struct Backend<'a> {
    /// Name of the backend, which is also the `Compiler` attribute of its functions.
    pub name: Name,
    /// Pattern table, in priority order.
    pub table: &'a [Entry],
    /// Names of the operators on which the backend gives verdicts as single operators. Unknown names are ignored.
    pub operators: &'a [String],
    /// Source of the backend's verdicts.
    pub judge: &'a mut dyn Judge,
}

/// Partitions a module for backends in priority order.
///
/// # Errors
/// If the module is ill-typed.
pub fn partition_for(
    module: &Module,
    backends: &mut [Backend<'_>],
    module_name: &str,
) -> Result<(Module, Report), Box<Diagnostic>> {
    let mut partitioner = Partitioner {
        module,
        grouping: Grouping::new(module),
        bodies: Bodies::of(module),
        region: IndexVec::filled(None, module.nodes.len()),
        regions: Vec::new(),
        owner: Vec::new(),
        refusals: RefusalLog::new(module, backends.iter().map(|backend| backend.name.clone())),
    };
    partitioner.grouping.set_owner_names(backends.iter().map(|backend| backend.name.clone()).collect());
    let operators = partitioner.grouping.free_operators();
    for (by, backend) in backends.iter_mut().enumerate() {
        partitioner.assign(by as u32, backend);
    }
    partitioner.finish(operators, module_name)
}

struct Partitioner<'m> {
    module: &'m Module,
    grouping: Grouping<'m>,
    bodies: Bodies,
    /// Region of each unit. A unit is the root of a composite, or a single expression.
    region: IndexVec<ExprId, Option<u32>>,
    /// Reports of the regions. During partitioning, `nodes` holds units instead of nodes; a refused region is empty.
    regions: Vec<RegionReport>,
    /// Backend of each region, as an index in priority order.
    owner: Vec<u32>,
    refusals: RefusalLog,
}

impl Partitioner<'_> {
    /// Assigns the free operators that a backend accepts to that backend.
    fn assign(&mut self, by: u32, backend: &mut Backend<'_>) {
        let free = self.grouping.free_operators();
        let before: HashSet<ExprId> = self.grouping.groups.keys().copied().collect();
        let refusals = &mut self.refusals;
        for entry in backend.table {
            if !matches!(entry.pattern.nodes[entry.pattern.root], PatternNode::Function { .. }) {
                self.grouping.apply(entry, backend.judge, &mut |id, refusal| refusals.add(by, id, refusal));
            }
        }
        let mut own: Vec<ExprId> = self.grouping.groups.keys().copied().filter(|root| !before.contains(root)).collect();
        own.extend(self.accepted_operators(by, backend));
        self.form_regions(by, backend, &own);
        self.record_missing_refusals(by, backend, &free);
    }

    /// Returns the free operators that the backend accepts as single operators.
    fn accepted_operators(&mut self, by: u32, backend: &mut Backend<'_>) -> Vec<ExprId> {
        let wanted: HashSet<OpId> = backend.operators.iter().filter_map(|name| op::lookup(name)).collect();
        let mut asked = Vec::new();
        for id in self.grouping.free_operators() {
            let Some((op, call)) = self.module.expr(id).as_op_call() else { continue };
            // A call without arguments reads no value; as a region, the call would have no inputs.
            if !wanted.contains(&op) || call.args.is_empty() {
                continue;
            }
            let mut inputs = Vec::new();
            let mut nodes = Vec::new();
            for &arg in &call.args {
                let constant = matches!(self.module.expr(arg), Expr::Constant(_));
                let list = if constant { &mut nodes } else { &mut inputs };
                if !list.contains(&arg) {
                    list.push(arg);
                }
            }
            nodes.push(id);
            asked.push(Candidate {
                nodes,
                inputs,
                outputs: vec![id],
                outside_users: self.grouping.graph.users(id).count(),
                composites: Vec::new(),
            });
        }
        let verdicts = request_verdicts(backend.judge, self.module, Question::Operators, &asked);
        let mut accepted = Vec::new();
        for (candidate, verdict) in asked.iter().zip(verdicts) {
            match verdict {
                Verdict::Supported | Verdict::Split(_) => accepted.push(candidate.outputs[0]),
                Verdict::Refused(refusal) => self.refusals.add(by, candidate.outputs[0], refusal),
            }
        }
        accepted
    }

    /// Merges the units that a backend accepted into regions, and requests a verdict on each region.
    fn form_regions(&mut self, by: u32, backend: &mut Backend<'_>, accepted: &[ExprId]) {
        if accepted.is_empty() {
            return;
        }
        let order = self.grouping.order();
        let mut own = IndexVec::<ExprId, bool>::filled(false, self.module.nodes.len());
        accepted.iter().for_each(|&id| own[id] = true);
        self.add_tuples(&order, &mut own);
        let first = self.regions.len();
        self.merge_regions(&order, &own, by);
        // Each round requests verdicts on the parts of the regions that the last round split; the parts are smaller.
        let mut open: Vec<usize> = (first..self.regions.len()).collect();
        while !open.is_empty() {
            open = self.judge_regions(by, backend, &open);
        }
    }

    /// Requests the backend's verdicts on regions. Returns the parts of the regions that the backend wants split.
    fn judge_regions(&mut self, by: u32, backend: &mut Backend<'_>, regions: &[usize]) -> Vec<usize> {
        let mut candidates = Vec::with_capacity(regions.len());
        let mut asked = Vec::with_capacity(regions.len());
        for &at in regions {
            let candidate = self.candidate(at);
            if self.is_callable(&candidate) {
                asked.push(at);
                candidates.push(candidate);
            } else {
                let (inputs, outputs) = (candidate.inputs.len(), candidate.outputs.len());
                let detail =
                    format!("expected a region that fits a function type, found {inputs} inputs and {outputs} outputs");
                self.refuse_region(by, at, &candidate, Refusal::new(RefusalCode::ResourceLimit, detail));
            }
        }
        let verdicts = request_verdicts(backend.judge, self.module, Question::Regions, &candidates);
        let mut parts = Vec::new();
        for ((at, candidate), verdict) in asked.into_iter().zip(&candidates).zip(verdicts) {
            let refused = |code: &dyn std::fmt::Display, detail: &str, hint: &str| Refusal {
                hint: hint.to_owned(),
                ..Refusal::new(RefusalCode::RegionRefused, format!("{code}: {detail}"))
            };
            match verdict {
                Verdict::Supported => {
                    for &unit in &self.regions[at].nodes {
                        self.grouping.claim(unit, by);
                    }
                }
                Verdict::Split(size) => match self.split(by, at, size) {
                    Some(of_region) => parts.extend(of_region),
                    None => {
                        let detail = format!("expected parts smaller than the region, found a part size of {size}");
                        self.refuse_region(by, at, candidate, refused(&"Split", &detail, ""));
                    }
                },
                Verdict::Refused(Refusal { code, detail, hint }) => {
                    self.refuse_region(by, at, candidate, refused(&code, &detail, &hint));
                }
            }
        }
        parts
    }

    /// Splits a region into parts of at most `size` units, in the order of the expressions: every value flows from a
    /// part to itself or to a later one, so no cycle arises. Returns `None` if no part would be smaller than the
    /// region.
    fn split(&mut self, by: u32, at: usize, size: usize) -> Option<Vec<usize>> {
        let units = std::mem::take(&mut self.regions[at].nodes);
        let counts =
            |unit: ExprId| !matches!(self.grouping.graph.expr(unit), Some(Expr::Project { .. } | Expr::Tuple(_)));
        let count = units.iter().filter(|unit| counts(**unit)).count();
        if size == 0 || count <= size {
            self.regions[at].nodes = units;
            return None;
        }
        // A tuple stays in the part of its user and a projection in the part of its tuple, so that parts exchange
        // tensors.
        let mut part: HashMap<ExprId, usize> = HashMap::new();
        let mut before = 0;
        for &unit in &units {
            let number = match self.grouping.graph.expr(unit) {
                Some(Expr::Project { tuple, .. }) => part.get(tuple).copied().unwrap_or(before / size),
                Some(Expr::Tuple(_)) => before.min(count - 1) / size,
                _ => {
                    before += 1;
                    (before - 1) / size
                }
            };
            part.insert(unit, number);
        }
        for &unit in units.iter().rev().filter(|unit| matches!(self.grouping.graph.expr(**unit), Some(Expr::Tuple(_))))
        {
            if let Some(user) = self.grouping.graph.users(unit).next().and_then(|user| part.get(&user)) {
                part.insert(unit, *user);
            }
        }
        let first = self.regions.len();
        let parts: Vec<usize> = std::iter::once(at).chain(first..first + (count - 1) / size).collect();
        for _ in &parts[1..] {
            let empty = RegionReport { nodes: ExprIds::new(), ..self.regions[at].clone() };
            self.regions.push(empty);
            self.owner.push(by);
        }
        for unit in units {
            let region = parts[part[&unit]];
            self.regions[region].nodes.push(unit);
            self.region[unit] = Some(region as u32);
        }
        let mut known: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        parts.iter().for_each(|&region| self.compute_inputs_and_outputs(region, &mut known));
        Some(parts)
    }

    /// Merges the expressions of `own` into regions as large as possible without creating a cycle, and appends the
    /// regions.
    fn merge_regions(&mut self, order: &[ExprId], own: &IndexVec<ExprId, bool>, by: u32) {
        // One graph node per existing region, and one per expression outside regions.
        let mut nodes = 0;
        let mut node_of: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        let mut region_node: Vec<Option<u32>> = vec![None; self.regions.len()];
        for &id in order {
            let mut next = || {
                nodes += 1;
                nodes - 1
            };
            node_of[id] = Some(match self.region[id] {
                Some(region) => *region_node[region as usize].get_or_insert_with(next),
                None => next(),
            });
        }
        let mut edges = Vec::new();
        for &id in order {
            self.for_each_flow(id, |from, to| {
                if let (Some(from), Some(to)) = (node_of[from], node_of[to]) {
                    edges.push((from, to));
                }
            });
        }
        let mut graph = RegionGraph::new(nodes as usize, edges);
        let owned = || order.iter().copied().filter(|&id| own[id]);
        for id in owned() {
            self.grouping.graph.for_each_operand(id, |operand| {
                if own[operand]
                    && self.bodies.are_in_same_body(operand, id)
                    && let (Some(from), Some(to)) = (node_of[operand], node_of[id])
                {
                    graph.merge(from, to);
                }
            });
        }
        let (unnamed, backend) = (Name::from(""), self.refusals.name(by).clone());
        let first = self.regions.len();
        let mut found: Vec<Option<u32>> = vec![None; nodes as usize];
        for id in owned() {
            let Some(node) = node_of[id] else { continue };
            let at = *found[graph.find(node) as usize].get_or_insert_with(|| {
                self.owner.push(by);
                self.regions.push(RegionReport {
                    symbol: unnamed.clone(),
                    backend: backend.clone(),
                    nodes: ExprIds::new(),
                    composites: Vec::new(),
                    inputs: ExprIds::new(),
                    outputs: ExprIds::new(),
                });
                self.regions.len() as u32 - 1
            });
            self.regions[at as usize].nodes.push(id);
            self.region[id] = Some(at);
        }
        let mut known: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        for at in first..self.regions.len() {
            self.compute_inputs_and_outputs(at, &mut known);
        }
    }

    /// Frees the operators of a refused region for other backends and records the reason.
    fn refuse_region(&mut self, by: u32, at: usize, candidate: &Candidate, refusal: Refusal) {
        let refusal = Arc::new(refusal);
        candidate.nodes.iter().for_each(|&node| self.refusals.add_shared(by, node, &refusal));
        candidate.composites.iter().for_each(|composite| self.grouping.dissolve(composite.root));
        let RegionReport { nodes, inputs, outputs, .. } = &mut self.regions[at];
        nodes.iter().for_each(|&unit| self.region[unit] = None);
        [nodes, inputs, outputs].into_iter().for_each(|ids| *ids = ExprIds::new());
    }

    /// Returns true if the function type of the candidate is within the size limit of types.
    fn is_callable(&self, candidate: &Candidate) -> bool {
        let ty = |&id: &ExprId| self.module.ty(id);
        let ports = candidate.inputs.len() + candidate.outputs.len();
        if ports < Type::MAX_PARTS / 2
            && candidate.inputs.iter().chain(&candidate.outputs).all(|id| matches!(ty(id), Type::Tensor(_)))
        {
            return true;
        }
        let params: Box<[Type]> = candidate.inputs.iter().map(|id| ty(id).clone()).collect();
        let ret = Type::tuple(candidate.outputs.iter().map(|id| ty(id).clone()));
        Type::func(FuncType::new(params, ret)).is_within_limits()
    }

    /// Adds to `own` the projections of accepted expressions, and the tuples whose only user is accepted.
    fn add_tuples(&self, order: &[ExprId], own: &mut IndexVec<ExprId, bool>) {
        let graph = &self.grouping.graph;
        for &id in order {
            if let Some(Expr::Project { tuple, .. }) = graph.expr(id)
                && own[*tuple]
                && self.bodies.are_in_same_body(*tuple, id)
            {
                own[id] = true;
            }
        }
        for &id in order.iter().rev() {
            if let Some(Expr::Tuple(_)) = graph.expr(id) {
                let mut users = graph.users(id);
                if let Some(user) = users.next()
                    && own[user]
                    && self.bodies.are_in_same_body(id, user)
                    && users.all(|other| other == user)
                {
                    own[id] = true;
                }
            }
        }
    }

    fn for_each_flow(&self, id: ExprId, mut edge: impl FnMut(ExprId, ExprId)) {
        match self.grouping.graph.expr(id) {
            Some(Expr::Let { .. } | Expr::Function(_) | Expr::Match(_)) => for_each_flow(self.module, id, edge),
            _ => self.grouping.graph.for_each_operand(id, |operand| edge(operand, id)),
        }
    }

    /// Computes the inputs and outputs of a region. `known` holds, for each expression, the last region that has the
    /// expression as an input.
    fn compute_inputs_and_outputs(&mut self, at: usize, known: &mut IndexVec<ExprId, Option<u32>>) {
        let this = Some(at as u32);
        let (mut inputs, mut outputs) = (ExprIds::new(), ExprIds::new());
        self.regions[at].nodes.sort_unstable();
        for &unit in &self.regions[at].nodes {
            self.grouping.graph.for_each_operand(unit, |operand| {
                if self.region[operand] != this && known[operand] != this && !is_duplicable(self.module.expr(operand)) {
                    known[operand] = this;
                    inputs.push(operand);
                }
            });
            if self.grouping.graph.users(unit).any(|user| self.region[user] != this) {
                outputs.push(unit);
            }
        }
        (self.regions[at].inputs, self.regions[at].outputs) = (inputs, outputs);
    }

    fn candidate(&self, at: usize) -> Candidate {
        let region = &self.regions[at];
        let composites = self.composites_of(&region.nodes);
        let users = |&output: &ExprId| {
            self.grouping.graph.users(output).filter(|&user| self.region[user] != Some(at as u32)).count()
        };
        Candidate {
            nodes: self.nodes_of(&region.nodes, &composites).into_vec(),
            inputs: region.inputs.to_vec(),
            outputs: region.outputs.to_vec(),
            outside_users: region.outputs.iter().map(users).sum(),
            composites,
        }
    }

    fn composites_of(&self, units: &[ExprId]) -> Vec<Composite> {
        let composites = units.iter().filter_map(|unit| self.grouping.groups.get(unit));
        composites.map(|group| group.composite.clone()).collect()
    }

    /// Returns the nodes of a region in ascending order, including the constants that its units use.
    fn nodes_of(&self, units: &[ExprId], composites: &[Composite]) -> ExprIds {
        let mut nodes = ExprIds::with_capacity(units.len());
        nodes.extend(units.iter().copied().filter(|unit| !self.grouping.groups.contains_key(unit)));
        composites.iter().for_each(|composite| nodes.extend_from_slice(&composite.nodes));
        for &unit in units {
            self.grouping.graph.for_each_operand(unit, |operand| {
                if matches!(self.module.expr(operand), Expr::Constant(_)) {
                    nodes.push(operand);
                }
            });
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Records a reason for each operator that the backend neither accepted nor refused. `free` holds the operators
    /// that were free before the backend gave its verdicts.
    fn record_missing_refusals(&mut self, by: u32, backend: &Backend<'_>, free: &[ExprId]) {
        let inside = self.region_of_each();
        let mut named: HashMap<OpId, Vec<&Entry>> = HashMap::new();
        for entry in backend.table {
            for op in entry.pattern.named_ops() {
                named.entry(op).or_default().push(entry);
            }
        }
        let mut unmatched: HashMap<OpId, Arc<Refusal>> = HashMap::new();
        for &id in free {
            if inside[id].is_some() || self.refusals.has(by, id) {
                continue;
            }
            let Some((op, _)) = self.module.expr(id).as_op_call() else { continue };
            let refusal = unmatched.entry(op).or_insert_with(|| {
                let entries = named.get(&op).map(Vec::as_slice).unwrap_or_default();
                Arc::new(no_match(&backend.name, op::get(op).name, entries))
            });
            self.refusals.add_shared(by, id, refusal);
        }
        // Refusals of the operators that are assigned to an earlier backend.
        let first: Vec<Arc<Refusal>> = (0..by)
            .map(|owner| format!("assigned to {}, which has higher priority", self.refusals.name(owner)))
            .map(|detail| Arc::new(Refusal::new(RefusalCode::LowerPriority, detail)))
            .collect();
        for (id, region) in inside.iter() {
            if let Some(region) = region
                && let Some(refusal) = first.get(self.owner[*region as usize] as usize)
                && !self.refusals.has(by, id)
                && self.module.expr(id).as_op_call().is_some()
            {
                self.refusals.add_shared(by, id, refusal);
            }
        }
    }

    /// Returns the region of each expression, including the expressions inside composites.
    fn region_of_each(&self) -> IndexVec<ExprId, Option<u32>> {
        let mut inside = self.region.clone();
        for (root, group) in &self.grouping.groups {
            if let Some(region) = self.region[*root] {
                group.composite.nodes.iter().for_each(|&node| inside[node] = Some(region));
            }
        }
        inside
    }

    /// Rebuilds the module with each region as a call to its function.
    fn finish(mut self, operators: Vec<ExprId>, module_name: &str) -> Result<(Module, Report), Box<Diagnostic>> {
        let numbering = self.number_regions();
        let order = self.contracted_order();
        // A region without a used result gets no function.
        let mut is_made = vec![false; self.regions.len()];
        order.iter().filter_map(|&id| self.region[id]).for_each(|region| is_made[region as usize] = true);
        let operators = self.report(operators, &is_made);
        // The new module dominates memory use, so everything not needed to build it is freed first.
        self.bodies = Bodies::of(&Module::new());
        self.grouping.forget_users();
        // Values of expressions inside the region that is being built, and values of the outputs of finished regions.
        let mut inner: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, self.module.nodes.len());
        let mut outer: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, self.module.nodes.len());
        let mut shared = Shared::default();
        let module = Rebuild::run_in_order(self.module, order, |rebuild, id, _| {
            let Some(at) = self.region[id].map(|region| region as usize) else { return Ok(None) };
            if self.regions[at].symbol.is_empty() {
                let (function, number) = numbering[at];
                let naming =
                    Naming { module: module_name, function: self.grouping.function_name(function), region: number };
                let symbol =
                    self.build_function(rebuild, &mut shared, &self.regions[at], naming, &mut inner, &mut outer);
                self.regions[at].symbol = symbol;
            }
            Ok(outer[id])
        })?;
        drop((inner, outer, numbering));
        let mut regions = std::mem::take(&mut self.regions);
        regions.retain(|region| !region.symbol.is_empty());
        regions.sort_unstable_by_key(|region| region.nodes[0]);
        for region in &mut regions {
            region.composites = self.composites_of(&region.nodes);
            region.nodes = self.nodes_of(&region.nodes, &region.composites);
        }
        Ok((module, Report { operators, regions }))
    }

    /// Returns, for each region, the global function of its first expression, and the number of the region in that
    /// function, in evaluation order.
    fn number_regions(&mut self) -> Vec<(u32, u32)> {
        const NONE: (u32, u32) = (0, u32::MAX);
        let order = self.grouping.order();
        let mut numbers = vec![NONE; self.regions.len()];
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for &id in &order {
            if let Some(region) = self.region[id]
                && numbers[region as usize] == NONE
            {
                let function = self.grouping.function_of(id);
                let count = counts.entry(function).or_default();
                numbers[region as usize] = (function, *count);
                *count += 1;
            }
        }
        numbers
    }

    /// Returns the expressions outside regions and the outputs of regions, each after all of its dependencies.
    fn contracted_order(&self) -> Vec<ExprId> {
        let mut entered = IndexVec::<ExprId, bool>::filled(false, self.module.nodes.len());
        let mut order = Vec::new();
        let mut stack: Vec<(ExprId, bool)> = self.module.globals.values().rev().map(|&root| (root, false)).collect();
        while let Some((id, leave)) = stack.pop() {
            if leave {
                order.push(id);
                continue;
            }
            if std::mem::replace(&mut entered[id], true) {
                continue;
            }
            stack.push((id, true));
            let first = stack.len();
            match self.region[id] {
                Some(region) => {
                    stack.extend(self.regions[region as usize].inputs.iter().map(|&input| (input, false)));
                }
                None => self.grouping.graph.for_each_operand(id, |operand| stack.push((operand, false))),
            }
            stack[first..].reverse();
        }
        order
    }

    fn build_function(
        &self,
        rebuild: &mut Rebuild<'_>,
        shared: &mut Shared,
        region: &RegionReport,
        naming: Naming<'_>,
        inner: &mut IndexVec<ExprId, Option<ExprId>>,
        outer: &mut IndexVec<ExprId, Option<ExprId>>,
    ) -> Name {
        let mut params = ExprList::with_capacity(region.inputs.len());
        let mut args = ExprList::with_capacity(region.inputs.len());
        let target = region.backend.clone();
        let prefix = format!("{}_{}", sanitize(&target), naming.region);
        for (k, &input) in region.inputs.iter().enumerate() {
            let param = rebuild.new.var(format!("{prefix}_i{k}"), self.module.ty(input).clone());
            inner[input] = Some(param);
            params.push(param);
            args.push(rebuild.get(input));
        }
        let mut origins = Vec::new();
        for &unit in &region.nodes {
            let node = &self.module.nodes[unit];
            let inside = |rebuild: &mut Rebuild<'_>, id: ExprId| inner[id].unwrap_or_else(|| rebuild.get_or_copy(id));
            let new = match self.grouping.groups.get(&unit) {
                Some(group) => {
                    origins.extend(group.composite.nodes.iter().map(|&inside| self.module.nodes[inside].origin));
                    emit(rebuild, group, inside)
                }
                None => {
                    origins.push(node.origin);
                    let mut expr = node.expr.clone();
                    expr.map_operands(|operand| inside(rebuild, operand));
                    rebuild.new.module.push_typed(expr, node.ty.clone(), node.origin)
                }
            };
            inner[unit] = Some(new);
        }
        let outputs: ExprList = region.outputs.iter().filter_map(|&output| inner[output]).collect();
        region.inputs.iter().chain(&region.nodes).for_each(|&id| inner[id] = None);
        let origin = rebuild.new.module.origins.union_all(origins);
        let outline = Outline { naming, target, params, outputs };
        let (symbol, results) = define_and_call(rebuild, shared, outline, &args, origin);
        for (&output, result) in region.outputs.iter().zip(results) {
            outer[output] = Some(result);
        }
        symbol
    }

    /// Returns the reports of the operators. The index of a region counts only the regions that are built, ordered by
    /// first expression.
    fn report(&mut self, operators: Vec<ExprId>, is_made: &[bool]) -> Vec<OperatorReport> {
        let inside = self.region_of_each();
        let mut first: Vec<(ExprId, u32)> = Vec::new();
        for (i, region) in self.regions.iter().enumerate().filter(|&(i, _)| is_made[i]) {
            first.push((region.nodes[0], i as u32));
        }
        first.sort_unstable();
        let mut place: Vec<Option<u32>> = vec![None; self.regions.len()];
        first.iter().enumerate().for_each(|(to, &(_, from))| place[from as usize] = Some(to as u32));
        let mut refusals = self.refusals.take();
        let report = |expr: ExprId| {
            let region = inside[expr].map(|region| region as usize);
            let region = region.and_then(|from| Some((place[from]?, self.owner[from])));
            // If the operator is assigned, the refusals by other patterns of the same backend are irrelevant.
            let own = region.map(|(_, backend)| backend);
            OperatorReport {
                expr,
                region: region.map(|(to, _)| to as usize),
                refusals: refusals.refusals_of(expr, own),
            }
        };
        operators.into_iter().map(report).collect()
    }
}

/// Returns the refusal of an operator that no pattern of a backend matched.
fn no_match(backend: &str, operator: &str, entries: &[&Entry]) -> Refusal {
    let names: Vec<&str> = entries.iter().take(3).map(|entry| &*entry.name).collect();
    let detail = match entries.len() {
        0 => format!("{backend} has no pattern with {operator} and does not support it alone"),
        count => {
            let more = if count > 3 { format!(" and {} more", count - 3) } else { String::new() };
            format!("{operator} occurs in {}{more}, but no pattern matches here", names.join(", "))
        }
    };
    Refusal::new(RefusalCode::NoPatternMatch, detail)
}

/// Returns true if an expression denotes the same value inside and outside a region and thus needs no parameter.
fn is_duplicable(expr: &Expr) -> bool {
    expr.is_closed_leaf()
}
