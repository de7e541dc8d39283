//! Run options: the service through which a loaded region reads the user options of the current run.

use crate::services::Services;
use serde_json::{Map, Value};
use std::ffi::{CStr, CString, c_char};

/// Name of the run-option service, whose type is [`RunOptionsTable`].
pub const RUN_OPTIONS_SERVICE: &str = "byoc.run_options.1";

/// Function table of the service [`RUN_OPTIONS_SERVICE`]. It begins with its size; later versions append fields.
#[repr(C)]
pub struct RunOptionsTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// Returns a backend's options for the current run as the text of a JSON object; null if no option is set. Must be
    /// called on the thread that executes `run`. The text is valid until `run` returns.
    pub options: unsafe extern "C" fn(*const c_char) -> *const c_char,
}

/// Returns the user options of the current run, by name; `None` if no option is set. `backend` is the name under which
/// the plugin registers the backend. Must be called on the thread on which the host called `run`. If no option is set,
/// the cost is one call to [`Services::get_service`] and one call through the table.
pub fn run_options(services: &Services, backend: &str) -> Option<Map<String, Value>> {
    let table = services.get_service(RUN_OPTIONS_SERVICE)?;
    let backend = CString::new(backend).ok()?;
    // SAFETY: the host guarantees that a service of this name is a `RunOptionsTable` that lives as long as the process,
    // and that its function returns null or a C string that is valid until `run` returns.
    let text = unsafe {
        let text = (table.cast::<RunOptionsTable>().as_ref().options)(backend.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text))
    }?;
    serde_json::from_slice(text.to_bytes()).ok()
}
