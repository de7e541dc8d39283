//! Options of one run: the service by which a loaded region reads the options that the user set for the current run.

use crate::services::Services;
use serde_json::{Map, Value};
use std::ffi::{CStr, CString, c_char};

/// Name of the service, whose type is [`RunOptionsTable`].
pub const RUN_OPTIONS_SERVICE: &str = "byoc.run_options.1";

/// Functions of the service [`RUN_OPTIONS_SERVICE`]. Begins with its size; fields are added at the end.
#[repr(C)]
pub struct RunOptionsTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// Returns the options of a backend for the current run as the text of a JSON object; null if there are none. To be
    /// called on the thread of `run`. The text is valid until `run` returns.
    pub options: unsafe extern "C" fn(*const c_char) -> *const c_char,
}

/// Returns the options that the user set for the current run of a region, by name; `None` if there are none. `backend`
/// is the name under which the plugin registers the backend. Call it on the thread that the host called `run` on.
/// Without options of a run, it costs a call of [`Services::get_service`] and one more.
pub fn run_options(services: &Services, backend: &str) -> Option<Map<String, Value>> {
    let table = services.get_service(RUN_OPTIONS_SERVICE)?;
    let backend = CString::new(backend).ok()?;
    // SAFETY: the service of this name is a `RunOptionsTable` that lives as long as the process, and its function takes
    // a text and returns null or one that is valid until `run` returns.
    let text = unsafe {
        let text = (table.cast::<RunOptionsTable>().as_ref().options)(backend.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text))
    }?;
    serde_json::from_slice(text.to_bytes()).ok()
}
