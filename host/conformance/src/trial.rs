//! Trial of a case on a backend: judges, compiles, loads, and runs each region in guarded memory against the reference.

use super::bench::Bench;
use super::case::Case;
use super::execute::{Setting, judge_outputs};
use super::fault::{Fault, Kind, Outcome};
use super::piece::Piece;
use super::reference::Outside;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{CompiledRegion, Executable, Prepared};

impl Bench<'_, '_> {
    /// Tests a case. `thorough` includes the tests that are about the backend more than about the case: threads,
    /// repetition, concurrency, other constants, damaged blobs.
    pub fn try_case(&self, case: &Case, thorough: bool) -> Outcome {
        let pieces = match self.cut(case) {
            Ok(pieces) => pieces,
            Err(outcome) => return outcome,
        };
        let mut share = 0.0f64;
        for piece in &pieces {
            let tried = self.try_piece(piece).and_then(|(compiled, used)| {
                share = share.max(used);
                if thorough { super::thorough::try_piece(self, case, piece, &compiled) } else { Ok(()) }
            });
            if let Err(fault) = tried {
                return Outcome::Failed(fault);
            }
        }
        Outcome::Passed(share)
    }

    /// Compiles, loads, prepares and runs a piece; returns the compiled region and the largest used share of the error
    /// budget.
    fn try_piece(&self, piece: &Piece) -> Result<(CompiledRegion, f64), Fault> {
        let compiled = self.compile(piece, self.cache_dir)?;
        let executable = self.load(piece, &compiled, &compiled.blob, self.services)?;
        let prepared = self.prepare(piece, &*executable)?;
        let share = self.check_run(piece, &*executable, &prepared)?;
        Ok((compiled, share))
    }

    /// Runs twice with different fill bytes and compares; a fault names the dependency of a wrong result.
    pub fn check_run(&self, piece: &Piece, executable: &dyn Executable, prepared: &Prepared) -> Result<f64, Fault> {
        let mut share = 0.0f64;
        for setting in [Setting::NAN, Setting { unset: 0, outside: 0 }] {
            let outputs = self.run(piece, executable, prepared, setting, &piece.inputs)?;
            match judge_outputs(&outputs, &piece.expected) {
                Ok(used) => share = share.max(used),
                Err((output, outside)) => {
                    return Err(self.diagnose(piece, executable, prepared, setting, &outputs, output, &outside));
                }
            }
        }
        Ok(share)
    }

    /// Diagnoses a wrong result by changing one condition at a time.
    fn diagnose(
        &self,
        piece: &Piece,
        executable: &dyn Executable,
        prepared: &Prepared,
        setting: Setting,
        wrong: &[Tensor],
        output: usize,
        outside: &Outside,
    ) -> Fault {
        let same = |setting| {
            let again = self.run(piece, executable, prepared, setting, &piece.inputs);
            again.is_ok_and(|again| again.iter().zip(wrong).all(|(a, b)| a.bytes() == b.bytes()))
        };
        let message = format!("output {output}: {outside}");
        if !same(setting) {
            return Fault::new(Kind::NotRepeatable, "run", format!("{message}; another run gives another result"));
        }
        let other = |byte: u8| if byte == 0 { 0x40 } else { 0 };
        if !same(Setting { outside: other(setting.outside), ..setting }) {
            return Fault::new(
                Kind::ReadsOutside,
                "run",
                format!("{message}; the result depends on bytes before or after an input"),
            );
        }
        if !same(Setting { unset: other(setting.unset), ..setting }) {
            let what = format!("{message}; the result depends on the initial contents of outputs and workspace");
            return Fault::new(Kind::ReadsUnset, "run", what);
        }
        Fault::new(Kind::WrongResult, "run", message)
    }
}
