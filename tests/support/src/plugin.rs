//! A host for the tests of plugins, which link nothing of byoc but the boundary.

use byoc_plugin_api::{
    Call, Constant, ConstantSource, DType, Error, Executable, Graph, HostServices, Level, Prepared, Result, Services,
    TensorMut, TensorRef, TensorType,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Events and counters that a host has received from plugins.
#[derive(Default)]
pub struct Recording {
    /// Events: name and fields.
    pub events: Mutex<Vec<(String, Value)>>,
    /// Sum of each counter.
    pub counters: Mutex<BTreeMap<String, u64>>,
}

struct TestHost {
    threads: usize,
    /// Number of queries until one reports cancellation; 0 for never.
    queries: AtomicUsize,
    recording: Arc<Recording>,
}

impl HostServices for TestHost {
    fn num_threads(&self) -> usize {
        self.threads
    }

    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let next_index = AtomicUsize::new(0);
        let run_worker = || {
            while let i = next_index.fetch_add(1, Ordering::Relaxed)
                && i < count
            {
                task(i);
            }
        };
        std::thread::scope(|scope| (0..self.threads).for_each(|_| drop(scope.spawn(run_worker))));
    }

    fn cancelled(&self) -> bool {
        self.queries.fetch_sub(1, Ordering::Relaxed) == 1
    }

    fn event(&self, name: &str, fields: &Value) {
        self.recording.events.lock().unwrap().push((name.to_owned(), fields.clone()));
    }

    fn counter(&self, name: &str, amount: u64) {
        *self.recording.counters.lock().unwrap().entry(name.to_owned()).or_default() += amount;
    }

    fn log_level(&self) -> Option<Level> {
        None
    }

    fn log(&self, _: Level, _: &str, _: &str) {}

    fn reference(&self, _: &Graph, _: &[Constant]) -> Result<Box<dyn Executable>> {
        Ok(Box::new(UnusedReference))
    }
}

/// Stands for the host's reference kernels, which no test of a plugin alone runs.
struct UnusedReference;

impl Executable for UnusedReference {
    fn prepare(&self, _: &[&[usize]]) -> Result<Prepared> {
        Err(Error::new("the host's reference is not available in this test"))
    }

    fn run(&self, _: Call<'_, '_>) -> Result<()> {
        Err(Error::new("the host's reference is not available in this test"))
    }
}

fn host_that_cancels(threads: usize, queries: usize) -> (Services, Arc<Recording>) {
    let recording = Arc::new(Recording::default());
    let host = TestHost { threads, queries: AtomicUsize::new(queries), recording: recording.clone() };
    (Services::new(host), recording)
}

/// Creates a host with `threads` threads, and the recording of what it receives.
pub fn host(threads: usize) -> (Services, Arc<Recording>) {
    host_that_cancels(threads, 0)
}

/// Creates a host with `threads` threads.
pub fn services(threads: usize) -> Services {
    host(threads).0
}

/// Creates a host that reports cancellation at the query with the number `queries`.
pub fn services_that_cancel(queries: usize) -> Services {
    host_that_cancels(1, queries).0
}

/// Memory of a tensor, aligned as the host's. What is not written is NaN in float32, and -1 as an integer.
pub struct Memory {
    words: Vec<[u64; 8]>,
    bytes: usize,
}

impl Memory {
    /// Creates memory that is not written yet.
    pub fn new(bytes: usize) -> Memory {
        Memory { words: vec![[u64::MAX; 8]; bytes.div_ceil(64) + 1], bytes }
    }

    /// Creates memory with these bytes.
    pub fn of(bytes: &[u8]) -> Memory {
        let mut memory = Memory::new(bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    /// Creates memory with these elements.
    pub fn of_floats(values: &[f32]) -> Memory {
        Memory::of(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Creates memory for a tensor whose shape is known.
    pub fn for_type(ty: &TensorType) -> Memory {
        Memory::new(ty.element_count().unwrap() * ty.dtype.size())
    }

    fn skip(&self) -> usize {
        (64 - self.words.as_ptr() as usize % 64) % 64
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `words` has at least 64 bytes more than `bytes`, and `skip` is less than 64.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>().add(self.skip()), self.bytes) }
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let skip = self.skip();
        // SAFETY: as in `bytes`; the slice borrows `self` exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>().add(skip), self.bytes) }
    }

    /// Returns the elements as float32.
    pub fn floats(&self) -> Vec<f32> {
        self.bytes().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

impl Clone for Memory {
    fn clone(&self) -> Memory {
        // The copy may begin at another place in its cache line.
        Memory::of(self.bytes())
    }
}

impl ConstantSource for Memory {
    fn bytes(&self) -> &[u8] {
        Memory::bytes(self)
    }

    fn digest(&self) -> String {
        String::new()
    }
}

/// Creates a constant.
pub fn constant(dtype: DType, shape: &[usize], bytes: &[u8]) -> Constant {
    Constant::new("w", dtype, shape, Memory::of(bytes))
}

/// Creates a constant of float32.
pub fn floats(shape: &[usize], values: &[f32]) -> Constant {
    Constant::new("w", DType::F32, shape, Memory::of_floats(values))
}

/// Runs a region `times` times on the same memory; returns its results, whose types are `outputs`.
pub fn run(
    region: &dyn Executable,
    inputs: &[(TensorType, Memory)],
    outputs: &[TensorType],
    times: usize,
) -> Vec<Memory> {
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|(ty, _)| ty.shape().unwrap()).collect();
    let preparation = region.prepare(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    let tensors: Vec<TensorRef<'_>> = inputs
        .iter()
        .zip(&shapes)
        .map(|((ty, memory), shape)| TensorRef::new(ty.dtype, shape, memory.bytes()))
        .collect();
    let mut output_shapes: Vec<Vec<usize>> = outputs.iter().map(|ty| ty.shape().unwrap()).collect();
    let mut results: Vec<Memory> = outputs.iter().map(Memory::for_type).collect();
    let mut workspace = Memory::new(preparation.workspace);
    let results_and_shapes = results.iter_mut().zip(&mut output_shapes).zip(outputs);
    let mut outputs: Vec<TensorMut<'_>> =
        results_and_shapes.map(|((memory, shape), ty)| TensorMut::new(ty.dtype, shape, memory.bytes_mut())).collect();
    for _ in 0..times {
        let workspace = workspace.bytes_mut();
        region.run(Call { inputs: &tensors, outputs: &mut outputs, workspace, plan: preparation.plan }).unwrap();
    }
    drop(outputs);
    results
}
