//! Host side of the service `byoc.onnx.1`: its table around a writer of ONNX.

use crate::constant::{Constant, ConstantSource};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::guard::guard;
use crate::onnx::{
    OnnxFailure, OnnxInfo, OnnxOptions, OnnxTable, PART_ERROR, PART_INFO, PART_MODEL, PART_WEIGHTS, Receive,
};
use crate::tensor::{Tensor, TensorRef};
use std::ffi::{CStr, c_char, c_void};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Writer of ONNX models.
pub trait OnnxWriter: 'static {
    /// Writes a graph. `model` and `weights` receive the bytes of the model, and of the weights outside of it. The
    /// constants are valid during the call.
    ///
    /// # Errors
    /// If the graph has no form in ONNX.
    fn write(
        graph: &Graph,
        constants: &[Constant],
        options: &OnnxOptions,
        model: &mut dyn Write,
        weights: &mut dyn Write,
    ) -> Result<OnnxInfo>;
}

/// Constant of a plugin, valid during a call of the service.
struct Borrowed {
    bytes: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, and valid during the call of `write`, which drops every handle before it returns.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl ConstantSource for Borrowed {
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the contract of `OnnxTable::write`, the bytes are valid during the call.
        unsafe { std::slice::from_raw_parts(self.bytes, self.len) }
    }

    fn digest(&self) -> String {
        String::new()
    }
}

/// Output that passes its bytes to the plugin.
struct Part {
    number: i32,
    context: *mut c_void,
    receive: Receive,
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the plugin gave function and context for the duration of the call; the bytes are a valid slice.
        unsafe { (self.receive)(self.context, self.number, bytes.as_ptr().cast(), bytes.len()) };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a text of the plugin.
///
/// # Safety
/// `text` is null or NUL-terminated, and valid during the call.
unsafe fn text_of<'t>(text: *const c_char, what: &str) -> Result<&'t str> {
    if text.is_null() {
        return Err(Error::new(format!("{what}: expected a text, found NULL")));
    }
    // SAFETY: by the contract of this function.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| Error::new(format!("{what}: expected UTF-8: {error}")))
}

unsafe extern "C" fn write<W: OnnxWriter>(
    graph: *const c_char,
    constants: *const Tensor,
    constant_count: usize,
    options: *const c_char,
    context: *mut c_void,
    receive: Receive,
) -> i32 {
    let part = |number| Part { number, context, receive };
    let result = guard(|| {
        // SAFETY: by the contract of `OnnxTable::write`.
        let graph = Graph::from_json(unsafe { text_of(graph, "graph") }?)?;
        let options: OnnxOptions = match options.is_null() {
            true => OnnxOptions::default(),
            // SAFETY: as above.
            false => serde_json::from_str(unsafe { text_of(options, "options") }?)?,
        };
        let tensors = match constant_count {
            0 => &[][..],
            // SAFETY: as above, `constant_count` descriptors are valid during the call.
            count => unsafe { std::slice::from_raw_parts(constants, count) },
        };
        let constant = |tensor: &Tensor| {
            // SAFETY: as above; the view ends before the call does.
            let view = unsafe { TensorRef::from_raw(*tensor) };
            let bytes = view.bytes();
            let source = Borrowed { bytes: bytes.as_ptr(), len: bytes.len() };
            Constant::new("", view.dtype(), view.shape(), source)
        };
        let constants: Vec<Constant> = tensors.iter().map(constant).collect();
        let info = W::write(&graph, &constants, &options, &mut part(PART_MODEL), &mut part(PART_WEIGHTS))?;
        part(PART_INFO).write_all(&serde_json::to_vec(&info)?)?;
        Ok(())
    });
    let Err(error) = result else { return 0 };
    let failure = OnnxFailure { message: error.message.to_string(), hint: error.hint.to_string() };
    // A text of two fields always has a JSON form.
    let _ = part(PART_ERROR).write_all(&serde_json::to_vec(&failure).unwrap_or_default());
    1
}

/// Table of a writer.
struct Table<W>(PhantomData<W>);

impl<W: OnnxWriter> Table<W> {
    const TABLE: &OnnxTable = &OnnxTable { struct_size: size_of::<OnnxTable>(), write: write::<W> };
}

/// Returns the service [`ONNX_SERVICE`](crate::onnx::ONNX_SERVICE) of a writer.
pub fn service<W: OnnxWriter>() -> NonNull<c_void> {
    NonNull::from(Table::<W>::TABLE).cast()
}
