//! Driver library that implements `nuc_fpga.h` on hardware. The environment variable `NUC_FPGA_DRIVER` names it.

use crate::layer::Layer;
use byoc_plugin_api::{Error, Result};
use byoc_plugin_support::library::{self, Symbol};
use std::collections::BTreeMap;
use std::ffi::{OsString, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Environment variable that contains the path of the library.
pub const VARIABLE: &str = "NUC_FPGA_DRIVER";

type Conv2d = unsafe extern "C" fn(
    *mut i8,
    *mut i8,
    *mut c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
);
type Dense = unsafe extern "C" fn(*mut i8, *mut i8, *mut c_int, c_int, c_int, c_int);

/// Loaded driver.
pub struct Driver {
    /// Path of the library.
    pub path: PathBuf,
    conv2d: Conv2d,
    dense: Dense,
    /// Held during a call, because the device serves one call at a time.
    busy: Mutex<()>,
}

/// Returns the driver that the environment names; `None` if the variable is unset or empty. A library is loaded once
/// and never unloaded.
///
/// # Errors
/// If the file is not a shared library for this machine, cannot be loaded, or lacks a function.
pub fn from_environment() -> Result<Option<Arc<Driver>>> {
    match std::env::var_os(VARIABLE) {
        Some(path) if !path.is_empty() => open(path).map(Some),
        _ => Ok(None),
    }
}

/// Returns the files that regions need at run time, as JSON: none, because a driver belongs to the machine that
/// contains its device.
///
/// # Errors
/// If the environment names a driver, which is specific to this machine.
pub fn files() -> Result<Vec<u8>> {
    match from_environment()? {
        None => Ok(b"[]".to_vec()),
        Some(driver) => {
            let library_path = driver.path.display();
            Err(Error::new(format!("the driver {library_path} ({VARIABLE}) is specific to this machine"))
                .hint(format!("unset {VARIABLE} here, and set it on the machine that runs the regions")))
        }
    }
}

/// Returns the driver from a file; loads it on the first call.
///
/// # Errors
/// If the file is not a usable driver, as in [`from_environment`].
pub fn open(path: OsString) -> Result<Arc<Driver>> {
    static OPEN: Mutex<BTreeMap<OsString, Arc<Driver>>> = Mutex::new(BTreeMap::new());
    let mut drivers = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = drivers.get(&path) {
        return Ok(driver.clone());
    }
    let driver = Arc::new(load(Path::new(&path))?);
    drivers.insert(path, driver.clone());
    Ok(driver)
}

fn load(path: &Path) -> Result<Driver> {
    let subject = format!("driver {} ({VARIABLE})", path.display());
    let hint = "set NUC_FPGA_DRIVER to a shared library that exports nuc_fpga_conv2d and nuc_fpga_dense as declared in \
                nuc_fpga.h, or unset it to use the software device";
    let symbols = library::open(path, ["nuc_fpga_conv2d", "nuc_fpga_dense"]);
    let [conv2d, dense] = symbols.map_err(|problem| Error::new(format!("{subject}: {problem}")).hint(hint))?;
    // SAFETY: the library exports these functions of `nuc_fpga.h`, which declares them with these types.
    let (conv2d, dense) =
        unsafe { (std::mem::transmute::<Symbol, Conv2d>(conv2d), std::mem::transmute::<Symbol, Dense>(dense)) };
    Ok(Driver { path: path.to_owned(), conv2d, dense, busy: Mutex::new(()) })
}

impl Driver {
    /// Calls the device for a layer. Calls from multiple threads are serialized.
    ///
    /// # Safety
    /// The pointers must refer to tensors of the layer's sizes. During the call, nothing else may write to the operands
    /// or access `out`.
    pub unsafe fn run(&self, layer: &Layer, feature: *const i8, kernel: *const i8, out: *mut i32) {
        let _one_at_a_time = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let (feature, kernel) = (feature.cast_mut(), kernel.cast_mut());
        // `Layer::check` ensures that every size fits into an `int`.
        match layer {
            // SAFETY: the caller guarantees valid pointers; `nuc_fpga.h` allows the driver only to read the operands.
            Layer::Conv2d(c) => unsafe {
                (self.conv2d)(
                    feature,
                    kernel,
                    out,
                    c.batch as c_int,
                    c.channels as c_int,
                    c.height as c_int,
                    c.width as c_int,
                    c.kernels as c_int,
                    c.group as c_int,
                    c.pad_height as c_int,
                    c.pad_width as c_int,
                    c.kernel_height as c_int,
                    c.kernel_width as c_int,
                    c.stride_height as c_int,
                    c.stride_width as c_int,
                );
            },
            // SAFETY: the caller guarantees valid pointers; `nuc_fpga.h` allows the driver only to read the operands.
            Layer::Dense(d) => unsafe {
                (self.dense)(feature, kernel, out, d.batch as c_int, d.in_features as c_int, d.out_features as c_int);
            },
        }
    }
}
