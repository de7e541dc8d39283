//! Partitioning for backends in priority order. Every operator is assigned to a backend, or reported with reasons.
//!
//! Each backend in turn gives verdicts on the operators that are still free: first on the matches of its pattern table,
//! then on single operators, then on the regions formed from the accepted units. Refused operators stay free for the
//! next backend. All backends work on one graph over the original module, which is rebuilt once at the end. Regions
//! grow along edges from producer to consumer wherever that creates no cycle, but never across functions or let bodies.
//! A projection joins the region of its tuple, and a tuple with one user joins the region of that user, so that regions
//! exchange tensors rather than tuples.

use super::super::grouping::{Grouping, emit};
use super::super::judge::{
    Candidate, Claims, Composite, Judge, Question, Refusal, RefusalCode, Verdict, request_verdicts,
};
use super::super::merge_graph::MergeGraph;
use super::super::outline::{Naming, Outline, OutlineCache, define_and_call, sanitize};
use super::claims::{self, Places, WithinSets};
use super::control_flow::{ControlFlow, group_control_flow};
use super::near_miss::{NearMiss, NearMisses};
use super::refusals::RefusalLog;
use super::report::{ExprIds, NearMissReport, OperatorReport, RegionReport, Report};
use crate::analysis::scope::Bodies;
use crate::pattern::{Entry, Graph, PatternNode};
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
    /// Control flow that may be part of a region.
    pub control_flow: ControlFlow,
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
        operators: Vec::new(),
        ungrouped: None,
        near_misses: Vec::new(),
    };
    partitioner.grouping.set_owner_names(backends.iter().map(|backend| backend.name.clone()).collect());
    partitioner.operators = partitioner.grouping.free_operators();
    for (index, backend) in backends.iter_mut().enumerate() {
        partitioner.assign(index as u32, backend);
    }
    partitioner.finish(module_name)
}

struct Partitioner<'m> {
    module: &'m Module,
    grouping: Grouping<'m>,
    bodies: Bodies,
    /// Region of each unit. A unit is the root of a composite, or a single expression.
    region: IndexVec<ExprId, Option<u32>>,
    /// Reports of the regions. During partitioning, `nodes` holds units instead of expressions; a refused region is
    /// empty.
    regions: Vec<RegionReport>,
    /// Backend of each region, as an index in priority order.
    owner: Vec<u32>,
    refusals: RefusalLog,
    /// Operator calls of the module.
    operators: Vec<ExprId>,
    /// Graph of the module without groups, for near misses.
    ungrouped: Option<Graph<'m>>,
    /// Near misses of operators, some of which are assigned to the backend after all.
    near_misses: Vec<NearMissReport>,
}

impl Partitioner<'_> {
    /// Assigns the free operators that a backend accepts to that backend.
    fn assign(&mut self, backend_index: u32, backend: &mut Backend<'_>) {
        let free_operators = self.grouping.free_operators();
        if let Some(claims) = self.claims(backend, &free_operators) {
            return self.assign_claims(backend_index, backend, &claims, &free_operators);
        }
        let previous_groups: HashSet<ExprId> = self.grouping.groups.keys().copied().collect();
        let refusals = &mut self.refusals;
        group_control_flow(
            &mut self.grouping,
            (&backend.name, backend.control_flow),
            backend.judge,
            &mut |id, refusal| refusals.add(backend_index, id, refusal),
        );
        for entry in backend.table {
            let mut refused = RefusedMatches::new(entry, &backend.name, &mut self.near_misses);
            if !matches!(entry.pattern.nodes[entry.pattern.root], PatternNode::Function { .. }) {
                self.grouping.apply(entry, backend.judge, &mut |id, refusal| {
                    refused.add(id, &refusal);
                    refusals.add(backend_index, id, refusal);
                });
            }
        }
        let mut new_groups: Vec<ExprId> =
            self.grouping.groups.keys().copied().filter(|root| !previous_groups.contains(root)).collect();
        new_groups.extend(self.accepted_operators(backend_index, backend));
        self.form_regions(backend_index, backend, &new_groups);
        self.record_missing_refusals(backend_index, backend, &free_operators);
    }

    /// Returns the place of each operator.
    fn places(&self, free_operators: &[ExprId]) -> Places<'_> {
        Places {
            operators: &self.operators,
            free: free_operators.iter().copied().collect(),
            region_of: self.region_of_each(),
            owners: self.owner.iter().map(|&owner| self.refusals.name(owner).clone()).collect(),
        }
    }

    /// Returns the claims of a backend that sees the whole module; `None` if the backend states none.
    fn claims(&self, backend: &mut Backend<'_>, free_operators: &[ExprId]) -> Option<Claims> {
        let mut bodies = || claims::bodies_of(&self.grouping, &self.bodies, &self.places(free_operators));
        backend.judge.claims(self.module, &mut bodies)
    }

    /// Assigns the sets of operators that a backend claims, each as one region, in which matches of the backend's
    /// patterns are composites.
    fn assign_claims(
        &mut self,
        backend_index: u32,
        backend: &mut Backend<'_>,
        claims: &Claims,
        free_operators: &[ExprId],
    ) {
        let places = Places { operators: &[], ..self.places(free_operators) };
        let checked = claims::check(&mut self.grouping, &self.bodies, &places, claims);
        for (id, refusal) in checked.refusals {
            self.refusals.add(backend_index, id, refusal);
        }
        let mut judge = WithinSets { judge: backend.judge, set_of: &checked.set_of };
        for entry in backend.table {
            if !matches!(entry.pattern.nodes[entry.pattern.root], PatternNode::Function { .. }) {
                self.grouping.apply(entry, &mut judge, &mut |_, _| {});
            }
        }
        let first = self.regions.len();
        let name = self.refusals.name(backend_index).clone();
        self.regions.extend((0..checked.count).map(|_| empty_region(&name)));
        self.owner.resize(self.regions.len(), backend_index);
        let mut cache: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        for id in self.grouping.order().into_iter().filter(|&id| checked.set_of[id] > 0) {
            let region = first + checked.set_of[id] as usize - 1;
            self.regions[region].nodes.push(id);
            self.region[id] = Some(region as u32);
        }
        let is_used = |region: &usize| !self.regions[*region].nodes.is_empty();
        let mut pending: Vec<usize> = (first..self.regions.len()).filter(is_used).collect();
        pending.iter().for_each(|&region| self.compute_inputs_and_outputs(region, &mut cache));
        while !pending.is_empty() {
            // A region is the first that the backend judges of its operators, so a refusal keeps its code.
            pending = self.judge_regions(backend_index, backend, &pending, |refusal| refusal);
        }
        let region_of = self.region_of_each();
        if let Some(refusal) = claims.otherwise.clone().map(Arc::new) {
            for &id in free_operators {
                if region_of[id].is_none() && !self.refusals.has(backend_index, id) {
                    self.refusals.add_shared(backend_index, id, &refusal);
                }
            }
        }
        self.record_missing_refusals(backend_index, backend, free_operators);
    }

    /// Returns the free operators that the backend accepts as single operators.
    fn accepted_operators(&mut self, backend_index: u32, backend: &mut Backend<'_>) -> Vec<ExprId> {
        let operators: HashSet<OpId> = backend.operators.iter().filter_map(|name| op::lookup(name)).collect();
        let mut candidates = Vec::new();
        for id in self.grouping.free_operators() {
            let Some((op, call)) = self.module.expr(id).as_op_call() else { continue };
            // A region formed from a call without arguments would have no inputs.
            if !operators.contains(&op) || call.args.is_empty() {
                continue;
            }
            let mut inputs = Vec::new();
            let mut nodes = Vec::new();
            let is_constant = |id: ExprId| matches!(self.module.expr(id), Expr::Constant(_));
            for &arg in &call.args {
                match self.module.expr(arg) {
                    Expr::Constant(_) => nodes.push(arg),
                    Expr::Tuple(fields) if fields.iter().all(|&field| is_constant(field)) => {
                        nodes.extend(fields.iter().copied().chain([arg]));
                    }
                    _ => inputs.push(arg),
                }
            }
            nodes.push(id);
            // An operand may occur more than once.
            for list in [&mut nodes, &mut inputs] {
                let mut seen = HashSet::new();
                list.retain(|&id| seen.insert(id));
            }
            candidates.push(Candidate {
                nodes,
                inputs,
                outputs: vec![id],
                outside_users: self.grouping.graph.users(id).count(),
                composites: Vec::new(),
            });
        }
        let verdicts = request_verdicts(backend.judge, self.module, Question::Operators, &candidates);
        let mut accepted = Vec::new();
        for (candidate, verdict) in candidates.iter().zip(verdicts) {
            match verdict {
                Verdict::Supported | Verdict::Split(_) => accepted.push(candidate.outputs[0]),
                Verdict::Refused(refusal) => self.refusals.add(backend_index, candidate.outputs[0], refusal),
            }
        }
        accepted
    }

    /// Merges the units that a backend accepted into regions, and requests a verdict on each region.
    fn form_regions(&mut self, backend_index: u32, backend: &mut Backend<'_>, accepted: &[ExprId]) {
        if accepted.is_empty() {
            return;
        }
        let order = self.grouping.order();
        let mut is_assigned = IndexVec::<ExprId, bool>::filled(false, self.module.nodes.len());
        accepted.iter().for_each(|&id| is_assigned[id] = true);
        self.add_tuples(&order, &mut is_assigned);
        let first = self.regions.len();
        self.merge_regions(&order, &is_assigned, backend_index);
        // Each round requests verdicts on the parts of the regions that the previous round split. A part is smaller
        // than its region, so the loop terminates.
        let mut pending: Vec<usize> = (first..self.regions.len()).collect();
        while !pending.is_empty() {
            pending = self.judge_regions(backend_index, backend, &pending, refused_region);
        }
    }

    /// Requests the backend's verdicts on regions. Splits the regions that are too large for the backend, and returns
    /// their parts. `reason` converts the refusal of a region to that of its operators.
    fn judge_regions(
        &mut self,
        backend_index: u32,
        backend: &mut Backend<'_>,
        regions: &[usize],
        reason: impl Fn(Refusal) -> Refusal,
    ) -> Vec<usize> {
        let mut candidates = Vec::with_capacity(regions.len());
        let mut candidate_regions = Vec::with_capacity(regions.len());
        for &region_index in regions {
            let candidate = self.candidate(region_index);
            if self.is_callable(&candidate) {
                candidate_regions.push(region_index);
                candidates.push(candidate);
            } else {
                let (inputs, outputs) = (candidate.inputs.len(), candidate.outputs.len());
                let detail = format!("the region's function type is too large (inputs: {inputs}, outputs: {outputs})");
                self.refuse_region(
                    backend_index,
                    region_index,
                    &candidate,
                    Refusal::new(RefusalCode::ResourceLimit, detail),
                );
            }
        }
        let verdicts = request_verdicts(backend.judge, self.module, Question::Regions, &candidates);
        let mut parts = Vec::new();
        for ((region_index, candidate), verdict) in candidate_regions.into_iter().zip(&candidates).zip(verdicts) {
            match verdict {
                Verdict::Supported => {
                    for &unit in &self.regions[region_index].nodes {
                        self.grouping.claim(unit, backend_index);
                    }
                }
                Verdict::Split(size) => match self.split(backend_index, region_index, size) {
                    Some(region_parts) => parts.extend(region_parts),
                    None => {
                        let detail = format!("expected a part size >= 1 and smaller than the region, found {size}");
                        let refusal = Refusal::new(RefusalCode::RegionRefused, format!("Split: {detail}"));
                        self.refuse_region(backend_index, region_index, candidate, refusal);
                    }
                },
                Verdict::Refused(refusal) => {
                    self.refuse_region(backend_index, region_index, candidate, reason(refusal));
                }
            }
        }
        parts
    }

    /// Splits a region into parts of at most `size` units, in the order of the expressions: every value flows from a
    /// part to itself or to a later one, so no cycle arises. Returns `None` if no part would be smaller than the
    /// region.
    fn split(&mut self, backend_index: u32, region_index: usize, size: usize) -> Option<Vec<usize>> {
        let units = std::mem::take(&mut self.regions[region_index].nodes);
        let counts =
            |unit: ExprId| !matches!(self.grouping.graph.expr(unit), Some(Expr::Project { .. } | Expr::Tuple(_)));
        let count = units.iter().filter(|unit| counts(**unit)).count();
        if size == 0 || count <= size {
            self.regions[region_index].nodes = units;
            return None;
        }
        // A tuple stays in the part of its user and a projection in the part of its tuple, so that parts exchange
        // tensors rather than tuples.
        let mut part: HashMap<ExprId, usize> = HashMap::new();
        let mut unit_count = 0;
        for &unit in &units {
            let number = match self.grouping.graph.expr(unit) {
                Some(Expr::Project { tuple, .. }) => part.get(tuple).copied().unwrap_or(unit_count / size),
                Some(Expr::Tuple(_)) => unit_count.min(count - 1) / size,
                _ => {
                    unit_count += 1;
                    (unit_count - 1) / size
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
        let parts: Vec<usize> = std::iter::once(region_index).chain(first..first + (count - 1) / size).collect();
        for _ in &parts[1..] {
            let empty_report = RegionReport { nodes: ExprIds::new(), ..self.regions[region_index].clone() };
            self.regions.push(empty_report);
            self.owner.push(backend_index);
        }
        for unit in units {
            let region = parts[part[&unit]];
            self.regions[region].nodes.push(unit);
            self.region[unit] = Some(region as u32);
        }
        let mut cache: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        parts.iter().for_each(|&region| self.compute_inputs_and_outputs(region, &mut cache));
        Some(parts)
    }

    /// Merges the expressions marked in `is_assigned` into regions that are as large as possible without creating a
    /// cycle, and appends the regions.
    fn merge_regions(&mut self, order: &[ExprId], is_assigned: &IndexVec<ExprId, bool>, backend_index: u32) {
        // One graph node per existing region, and one per expression outside regions.
        let mut nodes = 0;
        let mut node_of: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        let mut region_node: Vec<Option<u32>> = vec![None; self.regions.len()];
        for &id in order {
            let mut next_node = || {
                nodes += 1;
                nodes - 1
            };
            node_of[id] = Some(match self.region[id] {
                Some(region) => *region_node[region as usize].get_or_insert_with(next_node),
                None => next_node(),
            });
        }
        let mut edges = Vec::new();
        for &id in order {
            self.grouping.for_each_flow(id, |producer, consumer| {
                if let (Some(producer), Some(consumer)) = (node_of[producer], node_of[consumer]) {
                    edges.push((producer, consumer));
                }
            });
        }
        let mut graph = MergeGraph::new(nodes as usize, edges);
        let assigned_ids = || order.iter().copied().filter(|&id| is_assigned[id]);
        for id in assigned_ids() {
            self.grouping.graph.for_each_operand(id, |operand| {
                if is_assigned[operand]
                    && self.bodies.are_in_same_body(operand, id)
                    && let (Some(producer), Some(consumer)) = (node_of[operand], node_of[id])
                {
                    graph.merge(producer, consumer);
                }
            });
        }
        let backend = self.refusals.name(backend_index).clone();
        let first = self.regions.len();
        let mut region_of_node: Vec<Option<u32>> = vec![None; nodes as usize];
        for id in assigned_ids() {
            let Some(node) = node_of[id] else { continue };
            let region_index = *region_of_node[graph.find(node) as usize].get_or_insert_with(|| {
                self.owner.push(backend_index);
                self.regions.push(empty_region(&backend));
                self.regions.len() as u32 - 1
            });
            self.regions[region_index as usize].nodes.push(id);
            self.region[id] = Some(region_index);
        }
        let mut cache: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        for region_index in first..self.regions.len() {
            self.compute_inputs_and_outputs(region_index, &mut cache);
        }
    }

    /// Frees the operators of a refused region for other backends and records the reason.
    fn refuse_region(&mut self, backend_index: u32, region_index: usize, candidate: &Candidate, refusal: Refusal) {
        let refusal = Arc::new(refusal);
        candidate.nodes.iter().for_each(|&node| self.refusals.add_shared(backend_index, node, &refusal));
        candidate.composites.iter().for_each(|composite| self.grouping.dissolve(composite.root));
        let RegionReport { nodes, inputs, outputs, .. } = &mut self.regions[region_index];
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

    /// Adds to `is_assigned` the projections of accepted expressions, and the tuples whose only user is accepted.
    fn add_tuples(&self, order: &[ExprId], is_assigned: &mut IndexVec<ExprId, bool>) {
        let graph = &self.grouping.graph;
        for &id in order {
            if let Some(Expr::Project { tuple, .. }) = graph.expr(id)
                && is_assigned[*tuple]
                && self.bodies.are_in_same_body(*tuple, id)
            {
                is_assigned[id] = true;
            }
        }
        for &id in order.iter().rev() {
            if let Some(Expr::Tuple(_)) = graph.expr(id) {
                let mut users = graph.users(id);
                if let Some(user) = users.next()
                    && is_assigned[user]
                    && self.bodies.are_in_same_body(id, user)
                    && users.all(|other| other == user)
                {
                    is_assigned[id] = true;
                }
            }
        }
    }

    /// Computes the inputs and outputs of a region. `cache` holds, for each expression, the last region that has the
    /// expression as an input.
    fn compute_inputs_and_outputs(&mut self, region_index: usize, cache: &mut IndexVec<ExprId, Option<u32>>) {
        let region = Some(region_index as u32);
        let (mut inputs, mut outputs) = (ExprIds::new(), ExprIds::new());
        self.regions[region_index].nodes.sort_unstable();
        for &unit in &self.regions[region_index].nodes {
            self.grouping.graph.for_each_operand(unit, |operand| {
                if self.region[operand] != region
                    && cache[operand] != region
                    && !is_duplicable(self.module.expr(operand))
                {
                    cache[operand] = region;
                    inputs.push(operand);
                }
            });
            if self.grouping.graph.users(unit).any(|user| self.region[user] != region) {
                outputs.push(unit);
            }
        }
        (self.regions[region_index].inputs, self.regions[region_index].outputs) = (inputs, outputs);
    }

    fn candidate(&self, region_index: usize) -> Candidate {
        let region = &self.regions[region_index];
        let composites = self.composites_of(&region.nodes);
        let users = |&output: &ExprId| {
            self.grouping.graph.users(output).filter(|&user| self.region[user] != Some(region_index as u32)).count()
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

    /// Records a reason for each operator that the backend neither accepted nor refused. `free_operators` holds the
    /// operators that were free before the backend gave its verdicts.
    fn record_missing_refusals(&mut self, backend_index: u32, backend: &Backend<'_>, free_operators: &[ExprId]) {
        let region_of = self.region_of_each();
        let mut entries_of: HashMap<OpId, Vec<&Entry>> = HashMap::new();
        for entry in backend.table {
            for op in entry.pattern.named_ops() {
                entries_of.entry(op).or_default().push(entry);
            }
        }
        let mut refusals: HashMap<OpId, Arc<Refusal>> = HashMap::new();
        let mut unmatched = Vec::new();
        for &id in free_operators {
            if region_of[id].is_some() || self.refusals.has(backend_index, id) {
                continue;
            }
            let Some((op, _)) = self.module.expr(id).as_op_call() else { continue };
            unmatched.extend(entries_of.contains_key(&op).then_some(id));
            let refusal = refusals.entry(op).or_insert_with(|| {
                let entries = entries_of.get(&op).map(Vec::as_slice).unwrap_or_default();
                Arc::new(no_match(&backend.name, op::get(op).name, entries))
            });
            self.refusals.add_shared(backend_index, id, refusal);
        }
        self.find_near_misses(backend, &unmatched);
        // Refusals of the operators that are assigned to an earlier backend.
        let earlier_refusals: Vec<Arc<Refusal>> = (0..backend_index)
            .map(|owner| format!("assigned to {}, which has higher priority", self.refusals.name(owner)))
            .map(|detail| Arc::new(Refusal::new(RefusalCode::LowerPriority, detail)))
            .collect();
        for (id, region) in region_of.iter() {
            if let Some(region) = region
                && let Some(refusal) = earlier_refusals.get(self.owner[*region as usize] as usize)
                && !self.refusals.has(backend_index, id)
                && self.module.expr(id).as_op_call().is_some()
            {
                self.refusals.add_shared(backend_index, id, refusal);
            }
        }
    }

    /// Finds the entry of a backend's table that came nearest to each of the operators, which none of them matched.
    fn find_near_misses(&mut self, backend: &Backend<'_>, operators: &[ExprId]) {
        if operators.is_empty() {
            return;
        }
        let graph = self.ungrouped.get_or_insert_with(|| Graph::new(self.module));
        let mut search = NearMisses::new(graph, backend.table);
        for &expr in operators {
            if let Some(near_miss) = search.of(expr).map(Arc::new) {
                let (backend, code) = (backend.name.clone(), RefusalCode::NoPatternMatch);
                self.near_misses.push(NearMissReport { backend, expr, code, near_miss });
            }
        }
    }

    /// Returns the near misses of the operators that are not assigned to the backend, the first of each backend for an
    /// operator.
    fn take_near_misses(&mut self) -> Vec<NearMissReport> {
        let mut near_misses = std::mem::take(&mut self.near_misses);
        let region_of = self.region_of_each();
        let owner = |expr: ExprId| region_of[expr].map(|region| self.refusals.name(self.owner[region as usize]));
        let mut seen: HashSet<(Name, ExprId)> = HashSet::new();
        let is_left = |near: &NearMissReport| owner(near.expr) != Some(&near.backend);
        near_misses.retain(|near| is_left(near) && seen.insert((near.backend.clone(), near.expr)));
        near_misses
    }

    /// Returns the region of each expression, including the expressions inside composites.
    fn region_of_each(&self) -> IndexVec<ExprId, Option<u32>> {
        let mut region_of = self.region.clone();
        for (root, group) in &self.grouping.groups {
            if let Some(region) = self.region[*root] {
                group.composite.nodes.iter().for_each(|&node| region_of[node] = Some(region));
            }
        }
        region_of
    }

    /// Rebuilds the module with each region as a call to its function.
    fn finish(mut self, module_name: &str) -> Result<(Module, Report), Box<Diagnostic>> {
        let numbering = self.number_regions();
        let order = self.contracted_order();
        // A region without a used result gets no function.
        let mut is_made = vec![false; self.regions.len()];
        order.iter().filter_map(|&id| self.region[id]).for_each(|region| is_made[region as usize] = true);
        let operators = std::mem::take(&mut self.operators);
        let near_misses = self.take_near_misses();
        let operators = self.report(operators, &is_made);
        // The new module dominates memory use, so everything not needed to build it is freed first.
        self.bodies = Bodies::of(&Module::new());
        self.grouping.forget_users();
        self.ungrouped = None;
        // Values of expressions inside the region that is being built, and values of the outputs of finished regions.
        let mut inner_values: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, self.module.nodes.len());
        let mut outer_values: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, self.module.nodes.len());
        let mut cache = OutlineCache::default();
        let module = Rebuild::run_in_order(self.module, order, |rebuild, id, _| {
            let Some(region_index) = self.region[id].map(|region| region as usize) else { return Ok(None) };
            if self.regions[region_index].symbol.is_empty() {
                let (function, number) = numbering[region_index];
                let naming =
                    Naming { module: module_name, function: self.grouping.function_name(function), region: number };
                let symbol = self.build_function(
                    rebuild,
                    &mut cache,
                    &self.regions[region_index],
                    naming,
                    &mut inner_values,
                    &mut outer_values,
                );
                self.regions[region_index].symbol = symbol;
            }
            Ok(outer_values[id])
        })?;
        drop((inner_values, outer_values, numbering));
        let mut regions = std::mem::take(&mut self.regions);
        regions.retain(|region| !region.symbol.is_empty());
        regions.sort_unstable_by_key(|region| region.nodes[0]);
        for region in &mut regions {
            region.composites = self.composites_of(&region.nodes);
            region.nodes = self.nodes_of(&region.nodes, &region.composites);
        }
        Ok((module, Report { operators, regions, near_misses }))
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
        let mut is_entered = IndexVec::<ExprId, bool>::filled(false, self.module.nodes.len());
        let mut order = Vec::new();
        let mut stack: Vec<(ExprId, bool)> = self.module.globals.values().rev().map(|&root| (root, false)).collect();
        while let Some((id, is_exit)) = stack.pop() {
            if is_exit {
                order.push(id);
                continue;
            }
            if std::mem::replace(&mut is_entered[id], true) {
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
        cache: &mut OutlineCache,
        region: &RegionReport,
        naming: Naming<'_>,
        inner_values: &mut IndexVec<ExprId, Option<ExprId>>,
        outer_values: &mut IndexVec<ExprId, Option<ExprId>>,
    ) -> Name {
        let mut params = ExprList::with_capacity(region.inputs.len());
        let mut args = ExprList::with_capacity(region.inputs.len());
        let target = region.backend.clone();
        let prefix = format!("{}_{}", sanitize(&target), naming.region);
        for (k, &input) in region.inputs.iter().enumerate() {
            let param = rebuild.new.var(format!("{prefix}_i{k}"), self.module.ty(input).clone());
            inner_values[input] = Some(param);
            params.push(param);
            args.push(rebuild.get(input));
        }
        let mut origins = Vec::new();
        for &unit in &region.nodes {
            let node = &self.module.nodes[unit];
            let inner_value =
                |rebuild: &mut Rebuild<'_>, id: ExprId| inner_values[id].unwrap_or_else(|| rebuild.get_or_copy(id));
            let value = match self.grouping.groups.get(&unit) {
                Some(group) => {
                    origins.extend(group.composite.nodes.iter().map(|&node| self.module.nodes[node].origin));
                    emit(rebuild, group, inner_value)
                }
                None => {
                    origins.push(node.origin);
                    let mut expr = node.expr.clone();
                    expr.map_operands(|operand| inner_value(rebuild, operand));
                    rebuild.new.module.push_typed(expr, node.ty.clone(), node.origin)
                }
            };
            inner_values[unit] = Some(value);
        }
        let outputs: ExprList = region.outputs.iter().filter_map(|&output| inner_values[output]).collect();
        region.inputs.iter().chain(&region.nodes).for_each(|&id| inner_values[id] = None);
        let origin = rebuild.new.module.origins.union_all(origins);
        let outline = Outline { naming, target, params, outputs };
        let (symbol, results) = define_and_call(rebuild, cache, outline, &args, origin);
        for (&output, result) in region.outputs.iter().zip(results) {
            outer_values[output] = Some(result);
        }
        symbol
    }

    /// Returns the reports of the operators. The index of a region counts only the regions that are built, ordered by
    /// first expression.
    fn report(&mut self, operators: Vec<ExprId>, is_made: &[bool]) -> Vec<OperatorReport> {
        let region_of = self.region_of_each();
        let mut first_nodes: Vec<(ExprId, u32)> = Vec::new();
        for (i, region) in self.regions.iter().enumerate().filter(|&(i, _)| is_made[i]) {
            first_nodes.push((region.nodes[0], i as u32));
        }
        first_nodes.sort_unstable();
        let mut rank: Vec<Option<u32>> = vec![None; self.regions.len()];
        first_nodes
            .iter()
            .enumerate()
            .for_each(|(rank_index, &(_, from))| rank[from as usize] = Some(rank_index as u32));
        let mut refusals = self.refusals.take();
        let report = |expr: ExprId| {
            let region = region_of[expr].map(|region| region as usize);
            let region = region.and_then(|from| Some((rank[from]?, self.owner[from])));
            // If the operator is assigned, the refusals by other patterns of the same backend are irrelevant.
            let backend = region.map(|(_, backend)| backend);
            OperatorReport {
                expr,
                region: region.map(|(rank_index, _)| rank_index as usize),
                refusals: refusals.refusals_of(expr, backend),
            }
        };
        operators.into_iter().map(report).collect()
    }
}

/// Near misses of the matches of one entry that its backend refused.
struct RefusedMatches<'p> {
    entry: &'p Entry,
    backend: &'p Name,
    near_misses: &'p mut Vec<NearMissReport>,
    /// Near miss of the last refused operator, with the code of its refusal.
    last: Option<(RefusalCode, Arc<NearMiss>)>,
}

impl<'p> RefusedMatches<'p> {
    fn new(entry: &'p Entry, backend: &'p Name, near_misses: &'p mut Vec<NearMissReport>) -> RefusedMatches<'p> {
        RefusedMatches { entry, backend, near_misses, last: None }
    }

    /// Adds an operator of a refused match, unless no candidate was formed from the match.
    fn add(&mut self, expr: ExprId, refusal: &Refusal) {
        let code = refusal.code;
        if matches!(
            code,
            RefusalCode::Overlap | RefusalCode::Escape | RefusalCode::LowerPriority | RefusalCode::Unavailable
        ) {
            return;
        }
        let near_miss = match &self.last {
            Some((last, near_miss)) if *last == code => near_miss.clone(),
            _ => Arc::new(NearMiss::refused(self.entry, self.backend, code)),
        };
        self.last = Some((code, near_miss.clone()));
        self.near_misses.push(NearMissReport { backend: self.backend.clone(), expr, code, near_miss });
    }
}

/// Returns the report of a region without expressions and name.
fn empty_region(backend: &Name) -> RegionReport {
    RegionReport {
        symbol: Name::from(""),
        backend: backend.clone(),
        nodes: ExprIds::new(),
        composites: Vec::new(),
        inputs: ExprIds::new(),
        outputs: ExprIds::new(),
    }
}

/// Returns the refusal of the operators of a refused region, which the backend had accepted one by one.
fn refused_region(Refusal { code, detail, hint }: Refusal) -> Refusal {
    Refusal { hint, ..Refusal::new(RefusalCode::RegionRefused, format!("{code}: {detail}")) }
}

/// Returns the refusal of an operator that no pattern of a backend matched.
fn no_match(backend: &str, operator: &str, entries: &[&Entry]) -> Refusal {
    let names: Vec<&str> = entries.iter().take(3).map(|entry| &*entry.name).collect();
    let detail = match entries.len() {
        0 => format!("{backend} has no pattern with {operator} and does not support it alone"),
        count => {
            let remainder_note = if count > 3 { format!(" and {} more", count - 3) } else { String::new() };
            format!("{operator} occurs in {}{remainder_note}, but no pattern matches here", names.join(", "))
        }
    };
    Refusal::new(RefusalCode::NoPatternMatch, detail)
}

/// Returns true if an expression denotes the same value inside and outside a region and thus needs no parameter.
fn is_duplicable(expr: &Expr) -> bool {
    expr.is_closed_leaf()
}
