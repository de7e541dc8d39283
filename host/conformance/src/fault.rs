//! Faults of a backend: a closed set of kinds, each with a name that the report and its JSON use.

use byoc_core::pass::Refusal;
use byoc_plugin_api::Error;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal;)*) => {
        /// Kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Kind { $($(#[doc = $doc])* #[serde(rename = $name)] $variant),* }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant),*];

            /// Returns the name in reports and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name),* }
            }

            /// Returns the description in reports.
            pub const fn meaning(self) -> &'static str {
                match self { $(Kind::$variant => concat!($($doc),*).trim_ascii()),* }
            }
        }
    };
}

kinds! {
    /// A result is outside its error budget.
    WrongResult "wrong-result";
    /// `prepare` returned outputs that do not match the region's outputs.
    WrongShape "wrong-shape";
    /// The backend supported the region, but `compile` failed.
    ClaimNotKept "claim-not-kept";
    /// `load` or `prepare` failed on the output of `compile`.
    LoadFailed "load-failed";
    /// `run` returned an error.
    RunFailed "run-failed";
    /// An entry panicked.
    Panic "panic";
    /// An entry terminated the process.
    Crash "crash";
    /// An entry did not return within the time limit.
    TimeLimit "time-limit";
    /// A verdict is missing, or judging failed.
    JudgeFailed "judge-failed";
    /// The description is invalid or contradicts itself.
    BadDescription "bad-description";
    /// Two compilations of the same region produced different bytes.
    NotDeterministic "not-deterministic";
    /// The blob lacks the region's symbol.
    MissingSymbol "missing-symbol";
    /// The blob names a loader that does not exist.
    WrongLoader "wrong-loader";
    /// Bytes outside an output or the workspace were written.
    WritesOutside "writes-outside";
    /// An input or a constant was changed.
    WritesInput "writes-input";
    /// The result depends on bytes outside the inputs.
    ReadsOutside "reads-outside";
    /// The result depends on the initial contents of an output or the workspace.
    ReadsUnset "reads-unset";
    /// Two inputs in the same memory produce a wrong result.
    Aliasing "aliasing";
    /// The result is correct with one number of threads and wrong with another.
    Threads "threads";
    /// Concurrent runs interfere with each other.
    NotReentrant "not-reentrant";
    /// A later run, or a second load, produces a wrong result after a correct first run.
    NotRepeatable "not-repeatable";
    /// A region with different constants produces the results of an earlier region.
    StaleConstants "stale-constants";
    /// A corrupt blob terminated the process, or ran with a wrong result.
    DamagedBlob "damaged-blob";
    /// A query with an unknown key was not reported as unknown.
    Query "query";
    /// A cancelled compilation failed without reporting the cancellation, or the next compilation failed.
    Cancelled "cancelled";
    /// After an interrupted compilation, or without a usable cache directory, the results are wrong.
    Cache "cache";
    /// Too little memory led to a wrong result or an invalid access instead of an error.
    Memory "memory";
    /// With too little memory, an entry did not return.
    MemoryHang "memory-hang";
    /// A claim of the description was not tested: every case was refused, or none could be generated.
    NotTested "not-tested";
    /// The plugin called the host after all of the plugin's objects were dropped.
    WorksAfterUnload "works-after-unload";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Violation of the contract by a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: Kind,
    /// Entry in which the fault was detected: `compile`, `run`, ...
    pub entry: String,
    /// Symbol of the region that the entry worked on; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// Description of the finding.
    pub message: String,
    /// Exit code of the worker process, if the worker exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl Fault {
    /// Creates a fault.
    pub fn new(kind: Kind, entry: &str, message: impl Into<String>) -> Fault {
        Fault { kind, entry: entry.to_owned(), region: String::new(), message: message.into(), exit_code: None }
    }

    /// Sets the region that the entry worked on.
    pub fn in_region(mut self, region: &str) -> Fault {
        self.region = region.to_owned();
        self
    }

    /// Converts an error of `entry` to a fault of the given kind. A panic or a cancellation overrides the kind.
    pub fn of_error(kind: Kind, entry: &str, error: &Error) -> Fault {
        let kind = match () {
            () if error.panicked => Kind::Panic,
            () if error.code == Error::CANCELLED => Kind::Cancelled,
            () => kind,
        };
        Fault::new(kind, entry, error.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if !self.entry.is_empty() {
            write!(f, " in {}", self.entry)?;
        }
        if !self.region.is_empty() {
            write!(f, " of {}", self.region)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum CaseResult {
    /// All results were within bounds.
    Passed {
        /// Largest fraction of its error budget that any element used.
        share: f64,
        /// Number of runs that returned before their work was complete.
        unfinished: usize,
    },
    /// The backend refused the case.
    Refused(Refusal),
    /// The case is invalid: the reference rejects its values.
    Invalid(String),
    /// The backend violated the contract.
    Failed(Fault),
}
