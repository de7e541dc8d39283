//! `byoc explain`: prints the placement of each operator of the model, with the reasons of the backends that refused
//! it.

use super::args::ExplainArgs;
use super::ready::{self, Request};
use super::reasons::{Reason, Reasons};
use super::suggest::suggest;
use super::table::count;
use super::{escape, explain_diff, output_file, render, table};
use byoc::driver::backend::Backend;
use byoc::driver::contract::{Contract, FILE_NAME, RuleOutcome, is_match};
use byoc::driver::contract_report;
use byoc::driver::explain_page;
use byoc::driver::explanation::{Explanation, NodeRow, Placement, PlacementKind, RefusalRow, RegionRow, Suggestion};
use byoc::runtime::artifact;
use byoc::runtime::error::Failure;
use byoc::runtime::plugin::registry::Registry;
use byoc_conformance::report::exclusions;
use byoc_ir::diag::{Diagnostic, codes, nearest, plural};
use byoc_plugin_api::Estimate;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints the placement of each operator and the reasons of refusals, or writes them as an HTML page.
pub fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let files = [&args.html, &args.markdown, &args.sarif, &args.junit];
    output_file::check(files.into_iter().flatten().map(PathBuf::as_path))?;
    if ready::is_artifact(&args.model) && !args.suggest && !reports_contract(args) {
        return run_artifact(args);
    }
    let mut request = Request::new(&args.build)?;
    request.options.reports_contract = reports_contract(args);
    let inputs = ready::recorded_alone(&args.model)?;
    let mut build_output = request.compile(&args.model, &inputs)?;
    if !args.build.diagnostics.json {
        // The notes of these warnings would repeat the reasons that the table lists.
        build_output.unused.iter_mut().for_each(|backend| backend.warning.notes.clear());
    }
    build_output.warnings().for_each(render::print_diagnostic);
    if reports_contract(args) {
        report_contract(args, request.contract(&args.model)?, &build_output.contract)?;
    }
    let mut explanation = build_output.explanation;
    if args.suggest {
        suggest(&mut request, &args.build, &args.model, &inputs, &mut explanation)?;
    }
    let explanation = &explanation;
    if let Some(path) = &args.html {
        write_page(path, &args.model, explanation)?;
    }
    if let Some(old) = &args.diff {
        return explain_diff::run(args, old, explanation);
    }
    if let Some(pattern) = &args.why {
        return print_why(explanation, pattern, args.build.diagnostics.json);
    }
    if args.build.diagnostics.json {
        println!("{}", serde_json::json!(explanation));
    } else {
        print(explanation, args.full);
        if args.suggest {
            print_suggestions(&explanation.suggestions);
        }
        print_guarantees(explanation, &request.session.registry)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the explanation in an artifact, or writes it as an HTML page.
fn run_artifact(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    if let Some(pattern) = &args.why {
        let explanation = ready::explanation_of(&args.model)?;
        return print_why(&explanation, pattern, args.build.diagnostics.json);
    }
    if let Some(old) = &args.diff {
        return explain_diff::run(args, old, &ready::explanation_of(&args.model)?);
    }
    let explain = artifact::open(&args.model)?.into_compiled().explain;
    if let Some(path) = &args.html {
        write_page(path, &args.model, &ready::explanation_of(&args.model)?)?;
    }
    println!("{explain}");
    Ok(ExitCode::SUCCESS)
}

/// Returns true if the outcome of the contract goes to a file.
fn reports_contract(args: &ExplainArgs) -> bool {
    args.sarif.is_some() || args.junit.is_some()
}

/// Writes the outcome of the contract.
///
/// # Errors
/// E0461 if there is no contract; the violations, after the files are written.
fn report_contract(args: &ExplainArgs, contract: Option<Contract>, outcomes: &[RuleOutcome]) -> Result<(), Failure> {
    let Some(contract) = contract else {
        let message = format!("expected a contract of {}, found none", args.model.display());
        let help = format!("write {FILE_NAME} beside the model, or name a contract with --contract FILE");
        return Err(Diagnostic::error(codes::plugins::BAD_CONTRACT, message).help(help).into());
    };
    if let Some(path) = &args.sarif {
        let log = contract_report::sarif(&contract, outcomes);
        output_file::write(path, |file| writeln!(file, "{log:#}"))?;
    }
    if let Some(path) = &args.junit {
        let xml = contract_report::junit(&contract, outcomes);
        output_file::write(path, |file| file.write_all(xml.as_bytes()))?;
    }
    let violations: Vec<Diagnostic> = outcomes.iter().flat_map(|outcome| outcome.violations.clone()).collect();
    if violations.is_empty() { Ok(()) } else { Err(Failure::from(violations)) }
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
        if let Some(near_miss) = &refusal.near_miss {
            line("nearest", &near_miss.to_string());
        }
        for suggestion in &refusal.suggestions {
            line("would help", &format!("{}: {}", suggestion.change, suggestion.command));
        }
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
            let reasons: Vec<String> = node.refusals.iter().map(RefusalRow::with_near_miss).collect();
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
    if !reasons.ranked.is_empty() {
        println!();
        println!("WHY NOT ELSEWHERE");
        for (i, reason) in reasons.ranked.iter().enumerate() {
            let text = format!("{}: {}", plural(reason.operators, "operator"), reason.text);
            table::print_wrapped(&format!("[{}] ", i + 1), &text);
            print_near_misses(explanation, reason);
        }
    }
}

/// Prints the changes that were tried and with which operators move from the host to a backend.
fn print_suggestions(suggestions: &[Suggestion]) {
    println!();
    println!("WHAT WOULD HELP");
    if suggestions.is_empty() {
        println!("none of the changes that were tried moves an operator from the host to a backend");
    }
    for (i, suggestion) in suggestions.iter().enumerate() {
        let Suggestion { command, change, operators, flops_share, .. } = suggestion;
        let operators = plural(*operators, "operator");
        let text = format!("{change}: {operators} with {:.1} % of the FLOPs", 100.0 * flops_share);
        table::print_wrapped(&format!("[{}] ", i + 1), &text);
        // A command is copied, so it stays on one line.
        println!("    {}", escape::line(command));
    }
}

/// Maximum number of near misses that are printed for a reason.
const MAX_NEAR_MISSES: usize = 3;

/// Prints the entries that came nearest to the operators with a reason, most frequent first.
fn print_near_misses(explanation: &Explanation, reason: &Reason<'_>) {
    let refusals = explanation.nodes.iter().flat_map(|node| &node.refusals);
    let same = refusals.filter(|refusal| reason.members.contains(&refusal.reason()));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for near_miss in same.filter_map(|refusal| refusal.near_miss.as_ref()) {
        *counts.entry(near_miss.kind()).or_default() += 1;
    }
    let mut ranked: Vec<(String, usize)> = counts.into_iter().collect();
    ranked.sort_by_key(|(_, operators)| std::cmp::Reverse(*operators));
    let rest = ranked.len().saturating_sub(MAX_NEAR_MISSES);
    for (kind, operators) in ranked.into_iter().take(MAX_NEAR_MISSES) {
        table::print_wrapped("    nearest: ", &format!("{}: {kind}", plural(operators, "operator")));
    }
    if rest > 0 {
        println!("    and {}", plural(rest, "other"));
    }
}

fn print_totals(explanation: &Explanation) {
    let totals = &explanation.totals;
    let share = match totals.flops {
        0 => "no FLOPs".to_owned(),
        flops => format!("{:.1} % of {} FLOPs on backends", 100.0 * totals.offload_share, count(flops)),
    };
    println!(
        "{}: {} in {}, {} on the host, {} folded; {share}",
        plural(totals.operators, "operator"),
        totals.in_regions,
        plural(totals.regions, "region"),
        totals.on_host,
        totals.folded,
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
