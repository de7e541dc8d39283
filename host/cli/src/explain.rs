//! `byoc explain`: prints where each operator of the model runs, and every reason why not elsewhere.

use super::args::{ExplainArgs, InputArgs};
use super::{explain_html, output, ready, table};
use byoc::artifact;
use byoc::build::explanation::{Explanation, NodeRow};
use byoc::error::Failure;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.html {
        output::check([path.as_path()])?;
    }
    if ready::is_artifact(&args.model) {
        println!("{}", artifact::open(&args.model)?.into_compiled().explain);
        return Ok(ExitCode::SUCCESS);
    }
    let session = ready::session(&args.build)?;
    let given = ready::given(&args.model, &InputArgs::default())?;
    let built = ready::build(&args.model, &args.build, &session, &given)?;
    let explanation = &built.explanation;
    if let Some(path) = &args.html {
        let page = explain_html::page(&ready::name_of(&args.model), explanation);
        output::write(path, |file| file.write_all(page.as_bytes()))?;
    }
    if args.build.talk.json {
        println!("{}", serde_json::json!(explanation));
    } else {
        print(explanation);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(explanation: &Explanation) {
    let mut rows = table::new(&["operator", "source", "flops", "where", "why not elsewhere"]);
    for node in &explanation.nodes {
        rows.add_row([node.op.clone(), node.source.clone(), count(node.flops), place(node), reasons(node)]);
    }
    table::print(&rows);
    println!();

    let mut by_operator: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for node in &explanation.nodes {
        let sums = by_operator.entry(&node.op).or_default();
        let column = ["region", "host", "folded"].iter().position(|k| *k == node.placement.kind).unwrap_or(1);
        sums[column] += 1;
        sums[3] = node.flops.saturating_add(sums[3]);
    }
    let mut totals = table::new(&["operator", "in regions", "on host", "folded", "flops"]);
    for (op, [regions, host, folded, flops]) in by_operator {
        totals.add_row([op.to_owned(), regions.to_string(), host.to_string(), folded.to_string(), count(flops)]);
    }
    table::print(&totals);
    println!();

    if !explanation.regions.is_empty() {
        let mut regions = table::new(&["region", "backend", "operators", "flops", "inputs", "outputs"]);
        for region in &explanation.regions {
            regions.add_row([
                region.symbol.clone(),
                region.backend.clone(),
                region.nodes.len().to_string(),
                count(region.flops),
                region.inputs.join(", "),
                region.outputs.join(", "),
            ]);
        }
        table::print(&regions);
        println!();
    }
    let sums = &explanation.totals;
    println!(
        "{} operators: {} in {} regions, {} on the host, {} folded; {:.1} % of {} FLOPs on backends",
        sums.operators,
        sums.in_regions,
        sums.regions,
        sums.on_host,
        sums.folded,
        100.0 * sums.offload_share,
        count(sums.flops)
    );
    if sums.open_dims {
        println!("FLOPs are those of a run in which every open dimension is 1");
    }
}

fn place(node: &NodeRow) -> String {
    let placement = &node.placement;
    match (&placement.region, &placement.into) {
        (Some(region), _) => region.clone(),
        (None, Some(into)) => format!("folded into {into}"),
        (None, None) => placement.kind.to_owned(),
    }
}

fn reasons(node: &NodeRow) -> String {
    let all: Vec<String> = node
        .refusals
        .iter()
        .map(|r| {
            let hint = if r.hint.is_empty() { String::new() } else { format!(" ({})", r.hint) };
            format!("{}: {}: {}{hint}", r.backend, r.code, r.detail)
        })
        .collect();
    all.join("; ")
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
