//! Programs for input shapes that come again, compiled while the model runs.
//!
//! With known sizes, backends accept more operators and choose faster kernels. The first such program is compiled when a
//! shape comes twice in a row, each further one after [`GROWTH`] times as many runs, so that inputs whose shapes vary
//! cost few compilations, and a decoder whose cache grows in each run costs none.

use crate::compilation::{Compilation, CompileOptions, Source};
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::Tensor;
use byoc_runtime::Session;
use byoc_runtime::cancel::Cancel;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Number of runs in a row with the same shapes after which their program is compiled, and the factor by which it grows
/// with each program.
const FIRST: usize = 2;
const GROWTH: usize = 8;

/// Maximum number of programs.
const MAX_PROGRAMS: usize = 4;

/// Maximum size in bytes of the constants of all programs, which each program holds on its own.
const MAX_CONSTANTS: usize = 512 << 20;

/// Maximum duration of a compilation: the run that it delays goes on without it.
const MAX_DURATION: Duration = Duration::from_secs(60);

type Shapes = Vec<Vec<usize>>;

/// Compiler of the programs of a model, and those that it compiled so far.
pub(crate) struct Adaptive {
    session: Arc<Session>,
    source: Source,
    options: CompileOptions,
    /// Names of the inputs.
    names: Vec<String>,
    digest: String,
    constant_bytes: usize,
    programs: RwLock<Vec<(Shapes, Arc<byoc_runtime::Model>)>>,
    recent: Mutex<Recent>,
}

/// Shapes of the last run without a program of its own.
#[derive(Default)]
struct Recent {
    shapes: Shapes,
    /// Number of runs in a row with these shapes.
    count: usize,
    /// True if their program could not be compiled or loaded.
    is_refused: bool,
}

/// Model that executes a run.
pub(crate) enum Chosen<'a> {
    General(&'a byoc_runtime::Model),
    Specialized(Arc<byoc_runtime::Model>),
}

impl Deref for Chosen<'_> {
    type Target = byoc_runtime::Model;

    fn deref(&self) -> &byoc_runtime::Model {
        match self {
            Chosen::General(model) => model,
            Chosen::Specialized(model) => model,
        }
    }
}

impl Adaptive {
    /// Creates the compiler; `None` for a model without unknown sizes, and for one with weights in other files, which may
    /// change after the compilation.
    pub(crate) fn new(
        session: &Arc<Session>,
        compilation: &Compilation,
        source: Source,
        options: CompileOptions,
    ) -> Option<Adaptive> {
        let compiled = &compilation.compiled;
        let mut dims = compilation.inputs().iter().flat_map(|port| &port.ty.dims);
        let has_unknown_sizes = dims.any(|dim| dim.fixed().is_none());
        (has_unknown_sizes && compilation.is_self_contained).then(|| Adaptive {
            session: session.clone(),
            source,
            options,
            names: compilation.inputs().iter().map(|port| port.name.clone()).collect(),
            digest: compiled.model_digest.clone(),
            constant_bytes: compiled.constants.iter().map(|constant| constant.bytes().len()).sum(),
            programs: RwLock::default(),
            recent: Mutex::default(),
        })
    }

    /// Returns the number of programs.
    pub(crate) fn count(&self) -> usize {
        self.programs.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Releases the memory that the programs retain between runs.
    pub(crate) fn release_memory(&self) {
        for (_, program) in self.programs.read().unwrap_or_else(PoisonError::into_inner).iter() {
            program.release_memory();
        }
    }

    /// Returns the program for the shapes of the inputs, and compiles it if they came often enough, until `cancel` is
    /// requested; without it, compiles nothing.
    pub(crate) fn program(&self, inputs: &[Tensor], cancel: Option<&Cancel>) -> Option<Arc<byoc_runtime::Model>> {
        let matches = |shapes: &Shapes| {
            shapes.len() == inputs.len() && shapes.iter().zip(inputs).all(|(shape, input)| shape == input.shape())
        };
        let count = {
            let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, program)) = programs.iter().find(|(shapes, _)| matches(shapes)) {
                return Some(program.clone());
            }
            programs.len()
        };
        let has_all = inputs.len() == self.names.len();
        if !has_all || count == MAX_PROGRAMS || (count + 1).saturating_mul(self.constant_bytes) > MAX_CONSTANTS {
            return None;
        }
        let cancel = cancel?;
        // Runs on other threads go on without the program while it is compiled.
        let mut recent = self.recent.try_lock().ok()?;
        if !matches(&recent.shapes) {
            let shapes = inputs.iter().map(|input| input.shape().to_vec()).collect();
            *recent = Recent { shapes, count: 0, is_refused: false };
        }
        recent.count += 1;
        if recent.is_refused || recent.count < FIRST * GROWTH.pow(count as u32) {
            return None;
        }
        match self.compile(&recent.shapes, cancel) {
            Ok(program) => {
                tracing::debug!(shapes = ?recent.shapes, "compiled a program for shapes that came again");
                let program = Arc::new(program);
                let mut programs = self.programs.write().unwrap_or_else(PoisonError::into_inner);
                programs.push((std::mem::take(&mut recent.shapes), program.clone()));
                Some(program)
            }
            Err(reason) => {
                tracing::debug!(shapes = ?recent.shapes, %reason, "compiled no program for shapes that came again");
                recent.is_refused = !cancel.is_set();
                None
            }
        }
    }

    fn compile(&self, shapes: &Shapes, cancel: &Cancel) -> Result<byoc_runtime::Model, String> {
        let cancel = cancel.part(Some(MAX_DURATION));
        let _scope = cancel.enter();
        let options = self.options.for_shapes(&self.names, shapes).cancel(cancel.clone());
        let compilation = Compilation::new(&self.session, self.source.clone(), &options).map_err(|e| e.to_string())?;
        if compilation.compiled.model_digest != self.digest {
            return Err("the file of the model is another one".to_owned());
        }
        let compiled = Arc::unwrap_or_clone(compilation.compiled);
        let (model, _) = byoc_runtime::Model::load(&self.session, compiled, self.session.cache_dir.as_deref())
            .map_err(|failure| failure.diagnostics.first().map_or_else(String::new, Diagnostic::to_string))?;
        Ok(model)
    }
}
