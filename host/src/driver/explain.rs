//! Conversion of the partitioning report, which covers expressions, to an explanation of the model's operators.

use super::explanation::{
    CopyRow, Explanation, NearMissRow, NodeRow, Placement, PlacementKind, RefusalRow, RegionRow, Totals,
};
use crate::driver::judge::flops;
use byoc_core::pass::{NearMiss, NearMissReport, Refusal, RegionReport, Report};
use byoc_ir::ir::{Expr, ExprId, Id, IndexVec, Module, SourceId, Type};
use byoc_plugin_api::{ComputeFormat, Estimate};
use byoc_runtime::exec::program::{Instr, Place, Program, Reg, Space};
use std::collections::{BTreeMap, BTreeSet};

/// Operators of a model, from the module as read by the frontend.
pub struct Operators {
    /// Operators for which the module contains an operator call. The frontend has folded all other operators
    /// (constants, arithmetic on shapes) into these. The last origin of an expression is its operator; the preceding
    /// origins are the folded operators. With each, the FLOPs of its expressions.
    computing_sources: BTreeMap<SourceId, u64>,
    /// Predecessors of each operator.
    edges: Vec<BTreeSet<usize>>,
}

impl Operators {
    /// Collects the operators of a module. No pass may have changed the module, because passes merge the origins of
    /// constants.
    pub fn of(module: &Module) -> Operators {
        let live_exprs = module.live();
        let calls = module.nodes.iter().filter(|(id, node)| live_exprs[*id] && node.expr.as_op_call().is_some());
        let mut computing_sources = BTreeMap::new();
        for (id, node) in calls {
            if let Some(source) = module.origins.get(node.origin).last() {
                let total: &mut u64 = computing_sources.entry(*source).or_default();
                *total = total.saturating_add(flops(module, id));
            }
        }
        Operators { computing_sources, edges: edges(module, &live_exprs) }
    }
}

/// Statements of a backend about a region.
#[derive(Clone, Default)]
pub struct RegionFacts {
    /// Claims of precision, one line each, with the format that is claimed.
    pub precision: Vec<(String, ComputeFormat)>,
    /// Estimated cost per run.
    pub estimate: Option<Estimate>,
}

/// Returns the copies between host memory and device memories.
pub fn copies(program: &Program) -> Vec<CopyRow> {
    let row = |space: &Space| CopyRow { backend: space.backend.clone(), ..CopyRow::default() };
    let mut rows: Vec<CopyRow> = program.spaces.iter().map(row).collect();
    for function in &program.functions {
        let register = |reg: Reg| &function.registers[reg.index()];
        for instr in &function.code {
            let Instr::Copy { from: source, to } = instr else { continue };
            let bytes = register(*source).ty.as_ref().and_then(|ty| Some(ty.len()? * ty.dtype.size())).unwrap_or(0);
            match (register(*source).place, register(*to).place) {
                (_, Place::Device { space, .. }) => {
                    rows[space as usize].to_device += 1;
                    rows[space as usize].to_device_bytes += bytes;
                }
                (Place::Device { space, .. }, _) => {
                    rows[space as usize].from_device += 1;
                    rows[space as usize].from_device_bytes += bytes;
                }
                _ => {}
            }
        }
    }
    rows
}

/// Explains the placement of each operator of the model. `module` is the simplified module, `operators` contains the
/// operators of the module as read, and `report` is the partitioning report. `failures` contains, by symbol, the
/// regions that fell back to the host at code generation. `facts` returns what the backend states about a region.
pub fn explain(
    module: &Module,
    operators: &Operators,
    report: &Report,
    failures: &BTreeMap<String, Refusal>,
    facts: &dyn Fn(&RegionReport) -> RegionFacts,
) -> Explanation {
    let Operators { computing_sources, edges } = operators;
    let live_exprs = module.live();
    let exprs = exprs_by_source(module, &live_exprs);
    let mut operator_indices: BTreeMap<ExprId, usize> = BTreeMap::new();
    for (index, operator) in report.operators.iter().enumerate() {
        operator_indices.insert(operator.expr, index);
    }
    let region_of =
        |index: Option<usize>| index.map(|i| &report.regions[i]).filter(|r| !failures.contains_key(&*r.symbol));
    let mut flops_of: Vec<u64> = vec![0; module.origins.sources().len()];
    let mut host_flops = 0;
    for operator in &report.operators {
        let cost = flops(module, operator.expr);
        if region_of(operator.region).is_none() {
            host_flops = cost.saturating_add(host_flops);
        }
        // The FLOPs of an expression with several origins are attributed only to the one that computes most, so that
        // they are not counted twice: to a convolution rather than to the conversion of its weights.
        let origins = module.origins.get(module.nodes[operator.expr].origin);
        let computing = origins.iter().filter_map(|source| Some((computing_sources.get(source)?, source.index())));
        if let Some((_, origin)) = computing.max() {
            flops_of[origin] = cost.saturating_add(flops_of[origin]);
        }
    }
    let mut near_misses: BTreeMap<ExprId, Vec<&NearMissReport>> = BTreeMap::new();
    report.near_misses.iter().for_each(|near| near_misses.entry(near.expr).or_default().push(near));
    let mut explanation = Explanation::default();
    for (source, info) in module.origins.sources().iter() {
        let mut placements: Vec<(u64, Placement)> = Vec::new();
        let mut refusals: BTreeMap<[String; 4], RefusalRow> = BTreeMap::new();
        let placed_exprs: &[ExprId] = if computing_sources.contains_key(&source) { &exprs[source] } else { &[] };
        for expr in placed_exprs {
            let Some(operator) = operator_indices.get(expr).map(|&i| &report.operators[i]) else { continue };
            let region = region_of(operator.region);
            let placement = match region {
                Some(region) => Placement {
                    kind: PlacementKind::Region,
                    backend: Some(region.backend.to_string()),
                    region: Some(region.symbol.to_string()),
                    into: None,
                },
                None => Placement { kind: PlacementKind::Host, ..Placement::default() },
            };
            placements.push((flops(module, *expr), placement));
            let near_misses = near_misses.get(expr).map_or(&[][..], Vec::as_slice);
            for (backend, refusal) in operator.refusals.iter() {
                let is_of = |near: &&&NearMissReport| near.backend == *backend && near.code == refusal.code;
                let near_miss = near_misses.iter().find(is_of).map(|near| &*near.near_miss);
                let row = RefusalRow {
                    near_miss: near_miss.map(|near_miss| near_miss_row(module, near_miss)),
                    ..row(backend, refusal)
                };
                add_refusal(&mut refusals, row);
            }
            if let Some(index) = operator.region
                && let Some(refusal) = failures.get(&*report.regions[index].symbol)
            {
                add_refusal(&mut refusals, row(&report.regions[index].backend, refusal));
            }
        }
        let merged_placements = merge_placements(placements);
        let placement = main_part(&merged_placements)
            .cloned()
            .unwrap_or_else(|| folded_placement(module, &live_exprs, computing_sources, source, &exprs[source]));
        // Refusals of a backend that executes a part of the operator are listed only if some part runs on the host.
        let is_on_host = merged_placements.iter().any(|(_, part)| part.kind == PlacementKind::Host);
        let takes = |backend: &String| merged_placements.iter().any(|(_, part)| part.backend.as_ref() == Some(backend));
        refusals.retain(|_, r| placement.kind != PlacementKind::Folded && (is_on_host || !takes(&r.backend)));
        let merged_placements = if merged_placements.len() > 1 {
            merged_placements.into_iter().map(|(_, part)| part).collect()
        } else {
            Vec::new()
        };
        explanation.nodes.push(NodeRow {
            id: source.index(),
            op: info.op.to_string(),
            source: info.name.to_string(),
            flops: flops_of[source.index()],
            placement,
            parts: merged_placements,
            refusals: refusals.into_values().collect(),
            inputs: edges.get(source.index()).into_iter().flatten().copied().collect(),
        });
    }
    for region in &report.regions {
        if failures.contains_key(&*region.symbol) {
            continue;
        }
        let is_placed_here = |placement: &Placement| placement.region.as_deref() == Some(&*region.symbol);
        let is_here = |n: &&NodeRow| is_placed_here(&n.placement) || n.parts.iter().any(is_placed_here);
        let types = |ids: &[ExprId]| ids.iter().map(|&id| module.ty(id).to_string()).collect();
        let RegionFacts { precision, estimate } = facts(region);
        explanation.regions.push(RegionRow {
            symbol: region.symbol.to_string(),
            backend: region.backend.to_string(),
            nodes: explanation.nodes.iter().filter(is_here).map(|n| n.id).collect(),
            flops: region.nodes.iter().map(|&id| flops(module, id)).fold(0, u64::saturating_add),
            inputs: types(&region.inputs),
            outputs: types(&region.outputs),
            precision: precision.into_iter().map(|(text, _)| text).collect(),
            estimate,
        });
    }
    let is_open = |id: ExprId| matches!(module.ty(id), Type::Tensor(ty) if ty.shape().is_none());
    let has_open_dims = module.nodes.ids().any(|id| live_exprs[id] && is_open(id));
    explanation.totals = Totals { open_dims: has_open_dims, ..totals(&explanation, host_flops) };
    explanation
}

/// Sums the FLOPs of an operator by placement; the placements are ordered by their first expressions.
fn merge_placements(placements: Vec<(u64, Placement)>) -> Vec<(u64, Placement)> {
    let mut merged_placements: Vec<(u64, Placement)> = Vec::new();
    let mut index: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for (cost, placement) in placements {
        let position = *index.entry(placement.region.clone()).or_insert(merged_placements.len());
        match merged_placements.get_mut(position) {
            Some((sum, _)) => *sum = cost.saturating_add(*sum),
            None => merged_placements.push((cost, placement)),
        }
    }
    merged_placements
}

/// Returns the region with the most FLOPs, or the host if there is no region.
fn main_part(placements: &[(u64, Placement)]) -> Option<&Placement> {
    let cost_key = |(i, (cost, placement)): &(usize, &(u64, Placement))| {
        (placement.kind == PlacementKind::Region, *cost, usize::MAX - i)
    };
    placements.iter().enumerate().max_by_key(cost_key).map(|(_, (_, placement))| placement)
}

/// Returns the totals of a run. An operator that several composites share is computed, and counted, in each of them.
fn totals(explanation: &Explanation, host_flops: u64) -> Totals {
    let count = |kind: PlacementKind| explanation.nodes.iter().filter(|n| n.placement.kind == kind).count();
    let offload_flops = explanation.regions.iter().map(|r| r.flops).fold(0, u64::saturating_add);
    let flops = offload_flops.saturating_add(host_flops);
    Totals {
        operators: explanation.nodes.len(),
        in_regions: count(PlacementKind::Region),
        on_host: count(PlacementKind::Host),
        folded: count(PlacementKind::Folded),
        regions: explanation.regions.len(),
        flops,
        offload_flops,
        offload_share: if flops == 0 { 0.0 } else { offload_flops as f64 / flops as f64 },
        open_dims: false,
    }
}

fn row(backend: &str, refusal: &Refusal) -> RefusalRow {
    RefusalRow {
        backend: backend.to_owned(),
        code: refusal.code.to_string(),
        detail: refusal.detail.clone(),
        hint: refusal.hint.clone(),
        ..RefusalRow::default()
    }
}

/// Adds a refusal, unless the operator has the same one for another of its expressions, which is then given the near
/// miss.
fn add_refusal(refusals: &mut BTreeMap<[String; 4], RefusalRow>, row: RefusalRow) {
    let known = refusals.entry(row.reason().map(str::to_owned)).or_insert_with(|| row.clone());
    if known.near_miss.is_none() {
        known.near_miss = row.near_miss;
    }
}

/// Maximum number of operators that a near miss names.
const MAX_MATCHED: usize = 6;

/// Returns a near miss with the names of the operators in the model.
fn near_miss_row(module: &Module, near_miss: &NearMiss) -> NearMissRow {
    let name = |id: ExprId| {
        let source = module.origins.get(module.nodes[id].origin).last()?;
        let info = &module.origins.sources()[*source];
        Some(format!("{} {}", info.op, info.name))
    };
    let mut matched: Vec<String> = Vec::new();
    for text in near_miss.matched.iter().filter_map(|&id| name(id)) {
        if !matched.contains(&text) && matched.len() < MAX_MATCHED {
            matched.push(text);
        }
    }
    let is_call = |id: &ExprId| module.expr(*id).as_op_call().is_some();
    NearMissRow {
        entry: near_miss.entry.to_string(),
        position: near_miss.position.clone(),
        expected: near_miss.expected.clone(),
        found: near_miss.found.clone(),
        matched,
        at: near_miss.at.filter(is_call).and_then(name),
    }
}

/// Returns the live expressions that originate from each model operator.
fn exprs_by_source(module: &Module, live_exprs: &IndexVec<ExprId, bool>) -> IndexVec<SourceId, Vec<ExprId>> {
    let mut exprs = IndexVec::filled(Vec::new(), module.origins.sources().len());
    for (id, node) in module.nodes.iter().filter(|(id, _)| live_exprs[*id]) {
        for &source in module.origins.get(node.origin) {
            exprs[source].push(id);
        }
    }
    exprs
}

/// Returns the placement of an operator that no longer computes anything: folded into the consumers of its result, or
/// removed.
fn folded_placement(
    module: &Module,
    live_exprs: &IndexVec<ExprId, bool>,
    computing_sources: &BTreeMap<SourceId, u64>,
    source: SourceId,
    exprs: &[ExprId],
) -> Placement {
    let name = |s: SourceId| &module.origins.sources()[s].name;
    let attribute_holder = exprs.iter().find_map(|&id| {
        module.expr(id).as_op_call()?;
        module
            .origins
            .get(module.nodes[id].origin)
            .iter()
            .copied()
            .find(|s| *s != source && computing_sources.contains_key(s))
    });
    if let Some(attribute_holder) = attribute_holder {
        let target = Some(format!("an attribute of {}", name(attribute_holder)));
        return Placement { kind: PlacementKind::Folded, into: target, ..Placement::default() };
    }
    let mut readers: BTreeSet<SourceId> = BTreeSet::new();
    let mut is_result = false;
    if !exprs.is_empty() {
        let remaining: BTreeSet<ExprId> = exprs.iter().copied().collect();
        for (id, node) in module.nodes.iter().filter(|(id, _)| live_exprs[*id]) {
            let mut is_read = false;
            node.expr.for_each_operand(|operand| is_read |= remaining.contains(&operand));
            if is_read && !remaining.contains(&id) {
                readers.extend(module.origins.get(node.origin).iter().filter(|&&s| s != source));
                is_result |= matches!(node.expr, Expr::Function(_) | Expr::Tuple(_));
            }
        }
    }
    let target = match (readers.first(), exprs.is_empty(), is_result) {
        (Some(&reader), _, _) => {
            let more_readers =
                if readers.len() > 1 { format!(" and {} more", readers.len() - 1) } else { String::new() };
            format!("a constant of {}{more_readers}", name(reader))
        }
        (None, false, true) => "the constant result".to_owned(),
        (None, false, false) => "a constant".to_owned(),
        (None, true, _) => "nothing, as a no-op or because its result is unused".to_owned(),
    };
    Placement { kind: PlacementKind::Folded, into: Some(target), ..Placement::default() }
}

/// Returns the predecessors of each operator of the model. Tuples, projections and `let` move no data, so an edge leads
/// directly from the operator that computes a value to the operator that reads it. An operator that the frontend folded
/// has an edge to the operator that it was folded into.
fn edges(module: &Module, live_exprs: &IndexVec<ExprId, bool>) -> Vec<BTreeSet<usize>> {
    let forwarding = Forwarding::new(module, live_exprs);
    let mut edges = vec![BTreeSet::new(); module.origins.sources().len()];
    for (_, node) in module.nodes.iter().filter(|(id, _)| live_exprs[*id]) {
        let Some((reader, folded_sources)) = module.origins.get(node.origin).split_last() else { continue };
        let mut insert = |source: &SourceId| {
            if source < reader {
                edges[reader.index()].insert(source.index());
            }
        };
        folded_sources.iter().for_each(&mut insert);
        let mut operands = Vec::new();
        node.expr.for_each_operand(|operand| operands.push(operand));
        for producer in forwarding.producers(operands) {
            module.origins.get(module.nodes[producer].origin).last().into_iter().for_each(&mut insert);
        }
    }
    edges
}

/// Expressions without an origin that only forward a value: tuple projections, `let`-bound variables, and `let`.
struct Forwarding<'m> {
    module: &'m Module,
    /// Forwarded value of each expression, or the expression itself if it forwards nothing.
    value: IndexVec<ExprId, ExprId>,
    /// Values of `let`-bound variables.
    bound: BTreeMap<ExprId, ExprId>,
}

impl<'m> Forwarding<'m> {
    fn new(module: &'m Module, live_exprs: &IndexVec<ExprId, bool>) -> Forwarding<'m> {
        let lets = module.nodes.iter().filter(|(id, _)| live_exprs[*id]).filter_map(|(_, node)| match node.expr {
            Expr::Let { var, value, .. } => Some((var, value)),
            _ => None,
        });
        let bound: BTreeMap<ExprId, ExprId> = lets.collect();
        let mut forwarding = Forwarding { module, value: IndexVec::with_capacity(module.nodes.len()), bound };
        // Operands have smaller ids, so their values are already known.
        for id in module.nodes.ids() {
            let value = match module.expr(id) {
                _ if !live_exprs[id] || !forwarding.is_without_origin(id) => id,
                Expr::Project { tuple, index } => {
                    let tuple = forwarding.of(*tuple);
                    match module.expr(tuple) {
                        Expr::Tuple(fields) if forwarding.is_without_origin(tuple) => {
                            fields.get(*index as usize).map_or(tuple, |&field| forwarding.of(field))
                        }
                        _ => tuple,
                    }
                }
                Expr::Let { body, .. } => forwarding.of(*body),
                _ => id,
            };
            forwarding.value.push(value);
        }
        forwarding
    }

    fn is_without_origin(&self, id: ExprId) -> bool {
        self.module.origins.get(self.module.nodes[id].origin).is_empty()
    }

    fn of(&self, id: ExprId) -> ExprId {
        let id = self.bound.get(&id).copied().unwrap_or(id);
        // The value of a variable may follow its uses in the arena.
        self.value.get(id).copied().unwrap_or(id)
    }

    /// Returns the expressions that compute `operands`; a tuple without an origin is replaced with its fields.
    fn producers(&self, mut operands: Vec<ExprId>) -> BTreeSet<ExprId> {
        let mut producers = BTreeSet::new();
        while let Some(operand) = operands.pop() {
            let producer = self.of(operand);
            if producers.insert(producer)
                && self.is_without_origin(producer)
                && let Expr::Tuple(fields) = self.module.expr(producer)
            {
                operands.extend(fields.iter());
            }
        }
        producers
    }
}
