//! Calls by which a plugin ends or replaces the process: `_exit`, `execve` and others, after which no handler of the
//! process runs. The table of imports of a plugin is changed so that these calls pass through [`on_call`], which prints
//! the message, and ends the process with an error. In a child process that the plugin forked, they do what they always
//! do.

use super::handlers::{exit_after_call, is_guarded, report_signal};
use std::ffi::{c_int, c_long};
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
}

const FUNCTIONS: [(&str, Effect); 18] = [
    ("exit", Effect::Ends),
    ("_exit", Effect::Ends),
    ("_Exit", Effect::Ends),
    ("quick_exit", Effect::Ends),
    ("execl", Effect::Ends),
    ("execle", Effect::Ends),
    ("execlp", Effect::Ends),
    ("execv", Effect::Ends),
    ("execve", Effect::Ends),
    ("execvp", Effect::Ends),
    ("execvpe", Effect::Ends),
    ("execveat", Effect::Ends),
    ("fexecve", Effect::Ends),
    ("daemon", Effect::Ends),
    ("abort", Effect::Aborts),
    ("raise", Effect::Raises),
    ("kill", Effect::Kills),
    ("syscall", Effect::Calls),
];

/// Addresses of the functions of the C library, which the trampolines call.
static ORIGINALS: [AtomicUsize; FUNCTIONS.len()] = [const { AtomicUsize::new(0) }; FUNCTIONS.len()];

/// Function whose calls by plugins are intercepted.
pub(crate) struct Interception(usize);

impl Interception {
    /// Returns the interception of a function; `None` if its calls are not intercepted.
    pub(crate) fn of(name: &[u8]) -> Option<Interception> {
        let index = FUNCTIONS.iter().position(|(function, _)| function.as_bytes() == name)?;
        (is_guarded() && index < TRAMPOLINES.len()).then_some(Interception(index))
    }

    /// Name of the function.
    pub(crate) fn name(&self) -> &'static str {
        FUNCTIONS[self.0].0
    }

    /// Sets the address of the function, and returns that of its replacement.
    pub(crate) fn replace(&self, original: usize) -> usize {
        ORIGINALS[self.0].store(original, Ordering::Release);
        TRAMPOLINES[self.0] as usize
    }
}

extern "C" fn on_call(index: usize, first: c_long, second: c_long) {
    if !is_guarded() {
        return;
    }
    let (name, effect) = FUNCTIONS[index];
    match effect {
        Effect::Ends => exit_after_call(name),
        Effect::Aborts => report_signal(libc::SIGABRT),
        Effect::Raises => report_signal(first as c_int),
        Effect::Kills => {
            // SAFETY: the functions have no preconditions.
            let (own, group) = unsafe { (libc::getpid(), libc::getpgrp()) };
            if [own, 0, -1, -group].contains(&(first as c_int)) {
                report_signal(second as c_int);
            }
        }
        Effect::Calls => match first {
            libc::SYS_exit | libc::SYS_exit_group => exit_after_call("the system call exit"),
            libc::SYS_execve | libc::SYS_execveat => exit_after_call("the system call execve"),
            _ => {}
        },
    }
}

type Trampoline = extern "C" fn();

/// Defines one trampoline per function: it calls [`on_call`] with the index and the first two arguments, and goes on in
/// the original function with all arguments as they were, whatever their number.
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
            "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "pop rax",
            "jmp qword ptr [rip + {originals} + 8 * {index}]",
            index = const $index,
            on_call = sym on_call,
            originals = sym ORIGINALS,
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
            "ldp x8, x30, [sp, #64]",
            "ldp x6, x7, [sp, #48]",
            "ldp x4, x5, [sp, #32]",
            "ldp x2, x3, [sp, #16]",
            "ldp x0, x1, [sp], #80",
            "adrp x16, {originals}",
            "add x16, x16, :lo12:{originals}",
            "ldr x16, [x16, #8 * {index}]",
            "br x16",
            index = const $index,
            on_call = sym on_call,
            originals = sym ORIGINALS,
        )
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static TRAMPOLINES: [Trampoline; FUNCTIONS.len()] = trampolines!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17);
/// On other processors, no call is intercepted.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static TRAMPOLINES: [Trampoline; 0] = [];
