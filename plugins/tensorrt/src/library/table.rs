//! Calls of the library's C++ objects by position in their virtual tables.
//!
//! A public object of the library has a destructor table and a pointer to its implementation, whose virtual table has the
//! methods; objects of the parser have their methods in a table of their own. The positions below are those of versions
//! 1.5.0, 1.6.1 and 1.7.1, which agree in them: later versions appended methods. Positions of the builder's objects were
//! read from the tables of a library in the same package whose symbols have names, and run; positions of the run time's
//! objects are those at which the package's provider for ONNX Runtime calls them.

use std::ffi::{c_char, c_void};

/// Object of the library.
pub type Object = *mut c_void;

/// Dimensions, passed by reference.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dims {
    pub count: i32,
    pub sizes: [i64; 8],
}

impl Dims {
    /// Maximum number of dimensions.
    pub const MAX: usize = 8;

    /// Creates dimensions; `None` if there are too many, or one is too large.
    pub fn new(sizes: &[usize]) -> Option<Dims> {
        let mut dims = Dims { count: i32::try_from(sizes.len()).ok()?, ..Dims::default() };
        for (slot, &size) in dims.sizes.get_mut(..sizes.len())?.iter_mut().zip(sizes) {
            *slot = i64::try_from(size).ok()?;
        }
        Some(dims)
    }

    /// Returns the sizes; -1 is an open dimension.
    pub fn as_slice(&self) -> &[i64] {
        &self.sizes[..usize::try_from(self.count).unwrap_or(0).min(Dims::MAX)]
    }
}

/// Declares methods: name, position, types.
macro_rules! methods {
    ($($name:ident: $slot:literal ($($argument:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            /// Calls the method of the table at this position.
            ///
            /// # Safety
            /// `object` is a live object whose table has this method at this position; the arguments are valid for it.
            pub unsafe fn $name(object: Object, $($argument: $ty),*) $(-> $ret)? {
                // SAFETY: by the contract of this function.
                unsafe {
                    let method = method(object, $slot);
                    let method = std::mem::transmute::<*const c_void, unsafe extern "C" fn(Object, $($ty),*) $(-> $ret)?>(method);
                    method(object, $($argument),*)
                }
            }
        )*
    };
}

/// Returns the method at a position of an object's table.
///
/// # Safety
/// `object` is a live object whose table has at least `slot + 1` entries.
unsafe fn method(object: Object, slot: usize) -> *const c_void {
    // SAFETY: by the contract of this function; the first word of an object is the address of its table.
    unsafe { *(*object.cast::<*const *const c_void>()).add(slot) }
}

/// Returns the implementation of a public object: its second word.
///
/// # Safety
/// `object` is a live public object.
pub unsafe fn implementation(object: Object) -> Object {
    // SAFETY: by the contract of this function.
    unsafe { *object.cast::<Object>().add(1) }
}

/// Destructor that also frees the memory, of every public object.
pub mod object {
    use super::*;
    methods! { delete: 1(); }
}

pub mod builder {
    use super::*;
    methods! {
        create_config: 5() -> Object;
        create_network: 6(flags: u32) -> Object;
        create_profile: 7() -> Object;
        build: 11(network: Object, config: Object) -> Object;
    }
}

pub mod config {
    use super::*;
    methods! {
        clear_flag: 8(flag: i32);
        set_flag: 9(flag: i32);
        get_flag: 10(flag: i32) -> u8;
        add_profile: 23(profile: Object) -> i32;
        create_timing_cache: 29(bytes: *const c_void, size: usize) -> Object;
        set_timing_cache: 30(cache: Object, ignore_mismatch: bool) -> u8;
        timing_cache: 31() -> Object;
        set_pool_limit: 32(pool: i32, bytes: usize);
        set_level: 36(level: i32);
        level: 37() -> i32;
        set_capability_count: 55(count: i32) -> u8;
        capability_count: 56() -> i32;
        set_capability: 57(capability: i32, index: i32) -> u8;
        capability: 58(index: i32) -> i32;
    }
}

pub mod network {
    use super::*;
    methods! {
        layer_count: 12() -> i32;
        layer: 13(index: i32) -> Object;
        input_count: 14() -> i32;
        input: 15(index: i32) -> Object;
        output_count: 16() -> i32;
        output: 17(index: i32) -> Object;
    }
}

pub mod layer {
    use super::*;
    methods! {
        kind: 2() -> i32;
        name: 4() -> *const c_char;
    }
}

pub mod tensor {
    use super::*;
    methods! {
        name: 3() -> *const c_char;
        dtype: 6() -> i32;
    }
}

pub mod profile {
    use super::*;
    methods! {
        set_dims: 2(name: *const c_char, selector: i32, dims: *const Dims) -> u8;
        is_valid: 7() -> u8;
    }
}

pub mod memory {
    use super::*;
    methods! {
        data: 2() -> *const u8;
        size: 3() -> usize;
    }
}

pub mod timing_cache {
    use super::*;
    methods! { serialize: 2() -> Object; }
}

/// Methods of the parser, in the object's own table.
pub mod parser {
    use super::*;
    methods! {
        parse: 0(bytes: *const c_void, size: usize, path: *const c_char) -> u8;
        error_count: 3() -> i32;
        error: 4(index: i32) -> Object;
        delete: 7();
    }
}

/// Methods of the parser's errors, in the object's own table.
pub mod parser_error {
    use super::*;
    methods! {
        description: 1() -> *const c_char;
        node: 5() -> i32;
        node_name: 6() -> *const c_char;
        operator: 7() -> *const c_char;
    }
}

pub mod runtime {
    use super::*;
    methods! { deserialize: 3(bytes: *const c_void, size: usize) -> Object; }
}

pub mod engine {
    use super::*;
    methods! { create_context: 5(strategy: i32) -> Object; }
}

pub mod context {
    use super::*;
    methods! {
        set_input_shape: 20(name: *const c_char, dims: *const Dims) -> u8;
        set_address: 23(name: *const c_char, address: *mut c_void) -> u8;
        enqueue: 36(stream: *mut c_void) -> u8;
    }
}
