//! Device memory, and runs that continue after `run` has returned: `byoc.memory.1` and `byoc.stream.1`.
//!
//! Both cross the boundary as C function tables: C and Rust plugins have the same capabilities, and neither requires a
//! new entry. `include/byoc_device.h` has the same declarations.
//!
//! | file | contents |
//! |---|---|
//! | `table` | the tables, as they cross the boundary |
//! | `memory` | [`DeviceMemory`], which a plugin implements, and its table |
//! | `stream` | [`submit`], through which a run passes its unfinished work to the host |

mod memory;
mod stream;
pub(crate) mod table;

pub use memory::{BufferHandle, DeviceMemory, HostBytes, MemoryKey, Transfer, answer_memory};
pub use stream::{Completion, Dependencies, DeviceWorkspace, dependencies, submit, workspace};
pub use table::{EventTable, FAILED, MemoryTable, OK, ONE_RUN, PENDING, Report, StreamTable};

/// Key of a loader's `query` for device memory. The response is the address of a [`MemoryTable`], 8 bytes in native
/// byte order. The data is a JSON object: `{"device": "0"}`.
pub const MEMORY_KEY: &str = "byoc.memory.1";

/// Name of the host service that accepts unfinished work; its type is [`StreamTable`].
pub const STREAM_SERVICE: &str = "byoc.stream.1";

/// Key of an executable's `query` for the size of the workspace that runs of a plan need in device memory. The response
/// is a number of bytes in decimal. The data is a JSON object: `{"plan": 3, "inputs": [[1, 64]]}`. Runs whose operands
/// are all in the memory of one device obtain the workspace with [`workspace`].
pub const WORKSPACE_KEY: &str = "plan.device_workspace";

/// [`code`](crate::ErrorData::code) of an error that makes a device unusable for the rest of the process. The host
/// repeats the run without the device.
pub const DEVICE_LOST: &str = "DeviceLost";
