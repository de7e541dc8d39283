//! Plain traits of the two halves of a backend: code generator and loader. Plugin authors implement these traits; the
//! host calls every loaded plugin through them, across the boundary.

use crate::constant::Constant;
use crate::describe::Description;
use crate::error::Result;
use crate::executable::Executable;
use crate::graph::{Attr, AttrValue, Graph};
use crate::services::Services;
use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RString, RVec};
use serde_json::Value;

/// Compile-time half of a backend: `relay.ext.<name>`.
pub trait Codegen: Send + Sync + 'static {
    /// Describes the backend: its requirements, and the patterns and operators that it supports.
    ///
    /// # Errors
    /// If the backend cannot work on this machine; the message is shown to the user.
    fn describe(&self) -> Result<Description>;

    /// Returns the verdict on a candidate. A refusal states a reason that the user can act on. `Supported` is binding:
    /// `compile` must generate code for the candidate.
    fn judge(&self, candidate: &Candidate) -> Verdict {
        let _ = candidate;
        Verdict::Supported
    }

    /// Returns the verdict on a whole region, a candidate of kind [`CandidateKind::Region`], after partitioning. A
    /// region of supported candidates may still be too small to be profitable, or need more buffers than the device
    /// has. The default implementation calls [`judge`](Codegen::judge).
    fn accept_region(&self, region: &Candidate) -> Verdict {
        self.judge(region)
    }

    /// Applies [`judge`](Codegen::judge) or [`accept_region`](Codegen::accept_region) to each candidate, and returns
    /// one verdict per candidate, in order. The host calls this once per entry of the pattern table, once for all
    /// single operators, and once for all regions.
    ///
    /// # Errors
    /// If the backend fails. An unsupported candidate is a refusal, not an error.
    fn judge_batch(&self, candidates: &[Candidate]) -> Result<Vec<Verdict>> {
        let verdict = |candidate: &Candidate| match candidate.kind {
            CandidateKind::Region => self.accept_region(candidate),
            CandidateKind::Pattern | CandidateKind::Operator => self.judge(candidate),
        };
        Ok(candidates.iter().map(verdict).collect())
    }

    /// Generates code for a region. Must be deterministic: the same region and options must yield the same bytes.
    ///
    /// # Errors
    /// If code generation fails; the region then runs on the host, and the message gives the reason.
    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion>;

    /// Handles the request `key`, for which the ABI has no dedicated entry. Returns `None` for an unknown key.
    ///
    /// # Errors
    /// If the key is known but the request fails.
    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = (key, data);
        Ok(None)
    }
}

/// Candidate for a backend: an operator, a composite or a region.
#[repr(C)]
#[derive(StableAbi, Clone)]
pub struct Candidate {
    /// Kind of the candidate.
    pub kind: CandidateKind,
    /// Name of the pattern (`dnnl.conv2d_relu`) or of the operator, or symbol of the region.
    pub name: RString,
    /// Name of the check after `where` in the pattern's entry; empty if the entry has no check.
    pub check: RString,
    /// Original operators with their types. The graph's inputs are the external values that the candidate reads.
    pub graph: Graph,
    /// Constants that the graph's nodes refer to.
    pub constants: RVec<Constant>,
    /// Number of expressions outside the candidate that use its result.
    pub outside_users: u32,
    /// Extensible attributes; `options` holds the user's choices, see [`Candidate::options`].
    pub attrs: RVec<Attr>,
}

/// Kind of a candidate.
#[repr(u8)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateKind {
    /// A match of a pattern in the backend's pattern table.
    Pattern,
    /// A single operator.
    Operator,
    /// A whole region, after partitioning.
    Region,
}

impl Candidate {
    /// Creates a candidate without constants and with one outside user.
    pub fn new(kind: CandidateKind, name: &str, graph: Graph) -> Candidate {
        Candidate {
            kind,
            name: name.into(),
            check: RString::new(),
            graph,
            constants: RVec::new(),
            outside_users: 1,
            attrs: RVec::new(),
        }
    }

    /// Returns the user's choices as a JSON object with `backend_options` and `device`; null if there are none. The
    /// chosen device is `options()["device"]`, null for the default device.
    pub fn options(&self) -> Value {
        match self.attrs.iter().find(|attr| attr.key == "options").map(|attr| &attr.value) {
            Some(AttrValue::Str(text)) => serde_json::from_str(text).unwrap_or_default(),
            _ => Value::Null,
        }
    }

    /// Returns the user-specified value of a backend option; `None` if the user has not set it.
    pub fn option(&self, name: &str) -> Option<String> {
        chosen_value(&self.options(), name).map(str::to_owned)
    }
}

fn chosen_value<'a>(options: &'a Value, name: &str) -> Option<&'a str> {
    options["backend_options"][name].as_str()
}

/// A region to compile.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// Operators and composites; the region's symbol is `graph.symbol`.
    pub graph: &'a Graph,
    /// Constants of the graph, in the order of its constant nodes.
    pub constants: &'a [Constant],
    /// JSON object. The host sets `cache_dir` (a path, or null for no cache), `source` (true if the user requests the
    /// generated source), and the user's choices: `backend_options` and `device`, which is missing for the default
    /// device. Later versions may add keys.
    pub options: &'a Value,
}

impl<'a> Region<'a> {
    /// Returns the user-specified value of a backend option; `None` if the user has not set it.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        chosen_value(self.options, name)
    }
}

/// Result of code generation for a region.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct CompiledRegion {
    /// Input of the loader, in the backend's own format.
    pub blob: RVec<u8>,
    /// Key of the loader: `dnnl_json` for `loadbinary_dnnl_json`.
    pub loader: RString,
    /// Functions that the blob defines; the region's own symbol must be one of them.
    pub symbols: RVec<RString>,
    /// Generated source code, for inspection only.
    pub source: ROption<Source>,
    /// Remarks for the user, one line each.
    pub notes: RVec<RString>,
    /// Properties to record with the region, such as `cpu_features`.
    pub metadata: RVec<Attr>,
}

impl CompiledRegion {
    /// Creates a compiled region whose blob is read by `loader` and defines only `symbol`.
    pub fn new(symbol: &str, loader: &str, blob: impl Into<Vec<u8>>) -> CompiledRegion {
        CompiledRegion {
            blob: blob.into().into(),
            loader: loader.into(),
            symbols: vec![RString::from(symbol)].into(),
            ..CompiledRegion::default()
        }
    }

    /// Adds the generated source code.
    pub fn with_source(mut self, language: &str, text: impl Into<String>) -> CompiledRegion {
        self.source = ROption::RSome(Source { language: language.into(), text: RString::from(text.into()) });
        self
    }
}

/// Source code generated for a region.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Language, which is also the file extension: `c`, `json`.
    pub language: RString,
    /// Source text.
    pub text: RString,
}

/// Verdict on a candidate.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend supports the candidate.
    Supported,
    /// The backend refuses the candidate.
    Refused(Refusal),
}

/// Reason for the refusal of a candidate.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of a [`RefusalCode`]; [`Verdict::SPLIT`] with a number as `detail`; or [`Verdict::ESTIMATED`], which marks
    /// a positive verdict.
    pub code: RString,
    /// Expected and found values: `input 0: expected int8, found float32`.
    pub detail: RString,
    /// Remedy for the user: `run "byoc quantize" first`. May be empty.
    pub hint: RString,
}

impl Verdict {
    /// Creates a refusal without a hint.
    pub fn refused(code: RefusalCode, detail: impl Into<String>) -> Verdict {
        Verdict::Refused(Refusal {
            code: code.as_str().into(),
            detail: RString::from(detail.into()),
            hint: RString::new(),
        })
    }

    /// Refusal code that requests smaller regions.
    pub const SPLIT: &'static str = "Split";

    /// Requests that the host split the region into regions of at most `operators` operators and composites, and judge
    /// each region.
    pub fn split(operators: usize) -> Verdict {
        let detail = operators.to_string().into();
        Verdict::Refused(Refusal { code: Verdict::SPLIT.into(), detail, hint: RString::new() })
    }

    /// Adds a remedy for the user to a refusal.
    pub fn hint(mut self, hint: impl Into<String>) -> Verdict {
        if let Verdict::Refused(refusal) = &mut self {
            refusal.hint = RString::from(hint.into());
        }
        self
    }
}

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Reasons for a refusal. They cross the boundary by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum RefusalCode { $($(#[$doc])* $name),* }

        impl RefusalCode {
            /// All codes, in order of declaration.
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$name),*];

            /// Name of the code, as it crosses the boundary and appears in reports.
            pub const fn as_str(self) -> &'static str {
                match self { $(RefusalCode::$name => stringify!($name)),* }
            }
        }
    };
}

refusal_codes! {
    /// The backend does not support the operator.
    UnsupportedOp,
    /// The backend does not support an element type.
    UnsupportedDtype,
    /// The backend does not support a rank or a dimension.
    UnsupportedShape,
    /// The backend does not support the value of an attribute.
    UnsupportedAttr,
    /// The backend does not support a layout.
    UnsupportedLayout,
    /// A dimension is unknown until run time.
    DynamicDim,
    /// The backend does not support a quantization scheme.
    QuantScheme,
    /// The backend requires a constant operand, but the operand is non-constant.
    NotConstant,
    /// The candidate needs more memory, buffers or channels than are available.
    ResourceLimit,
    /// Hardware or software that the backend requires is missing on this machine.
    Unavailable,
    /// The backend supports the candidate, but would be slower than the host.
    NotProfitable,
}

/// Run-time half of a backend: `loadbinary_<key>`.
pub trait Loader: Send + Sync + 'static {
    /// Loads a compiled region.
    ///
    /// # Errors
    /// If loading fails; the region then runs on the host, and the message gives the reason.
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>>;

    /// Handles the request `key`, for which the ABI has no dedicated entry. Returns `None` for an unknown key.
    ///
    /// # Errors
    /// If the key is known but the request fails.
    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = (key, data);
        Ok(None)
    }
}

/// A compiled region to load.
#[derive(Clone, Copy)]
pub struct LoadRequest<'a> {
    /// The region's symbol.
    pub symbol: &'a str,
    /// Blob that `compile` returned. The memory may belong to a mapped file: copy any data needed after `load` returns.
    pub blob: &'a [u8],
    /// Constants that `compile` received, in the same order.
    pub constants: &'a [Constant],
    /// JSON object, as for [`Region::options`]. If the region was compiled for `NAME@ID`, `device` is that ID;
    /// otherwise it is the device chosen in this process, because an artifact does not record the device that it was
    /// compiled for.
    pub options: &'a Value,
    /// Host services; clone them to retain them after `load` returns.
    pub services: &'a Services,
}

impl<'a> LoadRequest<'a> {
    /// Returns the user-specified value of a backend option; `None` if the user has not set it.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        chosen_value(self.options, name)
    }
}
