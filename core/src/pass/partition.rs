//! Partitioning for backends in priority order, with an answer for every operator.
//!
//! Backend by backend, on what is still free: the matches of its pattern table, then single operators, then regions of
//! what it took, which it may still refuse; what it refuses is free for the next backend. All of it happens on one
//! graph over the original module, which is rebuilt once at the end. Regions grow along edges from producer to user where no
//! cycle comes of it, never across functions or let bodies. A projection follows its tuple, and a tuple with one user follows
//! that user, so that regions exchange tensors.

use super::grouping::{Grouping, emit};
use super::judge::{Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict, ask};
use super::outline::{Outline, define_and_call, sanitize, symbol};
use super::region_graph::RegionGraph;
use super::report::{OperatorReport, RegionReport, Report};
use super::scope::Bodies;
use crate::diag::Diagnostic;
use crate::ir::{Expr, ExprId, IndexVec, Module, Name, OpId};
use crate::op;
use crate::pattern::{Entry, PatternNode};
use crate::typing::Rebuild;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A backend that partitioning may give operators to.
pub struct Backend<'a> {
    /// Its name: `Compiler` of its functions.
    pub name: Name,
    /// Its patterns, in order.
    pub table: &'a [Entry],
    /// The single operators that it wants to be asked about. Names that do not exist are passed over.
    pub operators: &'a [String],
    /// Answers for it.
    pub judge: &'a mut dyn Judge,
}

/// Partitions a module for backends in priority order.
///
/// # Errors
/// None that a typed module can cause.
pub fn partition_for(
    module: &Module,
    backends: &mut [Backend<'_>],
    module_name: &str,
) -> Result<(Module, Report), Box<Diagnostic>> {
    let mut work = Work {
        module,
        grouping: Grouping::new(module),
        bodies: Bodies::of(module),
        region: IndexVec::filled(None, module.nodes.len()),
        regions: Vec::new(),
        refusals: HashMap::new(),
    };
    let operators = work.grouping.free_operators();
    for backend in backends {
        work.give(backend);
    }
    work.finish(operators, module_name)
}

/// A region: expressions of the graph, a composite by its root.
struct Region {
    backend: Name,
    /// Ascending.
    units: Vec<ExprId>,
    inputs: Vec<ExprId>,
    outputs: Vec<ExprId>,
}

struct Work<'m> {
    module: &'m Module,
    grouping: Grouping<'m>,
    bodies: Bodies,
    /// The region that was accepted for a unit.
    region: IndexVec<ExprId, Option<u32>>,
    regions: Vec<Region>,
    refusals: HashMap<ExprId, Vec<(Name, Refusal)>>,
}

impl Work<'_> {
    fn refuse(&mut self, backend: &Name, id: ExprId, refusal: Refusal) {
        let reasons = self.refusals.entry(id).or_default();
        if !reasons.iter().any(|(by, known)| by == backend && *known == refusal) {
            reasons.push((backend.clone(), refusal));
        }
    }

    /// Gives a backend what it takes of what is free.
    fn give(&mut self, backend: &mut Backend<'_>) {
        let name = backend.name.clone();
        let free = self.grouping.free_operators();
        let before: HashSet<ExprId> = self.grouping.groups.keys().copied().collect();
        let mut refused = Vec::new();
        for entry in backend.table {
            if !matches!(entry.pattern.nodes[entry.pattern.root], PatternNode::Function { .. }) {
                self.grouping.apply(entry, backend.judge, &mut |id, refusal| refused.push((id, refusal)));
            }
        }
        for (id, refusal) in refused {
            self.refuse(&name, id, refusal);
        }
        let mut own: BTreeSet<ExprId> =
            self.grouping.groups.keys().copied().filter(|root| !before.contains(root)).collect();
        own.extend(self.singles(backend));
        self.form_regions(backend, own);
        self.explain(backend, &free);
    }

    /// The free operators that the backend takes one by one.
    fn singles(&mut self, backend: &mut Backend<'_>) -> Vec<ExprId> {
        let wanted: HashSet<OpId> = backend.operators.iter().filter_map(|name| op::lookup(name)).collect();
        let mut asked = Vec::new();
        for id in self.grouping.free_operators() {
            let Some((op, call)) = self.module.expr(id).as_op_call() else { continue };
            // A call without arguments is an input: a region needs something to start from.
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
        let verdicts = ask(backend.judge, self.module, Question::Operators, &asked);
        let mut taken = Vec::new();
        for (candidate, verdict) in asked.iter().zip(verdicts) {
            match verdict {
                Verdict::Supported => taken.push(candidate.outputs[0]),
                Verdict::Refused(refusal) => self.refuse(&backend.name, candidate.outputs[0], refusal),
            }
        }
        taken
    }

    /// Joins what a backend took into regions and has it judge them.
    fn form_regions(&mut self, backend: &mut Backend<'_>, mut own: BTreeSet<ExprId>) {
        if own.is_empty() {
            return;
        }
        let order = self.grouping.order();
        self.add_tuples(&order, &mut own);
        // One node for each region that is there already, one for each other expression.
        let mut nodes = 0;
        let mut node_of: IndexVec<ExprId, Option<u32>> = IndexVec::filled(None, self.module.nodes.len());
        let mut region_node: Vec<Option<u32>> = vec![None; self.regions.len()];
        for &id in &order {
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
        for &id in &order {
            self.flows(id, |from, to| {
                if let (Some(from), Some(to)) = (node_of[from], node_of[to]) {
                    edges.push((from, to));
                }
            });
        }
        let mut graph = RegionGraph::new(nodes as usize, edges);
        let owned: Vec<ExprId> = order.iter().copied().filter(|id| own.contains(id)).collect();
        for &id in &owned {
            self.grouping.graph.for_each_operand(id, |operand| {
                if own.contains(&operand)
                    && self.bodies.same(operand, id)
                    && let (Some(from), Some(to)) = (node_of[operand], node_of[id])
                {
                    graph.merge(from, to);
                }
            });
        }
        let mut found: BTreeMap<u32, usize> = BTreeMap::new();
        let mut regions: Vec<Region> = Vec::new();
        for &id in &owned {
            let Some(node) = node_of[id] else { continue };
            let at = *found.entry(graph.find(node)).or_insert_with(|| {
                let backend = backend.name.clone();
                regions.push(Region { backend, units: Vec::new(), inputs: Vec::new(), outputs: Vec::new() });
                regions.len() - 1
            });
            regions[at].units.push(id);
        }
        for region in &mut regions {
            region.units.sort_unstable();
            self.borders(region);
        }
        let candidates: Vec<Candidate> = regions.iter().map(|region| self.candidate(region)).collect();
        let verdicts = ask(backend.judge, self.module, Question::Regions, &candidates);
        for ((region, candidate), verdict) in regions.into_iter().zip(candidates).zip(verdicts) {
            match verdict {
                Verdict::Supported => {
                    for &unit in &region.units {
                        self.region[unit] = Some(self.regions.len() as u32);
                        self.grouping.taken[unit] = Some(region.backend.clone());
                    }
                    self.regions.push(region);
                }
                Verdict::Refused(refusal) => {
                    let detail = format!("{}: {}", refusal.code, refusal.detail);
                    let refusal = Refusal { code: RefusalCode::RegionRefused, detail, hint: refusal.hint };
                    for &node in &candidate.nodes {
                        self.refuse(&backend.name, node, refusal.clone());
                    }
                    for composite in &candidate.composites {
                        self.grouping.dissolve(composite.root);
                    }
                }
            }
        }
    }

    /// Adds the projections of what is taken, and the tuples that only one taken expression uses.
    fn add_tuples(&self, order: &[ExprId], own: &mut BTreeSet<ExprId>) {
        let graph = &self.grouping.graph;
        for &id in order {
            if let Some(Expr::Project { tuple, .. }) = graph.expr(id)
                && own.contains(tuple)
                && self.bodies.same(*tuple, id)
            {
                own.insert(id);
            }
        }
        for &id in order.iter().rev() {
            if let Some(Expr::Tuple(_)) = graph.expr(id) {
                let mut users = graph.users(id);
                if let Some(user) = users.next()
                    && own.contains(&user)
                    && self.bodies.same(id, user)
                    && users.all(|other| other == user)
                {
                    own.insert(id);
                }
            }
        }
    }

    fn flows(&self, id: ExprId, mut edge: impl FnMut(ExprId, ExprId)) {
        match self.grouping.graph.expr(id) {
            Some(Expr::Let { var, value, body }) => {
                edge(*value, *var);
                edge(*body, id);
            }
            Some(Expr::Function(function)) => edge(function.body, id),
            _ => self.grouping.graph.for_each_operand(id, |operand| edge(operand, id)),
        }
    }

    /// What enters a region and what leaves it.
    fn borders(&self, region: &mut Region) {
        let graph = &self.grouping.graph;
        let inside: HashSet<ExprId> = region.units.iter().copied().collect();
        let mut known = HashSet::new();
        for &unit in &region.units {
            graph.for_each_operand(unit, |operand| {
                if !inside.contains(&operand) && !stands_inside(self.module.expr(operand)) && known.insert(operand) {
                    region.inputs.push(operand);
                }
            });
            if graph.users(unit).any(|user| !inside.contains(&user)) {
                region.outputs.push(unit);
            }
        }
    }

    fn candidate(&self, region: &Region) -> Candidate {
        let mut nodes = BTreeSet::new();
        let mut composites: Vec<Composite> = Vec::new();
        for &unit in &region.units {
            match self.grouping.groups.get(&unit) {
                Some(group) => {
                    nodes.extend(group.composite.nodes.iter().copied());
                    composites.push(group.composite.clone());
                }
                None => {
                    nodes.insert(unit);
                }
            }
            self.grouping.graph.for_each_operand(unit, |operand| {
                if matches!(self.module.expr(operand), Expr::Constant(_)) {
                    nodes.insert(operand);
                }
            });
        }
        let inside: HashSet<ExprId> = region.units.iter().copied().collect();
        let users = |&output: &ExprId| self.grouping.graph.users(output).filter(|user| !inside.contains(user)).count();
        Candidate {
            nodes: nodes.into_iter().collect(),
            inputs: region.inputs.clone(),
            outputs: region.outputs.clone(),
            outside_users: region.outputs.iter().map(users).sum(),
            composites,
        }
    }

    /// A reason for each operator that was free and that the backend neither took nor gave a reason for.
    fn explain(&mut self, backend: &Backend<'_>, free: &[ExprId]) {
        let inside = self.inside();
        let mut named: HashMap<OpId, Vec<&Entry>> = HashMap::new();
        for entry in backend.table {
            for op in entry.pattern.named_ops() {
                named.entry(op).or_default().push(entry);
            }
        }
        for &id in free {
            let answered = self.refusals.get(&id).is_some_and(|r| r.iter().any(|(by, _)| *by == backend.name));
            if inside.contains_key(&id) || answered {
                continue;
            }
            let Some((op, _)) = self.module.expr(id).as_op_call() else { continue };
            let operator = op::get(op).name;
            let refusal = match named.get(&op) {
                Some(entries) => {
                    let names: Vec<&str> = entries.iter().take(3).map(|entry| &*entry.name).collect();
                    let more =
                        if entries.len() > 3 { format!(" and {} more", entries.len() - 3) } else { String::new() };
                    let detail =
                        format!("{operator} occurs in {}{more}, but none matches around it here", names.join(", "));
                    Refusal::new(RefusalCode::NoPatternMatch, detail)
                }
                None => {
                    let detail = format!("{} has no pattern with {operator} and does not take it alone", backend.name);
                    Refusal::new(RefusalCode::NoPatternMatch, detail)
                }
            };
            self.refuse(&backend.name, id, refusal);
        }
        // What an earlier backend has is out of reach for this one.
        let earlier: Vec<(ExprId, Name)> = inside
            .iter()
            .map(|(&id, &region)| (id, self.regions[region as usize].backend.clone()))
            .filter(|(_, owner)| *owner != backend.name)
            .collect();
        for (id, owner) in earlier {
            let answered = self.refusals.get(&id).is_some_and(|r| r.iter().any(|(by, _)| *by == backend.name));
            if !answered && self.module.expr(id).as_op_call().is_some() {
                let detail = format!("{owner} comes first and takes it");
                self.refuse(&backend.name, id, Refusal::new(RefusalCode::LowerPriority, detail));
            }
        }
    }

    /// The region of each expression that is in one, also inside composites.
    fn inside(&self) -> HashMap<ExprId, u32> {
        let mut inside = HashMap::new();
        for (i, region) in self.regions.iter().enumerate() {
            for unit in &region.units {
                match self.grouping.groups.get(unit) {
                    Some(group) => inside.extend(group.composite.nodes.iter().map(|&node| (node, i as u32))),
                    None => {
                        inside.insert(*unit, i as u32);
                    }
                }
            }
        }
        inside
    }

    /// Rebuilds the module with each region as a call of its function.
    fn finish(mut self, operators: Vec<ExprId>, module_name: &str) -> Result<(Module, Report), Box<Diagnostic>> {
        let numbering = self.number_regions();
        let order = self.contracted_order();
        let mut made: Vec<Option<HashMap<ExprId, ExprId>>> = vec![None; self.regions.len()];
        let mut symbols: Vec<Option<Name>> = vec![None; self.regions.len()];
        let module = Rebuild::run_in_order(self.module, order, |rebuild, id, _| {
            let Some(region) = self.region[id] else { return Ok(None) };
            let at = region as usize;
            if made[at].is_none() {
                let (function, number) = &numbering[at];
                let name = symbol(rebuild, module_name, &self.regions[at].backend, function, *number);
                symbols[at] = Some(name.clone());
                made[at] = Some(self.make(rebuild, &self.regions[at], name, *number));
            }
            Ok(made[at].as_ref().and_then(|outputs| outputs.get(&id).copied()))
        })?;
        Ok((module, self.report(operators, symbols)))
    }

    /// The function and the number in it of each region, in the order of the program.
    fn number_regions(&mut self) -> Vec<(Name, u32)> {
        let order = self.grouping.order();
        let mut numbers: Vec<Option<(Name, u32)>> = vec![None; self.regions.len()];
        let mut counts: BTreeMap<Name, u32> = BTreeMap::new();
        for &id in &order {
            if let Some(region) = self.region[id]
                && numbers[region as usize].is_none()
            {
                let function = self.grouping.global_of(id);
                let count = counts.entry(function.clone()).or_default();
                numbers[region as usize] = Some((function, *count));
                *count += 1;
            }
        }
        numbers.into_iter().map(|number| number.unwrap_or_else(|| (Name::from("main"), 0))).collect()
    }

    /// What is left outside regions and the outputs of regions, each after all that it needs.
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

    fn make(&self, rebuild: &mut Rebuild<'_>, region: &Region, symbol: Name, number: u32) -> HashMap<ExprId, ExprId> {
        let mut inner: HashMap<ExprId, ExprId> = HashMap::new();
        let mut params = Vec::with_capacity(region.inputs.len());
        let mut args = Vec::with_capacity(region.inputs.len());
        let prefix = format!("{}_{number}", sanitize(&region.backend));
        for (k, &input) in region.inputs.iter().enumerate() {
            let param = rebuild.new.var(format!("{prefix}_i{k}"), self.module.ty(input).clone());
            inner.insert(input, param);
            params.push(param);
            args.push(rebuild.get(input));
        }
        let mut origins = Vec::new();
        for &unit in &region.units {
            let node = &self.module.nodes[unit];
            let new = match self.grouping.groups.get(&unit) {
                Some(group) => {
                    origins.extend(group.composite.nodes.iter().map(|&inside| self.module.nodes[inside].origin));
                    emit(rebuild, group, |rebuild, input| match inner.get(&input) {
                        Some(&new) => new,
                        None => rebuild.get_or_copy(input),
                    })
                }
                None => {
                    origins.push(node.origin);
                    let mut expr = node.expr.clone();
                    expr.map_operands(|operand| match inner.get(&operand) {
                        Some(&new) => new,
                        None => rebuild.get_or_copy(operand),
                    });
                    rebuild.new.module.push_typed(expr, node.ty.clone(), node.origin)
                }
            };
            inner.insert(unit, new);
        }
        let outputs: Vec<ExprId> = region.outputs.iter().map(|output| inner[output]).collect();
        let origin = rebuild.new.module.origins.union_all(origins);
        let outline = Outline { symbol, target: region.backend.clone(), params, outputs };
        let results = define_and_call(rebuild, outline, &args, origin);
        region.outputs.iter().copied().zip(results).collect()
    }

    fn report(&mut self, operators: Vec<ExprId>, symbols: Vec<Option<Name>>) -> Report {
        let inside = self.inside();
        // Regions in the order of the program; one whose result nobody needs has no function.
        let mut first: Vec<(ExprId, usize)> = Vec::new();
        for (i, region) in self.regions.iter().enumerate() {
            if let (Some(&unit), Some(_)) = (region.units.first(), &symbols[i]) {
                first.push((unit, i));
            }
        }
        first.sort_unstable();
        let place: HashMap<u32, usize> = first.iter().enumerate().map(|(to, &(_, from))| (from as u32, to)).collect();
        let regions = first
            .iter()
            .map(|&(_, i)| {
                let candidate = self.candidate(&self.regions[i]);
                RegionReport {
                    symbol: symbols[i].clone().unwrap_or_else(|| Name::from("")),
                    backend: self.regions[i].backend.clone(),
                    nodes: candidate.nodes,
                    composites: candidate.composites,
                    inputs: candidate.inputs,
                    outputs: candidate.outputs,
                }
            })
            .collect();
        let operators = operators
            .into_iter()
            .map(|expr| {
                let region = inside.get(&expr).and_then(|region| place.get(region).copied());
                let own = region.map(|_| self.regions[inside[&expr] as usize].backend.clone());
                // Why one pattern of a backend did not fit is of no interest once another did.
                let refusals = self.refusals.remove(&expr).unwrap_or_default();
                let refusals = refusals.into_iter().filter(|(by, _)| Some(by) != own.as_ref()).collect();
                OperatorReport { expr, region, refusals }
            })
            .collect();
        Report { operators, regions }
    }
}

/// What is the same inside a region and outside.
fn stands_inside(expr: &Expr) -> bool {
    matches!(expr, Expr::Constant(_) | Expr::Global(_))
}
