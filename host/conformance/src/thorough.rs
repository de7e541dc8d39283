//! Tests that run once or twice for each claim, because they are about the backend more than about the case.

use super::bench::Bench;
use super::case::Case;
use super::execute::{self, Setting, expect, judge_outputs};
use super::fault::{Fault, Kind};
use super::piece::Piece;
use super::reference::Bounded;
use byoc_ir::tensor::Tensor;
use byoc_ir::with_dtype;
use byoc_plugin_api::{CompiledRegion, Executable, Prepared};
use std::sync::Barrier;

/// Number of concurrent threads, and number of runs of each.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 24;

/// Tests a piece that has run correctly once.
pub(super) fn try_piece(
    bench: &Bench<'_, '_>,
    case: &Case,
    piece: &Piece,
    compiled: &CompiledRegion,
) -> Result<(), Fault> {
    same_bytes(bench, piece, compiled)?;
    let executable = bench.load(piece, compiled, &compiled.blob, bench.services)?;
    let prepared = bench.prepare(piece, &*executable)?;
    let other = other_inputs(piece)?;
    repeatedly(bench, piece, &other, &*executable, &prepared)?;
    aliased(bench, piece, &*executable, &prepared)?;
    at_once(bench, piece, &other, &*executable, &prepared)?;
    one_thread(bench, piece, compiled)?;
    unknown_query(bench, &*executable, compiled)?;
    drop(executable);
    loaded_again(bench, piece, compiled)?;
    other_constants(bench, case)?;
    damaged(bench, piece, compiled)
}

/// Checks that the same region and options compile to the same bytes.
fn same_bytes(bench: &Bench<'_, '_>, piece: &Piece, first: &CompiledRegion) -> Result<(), Fault> {
    let second = bench.compile(piece, bench.cache_dir)?;
    if second.blob == first.blob {
        return Ok(());
    }
    let at = first.blob.iter().zip(&second.blob).position(|(a, b)| a != b).unwrap_or(first.blob.len());
    let message = format!(
        "the blobs of two compilations of {} differ from byte {at} on ({} and {} bytes)",
        piece.graph.symbol,
        first.blob.len(),
        second.blob.len()
    );
    Err(Fault::new(Kind::NotDeterministic, "compile", message))
}

/// Returns inputs with their elements in reverse order, and the expected results. Elements with a meaning to the
/// program (indices) are equally valid at another position.
fn other_inputs(piece: &Piece) -> Result<Option<Other>, Fault> {
    let inputs: Vec<Tensor> = piece.inputs.iter().map(reversed).collect();
    Ok(piece.on(inputs).ok().map(|(inputs, expected)| Other { inputs, expected }))
}

struct Other {
    inputs: Vec<Tensor>,
    expected: Vec<Bounded>,
}

fn reversed(tensor: &Tensor) -> Tensor {
    Tensor::build(tensor.dtype(), tensor.shape(), |bytes| {
        bytes.copy_from_slice(tensor.bytes());
        with_dtype!(tensor.dtype(), T => bytemuck::cast_slice_mut::<u8, T>(bytes).reverse());
    })
    .expect("a case exceeds the memory")
}

/// Checks that another run in between does not change the result.
fn repeatedly(
    bench: &Bench<'_, '_>,
    piece: &Piece,
    other: &Option<Other>,
    executable: &dyn Executable,
    prepared: &Prepared,
) -> Result<(), Fault> {
    if let Some(other) = other {
        let outputs = bench.run(piece, executable, prepared, Setting::NAN, &other.inputs)?;
        expect(&outputs, &other.expected, Kind::NotRepeatable, "run", "second run, with other values")?;
    }
    bench.prepare(piece, executable)?;
    let outputs = bench.run(piece, executable, prepared, Setting::NAN, &piece.inputs)?;
    expect(&outputs, &piece.expected, Kind::NotRepeatable, "run", "a later run")
}

/// Checks two inputs of one type in the same memory.
fn aliased(
    bench: &Bench<'_, '_>,
    piece: &Piece,
    executable: &dyn Executable,
    prepared: &Prepared,
) -> Result<(), Fault> {
    let inputs = &piece.inputs;
    let pair =
        (1..inputs.len()).find(|&i| inputs[i].dtype() == inputs[0].dtype() && inputs[i].shape() == inputs[0].shape());
    let Some(second) = pair else { return Ok(()) };
    let mut shared = inputs.clone();
    shared[second] = shared[0].clone();
    let Ok((shared, expected)) = piece.on(shared) else { return Ok(()) };
    let memory = execute::copies(&shared, Setting::NAN)?;
    let mut of: Vec<usize> = (0..shared.len()).collect();
    of[second] = 0;
    (bench.at)("run");
    let outputs = execute::run_on(piece, executable, prepared, Setting::NAN, &shared, &memory, &of)?;
    expect(&outputs, &expected, Kind::Aliasing, "run", &format!("inputs 0 and {second} in the same memory"))
}

/// Checks concurrent runs of one executable, on alternating inputs.
fn at_once(
    bench: &Bench<'_, '_>,
    piece: &Piece,
    other: &Option<Other>,
    executable: &dyn Executable,
    prepared: &Prepared,
) -> Result<(), Fault> {
    (bench.at)("run by several threads");
    let barrier = Barrier::new(AT_ONCE);
    let lane = |lane: usize| -> Result<(), String> {
        let (inputs, expected) = match other {
            Some(other) if lane % 2 == 1 => (&other.inputs, &other.expected),
            _ => (&piece.inputs, &piece.expected),
        };
        barrier.wait();
        for _ in 0..ROUNDS {
            let outputs = execute::run(piece, executable, prepared, Setting::NAN, inputs).map_err(|f| f.to_string())?;
            judge_outputs(&outputs, expected).map_err(|(output, outside)| format!("output {output}: {outside}"))?;
        }
        Ok(())
    };
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|n| scope.spawn(move || lane(n))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    match results.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(message) => {
            let message = format!("{AT_ONCE} threads run one executable: {message}");
            Err(Fault::new(Kind::NotReentrant, "run", message))
        }
    }
}

/// Checks a run with services of one thread, everything else being equal.
fn one_thread(bench: &Bench<'_, '_>, piece: &Piece, compiled: &CompiledRegion) -> Result<(), Fault> {
    let executable = bench.load(piece, compiled, &compiled.blob, bench.alone)?;
    bench.rerun(piece, &*executable, (Kind::Threads, "run", "with one thread"))
}

/// Checks a second load of the blob.
fn loaded_again(bench: &Bench<'_, '_>, piece: &Piece, compiled: &CompiledRegion) -> Result<(), Fault> {
    let (first, second) = (
        bench.load(piece, compiled, &compiled.blob, bench.services)?,
        bench.load(piece, compiled, &compiled.blob, bench.services)?,
    );
    drop(first);
    bench.rerun(piece, &*second, (Kind::NotRepeatable, "load", "loaded again, after the first was dropped"))
}

/// Checks that a region of the same shapes with other constants has its own results.
fn other_constants(bench: &Bench<'_, '_>, case: &Case) -> Result<(), Fault> {
    let weights = |tensor: &Tensor| tensor.len() > 1 && (tensor.dtype().is_float() || tensor.dtype().size() == 1);
    let other = case.with_constants(|tensor| if weights(tensor) { reversed(tensor) } else { tensor.clone() });
    let Ok(pieces) = bench.cut(&other) else { return Ok(()) };
    for piece in pieces.iter().filter(|piece| piece.tensors.iter().any(|t| weights(t))) {
        let compiled = bench.compile(piece, bench.cache_dir)?;
        let executable = bench.load(piece, &compiled, &compiled.blob, bench.services)?;
        bench.rerun(piece, &*executable, (Kind::StaleConstants, "run", "a second region with other constants"))?;
    }
    Ok(())
}

/// Checks that code generator, loader and executable answer an unknown key with "unknown".
fn unknown_query(bench: &Bench<'_, '_>, executable: &dyn Executable, compiled: &CompiledRegion) -> Result<(), Fault> {
    const KEY: &str = "byoc.conformance.a key that nobody knows";
    (bench.at)("query");
    let loader = (bench.loader)(&compiled.loader);
    let answers = [
        ("the code generator", bench.backend.codegen.query(KEY, &[1, 2, 3])),
        ("the loader", loader.map_or(Ok(None), |loader| loader.query(KEY, &[]))),
        ("the executable", executable.query(KEY, &[])),
    ];
    for (who, answer) in answers {
        match answer {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                let message = format!("{who} answers an unknown key with {} bytes", bytes.len());
                return Err(Fault::new(Kind::Query, "query", message));
            }
            Err(error) => {
                let message = format!("{who} answers an unknown key with an error: {error}");
                return Err(Fault::new(if error.panicked { Kind::Panic } else { Kind::Query }, "query", message));
            }
        }
    }
    Ok(())
}

/// Checks damaged blobs. A truncated blob has to be rejected (or run correctly, if nothing essential was cut off). One
/// with a changed byte may load, because artifacts carry digests and such a blob never arrives; it must not terminate
/// the process.
fn damaged(bench: &Bench<'_, '_>, piece: &Piece, compiled: &CompiledRegion) -> Result<(), Fault> {
    let blob = compiled.blob.as_slice();
    let lengths = [0, 1, 7, blob.len() / 4, blob.len() / 2, blob.len().saturating_sub(9), blob.len().saturating_sub(1)];
    for &length in lengths.iter().filter(|&&length| length < blob.len()) {
        damaged_load(
            bench,
            piece,
            compiled,
            &blob[..length],
            &format!("truncated to {length} of {} bytes", blob.len()),
        )?;
    }
    let mut edited = blob.to_vec();
    for part in 0..12 {
        let at = (blob.len() * part / 12).min(blob.len().saturating_sub(1));
        let Some(byte) = edited.get_mut(at) else { break };
        *byte ^= 0x55;
        (bench.at)(&format!("load of a blob with byte {at} changed"));
        match bench.load(piece, compiled, &edited, bench.services) {
            Err(fault) if fault.kind == Kind::Panic => {
                let message = format!("a blob with byte {at} of {} changed: {}", blob.len(), fault.message);
                return Err(Fault::new(Kind::DamagedBlob, "load", message));
            }
            _ => edited[at] = blob[at],
        }
    }
    Ok(())
}

fn damaged_load(
    bench: &Bench<'_, '_>,
    piece: &Piece,
    compiled: &CompiledRegion,
    blob: &[u8],
    how: &str,
) -> Result<(), Fault> {
    let fault = |what: String| Err(Fault::new(Kind::DamagedBlob, "load", format!("a blob {how}: {what}")));
    let executable = match bench.load(piece, compiled, blob, bench.services) {
        Ok(executable) => executable,
        Err(error) if error.kind == Kind::Panic => return fault(error.message),
        Err(_) => return Ok(()),
    };
    let run = bench
        .prepare(piece, &*executable)
        .and_then(|prepared| bench.run(piece, &*executable, &prepared, Setting::NAN, &piece.inputs));
    match run.map(|outputs| judge_outputs(&outputs, &piece.expected)) {
        Ok(Err((output, outside))) => fault(format!("it loads and runs: output {output}: {outside}")),
        Err(error) if error.kind != Kind::RunFailed => fault(format!("it loads: {error}")),
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}
