//! `byoc verify`: runs models in ONNX test-data layout and compares their outputs with the recorded ones.

use super::args::{InputArgs, VerifyArgs};
use super::inputs::InputSources;
use super::interrupt::cancel_on_interrupt;
use super::ready::{self, Request};
use super::verify_result::{FolderResult, Status};
use super::{table, verify_isolated};
use byoc::Contract;
use byoc::compare::{Comparison, Tolerance, compare_values};
use byoc::frontend::Signature;
use byoc::frontend::folder::{TestFolder, TestSet};
use byoc::runtime::error::Failure;
use byoc::runtime::model::Model;
use byoc::runtime::value;
use byoc_ir::diag::{Diagnostic, codes};
use serde_json::json;
use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;

/// Runs each model on its recorded inputs and compares the outputs with the recorded ones.
pub fn run(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    if let Some(dir) = args.only_case.and_then(|index| args.dirs.get(index)) {
        // This process always prints exactly one line, even if the session cannot be created.
        let result = Request::new(&args.build).map(|request| {
            let _interruptible = cancel_on_interrupt(&request.session.cancel);
            verify_directory(dir, args, &request)
        });
        println!("{}", json!(result.unwrap_or_else(|failure| FolderResult::from_failure(&failure))));
        return Ok(ExitCode::SUCCESS);
    }
    let request = Request::new(&args.build)?;
    let _interruptible = cancel_on_interrupt(&request.session.cancel);
    let mut counts = [0usize; Status::COUNT];
    let mut table = table::new(&["case", "status", "max_abs_err", "max_rel_err", "offload", "message"]);
    for (index, dir) in args.dirs.iter().enumerate() {
        let result = if args.isolate_cases {
            verify_isolated::verify(index, &request.session.cancel)?
        } else {
            verify_directory(dir, args, &request)
        };
        counts[result.status as usize] += 1;
        let case = ready::name_of(dir);
        if args.build.diagnostics.json {
            println!(
                "{}",
                json!({"case": case, "status": result.status, "max_abs_err": result.max_abs_err,
                       "max_rel_err": result.max_rel_err, "offload_flops": result.offload,
                       "code": result.code, "message": result.message})
            );
        } else {
            let error = |e: Option<f64>| e.map_or_else(|| "-".to_owned(), |e| format!("{e:.2e}"));
            let code = result.code.map(|c| format!("{c}: ")).unwrap_or_default();
            table.add_row([
                case,
                result.status.name().to_owned(),
                error(result.max_abs_err),
                error(result.max_rel_err),
                format!("{:.1} %", 100.0 * result.offload),
                format!("{code}{}", result.message),
            ]);
        }
    }
    let [pass, fail, unsupported, error] = counts;
    let set_count = args.dirs.len();
    if args.build.diagnostics.json {
        let summary =
            json!({"pass": pass, "fail": fail, "unsupported": unsupported, "error": error, "total": set_count});
        println!("{}", json!({"summary": summary}));
    } else {
        table::print(&table);
        println!("{pass} of {set_count} pass; {fail} fail, {unsupported} unsupported, {error} errors");
    }
    Ok(ExitCode::from(u8::from(pass != set_count)))
}

/// Verifies the model in one directory. A model that cannot be built or run also yields a result.
fn verify_directory(dir: &Path, args: &VerifyArgs, request: &Request<'_>) -> FolderResult {
    let offload = Cell::new(0.0);
    verify(dir, args, request, &offload)
        .unwrap_or_else(|failure| FolderResult { offload: offload.get(), ..FolderResult::from_failure(&failure) })
}

fn is_of_another_shape(diagnostic: &Diagnostic) -> bool {
    diagnostic.code == codes::runtime::INPUT_SHAPE
}

/// Verifies the model in one directory. Sets `offload` to the share of the FLOPs on backends as soon as it is known.
fn verify(dir: &Path, args: &VerifyArgs, request: &Request<'_>, offload: &Cell<f64>) -> Result<FolderResult, Failure> {
    let test_dir = TestFolder::open(dir)?;
    let Some(first_set) = test_dir.sets.first() else {
        return Err(Failure::new(
            codes::frontends::BAD_TEST_FOLDER,
            format!("{}: expected a data set, found none", dir.display()),
        ));
    };
    let load = |set: &TestSet| -> Result<(Model, Signature), Failure> {
        let sources = ready::recorded_inputs(&test_dir, set, InputSources::read(&InputArgs::default())?)?;
        let output = request.compile_unchecked(dir, &sources)?;
        offload.set(output.min_offload_share());
        request.check_build_offload(&output)?;
        output.warnings().for_each(super::render::print_diagnostic);
        let (model, warnings) = request.load(output.compiled)?;
        offload.set(model.min_offload_share);
        request.check_load_offload(model.min_offload_share, &warnings)?;
        Ok((model, output.signature))
    };
    let (mut model, mut ports) = load(first_set)?;
    let tolerance = match args.max_rel_err {
        Some(limit) => Tolerance::MaxRelative(limit),
        None => {
            Tolerance::AllClose { rtol: test_dir.rtol.unwrap_or(args.rtol), atol: test_dir.atol.unwrap_or(args.atol) }
        }
    };
    let mut result = FolderResult {
        status: Status::Pass,
        max_abs_err: Some(0.0),
        max_rel_err: Some(0.0),
        offload: model.min_offload_share,
        code: None,
        message: String::new(),
    };
    for (set_index, set) in test_dir.sets.iter().enumerate() {
        let inputs = match set.read_inputs(&ports) {
            // Another data set may have values for other optional inputs.
            Err(_) if set_index > 0 => {
                (model, ports) = load(set)?;
                result.offload = result.offload.min(model.min_offload_share);
                set.read_inputs(&ports)?
            }
            inputs => inputs?,
        };
        let actual = match model.run(&inputs) {
            // The model is built for the dimensions of the first data set; later data sets may have different
            // dimensions.
            Err(failure) if set_index > 0 && failure.diagnostics.iter().any(is_of_another_shape) => {
                (model, ports) = load(set)?;
                result.offload = result.offload.min(model.min_offload_share);
                model.run(&inputs)?
            }
            actual => actual?,
        };
        let expected = set.read_outputs(&ports.outputs)?;
        let ports = model.outputs();
        let (actual, expected) = (value::values(ports, actual)?, value::values(ports, expected)?);
        for ((ports, actual), expected) in value::by_value(ports).zip(&actual).zip(&expected) {
            let port = &ports[0];
            let Comparison { max_abs_err, max_rel_err, difference } = compare_values(actual, expected, tolerance);
            result.max_abs_err = result.max_abs_err.map(|e| e.max(max_abs_err));
            result.max_rel_err = result.max_rel_err.map(|e| e.max(max_rel_err));
            if let Some(difference) = difference
                && result.status == Status::Pass
            {
                result.status = Status::Fail;
                result.message = format!("data set {set_index}, output \"{}\": {difference}", port.name);
            }
        }
    }
    let contract = request.contract(dir)?;
    let limit = contract.as_ref().and_then(Contract::max_rel_err);
    if let (Some(contract), Some(limit), Some(found)) = (contract, limit, result.max_rel_err)
        && result.status == Status::Pass
        && (found > limit || found.is_nan())
    {
        let violation = contract.violation("max_rel_err", limit, found);
        (result.status, result.code) = (Status::Fail, Some(violation.code.to_string()));
        result.message = violation.message;
    }
    Ok(result)
}
