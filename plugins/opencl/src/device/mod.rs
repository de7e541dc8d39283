//! OpenCL devices: discovery, context and queue; memory; programs; launches and their completion.
//!
//! | file | purpose |
//! |---|---|
//! | `error` | error codes of the library |
//! | `memory` | buffers: allocate, free, copy in and out |
//! | `program` | builds programs, and caches their binaries |
//! | `launch`, `event` | enqueue without waiting; wait for completion |
//! | `space` | device memory for tensors that are passed between regions |
//!
//! A device is opened once per process and number of threads, and shared by all regions. The library is opened at run
//! time; without it, every function returns the same error, with a hint that names the install command.
//!
//! A device that does not respond is marked as lost. From then on, no function is called on it, not even a release,
//! which might wait for a kernel that never returns.

pub mod error;
pub mod event;
pub mod launch;
pub mod memory;
pub mod program;
pub mod space;

use byoc_plugin_api::device::DEVICE_LOST;
use byoc_plugin_api::{DeviceInfo, Error, Result};
use cl3::device::{
    CL_DEVICE_COMPILER_AVAILABLE, CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_LOCAL_MEM_TYPE, CL_DEVICE_MAX_COMPUTE_UNITS,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE, CL_DEVICE_MAX_WORK_GROUP_SIZE, CL_DEVICE_MEM_BASE_ADDR_ALIGN, CL_DEVICE_NAME,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, CL_DEVICE_PARTITION_BY_COUNTS, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END,
    CL_DEVICE_TYPE, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, CL_DEVICE_VERSION, CL_DRIVER_VERSION,
    CL_LOCAL, create_sub_devices, get_device_ids, get_device_info,
};
use cl3::types::{cl_command_queue, cl_context, cl_device_id, cl_device_info};
use error::call_error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Command that installs an OpenCL library with a driver for any CPU.
pub const INSTALL_COMMAND: &str = "apt-get install -y pocl-opencl-icd";

/// Selector of the default device.
pub const AUTO: &str = "auto";

/// Tests for a well-formed device selector. The device need not exist on this machine.
pub fn is_selector(text: &str) -> bool {
    text == AUTO || text.parse::<u16>().is_ok()
}

/// Device properties for which kernels are tuned.
#[derive(Clone, Debug, PartialEq)]
pub struct Traits {
    pub name: String,
    /// OpenCL version and driver version.
    pub version: String,
    /// Native float32 vector width in elements, from 1 to 16.
    pub width: i64,
    /// True if local memory is faster than global memory.
    pub uses_local_memory: bool,
}

/// OpenCL objects of a device. They live as long as the process.
#[derive(Clone, Copy, Debug)]
struct Handles {
    device: cl_device_id,
    context: cl_context,
    queue: cl_command_queue,
}

/// Opened device.
#[derive(Debug)]
pub struct Device {
    pub traits: Traits,
    /// Maximum buffer size in bytes.
    pub max_buffer_bytes: u64,
    /// Maximum number of work-items per work-group.
    pub max_group_size: usize,
    /// Alignment of sub-buffers in bytes.
    pub alignment: usize,
    handles: Handles,
    lost: AtomicBool,
}

// SAFETY: only the OpenCL library dereferences the handles, and it accepts them from any thread (OpenCL 1.2, A.2).
unsafe impl Send for Device {}
// SAFETY: OpenCL guarantees thread-safe functions (OpenCL 1.2, A.2), except `clSetKernelArg` on the same kernel, which
// this type does not call.
unsafe impl Sync for Device {}

/// Reads a device property.
macro_rules! property {
    ($device:expr, $name:ident as $ty:ty) => {
        get_device_info($device, $name).map(<$ty>::from).map_err(|code| call_error(stringify!($name), code))
    };
}

/// Finds all devices with a compiler, in library order.
fn discover() -> Result<Vec<cl_device_id>> {
    let missing_driver =
        |message: String| Error::new(message).hint(format!("install an OpenCL driver with `{INSTALL_COMMAND}`"));
    let platforms = cl3::platform::get_platform_ids().map_err(|_| {
        missing_driver("no OpenCL library: libOpenCL.so.1 cannot be opened, or it finds no driver".to_owned())
    })?;
    let mut devices = Vec::new();
    for platform in platforms {
        // A platform without devices returns an error.
        devices.extend(get_device_ids(platform, CL_DEVICE_TYPE_ALL).unwrap_or_default());
    }
    let compiles = |device: &cl_device_id| {
        get_device_info(*device, CL_DEVICE_COMPILER_AVAILABLE).is_ok_and(|info| u32::from(info) != 0)
    };
    devices.retain(compiles);
    if devices.is_empty() {
        return Err(missing_driver(
            "no OpenCL device: the library has no platform with a device and a compiler".to_owned(),
        ));
    }
    Ok(devices)
}

fn text(device: cl_device_id, name: cl_device_info) -> Result<String> {
    let info = get_device_info(device, name).map_err(|code| call_error("clGetDeviceInfo", code))?;
    Ok(String::from(info).trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned())
}

/// Returns a sub-device with `compute_units` compute units; `None` if the driver cannot partition the device.
fn create_subdevice(device: cl_device_id, compute_units: usize) -> Option<cl_device_id> {
    let counts = [CL_DEVICE_PARTITION_BY_COUNTS, compute_units as isize, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0];
    create_sub_devices(device, &counts).ok()?.into_iter().next()
}

impl Device {
    /// Returns JSON descriptions of the devices, for the host's device list.
    ///
    /// # Errors
    /// If no OpenCL library or no device is found.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        let devices = DeviceList::get()?;
        let describe = |(index, (id, name, kind)): (usize, &(cl_device_id, String, u64))| {
            let memory = property!(*id, CL_DEVICE_GLOBAL_MEM_SIZE as u64).unwrap_or(0);
            let describe = match kind {
                kind if kind & CL_DEVICE_TYPE_CPU != 0 => "CPU",
                kind if kind & CL_DEVICE_TYPE_GPU != 0 => "GPU",
                _ => "accelerator",
            };
            DeviceInfo { id: index.to_string(), name: name.clone(), memory, about: describe.to_owned() }
        };
        Ok(devices.devices.iter().enumerate().map(describe).collect())
    }

    /// Returns the device that `selector` names: an index in library order, or [`AUTO`] for the first non-CPU device,
    /// or else the first device. A CPU uses at most `threads` compute units if the driver can partition it. A device is
    /// opened once per number of threads.
    ///
    /// # Errors
    /// If no OpenCL library is found, `selector` names no device, or the device cannot be opened.
    pub fn get(selector: &str, threads: Option<usize>) -> Result<Arc<Device>> {
        static OPEN_DEVICES: Mutex<Vec<((usize, Option<usize>), Arc<Device>)>> = Mutex::new(Vec::new());
        let devices = DeviceList::get()?;
        let index = devices.select(selector)?;
        let (id, kind) = (devices.devices[index].0, devices.devices[index].2);
        let compute_units = property!(id, CL_DEVICE_MAX_COMPUTE_UNITS as u32)? as usize;
        let threads =
            threads.filter(|&threads| kind & CL_DEVICE_TYPE_CPU != 0 && (1..compute_units).contains(&threads));
        let mut open_devices = OPEN_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = open_devices.iter().find(|(key, _)| *key == (index, threads)) {
            return Ok(device.clone());
        }
        let subdevice = threads.and_then(|threads| create_subdevice(id, threads));
        let device = Arc::new(Device::open(subdevice.unwrap_or(id))?);
        open_devices.push(((index, threads), device.clone()));
        Ok(device)
    }

    fn open(device: cl_device_id) -> Result<Device> {
        let width = property!(device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT as u32)?;
        let kind = property!(device, CL_DEVICE_TYPE as u64)?;
        let local_memory_type = property!(device, CL_DEVICE_LOCAL_MEM_TYPE as u32)?;
        let alignment = property!(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN as u32)?;
        if u64::from(alignment) > crate::program::ALIGNMENT * 8 {
            let detail = format!("expected a sub-buffer alignment of at most 32768 bits, found {} bits", alignment);
            return Err(Error::new(detail));
        }
        let context = cl3::context::create_context(&[device], std::ptr::null(), None, std::ptr::null_mut())
            .map_err(|code| call_error("clCreateContext", code))?;
        // SAFETY: `create_context` above created the context for `device`.
        let queue = unsafe {
            cl3::command_queue::create_command_queue(context, device, cl3::command_queue::CL_QUEUE_PROFILING_ENABLE)
        }
        .map_err(|code| call_error("clCreateCommandQueue", code))?;
        let traits = Traits {
            name: text(device, CL_DEVICE_NAME)?,
            version: format!("{}, driver {}", text(device, CL_DEVICE_VERSION)?, text(device, CL_DRIVER_VERSION)?),
            width: i64::from(width).clamp(1, 16),
            uses_local_memory: local_memory_type == CL_LOCAL && kind & CL_DEVICE_TYPE_CPU == 0,
        };
        let max_buffer_bytes = property!(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE as u64)?;
        let max_group_size = property!(device, CL_DEVICE_MAX_WORK_GROUP_SIZE as usize)?;
        let compute_units = property!(device, CL_DEVICE_MAX_COMPUTE_UNITS as u32)?;
        tracing::debug!(
            "OpenCL device {} ({}): {compute_units} compute units, vectors of {} elements, {} local memory",
            traits.name,
            traits.version,
            traits.width,
            if traits.uses_local_memory { "fast" } else { "slow" }
        );
        let handles = Handles { device, context, queue };
        let alignment = (alignment as usize).div_ceil(8).next_power_of_two();
        Ok(Device { traits, max_buffer_bytes, max_group_size, alignment, handles, lost: AtomicBool::new(false) })
    }

    /// Tests whether the device has been marked as lost.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Marks the device as lost.
    pub fn mark_lost(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            tracing::debug!("OpenCL device {} is lost; all further runs on it fail", self.traits.name);
        }
    }

    /// Checks that the device has not been marked as lost.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn check(&self) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        Err(Error::new(format!("OpenCL device {} is lost: an earlier run failed or did not finish", self.traits.name))
            .code(DEVICE_LOST)
            .hint("restart the program, or run it with `--backend none`"))
    }

    /// Converts the final status of a command to a result. Marks the device as lost after any failure other than an
    /// out-of-memory error.
    fn check_status(&self, code: i32) -> Result<()> {
        if code >= 0 {
            return Ok(());
        }
        // On most drivers, a failed command makes its context unusable, unless memory was insufficient.
        if !error::is_memory(code) {
            self.mark_lost();
        }
        Err(call_error("clSetEventCallback", code))
    }

    /// Converts an error code to an error. Marks the device as lost if the code indicates a lost device.
    pub fn call_error(&self, function: &str, code: i32) -> Error {
        if error::is_lost(code) {
            self.mark_lost();
        }
        call_error(function, code)
    }
}

/// Discovered devices: ID, name and type of each.
struct DeviceList {
    devices: Vec<(cl_device_id, String, u64)>,
}

// SAFETY: only the OpenCL library dereferences the device IDs, and it accepts them from any thread (OpenCL 1.2, A.2).
unsafe impl Send for DeviceList {}
// SAFETY: OpenCL guarantees that device functions are thread-safe (OpenCL 1.2, A.2).
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// Returns the devices. The first call discovers them.
    fn get() -> Result<&'static DeviceList> {
        static DEVICES: OnceLock<Result<DeviceList>> = OnceLock::new();
        DEVICES.get_or_init(DeviceList::new).as_ref().map_err(Clone::clone)
    }

    fn new() -> Result<DeviceList> {
        let describe = |device: cl_device_id| {
            Ok((device, text(device, CL_DEVICE_NAME)?, property!(device, CL_DEVICE_TYPE as u64)?))
        };
        let devices = discover()?.into_iter().map(describe).collect::<Result<_>>()?;
        Ok(DeviceList { devices })
    }

    fn select(&self, selector: &str) -> Result<usize> {
        let device_index = match selector {
            "" | AUTO => Some(self.devices.iter().position(|(_, _, kind)| kind & CL_DEVICE_TYPE_CPU == 0).unwrap_or(0)),
            index_text => index_text.parse().ok().filter(|&index| index < self.devices.len()),
        };
        device_index.ok_or_else(|| {
            let names: Vec<String> =
                self.devices.iter().enumerate().map(|(i, (_, name, _))| format!("{i} ({name})")).collect();
            Error::new(format!("device: expected one of {}, found {selector}", names.join(", ")))
        })
    }
}
