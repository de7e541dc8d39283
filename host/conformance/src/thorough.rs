//! Tests that run for only a few cases of each claim, because they concern the backend rather than the case.

use super::case::{Case, reverse};
use super::execute::{self, FillPattern, check_outputs, judge_outputs};
use super::fault::{Fault, Kind};
use super::harness::Harness;
use super::linked::LinkedRegion;
use super::reference::BoundedTensor;
use super::test_region::TestRegion;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{Executable, Prepared};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

/// Number of concurrent threads, and number of runs per thread.
const THREADS: usize = 4;
const RUNS_PER_THREAD: usize = 24;

/// Tests a region that has run correctly once.
pub(super) fn try_region(
    harness: &Harness<'_, '_>,
    case: &Case,
    test_region: &TestRegion,
    linked_region: &LinkedRegion,
) -> Result<(), Fault> {
    check_reproducible_bytes(harness, test_region, linked_region)?;
    let executable = harness.load(test_region, linked_region, &linked_region.blob, harness.services)?;
    let plan = harness.prepare(test_region, &*executable)?;
    let second_set = second_inputs(test_region);
    check_repeated_runs(harness, test_region, &second_set, &*executable, &plan)?;
    check_aliased_inputs(harness, test_region, &*executable, &plan)?;
    check_concurrent_runs(harness, test_region, &second_set, (&*executable, &plan), linked_region)?;
    check_single_thread(harness, test_region, linked_region)?;
    check_unknown_query(harness, test_region, &*executable, linked_region)?;
    drop(executable);
    check_second_load(harness, test_region, linked_region)?;
    check_other_constants(harness, case)?;
    check_damaged_blobs(harness, test_region, linked_region)
}

/// Checks that the same region and options compile to the same bytes.
fn check_reproducible_bytes(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    first_blob: &LinkedRegion,
) -> Result<(), Fault> {
    let second_blob = harness.compile(test_region, harness.cache_dir)?;
    if second_blob.blob == first_blob.blob {
        return Ok(());
    }
    let position =
        first_blob.blob.iter().zip(&second_blob.blob).position(|(a, b)| a != b).unwrap_or(first_blob.blob.len());
    let message = format!(
        "the blobs of two compilations of {} differ from byte {position} on ({} and {} bytes)",
        test_region.graph.symbol,
        first_blob.blob.len(),
        second_blob.blob.len()
    );
    Err(Fault::new(Kind::NotDeterministic, "compile", message))
}

/// Returns the inputs with their elements in reverse order, and the expected results. Reversal keeps indices in bounds.
pub(super) fn second_inputs(test_region: &TestRegion) -> Option<SecondInputs> {
    let inputs: Vec<Tensor> = test_region.inputs.iter().map(reverse).collect();
    test_region.with_inputs(inputs).ok().map(|(inputs, expected)| SecondInputs { inputs, expected })
}

/// Second set of inputs of a region, with the reference results.
pub(super) struct SecondInputs {
    /// Inputs.
    pub inputs: Vec<Tensor>,
    /// Expected results.
    pub expected: Vec<BoundedTensor>,
}

/// Checks that an intervening run on different inputs does not change the result.
fn check_repeated_runs(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    second_set: &Option<SecondInputs>,
    executable: &dyn Executable,
    plan: &Prepared,
) -> Result<(), Fault> {
    if let Some(second_set) = second_set {
        let outputs = harness.run(test_region, executable, plan, FillPattern::NAN, &second_set.inputs)?;
        check_outputs(&outputs, &second_set.expected, Kind::NotRepeatable, "run", "second run, with other values")?;
    }
    harness.prepare(test_region, executable)?;
    let outputs = harness.run(test_region, executable, plan, FillPattern::NAN, &test_region.inputs)?;
    check_outputs(&outputs, &test_region.expected, Kind::NotRepeatable, "run", "a later run")
}

/// Checks a run in which two inputs of the same type share memory.
fn check_aliased_inputs(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    executable: &dyn Executable,
    plan: &Prepared,
) -> Result<(), Fault> {
    let inputs = &test_region.inputs;
    let pair =
        (1..inputs.len()).find(|&i| inputs[i].dtype() == inputs[0].dtype() && inputs[i].shape() == inputs[0].shape());
    let Some(second_set) = pair else { return Ok(()) };
    let mut shared_inputs = inputs.clone();
    shared_inputs[second_set] = shared_inputs[0].clone();
    let Ok((shared_inputs, expected)) = test_region.with_inputs(shared_inputs) else { return Ok(()) };
    let memory = execute::copy_inputs(&shared_inputs, FillPattern::NAN)?;
    let mut buffer_indices: Vec<usize> = (0..shared_inputs.len()).collect();
    buffer_indices[second_set] = 0;
    (harness.progress)("run", &test_region.graph.symbol);
    let _options = harness.run_options().enter();
    let outputs =
        execute::run_on(test_region, executable, plan, FillPattern::NAN, &shared_inputs, &memory, &buffer_indices)?;
    check_outputs(&outputs, &expected, Kind::Aliasing, "run", &format!("inputs 0 and {second_set} in the same memory"))
}

/// Checks concurrent runs of two executables from the same blob, on alternating inputs. For a backend that serves one
/// run at a time, the runs are serialized, as in the host.
fn check_concurrent_runs(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    second_set: &Option<SecondInputs>,
    (executable, plan): (&dyn Executable, &Prepared),
    linked_region: &LinkedRegion,
) -> Result<(), Fault> {
    let second_executable = harness.load(test_region, linked_region, &linked_region.blob, harness.services)?;
    let second_plan = harness.prepare(test_region, &*second_executable)?;
    (harness.progress)("run by several threads", &test_region.graph.symbol);
    let run_lock = harness.serves_one_run(linked_region).then(Mutex::default);
    let run_options = harness.run_options();
    let barrier = Barrier::new(THREADS);
    let worker = |worker: usize| -> Result<(), Fault> {
        let (inputs, expected) = match second_set {
            Some(second_set) if worker % 2 == 1 => (&second_set.inputs, &second_set.expected),
            _ => (&test_region.inputs, &test_region.expected),
        };
        let (executable, plan) = match worker < 2 {
            true => (executable, plan),
            false => (&*second_executable, &second_plan),
        };
        barrier.wait();
        for _ in 0..RUNS_PER_THREAD {
            let lock: Option<MutexGuard<'_, ()>> =
                run_lock.as_ref().map(|run_lock: &Mutex<()>| run_lock.lock().unwrap_or_else(PoisonError::into_inner));
            let _options = run_options.clone().enter();
            let outputs = execute::run(test_region, executable, plan, FillPattern::NAN, inputs)?;
            drop(lock);
            check_outputs(&outputs, expected, Kind::NotReentrant, "run", "a concurrent run")?;
        }
        Ok(())
    };
    let results: Vec<Result<(), Fault>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || worker(n))).collect();
        let panic_fault = || Err(Fault::new(Kind::NotReentrant, "run", "a thread panicked"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panic_fault())).collect()
    });
    match results.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(fault) => {
            let message = format!("{THREADS} threads run two executables of one blob: {fault}");
            Err(Fault::new(Kind::NotReentrant, "run", message))
        }
    }
}

/// Checks the result of a run with single-threaded services.
fn check_single_thread(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    linked_region: &LinkedRegion,
) -> Result<(), Fault> {
    let executable = harness.load(test_region, linked_region, &linked_region.blob, harness.single_threaded)?;
    harness.rerun(test_region, &*executable, (Kind::Threads, "run", "with one thread"))
}

/// Checks the result of a second executable from the same blob, after the first executable is dropped.
fn check_second_load(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    linked_region: &LinkedRegion,
) -> Result<(), Fault> {
    let (first_output, second_output) = (
        harness.load(test_region, linked_region, &linked_region.blob, harness.services)?,
        harness.load(test_region, linked_region, &linked_region.blob, harness.services)?,
    );
    drop(first_output);
    harness.rerun(
        test_region,
        &*second_output,
        (Kind::NotRepeatable, "load", "second load, after the first was dropped"),
    )
}

/// Checks that a region with the same shapes but different constants does not produce stale results.
fn check_other_constants(harness: &Harness<'_, '_>, case: &Case) -> Result<(), Fault> {
    let is_weight = |tensor: &Tensor| tensor.len() > 1 && (tensor.dtype().is_float() || tensor.dtype().size() == 1);
    let other = case.with_constants(|tensor| if is_weight(tensor) { reverse(tensor) } else { tensor.clone() });
    let Ok(test_regions) = harness.partition(&other) else { return Ok(()) };
    for test_region in test_regions.iter().filter(|test_region| test_region.tensors.iter().any(|t| is_weight(t))) {
        let linked_region = harness.compile(test_region, harness.cache_dir)?;
        let executable = harness.load(test_region, &linked_region, &linked_region.blob, harness.services)?;
        harness.rerun(
            test_region,
            &*executable,
            (Kind::StaleConstants, "run", "a second region with other constants"),
        )?;
    }
    Ok(())
}

/// Checks that code generator, loader and executable report an unknown query key as unknown.
fn check_unknown_query(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    executable: &dyn Executable,
    linked_region: &LinkedRegion,
) -> Result<(), Fault> {
    const KEY: &str = "byoc.conformance.an unknown key";
    (harness.progress)("query", &test_region.graph.symbol);
    let loader = (harness.find_loader)(&linked_region.loader);
    let responses = [
        ("code generator", harness.backend.codegen.query(KEY, &[1, 2, 3])),
        ("loader", loader.map_or(Ok(None), |loader| loader.query(KEY, &[]))),
        ("executable", executable.query(KEY, &[])),
    ];
    for (responder, response) in responses {
        match response {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                let message = format!("{responder}: expected no reply to an unknown key, found {} bytes", bytes.len());
                return Err(Fault::new(Kind::Query, "query", message));
            }
            Err(error) => {
                let message = format!("{responder}: expected no reply to an unknown key, found an error: {error}");
                return Err(Fault::new(if error.panicked { Kind::Panic } else { Kind::Query }, "query", message));
            }
        }
    }
    Ok(())
}

/// Checks corrupt blobs. A truncated blob must be rejected, or run correctly if nothing essential was cut off. A blob
/// with a changed byte may load, because the digest in an artifact detects it earlier, but must not terminate the
/// process.
fn check_damaged_blobs(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    linked_region: &LinkedRegion,
) -> Result<(), Fault> {
    let blob = linked_region.blob.as_slice();
    let lengths = [0, 1, 7, blob.len() / 4, blob.len() / 2, blob.len().saturating_sub(9), blob.len().saturating_sub(1)];
    for &length in lengths.iter().filter(|&&length| length < blob.len()) {
        check_damaged_load(
            harness,
            test_region,
            linked_region,
            &blob[..length],
            &format!("truncated to {length} of {} bytes", blob.len()),
        )?;
    }
    let mut damaged_blob = blob.to_vec();
    for part in 0..12 {
        let offset = (blob.len() * part / 12).min(blob.len().saturating_sub(1));
        let Some(byte) = damaged_blob.get_mut(offset) else { break };
        *byte ^= 0x55;
        (harness.progress)(&format!("load of a blob with byte {offset} changed"), &test_region.graph.symbol);
        match harness.load(test_region, linked_region, &damaged_blob, harness.services) {
            Err(fault) if fault.kind == Kind::Panic => {
                let message = format!("a blob with byte {offset} of {} changed: {}", blob.len(), fault.message);
                return Err(Fault::new(Kind::DamagedBlob, "load", message));
            }
            _ => damaged_blob[offset] = blob[offset],
        }
    }
    Ok(())
}

fn check_damaged_load(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    linked_region: &LinkedRegion,
    blob: &[u8],
    description: &str,
) -> Result<(), Fault> {
    let fault =
        |message: String| Err(Fault::new(Kind::DamagedBlob, "load", format!("a blob {description}: {message}")));
    let executable = match harness.load(test_region, linked_region, blob, harness.services) {
        Ok(executable) => executable,
        Err(error) if error.kind == Kind::Panic => return fault(error.message),
        Err(_) => return Ok(()),
    };
    let run = harness
        .prepare(test_region, &*executable)
        .and_then(|plan| harness.run(test_region, &*executable, &plan, FillPattern::NAN, &test_region.inputs));
    match run.map(|outputs| judge_outputs(&outputs, &test_region.expected)) {
        Ok(Err((output, mismatch))) => {
            fault(format!("expected an error or correct results, found a mismatch in output {output}: {mismatch}"))
        }
        Err(error) if error.kind != Kind::RunFailed => {
            fault(format!("expected an error of load or run, or correct results, found {error}"))
        }
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}
