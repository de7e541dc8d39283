//! `merge_compiler_regions`: merges adjacent regions of one target where that creates no cycle.
//!
//! Regions are visited in the order of their ends, producers first. Each region is merged with the regions that produce
//! its inputs, in the order of the inputs, so the result is deterministic. The search for cycles includes the
//! expressions between regions: branches, functions, and let-bound variables. Regions in different functions or
//! different let bodies are never merged, because the values of one are not visible in the other.

use super::super::merge_graph::{MergeGraph, for_each_flow};
use super::annotation::{Annotations, Mark};
use super::regions::{RegionReader, is_closed_function};
use crate::analysis::scope::{Bodies, Captures, is_opaque};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Expr, ExprId, IndexVec, Module};
use byoc_ir::typing::Rebuild;

/// Merges adjacent regions of one target.
///
/// # Errors
/// If the annotations are inconsistent.
pub fn merge_compiler_regions(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let annotations = Annotations::new();
    let mut reader = RegionReader::new(module);
    let mut is_internal = IndexVec::filled(false, module.nodes.len());
    let mut node_of = IndexVec::filled(0u32, module.nodes.len());
    let bodies = Bodies::of(module);
    let mut captures: Option<Captures<'_>> = None;
    for &root in module.globals.values() {
        if module.expr(root).as_function().is_none_or(is_opaque) {
            continue;
        }
        let region_set = reader.read(root)?;
        // The graph has one node per region and one per expression outside regions, numbered in order of first
        // occurrence.
        let mut len = 0;
        let mut region_node = vec![None; region_set.regions.len()];
        let mut region_at = Vec::new();
        for &id in &region_set.order {
            node_of[id] = match reader.region(id) {
                Some(region) => *region_node[region as usize].get_or_insert_with(|| {
                    region_at.resize(len as usize + 1, None);
                    region_at[len as usize] = Some(region);
                    len += 1;
                    len - 1
                }),
                None => {
                    len += 1;
                    len - 1
                }
            };
        }
        region_at.resize(len as usize, None);
        let mut edges = Vec::new();
        for &id in &region_set.order {
            let mut add_edge = |producer: ExprId, consumer: ExprId| {
                if reader.owns(producer) && reader.owns(consumer) {
                    edges.push((node_of[producer], node_of[consumer]));
                }
            };
            match module.expr(id) {
                // The values that a composite captures flow into the composite.
                expr @ Expr::Function(_) if is_closed_function(expr) => {
                    let captures = captures.get_or_insert_with(|| Captures::of(module));
                    captures.of_literal(id).into_iter().for_each(|producer| add_edge(producer, id));
                }
                _ => for_each_flow(module, id, add_edge),
            }
        }
        let mut graph = MergeGraph::new(len as usize, edges);
        let mut is_done = vec![false; region_set.regions.len()];
        let mut is_waiting = vec![false; region_set.regions.len()];
        let ends =
            region_set.order.iter().filter(|&&id| matches!(annotations.annotation_of(module, id), Some(Mark::End(..))));
        for &end in ends {
            let Some(first) = reader.region(end) else { continue };
            // Each region is visited after the regions that produce its inputs, without recursion.
            let mut stack = vec![(first, 0)];
            is_waiting[first as usize] = true;
            while let Some((region, next_input)) = stack.last_mut() {
                let (current, begins) = (*region, &region_set.regions[*region as usize].begins);
                if *next_input < begins.len() && !is_done[current as usize] {
                    let source = source_region(module, &annotations, &reader, begins[*next_input]);
                    *next_input += 1;
                    if let Some(source) = source
                        && source != current
                        && !is_done[source as usize]
                        && !std::mem::replace(&mut is_waiting[source as usize], true)
                    {
                        stack.push((source, 0));
                    }
                    continue;
                }
                stack.pop();
                if std::mem::replace(&mut is_done[current as usize], true) {
                    continue;
                }
                let region_data = &region_set.regions[current as usize];
                for &begin in &region_data.begins {
                    if let Some(source) = source_region(module, &annotations, &reader, begin)
                        && source != current
                        && region_set.regions[source as usize].target == region_data.target
                        && bodies.are_in_same_body(begin, region_set.regions[source as usize].begins[0])
                    {
                        let node = |r: u32| region_node[r as usize].expect("a region has a node");
                        graph.merge(node(source), node(current));
                    }
                }
            }
        }
        for &id in &region_set.order {
            if let Some(Mark::Begin(value, _)) = annotations.annotation_of(module, id)
                && matches!(annotations.annotation_of(module, value), Some(Mark::End(..)))
            {
                is_internal[id] =
                    reader.region(value).is_some() && graph.find(node_of[id]) == graph.find(node_of[value]);
            }
        }
    }
    Rebuild::run(module, |rebuild, id, expr| {
        if !is_internal[id] {
            return Ok(None);
        }
        let mut value = None;
        expr.for_each_operand(|end| module.expr(end).for_each_operand(|operand| value = Some(operand)));
        Ok(value.map(|operand| rebuild.get(operand)))
    })
}

/// Returns the region that produces the value of a begin.
fn source_region(module: &Module, annotations: &Annotations, reader: &RegionReader<'_>, begin: ExprId) -> Option<u32> {
    match annotations.annotation_of(module, begin) {
        Some(Mark::Begin(value, _)) => reader.region(value),
        _ => None,
    }
}
