//! Trial of a case on a backend: each region is judged, compiled, loaded, run in guarded memory, and compared with the
//! reference.

use super::case::Case;
use super::execute::{FillPattern, judge_outputs};
use super::fault::{CaseResult, Fault, Kind};
use super::harness::Harness;
use super::linked::CompiledRegion;
use super::reference::Mismatch;
use super::test_region::TestRegion;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{Executable, Prepared};

impl Harness<'_, '_> {
    /// Tests a case. `thorough` includes the tests that concern the backend rather than the case: threads, repetition,
    /// concurrency, different constants, corrupt blobs.
    pub fn try_case(&self, case: &Case, thorough: bool) -> CaseResult {
        let test_regions = match self.partition(case) {
            Ok(test_regions) => test_regions,
            Err(outcome) => return outcome,
        };
        let (mut share, mut unfinished) = (0.0f64, 0);
        for test_region in &test_regions {
            if self.setting.on_device {
                let compiled = match self.compile(test_region, self.cache_dir) {
                    Ok(compiled) => compiled,
                    Err(fault) => return CaseResult::Failed(fault.in_region(&test_region.graph.symbol)),
                };
                match super::device::try_region(self, test_region, &compiled) {
                    Ok(runs) => unfinished += runs,
                    Err(outcome) => return outcome,
                }
                continue;
            }
            let tried = self.try_region(test_region).and_then(|(compiled, used)| {
                share = share.max(used);
                if thorough { super::thorough::try_region(self, case, test_region, &compiled) } else { Ok(()) }
            });
            if let Err(fault) = tried {
                return CaseResult::Failed(fault.in_region(&test_region.graph.symbol));
            }
        }
        CaseResult::Passed { share, unfinished }
    }

    /// Compiles, loads, prepares and runs a region; returns the compiled region and the largest fraction of its error
    /// budget that any element used.
    fn try_region(&self, test_region: &TestRegion) -> Result<(CompiledRegion, f64), Fault> {
        let compiled = self.compile(test_region, self.cache_dir)?;
        let executable = self.load(test_region, &compiled, &compiled.blob, self.services)?;
        let prepared = self.prepare(test_region, &*executable)?;
        let share = self.check_run(test_region, &*executable, &prepared)?;
        Ok((compiled, share))
    }

    /// Runs a region twice with different fill bytes and compares the results. The fault for a wrong result names the
    /// condition that the result depends on.
    pub fn check_run(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        prepared: &Prepared,
    ) -> Result<f64, Fault> {
        let mut share = 0.0f64;
        for fill in [FillPattern::NAN, FillPattern { initial: 0, guard: 0 }] {
            let outputs = self.run(test_region, executable, prepared, fill, &test_region.inputs)?;
            match judge_outputs(&outputs, &test_region.expected) {
                Ok(used) => share = share.max(used),
                Err((output, mismatch)) => {
                    return Err(self.diagnose(test_region, executable, prepared, fill, &outputs, output, &mismatch));
                }
            }
        }
        Ok(share)
    }

    /// Diagnoses a wrong result by changing one condition at a time.
    fn diagnose(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        prepared: &Prepared,
        fill: FillPattern,
        wrong: &[Tensor],
        output: usize,
        mismatch: &Mismatch,
    ) -> Fault {
        let same = |fill| {
            let again = self.run(test_region, executable, prepared, fill, &test_region.inputs);
            again.is_ok_and(|again| again.iter().zip(wrong).all(|(a, b)| a.bytes() == b.bytes()))
        };
        let message = format!("output {output}: {mismatch}");
        if !same(fill) {
            return Fault::new(Kind::NotRepeatable, "run", format!("{message}; the result differs from run to run"));
        }
        let other = |byte: u8| if byte == 0 { 0x40 } else { 0 };
        if !same(FillPattern { guard: other(fill.guard), ..fill }) {
            return Fault::new(
                Kind::ReadsOutside,
                "run",
                format!("{message}; the result depends on bytes before or after an input"),
            );
        }
        if !same(FillPattern { initial: other(fill.initial), ..fill }) {
            let message = format!("{message}; the result depends on the initial contents of outputs and workspace");
            return Fault::new(Kind::ReadsUnset, "run", message);
        }
        Fault::new(Kind::WrongResult, "run", message)
    }
}
