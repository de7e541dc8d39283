//! Log on standard error as text or JSON lines, with client-configurable settings.

use byoc::log::EscapedFields;
use byoc_ir::escape;
use serde_json::{Map, Value, json};
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Event, Level, Subscriber, dispatcher};
use tracing_subscriber::filter::{DynFilterFn, dynamic_filter_fn};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Log settings, with Triton's names.
#[derive(Debug)]
pub struct LogControl {
    pub info: AtomicBool,
    pub warning: AtomicBool,
    pub error: AtomicBool,
    /// Verbosity: 1 adds every request, 2 adds debug events.
    pub verbose: AtomicU32,
}

impl LogControl {
    /// Creates settings with the levels info, warning and error enabled.
    pub fn new(verbose: u32) -> LogControl {
        let enabled_flag = || AtomicBool::new(true);
        LogControl {
            info: enabled_flag(),
            warning: enabled_flag(),
            error: enabled_flag(),
            verbose: AtomicU32::new(verbose),
        }
    }

    /// Returns true if requests are logged.
    pub fn logs_requests(&self) -> bool {
        self.verbose.load(Ordering::Relaxed) > 0
    }

    fn is_on(&self, level: Level) -> bool {
        match level {
            Level::ERROR => self.error.load(Ordering::Relaxed),
            Level::WARN => self.warning.load(Ordering::Relaxed),
            Level::INFO => self.info.load(Ordering::Relaxed),
            _ => self.verbose.load(Ordering::Relaxed) > 1,
        }
    }
}

/// Installs the log on standard error. Further calls in the same process have no effect.
pub fn install(control: &Arc<LogControl>, format: LogFormat) {
    let _ = dispatcher::set_global_default(log_to(control, format, std::io::stderr));
}

fn log_to<W>(control: &Arc<LogControl>, format: LogFormat, writer: W) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    fn filter<S>(
        control: Arc<LogControl>,
    ) -> DynFilterFn<S, impl Fn(&tracing::Metadata<'_>, &tracing_subscriber::layer::Context<'_, S>) -> bool> {
        let max_level =
            if control.verbose.load(Ordering::Relaxed) > 1 { LevelFilter::DEBUG } else { LevelFilter::INFO };
        let is_on = move |data: &tracing::Metadata<'_>, _: &tracing_subscriber::layer::Context<'_, S>| {
            // Libraries log only errors and warnings.
            let is_own = data.target().starts_with("byoc");
            control.is_on(*data.level()) && (is_own || *data.level() <= Level::WARN)
        };
        dynamic_filter_fn(is_on).with_max_level_hint(max_level)
    }
    let layer = tracing_subscriber::fmt::layer().fmt_fields(EscapedFields).with_writer(writer).with_ansi(false);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => registry.with(layer.with_filter(filter(control.clone()))).into(),
        LogFormat::Json => registry.with(layer.event_format(JsonLines).with_filter(filter(control.clone()))).into(),
    }
}

/// Formatter that writes one JSON object per event: time, level, target, message, and the event fields.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Fields(Map::new());
        fields.0.insert("time".into(), json!(time));
        fields.0.insert("level".into(), json!(event.metadata().level().as_str()));
        fields.0.insert("target".into(), json!(event.metadata().target()));
        event.record(&mut fields);
        writeln!(writer, "{}", escape::escape_json(&Value::Object(fields.0).to_string()))
    }
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.0.insert(field.name().into(), Value::String(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), Value::String(value.to_owned()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Mutex, PoisonError};

    /// Text with what forges a line or moves the cursor: line breaks, ESC, C1 and bidirectional controls.
    const HOSTILE: &str = "a\n2026-01-01T00:00:00Z ERROR byoc::serve: b\r\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{2028}\u{0}c";

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Buffer {
        type Writer = Buffer;

        fn make_writer(&'a self) -> Buffer {
            self.clone()
        }
    }

    /// Returns the log of events with a hostile text in each kind of field.
    fn log(format: LogFormat) -> String {
        let buffer = Buffer::default();
        dispatcher::with_default(&log_to(&LogControl::new(2).into(), format, buffer.clone()), || {
            tracing::error!(target: "byoc::serve", text = HOSTILE, "{HOSTILE}");
            tracing::warn!(target: "byoc::serve", display = %HOSTILE, debug = ?HOSTILE);
            tracing::warn!(target: "byoc::plugin", error = &io::Error::other(HOSTILE) as &dyn std::error::Error);
        });
        let bytes = buffer.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = log(format);
            assert_eq!(text.lines().count(), 3, "{text}");
            assert_eq!(escape::lines(&text), text, "{format:?}");
        }
        for line in log(LogFormat::Json).lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let texts = event.as_object().unwrap().values().filter(|value| value.as_str() == Some(HOSTILE));
            assert!(texts.count() > 0 || line.contains("debug"), "{line}");
        }
    }
}
