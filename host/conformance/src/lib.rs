//! Conformance run: black-box trial of everything a backend claims (`docs/conformance.md`).
//!
//! A conformance run has two processes. The driver ([`run`]), started by the user, generates cases ([`generate`]) of
//! one claim or of several combined claims, counts outcomes, shrinks failing cases and reports; it knows the plugin
//! only by its description. The worker ([`worker`]) loads the plugin and tests cases on it ([`trial`], through the
//! entries of [`harness`]); a crash or a hang of the worker is a finding, after which [`supervise`] starts a new
//! worker. The worker reads a case from the same file that later reproduces it ([`case`]), so the reported case is
//! identical to the tested case.
//!
//! Results are compared with the naive reference, never with a fast kernel, within bounds that follow from rounding
//! ([`budget`], [`reference`](mod@reference)).

pub mod budget;
pub mod call_counter;
pub mod case;
mod claimed;
mod claims;
mod device;
mod driver;
pub mod execute;
pub mod fault;
pub mod generate;
pub mod harness;
mod lifecycle;
mod linked;
pub mod reference;
mod reply;
pub mod report;
pub mod run;
pub mod shrink;
mod subject;
pub mod supervise;
pub mod test_region;
mod thorough;
pub mod trial;
pub mod worker;
