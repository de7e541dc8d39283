//! `partition_graph`: turns each region into a global function of its backend.
//!
//! A function has a parameter for each distinct value that enters the region and an output for each distinct value that
//! leaves it. Constants that enter a region move into its function, and so do function literals; the values that a
//! literal captures become inputs. The parameters are in the order of a depth-first walk, operands left to right, from
//! the end of the region that is reached first in evaluation order, then from the region's remaining ends. The
//! functions are named `tvmgen_<module>_<target>_<function>_<region>`. The expressions outside regions are reordered so
//! that the call to a region's function follows all of the region's dependencies: the call may have to come later than
//! the first operator of the region did.

use super::super::grouping::describe;
use super::super::outline::{Naming, Outline, OutlineCache, define_and_call};
use super::annotation::{Annotations, DEFAULT, Mark};
use super::flatten_nested_tuples::flatten_if_needed;
use super::regions::{Region, RegionReader};
use super::remove_default_annotations::remove_if_present;
use crate::analysis::scope::{Captures, is_opaque};
use crate::pass::splice::copy_literal;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Expr, ExprId, ExprList, IndexVec, Module, Name};
use byoc_ir::typing::Rebuild;
use smallvec::SmallVec;

/// Turns the regions of an annotated module into functions.
///
/// # Errors
/// If the annotations are inconsistent, or a region depends on its own result.
pub fn partition_graph(module: &Module, module_name: &str, bind_constants: bool) -> Result<Module, Box<Diagnostic>> {
    let flat_module = flatten_if_needed(module)?;
    let unannotated_module = remove_if_present(&flat_module)?;
    partition(&unannotated_module, module_name, bind_constants)
}

/// Region with its enclosing global function, its inputs and its outputs.
struct RegionFunction {
    region: Region,
    function: Name,
    /// Values that enter the region.
    inputs: Inputs,
    /// Values that leave the region, in the order of the outputs.
    outputs: ExprList,
    /// Values of the outputs in the new module, once the region's call has been built.
    results: Option<ExprList>,
}

type Inputs = SmallVec<[Input; 1]>;

struct Input {
    /// Expression outside the region.
    value: ExprId,
    /// Begins (or bare operands) inside the region that refer to the value.
    inner_ids: ExprList,
    name: InputName,
    /// True for a constant that moves into the region's function.
    is_bound: bool,
}

/// Suffix of a parameter's name, which follows the name of the region.
#[derive(Clone, Copy)]
enum InputName {
    /// Position of the input's begin among the begins of the region.
    Begin(u32),
    /// Number of the input among the inputs without a begin.
    Bare(u32),
}

/// Per-expression state, shared by all regions because there may be as many regions as expressions. An expression is
/// inside at most one region; the state of an outside expression is stamped with the last region that wrote it.
struct ExprStates {
    /// Index of the region that contains the expression.
    part: IndexVec<ExprId, Option<u32>>,
    /// Position of a begin among the begins of its region.
    begin: IndexVec<ExprId, u32>,
    /// Position of a value among the outputs of its region.
    output: IndexVec<ExprId, Option<u32>>,
    /// Last region, counted from 1, whose search for inputs visited the expression.
    visits: IndexVec<ExprId, u32>,
    /// Last region, counted from 1, found to have the value as an input, and the index of that input.
    entry_states: IndexVec<ExprId, (u32, u32)>,
    /// Stack of the current walk; empty between walks.
    stack: Vec<ExprId>,
}

fn partition(module: &Module, module_name: &str, bind_constants: bool) -> Result<Module, Box<Diagnostic>> {
    let annotations = Annotations::new();
    let mut reader = RegionReader::new(module);
    let mut parts: Vec<RegionFunction> = Vec::new();
    let count = module.nodes.len();
    let mut states = ExprStates {
        part: IndexVec::filled(None, count),
        begin: IndexVec::filled(0, count),
        output: IndexVec::filled(None, count),
        visits: IndexVec::filled(0, count),
        entry_states: IndexVec::filled((0, 0), count),
        stack: Vec::new(),
    };
    for (name, &root) in &module.globals {
        if module.expr(root).as_function().is_none_or(is_opaque) {
            continue;
        }
        for region in reader.read(root)?.regions {
            if *region.target == *DEFAULT {
                continue;
            }
            for &node in &region.nodes {
                states.part[node] = Some(parts.len() as u32);
            }
            for (k, &begin) in region.begins.iter().enumerate() {
                states.begin[begin] = k as u32;
            }
            let outputs = outputs(module, &annotations, &region, &mut states.output);
            parts.push(RegionFunction {
                region,
                function: name.clone(),
                inputs: Inputs::new(),
                outputs,
                results: None,
            });
        }
    }
    let mut literals = Literals::of(module, &parts);
    let order = order(module, &annotations, &mut states, &mut parts, &literals, bind_constants)?;
    let ExprStates { part: part_of, output, .. } = states;
    // A value that leaves a region without an end is recomputed outside, where the same literals are used again.
    literals.copy_all =
        order.iter().any(|&id| part_of[id].is_some() && annotations.annotation_of(module, id).is_none());
    let mut cache = OutlineCache::default();
    let mut inner_values: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, count);
    Rebuild::run_in_order(module, order, |rebuild, id, _| {
        Ok(match annotations.annotation_of(module, id) {
            Some(Mark::Begin(value, _)) => Some(rebuild.get(value)),
            Some(Mark::End(value, _)) => match part_of[id] {
                Some(part) => {
                    let part = &mut parts[part as usize];
                    if part.results.is_none() {
                        part.results =
                            Some(build_function(rebuild, &mut cache, module_name, part, &literals, &mut inner_values)?);
                    }
                    let output_index = output[strip_ends(module, &annotations, value)];
                    part.results
                        .as_ref()
                        .zip(output_index)
                        .map(|(outputs, output_index)| outputs[output_index as usize])
                }
                None => Some(rebuild.get(value)),
            },
            None => None,
        })
    })
}

/// Function literals that regions use, mostly composites.
struct Literals {
    /// Captured values of the literals that need a separate copy in each region, in ascending order of literals.
    entries: Vec<(ExprId, Vec<ExprId>)>,
    /// True if each region needs its own copy of every literal.
    copy_all: bool,
}

impl Literals {
    fn of(module: &Module, parts: &[RegionFunction]) -> Literals {
        let is_literal = |id: ExprId| matches!(module.expr(id), Expr::Function(_));
        let mut used_literals = Vec::new();
        for &node in parts.iter().flat_map(|part| &part.region.nodes) {
            module.expr(node).for_each_operand(|operand| {
                if is_literal(operand) {
                    used_literals.push(operand);
                }
            });
        }
        used_literals.sort_unstable();
        used_literals.dedup();
        let mut entries = Vec::new();
        if !used_literals.is_empty() {
            let mut captures = Captures::of(module);
            for literal in used_literals {
                let captured = captures.of_literal(literal);
                if !captured.is_empty() || captures.uses(literal) > 1 {
                    entries.push((literal, captured));
                }
            }
        }
        Literals { entries, copy_all: false }
    }

    /// Returns the values that a literal captures.
    fn captured(&self, literal: ExprId) -> &[ExprId] {
        let entry_index = self.entries.binary_search_by_key(&literal, |(id, _)| *id);
        entry_index.map_or(&[], |entry_index| &self.entries[entry_index].1)
    }

    /// Returns true if the literal needs a separate copy in each region.
    fn is_copied(&self, literal: ExprId) -> bool {
        self.copy_all || self.entries.binary_search_by_key(&literal, |(id, _)| *id).is_ok()
    }
}

/// Returns true if an expression denotes the same value inside and outside a region and thus needs no parameter.
fn is_duplicable(expr: &Expr) -> bool {
    expr.is_closed_leaf() || matches!(expr, Expr::Function(_))
}

/// Returns the value inside a chain of annotations.
fn strip_annotations(module: &Module, annotations: &Annotations, mut id: ExprId) -> ExprId {
    while let Some(Mark::Begin(value, _) | Mark::End(value, _)) = annotations.annotation_of(module, id) {
        id = value;
    }
    id
}

/// Returns the value inside a chain of ends. All ends of a chain belong to one region.
fn strip_ends(module: &Module, annotations: &Annotations, mut id: ExprId) -> ExprId {
    while let Some(Mark::End(value, _)) = annotations.annotation_of(module, id) {
        id = value;
    }
    id
}

/// Returns the values that leave a region, in the order of its ends, and writes the position of each to `output_index`.
fn outputs(
    module: &Module,
    annotations: &Annotations,
    region: &Region,
    output_index: &mut IndexVec<ExprId, Option<u32>>,
) -> ExprList {
    let mut outputs = ExprList::new();
    for &end in &region.ends {
        let value = strip_ends(module, annotations, end);
        // The value is inside this region, so no other region has written its position.
        if output_index[value].is_none() {
            output_index[value] = Some(outputs.len() as u32);
            outputs.push(value);
        }
    }
    outputs
}

/// Returns the inputs of a region; `first` is the end of the region that is reached first in evaluation order.
fn inputs(
    module: &Module,
    annotations: &Annotations,
    states: &mut ExprStates,
    part: u32,
    region: &Region,
    first: ExprId,
    literals: &Literals,
    bind_constants: bool,
) -> Inputs {
    let ExprStates { part: part_of, begin, visits, entry_states, stack, .. } = states;
    let stamp = part + 1;
    let mut inputs = Inputs::new();
    let mut unnamed_count = 0;
    stack.extend(region.ends.iter().rev());
    stack.push(first);
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut visits[id], stamp) == stamp {
            continue;
        }
        let (value, number) = match annotations.annotation_of(module, id) {
            Some(Mark::Begin(value, _)) if part_of[id] == Some(part) && part_of[value] != Some(part) => {
                (value, Some(begin[id]))
            }
            _ if part_of[id] == Some(part) => {
                let stack_base = stack.len();
                module.expr(id).for_each_operand(|operand| stack.push(operand));
                stack[stack_base..].reverse();
                continue;
            }
            _ if is_duplicable(module.expr(id)) => {
                // The values that a literal captures enter the region together with the literal.
                stack.extend(literals.captured(id).iter().rev());
                continue;
            }
            _ => (id, None),
        };
        let source = strip_annotations(module, annotations, value);
        if entry_states[source].0 == stamp {
            inputs[entry_states[source].1 as usize].inner_ids.push(id);
            continue;
        }
        entry_states[source] = (stamp, inputs.len() as u32);
        let is_constant = |id: ExprId| matches!(module.expr(id), Expr::Constant(_));
        let bound = bind_constants
            && match module.expr(source) {
                Expr::Tuple(fields) => fields.iter().all(|&field| is_constant(field)),
                _ => is_constant(source),
            };
        let name = number.map_or_else(
            || {
                unnamed_count += 1;
                InputName::Bare(unnamed_count - 1)
            },
            InputName::Begin,
        );
        inputs.push(Input { value, inner_ids: ExprList::from_slice(&[id]), name, is_bound: bound });
    }
    inputs
}

/// Returns the expressions outside regions and the ends of regions, each after all of its dependencies.
fn order(
    module: &Module,
    annotations: &Annotations,
    states: &mut ExprStates,
    parts: &mut [RegionFunction],
    literals: &Literals,
    bind_constants: bool,
) -> Result<Vec<ExprId>, Box<Diagnostic>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut state = IndexVec::filled(State::New, module.nodes.len());
    let mut states_of_parts = vec![State::New; parts.len()];
    let mut order = Vec::new();
    let mut stack: Vec<ExprId> = module.globals.values().rev().copied().collect();
    let mut needs = Vec::new();
    while let Some(&id) = stack.last() {
        match state[id] {
            State::Done => {
                stack.pop();
            }
            State::Open => {
                stack.pop();
                state[id] = State::Done;
                if let (Some(Mark::End(..)), Some(part)) = (annotations.annotation_of(module, id), states.part[id]) {
                    states_of_parts[part as usize] = State::Done;
                }
                order.push(id);
            }
            State::New => {
                state[id] = State::Open;
                needs.clear();
                match (annotations.annotation_of(module, id), states.part[id]) {
                    (Some(Mark::End(value, target)), Some(part)) => match states_of_parts[part as usize] {
                        State::New => {
                            states_of_parts[part as usize] = State::Open;
                            let current_part = part;
                            let part = &mut parts[part as usize];
                            part.inputs = inputs(
                                module,
                                annotations,
                                states,
                                current_part,
                                &part.region,
                                id,
                                literals,
                                bind_constants,
                            );
                            needs.extend(part.inputs.iter().map(|input| input.value));
                            needs.extend(
                                part.inputs
                                    .iter()
                                    .filter(|i| i.is_bound)
                                    .map(|i| strip_annotations(module, annotations, i.value)),
                            );
                            // Constants and function literals that the region uses without a parameter.
                            for &node in
                                part.region.nodes.iter().filter(|&&n| annotations.annotation_of(module, n).is_none())
                            {
                                module.expr(node).for_each_operand(|operand| {
                                    if is_duplicable(module.expr(operand)) {
                                        needs.push(operand);
                                    }
                                });
                            }
                        }
                        State::Open => {
                            let message = format!(
                                "the region of \"{target}\" around {} depends on its own result",
                                describe(module, strip_annotations(module, annotations, value))
                            );
                            return Err(Box::new(
                                Diagnostic::error(codes::passes::REGION_CYCLE, message)
                                    .help("run merge_compiler_regions, which merges regions without creating cycles"),
                            ));
                        }
                        State::Done => {}
                    },
                    _ => module.expr(id).for_each_operand(|operand| needs.push(operand)),
                }
                stack.extend(needs.iter().rev().filter(|&&need| state[need] == State::New));
            }
        }
    }
    Ok(order)
}

/// Builds a region's function and the call to it. `inner_values` is scratch memory for the values of expressions inside
/// the function; all of its entries are `None` before and after the call.
fn build_function(
    rebuild: &mut Rebuild<'_>,
    cache: &mut OutlineCache,
    module_name: &str,
    part: &RegionFunction,
    literals: &Literals,
    inner_values: &mut IndexVec<ExprId, Option<ExprId>>,
) -> Result<ExprList, Box<Diagnostic>> {
    let annotations = Annotations::new();
    let old = rebuild.old;
    let mut params = ExprList::new();
    let mut args = ExprList::new();
    for input in &part.inputs {
        let replacement = if input.is_bound {
            rebuild.get(strip_annotations(old, &annotations, input.value))
        } else {
            let (kind, k) = match input.name {
                InputName::Begin(k) => ('i', k),
                InputName::Bare(k) => ('x', k),
            };
            let Region { target, number, .. } = &part.region;
            let name = cache.param_name(target, *number, kind, k);
            let param = rebuild.new.var(name, old.ty(input.value).clone());
            params.push(param);
            args.push(rebuild.get(input.value));
            param
        };
        input.inner_ids.iter().for_each(|&id| inner_values[id] = Some(replacement));
    }
    let mut copies: Vec<ExprId> = Vec::new();
    // A captured value may follow its literal in the order of the region's nodes, but has a smaller id.
    let mut nodes = part.region.nodes.clone();
    if !literals.entries.is_empty() {
        nodes.sort_unstable();
    }
    for &node in &nodes {
        if inner_values[node].is_some() {
            continue;
        }
        let first = copies.len();
        old.expr(node).for_each_operand(|operand| {
            if matches!(old.expr(operand), Expr::Function(_))
                && inner_values[operand].is_none()
                && literals.is_copied(operand)
            {
                copies.push(operand);
            }
        });
        for &literal in &copies[first..] {
            let captured: Vec<(ExprId, ExprId)> = literals
                .captured(literal)
                .iter()
                .filter_map(|&old| Some((rebuild.get(old), inner_values[old]?)))
                .collect();
            let outer_value = rebuild.get(literal);
            inner_values[literal] = Some(copy_literal(rebuild, outer_value, captured)?);
        }
        let copy = match annotations.annotation_of(old, node) {
            Some(Mark::Begin(value, _) | Mark::End(value, _)) => inner_values[value],
            None => {
                let mut expr = old.expr(node).clone();
                expr.map_operands(|operand| inner_values[operand].unwrap_or_else(|| rebuild.get(operand)));
                let source = &old.nodes[node];
                Some(rebuild.new.module.push_typed(expr, source.ty.clone(), source.origin))
            }
        };
        inner_values[node] = copy;
    }
    let outputs = part.outputs.iter().filter_map(|&output| inner_values[output]).collect();
    part.region.nodes.iter().chain(&copies).for_each(|&node| inner_values[node] = None);
    part.inputs.iter().flat_map(|input| &input.inner_ids).for_each(|&id| inner_values[id] = None);
    let target = part.region.target.clone();
    let naming = Naming { module: module_name, function: &part.function, region: part.region.number };
    let origins = part.region.nodes.iter().map(|&node| old.nodes[node].origin);
    let origin = rebuild.new.module.origins.union_all(origins);
    Ok(define_and_call(rebuild, cache, Outline { naming, target, params, outputs }, &args, origin).1)
}
