//! Models: compilation, artifacts, inputs and outputs, explanation, plan.

use crate::c_text;
use crate::error::{Error, free_in_process, report};
use crate::options::{ExtensibleStruct, array, object, read, store_result, text};
use crate::session::{Pair, Session, split_option};
use crate::tensor::Slots;
use byoc::runtime::fork::Generation;
use byoc::{Compilation, CompileOptions, Interface, Source};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Model object for C.
pub struct Model {
    pub model: byoc::Model,
    pub slots: Slots,
    pub session: Arc<byoc::Session>,
    generation: Generation,
    compilation: Compilation,
    inputs: Vec<PortTexts>,
    outputs: Vec<PortTexts>,
    /// Explanation as JSON, created on first request, like `plan`.
    explanation: OnceLock<CString>,
    plan: OnceLock<CString>,
    warnings: CString,
}

/// Input or output with its names as C strings.
struct PortTexts {
    name: CString,
    dtype: CString,
    dims: Vec<i64>,
    _dim_names: Vec<Option<CString>>,
    /// Addresses of the dimension names; NULL for a fixed dimension.
    pointers: Vec<*const c_char>,
    kind: CString,
}

// SAFETY: `pointers` refer to heap memory owned by `_dim_names`, which is never modified.
unsafe impl Send for PortTexts {}
// SAFETY: shared access only reads the texts.
unsafe impl Sync for PortTexts {}

impl PortTexts {
    fn of(port: &byoc::Port) -> PortTexts {
        let size = |dim: &byoc::Dim| match dim {
            byoc::Dim::Fixed(size) => i64::try_from(*size).unwrap_or(i64::MAX),
            _ => -1,
        };
        let name = |dim: &byoc::Dim| (!matches!(dim, byoc::Dim::Fixed(_))).then(|| c_text(dim.to_string()));
        let dim_names: Vec<Option<CString>> = port.ty.dims.iter().map(name).collect();
        let pointers =
            dim_names.iter().map(|name| name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr())).collect();
        PortTexts {
            name: c_text(port.name.as_str()),
            dtype: c_text(port.ty.dtype.name()),
            dims: port.ty.dims.iter().map(size).collect(),
            _dim_names: dim_names,
            pointers,
            kind: c_text(port.kind.name()),
        }
    }
}

/// Model input or output, as declared in `byoc.h`.
#[repr(C)]
pub struct Port {
    struct_size: usize,
    name: *const c_char,
    dtype: *const c_char,
    ndim: i32,
    dims: *const i64,
    dim_names: *const *const c_char,
    kind: *const c_char,
}

/// Named dimension with its size.
#[repr(C)]
pub struct Dim {
    pub name: *const c_char,
    pub size: i64,
}

/// Compilation options.
#[repr(C)]
pub struct Options {
    struct_size: usize,
    backends: *const *const c_char,
    backend_count: usize,
    backend_options: *const Pair,
    backend_option_count: usize,
    dims: *const Dim,
    dim_count: usize,
    progress: Option<unsafe extern "C" fn(*mut c_void, *const c_char)>,
    progress_context: *mut c_void,
    input_shapes: *const InputShape,
    input_shape_count: usize,
    no_adapt: c_int,
    precision: *const c_char,
}

/// Shape of a named input.
#[repr(C)]
struct InputShape {
    name: *const c_char,
    shape: *const i64,
    rank: usize,
}

// SAFETY: the structure is `repr(C)`, begins with its size, and holds only integers, pointers and a nullable function
// pointer.
unsafe impl ExtensibleStruct for Options {}

/// Context pointer of the progress callback.
struct Context(*mut c_void);

// SAFETY: byoc does not dereference the pointer. It passes the pointer only to the callback, and the header states that
// every function may be called from several threads.
unsafe impl Send for Context {}
// SAFETY: sharing a `Context` exposes only the pointer value.
unsafe impl Sync for Context {}

/// Reads the compilation options, and whether the model adapts to its inputs.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`.
unsafe fn compile_options(options: *const Options) -> Result<(CompileOptions, bool), Error> {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe {
        let c_options = read(options, "byoc_compile_options")?;
        let mut options = CompileOptions::new();
        for backend in array(c_options.backends, c_options.backend_count, "backends")? {
            options = match text(*backend, "backends")? {
                "none" => options.host_only(),
                name => options.backend(name),
            };
        }
        for pair in array(c_options.backend_options, c_options.backend_option_count, "backend_options")? {
            let (name, value) = pair.strings("backend_options")?;
            let (backend, option) = split_option(name)?;
            options = options.backend_option(backend, option, value);
        }
        for dim in array(c_options.dims, c_options.dim_count, "dims")? {
            let name = text(dim.name, "dims")?;
            options = match usize::try_from(dim.size) {
                Ok(size) => options.dim(name, size),
                Err(_) if dim.size == -1 => options.open_dim(name, []),
                Err(_) => {
                    let message = format!("dims: expected a size >= 0 for {name}, or -1 (open), found {}", dim.size);
                    return Err(Error::argument(message));
                }
            };
        }
        for input in array(c_options.input_shapes, c_options.input_shape_count, "input_shapes")? {
            let name = text(input.name, "input_shapes")?;
            let mut shape = Vec::new();
            for &size in array(input.shape, input.rank, "input_shapes")? {
                shape.push(usize::try_from(size).map_err(|_| {
                    Error::argument(format!("input_shapes: expected sizes >= 0 for {name}, found {size}"))
                })?);
            }
            options = options.input_shape(name, shape);
        }
        if !c_options.precision.is_null() {
            let format = text(c_options.precision, "precision")?.parse();
            let format = format.map_err(|reason: String| Error::argument(format!("precision: {reason}")))?;
            options = options.precision(format);
        }
        if let Some(progress) = c_options.progress {
            let context = Context(c_options.progress_context);
            options = options.progress(move |stage| {
                let context = &context;
                progress(context.0, c_text(stage.to_string()).as_ptr());
            });
        }
        Ok((options, c_options.no_adapt == 0))
    }
}

impl Model {
    /// Compiles and loads a model.
    fn compile(
        session: &Arc<byoc::Session>,
        source: Source,
        (options, adapts): (CompileOptions, bool),
    ) -> Result<Model, Error> {
        let compilation = Compilation::new(session, source.clone(), &options)?;
        let model = match adapts {
            true => byoc::Model::adaptive(session, compilation.clone(), source, options)?,
            false => byoc::Model::of(session, compilation.clone())?,
        };
        Model::new(session, compilation, model)
    }

    /// Loads an artifact.
    fn open(session: &Arc<byoc::Session>, source: Source) -> Result<Model, Error> {
        let compilation = Compilation::open(source)?;
        let model = byoc::Model::of(session, compilation.clone())?;
        Model::new(session, compilation, model)
    }

    fn new(session: &Arc<byoc::Session>, compilation: Compilation, model: byoc::Model) -> Result<Model, Error> {
        let warnings = model.warnings_in(Interface::C);
        let warnings: Vec<String> =
            warnings.iter().map(|warning| format!("{}: {}", warning.code, warning.message)).collect();
        Ok(Model {
            slots: Slots::default(),
            session: session.clone(),
            generation: Generation::current(),
            inputs: model.inputs().iter().map(PortTexts::of).collect(),
            outputs: model.outputs().iter().map(PortTexts::of).collect(),
            explanation: OnceLock::new(),
            plan: OnceLock::new(),
            warnings: c_text(warnings.join("\n")),
            model,
            compilation,
        })
    }

    /// Returns the model.
    ///
    /// # Errors
    /// If the process has been forked since it was created.
    pub fn live(&self) -> Result<&Model, Error> {
        self.generation.check().map_err(byoc::Error::from)?;
        Ok(self)
    }

    /// Returns a text that is created on first request. A thread that was creating it while the process was forked does
    /// not exist in the child, which therefore creates none.
    fn text(&self, text: &OnceLock<CString>, create: impl FnOnce() -> CString) -> *const c_char {
        let text = if self.generation.is_current() { Some(text.get_or_init(create)) } else { text.get() };
        text.map_or(c"".as_ptr(), |text| text.as_ptr())
    }
}

/// Compiles and loads a model.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`. The same applies to all functions of this module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_compile(
    session: *const Session,
    path: *const c_char,
    options: *const Options,
    model: *mut *mut Model,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let session = object(session, "session")?.live()?;
        let path = PathBuf::from(text(path, "path")?);
        let options = compile_options(options)?;
        store_result(model, || Model::compile(session, path.into(), options))
    })
}

/// Compiles and loads an ONNX model from the bytes of its file.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_compile_bytes(
    session: *const Session,
    bytes: *const u8,
    size: usize,
    options: *const Options,
    model: *mut *mut Model,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let session = object(session, "session")?.live()?;
        let source = Source::from(array(bytes, size, "bytes")?);
        let options = compile_options(options)?;
        store_result(model, || Model::compile(session, source, options))
    })
}

/// Loads an artifact.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_load(
    session: *const Session,
    path: *const c_char,
    model: *mut *mut Model,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let session = object(session, "session")?.live()?;
        let path = PathBuf::from(text(path, "path")?);
        store_result(model, || Model::open(session, path.into()))
    })
}

/// Loads an artifact from the bytes of its file.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_load_bytes(
    session: *const Session,
    bytes: *const u8,
    size: usize,
    model: *mut *mut Model,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let session = object(session, "session")?.live()?;
        let source = Source::from(array(bytes, size, "bytes")?);
        store_result(model, || Model::open(session, source))
    })
}

/// Writes the artifact of a model.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_save(model: *const Model, path: *const c_char) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe { Ok(object(model, "model")?.live()?.compilation.save(text(path, "path")?)?) })
}

/// Frees a model.
///
/// # Safety
/// `model` is NULL, or a model that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_free(model: *mut Model) {
    free_in_process(model, |model| model.generation);
}

/// Returns the explanation as JSON; "" for NULL.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_explanation(model: *const Model) -> *const c_char {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { model.as_ref() }.map_or(c"".as_ptr(), |model| {
        let text = || {
            let explanation = model.compilation.explanation().in_interface(Interface::C);
            c_text(serde_json::to_string(&explanation).unwrap_or_default())
        };
        model.text(&model.explanation, text)
    })
}

/// Returns the plan as JSON; "" for NULL.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_plan(model: *const Model) -> *const c_char {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { model.as_ref() }
        .map_or(c"".as_ptr(), |model| model.text(&model.plan, || c_text(model.model.plan().to_json().to_string())))
}

/// Returns the warnings, one per line; "" for NULL.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_warnings(model: *const Model) -> *const c_char {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { model.as_ref() }.map_or(c"".as_ptr(), |model| model.warnings.as_ptr())
}

/// Returns the number of inputs; 0 for NULL.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_input_count(model: *const Model) -> usize {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { model.as_ref() }.map_or(0, |model| model.inputs.len())
}

/// Returns the number of outputs; 0 for NULL.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_output_count(model: *const Model) -> usize {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { model.as_ref() }.map_or(0, |model| model.outputs.len())
}

/// Describes an input; returns -1 if it does not exist or `port` is NULL.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_input(model: *const Model, index: usize, port: *mut Port) -> c_int {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { describe(model.as_ref().and_then(|model| model.inputs.get(index)), port) }
}

/// Describes an output; returns -1 if it does not exist or `port` is NULL.
///
/// # Safety
/// See [`byoc_model_compile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_model_output(model: *const Model, index: usize, port: *mut Port) -> c_int {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { describe(model.as_ref().and_then(|model| model.outputs.get(index)), port) }
}

/// Writes the fields of a description that fit into the caller's structure; returns 0, or -1 if `port` is `None` or
/// `destination` is NULL.
///
/// # Safety
/// `destination` is NULL, or points to at least as many writable bytes as its first field states.
unsafe fn describe(port: Option<&PortTexts>, destination: *mut Port) -> c_int {
    let Some(port) = port.filter(|_| !destination.is_null()) else { return -1 };
    // SAFETY: `destination` is not NULL here, and the caller guarantees as many bytes as its first field states.
    unsafe {
        let struct_size = *destination.cast::<usize>();
        let full = Port {
            struct_size,
            name: port.name.as_ptr(),
            dtype: port.dtype.as_ptr(),
            ndim: port.dims.len() as i32,
            dims: port.dims.as_ptr(),
            dim_names: port.pointers.as_ptr(),
            kind: port.kind.as_ptr(),
        };
        let len = struct_size.min(size_of::<Port>());
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(&full).cast::<u8>(), destination.cast::<u8>(), len);
    }
    0
}
