//! Loading of user-specified shared libraries, such as drivers. Checks that a library is complete, is for this machine,
//! and has the required functions.

use crate::refusal::cause;
use byoc_plugin_api::{Error, Result as ApiResult};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Address of a function. The caller casts it to a pointer of the function's type.
pub type Symbol = unsafe extern "C" fn();

/// Loads a library, and returns the addresses of the functions `names`. The library is never unloaded.
///
/// # Errors
/// If the file is not a shared library for this machine, cannot be loaded, or lacks a function; the message names all
/// missing functions.
pub fn open<const N: usize>(path: &Path, names: [&str; N]) -> Result<[Symbol; N], String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot be read: {error}"))?;
    check_elf(&bytes)?;
    // `dlopen` searches the system directories for a name without a slash.
    let absolute_path = std::fs::canonicalize(path).map_err(|error| format!("cannot be found: {error}"))?;
    // SAFETY: the user who specified the library trusts its code; `check_elf` verified that it is complete and for this
    // machine.
    let library = unsafe { Library::open(Some(&absolute_path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| format!("cannot be loaded: {}", cause(&error)))?;
    // All symbols are resolved before an error is returned, so that one message names all missing symbols.
    // SAFETY: only the addresses are used here; the caller casts each symbol to its type before any call.
    let addresses = names.map(|name| unsafe { library.get::<Symbol>(name) }.ok().map(|symbol| *symbol));
    let missing_symbols: Vec<&str> =
        names.iter().zip(&addresses).filter(|(_, symbol)| symbol.is_none()).map(|(name, _)| *name).collect();
    if !missing_symbols.is_empty() {
        return Err(format!("missing functions: {}", missing_symbols.join(", ")));
    }
    // The functions may be called until the process exits.
    std::mem::forget(library);
    let symbols: Vec<Symbol> = addresses.into_iter().flatten().collect();
    symbols.try_into().map_err(|_| "missing function".to_owned())
}

/// Drivers of a device, each a library that the user names in an environment variable. A library is loaded once and
/// never unloaded.
pub struct Drivers<D> {
    /// Environment variable that contains the path of the library.
    pub variable: &'static str,
    load: fn(&Path) -> ApiResult<D>,
    open: Mutex<BTreeMap<PathBuf, Arc<D>>>,
}

impl<D> Drivers<D> {
    /// Creates an empty table. `load` loads a driver from a file.
    pub const fn new(variable: &'static str, load: fn(&Path) -> ApiResult<D>) -> Drivers<D> {
        Drivers { variable, load, open: Mutex::new(BTreeMap::new()) }
    }

    /// Returns the driver that the environment names; `None` if the variable is unset or empty.
    ///
    /// # Errors
    /// If the file is not a usable driver.
    pub fn from_environment(&self) -> ApiResult<Option<Arc<D>>> {
        self.path().map(|path| self.open(Path::new(&path))).transpose()
    }

    /// Returns the driver from a file; loads it on the first call.
    ///
    /// # Errors
    /// If the file is not a usable driver.
    pub fn open(&self, path: &Path) -> ApiResult<Arc<D>> {
        let mut drivers = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = drivers.get(path) {
            return Ok(driver.clone());
        }
        let driver = Arc::new((self.load)(path)?);
        drivers.insert(path.to_owned(), driver.clone());
        Ok(driver)
    }

    /// Returns the files that regions need at run time, as JSON: none, because a driver belongs to the machine that
    /// contains its device.
    ///
    /// # Errors
    /// If the environment names a driver, which a bundle for a different machine would lack.
    pub fn files(&self) -> ApiResult<Vec<u8>> {
        self.from_environment()?;
        let (Some(path), variable) = (self.path(), self.variable) else { return Ok(b"[]".to_vec()) };
        let library_path = Path::new(&path).display();
        Err(Error::new(format!("the driver {library_path} ({variable}) is specific to this machine"))
            .hint(format!("unset {variable} here, and set it on the machine that runs the regions")))
    }

    fn path(&self) -> Option<OsString> {
        std::env::var_os(self.variable).filter(|path| !path.is_empty())
    }
}

/// Checks the headers of a file before it is mapped: loading a truncated library crashes the process.
fn check_elf(bytes: &[u8]) -> Result<(), &'static str> {
    let wrong_kind_message = "expected a shared library, found another kind of file";
    let header = elf::FileHeader64::<Endianness>::parse(bytes).map_err(|_| wrong_kind_message)?;
    let endian = header.endian().map_err(|_| wrong_kind_message)?;
    let machine = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    if header.e_type(endian) != elf::ET_DYN {
        return Err(wrong_kind_message);
    }
    if header.e_machine(endian) != machine {
        return Err("expected a library for this machine, found one for another machine");
    }
    let truncation_message = "expected a complete library, found a truncated one";
    let segments = header.program_headers(endian, bytes).map_err(|_| truncation_message)?;
    for segment in segments {
        let (start, size) = segment.file_range(endian);
        if start.checked_add(size).is_none_or(|end| end > bytes.len() as u64) {
            return Err(truncation_message);
        }
    }
    Ok(())
}
