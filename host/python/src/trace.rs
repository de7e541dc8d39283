//! Recording of the steps of a run.

use byoc::runtime::exec::Observer;
use byoc::runtime::exec::trace::StepEvent;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Executed step: the name of the operator or region, the backend, the operators of the model as pairs of name and
/// type, and the start and the duration in seconds.
pub type Event = (String, Option<String>, Vec<(String, String)>, f64, f64);

/// Observer that collects the steps of a run.
pub struct Events {
    start: Instant,
    list: Mutex<Vec<Event>>,
}

impl Events {
    /// Creates an observer without events. The start times of events are relative to its creation.
    pub fn new() -> Events {
        Events { start: Instant::now(), list: Mutex::default() }
    }

    /// Returns the events, ordered by the end of their steps.
    pub fn into_list(self) -> Vec<Event> {
        self.list.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Events {
    fn step(&self, event: &StepEvent<'_>) {
        let step = event.step;
        let source = |index: &u32| event.program.sources.get(*index as usize);
        let origins = step.origins.iter().filter_map(source).map(|origin| (origin.name.clone(), origin.op.clone()));
        let start = event.start.saturating_duration_since(self.start).as_secs_f64();
        let duration = event.duration.as_secs_f64();
        let event = (step.name.clone(), step.backend.clone(), origins.collect(), start, duration);
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}
