//! Forwards the `tracing` events of a plugin to the host.
//!
//! A plugin has its own copy of `tracing`, which the host's subscriber does not see. The first `init` installs a
//! subscriber that forwards every event to the services of the latest `init`. Spans are not forwarded: the host opens a
//! span for each region call.

use crate::services::Services;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

static SERVICES: RwLock<Option<Services>> = RwLock::new(None);

/// Forwards subsequent events to `services`.
pub(crate) fn install(services: &Services) {
    *SERVICES.write().unwrap_or_else(PoisonError::into_inner) = Some(services.clone());
    // Fails if a subscriber is already installed: by an earlier `init`, or by the host if the plugin is linked into the
    // host's binary. Neither case is an error.
    let _ = tracing::subscriber::set_global_default(Bridge);
}

/// Returns a clone of the services, so that the lock is not held during a call to the host, which may reload this
/// plugin.
fn services() -> Option<Services> {
    SERVICES.read().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Bridge;

impl Subscriber for Bridge {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The host may change its log level at any time.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && services().is_some_and(|services| services.log_level() >= Some(*metadata.level()))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        span::Id::from_u64(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        let metadata = event.metadata();
        if let Some(services) = services() {
            services.log(*metadata.level(), metadata.target(), text.into_string().trim());
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Text of an event: the message, then `key=value` for each remaining field.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl EventText {
    fn into_string(self) -> String {
        self.message + &self.fields
    }

    fn add(&mut self, field: &Field, value: std::fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        let _ = if field.name() == "message" {
            self.message.write_fmt(value)
        } else {
            write!(self.fields, " {}={value}", field.name())
        };
    }
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}
