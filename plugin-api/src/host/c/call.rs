//! State of one call of an entry of a C plugin.
//!
//! The call is an object of the host that begins with the public `byoc_call`. It collects the plugin's answers until
//! the entry returns.

use super::abi::{self, OK};
use crate::backend::{CompiledRegion, Verdict};
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
    /// Returns the same functions bound to other services.
    pub fn with_services(&self, services: &Services) -> Arc<HostTable> {
        Arc::new(HostTable { table: self.table, services: services.clone() })
    }
}

/// Answers of a plugin in one call.
#[derive(Default)]
pub struct Answers {
    pub failure: Option<Error>,
    /// Violation of the contract; an error regardless of the status that the entry returns.
    violation: Option<String>,
    pub name: Option<String>,
    pub registrations: Vec<(String, RegisteredObject)>,
    pub bytes: Option<Vec<u8>>,
    pub verdicts: Vec<Option<Verdict>>,
    pub compiled: Option<CompiledRegion>,
    pub loaded: Option<Box<dyn Executable>>,
    pub prepared: Prepared,
}

/// Call of an entry in progress. Begins with the public `byoc_call`.
#[repr(C)]
pub struct CallState<'a> {
    public: abi::Call,
    pub host: &'a Arc<HostTable>,
    pub plugin: &'a Arc<str>,
    /// Symbol of the region that is compiled or loaded; empty otherwise.
    pub symbol: &'a str,
    answers: Mutex<Answers>,
}

impl<'a> CallState<'a> {
    /// Creates a call of an entry of that plugin.
    pub fn new(host: &'a Arc<HostTable>, plugin: &'a Arc<str>) -> CallState<'a> {
        let public = abi::Call { host: Arc::as_ptr(host).cast() };
        CallState { public, host, plugin, symbol: "", answers: Mutex::default() }
    }

    /// Turns this into a call of `compile` or `load` for the region `symbol`.
    pub fn for_region(mut self, symbol: &'a str) -> CallState<'a> {
        self.symbol = symbol;
        self
    }

    /// Turns this into a call of `judge` on `count` candidates.
    pub fn for_judge(self, count: usize) -> CallState<'a> {
        self.with_answers(|answers| answers.verdicts = vec![None; count]);
        self
    }

    /// Calls an entry and returns its status and its answers.
    ///
    /// # Errors
    /// If the plugin called `fail`, returned an error status, or violated the contract.
    pub fn run(self, entry: impl FnOnce(*mut abi::Call) -> i32) -> Result<(i32, Answers)> {
        let status = entry((&raw const self).cast_mut().cast());
        let mut answers = self.answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(violation) = answers.violation.take() {
            return Err(Error::new(violation));
        }
        match status {
            OK | abi::UNKNOWN_KEY => Ok((status, answers)),
            _ => {
                let error = answers.failure.unwrap_or_else(|| {
                    let hint = "call call->host->fail with a message before returning an error status";
                    Error::new(format!("status {status}, but `fail` was not called")).hint(hint)
                });
                // `fail` takes no code; a failure without one after cancellation counts as cancelled.
                let cancelled = error.code.is_empty() && self.host.services.cancelled();
                Err(if cancelled { error.code(Error::CANCELLED) } else { error })
            }
        }
    }

    /// Calls `body` with the answers collected so far.
    pub fn with_answers<T>(&self, body: impl FnOnce(&mut Answers) -> T) -> T {
        body(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs the body of a host function with the call that the plugin passed; an error or a panic counts as a violation of
/// the contract.
pub fn in_call<T: Default>(
    call: *mut abi::Call,
    name: &str,
    body: impl FnOnce(&CallState<'_>) -> Result<T, String>,
) -> T {
    if call.is_null() {
        return T::default();
    }
    // SAFETY: the pointer is the one passed to the entry, which is valid until the entry returns.
    let state = unsafe { &*call.cast::<CallState<'_>>() };
    let result = guard(|| Ok(body(state)));
    result.unwrap_or_else(|panic| Err(panic.to_string())).unwrap_or_else(|problem| {
        state.with_answers(|answers| answers.violation.get_or_insert(format!("{name}: {problem}")).len());
        T::default()
    })
}
