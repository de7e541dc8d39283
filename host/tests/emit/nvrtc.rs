//! The runtime compiler of CUDA.

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_void};

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type LogSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Log = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// The library, and its options.
pub struct Compiler {
    library: Library,
    options: Vec<CString>,
}

impl Compiler {
    /// Opens the library at `path`; headers are in `include`.
    pub fn open(path: &str, include: &str) -> Compiler {
        // SAFETY: the library is NVIDIA's, whose constructors have no effect on the process.
        let library = unsafe { Library::new(path) }.unwrap_or_else(|error| panic!("{path}: {error}"));
        let options = ["--gpu-architecture=compute_75".to_owned(), format!("--include-path={include}")];
        Compiler { library, options: options.map(|option| CString::new(option).unwrap()).to_vec() }
    }

    fn function<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the types above are those of `nvrtc.h`.
        unsafe { self.library.get(name) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Compiles a source; returns what the compiler printed if it fails.
    pub fn compile(&self, source: &str) -> Result<(), String> {
        let source = CString::new(source).unwrap();
        let options: Vec<*const c_char> = self.options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: all pointers are to values that live for the calls, and the log has the size that the library gave.
        unsafe {
            let none = std::ptr::null();
            let created = self.function::<Create>("nvrtcCreateProgram")(
                &mut program,
                source.as_ptr(),
                none,
                0,
                none.cast(),
                none.cast(),
            );
            assert_eq!(created, 0, "nvrtcCreateProgram");
            let status = self.function::<Compile>("nvrtcCompileProgram")(program, 2, options.as_ptr());
            let mut size = 0;
            self.function::<LogSize>("nvrtcGetProgramLogSize")(program, &mut size);
            let mut log = vec![0u8; size.max(1)];
            self.function::<Log>("nvrtcGetProgramLog")(program, log.as_mut_ptr().cast());
            self.function::<Destroy>("nvrtcDestroyProgram")(&mut program);
            match status {
                0 => Ok(()),
                _ => Err(String::from_utf8_lossy(&log).into_owned()),
            }
        }
    }
}
