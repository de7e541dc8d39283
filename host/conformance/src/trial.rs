//! Trial of a case on a backend: each region is judged, compiled, loaded, run in guarded memory, and compared with the
//! reference.

use super::case::Case;
use super::execute::{FillPattern, judge_outputs};
use super::fault::{CaseResult, Fault, Kind};
use super::harness::Harness;
use super::linked::LinkedRegion;
use super::reference::Mismatch;
use super::test_region::TestRegion;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{Executable, Prepared};
use serde_json::json;

impl Harness<'_, '_> {
    /// Tests a case. `is_thorough` includes the tests that concern the backend rather than the case: threads,
    /// repetition, concurrency, different constants, corrupt blobs.
    pub fn try_case(&self, case: &Case, is_thorough: bool) -> CaseResult {
        let test_regions = match self.partition(case) {
            Ok(test_regions) => test_regions,
            Err(outcome) => return outcome,
        };
        let (mut max_share, mut unfinished_runs) = (0.0f64, 0);
        for test_region in &test_regions {
            if self.until_compile {
                match self.compile(test_region, self.cache_dir) {
                    Ok(_) => continue,
                    Err(fault) => return CaseResult::Failed(fault.in_region(&test_region.graph.symbol)),
                }
            }
            if self.setting.is_on_device {
                let linked_region = match self.compile(test_region, self.cache_dir) {
                    Ok(linked_region) => linked_region,
                    Err(fault) => return CaseResult::Failed(fault.in_region(&test_region.graph.symbol)),
                };
                match super::device::try_region(self, test_region, &linked_region) {
                    Ok(runs) => unfinished_runs += runs,
                    Err(outcome) => return outcome,
                }
                continue;
            }
            let trial_result = self.try_region(test_region).and_then(|(linked_region, share)| {
                max_share = max_share.max(share);
                if is_thorough { super::thorough::try_region(self, case, test_region, &linked_region) } else { Ok(()) }
            });
            if let Err(fault) = trial_result {
                return CaseResult::Failed(fault.in_region(&test_region.graph.symbol));
            }
        }
        CaseResult::Passed { share: max_share, unfinished: unfinished_runs }
    }

    /// Compiles, loads, prepares and runs a region; returns the compiled region and the largest fraction of its error
    /// budget that any element used.
    fn try_region(&self, test_region: &TestRegion) -> Result<(LinkedRegion, f64), Fault> {
        let linked_region = self.compile(test_region, self.cache_dir)?;
        let executable = self.load(test_region, &linked_region, &linked_region.blob, self.services)?;
        let plan = self.prepare(test_region, &*executable)?;
        let max_share = self.check_run(test_region, &*executable, &plan)?;
        if let Some(other) = self.setting.open.and_then(|_| test_region.with_other_dims()) {
            self.check_plans(&*executable, (test_region, plan), &other)?;
        }
        Ok((linked_region, max_share))
    }

    /// Tests the plans of a region with symbolic dimensions: a second plan for other dimensions, runs of both, and the
    /// release of the first one.
    fn check_plans(
        &self,
        executable: &dyn Executable,
        (region, plan): (&TestRegion, Prepared),
        other: &TestRegion,
    ) -> Result<(), Fault> {
        let other_plan = self.prepare(other, executable)?;
        let check = |region: &TestRegion, plan: &Prepared, description: &str| {
            let outcome = self.check_run(region, executable, plan);
            outcome.map_err(|fault| Fault { message: format!("{description}: {}", fault.message), ..fault })
        };
        check(other, &other_plan, "a plan for other dimensions")?;
        check(region, &plan, "the first plan, after one for other dimensions")?;
        (self.progress)("query", &region.graph.symbol);
        let data = json!({ "plan": plan.plan }).to_string();
        let released = executable.query("plan.release", data.as_bytes());
        released.map_err(|error| Fault::of_error(Kind::RunFailed, "query", &error))?;
        check(other, &other_plan, "after another plan was released")?;
        let renewed_plan = self.prepare(region, executable)?;
        check(region, &renewed_plan, "a new plan, after the release of one for these dimensions")?;
        Ok(())
    }

    /// Runs a region twice with different fill bytes and compares the results. The fault for a wrong result names the
    /// condition that the result depends on.
    pub fn check_run(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        plan: &Prepared,
    ) -> Result<f64, Fault> {
        let mut max_share = 0.0f64;
        for fill in [FillPattern::NAN, FillPattern { initial: 0, guard: 0 }] {
            let outputs = self.run(test_region, executable, plan, fill, &test_region.inputs)?;
            match judge_outputs(&outputs, &test_region.expected) {
                Ok(share) => max_share = max_share.max(share),
                Err((output, mismatch)) => {
                    return Err(self.diagnose(test_region, executable, plan, fill, &outputs, output, &mismatch));
                }
            }
        }
        Ok(max_share)
    }

    /// Diagnoses a wrong result by changing one condition at a time.
    fn diagnose(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        plan: &Prepared,
        fill: FillPattern,
        wrong_outputs: &[Tensor],
        output: usize,
        mismatch: &Mismatch,
    ) -> Fault {
        let is_reproducible = |fill| {
            let repeat_outputs = self.run(test_region, executable, plan, fill, &test_region.inputs);
            repeat_outputs.is_ok_and(|repeat_outputs| {
                repeat_outputs.iter().zip(wrong_outputs).all(|(a, b)| a.bytes() == b.bytes())
            })
        };
        let message = format!("output {output}: {mismatch}");
        if !is_reproducible(fill) {
            return Fault::new(Kind::NotRepeatable, "run", format!("{message}; the result differs from run to run"));
        }
        let other = |byte: u8| if byte == 0 { 0x40 } else { 0 };
        if !is_reproducible(FillPattern { guard: other(fill.guard), ..fill }) {
            return Fault::new(
                Kind::ReadsOutside,
                "run",
                format!("{message}; the result depends on bytes before or after an input"),
            );
        }
        if !is_reproducible(FillPattern { initial: other(fill.initial), ..fill }) {
            let message = format!("{message}; the result depends on the initial contents of outputs and workspace");
            return Fault::new(Kind::ReadsUnset, "run", message);
        }
        Fault::new(Kind::WrongResult, "run", message)
    }
}
