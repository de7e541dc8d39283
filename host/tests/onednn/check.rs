//! Compilation, loading and execution of a module on the backend, and comparison of the results.

use super::cases::Case;
use crate::support;
use byoc::runtime::plugin::to_graph::{ConstantTable, dtype_to_api, function_graph};
use byoc::runtime::session::Session;
use byoc_ir::ir::Module;
use byoc_ir::tensor::{DType, Tensor};
use byoc_plugin_api::{
    Call, Candidate, CandidateKind, Codegen, Executable, Graph, LoadRequest, Loader, Region, TensorMut, TensorRef,
    Verdict,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Loaded oneDNN backend.
pub struct Bench {
    session: Session,
    codegen: Arc<dyn Codegen>,
    loader: Arc<dyn Loader>,
    _temp_dir: tempfile::TempDir,
}

/// 64 bytes of tensor memory, with the tensor alignment of the host.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Bench {
    /// Loads the backend; `None` if oneDNN is not installed.
    pub fn new() -> Option<Bench> {
        byoc_test_support::onednn()?;
        let dir = byoc_test_support::plugin_dir(&["dnnl"]);
        let session = Session::new(&[dir.path().to_owned()], 2).unwrap_or_else(|_| panic!("cannot start a session"));
        let codegen = session.registry.codegen("dnnl").unwrap_or_else(|_| panic!("cannot find the backend")).0;
        let loader = session.registry.loader("dnnl_json", "dnnl").expect("cannot find the loader");
        Some(Bench { session, codegen, loader, _temp_dir: dir })
    }

    /// Builds the graph of a module. Returns the graph if the backend supports it, otherwise the refusal.
    pub fn graph(&self, module: &Module) -> Result<(Graph, ConstantTable), String> {
        let mut constants = ConstantTable::default();
        let main = module.main().expect("expected `@main`");
        let graph = function_graph(module, "case", main, &mut constants).expect("expected a data-flow module");
        let mut candidate = Candidate::new(CandidateKind::Pattern, "case", graph.clone());
        candidate.constants = constants.handles.clone().into();
        match self.codegen.judge(&candidate) {
            Verdict::Supported => Ok((graph, constants)),
            Verdict::Refused(refusal) => Err(format!("{}: {}", refusal.code, refusal.detail)),
        }
    }

    /// Compiles and loads a supported graph. Panics on failure, because a positive verdict is binding.
    pub fn load(&self, graph: &Graph, constants: &ConstantTable) -> Box<dyn Executable> {
        self.load_with(graph, constants, &json!({}))
    }

    /// Compiles and loads a supported graph with options.
    fn load_with(&self, graph: &Graph, constants: &ConstantTable, options: &Value) -> Box<dyn Executable> {
        let region = Region { graph, constants: &constants.handles, options };
        let compiled = self
            .codegen
            .compile(&region)
            .unwrap_or_else(|error| panic!("cannot compile a graph with a positive verdict: {error}"));
        let request = LoadRequest {
            symbol: &graph.symbol,
            blob: &compiled.blob,
            constants: &constants.handles,
            options,
            services: &self.session.services,
        };
        self.loader.load(&request).unwrap_or_else(|error| panic!("cannot load a compiled graph: {error}"))
    }

    /// Runs a case and compares the result with the references. If the backend refuses the case, returns the reason as
    /// an error.
    pub fn check(&self, case: Case) -> Result<(), String> {
        let Case { name, seed, inputs, tolerance, .. } = &case;
        let case_tolerance = *tolerance;
        let (module, inputs) = (case.module(), inputs.clone());
        let text = byoc_ir::text::print(&module, &byoc_ir::text::PrintOptions::default()).text;
        let context = format!("{name}, seed {seed}:\n{text}");
        let (graph, constants) = self.graph(&module)?;
        let expected = support::run(&module, &inputs).unwrap_or_else(|error| panic!("{context}: {error}"));
        let dtypes: Vec<DType> = expected.iter().map(Tensor::dtype).collect();
        // Small regions run on one thread unless the option forbids it.
        for serial in ["true", "false"] {
            let options = json!({"backend_options": {"serial": serial}});
            let executable = self.load_with(&graph, &constants, &options);
            // The second run detects state that the first run left behind.
            for _ in 0..2 {
                compare_within(&context, case_tolerance, &run_as(&*executable, &inputs, &dtypes), &expected);
            }
            // The library has fast code for only some of the ways in which an operand broadcasts, and for integers only on
            // CPUs with AVX-512.
            let slow_steps = slow_steps(&*executable, &inputs);
            let may_be_slow = |step: &Value| step["step"] == "binary" || case_tolerance == 0.0;
            assert!(slow_steps.iter().all(may_be_slow), "{context}: {slow_steps:?}");
        }
        Ok(())
    }
}

/// Returns the steps of a run that the library's reference code or its general loops compute.
fn slow_steps(executable: &dyn Executable, inputs: &[Tensor]) -> Vec<Value> {
    let dims: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let plan = executable.prepare(&dims).unwrap_or_else(|error| panic!("{error}"));
    let answer = executable.query("plan.steps", json!({ "plan": plan.plan }).to_string().as_bytes());
    let steps = answer.unwrap_or_else(|error| panic!("{error}")).expect("expected the steps of the plan");
    let mut steps: Vec<Value> = serde_json::from_slice(&steps).expect("expected a list of steps");
    let is_slow = |name: &str| name.split('+').any(|part| part.starts_with("ref") || part.starts_with("simple"));
    steps.retain(|step| is_slow(step["implementation"].as_str().expect("expected a name")));
    steps
}

/// Calls [`compare_within`] with a tolerance for the rounding errors in sums.
pub fn compare(context: &str, actual: &[Tensor], expected: &[Tensor]) {
    compare_within(context, 2e-5, actual, expected);
}

/// Compares each output relative to its largest element, because small elements contain the rounding errors of large
/// elements.
pub fn compare_within(context: &str, tolerance: f64, actual: &[Tensor], expected: &[Tensor]) {
    assert_eq!(actual.len(), expected.len(), "{context}");
    for (k, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert_eq!(actual.shape(), expected.shape(), "{context}, output {k}");
        if tolerance == 0.0 {
            let position = actual.bytes().iter().zip(expected.bytes()).position(|(a, b)| a != b);
            let position = position.map(|byte| byte / actual.dtype().size());
            let value = |t: &Tensor| position.map(|position| t.view().to_f64s()[position]);
            let (a, b) = (value(actual), value(expected));
            assert!(position.is_none(), "{context}, output {k}, element {position:?}: expected {b:?}, found {a:?}");
        }
        let (a, b) = (actual.view().to_f64s(), expected.view().to_f64s());
        let max_magnitude = b.iter().fold(1e-20f64, |max_abs, v| max_abs.max(v.abs()));
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            let error = (a - b).abs() / max_magnitude;
            assert!(
                error <= tolerance || (a.is_nan() && b.is_nan()),
                "{context}, output {k}, element {i}: expected {b}, found {a}"
            );
        }
    }
}

/// Runs an executable with float32 outputs.
pub fn run(executable: &dyn Executable, inputs: &[Tensor]) -> Vec<Tensor> {
    run_as(executable, inputs, &[DType::F32; 8])
}

/// Runs an executable whose outputs have the element types `dtypes`.
pub fn run_as(executable: &dyn Executable, inputs: &[Tensor], dtypes: &[DType]) -> Vec<Tensor> {
    let dims: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let plan = executable.prepare(&dims).unwrap_or_else(|error| panic!("{error}"));
    let refs: Vec<TensorRef<'_>> =
        inputs.iter().map(|t| TensorRef::new(dtype_to_api(t.dtype()), t.shape(), t.bytes())).collect();
    let mut shapes: Vec<Vec<usize>> = plan.outputs.iter().map(|o| o.dims.to_vec()).collect();
    // The memory is filled with NaN, which exposes reads of uninitialized elements.
    let mut memory: Vec<Vec<Line>> =
        shapes.iter().map(|shape| vec![Line([0xff; 64]); (shape.iter().product::<usize>() * 4).div_ceil(64)]).collect();
    let mut workspace = vec![Line([0xff; 64]); plan.workspace.div_ceil(64)];
    let bytes = |lines: &mut [Line], len: usize| {
        // SAFETY: `lines` is an exclusive borrow of plain bytes without padding, and every caller below passes the
        // lines of an allocation of at least `len` bytes.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), len) }
    };
    let mut outputs: Vec<TensorMut<'_>> = shapes
        .iter_mut()
        .zip(&mut memory)
        .zip(dtypes)
        .map(|((shape, lines), dtype)| {
            let len = shape.iter().product::<usize>() * dtype.size();
            TensorMut::new(dtype_to_api(*dtype), shape, bytes(lines, len))
        })
        .collect();
    let workspace = bytes(&mut workspace, plan.workspace);
    let call = Call { inputs: &refs, outputs: &mut outputs, workspace, plan: plan.plan };
    executable.run(call).unwrap_or_else(|error| panic!("{error}"));
    drop(outputs);
    shapes
        .iter()
        .zip(&mut memory)
        .zip(dtypes)
        .map(|((shape, lines), dtype)| {
            let len = shape.iter().product::<usize>() * dtype.size();
            Tensor::from_bytes(*dtype, shape, bytes(lines, len)).expect("expected bytes of the tensor's size")
        })
        .collect()
}

impl Bench {
    /// Returns the detail of a refusal; empty if the candidate is supported.
    pub fn judge(&self, candidate: &Candidate) -> String {
        match self.codegen.judge(candidate) {
            Verdict::Supported => String::new(),
            Verdict::Refused(refusal) => refusal.detail.to_string(),
        }
    }
}
