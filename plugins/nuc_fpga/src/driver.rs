//! Driver library that implements `nuc_fpga.h` on hardware. The environment variable `NUC_FPGA_DRIVER` names it.

use crate::layer::Layer;
use byoc_plugin_api::{Error, Result};
use byoc_plugin_support::library::{self, Drivers, Symbol};
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Environment variable that contains the path of the library.
pub const VARIABLE: &str = "NUC_FPGA_DRIVER";

/// Loaded drivers.
pub static DRIVERS: Drivers<Driver> = Drivers::new(VARIABLE, load);

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
