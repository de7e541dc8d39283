//! Driver that runs a target without instrumentation. Execution `n` depends only on the target, the seed and `n`.

use crate::Target;
use crate::mutate;
use byoc::io::random::Random;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Run options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of executions.
    pub executions: u64,
    /// Time limit of the run.
    pub time: Duration,
    /// Random seed.
    pub seed: u64,
    /// Index of the first execution.
    pub first: u64,
    /// File that receives the index of the current execution (8 bytes), to be read after a crash.
    pub progress: Option<PathBuf>,
    /// Time limit of one execution, after which the process aborts.
    pub execution_timeout: Duration,
}

/// Run results.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of inputs that were executed.
    pub executions: u64,
    /// Number of accepted inputs: read completely and, for models, run.
    pub accepted_count: u64,
    /// Index of each failed execution, with the reason. The run ends after `MAX_FAILURES` failures.
    pub failures: Vec<(u64, String)>,
    /// Index and duration of the longest execution.
    pub longest_execution: (u64, Duration),
}

/// Number of failures after which a run ends.
const MAX_FAILURES: usize = 20;

/// Returns the input of an execution: the unchanged seeds come first, then seeds with up to five successive mutations.
pub fn input(target: &Target, seeds: &[Vec<u8>], seed: u64, index: u64) -> Vec<u8> {
    if let Some(seed_input) = usize::try_from(index).ok().and_then(|index| seeds.get(index)) {
        return seed_input.clone();
    }
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd134_2543_de82_ef95));
    let mut bytes = crate::random_item(&mut random, seeds).clone();
    for _ in 0..1 + crate::random_below(&mut random, 16).saturating_sub(11) {
        bytes = (target.mutate)(&bytes, &mut random);
    }
    if crate::random_below(&mut random, 64) == 0 {
        // Byte mutations reach inputs that the format-specific mutations cannot produce.
        bytes = mutate::bytes(&bytes, &mut random, &[]);
    }
    bytes
}

/// Runs a target on one input; a panic counts as a violation.
///
/// # Errors
/// If the target panics or detects a violation; the error describes it.
pub fn execute(target: &Target, bytes: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("(no message)")))
    })
}

/// Runs a target.
///
/// # Errors
/// If the progress file cannot be written.
pub fn run(target: &Target, options: &Options) -> std::io::Result<Summary> {
    let seeds = (target.seeds)();
    let progress = options.progress.as_ref().map(File::create).transpose()?;
    let current_execution = Arc::new(AtomicU64::new(0));
    watchdog(current_execution.clone(), options.execution_timeout, target.name, options.seed);
    let start = Instant::now();
    let mut summary = Summary::default();
    for index in options.first..options.first.saturating_add(options.executions) {
        if start.elapsed() > options.time || summary.failures.len() >= MAX_FAILURES {
            break;
        }
        let bytes = input(target, &seeds, options.seed, index);
        if let Some(progress) = &progress {
            progress.write_all_at(&index.to_le_bytes(), 0)?;
        }
        current_execution.store(index + 1, Ordering::Relaxed);
        let start_time = Instant::now();
        let result = execute(target, &bytes);
        let elapsed = start_time.elapsed();
        current_execution.store(0, Ordering::Relaxed);
        if elapsed > summary.longest_execution.1 {
            summary.longest_execution = (index, elapsed);
        }
        if let Err(message) = result {
            summary.failures.push((index, message));
        }
        summary.executions += 1;
    }
    summary.accepted_count = crate::ACCEPTED_COUNT.load(Ordering::Relaxed);
    Ok(summary)
}

/// Aborts the process if one execution takes too long, because a thread cannot be stopped from outside.
#[expect(clippy::print_stderr, reason = "the process aborts")]
fn watchdog(current_execution: Arc<AtomicU64>, execution_timeout: Duration, name: &'static str, seed: u64) {
    std::thread::spawn(move || {
        let (mut last_seen, mut changed_at) = (0, Instant::now());
        loop {
            std::thread::sleep(execution_timeout / 50);
            let execution = current_execution.load(Ordering::Relaxed);
            if execution != last_seen {
                (last_seen, changed_at) = (execution, Instant::now());
            } else if execution != 0 && changed_at.elapsed() > execution_timeout {
                eprintln!(
                    "{name} --seed {seed}: execution {} did not complete within {execution_timeout:?}",
                    execution - 1
                );
                std::process::abort();
            }
        }
    });
}
