//! Test harness: builds regions, runs them on a thread pool, and compares the results with a naive evaluator.

use super::naive;
use crate::backend::CCompiler;
use crate::loader::ObjectLoader;
use byoc_plugin_api::*;
use byoc_test_support::random::Random;
use serde_json::json;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Test host: number of threads, and index of the query at which the host reports cancellation (0: never).
struct TestHost(usize, AtomicUsize);

impl HostServices for TestHost {
    fn num_threads(&self) -> usize {
        self.0
    }

    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let next_index = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.0 {
                scope.spawn(|| {
                    loop {
                        let i = next_index.fetch_add(1, Ordering::Relaxed);
                        if i >= count {
                            break;
                        }
                        task(i);
                    }
                });
            }
        });
    }

    fn cancelled(&self) -> bool {
        self.1.fetch_sub(1, Ordering::Relaxed) == 1
    }

    fn event(&self, _: &str, _: &serde_json::Value) {}

    fn counter(&self, _: &str, _: u64) {}

    fn log_level(&self) -> Option<Level> {
        None
    }

    fn log(&self, _: Level, _: &str, _: &str) {}

    fn reference(&self, _: &Graph, _: &[Constant]) -> Result<Box<dyn Executable>> {
        Err(Error::new("reference kernels are not available in this test"))
    }
}

struct ByteConstant(Vec<u64>, usize);

impl ConstantSource for ByteConstant {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the vector of 64-bit words holds at least that many bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }

    fn digest(&self) -> String {
        String::new()
    }
}

fn constant(name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Constant {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    // SAFETY: the vector of 64-bit words holds at least that many bytes.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bytes.len()) }.copy_from_slice(bytes);
    Constant::new(name, dtype, shape, ByteConstant(words, bytes.len()))
}

/// Creates a host with `threads` threads.
pub fn services(threads: usize) -> Services {
    Services::new(TestHost(threads, AtomicUsize::new(0)))
}

/// Creates a host that reports cancellation at the `query_count`-th query.
pub fn services_that_cancel(query_count: usize) -> Services {
    Services::new(TestHost(1, AtomicUsize::new(query_count)))
}

/// Region under construction, with the values of its inputs and constants.
pub struct Case {
    pub graph: Graph,
    pub constants: Vec<Constant>,
    /// Input values, in the naive evaluator's format.
    pub inputs: Vec<naive::Array>,
    pub constant_values: Vec<naive::Array>,
    random: Random,
}

pub fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

impl Case {
    pub fn new() -> Case {
        Case {
            graph: Graph::new("region_0"),
            constants: Vec::new(),
            inputs: Vec::new(),
            constant_values: Vec::new(),
            // Sums of thousands of these numbers stay small, so that their `exp` does not enlarge the error of a sum.
            random: Random::new(5),
        }
    }

    fn values(&mut self, dtype: DType, shape: &[usize]) -> naive::Array {
        let count = shape.iter().product();
        let data = (0..count)
            .map(|_| {
                let x = f64::from(self.random.float());
                match dtype {
                    DType::F32 => x,
                    DType::BOOL => f64::from(x > 0.0),
                    _ => (x * 5.0 + 5.0).floor(),
                }
            })
            .collect();
        naive::Array { dtype, shape: shape.to_vec(), data }
    }

    pub fn input_of(&mut self, dtype: DType, shape: &[usize]) -> ValueRef {
        let value = self.values(dtype, shape);
        self.inputs.push(value);
        let name = format!("x{}", self.inputs.len());
        ValueRef::of(self.graph.push_input(&name, TensorType::new(dtype, shape)))
    }

    pub fn input(&mut self, shape: &[usize]) -> ValueRef {
        self.input_of(DType::F32, shape)
    }

    pub fn constant(&mut self, shape: &[usize]) -> ValueRef {
        let value = self.values(DType::F32, shape);
        self.constant_with(value)
    }

    pub fn constant_with(&mut self, value: naive::Array) -> ValueRef {
        let index = self.constants.len() as u32;
        let ty = TensorType::new(value.dtype, &value.shape);
        self.constants.push(constant("w", value.dtype, &value.shape, &value.bytes()));
        self.constant_values.push(value);
        ValueRef::of(self.graph.push_constant(index, ty))
    }

    pub fn scalar(&mut self, value: f64) -> ValueRef {
        self.constant_with(naive::Array { dtype: DType::F32, shape: Vec::new(), data: vec![value] })
    }

    /// Adds a call with one result.
    pub fn op<const N: usize>(
        &mut self,
        name: &str,
        inputs: [ValueRef; N],
        attrs: Vec<Attr>,
        out: TensorType,
    ) -> ValueRef {
        let node = self.graph.push_op(name, inputs, attrs, [out]);
        self.graph.nodes[node as usize].sources.push(format!("node_{node}").into());
        ValueRef::of(node)
    }

    /// Adds a call whose result has the type of its first operand.
    pub fn elementwise<const N: usize>(&mut self, name: &str, inputs: [ValueRef; N]) -> ValueRef {
        let ty = self.graph.type_of(inputs[0]).clone();
        self.op(name, inputs, Vec::new(), ty)
    }

    pub fn output(&mut self, value: ValueRef) {
        self.graph.outputs.push(value);
    }

    /// Compiles, loads and runs the region on 1 and on 2 threads, and compares the results with the naive evaluator.
    /// `tolerance` bounds the difference relative to the largest value.
    pub fn check(&self, tolerance: f64) {
        self.check_in(None, tolerance);
    }

    pub fn compile(&self, cache: Option<&Path>) -> CompiledRegion {
        let options = json!({ "threads": 2, "cache_dir": cache.map(|p| p.to_str().unwrap().to_owned()) });
        let region = Region { graph: &self.graph, constants: &self.constants, options: &options };
        CCompiler { services: services(1) }.compile(&region).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn check_in(&self, cache: Option<&Path>, tolerance: f64) {
        let compiled_region = self.compile(cache);
        check_source(&compiled_region.source.as_ref().into_option().unwrap().text);
        let expected = naive::evaluate(&self.graph, &self.inputs, &self.constant_values);
        let mut results_by_form =
            vec![("1 thread", self.run(&compiled_region, 1)), ("2 threads", self.run(&compiled_region, 2))];
        results_by_form.extend(super::program::run(self));
        for (form, results) in results_by_form {
            for (k, (actual, expected_output)) in results.iter().zip(&expected).enumerate() {
                assert_eq!(
                    actual.shape, expected_output.shape,
                    "{form}, output {k}: expected the shape of the reference"
                );
                let scale = expected_output
                    .data
                    .iter()
                    .filter(|v| v.is_finite())
                    .fold(0.0f64, |m, v| m.max(v.abs()))
                    .max(1e-30);
                for (i, (a, b)) in actual.data.iter().zip(&expected_output.data).enumerate() {
                    let is_close = (a.is_nan() && b.is_nan()) || a == b || ((a - b).abs() / scale) <= tolerance;
                    assert!(
                        is_close,
                        "{form}, output {k}, element {i}: expected {b}, found {a}; largest magnitude {scale}"
                    );
                }
            }
        }
    }

    /// Runs a compiled region once.
    pub fn run(&self, compiled_region: &CompiledRegion, threads: usize) -> Vec<naive::Array> {
        let services = services(threads);
        let request = LoadRequest {
            symbol: &self.graph.symbol,
            blob: &compiled_region.blob,
            constants: &self.constants,
            services: &services,
            options: &json!({}),
        };
        let executable = ObjectLoader.load(&request).unwrap_or_else(|error| panic!("{error}"));
        let dims: Vec<&[usize]> = self.inputs.iter().map(|a| &a.shape[..]).collect();
        let preparation = executable.prepare(&dims).unwrap();
        let buffers: Vec<Vec<u8>> = self.inputs.iter().map(naive::Array::bytes).collect();
        let buffers: Vec<Vec<u64>> = buffers.iter().map(|b| words(b)).collect();
        let inputs: Vec<TensorRef<'_>> = self
            .inputs
            .iter()
            .zip(&buffers)
            .map(|(array, words)| {
                let len = array.data.len() * array.dtype.size();
                // SAFETY: the vector of 64-bit words holds at least that many bytes.
                let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), len) };
                TensorRef::new(array.dtype, &array.shape, bytes)
            })
            .collect();
        let types: Vec<TensorType> = self.graph.output_types().cloned().collect();
        let mut shapes: Vec<Vec<usize>> = types.iter().map(|t| t.shape().unwrap()).collect();
        let mut memory: Vec<Vec<u64>> =
            types.iter().map(|t| vec![0xff; (t.element_count().unwrap() * t.dtype.size()).div_ceil(8)]).collect();
        {
            let mut outputs: Vec<TensorMut<'_>> = types
                .iter()
                .zip(&mut shapes)
                .zip(&mut memory)
                .map(|((ty, shape), words)| {
                    let len = shape.iter().product::<usize>() * ty.dtype.size();
                    // SAFETY: the vector of 64-bit words holds at least that many bytes.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), len) };
                    TensorMut::new(ty.dtype, shape, bytes)
                })
                .collect();
            // The workspace is filled with NaN to detect reads of memory that was not written.
            let mut space = vec![u64::MAX; preparation.workspace.div_ceil(8) + 16];
            let skipped_bytes = (64 - space.as_ptr() as usize % 64) % 64;
            // SAFETY: `space` is 128 bytes larger than the workspace, and `skipped_bytes` is less than 64.
            let workspace = unsafe {
                std::slice::from_raw_parts_mut(
                    space.as_mut_ptr().cast::<u8>().add(skipped_bytes),
                    preparation.workspace,
                )
            };
            let call = Call { inputs: &inputs, outputs: &mut outputs, workspace, plan: preparation.plan };
            executable.run(call).unwrap();
        }
        types
            .iter()
            .zip(shapes)
            .zip(memory)
            .map(|((ty, shape), words)| naive::Array::read(ty.dtype, shape, &words))
            .collect()
    }
}

/// Checks that the generated C compiles without warnings. `BYOC_SHOW_C` names a file to which the C code is also
/// written.
fn check_source(text: &str) {
    if let Ok(path) = std::env::var("BYOC_SHOW_C") {
        std::fs::write(path, text).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("region.c"), text).unwrap();
    let output = std::process::Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "region.c"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub fn words(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8).max(1)];
    // SAFETY: the vector of 64-bit words holds at least that many bytes.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bytes.len()) }.copy_from_slice(bytes);
    words
}
