//! Memory of devices, and runs that go on after `run` has returned: `byoc.memory.1` and `byoc.stream.1`.
//!
//! Both cross the boundary as tables of C functions, so that a plugin in C and one in Rust offer the same, and neither
//! needs a new entry. `include/byoc_device.h` has the same declarations.
//!
//! | file | contents |
//! |---|---|
//! | `table` | the tables, as they cross the boundary |
//! | `memory` | [`DeviceMemory`], which a plugin implements, and its table |
//! | `stream` | [`submit`], with which a run hands over its unfinished work |

mod memory;
mod stream;
pub(crate) mod table;

pub use memory::{BufferHandle, DeviceMemory, MemoryKey, Transfer, answer_memory};
pub use stream::{Completion, Dependencies, dependencies, submit};
pub use table::{EventTable, FAILED, MemoryTable, OK, ONE_RUN, PENDING, Report, StreamTable};

/// Key of a loader's `query` for the memory of a device: the answer is the address of a [`MemoryTable`], 8 bytes in the
/// order of the processor. The data is a JSON object: `{"device": "0"}`.
pub const MEMORY_KEY: &str = "byoc.memory.1";

/// Name of the host's service that takes unfinished work: a [`StreamTable`].
pub const STREAM_SERVICE: &str = "byoc.stream.1";

/// [`code`](crate::ErrorData::code) of an error after which a device cannot be used any more in this process. The host
/// repeats the run without the device.
pub const DEVICE_LOST: &str = "DeviceLost";
