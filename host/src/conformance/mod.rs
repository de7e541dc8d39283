//! The conformance run: whether a backend keeps what it promises, tried from outside (`docs/conformance.md`).
//!
//! Two processes take part. The one that the user started ([`run`]) makes cases ([`generate`]), counts, shrinks what
//! fails and reports; it knows the plugin by its description alone. The other ([`worker`]) loads the plugin and tries cases
//! on it ([`trial`], through the entries of [`bench`](mod@bench)); when it dies or hangs that is a finding, and [`supervise`] starts another. A case travels as the same
//! file that reproduces it later ([`case`]), so that what is reported is what was run.
//!
//! Results are compared with the naive reference, never with a fast kernel, within bounds that follow from rounding
//! ([`budget`], [`reference`](mod@reference)).

pub mod bench;
pub mod budget;
pub mod case;
pub mod execute;
pub mod fault;
pub mod generate;
pub mod piece;
pub mod reference;
pub mod report;
pub mod run;
pub mod shrink;
pub mod supervise;
mod thorough;
pub mod trial;
pub mod watch;
pub mod worker;
