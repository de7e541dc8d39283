//! One call of an entry of a C plugin.
//!
//! The call is an object of the host's that begins with what the header shows of it. What the plugin answers is kept in it until
//! the entry returns.

use super::abi::{self, OK};
use crate::backend::{CompiledRegion, Executable, Prepared, Verdict};
use crate::error::{Error, Result};
use crate::guard::guard;
use crate::host::loaded::Offer;
use crate::services::Services;
use std::sync::{Arc, Mutex, PoisonError};

/// The host's functions over one host's services. It begins with what the header shows.
#[repr(C)]
pub struct HostTable {
    pub table: abi::Host,
    pub services: Services,
}

impl HostTable {
    /// The same functions over other services.
    pub fn over(&self, services: &Services) -> Arc<HostTable> {
        Arc::new(HostTable { table: self.table, services: services.clone() })
    }
}

/// Answers of a plugin in one call.
#[derive(Default)]
pub struct Answers {
    pub failure: Option<Error>,
    /// Violation of the contract; an error whatever the entry returns.
    misuse: Option<String>,
    pub name: Option<String>,
    pub registrations: Vec<(String, Offer)>,
    pub bytes: Option<Vec<u8>>,
    pub verdicts: Vec<Option<Verdict>>,
    pub compiled: Option<CompiledRegion>,
    pub loaded: Option<Box<dyn Executable>>,
    pub prepared: Prepared,
}

/// A call under way. It begins with what the header shows.
#[repr(C)]
pub struct CallState<'a> {
    public: abi::Call,
    pub host: &'a Arc<HostTable>,
    pub plugin: &'a Arc<str>,
    /// The symbol of the region, where one is compiled or loaded.
    pub symbol: &'a str,
    answers: Mutex<Answers>,
}

impl<'a> CallState<'a> {
    /// A call of an entry of that plugin.
    pub fn new(host: &'a Arc<HostTable>, plugin: &'a Arc<str>) -> CallState<'a> {
        let public = abi::Call { host: Arc::as_ptr(host).cast() };
        CallState { public, host, plugin, symbol: "", answers: Mutex::default() }
    }

    /// A call of `compile` or `load` for that region.
    pub fn of_region(mut self, symbol: &'a str) -> CallState<'a> {
        self.symbol = symbol;
        self
    }

    /// A call of `judge` on so many candidates.
    pub fn judging(self, count: usize) -> CallState<'a> {
        self.with(|answers| answers.verdicts = vec![None; count]);
        self
    }

    /// Calls an entry and gives its status and what it answered.
    ///
    /// # Errors
    /// What the plugin said where it failed, and what it did that makes no sense.
    pub fn run(self, entry: impl FnOnce(*mut abi::Call) -> i32) -> Result<(i32, Answers)> {
        let status = entry((&raw const self).cast_mut().cast());
        let mut answers = self.answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(misuse) = answers.misuse.take() {
            return Err(Error::new(misuse));
        }
        match status {
            OK | abi::UNKNOWN_KEY => Ok((status, answers)),
            _ => {
                let error = answers.failure.unwrap_or_else(|| {
                    let hint = "call->host->fail says why an entry fails, before it returns";
                    Error::new(format!("status {status}, without a word why")).hint(hint)
                });
                // `fail` takes no code; whoever fails while nobody waits has given up.
                Err(if self.host.services.cancelled() { error.code(Error::CANCELLED) } else { error })
            }
        }
    }

    /// Notes something of the answer.
    pub fn with<T>(&self, body: impl FnOnce(&mut Answers) -> T) -> T {
        body(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs the body of a function of the host with the call that it was given; what goes wrong is the plugin's misuse.
pub fn in_call<T: Default>(
    call: *mut abi::Call,
    name: &str,
    body: impl FnOnce(&CallState<'_>) -> Result<T, String>,
) -> T {
    if call.is_null() {
        return T::default();
    }
    // SAFETY: the pointer is the one that the entry was given, which is valid until the entry returns.
    let state = unsafe { &*call.cast::<CallState<'_>>() };
    let outcome = guard(|| Ok(body(state)));
    outcome.unwrap_or_else(|panic| Err(panic.to_string())).unwrap_or_else(|problem| {
        state.with(|answers| answers.misuse.get_or_insert(format!("{name}: {problem}")).len());
        T::default()
    })
}
