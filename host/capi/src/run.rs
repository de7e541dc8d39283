//! Runs.

use crate::error::{Error, report};
use crate::model::Model;
use crate::options::{Growing, array, give, object, read, text};
use crate::tensor::{Borrowed, Output, Results, View};
use byoc::{Cancel, Inputs, RunOptions, TensorViewMut};
use smallvec::SmallVec;
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// Cancellation for C.
pub struct CancelObject(Cancel);

/// Options of a run.
#[repr(C)]
pub struct Options {
    struct_size: usize,
    input_names: *const *const c_char,
    timeout_seconds: f64,
    cancel: *const CancelObject,
}

// SAFETY: `repr(C)`, begins with its size, and holds numbers and pointers alone.
unsafe impl Growing for Options {}

impl Options {
    /// Returns the options of the library.
    ///
    /// # Safety
    /// `cancel` is NULL, or was not freed.
    unsafe fn run_options(&self) -> Result<RunOptions, Error> {
        let seconds = self.timeout_seconds;
        let timeout = match Duration::try_from_secs_f64(seconds) {
            Ok(limit) => (seconds > 0.0).then_some(limit),
            Err(_) => return Err(Error::argument(format!("timeout_seconds: expected 0 or more, found {seconds}"))),
        };
        // SAFETY: guaranteed by the caller.
        let cancel = unsafe { self.cancel.as_ref() }.map(|cancel| cancel.0.clone());
        Ok(RunOptions { timeout, cancel, ..RunOptions::default() })
    }

    /// Returns the inputs of a run, by name if names are given.
    ///
    /// # Safety
    /// `input_names` is NULL, or points to a text for each input.
    unsafe fn inputs<'a>(&self, borrowed: &'a Borrowed<'_>) -> Result<Inputs<'a>, Error> {
        if self.input_names.is_null() {
            return Ok(Inputs::ordered(&borrowed.tensors));
        }
        // SAFETY: guaranteed by the caller.
        let names = unsafe { array(self.input_names, borrowed.tensors.len(), "input_names")? };
        let mut named: SmallVec<[(&str, &byoc::Tensor); 4]> = SmallVec::new();
        for (name, tensor) in names.iter().zip(&borrowed.tensors) {
            // SAFETY: guaranteed by the caller.
            named.push((unsafe { text(*name, "input_names")? }, tensor));
        }
        Ok(Inputs::named(named))
    }
}

/// Runs a model, and writes the results to memory of the caller.
///
/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_run(
    model: *const Model,
    inputs: *const View,
    input_count: usize,
    outputs: *const View,
    output_count: usize,
    options: *const Options,
) -> *mut Error {
    // SAFETY: guaranteed by the caller.
    report(|| unsafe {
        let model = object(model, "model")?;
        let options = read(options, "byoc_run_options")?;
        let borrowed = model.slots.borrow(array(inputs, input_count, "inputs")?)?;
        let mut memory: SmallVec<[Output<'_>; 4]> = SmallVec::new();
        for (number, view) in array(outputs, output_count, "outputs")?.iter().enumerate() {
            memory.push(view.output(number)?);
        }
        borrowed.check_apart(&memory)?;
        let mut views: SmallVec<[TensorViewMut<'_>; 4]> = memory.iter_mut().map(Output::view).collect();
        let run_options = options.run_options()?;
        if options.input_names.is_null() {
            let cancel = run_options.cancellation(&model.cancel);
            let cancel = cancel.as_ref().unwrap_or(&model.cancel);
            let ran = model.model.loaded().run_into(&borrowed.tensors, &mut views, cancel);
            return Ok(ran.map_err(byoc::Error::from)?);
        }
        Ok(model.model.run_into(options.inputs(&borrowed)?, &mut views, &run_options)?)
    })
}

/// Runs a model, and allocates memory for the results.
///
/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_run_alloc(
    model: *const Model,
    inputs: *const View,
    input_count: usize,
    options: *const Options,
    results: *mut *mut Results,
) -> *mut Error {
    // SAFETY: guaranteed by the caller.
    report(|| unsafe {
        let model = object(model, "model")?;
        let options = read(options, "byoc_run_options")?;
        let borrowed = model.slots.borrow(array(inputs, input_count, "inputs")?)?;
        let outputs = model.model.run_with(options.inputs(&borrowed)?, &options.run_options()?)?;
        let tensors = outputs.into_tensors().into_iter().map(|tensor| borrowed.detach(tensor));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        give(results, || Results::new(tensors))
    })
}

/// Creates a cancellation.
#[unsafe(no_mangle)]
pub extern "C" fn byoc_cancel_create() -> *mut CancelObject {
    Box::into_raw(Box::new(CancelObject(Cancel::default())))
}

/// Requests or resets cancellation.
///
/// # Safety
/// `cancel` is NULL, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_cancel_set(cancel: *const CancelObject, cancelled: c_int) {
    // SAFETY: guaranteed by the caller.
    if let Some(cancel) = unsafe { cancel.as_ref() } {
        cancel.0.set(cancelled != 0);
    }
}

/// Frees a cancellation.
///
/// # Safety
/// `cancel` is NULL, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_cancel_free(cancel: *mut CancelObject) {
    crate::error::free(cancel);
}
