//! Runs of a model over the calibration data, in batches.

use super::data::Samples;
use super::model::with_shapes;
use byoc::driver::plan::plan;
use byoc::runtime::error::Failure;
use byoc::runtime::exec::{Executor, Pool};
use byoc_ir::ir::Module;
use byoc_ir::tensor::Tensor;
use std::sync::Arc;

/// Configuration of runs over the calibration data.
pub struct Runs<'a> {
    /// Calibration data.
    pub samples: &'a Samples,
    /// Number of samples per run.
    pub batch: usize,
    /// True if the last batch may be smaller.
    pub open: bool,
    /// Thread pool.
    pub pool: &'a Arc<Pool>,
}

impl Runs<'_> {
    /// Returns the number of samples run: all samples if `open`, otherwise the samples in complete batches.
    pub fn count(&self) -> usize {
        if self.open { self.samples.count } else { self.samples.count / self.batch * self.batch }
    }

    /// Runs the models in lockstep over all samples, on the host only, and passes the results of each run to `visit`.
    ///
    /// # Errors
    /// If a model cannot be run, or `visit` fails.
    pub fn for_each(
        &self,
        models: &[&Module],
        mut visit: impl FnMut(Vec<Vec<Tensor>>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut ready, mut sized_run) = (Vec::new(), 0);
        let mut first_row = 0;
        while first_row < self.count() {
            let batch = self.batch.min(self.count() - first_row);
            if batch != sized_run {
                ready = models.iter().map(|module| self.executor(module, batch)).collect::<Result<Vec<_>, _>>()?;
                sized_run = batch;
            }
            let inputs = self.samples.rows(first_row, batch);
            let results: Result<Vec<_>, _> = ready.iter().map(|executor| executor.run(&inputs)).collect();
            visit(results?)?;
            first_row += batch;
        }
        Ok(())
    }

    fn executor(&self, module: &Module, batch: usize) -> Result<Executor, Failure> {
        let module = with_shapes(module, &self.samples.shapes(batch))?;
        let lowered_program = plan(&module, &[], &[])?;
        Ok(Executor::new(lowered_program.program, lowered_program.constants, Vec::new(), self.pool.clone())?)
    }
}
