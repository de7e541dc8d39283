//! Driver library named by the environment variable `NUC_FPGA_DRIVER`, which implements `nuc_fpga.h` on hardware.

use crate::layer::Layer;
use byoc_plugin_api::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
use std::collections::BTreeMap;
use std::ffi::{OsString, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Environment variable with the path of the library.
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
    /// Held during a call: the device serves one call at a time.
    busy: Mutex<()>,
}

/// Returns the driver named by the environment; `None` if the variable is unset or empty. A library is loaded once and
/// never unloaded.
///
/// # Errors
/// If the file is not a shared library for this machine, cannot be loaded, or lacks a function.
pub fn from_environment() -> Result<Option<Arc<Driver>>> {
    match std::env::var_os(VARIABLE) {
        Some(path) if !path.is_empty() => open(path).map(Some),
        _ => Ok(None),
    }
}

/// Loads the driver from a file, or returns it if it is loaded already.
///
/// # Errors
/// If the file is not a driver, as in [`from_environment`].
pub fn open(path: OsString) -> Result<Arc<Driver>> {
    static OPEN: Mutex<BTreeMap<OsString, Arc<Driver>>> = Mutex::new(BTreeMap::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = open.get(&path) {
        return Ok(driver.clone());
    }
    let driver = Arc::new(load(Path::new(&path))?);
    open.insert(path, driver.clone());
    Ok(driver)
}

fn load(path: &Path) -> Result<Driver> {
    let named = format!("driver {} ({VARIABLE})", path.display());
    let hint = "a driver is a shared library that exports nuc_fpga_conv2d and nuc_fpga_dense as declared in nuc_fpga.h; \
                without the variable, the software device is used";
    let invalid = |problem: String| Error::new(format!("{named}: {problem}")).hint(hint);
    let bytes = std::fs::read(path).map_err(|error| invalid(format!("cannot be read: {error}")))?;
    check_elf(&bytes).map_err(|problem| invalid(problem.to_owned()))?;
    // `dlopen` searches the system's folders for a name without a slash.
    let absolute = std::fs::canonicalize(path).map_err(|error| invalid(format!("cannot be found: {error}")))?;
    // SAFETY: whoever sets the variable trusts the code in the library; `check_elf` checked that it is complete and for
    // this machine.
    let library = unsafe { Library::open(Some(&absolute), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| invalid(format!("cannot be loaded: {error}")))?;
    // Both symbols are resolved before reporting, so that one message names all that are missing.
    // SAFETY: `nuc_fpga.h` declares the functions with these types.
    let (conv2d, dense) = unsafe { (library.get::<Conv2d>("nuc_fpga_conv2d"), library.get::<Dense>("nuc_fpga_dense")) };
    match (conv2d, dense) {
        (Ok(conv2d), Ok(dense)) => {
            let (conv2d, dense) = (*conv2d, *dense);
            // The functions may be called until the process exits.
            std::mem::forget(library);
            Ok(Driver { path: path.to_owned(), conv2d, dense, busy: Mutex::new(()) })
        }
        (conv2d, dense) => {
            let names = [("nuc_fpga_conv2d", conv2d.is_ok()), ("nuc_fpga_dense", dense.is_ok())];
            let missing: Vec<&str> = names.iter().filter(|(_, found)| !found).map(|(name, _)| *name).collect();
            Err(invalid(format!("lacks {}", missing.join(" and "))))
        }
    }
}

/// Checks the headers of a file before it is mapped: loading a truncated library crashes the process.
fn check_elf(bytes: &[u8]) -> std::result::Result<(), &'static str> {
    let not_a_library = "expected a shared library";
    let header = elf::FileHeader64::<Endianness>::parse(bytes).map_err(|_| not_a_library)?;
    let endian = header.endian().map_err(|_| not_a_library)?;
    let machine = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    if header.e_type(endian) != elf::ET_DYN {
        return Err(not_a_library);
    }
    if header.e_machine(endian) != machine {
        return Err("expected a library for this machine, found one for another");
    }
    let truncated = "expected a complete library, found a truncated one";
    let segments = header.program_headers(endian, bytes).map_err(|_| truncated)?;
    for segment in segments {
        let (at, size) = segment.file_range(endian);
        if at.checked_add(size).is_none_or(|end| end > bytes.len() as u64) {
            return Err(truncated);
        }
    }
    Ok(())
}

impl Driver {
    /// Calls the device for a layer. Calls from several threads are serialized.
    ///
    /// # Safety
    /// The pointers must refer to tensors of the layer's sizes. During the call nothing else may write to the operands
    /// or access `out`.
    pub unsafe fn run(&self, layer: &Layer, feature: *const i8, kernel: *const i8, out: *mut i32) {
        let _one_at_a_time = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let (feature, kernel) = (feature.cast_mut(), kernel.cast_mut());
        // `Layer::check` ensures that every size fits into an `int`.
        match layer {
            // SAFETY: the caller's contract; the driver only reads its operands.
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
            // SAFETY: as above.
            Layer::Dense(d) => unsafe {
                (self.dense)(feature, kernel, out, d.batch as c_int, d.in_features as c_int, d.out_features as c_int);
            },
        }
    }
}
