//! Verdicts of a backend: candidates of the compiler as the plugin sees them, and its answers.

use super::backend::Backend;
use super::claims::claims;
use super::recovery::Recovery;
use byoc_core::pass::{
    Body, Candidate, Claims, Composite, Judge, Question, Refusal, RefusalCode, RegionReport, Verdict,
};
use byoc_ir::diag::{Diagnostic, plural};
use byoc_ir::ir::{Dim, ExprId, Module};
use byoc_ir::op::{self, Cost, Params};
use byoc_plugin_api as api;
use byoc_plugin_api::claim::KEY as CLAIM_KEY;
use byoc_runtime::choices::base_name;
use byoc_runtime::plugin::to_graph::{self, ConstantTable, Group};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Converts an error returned by a plugin entry to an operator refusal. The refusal code is that of the error, or
/// `default_code` if the error has no valid refusal code.
pub fn refusal_of(error: &api::Error, default_code: RefusalCode) -> Refusal {
    let code = RefusalCode::parse(&error.code).unwrap_or(default_code);
    Refusal { code, detail: error.to_string(), hint: error.hint.to_string() }
}

/// Judge that asks a backend for verdicts on candidates.
pub struct PluginJudge<'b, 'r> {
    backend: &'b Backend<'r>,
    recovery: Option<&'b Recovery>,
    /// Errors that the backend returned instead of a verdict.
    pub faults: Vec<api::Error>,
    /// Estimates by candidate. The key consists of a flag, which is true for a region and false for a pattern or an
    /// operator, and the candidate's results.
    estimates: HashMap<(bool, Vec<ExprId>), api::Estimate>,
}

impl<'b, 'r> PluginJudge<'b, 'r> {
    /// Creates a judge for `backend`.
    pub fn new(backend: &'b Backend<'r>) -> Self {
        PluginJudge { backend, recovery: None, faults: Vec::new(), estimates: HashMap::new() }
    }

    /// Keeps operators that the backend failed to compile from it.
    #[must_use]
    pub(super) fn after(self, recovery: &'b Recovery) -> Self {
        PluginJudge { recovery: Some(recovery), ..self }
    }

    /// Returns the backend's estimate of a region: its estimate for the region itself if available, otherwise the sum
    /// over the region's composites and operators.
    pub fn estimate(&self, module: &Module, region: &RegionReport) -> Option<api::Estimate> {
        if let Some(estimate) = self.estimates.get(&(true, region.outputs.to_vec())) {
            return Some(estimate.clone());
        }
        let composite_nodes: HashSet<ExprId> =
            region.composites.iter().flat_map(|composite| composite.nodes.clone()).collect();
        let roots = region.composites.iter().map(|composite| composite.root);
        let is_operator = |id: &ExprId| module.expr(*id).as_op_call().is_some() && !composite_nodes.contains(id);
        let operators = roots.chain(region.nodes.iter().copied().filter(is_operator));
        let part_estimate = |id: ExprId| self.estimates.get(&(false, vec![id])).cloned();
        operators.map(part_estimate).reduce(|sum, part| Some(sum?.plus(&part?))).flatten().filter(|sum| !sum.is_empty())
    }

    /// Records the estimates contained in verdicts.
    fn record_estimates(&mut self, query: Question<'_>, queries: &[Vec<ExprId>], verdicts: &[api::Verdict]) {
        let is_region = matches!(query, Question::Regions);
        for (outputs, verdict) in queries.iter().zip(verdicts) {
            if let Some(estimate) = verdict.estimate() {
                self.estimates.insert((is_region, outputs.clone()), estimate);
            }
        }
    }

    /// Returns the refusal that follows from the description alone, if any.
    fn refusal_from_description(&self, module: &Module, query: Question<'_>, candidate: &Candidate) -> Option<Refusal> {
        let description = &self.backend.description;
        if !description.dynamic_dims {
            let open_dims = candidate.nodes.iter().map(|&id| unknown_dims(module, id)).find(|dims| !dims.is_empty());
            if let Some(open_dims) = open_dims {
                // Without the shape, the detail is the same for all operators with this dimension.
                let open_dims: Vec<String> = open_dims.iter().map(Dim::to_string).collect();
                let detail = format!("expected dimensions known at compile time, found {}", open_dims.join(", "));
                let hint = "bind the dimensions with --dim NAME=N, or add a program per size with --dim NAME=N,N..";
                return Some(Refusal { hint: hint.to_owned(), ..Refusal::new(RefusalCode::DynamicDim, detail) });
            }
        }
        if !description.precision.is_empty()
            && let Some(refusal) = self.precision_refusal(module, query, candidate)
        {
            return Some(refusal);
        }
        if let Question::Regions = query {
            let operators = candidate.nodes.iter().filter(|&&id| module.expr(id).as_call().is_some()).count();
            let flops = candidate.nodes.iter().map(|&id| flops(module, id)).fold(0, u64::saturating_add);
            let cost = &description.cost;
            // The minimum number of FLOPs does not apply to a region with unknown dimensions, because its FLOPs are
            // unknown.
            let is_open_shape = candidate.nodes.iter().any(|&id| has_unknown_dims(module, id));
            if operators < cost.min_region_operators as usize || (flops < cost.min_region_flops && !is_open_shape) {
                let detail = format!(
                    "{}: expected a region of at least {} and {}, found {} and {}",
                    self.backend.name,
                    plural(cost.min_region_operators as usize, "operator"),
                    plural(cost.min_region_flops as usize, "FLOP"),
                    plural(operators, "operator"),
                    plural(flops as usize, "FLOP"),
                );
                return Some(Refusal::new(RefusalCode::NotProfitable, detail));
            }
        }
        None
    }

    /// Returns the reason against the precision in which the backend computes a candidate, if any.
    fn precision_refusal(&self, module: &Module, query: Question<'_>, candidate: &Candidate) -> Option<Refusal> {
        let name = match query {
            Question::Pattern(entry) => &entry.name,
            Question::Composite(name) => name,
            Question::Operators | Question::Regions => {
                return self.backend.precision_refusal(module, &candidate.nodes, &candidate.composites);
            }
        };
        let (name, root, nodes) = (name.clone(), *candidate.outputs.first()?, candidate.nodes.clone());
        let composite = Composite { name, root, nodes, inputs: Vec::new() };
        self.backend.precision_refusal(module, &candidate.nodes, &[composite])
    }

    fn candidate(
        &self,
        module: &Module,
        query: Question<'_>,
        candidate: &Candidate,
    ) -> Result<api::Candidate, Box<Diagnostic>> {
        let (kind, name, check) = match query {
            Question::Pattern(entry) => {
                (api::CandidateKind::Pattern, entry.name.to_string(), entry.check.as_deref().unwrap_or_default())
            }
            Question::Composite(name) => (api::CandidateKind::Pattern, name.to_string(), ""),
            Question::Operators => {
                let operator = candidate.outputs.first().and_then(|&id| module.expr(id).as_op_call());
                let name = operator.map_or("", |(id, _)| op::get(id).name);
                (api::CandidateKind::Operator, name.to_owned(), "")
            }
            Question::Regions => (api::CandidateKind::Region, base_name(&self.backend.name).to_owned(), ""),
        };
        let mut constants = ConstantTable::default();
        // Constants defined outside the candidate are passed as constants, not as inputs.
        let is_input = |id: &ExprId| module.expr(*id).as_constant().is_none();
        let inputs: Vec<ExprId> = candidate.inputs.iter().copied().filter(is_input).collect();
        let graph = {
            let groups: Vec<Group<'_>> =
                candidate.composites.iter().map(|c| Group { name: &c.name, root: c.root, inputs: &c.inputs }).collect();
            to_graph::subgraph(module, &name, &inputs, &candidate.outputs, &groups, &mut constants)?
        };
        Ok(api::Candidate {
            kind,
            name: name.as_str().into(),
            check: check.into(),
            graph,
            constants: constants.handles.into(),
            outside_users: candidate.outside_users as u32,
            attrs: self.backend.candidate_attrs().into(),
        })
    }
}

impl Judge for PluginJudge<'_, '_> {
    fn claims(&mut self, module: &Module, bodies: &mut dyn FnMut() -> Vec<Body>) -> Option<Claims> {
        let Backend { codegen, name, description, choices, .. } = self.backend;
        if !description.whole_graph {
            return None;
        }
        let claims = claims(codegen.as_ref(), name, choices, module, &bodies()).unwrap_or_else(|error| {
            let refusal = refusal_of(&error, RefusalCode::Unavailable);
            self.faults.push(error);
            Some(Claims { otherwise: Some(refusal), ..Claims::default() })
        })?;
        for (index, set) in claims.sets.iter().enumerate() {
            let fault = |problem| api::Error::new(format!("{name}, {CLAIM_KEY}: set {index} of the answer: {problem}"));
            self.faults.extend(set.problem.as_ref().map(fault));
        }
        Some(claims)
    }

    fn judge(&mut self, module: &Module, query: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(candidates.len());
        let (mut queries, mut results) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let known_verdict = || self.recovery?.verdict(&self.backend.name, module, query, candidate);
            let refusal = self.refusal_from_description(module, query, candidate);
            let verdict = match refusal.map(Verdict::Refused).or_else(known_verdict) {
                Some(verdict) => Some(verdict),
                None => match self.candidate(module, query, candidate) {
                    Ok(asked_for) => {
                        queries.push(asked_for);
                        results.push(candidate.outputs.clone());
                        None
                    }
                    Err(diagnostic) => {
                        let refusal = Refusal::new(RefusalCode::UnsupportedOp, diagnostic.message.clone());
                        Some(Verdict::Refused(refusal))
                    }
                },
            };
            verdicts.push(verdict);
        }
        let start = Instant::now();
        let batch_result = if queries.is_empty() { Ok(Vec::new()) } else { self.backend.codegen.judge_batch(&queries) };
        if !queries.is_empty() {
            let (name, count) = (&self.backend.name, plural(queries.len(), "candidate"));
            let millis = start.elapsed().as_secs_f64() * 1e3;
            tracing::debug!(target: "byoc::codegen", "{name} judged {count} for {} in {millis:.3} ms", words(query));
        }
        let mut batch_result = match batch_result {
            Ok(batch_result) => {
                self.record_estimates(query, &results, &batch_result);
                batch_result.into_iter().map(verdict_from_api).collect::<Vec<_>>().into_iter()
            }
            Err(error) => {
                let refusal = refusal_of(&error, RefusalCode::Unavailable);
                self.faults.push(error);
                vec![Verdict::Refused(refusal); queries.len()].into_iter()
            }
        };
        let missing_verdict =
            || Verdict::Refused(Refusal::new(RefusalCode::Unavailable, "the backend returned no verdict"));
        verdicts.into_iter().map(|v| v.unwrap_or_else(|| batch_result.next().unwrap_or_else(missing_verdict))).collect()
    }
}

/// Describes the candidates of a batch, for logs.
fn words(query: Question<'_>) -> &str {
    match query {
        Question::Pattern(entry) => &entry.name,
        Question::Composite(name) => name,
        Question::Operators => "single operators",
        Question::Regions => "regions",
    }
}

fn verdict_from_api(verdict: api::Verdict) -> Verdict {
    match verdict {
        api::Verdict::Supported => Verdict::Supported,
        api::Verdict::Refused(refusal) => {
            if refusal.code == api::Verdict::ESTIMATED {
                return Verdict::Supported;
            }
            if refusal.code == api::Verdict::SPLIT
                && let Ok(size) = refusal.detail.parse()
            {
                return Verdict::Split(size);
            }
            // An unknown refusal code is a plugin error, but the detail is still valid.
            let code = RefusalCode::parse(&refusal.code).unwrap_or(RefusalCode::UnsupportedOp);
            Verdict::Refused(Refusal { code, detail: refusal.detail.into(), hint: refusal.hint.into() })
        }
    }
}

fn has_unknown_dims(module: &Module, id: ExprId) -> bool {
    !unknown_dims(module, id).is_empty()
}

/// Returns the distinct unknown dimensions of an expression's type, in order.
fn unknown_dims(module: &Module, id: ExprId) -> Vec<Dim> {
    let mut dims = Vec::new();
    for dim in to_graph::flat_types(module.ty(id)).iter().flatten().flat_map(|ty| &ty.dims) {
        if dim.fixed().is_none() && !dims.contains(dim) {
            dims.push(dim.clone());
        }
    }
    dims
}

/// Returns the FLOPs of an expression, which are 0 unless it is an operator call.
pub fn flops(module: &Module, id: ExprId) -> u64 {
    let Some((operator, call)) = module.expr(id).as_op_call() else { return 0 };
    let def = op::get(operator);
    let args: Vec<_> = call.args.iter().map(|&a| module.ty(a).clone()).collect();
    (def.flops)(&Cost { params: Params::new(def, &call.attrs), args: &args, ret: module.ty(id) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's refusal codes begin with the codes of the plugin boundary; host-only codes follow.
    #[test]
    fn refusal_codes_of_backends_are_those_of_the_boundary() {
        let api_codes: Vec<&str> = api::RefusalCode::ALL.iter().map(|code| code.as_str()).collect();
        let own_codes: Vec<String> = RefusalCode::ALL.iter().map(RefusalCode::to_string).collect();
        assert_eq!(own_codes[..api_codes.len()], api_codes);
        assert!(own_codes[api_codes.len()..].iter().all(|code| !api_codes.contains(&code.as_str())));
        assert!(api_codes.iter().all(|code| RefusalCode::parse(code).is_some()));
    }
}
