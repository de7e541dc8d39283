//! `byoc bundle`: writes an artifact together with everything needed to run it.

use super::args::BundleArgs;
use super::{escape, ready};
use byoc::runtime::error::Failure;
use byoc::runtime::invocation;
use byoc::runtime::session::Session;
use byoc_bundle::Request;
use byoc_ir::diag::{Diagnostic, codes};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// File name of the bundle runner.
const RUNNER: &str = "byoc-run";

/// Writes an artifact together with everything needed to run it.
pub fn run(args: &BundleArgs) -> Result<ExitCode, Failure> {
    if !ready::is_artifact(&args.artifact) {
        let message = format!("expected an artifact, found {}", args.artifact.display());
        return Err(Diagnostic::error(codes::artifacts::NOT_AN_ARTIFACT, message)
            .help("write an artifact with \"byoc compile MODEL -o FILE.byoc\"")
            .into());
    }
    let runner = runner(args)?;
    crate::log::log_to_stderr(args.diagnostics.verbose);
    let session = Session::new(&args.plugins.plugin_dirs, 0)?;
    let licenses = invocation::directory().map(|dir| dir.join("licenses"));
    let report = byoc_bundle::write(&Request {
        session: &session,
        artifact: &args.artifact,
        runner: &runner,
        licenses: licenses.as_deref(),
        output: &args.output,
        is_forced: args.force,
    })?;
    let (contents, files, bytes) = (&report.description, report.files, report.bytes);
    if args.diagnostics.json {
        println!("{}", json!({ "files": files, "bytes": bytes, "description": contents }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut plugins: Vec<String> = contents.plugins.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
    if plugins.is_empty() {
        plugins.push("no plugin".into());
    }
    println!(
        "{}: {files} files, {:.1} MB, {}, libraries: {}; run it with {}/run",
        args.output.display(),
        bytes as f64 / 1e6,
        escape::line(&plugins.join(", ")),
        contents.libraries.len(),
        args.output.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of the runner: the value of `--runner`, or [`RUNNER`] in the directory of this executable.
fn runner(args: &BundleArgs) -> Result<PathBuf, Failure> {
    if let Some(runner_path) = &args.runner {
        return Ok(runner_path.clone());
    }
    let installed_runner = invocation::directory().map(|dir| dir.join(RUNNER));
    installed_runner.filter(|path| path.is_file()).ok_or_else(|| {
        let message = format!("expected the executable {RUNNER} in the directory of byoc, found none");
        let help = "copy the runner from a release archive, build it in a checkout with \"cargo build --package \
                    byoc-bundle\", or pass its path with --runner FILE";
        Diagnostic::error(codes::artifacts::NO_RUNNER, message).help(help).into()
    })
}
