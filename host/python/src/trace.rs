//! Recording of the steps of a run.

use byoc::runtime::exec::Observer;
use byoc::runtime::exec::trace::StepEvent;
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::memory::Tally;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Executed step: the name of the operator or region, the backend, the operators of the model as pairs of name and
/// type, and the start and the duration in seconds.
pub type Event = (String, Option<String>, Vec<(String, String)>, f64, f64);

/// Observer that collects the steps of a run.
pub struct Events {
    start: Instant,
    list: Mutex<List>,
}

/// Events, whose memory counts toward the limit of the process.
#[derive(Default)]
struct List {
    events: Vec<Event>,
    memory: Tally,
    /// Set once an event exceeds the limit.
    failure: Option<Diagnostic>,
}

impl Events {
    /// Creates an observer without events. The start times of events are relative to its creation.
    pub fn new() -> Events {
        Events { start: Instant::now(), list: Mutex::default() }
    }

    /// Returns the events, ordered by the end of their steps.
    pub fn into_list(self) -> Vec<Event> {
        self.list.into_inner().unwrap_or_else(PoisonError::into_inner).events
    }
}

impl Observer for Events {
    fn step(&self, event: &StepEvent<'_>) {
        let step = event.step;
        let source = |index: &u32| event.program.sources.get(*index as usize);
        let origins = step.origins.iter().filter_map(source).map(|origin| (origin.name.clone(), origin.op.clone()));
        let start = event.start.saturating_duration_since(self.start).as_secs_f64();
        let duration = event.duration.as_secs_f64();
        let origins: Vec<(String, String)> = origins.collect();
        let texts = origins.iter().map(|(name, op)| name.len() + op.len() + 2 * size_of::<String>() + 32);
        // The list doubles its memory when it grows.
        let bytes = 2 * size_of::<Event>() + step.name.len() + 64 + texts.sum::<usize>();
        let event = (step.name.clone(), step.backend.clone(), origins, start, duration);
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        match list.memory.add(bytes) {
            Ok(()) => list.events.push(event),
            Err(error) => {
                let note = format!("required by the record of {} steps", list.events.len());
                list.failure.get_or_insert_with(|| Diagnostic::from(error).note(note));
            }
        }
    }

    fn failure(&self) -> Option<Diagnostic> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).failure.clone()
    }
}
