//! Setup of a thread that enters plugins: an alternate signal stack, and a destructor that runs when the thread ends.

use super::exit::{GUARDED_PID, HOST_PID, PROCESS_ENDED, exit_with_error};
use super::slots::{self, Slot};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Resources of a thread that enters plugins.
struct Thread {
    slot: &'static Slot,
    stack: *mut c_void,
}

/// Size of an alternate signal stack: handlers need a page or two, in addition to the vector registers, which the
/// kernel saves on this stack.
const SIGNAL_STACK_BYTES: usize = 64 << 10;

/// Installs an alternate signal stack, because the normal stack may have overflowed, and a destructor that runs when
/// the thread ends. Called before the thread enters a plugin for the first time.
pub(super) fn prepare(slot: &'static Slot) {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is a valid output pointer, and the destructor lives as long as the process.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(on_thread_end)) } == 0).then_some(key)
    });
    let Some(key) = key else { return };
    let thread = Box::new(Thread { slot, stack: handler_stack() });
    // SAFETY: `key` is valid, and only the destructor uses the box.
    unsafe { libc::pthread_setspecific(key, Box::into_raw(thread).cast()) };
}

/// Installs a sufficiently large alternate signal stack if the thread has none and this process handles signals. The
/// standard library's signal stack has two pages, and the registers alone may need more than one.
fn handler_stack() -> *mut c_void {
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: `stack` is a valid output pointer; if the query fails, it stays zero.
    let is_sufficient = unsafe {
        libc::sigaltstack(ptr::null(), stack.as_mut_ptr());
        let stack = stack.assume_init();
        stack.ss_flags & libc::SS_DISABLE == 0 && stack.ss_size >= SIGNAL_STACK_BYTES / 2
    };
    if is_sufficient || GUARDED_PID.load(Ordering::Relaxed) == 0 {
        return ptr::null_mut();
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the mapping is new, and stays registered until `on_thread_end` unregisters and unmaps it.
    unsafe {
        let memory = libc::mmap(ptr::null_mut(), SIGNAL_STACK_BYTES, protection, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        let stack = libc::stack_t { ss_sp: memory, ss_flags: 0, ss_size: SIGNAL_STACK_BYTES };
        libc::sigaltstack(&raw const stack, ptr::null_mut());
        memory
    }
}

unsafe extern "C" fn on_thread_end(thread: *mut c_void) {
    // SAFETY: `prepare` stored the pointer, which comes from a `Box`.
    let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
    if let (Some(site), false) = (thread.slot.call_site(), thread.slot.is_shared()) {
        if HOST_PID.load(Ordering::Relaxed) == std::process::id() {
            let message = "terminated a byoc thread with pthread_exit; byoc cannot continue";
            exit_with_error(PROCESS_ENDED, site, |line| _ = line.text(message));
        }
        // The host does not own its process: the slot stays occupied, and a join on the thread blocks.
        return;
    }
    slots::detach();
    thread.slot.release();
    if !thread.stack.is_null() {
        let no_stack =
            libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: SIGNAL_STACK_BYTES };
        // SAFETY: `handler_stack` mapped this many bytes; the stack is unregistered first, and no handler runs on it.
        unsafe {
            libc::sigaltstack(&raw const no_stack, ptr::null_mut());
            libc::munmap(thread.stack, SIGNAL_STACK_BYTES);
        }
    }
}
