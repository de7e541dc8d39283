//! `byoc explain NEW --diff OLD`: operators that moved between two builds, with the reasons.

use super::args::ExplainArgs;
use super::ready::{self, Request};
use super::table::count;
use super::{escape, output_file, table};
use byoc::driver::explanation::Explanation;
use byoc::driver::explanation_diff::{Difference, Moved};
use byoc::io::read_text;
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Prints the difference between an explanation and an earlier one, or writes it as Markdown.
pub fn run(args: &ExplainArgs, old: &Path, new: &Explanation) -> Result<ExitCode, Failure> {
    let difference = Difference::between(&earlier(args, old)?, new);
    if let Some(path) = &args.markdown {
        let text = difference.markdown(&ready::name_of(old), &ready::name_of(&args.model));
        output_file::write(path, |file| file.write_all(text.as_bytes()))?;
    }
    if args.build.diagnostics.json {
        println!("{}", serde_json::json!(difference));
        return Ok(ExitCode::SUCCESS);
    }
    difference.summary().iter().for_each(|line| println!("{}", escape::line(line)));
    if !difference.moved.is_empty() {
        println!();
        let rows = difference.moved.iter().map(|Moved { op, source, flops, from, to, why }| {
            vec![op.clone(), source.clone(), count(*flops), from.clone(), to.clone(), why.join("; ")]
        });
        let header = ["operator", "source", "flops", "before", "now", "why"];
        table::print_lines(&header, &rows.collect::<Vec<_>>(), &[0, 1, 3, 4]);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the explanation of an earlier state: that of an artifact, a saved one, or that of a model, which is built with
/// the same options.
fn earlier(args: &ExplainArgs, path: &Path) -> Result<Explanation, Failure> {
    if ready::is_artifact(path) {
        return ready::explanation_of(path);
    }
    if path.extension().is_some_and(|extension| extension == "json") {
        return saved(path);
    }
    let mut request = Request::new(&args.build)?;
    request.keeps_contract = false;
    Ok(request.compile_unchecked(path, &ready::recorded_alone(path)?)?.explanation)
}

/// Reads the output of `byoc explain --json`.
fn saved(path: &Path) -> Result<Explanation, Failure> {
    let text = read_text(path).map_err(|error| {
        let message = format!("--diff: cannot read {}: {error}", path.display());
        Diagnostic::error(codes::frontends::UNREADABLE_MODEL, message)
    })?;
    serde_json::from_str(&text).map_err(|error| {
        let message = format!("--diff: {}: expected the output of \"byoc explain --json\": {error}", path.display());
        let help = "write it with \"byoc explain MODEL --json > OLD.json\"";
        Diagnostic::error(codes::artifacts::MALFORMED, message).help(help).into()
    })
}
