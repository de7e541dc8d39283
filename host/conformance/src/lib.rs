//! Conformance run: trial of everything a backend claims, from outside (`docs/conformance.md`).
//!
//! Two processes take part. The one that the user started ([`run`]) generates cases ([`generate`]), alone or beside
//! operators of other claims, counts, shrinks failing cases and reports; it knows the plugin only by its description. The other ([`worker`]) loads the plugin and
//! tries cases on it ([`trial`], through the entries of [`harness`]); if it crashes or hangs, that is a finding, and
//! [`supervise`] starts another. The worker reads a case from the same file that later reproduces it ([`case`]), so the
//! reported case is the one that ran.
//!
//! Results are compared with the naive reference, never with a fast kernel, within bounds that follow from rounding
//! ([`budget`], [`reference`](mod@reference)).

pub mod budget;
pub mod call_counter;
pub mod case;
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
