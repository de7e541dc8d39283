//! Loads and runs compiled regions.

use crate::scratch::Scratch;
use crate::{blob, cpu, toolchain};
use byoc_plugin_api::{Call, Constant, Error, Executable, LoadRequest, Loader, Prepared, Result, Services};
use byoc_plugin_support::refusal::cause;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Mutex;

/// Loader registered as `loadbinary_ccompiler`.
pub struct ObjectLoader;

type Task = unsafe extern "C" fn(*mut c_void, i64);
type ParallelFor = unsafe extern "C" fn(*mut c_void, i64, Task, *mut c_void);
type Size = unsafe extern "C" fn() -> i64;
type Pack = unsafe extern "C" fn(*const *const c_void, *mut c_void);
type Run = unsafe extern "C" fn(
    *const Pool,
    *const *const c_void,
    *const *mut c_void,
    *const *const c_void,
    *const c_void,
    *mut c_void,
);

/// Thread pool passed to the generated code, with the layout of `byoc_pool` in the prelude.
#[repr(C)]
struct Pool {
    host: *mut c_void,
    parallel_for: ParallelFor,
}

/// Loaded object and its entry points.
pub struct Object {
    run: Run,
    pack: Pack,
    workspace: usize,
    packed_size: usize,
    // Keeps the entry points valid. Declared last, so that it is dropped last.
    _library: Library,
}

impl Object {
    /// Loads an object and resolves the entry points of a region.
    ///
    /// # Errors
    /// If the object cannot be loaded or lacks an entry point.
    pub fn open(bytes: &[u8], symbol: &str) -> Result<Object> {
        // The file is in a private directory, which can be removed as soon as the library is mapped.
        let dir = Scratch::new()?;
        Object::open_file(&dir.library(bytes)?, symbol)
    }

    /// Loads a region's object from a permanent file, which must contain exactly `bytes`.
    ///
    /// # Errors
    /// If the file cannot be read or does not contain `bytes`, or the object cannot be loaded or lacks an entry point.
    pub fn open_in_place(path: &Path, bytes: &[u8], symbol: &str) -> Result<Object> {
        let object_bytes = std::fs::read(path).map_err(|error| Error::new(format!("{}: {error}", path.display())))?;
        if object_bytes != bytes {
            return Err(Error::new(format!(
                "{}: expected the object in the blob of {symbol}, found different data",
                path.display()
            )));
        }
        Object::open_file(path, symbol)
    }

    fn open_file(path: &Path, symbol: &str) -> Result<Object> {
        // SAFETY: the object is compiled from generated C without constructors; whoever loads an artifact trusts its
        // code.
        let library = unsafe { Library::open(Some(path.as_os_str()), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| Error::new(format!("cannot load the object of {symbol}: {}", cause(&error))))?;
        let missing_symbol = |name: &str| Error::new(format!("the object of {symbol} has no symbol `{name}`"));
        macro_rules! entry {
            ($ty:ty, $name:expr) => {{
                let name = $name;
                // SAFETY: the generated source defines the symbol with this signature.
                let entry = unsafe { library.get::<$ty>(name.as_bytes()) };
                *entry.map_err(|_| missing_symbol(&name))?
            }};
        }
        let run = entry!(Run, symbol.to_owned());
        let pack = entry!(Pack, format!("{symbol}_pack"));
        let workspace = entry!(Size, format!("{symbol}_workspace_size"));
        let packed_size = entry!(Size, format!("{symbol}_packed_size"));
        // SAFETY: the generated size functions only return a constant.
        let (workspace, packed_size) = unsafe { (workspace(), packed_size()) };
        let negative_size = |bytes: i64| Error::new(format!("object of {symbol}: expected sizes >= 0, found {bytes}"));
        let size = |bytes: i64| usize::try_from(bytes).map_err(|_| negative_size(bytes));
        Ok(Object { run, pack, workspace: size(workspace)?, packed_size: size(packed_size)?, _library: library })
    }
}

/// Allocation aligned to a cache line of 64 bytes.
struct AlignedMemory {
    address: *mut u8,
    layout: Layout,
}

// SAFETY: the struct owns the memory, which is not bound to a thread.
unsafe impl Send for AlignedMemory {}
// SAFETY: `load` writes the bytes before it shares the region, and they are only read afterwards.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    fn zeroed(bytes: usize) -> Result<AlignedMemory> {
        let layout = Layout::from_size_align(bytes.max(64), 64).map_err(|error| Error::new(error.to_string()))?;
        // SAFETY: `bytes.max(64)` makes the size of the layout nonzero.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        if address.is_null() {
            return Err(Error::new(format!("cannot allocate {bytes} bytes for packed constants")));
        }
        Ok(AlignedMemory { address, layout })
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: `zeroed` allocated the memory with this layout.
        unsafe { std::alloc::dealloc(self.address, self.layout) };
    }
}

struct LoadedRegion {
    object: Object,
    inputs: Vec<Vec<usize>>,
    outputs: Vec<Vec<usize>>,
    packed_memory: AlignedMemory,
    constants: Vec<usize>,
    _kept: Vec<Constant>,
    services: Services,
}

impl Loader for ObjectLoader {
    fn load(&self, request: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let blob = blob::read(request.blob)?;
        let symbol = &blob.header.symbol;
        if symbol != request.symbol {
            return Err(Error::new(format!("expected the blob of {}, found that of {symbol}", request.symbol)));
        }
        if let Some(types) = &blob.header.types {
            types.check(request)?;
        }
        let constants_in_place = kept_constants(blob.source);
        if constants_in_place != blob.header.kept
            || constants_in_place.last().is_some_and(|&last_constant| last_constant >= request.constants.len())
        {
            return Err(Error::new(format!(
                "blob of {symbol}: constants in place: expected {constants_in_place:?} of {} constants, found {:?}",
                request.constants.len(),
                blob.header.kept
            )));
        }
        let cpu_features = cpu::features();
        let unsupported_features: Vec<&str> =
            blob.header.features.iter().filter(|f| !cpu_features.contains(f)).map(String::as_str).collect();
        let file = request.options["region"]["library"].as_str().map(Path::new);
        let object = if let (Some(file), true) = (file, unsupported_features.is_empty()) {
            Object::open_in_place(file, blob.object, symbol)?
        } else if unsupported_features.is_empty() {
            Object::open(blob.object, symbol)?
        } else if file.is_some() {
            let (symbol, features) = (&blob.header.symbol, unsupported_features.join(", "));
            return Err(Error::new(format!("{symbol} was compiled for a CPU with {features}, which this CPU lacks"))
                .hint("compile the model on a machine with the target CPU"));
        } else {
            tracing::info!(
                "{symbol} was compiled for a CPU with {}; recompiling for this CPU",
                unsupported_features.join(", ")
            );
            let compiler = toolchain::toolchain().map_err(|error| {
                Error::new(format!(
                    "{symbol} was compiled for a CPU with {}, which this CPU lacks, and cannot be recompiled: {}",
                    unsupported_features.join(", "),
                    error.message
                ))
                .hint(error.hint.as_str())
            })?;
            let cache = toolchain::cache_settings(request.options);
            Object::open(&compiler.compile(blob.source, cache.as_ref(), request.services)?, symbol)?
        };
        // Only the constants that the code reads in place stay referenced after packing.
        let pointers: Vec<usize> = request.constants.iter().map(|c| c.bytes().as_ptr() as usize).collect();
        let packed_memory = AlignedMemory::zeroed(object.packed_size)?;
        // SAFETY: the generated packing function reads constants of the region's types, which are checked above if the
        // blob records them, and writes `packed_size` bytes, the size of `packed_memory`.
        unsafe { (object.pack)(pointers.as_ptr().cast(), packed_memory.address.cast()) };
        let constants_in_place = &blob.header.kept;
        let mut constants = vec![0; pointers.len()];
        let mut handles = Vec::new();
        for &i in constants_in_place {
            constants[i] = pointers[i];
            handles.push(request.constants[i].clone());
        }
        Ok(Box::new(LoadedRegion {
            inputs: blob.header.inputs,
            outputs: blob.header.outputs,
            object,
            packed_memory,
            constants,
            _kept: handles,
            services: request.services.clone(),
        }))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(match key {
            // The blob holds native code, or C that is compiled to native code.
            "blob.native" => Some(b"true".to_vec()),
            "blob.library" => Some(blob::read(data)?.object.to_vec()),
            "byoc.files.1" => Some(b"[]".to_vec()),
            _ => None,
        })
    }
}

/// Returns the sorted indices of the constants that a C file reads in place, which its blob must list.
fn kept_constants(text: &str) -> Vec<usize> {
    let read = text.split(" = args->constants[").skip(1);
    let indices: BTreeSet<usize> = read.filter_map(|text_after| text_after.split(']').next()?.parse().ok()).collect();
    indices.into_iter().collect()
}

/// Context passed to `parallel_for` by the generated code.
struct Host<'a> {
    services: &'a Services,
    error: Mutex<Option<Error>>,
}

unsafe extern "C" fn parallel_for(host: *mut c_void, n: i64, task: Task, arg: *mut c_void) {
    // SAFETY: `run` passes a `Host` that outlives the call.
    let host = unsafe { &*host.cast::<Host<'_>>() };
    let arg = arg as usize;
    let outcome = host.services.parallel_for(n.max(0) as usize, |i| {
        // SAFETY: the generated task writes only memory that no other task of the phase accesses.
        unsafe { task(arg as *mut c_void, i as i64) }
    });
    if let (Err(error), Ok(mut first_error)) = (outcome, host.error.lock()) {
        first_error.get_or_insert(error);
    }
}

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        if inputs.len() != self.inputs.len()
            || inputs.iter().zip(&self.inputs).any(|(actual, expected)| actual != expected)
        {
            return Err(Error::new(format!("expected inputs of shapes {:?}, found {inputs:?}", self.inputs)));
        }
        Ok(Prepared::exact(&self.outputs).with_workspace(self.object.workspace))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        if call.inputs.len() != self.inputs.len() || call.outputs.len() != self.outputs.len() {
            return Err(Error::new(format!(
                "number of inputs and outputs: expected {} and {}, found {} and {}",
                self.inputs.len(),
                self.outputs.len(),
                call.inputs.len(),
                call.outputs.len()
            )));
        }
        if call.workspace.len() < self.object.workspace {
            return Err(Error::new(format!(
                "expected at least {1} bytes of workspace, found {0}",
                call.workspace.len(),
                self.object.workspace
            )));
        }
        for (tensor, expected) in call.inputs.iter().zip(&self.inputs) {
            if tensor.shape() != expected {
                return Err(Error::new(format!("expected an input of shape {expected:?}, found {:?}", tensor.shape())));
            }
        }
        for (tensor, expected) in call.outputs.iter().zip(&self.outputs) {
            if tensor.shape() != expected {
                return Err(Error::new(format!(
                    "expected an output of shape {expected:?}, found {:?}",
                    tensor.shape()
                )));
            }
        }
        let host = Host { services: &self.services, error: Mutex::new(None) };
        let pool = Pool { host: (&raw const host).cast_mut().cast(), parallel_for };
        // Up to 16 pointers fit on the stack; longer lists are allocated on the heap.
        let (mut inline_in, mut inline_out) = ([std::ptr::null::<c_void>(); 16], [std::ptr::null_mut::<c_void>(); 16]);
        let (mut heap_in, mut heap_out) = (Vec::new(), Vec::new());
        let inputs = pointer_array(&mut inline_in, &mut heap_in, call.inputs.iter().map(|t| t.bytes().as_ptr().cast()));
        let outputs = pointer_array(
            &mut inline_out,
            &mut heap_out,
            call.outputs.iter_mut().map(|t| t.bytes_mut().as_mut_ptr().cast()),
        );
        // SAFETY: the checks above ensure the shapes and the workspace size, the host guarantees an aligned workspace
        // and disjoint outputs, and `_kept` keeps the constants alive.
        unsafe {
            (self.object.run)(
                &raw const pool,
                inputs,
                outputs,
                self.constants.as_ptr().cast(),
                self.packed_memory.address.cast(),
                call.workspace.as_mut_ptr().cast(),
            );
        }
        match host.error.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Copies pointers to `inline` if they fit, otherwise to `heap`. Returns a pointer to the first element.
fn pointer_array<P: Copy>(
    inline: &mut [P; 16],
    heap: &mut Vec<P>,
    pointers: impl ExactSizeIterator<Item = P>,
) -> *const P {
    if pointers.len() > inline.len() {
        heap.extend(pointers);
        return heap.as_ptr();
    }
    for (slot, pointer) in inline.iter_mut().zip(pointers) {
        *slot = pointer;
    }
    inline.as_ptr()
}
