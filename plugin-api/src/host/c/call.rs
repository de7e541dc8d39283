//! State of one call to a C plugin entry.
//!
//! The call is a host object that begins with the public `byoc_call`. It collects the plugin's results until the entry
//! returns.

use super::abi::{self, OK};
use crate::backend::{CompiledRegion, Verdict};
use crate::entries::{CallSite, enter};
use crate::error::{Error, Result};
use crate::executable::{Executable, Prepared};
use crate::guard::guard;
use crate::host::loaded::RegisteredObject;
use crate::services::Services;
use std::sync::{Arc, Mutex, PoisonError};

/// Host functions bound to one host's services. Begins with the public `byoc_host`.
#[repr(C)]
pub struct HostTable {
    pub table: abi::Host,
    pub services: Services,
}

impl HostTable {
    /// Returns the same functions bound to `services`.
    pub fn with_services(&self, services: &Services) -> Arc<HostTable> {
        Arc::new(HostTable { table: self.table, services: services.clone() })
    }
}

/// Results that a plugin reports during one call.
#[derive(Default)]
pub struct Answers {
    pub failure: Option<Error>,
    /// Contract violation; an error regardless of the status that the entry returns.
    violation: Option<String>,
    pub name: Option<String>,
    pub registrations: Vec<(String, RegisteredObject)>,
    pub bytes: Option<Vec<u8>>,
    pub verdicts: Vec<Option<Verdict>>,
    pub compiled: Option<CompiledRegion>,
    pub loaded: Option<Box<dyn Executable>>,
    pub prepared: Prepared,
}

/// Entry call in progress. Begins with the public `byoc_call`.
#[repr(C)]
pub struct CallState<'a> {
    abi_call: abi::Call,
    pub host: &'a Arc<HostTable>,
    pub plugin: &'a Arc<str>,
    /// Symbol of the region being compiled or loaded; empty otherwise.
    pub symbol: &'a str,
    answers: Mutex<Answers>,
}

impl<'a> CallState<'a> {
    /// Creates a call to an entry of `plugin`.
    pub fn new(host: &'a Arc<HostTable>, plugin: &'a Arc<str>) -> CallState<'a> {
        let abi_call = abi::Call { host: Arc::as_ptr(host).cast() };
        CallState { abi_call, host, plugin, symbol: "", answers: Mutex::default() }
    }

    /// Sets the region of a `compile` or `load` call.
    pub fn for_region(mut self, symbol: &'a str) -> CallState<'a> {
        self.symbol = symbol;
        self
    }

    /// Reserves a verdict slot for each of the `count` candidates of a `judge` call.
    pub fn for_judge(self, count: usize) -> CallState<'a> {
        self.with_answers(|answers| answers.verdicts = vec![None; count]);
        self
    }

    /// Calls the entry `site` and returns its status and the reported results.
    ///
    /// # Errors
    /// If the plugin called `fail`, returned an error status, or violated the contract, or the process ends.
    pub fn run(self, site: &'static CallSite, entry: impl FnOnce(*mut abi::Call) -> i32) -> Result<(i32, Answers)> {
        let guard = enter(site)?;
        let status = entry((&raw const self).cast_mut().cast());
        drop(guard);
        self.outcome(status)
    }

    /// Calls `run`, `prepare` or another function that records its call site itself; otherwise like
    /// [`run`](CallState::run).
    ///
    /// # Errors
    /// Like [`run`](CallState::run), and if `entry` fails.
    #[inline(always)]
    pub fn run_recorded(self, entry: impl FnOnce(*mut abi::Call) -> Result<i32>) -> Result<(i32, Answers)> {
        let status = entry((&raw const self).cast_mut().cast())?;
        self.outcome(status)
    }

    #[inline(always)]
    fn outcome(self, status: i32) -> Result<(i32, Answers)> {
        let mut answers = self.answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(violation) = answers.violation.take() {
            return Err(Error::new(violation));
        }
        match status {
            OK | abi::UNKNOWN_KEY => Ok((status, answers)),
            _ => {
                let error = answers.failure.unwrap_or_else(|| {
                    let hint = "call call->host->fail with a message before returning an error status";
                    Error::new(format!("expected a call to `fail` before status {status}, found none")).hint(hint)
                });
                // `fail` has no code parameter; after a cancellation, a failure without a code counts as cancelled.
                let is_cancelled = error.code.is_empty() && self.host.services.cancelled();
                Err(if is_cancelled { error.code(Error::CANCELLED) } else { error })
            }
        }
    }

    /// Calls `body` with the results collected so far.
    pub fn with_answers<T>(&self, body: impl FnOnce(&mut Answers) -> T) -> T {
        body(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs the body of a host function with the call that the plugin passed; an error or a panic counts as a contract
/// violation.
pub fn in_call<T: Default>(
    call: *mut abi::Call,
    name: &str,
    body: impl FnOnce(&CallState<'_>) -> Result<T, String>,
) -> T {
    if call.is_null() {
        return T::default();
    }
    // SAFETY: the plugin passes the pointer that its entry received, which is valid until the entry returns.
    let state = unsafe { &*call.cast::<CallState<'_>>() };
    let result = guard(|| Ok(body(state)));
    result.unwrap_or_else(|panic| Err(panic.to_string())).unwrap_or_else(|problem| {
        state.with_answers(|answers| answers.violation.get_or_insert(format!("{name}: {problem}")).len());
        T::default()
    })
}
