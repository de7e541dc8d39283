//! The two halves of a backend, as plain traits. Authors implement them; the host sees every loaded plugin through
//! the same traits, with the boundary between.

use crate::constant::Constant;
use crate::describe::Description;
use crate::error::Result;
use crate::graph::{Attr, Graph};
use crate::services::Services;
use crate::tensor::{TensorMut, TensorRef};
use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RString, RVec};
use serde_json::Value;

/// The compile-time half: `relay.ext.<name>`.
pub trait Codegen: Send + Sync + 'static {
    /// Says what it looks for and what it needs.
    ///
    /// # Errors
    /// Where the backend cannot work here; the message is shown to the user.
    fn describe(&self) -> Result<Description>;

    /// Decides on a candidate; a refusal names a reason that the user can act on. A claim binds: `compile` has to
    /// make code for what was taken.
    fn judge(&self, candidate: &Candidate) -> Verdict {
        let _ = candidate;
        Verdict::Supported
    }

    /// Decides on a whole region, after partitioning: a candidate of the kind [`CandidateKind::Region`]. What it
    /// took one by one may be too small together, or need more buffers than there are. Asks
    /// [`judge`](Codegen::judge), unless it is written.
    fn accept_region(&self, region: &Candidate) -> Verdict {
        self.judge(region)
    }

    /// [`judge`](Codegen::judge) and [`accept_region`](Codegen::accept_region) for many: one verdict each, in order.
    /// The host calls this once per entry of the pattern table, once for all single operators, and once for all regions.
    ///
    /// # Errors
    /// Where it cannot judge at all.
    fn judge_batch(&self, candidates: &[Candidate]) -> Result<Vec<Verdict>> {
        let verdict = |candidate: &Candidate| match candidate.kind {
            CandidateKind::Region => self.accept_region(candidate),
            CandidateKind::Pattern | CandidateKind::Operator => self.judge(candidate),
        };
        Ok(candidates.iter().map(verdict).collect())
    }

    /// Makes code for a region. The same region and options give the same bytes.
    ///
    /// # Errors
    /// Where it cannot; the region then runs on the host, and the message says why.
    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion>;

    /// Everything that has no entry of its own. `None` means that the key is not known.
    ///
    /// # Errors
    /// Where the key is known and the answer fails.
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
    /// The pattern's name (`dnnl.conv2d_relu`), the operator's, or the region's symbol.
    pub name: RString,
    /// The name after `where` in the pattern's entry, or empty.
    pub check: RString,
    /// The original operators with their types. Inputs are what the match takes from outside.
    pub graph: Graph,
    /// The constants that the graph's nodes refer to.
    pub constants: RVec<Constant>,
    /// Number of expressions outside that use the result.
    pub outside_users: u32,
    /// Room for more.
    pub attrs: RVec<Attr>,
}

/// Kind of a candidate.
#[repr(u8)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateKind {
    /// A match of an entry of the backend's pattern table.
    Pattern,
    /// A single operator.
    Operator,
    /// A whole region, after partitioning.
    Region,
}

impl Candidate {
    /// A candidate without constants, used once outside.
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
}

/// A region to compile.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// The operators and composites; its symbol is `graph.symbol`.
    pub graph: &'a Graph,
    /// Constants of the graph, in the order of its constant nodes.
    pub constants: &'a [Constant],
    /// A JSON object. The host sets `cache_dir` (a path, or null for no cache); further keys may come.
    pub options: &'a Value,
}

/// Compiled region.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct CompiledRegion {
    /// Input of the loader, in a form of the backend's own.
    pub blob: RVec<u8>,
    /// Key of the loader: `dnnl_json` for `loadbinary_dnnl_json`.
    pub loader: RString,
    /// The functions that the blob defines; the region's own symbol must be one of them.
    pub symbols: RVec<RString>,
    /// The generated source, for people.
    pub source: ROption<Source>,
    /// Things worth knowing, one line each.
    pub notes: RVec<RString>,
    /// Facts to record beside the region, such as `cpu_features`.
    pub metadata: RVec<Attr>,
}

impl CompiledRegion {
    /// A blob for that loader, which defines the region's own symbol and nothing else.
    pub fn new(symbol: &str, loader: &str, blob: impl Into<Vec<u8>>) -> CompiledRegion {
        CompiledRegion {
            blob: blob.into().into(),
            loader: loader.into(),
            symbols: vec![RString::from(symbol)].into(),
            ..CompiledRegion::default()
        }
    }

    /// Adds the generated source.
    pub fn with_source(mut self, language: &str, text: impl Into<String>) -> CompiledRegion {
        self.source = ROption::RSome(Source { language: language.into(), text: RString::from(text.into()) });
        self
    }
}

/// Generated source.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its language, which is also the file's ending: `c`, `json`.
    pub language: RString,
    /// The text.
    pub text: RString,
}

/// The answer to a candidate.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend takes it.
    Supported,
    /// It does not, for a reason.
    Refused(Refusal),
}

/// Why a backend does not take a candidate.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One of [`RefusalCode`], by its name.
    pub code: RString,
    /// Expected and found: `input 0 is float32; this device takes int8`.
    pub detail: RString,
    /// Remedy for the user: `run "byoc quantize" first`. May be empty.
    pub hint: RString,
}

impl Verdict {
    /// A refusal without a hint.
    pub fn refused(code: RefusalCode, detail: impl Into<String>) -> Verdict {
        Verdict::Refused(Refusal {
            code: code.as_str().into(),
            detail: RString::from(detail.into()),
            hint: RString::new(),
        })
    }

    /// Adds what the user can do to a refusal.
    pub fn hint(mut self, hint: impl Into<String>) -> Verdict {
        if let Verdict::Refused(refusal) = &mut self {
            refusal.hint = RString::from(hint.into());
        }
        self
    }
}

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The reasons that a backend can give. They cross the boundary by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum RefusalCode { $($(#[$doc])* $name),* }

        impl RefusalCode {
            /// Every code.
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$name),*];

            /// The name by which it is known everywhere.
            pub const fn as_str(self) -> &'static str {
                match self { $(RefusalCode::$name => stringify!($name)),* }
            }
        }
    };
}

refusal_codes! {
    /// The operator is not one of its own.
    UnsupportedOp,
    /// An element type that it does not take.
    UnsupportedDtype,
    /// A rank or a size that it does not take.
    UnsupportedShape,
    /// An attribute whose value it does not take.
    UnsupportedAttr,
    /// A layout that it does not take.
    UnsupportedLayout,
    /// A dimension that is not known before the run.
    DynamicDim,
    /// A quantization that it does not take.
    QuantScheme,
    /// An operand that has to be a constant and is not.
    NotConstant,
    /// More memory, buffers or channels than there are.
    ResourceLimit,
    /// Something that it needs is not on this machine.
    Unavailable,
    /// Supported, but slower than the host.
    NotProfitable,
}

/// The run-time half: `loadbinary_<key>`.
pub trait Loader: Send + Sync + 'static {
    /// Makes a compiled region ready to run.
    ///
    /// # Errors
    /// Where it cannot; the region then runs on the host, and the message says why.
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>>;

    /// Everything that has no entry of its own. `None` means that the key is not known.
    ///
    /// # Errors
    /// Where the key is known and the answer fails.
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
    /// Blob that `compile` gave. It may be the bytes of a mapped file: copy what is needed later.
    pub blob: &'a [u8],
    /// The constants that `compile` saw, in the same order.
    pub constants: &'a [Constant],
    /// A JSON object, as for [`Region::options`].
    pub options: &'a Value,
    /// The host's services; clone them to keep them.
    pub services: &'a Services,
}

/// A loaded region. Several threads may run it at once.
pub trait Executable: Send + Sync + 'static {
    /// Plans a run for these input dimensions. The host keeps the answer for the dimensions used lately, and says by
    /// `query("plan.release", {"plan": 7})` which plans it let go.
    ///
    /// # Errors
    /// Where it does not take these dimensions.
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared>;

    /// Computes. It must not keep anything of the call, nor allocate on the way if it can help it.
    ///
    /// # Errors
    /// Where the run fails; the model's run then fails with this message.
    fn run(&self, call: Call<'_, '_>) -> Result<()>;

    /// Everything that has no entry of its own. `None` means that the key is not known.
    ///
    /// # Errors
    /// Where the key is known and the answer fails.
    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = (key, data);
        Ok(None)
    }
}

/// Requirements of a run: outputs, workspace, plan.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    /// Outputs, in order.
    pub outputs: RVec<OutputDims>,
    /// Bytes of scratch memory.
    pub workspace: usize,
    /// A number of the backend's own, handed back in [`Call::plan`]: which of its plans these dimensions belong to.
    pub plan: u64,
    /// Room for more. The host reads `bytes`: how much is held until the plan is released.
    pub attrs: RVec<Attr>,
}

/// The dimensions of an output.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct OutputDims {
    /// Its dimensions, or the most that they can be.
    pub dims: RVec<usize>,
    /// True if the dimensions are exact. Otherwise `run` says them with [`TensorMut::set_shape`].
    pub exact: bool,
}

impl Prepared {
    /// Outputs of these dimensions, and no scratch memory.
    pub fn exact<D: AsRef<[usize]>>(outputs: impl IntoIterator<Item = D>) -> Prepared {
        let outputs = outputs.into_iter().map(|dims| OutputDims { dims: dims.as_ref().to_vec().into(), exact: true });
        Prepared { outputs: outputs.collect(), ..Prepared::default() }
    }

    /// Asks for scratch memory.
    pub fn with_workspace(mut self, bytes: usize) -> Prepared {
        self.workspace = bytes;
        self
    }

    /// Says which plan these dimensions belong to.
    pub fn with_plan(mut self, plan: u64) -> Prepared {
        self.plan = plan;
        self
    }
}

/// One run. All memory is the caller's.
#[derive(Debug)]
pub struct Call<'a, 't> {
    /// Inputs, in order.
    pub inputs: &'a [TensorRef<'t>],
    /// Outputs, sized as prepared. Their contents are undefined before the run; they never overlap an input.
    pub outputs: &'a mut [TensorMut<'t>],
    /// Scratch memory as prepared, aligned to 64 bytes. What it holds before is undefined.
    pub workspace: &'a mut [u8],
    /// [`Prepared::plan`] of these dimensions.
    pub plan: u64,
}
