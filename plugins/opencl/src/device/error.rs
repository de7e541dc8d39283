//! OpenCL errors, with hints for the user.

use byoc_plugin_api::Error;
use byoc_plugin_api::device::DEVICE_LOST;
use cl3::error_codes::{
    CL_DEVICE_NOT_AVAILABLE, CL_INVALID_BUFFER_SIZE, CL_INVALID_COMMAND_QUEUE, CL_INVALID_CONTEXT,
    CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES, error_text,
};

/// Error code that drivers return for a kernel that terminated abnormally.
const ABNORMAL_END: i32 = -9999;

/// Tests for an out-of-memory error code.
pub fn is_memory(code: i32) -> bool {
    [CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES, CL_INVALID_BUFFER_SIZE]
        .contains(&code)
}

/// Tests for an error code after which the device is unusable.
pub fn is_lost(code: i32) -> bool {
    [CL_DEVICE_NOT_AVAILABLE, CL_INVALID_COMMAND_QUEUE, CL_INVALID_CONTEXT, ABNORMAL_END].contains(&code)
}

/// Creates the error for a library function that returned `code`.
pub fn call_error(function: &str, code: i32) -> Error {
    let text = if code == ABNORMAL_END { "a kernel terminated abnormally" } else { error_text(code) };
    let error = Error::new(format!("{function}: {text} ({code})"));
    if is_memory(code) {
        error.hint("use a smaller batch or model, or close other programs that use the device")
    } else if is_lost(code) {
        error
            .code(DEVICE_LOST)
            .hint("restart the program, or run it with `--backend none`; the driver's log may contain the cause")
    } else {
        error
    }
}
