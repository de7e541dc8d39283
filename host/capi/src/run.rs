//! Model runs and their cancellation.

use crate::error::{Error, report};
use crate::model::Model;
use crate::options::{ExtensibleStruct, array, object, read, store_result, text};
use crate::session::{Pair, split_option};
use crate::tensor::{BorrowedTensors, Output, Results, View};
use byoc::{Cancel, Inputs, RunOptions, Session, TensorViewMut};
use smallvec::SmallVec;
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// Cancellation object for C.
pub struct CancelObject(Cancel);

/// Run options.
#[repr(C)]
pub struct Options {
    struct_size: usize,
    input_names: *const *const c_char,
    timeout_seconds: f64,
    cancel: *const CancelObject,
    backend_options: *const Pair,
    backend_option_count: usize,
}

// SAFETY: the structure is `repr(C)`, begins with its size, and contains only numbers and pointers.
unsafe impl ExtensibleStruct for Options {}

impl Options {
    /// Converts the options to the library's run options.
    ///
    /// # Safety
    /// `cancel` is NULL or has not been freed; `backend_options` points to `backend_option_count` pairs of strings.
    unsafe fn run_options(&self, session: &Session) -> Result<RunOptions, Error> {
        let seconds = self.timeout_seconds;
        let timeout = match Duration::try_from_secs_f64(seconds) {
            Ok(limit) => (seconds > 0.0).then_some(limit),
            Err(_) => return Err(Error::argument(format!("timeout_seconds: expected a number >= 0, found {seconds}"))),
        };
        // SAFETY: the caller guarantees that `self.cancel` is NULL or has not been freed, and that the pairs and their
        // texts are valid.
        unsafe {
            let cancel = self.cancel.as_ref().map(|cancel| cancel.0.clone());
            let mut options = RunOptions { timeout, cancel, ..RunOptions::default() };
            for pair in array(self.backend_options, self.backend_option_count, "backend_options")? {
                let (name, value) = pair.strings("backend_options")?;
                let (backend, option) = split_option(name)?;
                options = options.backend_option(session, backend, option, value)?;
            }
            Ok(options)
        }
    }

    /// Returns the inputs of a run, by name if names are given.
    ///
    /// # Safety
    /// `input_names` is NULL, or points to one NUL-terminated text per input; the texts outlive the result.
    unsafe fn inputs<'a>(&self, borrowed_tensors: &'a BorrowedTensors<'_>) -> Result<Inputs<'a>, Error> {
        if self.input_names.is_null() {
            return Ok(Inputs::ordered(&borrowed_tensors.tensors));
        }
        // SAFETY: the caller guarantees one name per input.
        let names = unsafe { array(self.input_names, borrowed_tensors.tensors.len(), "input_names")? };
        let mut named_inputs: SmallVec<[(&str, &byoc::Tensor); 4]> = SmallVec::new();
        for (name, tensor) in names.iter().zip(&borrowed_tensors.tensors) {
            // SAFETY: the caller guarantees that each name is NUL-terminated and outlives the result.
            named_inputs.push((unsafe { text(*name, "input_names")? }, tensor));
        }
        Ok(Inputs::named(named_inputs))
    }
}

/// Runs a model, and writes the results to caller-provided memory.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_run(
    model: *const Model,
    inputs: *const View,
    input_count: usize,
    outputs: *const View,
    output_count: usize,
    options: *const Options,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let model = object(model, "model")?.live()?;
        let options = read(options, "byoc_run_options")?;
        let borrowed_tensors = model.slots.borrow(array(inputs, input_count, "inputs")?)?;
        let mut memory: SmallVec<[Output<'_>; 4]> = SmallVec::new();
        for (index, view) in array(outputs, output_count, "outputs")?.iter().enumerate() {
            memory.push(view.output(index)?);
        }
        borrowed_tensors.check_disjoint(&memory)?;
        let mut views: SmallVec<[TensorViewMut<'_>; 4]> = memory.iter_mut().map(Output::view).collect();
        let run_options = options.run_options(&model.session)?;
        if options.input_names.is_null() && run_options.backend_options.is_empty() {
            let cancel = run_options.cancellation(&model.session.cancel);
            let cancel = cancel.as_ref().unwrap_or(&model.session.cancel);
            let result = model.model.loaded().run_into(&borrowed_tensors.tensors, &mut views, cancel);
            return Ok(result.map_err(byoc::Error::from)?);
        }
        Ok(model.model.run_into(options.inputs(&borrowed_tensors)?, &mut views, &run_options)?)
    })
}

/// Runs a model, and allocates memory for the results.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_run_alloc(
    model: *const Model,
    inputs: *const View,
    input_count: usize,
    options: *const Options,
    results: *mut *mut Results,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let model = object(model, "model")?.live()?;
        let options = read(options, "byoc_run_options")?;
        let borrowed_tensors = model.slots.borrow(array(inputs, input_count, "inputs")?)?;
        let outputs =
            model.model.run_with(options.inputs(&borrowed_tensors)?, &options.run_options(&model.session)?)?;
        let tensors = outputs.into_tensors().into_iter().map(|tensor| borrowed_tensors.detach(tensor));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        store_result(results, || Results::new(tensors))
    })
}

/// Creates a cancellation object.
#[unsafe(no_mangle)]
pub extern "C" fn byoc_cancel_create() -> *mut CancelObject {
    Box::into_raw(Box::new(CancelObject(Cancel::default())))
}

/// Requests or resets cancellation.
///
/// # Safety
/// `cancel` is NULL, or a cancellation object that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_cancel_set(cancel: *const CancelObject, cancelled: c_int) {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    if let Some(cancel) = unsafe { cancel.as_ref() } {
        cancel.0.set(cancelled != 0);
    }
}

/// Frees a cancellation object.
///
/// # Safety
/// `cancel` is NULL, or a cancellation object that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_cancel_free(cancel: *mut CancelObject) {
    crate::error::free(cancel);
}
