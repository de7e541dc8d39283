//! Run tracing: `-v` logs each region call; `--trace` writes every step, and the events and counters of plugins, in the
//! format of Perfetto and chrome://tracing.

use crate::io;
use byoc_ir::diag::{Diagnostic, list};
use byoc_ir::ir::TensorType;
use byoc_ir::tensor::memory::Tally;
use byoc_ir::tensor::{DType, Shape};
use byoc_plugin_api::Span;
use byoc_runtime::error::Failure;
use byoc_runtime::exec::trace::{Observer, StepEvent, StepKind};
use byoc_runtime::plugin::services::{EventPayload, RecordedEvent};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Collector of run steps and plugin events.
pub struct Trace {
    start: Instant,
    events: Mutex<Events>,
    /// True if steps are recorded for [`Trace::write`].
    record_steps: bool,
}

/// Recorded events, whose memory counts toward the limit of the process.
#[derive(Default)]
struct Events {
    list: Vec<Value>,
    memory: Tally,
    /// Set once an event exceeds the limit.
    failure: Option<Diagnostic>,
}

impl Events {
    /// Size of an event in bytes, without its texts: tables of its members and of their arguments.
    const EVENT_BYTES: usize = 4096;

    /// Adds an event, with `text_bytes` in its texts.
    fn push(&mut self, event: Value, text_bytes: usize) {
        match self.memory.add(Events::EVENT_BYTES + text_bytes) {
            Ok(()) => self.list.push(event),
            Err(error) => {
                let note = format!("required by the trace, which has {} events", self.list.len());
                self.failure.get_or_insert_with(|| Diagnostic::from(error).note(note));
            }
        }
    }
}

impl Trace {
    /// Creates a trace whose clock starts now. Region calls are logged at level info; `record_steps` records every step
    /// for [`Trace::write`].
    pub fn new(record_steps: bool) -> Trace {
        Trace { start: Instant::now(), events: Mutex::default(), record_steps }
    }

    /// Returns true if steps are recorded or region calls are logged; otherwise, a run needs no observer.
    pub fn is_enabled(&self) -> bool {
        self.record_steps || tracing::enabled!(target: "byoc::region", tracing::Level::INFO)
    }

    /// Adds events that plugins recorded during a run. An event becomes an instant event with its fields, and a count
    /// becomes a point of a counter track.
    pub fn add_plugin_events(&self, recorded_events: &[RecordedEvent]) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tracks = Tracks::default();
        for event in recorded_events {
            let event_text = event.name.len();
            let ts = event.at.saturating_duration_since(self.start).as_nanos() as f64 / 1e3;
            let event = match &event.payload {
                EventPayload::Event(fields) if fields[Span::KEY].is_object() => {
                    let (thread, first_event) = tracks.of(fields[Span::KEY]["track"].as_str().unwrap_or_default());
                    if let Some(first_event) = first_event {
                        events.push(first_event, 0);
                    }
                    span(&event.name, fields, ts, thread)
                }
                EventPayload::Event(fields) => json!({
                    "name": event.name, "cat": "plugin", "ph": "i", "s": "t", "ts": ts, "pid": 1, "tid": 1,
                    "args": fields,
                }),
                EventPayload::Count(new_total) => json!({
                    "name": event.name, "cat": "plugin", "ph": "C", "ts": ts, "pid": 1, "args": {"total": new_total},
                }),
            };
            events.push(event, event_text);
        }
    }

    /// Writes the recorded events to a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        Ok(io::write_atomically(path, |file| self.write_to(file))?)
    }

    /// Writes the recorded events to an open file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_to(&self, file: &mut File) -> std::io::Result<()> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &events.failure {
            return Err(std::io::Error::other(failure.to_string()));
        }
        let mut file = BufWriter::new(file);
        let document = Document { display_time_unit: "ms", trace_events: &events.list };
        serde_json::to_writer(&mut file, &document)?;
        file.flush()
    }
}

/// Contents of a trace file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'e> {
    display_time_unit: &'e str,
    trace_events: &'e [Value],
}

impl Observer for Trace {
    fn step(&self, event: &StepEvent<'_>) {
        let step = event.step;
        let micros = event.duration.as_nanos() as f64 / 1e3;
        if step.kind == StepKind::Region {
            let backend = if event.on_host { "host" } else { step.backend.as_deref().unwrap_or("host") };
            let (inputs, outputs) = (relay_types(&event.inputs), relay_types(&event.outputs));
            let millis = micros / 1e3;
            tracing::info!(target: "byoc::region", "{backend} {} ({inputs}) -> ({outputs}) in {millis:.3} ms", step.name);
        }
        if !self.record_steps || step.kind == StepKind::Control {
            return;
        }
        let (inputs, outputs) = (types(&event.inputs), types(&event.outputs));
        let text_bytes = inputs.len() + outputs.len() + step.name.len();
        let sources = step.origins.iter().filter_map(|&i| event.program.sources.get(i as usize));
        let object = json!({
            "name": step.name,
            "cat": match step.kind {
                StepKind::Region => "region",
                StepKind::Copy => "copy",
                _ => "host",
            },
            "ph": "X",
            "ts": event.start.saturating_duration_since(self.start).as_nanos() as f64 / 1e3,
            "dur": micros,
            "pid": 1,
            "tid": 1,
            "args": {
                "backend": if event.on_host { None } else { step.backend.as_deref() },
                "flops": step.flops,
                "inputs": inputs,
                "outputs": outputs,
                "sources": sources.map(|s| s.name.as_str()).collect::<Vec<_>>(),
            },
        });
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(object, text_bytes);
    }

    fn failure(&self) -> Option<Diagnostic> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).failure.clone()
    }
}

/// Thread numbers of device tracks in the trace, by track.
#[derive(Default)]
struct Tracks(BTreeMap<String, usize>);

impl Tracks {
    /// Thread number of the first device track; the host has thread number 1.
    const FIRST: usize = 2;

    /// Returns the thread number of a track and, on its first use, the event that names it.
    fn of(&mut self, track: &str) -> (usize, Option<Value>) {
        if let Some(thread) = self.0.get(track) {
            return (*thread, None);
        }
        let thread = Tracks::FIRST + self.0.len();
        self.0.insert(track.to_owned(), thread);
        let name = json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": track}});
        (thread, Some(name))
    }
}

/// Converts a span of device work to an event. At host time `ts`, the device clock read the span's `now`.
fn span(name: &str, fields: &Value, ts: f64, thread: usize) -> Value {
    let time = |key: &str| fields[Span::KEY][key].as_u64().unwrap_or(0);
    let (begin, end, now) = (time("begin"), time("end"), time("now"));
    let mut arguments = fields.clone();
    if let Some(arguments) = arguments.as_object_mut() {
        arguments.remove(Span::KEY);
    }
    json!({
        "name": name, "cat": "device", "ph": "X", "pid": 1, "tid": thread,
        "ts": ts - now.saturating_sub(begin) as f64 / 1e3,
        "dur": end.saturating_sub(begin) as f64 / 1e3,
        "args": arguments,
    })
}

/// Formats types as in Relay, for logs.
fn relay_types(values: &[(DType, Shape)]) -> String {
    list(values.iter().map(|(dtype, shape)| TensorType::fixed(*dtype, shape.as_slice())), ", ")
}

fn types(values: &[(DType, Shape)]) -> String {
    let arguments: Vec<String> = values.iter().map(|(dtype, shape)| format!("{dtype}{:?}", shape.as_slice())).collect();
    arguments.join(", ")
}
