//! What can be wrong with a backend: a closed set of kinds, each with a name that the report and its JSON use.

use byoc_core::pass::Refusal;
use byoc_plugin_api::Error;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal;)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Kind { $($(#[doc = $doc])* #[serde(rename = $name)] $variant),* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name),* }
            }

            /// What it means, for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Kind::$variant => concat!($($doc),*).trim_ascii()),* }
            }
        }
    };
}

kinds! {
    /// A result is outside its error budget.
    WrongResult "wrong-result";
    /// `prepare` promises other outputs than the region has.
    WrongShape "wrong-shape";
    /// The backend took it, and `compile` turned it down.
    ClaimNotKept "claim-not-kept";
    /// `load` or `prepare` turned down what `compile` made.
    LoadFailed "load-failed";
    /// `run` gave an error.
    RunFailed "run-failed";
    /// An entry panicked.
    Panic "panic";
    /// An entry ended the process.
    Crash "crash";
    /// An entry did not come back in time.
    TimeLimit "time-limit";
    /// A verdict is missing, or judging failed.
    JudgeFailed "judge-failed";
    /// The description cannot be used, or says two things.
    BadDescription "bad-description";
    /// The same region compiled to other bytes.
    NotDeterministic "not-deterministic";
    /// The blob lacks the region's symbol.
    MissingSymbol "missing-symbol";
    /// The blob names a loader that is not there.
    WrongLoader "wrong-loader";
    /// Bytes outside an output or the workspace were written.
    WritesOutside "writes-outside";
    /// An input or a constant was changed.
    WritesInput "writes-input";
    /// The result depends on bytes outside the inputs.
    ReadsOutside "reads-outside";
    /// The result depends on what an output or the workspace held before.
    ReadsUnset "reads-unset";
    /// Two inputs in the same memory give a wrong result.
    Aliasing "aliasing";
    /// The result is right with one number of threads and wrong with another.
    Threads "threads";
    /// Runs at the same time disturb each other.
    NotReentrant "not-reentrant";
    /// A later run, or a second load, gives a wrong result where the first gave a right one.
    NotRepeatable "not-repeatable";
    /// A region with other constants gives the results of the first one.
    StaleConstants "stale-constants";
    /// A damaged blob ended the process, or ran with a wrong result.
    DamagedBlob "damaged-blob";
    /// A query with a key that nobody knows was not answered with "unknown".
    Query "query";
    /// A compilation that was called off failed in another way, or the next one did.
    Cancelled "cancelled";
    /// After an interrupted compilation, or without a usable cache folder, the results are wrong.
    Cache "cache";
    /// Too little memory gave a wrong result or a wild access instead of an error.
    Memory "memory";
    /// The plugin calls the host after everything of it was dropped.
    WorksAfterUnload "works-after-unload";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// What kind of thing.
    pub kind: Kind,
    /// The entry of the boundary that it showed in: `compile`, `run`, ...
    pub entry: String,
    /// What was found, in words.
    pub message: String,
}

impl Fault {
    /// A fault.
    pub fn new(kind: Kind, entry: &str, message: impl Into<String>) -> Fault {
        Fault { kind, entry: entry.to_owned(), message: message.into() }
    }

    /// The fault that an error of an entry is; a panic is always called by that name, and so is work that was given up.
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
        write!(f, "{} in {}: {}", self.kind, self.entry, self.message)
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Everything was right; the largest share of its error budget that an element used.
    Passed(f64),
    /// The backend did not take it, and said why.
    Refused(Refusal),
    /// The case is none: the reference turns its values down.
    Invalid(String),
    /// Something is wrong.
    Failed(Fault),
}
