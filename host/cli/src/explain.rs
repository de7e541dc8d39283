//! `byoc explain`: prints the placement of each operator of the model, with the reasons of the backends that refused
//! it.

use super::args::ExplainArgs;
use super::ready::{self, Request};
use super::{output_file, render, table};
use byoc::driver::backend::Backend;
use byoc::driver::contract::is_match;
use byoc::driver::explain_page;
use byoc::driver::explanation::{Explanation, NodeRow, Placement, PlacementKind, RefusalRow, RegionRow};
use byoc::runtime::artifact;
use byoc::runtime::error::Failure;
use byoc::runtime::plugin::registry::Registry;
use byoc_conformance::report::exclusions;
use byoc_ir::diag::{Diagnostic, codes, nearest, plural};
use byoc_plugin_api::Estimate;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Prints the placement of each operator and the reasons of refusals, or writes them as an HTML page.
pub fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.html {
        output_file::check([path.as_path()])?;
    }
    if ready::is_artifact(&args.model) {
        if let Some(pattern) = &args.why {
            let explanation = explanation_of(&args.model)?;
            return print_why(&explanation, pattern, args.build.diagnostics.json);
        }
        let explain = artifact::open(&args.model)?.into_compiled().explain;
        if let Some(path) = &args.html {
            write_page(path, &args.model, &explanation_of(&args.model)?)?;
        }
        println!("{explain}");
        return Ok(ExitCode::SUCCESS);
    }
    let request = Request::new(&args.build)?;
    let mut build_output = request.compile(&args.model, &ready::recorded_alone(&args.model)?)?;
    if !args.build.diagnostics.json {
        // The notes of these warnings would repeat the reasons that the table lists.
        build_output.unused.iter_mut().for_each(|backend| backend.warning.notes.clear());
    }
    build_output.warnings().for_each(render::print_diagnostic);
    let explanation = &build_output.explanation;
    if let Some(path) = &args.html {
        write_page(path, &args.model, explanation)?;
    }
    if let Some(pattern) = &args.why {
        return print_why(explanation, pattern, args.build.diagnostics.json);
    }
    if args.build.diagnostics.json {
        println!("{}", serde_json::json!(explanation));
    } else {
        print(explanation, args.full);
        print_guarantees(explanation, &request.session.registry)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the explanation in an artifact.
fn explanation_of(path: &Path) -> Result<Explanation, Failure> {
    let explain = artifact::open(path)?.into_compiled().explain;
    Explanation::deserialize(&explain).map_err(|error| {
        let message = format!("{}: expected an explanation of this release: {error}", path.display());
        Diagnostic::error(codes::artifacts::MALFORMED, message).help("compile the model again").into()
    })
}

/// Prints everything that is known of the operators that a pattern names.
fn print_why(explanation: &Explanation, pattern: &str, is_json: bool) -> Result<ExitCode, Failure> {
    let selected = |by: fn(&NodeRow) -> &str| -> Vec<&NodeRow> {
        explanation.nodes.iter().filter(|node| is_match(pattern, by(node))).collect()
    };
    let by_name = selected(|node| &node.source);
    let nodes = if by_name.is_empty() { selected(|node| &node.op) } else { by_name };
    if nodes.is_empty() {
        let message = format!("--why: expected an operator of the model, found \"{pattern}\"");
        let names = explanation.nodes.iter().flat_map(|node| [node.source.as_str(), node.op.as_str()]);
        let help = match nearest(pattern, names) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => "\"byoc explain MODEL\" lists the operators".to_owned(),
        };
        return Err(Diagnostic::error(codes::types::UNKNOWN_OPERATOR, message).help(help).into());
    }
    for (index, node) in nodes.into_iter().enumerate() {
        let regions = || explanation.regions.iter().filter(|region| region.nodes.contains(&node.id));
        if is_json {
            println!("{}", serde_json::json!({ "node": node, "regions": regions().collect::<Vec<_>>() }));
            continue;
        }
        if index > 0 {
            println!();
        }
        print_story(explanation, node, regions());
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the place of an operator with its neighbors, and the reasons of every backend that does not have it.
fn print_story<'e>(explanation: &'e Explanation, node: &NodeRow, regions: impl Iterator<Item = &'e RegionRow>) {
    let share = 100.0 * node.flops as f64 / explanation.totals.flops.max(1) as f64;
    let cost = if node.flops == 0 {
        "no FLOPs".to_owned()
    } else {
        format!("{} FLOPs, {share:.1} % of the model", count(node.flops))
    };
    println!("{} {}: {cost}", node.op, node.source);
    let line = |label: &str, text: &str| table::print_wrapped(&format!("  {label}: "), text);
    line("runs", &placement_names(node).join(", "));
    for region in regions {
        let others = region.nodes.len().saturating_sub(1);
        let text = format!("{} of {}, with {}", region.symbol, region.backend, plural(others, "other operator"));
        line("region", &text);
        line("region takes", &region.inputs.join(", "));
        line("region gives", &region.outputs.join(", "));
        if !region.precision.is_empty() {
            line("precision", &region.precision.join("; "));
        }
        if let Some(estimate) = &region.estimate {
            line("estimate", &estimate_text(estimate));
        }
    }
    let name = |other: &NodeRow| format!("{} {} ({})", other.op, other.source, placement_names(other).join(", "));
    let before: Vec<String> = node.inputs.iter().filter_map(|&id| explanation.nodes.get(id)).map(name).collect();
    let after: Vec<String> =
        explanation.nodes.iter().filter(|other| other.inputs.contains(&node.id)).map(name).collect();
    for (label, names) in [("reads", before), ("read by", after)] {
        if !names.is_empty() {
            line(label, &names.join(", "));
        }
    }
    for refusal in &node.refusals {
        line("refused", &refusal.to_string());
    }
    if node.refusals.is_empty() && node.placement.kind == PlacementKind::Host {
        line("refused", "by no backend: none was asked");
    }
}

fn write_page(path: &Path, model: &Path, explanation: &Explanation) -> Result<(), Failure> {
    let page = explain_page::page(&ready::name_of(model), explanation);
    Ok(output_file::write(path, |file| file.write_all(page.as_bytes()))?)
}

/// Prints the totals, one row per operator, and the numbered reasons, to which the rows refer. With `is_full`, each row
/// contains its complete reasons instead.
pub(crate) fn print(explanation: &Explanation, is_full: bool) {
    print_totals(explanation);
    print_operator_types(explanation);
    print_regions(explanation, is_full);
    if is_full {
        let mut rows = table::new(&["operator", "source", "flops", "where", "why not elsewhere"]);
        for node in &explanation.nodes {
            let reasons: Vec<String> = node.refusals.iter().map(RefusalRow::to_string).collect();
            let location = placement_names(node).join(", ");
            rows.add_row([node.op.clone(), node.source.clone(), count(node.flops), location, reasons.join("; ")]);
        }
        table::print(&rows);
        return;
    }
    let reasons = Reasons::of(explanation);
    let header = ["operator", "source", "flops", "where", "why not elsewhere"];
    let rows = explanation.nodes.iter().map(|node| {
        let location = match &placement_names(node)[..] {
            [only] => only.clone(),
            [first_place, second_place] => format!("{first_place}, {second_place}"),
            // The host is always named, as it is the most important placement for the user; of the other placements,
            // only the first is named.
            [first_place, other_places @ ..] if other_places.iter().any(|location| location == "host") => {
                format!("{first_place}, host and {} more", other_places.len() - 1)
            }
            [first_place, other_places @ ..] => format!("{first_place} and {} more", other_places.len()),
            [] => String::new(),
        };
        vec![node.op.clone(), node.source.clone(), count(node.flops), location, reasons.reason_numbers(node)]
    });
    table::print_lines(&header, &rows.collect::<Vec<_>>(), &[0, 1, 3]);
    if !reasons.ranked_refusals.is_empty() {
        println!();
        println!("WHY NOT ELSEWHERE");
        for (i, (refusal, operators)) in reasons.ranked_refusals.iter().enumerate() {
            let text = format!("{}: {refusal}", plural(*operators, "operator"));
            table::print_wrapped(&format!("[{}] ", i + 1), &text);
        }
    }
}

fn print_totals(explanation: &Explanation) {
    let totals = &explanation.totals;
    println!(
        "{}: {} in {}, {} on the host, {} folded; {:.1} % of {} FLOPs on backends",
        plural(totals.operators, "operator"),
        totals.in_regions,
        plural(totals.regions, "region"),
        totals.on_host,
        totals.folded,
        100.0 * totals.offload_share,
        count(totals.flops)
    );
    let is_split = |node: &&NodeRow| node.parts.iter().any(|part| part.kind == PlacementKind::Host);
    let split_count =
        explanation.nodes.iter().filter(|n| n.placement.kind == PlacementKind::Region).filter(is_split).count();
    if split_count > 0 {
        println!("{} in regions with a part on the host", plural(split_count, "operator"));
    }
    for copies in &explanation.copies {
        println!(
            "copies per run: {} ({} bytes) to the device of {}, {} ({} bytes) from the device",
            plural(copies.to_device, "tensor"),
            count(copies.to_device_bytes as u64),
            copies.backend,
            plural(copies.from_device, "tensor"),
            count(copies.from_device_bytes as u64)
        );
    }
    if totals.open_dims {
        println!("FLOPs are counted with every symbolic dimension set to 1");
    }
    println!();
}

fn print_operator_types(explanation: &Explanation) {
    let mut counts_by_operator: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for node in &explanation.nodes {
        let row = counts_by_operator.entry(&node.op).or_default();
        let column = PlacementKind::ALL.iter().position(|kind| *kind == node.placement.kind).unwrap_or(1);
        row[column] += 1;
        row[3] = node.flops.saturating_add(row[3]);
    }
    let rows = counts_by_operator.into_iter().map(|(op, [regions, host, folded, flops])| {
        vec![op.to_owned(), regions.to_string(), host.to_string(), folded.to_string(), count(flops)]
    });
    let header = ["operator", "in regions", "on host", "folded", "flops"];
    table::print_lines(&header, &rows.collect::<Vec<_>>(), &[0]);
    println!();
}

/// Formats an estimate, as in `1.5 ms, 3 launches, 4096 bytes`.
fn estimate_text(estimate: &Estimate) -> String {
    let mut parts = Vec::new();
    if let Some(nanoseconds) = estimate.nanoseconds {
        parts.push(match nanoseconds {
            0..1_000 => format!("{nanoseconds} ns"),
            1_000..1_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
            1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
            _ => format!("{:.1} s", nanoseconds as f64 / 1e9),
        });
    }
    if let Some(launches) = estimate.launches {
        parts.push(format!("{launches} launch{}", if launches == 1 { "" } else { "es" }));
    }
    parts.extend(estimate.bytes.map(|bytes| format!("{} bytes", count(bytes))));
    parts.extend(estimate.further.iter().map(|(name, value)| format!("{name} {value}")));
    parts.join(", ")
}

fn print_regions(explanation: &Explanation, is_full: bool) {
    if explanation.regions.is_empty() {
        return;
    }
    let mut header = vec!["region", "backend", "operators", "flops"];
    let has_estimates = explanation.regions.iter().any(|region| region.estimate.is_some());
    let has_claims = explanation.regions.iter().any(|region| !region.precision.is_empty());
    header.extend(has_claims.then_some("precision"));
    header.extend(has_estimates.then_some("estimate"));
    header.extend(["inputs", "outputs"].into_iter().filter(|_| is_full));
    let rows = explanation.regions.iter().map(|region| {
        let (operators, flops) = (region.nodes.len().to_string(), count(region.flops));
        let mut row = vec![region.symbol.clone(), region.backend.clone(), operators, flops];
        row.extend(has_claims.then(|| match &region.precision[..] {
            [] => "-".to_owned(),
            claims => claims.join("; "),
        }));
        row.extend(has_estimates.then(|| region.estimate.as_ref().map_or_else(|| "-".to_owned(), estimate_text)));
        let types = [region.inputs.join(", "), region.outputs.join(", ")];
        row.extend(types.into_iter().filter(|_| is_full));
        row
    });
    table::print_lines(&header, &rows.collect::<Vec<_>>(), if is_full { &[] } else { &[0] });
    println!();
}

/// Prints the special values (NaN, infinity, subnormals) for which the backends with regions give no guarantees.
fn print_guarantees(explanation: &Explanation, registry: &Registry) -> Result<(), Failure> {
    let backends: BTreeSet<&str> = explanation.regions.iter().map(|region| &*region.backend).collect();
    let mut notes = Vec::new();
    for name in backends {
        let description = &Backend::find(registry, name)?.description;
        let backend_notes = exclusions(description.finite_math, description.flush_to_zero);
        notes.extend(backend_notes.map(|note| format!("{name}: {note}")));
    }
    if !notes.is_empty() {
        println!();
    }
    notes.iter().for_each(|note| println!("{note}"));
    Ok(())
}

/// Distinct refusal reasons, most frequent first.
struct Reasons<'a> {
    ranked_refusals: Vec<(&'a RefusalRow, usize)>,
    numbers: BTreeMap<&'a RefusalRow, usize>,
}

impl<'a> Reasons<'a> {
    fn of(explanation: &'a Explanation) -> Reasons<'a> {
        let mut counts: BTreeMap<&RefusalRow, usize> = BTreeMap::new();
        for refusal in explanation.nodes.iter().flat_map(|node| &node.refusals) {
            *counts.entry(refusal).or_default() += 1;
        }
        let mut ranked_refusals: Vec<(&RefusalRow, usize)> = counts.into_iter().collect();
        // The sort is stable, so equally frequent reasons stay sorted by backend and code.
        ranked_refusals.sort_by_key(|(_, operators)| std::cmp::Reverse(*operators));
        let numbers = ranked_refusals.iter().enumerate().map(|(i, (refusal, _))| (*refusal, i + 1)).collect();
        Reasons { ranked_refusals, numbers }
    }

    /// Formats the numbers of an operator's reasons, as in `[1] [3]`.
    fn reason_numbers(&self, node: &NodeRow) -> String {
        let mut indices: Vec<usize> = node.refusals.iter().filter_map(|r| self.numbers.get(r).copied()).collect();
        indices.sort_unstable();
        let indices: Vec<String> = indices.iter().map(|n| format!("[{n}]")).collect();
        indices.join(" ")
    }
}

/// Returns the placements of an operator, the main placement first.
fn placement_names(node: &NodeRow) -> Vec<String> {
    let other_parts = node.parts.iter().filter(|part| **part != node.placement);
    std::iter::once(&node.placement).chain(other_parts).map(placement_name).collect()
}

fn placement_name(placement: &Placement) -> String {
    match (&placement.region, &placement.into) {
        (Some(region), _) => region.clone(),
        (None, Some(target)) => format!("folded into {target}"),
        (None, None) => placement.kind.name().to_owned(),
    }
}

/// Formats a count with an SI prefix.
fn count(n: u64) -> String {
    match n {
        0 => "-".to_owned(),
        n if n < 10_000 => n.to_string(),
        n if n < 10_000_000 => format!("{:.1} k", n as f64 / 1e3),
        n if n < 10_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        n => format!("{:.1} G", n as f64 / 1e9),
    }
}
