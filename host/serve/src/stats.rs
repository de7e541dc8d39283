//! Statistics of a model version: totals for the protocol's statistics, and histograms for Prometheus.

use crate::proto::{
    InferBatchStatistics, InferResponseStatistics, InferStatistics, MemoryUsage, ModelStatistics, StatisticDuration,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Upper bounds of the duration buckets, in microseconds.
pub const DURATION_BOUNDS: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];
/// Upper bounds of the batch size buckets.
pub const BATCH_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Number of events, and their total time in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    pub count: u64,
    pub ns: u64,
}

impl Total {
    fn add(&mut self, count: u64, time: Duration) {
        self.count += count;
        self.ns = self.ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn message(self) -> Option<StatisticDuration> {
        Some(StatisticDuration { count: self.count, ns: self.ns })
    }
}

/// Histogram with fixed bounds.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub bounds: &'static [u64],
    /// Number of values per bucket; the last bucket counts values above all bounds.
    pub counts: Vec<u64>,
    pub sum: u64,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    fn add(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(value);
    }
}

/// Failure reasons of requests, as in Triton's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// The queue was full, or the request waited too long in the queue.
    Rejected,
    /// The client disconnected, or the deadline passed.
    Canceled,
    /// The model failed.
    Backend,
    /// The request was invalid.
    Other,
}

impl FailReason {
    /// All reasons, in the order of [`Counters::failures`].
    pub const ALL: [(FailReason, &str); 4] = [
        (FailReason::Rejected, "REJECTED"),
        (FailReason::Canceled, "CANCELED"),
        (FailReason::Backend, "BACKEND"),
        (FailReason::Other, "OTHER"),
    ];
}

/// Durations of the phases of one execution.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub input: Duration,
    pub infer: Duration,
    pub output: Duration,
}

/// Statistics of a model version, which persist when the version is reloaded.
#[derive(Debug, Default)]
pub struct Stats(Mutex<Counters>);

/// Counters and histograms of a model version.
#[derive(Clone, Debug)]
pub struct Counters {
    pub last_inference_ms: u64,
    /// Number of items in successful requests.
    pub inference_count: u64,
    /// Number of model executions.
    pub execution_count: u64,
    pub success: Total,
    pub fail: Total,
    pub queue: Total,
    pub compute_input: Total,
    pub compute_infer: Total,
    pub compute_output: Total,
    /// Failed requests, in the order of [`FailReason::ALL`].
    pub failures: [Total; 4],
    /// Input, inference and output totals of executions, by batch size.
    pub batches: BTreeMap<u64, [Total; 3]>,
    pub request_us: Histogram,
    pub queue_us: Histogram,
    pub compute_us: Histogram,
    pub batch_sizes: Histogram,
    /// Durations of regions in observed executions.
    pub regions_us: BTreeMap<String, Histogram>,
    /// Duration of the last load.
    pub load: Duration,
    /// Total size of the weights and of the intermediate results of a run, in bytes.
    pub memory: u64,
}

impl Default for Counters {
    fn default() -> Counters {
        let duration_histogram = || Histogram::new(&DURATION_BOUNDS);
        Counters {
            last_inference_ms: 0,
            inference_count: 0,
            execution_count: 0,
            success: Total::default(),
            fail: Total::default(),
            queue: Total::default(),
            compute_input: Total::default(),
            compute_infer: Total::default(),
            compute_output: Total::default(),
            failures: [Total::default(); 4],
            batches: BTreeMap::new(),
            request_us: duration_histogram(),
            queue_us: duration_histogram(),
            compute_us: duration_histogram(),
            batch_sizes: Histogram::new(&BATCH_BOUNDS),
            regions_us: BTreeMap::new(),
            load: Duration::ZERO,
            memory: 0,
        }
    }
}

impl Counters {
    /// Returns the response statistics; each request has exactly one response.
    fn responses(&self) -> InferResponseStatistics {
        let cancel = FailReason::ALL.iter().position(|entry| entry.0 == FailReason::Canceled);
        let cancel = cancel.and_then(|index| self.failures.get(index)).copied().unwrap_or_default();
        let fail = Total { count: self.fail.count - cancel.count, ns: self.fail.ns.saturating_sub(cancel.ns) };
        InferResponseStatistics {
            compute_infer: self.compute_infer.message(),
            compute_output: self.compute_output.message(),
            success: self.success.message(),
            fail: fail.message(),
            empty_response: Total::default().message(),
            cancel: cancel.message(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Stats {
    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a snapshot of the current values.
    pub fn snapshot(&self) -> Counters {
        self.lock().clone()
    }

    /// Records a batch execution.
    pub fn record_execution(&self, batch: u64, times: &Times) {
        let mut counters = self.lock();
        counters.execution_count += 1;
        let sums = counters.batches.entry(batch).or_default();
        for (sum, time) in sums.iter_mut().zip([times.input, times.infer, times.output]) {
            sum.add(1, time);
        }
        counters.compute_us.add(micros(times.input + times.infer + times.output));
        counters.batch_sizes.add(batch);
    }

    /// Records a successful request.
    pub fn record_success(&self, items: u64, queue: Duration, times: &Times, duration: Duration) {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut counters = self.lock();
        counters.last_inference_ms = u64::try_from(timestamp.as_millis()).unwrap_or(u64::MAX);
        counters.inference_count += items;
        counters.success.add(1, duration);
        counters.queue.add(1, queue);
        counters.compute_input.add(1, times.input);
        counters.compute_infer.add(1, times.infer);
        counters.compute_output.add(1, times.output);
        counters.request_us.add(micros(duration));
        counters.queue_us.add(micros(queue));
    }

    /// Records a failed request.
    pub fn record_failure(&self, reason: FailReason, duration: Duration) {
        let mut counters = self.lock();
        counters.fail.add(1, duration);
        counters.request_us.add(micros(duration));
        if let Some(index) = FailReason::ALL.iter().position(|entry| entry.0 == reason) {
            counters.failures[index].add(1, duration);
        }
    }

    /// Records the duration of a region.
    pub fn record_region(&self, name: &str, time: Duration) {
        let mut counters = self.lock();
        if !counters.regions_us.contains_key(name) {
            counters.regions_us.insert(name.to_owned(), Histogram::new(&DURATION_BOUNDS));
        }
        if let Some(histogram) = counters.regions_us.get_mut(name) {
            histogram.add(micros(time));
        }
    }

    /// Records the duration of a load, and the memory of the model in bytes.
    pub fn record_load(&self, time: Duration, memory: u64) {
        let mut counters = self.lock();
        counters.load = time;
        counters.memory = memory;
    }

    /// Converts the statistics to the protocol message.
    pub fn message(&self, name: &str, version: &str) -> ModelStatistics {
        let counters = self.snapshot();
        let batches = counters.batches.iter().map(|(size, [input, infer, output])| InferBatchStatistics {
            batch_size: *size,
            compute_input: input.message(),
            compute_infer: infer.message(),
            compute_output: output.message(),
        });
        ModelStatistics {
            name: name.to_owned(),
            version: version.to_owned(),
            last_inference: counters.last_inference_ms,
            inference_count: counters.inference_count,
            execution_count: counters.execution_count,
            inference_stats: Some(InferStatistics {
                success: counters.success.message(),
                fail: counters.fail.message(),
                queue: counters.queue.message(),
                compute_input: counters.compute_input.message(),
                compute_infer: counters.compute_infer.message(),
                compute_output: counters.compute_output.message(),
                cache_hit: Total::default().message(),
                cache_miss: Total::default().message(),
            }),
            batch_stats: batches.collect(),
            memory_usage: vec![MemoryUsage { r#type: "CPU".to_owned(), id: 0, byte_size: counters.memory }],
            response_stats: BTreeMap::from([("0".to_owned(), counters.responses())]),
        }
    }
}
