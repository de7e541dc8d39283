//! Runs a target without instrumentation. Execution `n` of a seed depends on the target, the seed and `n` alone.

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

/// How a target is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// After so many executions it ends,
    pub executions: u64,
    /// or after this time.
    pub time: Duration,
    /// Which executions.
    pub seed: u64,
    /// The number of the first one.
    pub first: u64,
    /// Where the number of the execution under way is written (8 bytes), for whoever finds the process gone.
    pub progress: Option<PathBuf>,
    /// How long one execution may take before the process ends itself.
    pub each: Duration,
}

/// What a run gave.
#[derive(Debug, Default)]
pub struct Summary {
    /// Executions.
    pub executions: u64,
    /// How many of their inputs were read to the end, and run where they are models.
    pub accepted: u64,
    /// Numbers of those that failed, and why; a few of them.
    pub failures: Vec<(u64, String)>,
    /// The longest one, and how long.
    pub longest: (u64, Duration),
}

/// After so many failures a run ends.
const MAX_FAILURES: usize = 20;

/// The input of an execution: the seeds as they are first, then mutations of them, up to five on top of each other.
pub fn input(target: &Target, seeds: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    if let Some(whole) = usize::try_from(number).ok().and_then(|number| seeds.get(number)) {
        return whole.clone();
    }
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    let mut bytes = crate::pick(&mut random, seeds).clone();
    for _ in 0..1 + crate::below(&mut random, 16).saturating_sub(11) {
        bytes = (target.mutate)(&bytes, &mut random);
    }
    if crate::below(&mut random, 64) == 0 {
        // And what no mutation of the format's own makes.
        bytes = mutate::bytes(&bytes, &mut random, &[]);
    }
    bytes
}

/// Executes one input; a panic is a failure.
///
/// # Errors
/// What must not happen, in words.
pub fn execute(target: &Target, bytes: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("(no words)")))
    })
}

/// Runs a target.
///
/// # Errors
/// When the progress cannot be written.
pub fn run(target: &Target, options: &Options) -> std::io::Result<Summary> {
    let seeds = (target.seeds)();
    let progress = options.progress.as_ref().map(File::create).transpose()?;
    let watch = Arc::new(AtomicU64::new(0));
    watchdog(watch.clone(), options.each, target.name, options.seed);
    let start = Instant::now();
    let mut summary = Summary::default();
    for number in options.first..options.first.saturating_add(options.executions) {
        if start.elapsed() > options.time || summary.failures.len() >= MAX_FAILURES {
            break;
        }
        let bytes = input(target, &seeds, options.seed, number);
        if let Some(progress) = &progress {
            progress.write_all_at(&number.to_le_bytes(), 0)?;
        }
        watch.store(number + 1, Ordering::Relaxed);
        let begun = Instant::now();
        let outcome = execute(target, &bytes);
        let took = begun.elapsed();
        watch.store(0, Ordering::Relaxed);
        if took > summary.longest.1 {
            summary.longest = (number, took);
        }
        if let Err(why) = outcome {
            summary.failures.push((number, why));
        }
        summary.executions += 1;
    }
    summary.accepted = crate::ACCEPTED.load(Ordering::Relaxed);
    Ok(summary)
}

/// Ends the process when one execution takes too long: a thread cannot be stopped from outside.
#[expect(clippy::print_stderr, reason = "nobody can hear of it otherwise")]
fn watchdog(under_way: Arc<AtomicU64>, each: Duration, name: &'static str, seed: u64) {
    std::thread::spawn(move || {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(each / 50);
            let now = under_way.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if now != 0 && since.elapsed() > each {
                eprintln!("{name} --seed {seed}: execution {} takes longer than {each:?}", now - 1);
                std::process::abort();
            }
        }
    });
}
