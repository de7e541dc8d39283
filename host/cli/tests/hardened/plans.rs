//! Plans of regions whose dimensions are known only at run time: a bounded number of plans is retained, older plans are
//! released, and a plan in use is never released.

use byoc::driver::plan::plan;
use byoc::runtime::exec::{Executor, OutputDims, Pool, Prepared, Region, RegionCall};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, Dim, Expr, Function, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Region that copies its input. Each plan holds `bytes` bytes, and a run with a released plan panics.
struct Plans {
    state: Mutex<State>,
    bytes: usize,
    /// True if all dimensions share one plan.
    is_shared: bool,
}

#[derive(Default)]
struct State {
    /// Dimensions of each live plan.
    alive: BTreeMap<u64, Vec<usize>>,
    created: u64,
    peak: usize,
}

impl Plans {
    fn new(bytes: usize, is_shared: bool) -> Arc<Plans> {
        Arc::new(Plans { state: Mutex::default(), bytes, is_shared })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Region for Plans {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        let mut state = self.state();
        let plan = if self.is_shared { 0 } else { state.created };
        state.created += 1;
        state.alive.insert(plan, inputs[0].to_vec());
        state.peak = state.peak.max(state.alive.len());
        let outputs = vec![OutputDims { dims: inputs[0].into(), exact: true }];
        Ok(Prepared { outputs, plan, bytes: self.bytes, ..Prepared::default() })
    }

    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        let dims = self.state().alive.get(&call.plan).cloned();
        let dims = dims.unwrap_or_else(|| panic!("expected a live plan, found the released plan {}", call.plan));
        assert!(self.is_shared || dims == call.inputs[0].shape);
        // Lets a concurrent run attempt to release the plan.
        std::thread::yield_now();
        assert!(self.state().alive.contains_key(&call.plan), "expected plan {} to live until its run ends", call.plan);
        call.outputs[0].data.copy_from_slice(call.inputs[0].data);
        Ok(())
    }

    fn release(&self, plan: u64) {
        assert!(self.state().alive.remove(&plan).is_some(), "expected one release of plan {plan}, found two");
    }
}

/// Returns the module `@main(x) = @region_0(x)` for a vector of arbitrary length.
fn open_module() -> Module {
    let open_type = Type::tensor_of(DType::F32, [Dim::Any]);
    let mut b = Builder::default();
    let x = b.var("x", open_type.clone());
    let body = b.op("nn.relu", &[x], Attrs::none()).unwrap();
    let attrs = Attrs::new([("Compiler", "test".into()), ("global_symbol", "region_0".into())]);
    let function = Function::new([x], body, Type::Unknown, attrs);
    let region = b.push(Expr::Function(Box::new(function))).unwrap();
    b.module.globals.insert("region_0".into(), region);
    let y = b.var("y", open_type);
    let global = b.push(Expr::Global("region_0".into())).unwrap();
    let call = b.call(global, &[y]).unwrap();
    b.define("main", &[y], call).unwrap();
    b.module
}

fn executor(region: &Arc<Plans>) -> Executor {
    let lowered_program = plan(&open_module(), &[], &[]).unwrap();
    let regions: Vec<Option<Arc<dyn Region>>> = vec![Some(region.clone())];
    Executor::new(lowered_program.program, lowered_program.constants, regions, Arc::new(Pool::new(4).unwrap())).unwrap()
}

fn run(executor: &Executor, length: usize) {
    let x = Tensor::from_slice(&[length], &vec![1.0f32; length]);
    assert_eq!(executor.run(std::slice::from_ref(&x)).unwrap(), [x]);
}

#[test]
fn keeps_64_plans_and_evicts_least_recently_used() {
    let region = Plans::new(1, false);
    let executor = executor(&region);
    for length in 1..=500 {
        run(&executor, length);
        // This plan is in constant use, so it is created only once.
        run(&executor, 7.min(length));
    }
    let state = region.state();
    assert_eq!((state.alive.len(), state.created), (64, 500));
    // A new plan is created before the oldest plan is released.
    assert_eq!(state.peak, 65);
    assert!(state.alive.values().any(|dims| dims == &[7]));
    drop(state);
    drop(executor);
    assert!(region.state().alive.is_empty(), "expected the plans of a dropped model to be released");
}

#[test]
fn limits_memory_of_plans() {
    let region = Plans::new(100 << 20, false);
    let executor = executor(&region);
    for length in 1..=20 {
        run(&executor, length);
        assert!(region.state().alive.len() <= 2);
    }
    // A plan that exceeds the limit is retained until the next plan is created.
    let region = Plans::new(usize::MAX, false);
    let executor = self::executor(&region);
    for length in [1, 1, 1, 2, 2] {
        run(&executor, length);
    }
    let state = region.state();
    assert_eq!((state.alive.len(), state.created), (1, 2));
}

#[test]
fn releases_shared_plan_with_last_user() {
    let region = Plans::new(0, true);
    let executor = executor(&region);
    for length in 1..=200 {
        run(&executor, length);
    }
    assert_eq!(region.state().alive.len(), 1);
    drop(executor);
    assert!(region.state().alive.is_empty());
}

#[test]
fn does_not_release_plan_in_use() {
    // No two plans fit within the limit, so every run releases the plans of other runs.
    let region = Plans::new(200 << 20, false);
    let executor = executor(&region);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let executor = &executor;
            scope.spawn(move || (0..100).for_each(|iteration| run(executor, 1 + (iteration * 7 + thread) % 10)));
        }
    });
    assert_eq!(region.state().alive.len(), 1);
}
