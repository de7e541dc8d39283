//! Calls by which a plugin ends or replaces the process: `_exit`, `execve` and others, after which no handler of the
//! process runs. The table of imports of a plugin is changed so that these calls pass through [`on_call`], which prints
//! the message, and ends the process with an error. Calls that would remove the handlers of the host leave them. In a
//! child process that the plugin forked, all of them do what they always do.

use super::handlers::{exit_after_call, is_guarded, keep_handler, report_signal};
use std::ffi::{CString, c_int, c_long};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Effect of a function.
#[derive(Clone, Copy)]
enum Effect {
    /// Ends or replaces the process.
    Ends,
    /// Ends the process by a signal, whose handler prints a message, unless the plugin has removed it.
    Aborts,
    /// Sends the signal in the first argument to the process.
    Raises,
    /// Sends the signal in the second argument to the processes in the first one.
    Kills,
    /// Makes the system call in the first argument.
    Calls,
    /// Sets the handler of the signal in the first argument to the second one.
    SetsHandler,
    /// Sets the action of the signal in the first argument to the one that the second one points to.
    SetsAction,
}

/// Intercepted functions, sorted by name.
const FUNCTIONS: [(&str, Effect); 20] = [
    ("_Exit", Effect::Ends),
    ("_exit", Effect::Ends),
    ("abort", Effect::Aborts),
    ("daemon", Effect::Ends),
    ("execl", Effect::Ends),
    ("execle", Effect::Ends),
    ("execlp", Effect::Ends),
    ("execv", Effect::Ends),
    ("execve", Effect::Ends),
    ("execveat", Effect::Ends),
    ("execvp", Effect::Ends),
    ("execvpe", Effect::Ends),
    ("exit", Effect::Ends),
    ("fexecve", Effect::Ends),
    ("kill", Effect::Kills),
    ("quick_exit", Effect::Ends),
    ("raise", Effect::Raises),
    ("sigaction", Effect::SetsAction),
    ("signal", Effect::SetsHandler),
    ("syscall", Effect::Calls),
];

/// Addresses of the functions of the C library, which the trampolines call.
static ORIGINALS: [AtomicUsize; FUNCTIONS.len()] = [const { AtomicUsize::new(0) }; FUNCTIONS.len()];

/// Function whose calls by plugins are intercepted.
pub(crate) struct Interception(usize);

impl Interception {
    /// Returns the interception of a function; `None` if its calls are not intercepted.
    pub(crate) fn of(name: &[u8]) -> Option<Interception> {
        let index = FUNCTIONS.binary_search_by(|(function, _)| function.as_bytes().cmp(name)).ok()?;
        (is_guarded() && index < TRAMPOLINES.len()).then_some(Interception(index))
    }

    /// Returns the address of the replacement for the function at the address `original`; `None` if that is the
    /// function of another library than the C library.
    pub(crate) fn replacement(&self, original: usize) -> Option<usize> {
        let known = match ORIGINALS[self.0].load(Ordering::Acquire) {
            0 => {
                let name = CString::new(FUNCTIONS[self.0].0).ok()?;
                // SAFETY: the name is a string, and the call looks for it in the libraries of the process.
                let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.expose_provenance();
                ORIGINALS[self.0].store(address, Ordering::Release);
                address
            }
            known => known,
        };
        (known == original && original != 0).then_some(TRAMPOLINES[self.0] as usize)
    }
}

/// Handles a call of a plugin; returns the function that continues it.
extern "C" fn on_call(index: usize, first: c_long, second: c_long) -> usize {
    let original = ORIGINALS[index].load(Ordering::Acquire);
    if !is_guarded() {
        return original;
    }
    let (name, effect) = FUNCTIONS[index];
    match effect {
        Effect::Ends => exit_after_call(name),
        Effect::Aborts => report_signal(libc::SIGABRT),
        Effect::Raises => report_signal(first as c_int),
        // A process, its group, or every process.
        Effect::Kills => {
            if [std::process::id().cast_signed(), 0, -1].contains(&(first as c_int)) {
                report_signal(second as c_int);
            }
        }
        Effect::Calls => match first {
            libc::SYS_exit | libc::SYS_exit_group => exit_after_call("the system call exit"),
            libc::SYS_execve | libc::SYS_execveat => exit_after_call("the system call execve"),
            _ => {}
        },
        Effect::SetsHandler => {
            if keep_handler(first as c_int, second as libc::sighandler_t) {
                return set_no_handler as extern "C" fn(c_int) -> libc::sighandler_t as usize;
            }
        }
        Effect::SetsAction => {
            // SAFETY: the plugin passes NULL or an action to `sigaction`.
            let action = unsafe { ptr::with_exposed_provenance::<libc::sigaction>(second as usize).as_ref() };
            if action.is_some_and(|action| keep_handler(first as c_int, action.sa_sigaction)) {
                return set_no_action as extern "C" fn(c_int, _, _) -> c_int as usize;
            }
        }
    }
    original
}

/// Replaces `signal` where the handler stays: returns the default action as the previous one.
extern "C" fn set_no_handler(_: c_int) -> libc::sighandler_t {
    libc::SIG_DFL
}

/// Replaces `sigaction` where the handler stays: stores the action, if the caller asks for it.
extern "C" fn set_no_action(signal: c_int, _: *const libc::sigaction, previous: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller passes NULL or a valid output pointer as the third argument of `sigaction`.
    unsafe { libc::sigaction(signal, ptr::null(), previous) }
}

type Trampoline = extern "C" fn();

/// Defines one trampoline per function: it calls [`on_call`] with the index and the first two arguments, and goes on in
/// the function that it returns, with all arguments as they were, whatever their number.
macro_rules! trampolines {
    ($($index:literal)*) => {
        [$({
            #[unsafe(naked)]
            extern "C" fn trampoline() {
                trampoline_code!($index)
            }
            trampoline as Trampoline
        }),*]
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! trampoline_code {
    ($index:literal) => {
        // Seven registers, after which the stack is aligned as a call requires. A variadic call has the number of its
        // vector registers in `rax`; the functions here have no arguments in vector registers.
        std::arch::naked_asm!(
            "push rax", "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
            "mov rdx, rsi",
            "mov rsi, rdi",
            "mov edi, {index}",
            "call {on_call}",
            "mov r11, rax",
            "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "pop rax",
            "jmp r11",
            index = const $index,
            on_call = sym on_call,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! trampoline_code {
    ($index:literal) => {
        std::arch::naked_asm!(
            "stp x0, x1, [sp, #-80]!",
            "stp x2, x3, [sp, #16]",
            "stp x4, x5, [sp, #32]",
            "stp x6, x7, [sp, #48]",
            "stp x8, x30, [sp, #64]",
            "mov x2, x1",
            "mov x1, x0",
            "mov x0, #{index}",
            "bl {on_call}",
            "mov x16, x0",
            "ldp x8, x30, [sp, #64]",
            "ldp x6, x7, [sp, #48]",
            "ldp x4, x5, [sp, #32]",
            "ldp x2, x3, [sp, #16]",
            "ldp x0, x1, [sp], #80",
            "br x16",
            index = const $index,
            on_call = sym on_call,
        )
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static TRAMPOLINES: [Trampoline; FUNCTIONS.len()] = trampolines!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
/// On other processors, no call is intercepted.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static TRAMPOLINES: [Trampoline; 0] = [];
