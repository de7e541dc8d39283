//! Mirror of `include/byoc_plugin.h`, field by field. A test compiles the header and compares every size and offset.

use crate::tensor::Tensor;
use std::ffi::{c_char, c_void};

/// Version of the header.
pub const ABI: u32 = 1;
/// Mirror of `BYOC_OK`.
pub const OK: i32 = 0;
/// Mirror of `BYOC_ERROR`.
pub const ERROR: i32 = 1;
/// Mirror of `BYOC_UNKNOWN_KEY`.
pub const UNKNOWN_KEY: i32 = 2;

/// C structure that begins with its size.
///
/// # Safety
/// The all-zero bit pattern must be a valid value, and the type must hold no references and begin with its size, a
/// `usize`.
pub unsafe trait SizeTagged: Copy {}

/// Declares structures with the header's layout.
macro_rules! structures {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        $vis struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        #[cfg(test)]
        impl $name {
            /// Returns the structure's size and the offset of each field.
            pub fn layout() -> String {
                let mut text = format!("byoc_{} {}", stringify!($name), size_of::<$name>());
                $(text += &format!(" {}={}", stringify!($field), std::mem::offset_of!($name, $field));)*
                text
            }
        }
    )*};
}

type SelfPtr = *mut c_void;
type CallPtr = *mut Call;
type Text = *const c_char;
type HostPtr = *const Host;
type ConstantPtr = *const CConstant;
type ReferencePtr = *mut CReference;
/// Optional `query` entry.
type Query = Option<unsafe extern "C" fn(SelfPtr, CallPtr, Text, *const c_void, usize) -> i32>;
type Release = Option<unsafe extern "C" fn(SelfPtr)>;
/// Task of `parallel_for_workers`: context, worker, index.
pub type WorkerTask = unsafe extern "C" fn(SelfPtr, usize, usize);

pub use super::handles::{CConstant, CReference};

structures! {
    /// Mirror of `byoc_call`.
    pub struct Call {
        host: HostPtr,
    }

    /// Mirror of `byoc_dims`.
    pub struct Dims {
        data: *const i64,
        count: usize,
    }

    /// Mirror of `byoc_candidate`.
    pub struct Candidate {
        struct_size: usize,
        kind: u32,
        outside_users: u32,
        name: Text,
        check: Text,
        graph: Text,
        constants: *const ConstantPtr,
        constant_count: usize,
        attrs: Text,
    }

    /// Mirror of `byoc_region`.
    pub struct Region {
        struct_size: usize,
        symbol: Text,
        graph: Text,
        constants: *const ConstantPtr,
        constant_count: usize,
        options: Text,
    }

    /// Mirror of `byoc_compiled`.
    pub struct Compiled {
        struct_size: usize,
        blob: *const c_void,
        blob_size: usize,
        loader: Text,
        symbols: *const Text,
        symbol_count: usize,
        source_language: Text,
        source: Text,
        notes: Text,
        metadata: Text,
    }

    /// Mirror of `byoc_codegen`.
    pub struct Codegen {
        struct_size: usize,
        describe: Option<unsafe extern "C" fn(SelfPtr, CallPtr) -> i32>,
        judge: Option<unsafe extern "C" fn(SelfPtr, CallPtr, *const *const Candidate, usize) -> i32>,
        compile: Option<unsafe extern "C" fn(SelfPtr, CallPtr, *const Region) -> i32>,
        query: Query,
        release: Release,
    }

    /// Mirror of `byoc_load`.
    pub struct Load {
        struct_size: usize,
        symbol: Text,
        blob: *const c_void,
        blob_size: usize,
        constants: *const ConstantPtr,
        constant_count: usize,
        options: Text,
    }

    /// Mirror of `byoc_run`.
    pub struct Run {
        struct_size: usize,
        inputs: *const Tensor,
        input_count: usize,
        outputs: *mut Tensor,
        output_count: usize,
        workspace: *mut c_void,
        workspace_size: usize,
        plan: u64,
    }

    /// Mirror of `byoc_executable`.
    pub struct Executable {
        struct_size: usize,
        prepare: Option<unsafe extern "C" fn(SelfPtr, CallPtr, *const Dims, usize) -> i32>,
        run: Option<unsafe extern "C" fn(SelfPtr, CallPtr, *const Run) -> i32>,
        query: Query,
        release: Release,
    }

    /// Mirror of `byoc_loader`.
    pub struct Loader {
        struct_size: usize,
        load: Option<unsafe extern "C" fn(SelfPtr, CallPtr, *const Load) -> i32>,
        query: Query,
        release: Release,
    }

    /// Mirror of `byoc_host`. The host creates it, so every function is present.
    pub struct Host {
        struct_size: usize,
        abi: u32,
        reserved: u32,
        fail: unsafe extern "C" fn(CallPtr, Text, Text),
        rename: unsafe extern "C" fn(CallPtr, Text),
        register_codegen: unsafe extern "C" fn(CallPtr, Text, *const Codegen, SelfPtr),
        register_loader: unsafe extern "C" fn(CallPtr, Text, *const Loader, SelfPtr),
        register_data: unsafe extern "C" fn(CallPtr, Text, Text),
        answer: unsafe extern "C" fn(CallPtr, *const c_void, usize),
        support: unsafe extern "C" fn(CallPtr, usize),
        refuse: unsafe extern "C" fn(CallPtr, usize, Text, Text, Text),
        compiled: unsafe extern "C" fn(CallPtr, *const Compiled),
        loaded: unsafe extern "C" fn(CallPtr, *const Executable, SelfPtr),
        output: unsafe extern "C" fn(CallPtr, *const i64, usize, i32),
        prepared: unsafe extern "C" fn(CallPtr, usize, u64),
        constant_tensor: unsafe extern "C" fn(ConstantPtr, *mut Tensor),
        constant_digest: unsafe extern "C" fn(ConstantPtr, *mut c_char, usize) -> usize,
        constant_retain: unsafe extern "C" fn(ConstantPtr) -> ConstantPtr,
        constant_release: unsafe extern "C" fn(ConstantPtr),
        num_threads: unsafe extern "C" fn(HostPtr) -> usize,
        parallel_for: unsafe extern "C" fn(CallPtr, usize, Option<unsafe extern "C" fn(SelfPtr, usize)>, SelfPtr) -> i32,
        event: unsafe extern "C" fn(HostPtr, Text, Text),
        counter: unsafe extern "C" fn(HostPtr, Text, u64),
        log_level: unsafe extern "C" fn(HostPtr) -> i32,
        log: unsafe extern "C" fn(HostPtr, i32, Text, Text),
        cancelled: unsafe extern "C" fn(HostPtr) -> i32,
        reference: unsafe extern "C" fn(CallPtr, Text, *const ConstantPtr, usize) -> ReferencePtr,
        reference_prepare: unsafe extern "C" fn(*const CReference, CallPtr, *const Dims, usize) -> i32,
        reference_run: unsafe extern "C" fn(*const CReference, CallPtr, *const Run) -> i32,
        reference_release: unsafe extern "C" fn(ReferencePtr),
        get_service: unsafe extern "C" fn(HostPtr, Text) -> *mut c_void,
        fail_with: unsafe extern "C" fn(CallPtr, Text, Text, Text),
        constant_name: unsafe extern "C" fn(ConstantPtr, *mut c_char, usize) -> usize,
        parallel_for_workers: unsafe extern "C" fn(CallPtr, usize, Option<WorkerTask>, SelfPtr) -> i32,
    }

    /// Mirror of `byoc_plugin`.
    pub struct Plugin {
        abi: u32,
        struct_size: u32,
        name: Text,
        version: Text,
        init: Option<unsafe extern "C" fn(CallPtr, Text, Text) -> i32>,
    }
}

macro_rules! size_tagged {
    ($($name:ident)*) => {$(
        // SAFETY: pointers, integers and optional function pointers may be zero, and `struct_size` is the first field.
        unsafe impl SizeTagged for $name {}
    )*};
}

size_tagged! { Codegen Loader Executable Compiled Run }

/// Type of `byoc_plugin_entry`.
pub type Entry = unsafe extern "C" fn(u32) -> *const Plugin;

/// Copies a plugin's structure, with zeros for the fields beyond its `struct_size`. Returns `None` for a null pointer,
/// or if `struct_size` is smaller than the field itself.
///
/// # Safety
/// `pointer` must be null, or point to the first `struct_size` bytes of a `T`.
pub unsafe fn read<T: SizeTagged>(pointer: *const T) -> Option<T> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that `pointer` points to a `T`, and `SizeTagged` guarantees that a `T` begins with
    // its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    // SAFETY: the caller guarantees `size` readable bytes, and `SizeTagged` guarantees that the all-zero bit
    // pattern is a valid `T`.
    (size >= size_of::<usize>()).then(|| unsafe { read_padded(pointer, size) })
}

/// Copies a library's plugin table, with zeros for the fields beyond `size`.
///
/// # Safety
/// `pointer` must point to the first `size` bytes of a `Plugin`.
pub unsafe fn read_plugin(pointer: *const Plugin, size: usize) -> Plugin {
    // SAFETY: the caller guarantees `size` readable bytes; the all-zero bit pattern is a `Plugin` without texts or
    // functions.
    unsafe { read_padded(pointer, size) }
}

/// Copies the first `size` bytes of a structure, or all of it, and fills the rest with zeros.
///
/// # Safety
/// `pointer` must point to `size` bytes, and the all-zero bit pattern must be a valid `T`.
unsafe fn read_padded<T: Copy>(pointer: *const T, size: usize) -> T {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the copy is no longer than either structure, and the caller guarantees `size` readable bytes and that the
    // all-zero bit pattern is a valid `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
        value.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::table::{ONE_RUN, PENDING};
    use crate::device::{EventTable, MemoryTable, Report, StreamTable};
    use std::path::Path;
    use std::process::Command;

    /// Returns every structure and its fields, in the header's order.
    fn rust_layout() -> Vec<String> {
        let tensor = {
            use std::mem::offset_of;
            format!(
                "byoc_tensor {} data={} device={} ndim={} dtype={} shape={} strides={} byte_offset={}",
                size_of::<Tensor>(),
                offset_of!(Tensor, data),
                offset_of!(Tensor, device),
                offset_of!(Tensor, ndim),
                offset_of!(Tensor, dtype),
                offset_of!(Tensor, shape),
                offset_of!(Tensor, strides),
                offset_of!(Tensor, byte_offset),
            )
        };
        let mut lines = vec![tensor, Call::layout(), Dims::layout(), Candidate::layout(), Region::layout()];
        lines.extend([Compiled::layout(), Codegen::layout(), Load::layout(), Run::layout(), Executable::layout()]);
        lines.extend([Loader::layout(), Host::layout(), Plugin::layout()]);
        lines.extend(device_layout());
        lines.into_iter().map(|line| line.to_lowercase()).collect()
    }

    /// Returns the structures of `byoc_device.h`. `self` is a keyword in Rust, so the C field `self` is named `this`.
    fn device_layout() -> [String; 4] {
        macro_rules! layout {
            ($name:literal $ty:ident: $($field:ident)*) => {
                [format!("{} {}", $name, size_of::<$ty>()),
                 $(format!("{}={}", stringify!($field).replace("this", "self"), std::mem::offset_of!($ty, $field))),*].join(" ")
            };
        }
        [
            layout!("byoc_report" Report: context fail),
            layout!("byoc_memory" MemoryTable: struct_size this device alignment flags allocate release copy_in copy_out
                allocate_host release_host import_host),
            layout!("byoc_event" EventTable: struct_size this wait release),
            layout!("byoc_stream" StreamTable: struct_size dependencies submit workspace),
        ]
    }

    /// Returns a C program that prints the lines of [`rust_layout`].
    fn program(layout: &[String]) -> String {
        let mut text = String::from("#include \"byoc_device.h\"\n#include <stdio.h>\nint main(void) {\n");
        for line in layout {
            let mut tokens = line.split(' ');
            let (name, _) = (tokens.next().unwrap(), tokens.next());
            text += &format!("    printf(\"{name} %zu\", sizeof(struct {name}));\n");
            for token in tokens {
                let field = token.split('=').next().unwrap();
                text += &format!("    printf(\" {field}=%zu\", offsetof(struct {name}, {field}));\n");
            }
            text += "    printf(\"\\n\");\n";
        }
        let constants = "BYOC_ABI, BYOC_OK, BYOC_ERROR, BYOC_UNKNOWN_KEY, BYOC_DIGEST_SIZE, BYOC_CANCELLED, BYOC_PENDING, \
                         (unsigned)BYOC_ONE_RUN";
        text += &format!("    printf(\"%u %d %d %d %d %s %d %u\\n\", {constants});\n    return 0;\n}}\n");
        text
    }

    #[test]
    fn header_matches_rust_layout() {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let dir = tempfile::tempdir().unwrap();
        let mut layout = rust_layout();
        for (compiler, standard, file) in [("cc", "-std=c11", "layout.c"), ("c++", "-std=c++11", "layout.cpp")] {
            let (source, binary) = (dir.path().join(file), dir.path().join(compiler));
            std::fs::write(&source, program(&layout)).unwrap();
            let status = Command::new(compiler)
                .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
                .arg(&include)
                .arg(&source)
                .arg("-o")
                .arg(&binary)
                .output()
                .expect("failed to run the compiler");
            assert!(status.status.success(), "{compiler}:\n{}", String::from_utf8_lossy(&status.stderr));
            let output = Command::new(&binary).output().unwrap().stdout;
            let output = String::from_utf8(output).unwrap();
            let (digest, cancelled_code) = (crate::Constant::DIGEST_LENGTH + 1, crate::Error::CANCELLED);
            let constants = format!("{ABI} {OK} {ERROR} {UNKNOWN_KEY} {digest} {cancelled_code} {PENDING} {ONE_RUN}");
            layout.push(constants);
            assert_eq!(output.lines().collect::<Vec<_>>(), layout, "{compiler}");
            layout.pop();
        }
    }

    #[test]
    fn shorter_structure_is_padded_with_zeros() {
        let table = Executable { struct_size: 16, prepare: None, run: None, query: None, release: Some(never_called) };
        // SAFETY: the structure is longer than its `struct_size`.
        let read = unsafe { read(&raw const table) }.unwrap();
        assert!(read.release.is_none());
        let short_table = Executable { struct_size: 3, ..table };
        // SAFETY: the structure is longer than its `struct_size`.
        assert!(unsafe { super::read(&raw const short_table) }.is_none());
        // SAFETY: the pointer is null.
        assert!(unsafe { super::read::<Executable>(std::ptr::null()) }.is_none());
    }

    unsafe extern "C" fn never_called(_: *mut c_void) {}
}
