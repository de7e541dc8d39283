//! Dynamic batching: one bounded queue per model version, and instances that execute batches from it.
//!
//! A request that arrives while the version is idle starts immediately. Requests that arrive while every instance is
//! busy are batched in order, up to the maximum batch size; `max_queue_delay_microseconds` lets an instance wait for
//! more requests. No request waits past its deadline: at the deadline, its task removes it from the queue, or cancels
//! the run unless other requests of the same batch still wait for the result.

use crate::error::{Result, ServeError, Status};
use crate::outputs::{OutputMemory, Part, with_batch_dim};
use crate::stats::{Stats, Times};
use byoc::runtime::cancel::Cancel;
use byoc::runtime::exec::trace::{Observer, StepEvent, StepKind};
use byoc::{Model, Port, RunOptions, Tensor};
use byoc_ir::diag::codes::{runtime, serving};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Queue policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Maximum time in the queue.
    pub timeout: Option<Duration>,
    /// True if a request that exceeds the timeout is moved to the end of the queue, false if it is rejected.
    pub delays: bool,
    /// True if a request may specify a shorter timeout.
    pub allows_override: bool,
    /// Maximum number of requests in the queue.
    pub max_queue: usize,
}

/// Scheduler settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum batch size; 0 for a model without a batch dimension.
    pub max_batch: usize,
    /// True if requests are batched.
    pub joins: bool,
    /// Preferred batch sizes, in ascending order; a batch that reaches one of them is executed immediately.
    pub preferred_sizes: Vec<usize>,
    /// Maximum time for which an instance waits for a batch of a preferred size.
    pub delay: Duration,
    /// Number of priority levels; 0 for none.
    pub levels: u64,
    /// Priority of requests that do not specify one.
    pub default_level: u64,
    /// Policy of the priority levels without an individual policy.
    pub policy: Policy,
    /// Policies of individual priority levels.
    pub policies: BTreeMap<u64, Policy>,
    /// Number of concurrent executions.
    pub instances: usize,
}

impl Settings {
    fn policy(&self, level: u64) -> &Policy {
        self.policies.get(&level).unwrap_or(&self.policy)
    }
}

/// Request to execute.
#[derive(Debug)]
pub struct Job {
    /// Inputs in model order.
    pub inputs: Vec<Tensor>,
    /// Memory for the outputs of the model, used if the request is executed alone.
    pub memory: Option<OutputMemory>,
    /// Number of items; 1 for a model without a batch dimension.
    pub rows: usize,
    /// True if the request has values for optional inputs, which have no batch dimension: it is executed alone.
    pub has_optional: bool,
    /// Priority of the request; 0 for the default.
    pub priority: u64,
    /// Maximum time in the queue.
    pub timeout: Option<Duration>,
    /// Time by which the request must be finished.
    pub deadline: Instant,
}

/// Result of a request.
#[derive(Debug)]
pub struct JobResult {
    /// Outputs in model order.
    pub outputs: Vec<Part>,
    /// Time in the queue.
    pub queue: Duration,
    /// Durations of the execution phases.
    pub times: Times,
}

/// Queue and instances of a model version. Once it is closed or dropped, its instances finish the queued requests and
/// then exit.
#[derive(Debug)]
pub struct Scheduler(Arc<SharedQueue>);

#[derive(Debug)]
struct SharedQueue {
    model: Model,
    settings: Settings,
    stats: Arc<Stats>,
    cancel: Cancel,
    /// Initially [`Settings::joins`]; false once a batch has produced an output without a batch dimension.
    joins: AtomicBool,
    /// Number of consecutive executions longer than [`MAX_SHORT_RUN`], at most [`LONG_STREAK`].
    long_streak: AtomicU32,
    /// Number of executions, including failed ones.
    executions: AtomicU64,
    queue: Mutex<Queue>,
    state_changed: Condvar,
    instances: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Queue {
    pending: VecDeque<PendingRequest>,
    /// Running batches by request id.
    running: HashMap<u64, Arc<Batch>>,
    /// Number of executions in progress.
    busy_count: usize,
    next_id: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct PendingRequest {
    id: u64,
    job: Job,
    /// Priority level, which determines the queue order; delayed requests have the maximum level.
    level: u64,
    arrival: Instant,
    /// True if the request starts without waiting for further requests.
    starts_at_once: bool,
    reply: oneshot::Sender<Result<JobResult>>,
}

/// Running batch, cancelled once no request waits for its result.
#[derive(Debug)]
struct Batch {
    cancel: Cancel,
    waiting_rows: Mutex<usize>,
}

/// Next action of an idle instance.
#[derive(Debug, PartialEq)]
enum NextAction {
    /// Execute this many requests from the front of the queue.
    Take(usize),
    /// Wait for more requests until this time.
    Wait(Instant),
    /// Wait for the first request.
    Idle,
}

impl Scheduler {
    /// Starts the instances of a model.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(model: Model, settings: Settings, stats: Arc<Stats>, session: &Cancel) -> Result<Scheduler> {
        let joins = AtomicBool::new(settings.joins);
        let instances = settings.instances;
        let queue_state = Arc::new(SharedQueue {
            model,
            settings,
            stats,
            cancel: session.part(None),
            joins,
            long_streak: AtomicU32::new(LONG_STREAK),
            executions: AtomicU64::new(0),
            queue: Mutex::default(),
            state_changed: Condvar::new(),
            instances: Mutex::default(),
        });
        let scheduler = Scheduler(queue_state);
        for instance in 0..instances {
            let queue_state = scheduler.0.clone();
            let thread = std::thread::Builder::new().name(format!("serve-{instance}"));
            let thread = thread.spawn(move || queue_state.run_worker()).map_err(|error| {
                let message = format!("cannot start the thread of instance {instance}: {error}");
                ServeError::new(Status::Unavailable, runtime::NO_THREADS, message)
            })?;
            scheduler.0.instances.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(scheduler)
    }

    /// Returns the number of requests in the queue.
    pub fn pending_count(&self) -> usize {
        self.0.lock().pending.len()
    }

    /// Makes the instances exit once they have finished the queued requests. Returns their threads, which the caller
    /// may join.
    pub fn close(&self) -> Vec<JoinHandle<()>> {
        self.0.lock().is_closed = true;
        self.0.state_changed.notify_all();
        std::mem::take(&mut *self.0.instances.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Executes a request. Dropping the future cancels the request.
    ///
    /// # Errors
    /// If the queue is full, the deadline passes, or the run fails.
    pub async fn run(&self, mut job: Job) -> Result<JobResult> {
        let (reply, mut result) = oneshot::channel();
        let deadline = tokio::time::Instant::from_std(job.deadline);
        let settings = &self.0.settings;
        let level = match (settings.levels, job.priority) {
            (0, _) => 0,
            (_, 0) => settings.default_level,
            (levels, level) if level <= levels => level,
            (levels, level) => {
                let message = format!("parameter 'priority': expected a level from 1 to {levels}, found {level}");
                return Err(ServeError::bad_request(message));
            }
        };
        let policy = settings.policy(level);
        let timeout = match (policy.timeout, job.timeout) {
            (Some(own_timeout), Some(requested_timeout)) if policy.allows_override => {
                Some(own_timeout.min(requested_timeout))
            }
            (Some(own_timeout), _) => Some(own_timeout),
            (None, requested_timeout) => requested_timeout,
        };
        if let Some(outcome) = self.0.run_inline(&mut job) {
            return outcome;
        }
        let id = {
            let mut queue = self.0.lock();
            if queue.is_closed {
                return Err(ServeError::new(Status::Unavailable, serving::NOT_READY, "the model is being unloaded"));
            }
            let waiting_count = queue.pending.iter().filter(|pending| pending.level == level).count();
            if waiting_count >= policy.max_queue {
                let message = format!(
                    "Exceeds maximum queue size: expected at most {} waiting requests, found {}; retry later, or raise \
                     --max-queue-size",
                    policy.max_queue,
                    waiting_count + 1
                );
                return Err(ServeError::overloaded(message));
            }
            queue.next_id += 1;
            let id = queue.next_id;
            let starts_at_once = queue.pending.is_empty() && queue.busy_count == 0;
            let pending = PendingRequest { id, job, level, arrival: Instant::now(), starts_at_once, reply };
            queue.insert(pending);
            id
        };
        self.0.state_changed.notify_one();
        let _guard = WithdrawalGuard { shared: &self.0, id };
        let mut queue_deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
        loop {
            let waiting_ends = queue_deadline.unwrap_or(deadline).min(deadline);
            tokio::select! {
                biased;
                done = &mut result => {
                    return done.unwrap_or_else(|_| {
                        Err(ServeError::new(Status::Internal, runtime::BAD_PROGRAM, "the run ended without a result"))
                    });
                }
                () = tokio::time::sleep_until(waiting_ends) => {}
            }
            if tokio::time::Instant::now() >= deadline {
                let message = "the request was not finished before its deadline";
                return Err(ServeError::new(Status::DeadlineExceeded, runtime::TIMED_OUT, message));
            }
            queue_deadline = None;
            let mut queue = self.0.lock();
            if let Some(position) = queue.pending.iter().position(|pending| pending.id == id) {
                if !policy.delays {
                    return Err(ServeError::overloaded(format!(
                        "Request timeout expired: expected at most {} us in the queue, found more",
                        timeout.unwrap_or_default().as_micros()
                    )));
                }
                if let Some(mut pending) = queue.pending.remove(position) {
                    pending.level = u64::MAX;
                    queue.insert(pending);
                }
            }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // The threads are not joined: the last reference may be dropped on a thread that serves connections.
        drop(self.close());
    }
}

/// Withdraws a request on drop: removes it from the queue, or cancels its batch if no other request waits for it.
struct WithdrawalGuard<'a> {
    shared: &'a SharedQueue,
    id: u64,
}

impl Drop for WithdrawalGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        if let Some(batch) = queue.running.remove(&self.id) {
            let mut waiting_rows = batch.waiting_rows.lock().unwrap_or_else(PoisonError::into_inner);
            *waiting_rows = waiting_rows.saturating_sub(1);
            if *waiting_rows == 0 {
                batch.cancel.set(true);
            }
        } else if let Some(position) = queue.pending.iter().position(|pending| pending.id == self.id) {
            queue.pending.remove(position);
        }
    }
}

impl Queue {
    /// Inserts a request after all requests at the same or a lower level.
    fn insert(&mut self, pending: PendingRequest) {
        let index =
            self.pending.iter().rposition(|other| other.level <= pending.level).map_or(0, |last_index| last_index + 1);
        self.pending.insert(index, pending);
    }

    /// Returns the next action of an idle instance.
    fn next(&self, settings: &Settings, joins: bool, time: Instant) -> NextAction {
        let Some(first_request) = self.pending.front() else { return NextAction::Idle };
        if !joins || first_request.job.rows == 0 {
            return NextAction::Take(1);
        }
        let (mut rows, mut count, mut preferred_rows, mut is_full) = (first_request.job.rows, 1, None, false);
        if settings.preferred_sizes.contains(&rows) {
            preferred_rows = Some(1);
        }
        for other in self.pending.iter().skip(1) {
            if other.job.rows == 0
                || rows + other.job.rows > settings.max_batch
                || !can_share_batch(&first_request.job, &other.job)
            {
                is_full = true;
                break;
            }
            rows += other.job.rows;
            count += 1;
            if settings.preferred_sizes.contains(&rows) {
                preferred_rows = Some(count);
            }
        }
        if let Some(count) = preferred_rows {
            return NextAction::Take(count);
        }
        let largest_size = settings.preferred_sizes.last().copied().unwrap_or(settings.max_batch);
        let ready_at = first_request.arrival + settings.delay;
        if is_full || self.is_closed || rows >= largest_size || first_request.starts_at_once || ready_at <= time {
            return NextAction::Take(count);
        }
        NextAction::Wait(ready_at)
    }
}

/// Maximum duration of a short execution. Short executions run on the connection's thread, because waking an instance
/// would take longer.
const MAX_SHORT_RUN: Duration = Duration::from_micros(200);
/// Number of consecutive long executions after which requests are no longer executed on the connection's thread. A
/// single long execution may be caused by the operating system.
const LONG_STREAK: u32 = 2;
/// Time limit of an execution on the connection's thread; at the limit, the request is queued for an instance.
const MAX_INLINE_DURATION: Duration = Duration::from_millis(5);

/// Tests whether two requests can be batched: their inputs have equal types, except for the first dimension.
fn can_share_batch(a: &Job, b: &Job) -> bool {
    !(a.has_optional || b.has_optional)
        && a.inputs
            .iter()
            .zip(&b.inputs)
            .all(|(a, b)| a.dtype() == b.dtype() && a.shape().get(1..) == b.shape().get(1..))
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request on the calling thread if the model is idle and recent executions were so short that waking an
    /// instance would take longer. `None` if the request must be executed by an instance.
    fn run_inline(&self, job: &mut Job) -> Option<Result<JobResult>> {
        if self.long_streak.load(Ordering::Relaxed) >= LONG_STREAK {
            return None;
        }
        {
            let mut queue = self.lock();
            if queue.is_closed || queue.busy_count > 0 || !queue.pending.is_empty() {
                return None;
            }
            queue.busy_count += 1;
        }
        let cancel = self.cancel.part(Some(MAX_INLINE_DURATION));
        let outcome = self.run(&[&job.inputs], &[job.rows], &mut job.memory, &cancel);
        let has_waiting_requests = {
            let mut queue = self.lock();
            queue.busy_count -= 1;
            !queue.pending.is_empty() || queue.is_closed
        };
        // An instance is woken only for requests that arrived during the execution, because a wakeup is expensive
        // compared with a short execution.
        if has_waiting_requests {
            self.state_changed.notify_one();
        }
        match outcome {
            Ok((outputs, times)) => Some(Ok(JobResult { outputs, queue: Duration::ZERO, times })),
            Err(_) if cancel.is_set() => {
                self.long_streak.store(LONG_STREAK, Ordering::Relaxed);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Executes batches until the scheduler is dropped.
    fn run_worker(&self) {
        let mut queue = self.lock();
        loop {
            let joins = self.joins.load(Ordering::Relaxed);
            match queue.next(&self.settings, joins, Instant::now()) {
                NextAction::Take(count) => {
                    let requests: Vec<PendingRequest> = queue.pending.drain(..count).collect();
                    let latest_deadline = requests.iter().map(|pending| pending.job.deadline).max();
                    let remaining_time = latest_deadline
                        .map(|latest_deadline| latest_deadline.saturating_duration_since(Instant::now()));
                    let batch = Batch { cancel: self.cancel.part(remaining_time), waiting_rows: Mutex::new(count) };
                    let batch = Arc::new(batch);
                    for pending in &requests {
                        queue.running.insert(pending.id, batch.clone());
                    }
                    queue.busy_count += 1;
                    drop(queue);
                    let ids: Vec<u64> = requests.iter().map(|pending| pending.id).collect();
                    self.execute(requests, &batch.cancel);
                    queue = self.lock();
                    queue.busy_count -= 1;
                    for id in ids {
                        queue.running.remove(&id);
                    }
                }
                NextAction::Wait(deadline) => {
                    let remaining_time = deadline.saturating_duration_since(Instant::now());
                    queue = self
                        .state_changed
                        .wait_timeout(queue, remaining_time)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                NextAction::Idle if queue.is_closed => return,
                NextAction::Idle => queue = self.state_changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Executes requests as one batch. If the batch fails, each request is executed separately, so that a failing
    /// request does not affect the others.
    fn execute(&self, mut requests: Vec<PendingRequest>, cancel: &Cancel) {
        let run_start = Instant::now();
        let rows = requests.iter().map(|pending| pending.job.rows).collect::<Vec<_>>();
        let mut memory = match &mut requests[..] {
            [single] => single.job.memory.take(),
            _ => None,
        };
        let outcome = {
            let inputs: Vec<&[Tensor]> = requests.iter().map(|pending| &pending.job.inputs[..]).collect();
            self.run(&inputs, &rows, &mut memory, cancel)
        };
        match outcome {
            Ok((outputs, times)) => {
                let mut start = 0;
                let is_single = requests.len() == 1;
                for pending in requests {
                    let rows = (!is_single).then_some((start, pending.job.rows));
                    start += pending.job.rows;
                    let outputs = outputs.iter().map(|part| Part { rows, ..part.clone() }).collect();
                    let queue = run_start.saturating_duration_since(pending.arrival);
                    // The receiver is gone if the client has disconnected.
                    let _ = pending.reply.send(Ok(JobResult { outputs, queue, times }));
                }
            }
            Err(error) if requests.len() == 1 || cancel.is_set() => {
                for pending in requests {
                    let _ = pending.reply.send(Err(error.clone()));
                }
            }
            Err(_) => requests.into_iter().for_each(|pending| self.execute(vec![pending], cancel)),
        }
    }

    /// Returns true for every 32nd execution. Only the regions of these executions are timed, because timing every
    /// execution would slow down serving.
    fn is_observed(&self) -> bool {
        const OBSERVATION_INTERVAL: u64 = 32;
        self.executions.fetch_add(1, Ordering::Relaxed).is_multiple_of(OBSERVATION_INTERVAL)
    }

    /// Executes requests as one batch. If possible, the results are written to `memory`, which then becomes `None`.
    fn run(
        &self,
        requests: &[&[Tensor]],
        rows: &[usize],
        memory: &mut Option<OutputMemory>,
        cancel: &Cancel,
    ) -> Result<(Vec<Part>, Times)> {
        let start = Instant::now();
        let row_count: usize = rows.iter().sum();
        let inputs = match requests {
            [single_inputs] => single_inputs.to_vec(),
            batched => (0..self.model.inputs().len())
                .map(|input| {
                    let parts: Vec<&Tensor> = batched.iter().filter_map(|inputs| inputs.get(input)).collect();
                    concatenate(&parts, row_count)
                })
                .collect::<Result<_>>()?,
        };
        let assembly_end = Instant::now();
        let options = RunOptions { cancel: Some(cancel.clone()), ..RunOptions::default() };
        // A panic must not terminate the instance, or leave the client without a response.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let outputs = if self.is_observed() {
                let times = RegionTimes::default();
                let outputs = self.model.run_observed_with(inputs, &times, &options)?;
                times.record(&self.stats);
                outputs
            } else if let Some(memory) = memory {
                self.model.run_into(inputs, &mut memory.views(), &options)?;
                return Ok(None);
            } else {
                self.model.run_with(inputs, &options)?
            };
            Ok::<_, byoc::Error>(Some(outputs.into_tensors()))
        }));
        let outputs: Vec<Part> = match outcome {
            Ok(Ok(None)) => memory.take().map(OutputMemory::into_parts).unwrap_or_default(),
            Ok(tensors) => {
                let tensors = tensors?.unwrap_or_default().into_iter().zip(self.model.outputs());
                let is_single_row = self.settings.max_batch > 0 && row_count == 1;
                let to_part = |(tensor, port): (Tensor, &Port)| {
                    let tensor = if is_single_row { with_batch_dim(tensor, port.ty.dims.len()) } else { tensor };
                    Part { tensor, rows: None, is_in_place: false }
                };
                tensors.map(to_part).collect()
            }
            Err(_) => {
                let message = "the run panicked; this is a bug in byoc: please report it";
                return Err(ServeError::new(Status::Internal, runtime::BAD_PROGRAM, message));
            }
        };
        let run_end = Instant::now();
        if requests.len() > 1
            && let Some(wrong_output) =
                outputs.iter().position(|output| output.tensor.shape().first() != Some(&row_count))
        {
            self.joins.store(false, Ordering::Relaxed);
            let name = self.model.outputs().get(wrong_output).map(|port| port.name.clone()).unwrap_or_default();
            tracing::warn!(target: "byoc::serve", output = name, "the output has no batch dimension: requests are not batched");
            let message = format!(
                "output '{name}': expected the first dimension {row_count} of the inputs, found shape {:?}",
                outputs[wrong_output].shape()
            );
            return Err(ServeError::new(Status::Internal, serving::BAD_TENSOR, message));
        }
        let times = Times { input: assembly_end - start, infer: run_end - assembly_end, output: run_end.elapsed() };
        self.stats.record_execution(row_count.max(1) as u64, &times);
        let streak = match times.infer > MAX_SHORT_RUN {
            true => LONG_STREAK.min(self.long_streak.load(Ordering::Relaxed) + 1),
            false => 0,
        };
        self.long_streak.store(streak, Ordering::Relaxed);
        Ok((outputs, times))
    }
}

/// Durations of the regions in an execution, and the total duration of its host operators.
#[derive(Default)]
struct RegionTimes(Mutex<BTreeMap<String, Duration>>);

impl Observer for RegionTimes {
    fn step(&self, event: &StepEvent<'_>) {
        let name = match event.step.kind {
            StepKind::Region if !event.on_host => event.step.name.as_str(),
            StepKind::Region | StepKind::Kernel | StepKind::Alias | StepKind::Copy => HOST,
            StepKind::Control => return,
        };
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *times.entry(name.to_owned()).or_default() += event.duration;
    }
}

impl RegionTimes {
    fn record(&self, stats: &Stats) {
        for (name, time) in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            stats.record_region(name, *time);
        }
    }
}

/// Region name of the host operators in the metrics.
const HOST: &str = "host";

/// Concatenates tensors along the first dimension.
fn concatenate(tensors: &[&Tensor], rows: usize) -> Result<Tensor> {
    let Some(first_part) = tensors.first() else {
        return Err(ServeError::new(
            Status::Internal,
            runtime::BAD_PROGRAM,
            "expected inputs to concatenate, found none",
        ));
    };
    let mut shape = first_part.shape().to_vec();
    if let Some(batch) = shape.first_mut() {
        *batch = rows;
    }
    let concatenated = Tensor::build(first_part.dtype(), &shape, |bytes| {
        let mut unwritten_bytes = bytes;
        for part in tensors {
            let (part_bytes, tail) = unwritten_bytes.split_at_mut(part.bytes().len().min(unwritten_bytes.len()));
            part_bytes.copy_from_slice(&part.bytes()[..part_bytes.len()]);
            unwritten_bytes = tail;
        }
    });
    concatenated.map_err(|error| ServeError::overloaded(format!("not enough memory for the batch: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc::DType;

    fn settings(max_batch: usize, preferred_sizes: &[usize], delay: Duration) -> Settings {
        let policy = Policy { timeout: None, delays: false, allows_override: false, max_queue: 8 };
        Settings {
            max_batch,
            joins: true,
            preferred_sizes: preferred_sizes.to_vec(),
            delay,
            levels: 0,
            default_level: 0,
            policy,
            policies: BTreeMap::new(),
            instances: 1,
        }
    }

    fn queue(requests: &[(usize, usize, u64)], arrival: Instant) -> Queue {
        let mut queue = Queue::default();
        for (id, &(rows, columns, level)) in requests.iter().enumerate() {
            let inputs = vec![Tensor::zeros(DType::F32, &[rows, columns]).unwrap()];
            let (memory, has_optional, timeout) = (None, false, None);
            let job = Job { inputs, memory, rows, has_optional, priority: 0, timeout, deadline: arrival };
            let reply = oneshot::channel().0;
            queue.insert(PendingRequest { id: id as u64, job, level, arrival, starts_at_once: false, reply });
        }
        queue
    }

    #[test]
    fn batches_form_up_to_the_maximum_in_order() {
        let time = Instant::now();
        let next =
            |requests: &[(usize, usize, u64)], settings: &Settings| queue(requests, time).next(settings, true, time);
        let settings_without_delay = settings(4, &[], Duration::ZERO);
        assert_eq!(next(&[], &settings_without_delay), NextAction::Idle);
        assert_eq!(next(&[(1, 2, 0)], &settings_without_delay), NextAction::Take(1));
        assert_eq!(next(&[(1, 2, 0), (1, 2, 0), (2, 2, 0), (1, 2, 0)], &settings_without_delay), NextAction::Take(3));
        // A request is never split: 3 + 2 rows exceed the maximum batch size of 4.
        assert_eq!(next(&[(3, 2, 0), (2, 2, 0)], &settings_without_delay), NextAction::Take(1));
        // Requests with different shapes are not batched.
        assert_eq!(next(&[(1, 2, 0), (1, 3, 0), (1, 2, 0)], &settings_without_delay), NextAction::Take(1));
        assert_eq!(next(&[(0, 2, 0), (1, 2, 0)], &settings_without_delay), NextAction::Take(1));
        assert_eq!(
            queue(&[(1, 2, 0), (1, 2, 0)], time).next(&settings_without_delay, false, time),
            NextAction::Take(1)
        );
    }

    #[test]
    fn an_instance_waits_for_a_preferred_size_up_to_the_delay() {
        let time = Instant::now();
        let delay = Duration::from_millis(10);
        let settings_with_delay = settings(8, &[4], delay);
        let rows = |n: usize| vec![(1, 2, 0); n];
        assert_eq!(queue(&rows(3), time).next(&settings_with_delay, true, time), NextAction::Wait(time + delay));
        assert_eq!(queue(&rows(3), time).next(&settings_with_delay, true, time + delay), NextAction::Take(3));
        assert_eq!(queue(&rows(4), time).next(&settings_with_delay, true, time), NextAction::Take(4));
        assert_eq!(queue(&rows(6), time).next(&settings_with_delay, true, time), NextAction::Take(4));
        // The next request exceeds the maximum batch size, so waiting cannot make the batch larger.
        assert_eq!(queue(&[(3, 2, 0), (6, 2, 0)], time).next(&settings_with_delay, true, time), NextAction::Take(1));
        let mut idle_queue = queue(&rows(1), time);
        idle_queue.pending[0].starts_at_once = true;
        assert_eq!(idle_queue.next(&settings_with_delay, true, time), NextAction::Take(1));
        let mut closed_queue = queue(&rows(2), time);
        closed_queue.is_closed = true;
        assert_eq!(closed_queue.next(&settings_with_delay, true, time), NextAction::Take(2));
    }

    #[test]
    fn higher_priorities_come_first_and_keep_their_order() {
        let queue = queue(&[(1, 2, 2), (1, 2, 1), (1, 2, u64::MAX), (1, 2, 2), (1, 2, 1)], Instant::now());
        assert_eq!(queue.pending.iter().map(|pending| pending.id).collect::<Vec<_>>(), [1, 4, 0, 3, 2]);
    }
}
