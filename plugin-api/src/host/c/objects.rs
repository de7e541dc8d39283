//! Adapters from C plugin objects to the plain traits. The adapters add the plugin and the entry to errors.

use super::abi::{self, SizeTagged};
use super::arguments::{Batch, Handles, c_text};
use super::call::{Answers, CallState, HostTable};
use crate::RefusalCode;
use crate::abi::import::check_prepared;
use crate::backend::{Candidate, Codegen, CompiledRegion, LoadRequest, Loader, Region, Verdict};
use crate::describe::Description;
use crate::entries::{self, CallSites, Entry, enter};
use crate::error::{Error, Result};
use crate::executable::{Call, Executable, Prepared};
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Object of a C plugin: its function table, its `self` pointer, and the host functions for its calls.
struct Object<T> {
    plugin: Arc<str>,
    host: Arc<HostTable>,
    table: T,
    this: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    sites: &'static CallSites,
}

// SAFETY: the header requires that entries can be called on several threads, and `release` on any.
unsafe impl<T: SizeTagged> Send for Object<T> {}
// SAFETY: the header requires that entries can be called on several threads, and `release` on any.
unsafe impl<T: SizeTagged> Sync for Object<T> {}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            let Ok(_guard) = enter(self.sites.at(Entry::Release)) else { return };
            // SAFETY: the plugin registered `release` for this pointer, and no entry is in progress.
            unsafe { release(self.this) };
        }
    }
}

impl<T> Object<T> {
    fn call(&self) -> CallState<'_> {
        CallState::new(&self.host, &self.plugin)
    }

    fn with_context<R>(&self, entry: &str, result: Result<R>) -> Result<R> {
        result.map_err(|error| error.with_entry(&self.plugin, entry))
    }

    fn query(
        &self,
        entry: Option<unsafe extern "C" fn(*mut c_void, *mut abi::Call, *const c_char, *const c_void, usize) -> i32>,
        key: &str,
        data: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let Some(entry) = entry else { return Ok(None) };
        let key = c_text(key);
        let (data, size) = (data.as_ptr().cast(), data.len());
        let result = self.call().run(self.sites.at(Entry::Query), |call| {
            // SAFETY: the header declares the entry with this signature, and all arguments outlive the call.
            unsafe { entry(self.this, call, key.as_ptr(), data, size) }
        });
        match self.with_context("query", result)? {
            (abi::UNKNOWN_KEY, _) => Ok(None),
            (_, answers) => Ok(Some(answers.bytes.unwrap_or_default())),
        }
    }
}

fn missing_function_message(name: &str) -> String {
    format!("table: expected the function {name}, found NULL")
}

/// Parses a description, tolerating malformed text.
fn description(answers: Answers) -> Result<Description> {
    let bytes = answers.bytes.ok_or_else(|| Error::new("expected a call to `answer`, found none"))?;
    Ok(Description::from_json_lossy(&String::from_utf8_lossy(&bytes)))
}

type Judge = unsafe extern "C" fn(*mut c_void, *mut abi::Call, *const *const abi::Candidate, usize) -> i32;

/// Code generator of a C plugin.
pub struct CCodegen(Object<abi::Codegen>);

impl CCodegen {
    /// Returns the verdicts on one batch, whose first candidate has the index `first`.
    fn judge_one_batch(
        &self,
        batch: &mut Batch,
        candidates: &[Candidate],
        first: usize,
        judge: Judge,
    ) -> Result<Vec<Verdict>> {
        batch.fill(candidates);
        let pointers = batch.pointers();
        let call = self.0.call().for_judge(candidates.len());
        let result = call.run(self.0.sites.at(Entry::Judge), |call| {
            // SAFETY: the header declares the entry with this signature, and all arguments outlive the call.
            unsafe { judge(self.0.this, call, pointers.as_ptr(), pointers.len()) }
        });
        let answers = self.0.with_context("judge", result.map(|(_, answers)| answers.verdicts))?;
        let verdict = |(i, verdict): (usize, Option<Verdict>)| {
            let message =
                || format!("expected a verdict on candidate {} ({}), found none", first + i, candidates[i].name);
            self.0.with_context("judge", verdict.ok_or_else(|| message().into()))
        };
        answers.into_iter().enumerate().map(verdict).collect()
    }

    pub fn new(
        plugin: Arc<str>,
        host: Arc<HostTable>,
        table: abi::Codegen,
        this: *mut c_void,
    ) -> Result<CCodegen, String> {
        table.describe.ok_or_else(|| missing_function_message("describe"))?;
        table.compile.ok_or_else(|| missing_function_message("compile"))?;
        let sites = CallSites::of(&plugin, "");
        Ok(CCodegen(Object { plugin, host, table, this, release: table.release, sites }))
    }
}

impl Codegen for CCodegen {
    fn describe(&self) -> Result<Description> {
        let Some(describe) = self.0.table.describe else { return Err(missing_function_message("describe").into()) };
        let result = self.0.call().run(self.0.sites.at(Entry::Describe), |call| {
            // SAFETY: the header declares the entry with this signature, and all arguments outlive the call.
            unsafe { describe(self.0.this, call) }
        });
        self.0.with_context("describe", result.and_then(|(_, answers)| description(answers)))
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.judge_batch(std::slice::from_ref(candidate)) {
            Ok(mut verdicts) => verdicts.remove(0),
            Err(error) => Verdict::refused(RefusalCode::Unavailable, error.to_string()),
        }
    }

    fn judge_batch(&self, candidates: &[Candidate]) -> Result<Vec<Verdict>> {
        let Some(judge) = self.0.table.judge else { return Ok(vec![Verdict::Supported; candidates.len()]) };
        let batches: Vec<&[Candidate]> = candidates.chunks(Batch::SIZE).collect();
        let results: Vec<OnceLock<Result<Vec<Verdict>>>> = batches.iter().map(|_| OnceLock::new()).collect();
        // Buffers are reused across batches, one buffer per concurrent thread.
        let buffers: Mutex<Vec<Batch>> = Mutex::default();
        let lock = || buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let task = |i: usize| {
            let mut buffer = lock().pop().unwrap_or_default();
            let _ = results[i].set(self.judge_one_batch(&mut buffer, batches[i], i * Batch::SIZE, judge));
            lock().push(buffer);
        };
        match batches.len() {
            0 | 1 => (0..batches.len()).for_each(task),
            count => self.0.host.services.parallel_for(count, task)?,
        }
        let mut verdicts = Vec::with_capacity(candidates.len());
        for (index, batch_result) in results.into_iter().enumerate() {
            verdicts.extend(
                batch_result
                    .into_inner()
                    .unwrap_or_else(|| Err(format!("batch {index}: expected verdicts, found none").into()))?,
            );
        }
        Ok(verdicts)
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let Some(compile) = self.0.table.compile else { return Err(missing_function_message("compile").into()) };
        let (symbol, graph) = (c_text(&region.graph.symbol), c_text(&region.graph.to_json()));
        let options = c_text(&region.options.to_string());
        let handles = Handles::new(region.constants);
        let arguments = abi::Region {
            struct_size: size_of::<abi::Region>(),
            symbol: symbol.as_ptr(),
            graph: graph.as_ptr(),
            constants: handles.pointers.as_ptr(),
            constant_count: handles.pointers.len(),
            options: options.as_ptr(),
        };
        let call = self.0.call().for_region(&region.graph.symbol);
        let result = call.run(CallSites::of(&self.0.plugin, &region.graph.symbol).at(Entry::Compile), |call| {
            // SAFETY: the header declares the entry with this signature, and all arguments outlive the call.
            unsafe { compile(self.0.this, call, &raw const arguments) }
        });
        let region = result.and_then(|(_, answers)| {
            answers.compiled.ok_or_else(|| Error::new("expected a call to `compiled`, found none"))
        });
        self.0.with_context("compile", region)
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.query(self.0.table.query, key, data)
    }
}

/// Loader of a C plugin.
pub struct CLoader(Object<abi::Loader>);

impl CLoader {
    pub fn new(
        plugin: Arc<str>,
        host: Arc<HostTable>,
        table: abi::Loader,
        this: *mut c_void,
    ) -> Result<CLoader, String> {
        table.load.ok_or_else(|| missing_function_message("load"))?;
        let sites = CallSites::of(&plugin, "");
        Ok(CLoader(Object { plugin, host, table, this, release: table.release, sites }))
    }
}

impl Loader for CLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let Some(load) = self.0.table.load else { return Err(missing_function_message("load").into()) };
        let (symbol, options) = (c_text(region.symbol), c_text(&region.options.to_string()));
        let handles = Handles::new(region.constants);
        let request = abi::Load {
            struct_size: size_of::<abi::Load>(),
            symbol: symbol.as_ptr(),
            blob: region.blob.as_ptr().cast(),
            blob_size: region.blob.len(),
            constants: handles.pointers.as_ptr(),
            constant_count: handles.pointers.len(),
            options: options.as_ptr(),
        };
        // The services of this request may differ from those that the plugin was initialized with.
        let host = self.0.host.with_services(region.services);
        let call = CallState::new(&host, &self.0.plugin).for_region(region.symbol);
        let result = call.run(CallSites::of(&self.0.plugin, region.symbol).at(Entry::Load), |call| {
            // SAFETY: the header declares the entry with this signature, and all arguments outlive the call.
            unsafe { load(self.0.this, call, &raw const request) }
        });
        let executable = result.and_then(|(_, answers): (i32, Answers)| {
            answers.loaded.ok_or_else(|| Error::new("expected a call to `loaded`, found none"))
        });
        self.0.with_context("load", executable)
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.query(self.0.table.query, key, data)
    }
}

/// Loaded region of a C plugin.
pub struct CExecutable(Object<abi::Executable>);

impl CExecutable {
    /// Wraps the executable of the region `symbol`.
    pub fn new(
        plugin: Arc<str>,
        host: Arc<HostTable>,
        symbol: &str,
        table: abi::Executable,
        this: *mut c_void,
    ) -> Result<CExecutable, String> {
        let sites = CallSites::of(&plugin, symbol);
        // Wrapped first, so that the loaded region is released even if the table is incomplete.
        let executable = CExecutable(Object { plugin, host, table, this, release: table.release, sites });
        table.prepare.ok_or_else(|| missing_function_message("prepare"))?;
        table.run.ok_or_else(|| missing_function_message("run"))?;
        Ok(executable)
    }
}

impl Executable for CExecutable {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let Some(prepare) = self.0.table.prepare else { return Err(missing_function_message("prepare").into()) };
        // A dimension has the same representation as `usize` and as `i64`.
        let dims: SmallVec<[abi::Dims; 8]> =
            inputs.iter().map(|dims| abi::Dims { data: dims.as_ptr().cast(), count: dims.len() }).collect();
        let result = self.0.call().run_recorded(|call| {
            let site = self.0.sites.at(Entry::Prepare);
            // SAFETY: the header declares the entry with this signature, and all arguments outlive the call.
            entries::prepare(site, || Ok(unsafe { prepare(self.0.this, call, dims.as_ptr(), dims.len()) }))
        });
        let preparation = result.and_then(|(_, answers)| match answers.prepared.outputs.is_empty() {
            true => Err(Error::new("expected a call to `output`, found none")),
            false => check_prepared(&answers.prepared).map(|()| answers.prepared),
        });
        self.0.with_context("prepare", preparation)
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let Some(run) = self.0.table.run else { return Err(missing_function_message("run").into()) };
        let arguments = abi::Run {
            struct_size: size_of::<abi::Run>(),
            // `TensorRef` and `TensorMut` are transparent wrappers of `Tensor`, which has DLPack's layout.
            inputs: call.inputs.as_ptr().cast::<Tensor>(),
            input_count: call.inputs.len(),
            outputs: call.outputs.as_mut_ptr().cast::<Tensor>(),
            output_count: call.outputs.len(),
            workspace: call.workspace.as_mut_ptr().cast(),
            workspace_size: call.workspace.len(),
            plan: call.plan,
        };
        let result = self.0.call().run_recorded(|call| {
            // SAFETY: the header declares the entry with this signature, and all arguments outlive the call.
            entries::run(self.0.sites.at(Entry::Run), || Ok(unsafe { run(self.0.this, call, &raw const arguments) }))
        });
        self.0.with_context("run", result.map(drop))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.query(self.0.table.query, key, data)
    }
}
