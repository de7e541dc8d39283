//! Handlers for the termination of the process while plugins run: by a signal, by `exit`, or after a plugin has forked.
//! Each handler prints one line that names the plugin, the region and the entry, and the process never exits with
//! a success status.
//!
//! The handlers use only the entry table, a line on the stack, and system calls: no allocation, no locks.

use super::call_site::CallSite;
use super::exit::{GUARDED_PID, HAS_FORKED, HOST_PID, PROCESS_ENDED, exit_with, exit_with_error, print_last};
use super::line::Line;
use super::stdout::ReservedStdout;
use super::{generation, process, slots};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

/// Signals that terminate a process because of a fault in its code.
const SIGNALS: [(c_int, &str); 7] = [
    (libc::SIGSEGV, "SIGSEGV (a segmentation fault)"),
    (libc::SIGBUS, "SIGBUS (a bus error)"),
    (libc::SIGFPE, "SIGFPE (an arithmetic fault)"),
    (libc::SIGILL, "SIGILL (an illegal instruction)"),
    (libc::SIGABRT, "SIGABRT (an abort)"),
    (libc::SIGSYS, "SIGSYS (a forbidden system call)"),
    (libc::SIGTRAP, "SIGTRAP (a trap)"),
];

/// Set once the host has finished its work.
static HAS_FINISHED: AtomicBool = AtomicBool::new(false);
/// Previous action of each signal, if known.
static PREVIOUS_ACTIONS: OnceLock<[Option<libc::sigaction>; SIGNALS.len()]> = OnceLock::new();

/// Installs the process-wide protections: after a signal, an `exit` or a fork inside a plugin, a message names the
/// plugin; changes to process-wide state are undone after each entry; standard output is reserved for the host.
///
/// Intended for executables that own their process. The executable must call this function once, before it starts
/// threads, and [`mark_finished`] before it exits.
///
/// # Errors
/// If no file descriptor is available for a copy of standard output.
pub fn own_process() -> io::Result<ReservedStdout> {
    let stdout = ReservedStdout::reserve()?;
    process::record_initial_state();
    HOST_PID.store(std::process::id(), Ordering::Relaxed);
    guard_process();
    Ok(stdout)
}

/// Makes the end of the process name the plugin that caused it, in a process that the host shares with a program, such
/// as an interpreter. The signal handlers that were there before run afterwards, and handlers that are installed later
/// can call these. The program itself may end the process at any time.
pub fn guard_process() {
    GUARDED_PID.store(std::process::id(), Ordering::Relaxed);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = PREVIOUS_ACTIONS.set(SIGNALS.map(|(signal, _)| process::action_of(signal)));
        for (signal, _) in SIGNALS {
            install_handler(signal, on_fault);
        }
        // SAFETY: both functions live as long as the process. If registration fails, no message is printed.
        unsafe {
            libc::atexit(on_exit);
            at_quick_exit(on_exit);
        }
        generation::count_forks();
    });
}

// SAFETY: the declaration is that of the C standard.
unsafe extern "C" {
    fn at_quick_exit(handler: extern "C" fn()) -> c_int;
}

/// Returns true in a process that the host owns, as opposed to one that it shares with a program.
fn owns_process() -> bool {
    HOST_PID.load(Ordering::Relaxed) != 0
}

/// Marks the host's work as finished. Afterwards, no plugin is blamed for the termination of the process.
pub fn mark_finished() {
    HAS_FINISHED.store(true, Ordering::SeqCst);
}

/// Returns true if `exit` was called before the host of this process had finished, so by a plugin.
pub(super) fn is_exit_unexpected() -> bool {
    HOST_PID.load(Ordering::Relaxed) != 0 && !HAS_FINISHED.load(Ordering::SeqCst)
}

/// Makes Ctrl-C print the call site of a running plugin, if any. Does not end the process: handlers that are installed
/// later run as well.
///
/// Returns `false` and installs nothing if Ctrl-C is ignored, as in a background job of a shell.
pub fn report_interrupts() -> bool {
    if process::action_of(libc::SIGINT).is_some_and(|action| action.sa_sigaction == libc::SIG_IGN) {
        return false;
    }
    install_handler(libc::SIGINT, on_interrupt);
    true
}

extern "C" fn on_interrupt(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    if let Some(site) = slots::current_site().or_else(|| slots::running_entry().map(|(site, _)| site)) {
        let mut line = Line::new();
        line.text("interrupted in ").site(site).write();
    }
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn install_handler(signal: c_int, handler: Handler) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an all-zero `sigaction` is valid and has no flags; the handler lives as long as the process and has the
    // signature that `SA_SIGINFO` requires.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, action, ptr::null_mut());
    }
}

/// Restores the previous or the default action of a signal.
fn restore_action(signal: c_int, previous_action: Option<&libc::sigaction>) {
    let mut default = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: both actions are valid for the call; an all-zero `sigaction` is the default action.
    unsafe {
        let action = previous_action.unwrap_or(default.assume_init_mut());
        libc::sigaction(signal, action, ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: c_int, information: *mut libc::siginfo_t, _: *mut c_void) {
    let index = SIGNALS.iter().position(|(number, _)| *number == signal);
    let name = index.map_or("a signal", |index| SIGNALS[index].1);
    let current_site = slots::current_site();
    let running_entry = slots::running_entry();
    // In a process that the host shares, a fault outside of plugins has many possible causes.
    let last_site = slots::last_site().filter(|_| owns_process());
    if let Some(site) = current_site.or(running_entry.map(|(site, _)| site)).or(last_site) {
        print_last(|line| {
            line.error(PROCESS_ENDED).site(site).text(": terminated by ").text(name);
            match (current_site, running_entry) {
                (Some(_), _) => {}
                (None, Some((_, 0))) => _ = line.text(" on another thread while this entry was running"),
                (None, Some((_, other_count))) => {
                    line.text(" on another thread while this entry was running; other running entries: ")
                        .number(other_count as u64);
                }
                (None, None) => _ = line.text(" outside of plugins, after this entry had returned"),
            }
            line.operators(site);
        });
    }
    // For a fault in the host, the previous handler gives more detail, for example on a stack overflow. In a process that
    // the host shares, the previous handler belongs to the program.
    let is_passed_on = running_entry.is_none() || !owns_process();
    let previous_action = index.filter(|_| is_passed_on).and_then(|index| PREVIOUS_ACTIONS.get()?.get(index)?.as_ref());
    restore_action(signal, previous_action);
    // SAFETY: the kernel passes null or a pointer to the signal's information; `raise` has no preconditions.
    unsafe {
        // A fault recurs when the handler returns. A signal that was sent does not recur, so it is raised again.
        if information.as_ref().is_none_or(|information| information.si_code <= 0) {
            libc::raise(signal);
        }
    }
}

/// Returns the entry responsible for the end of the process: this thread's entry, else a running entry of another
/// thread, else the last entry.
fn responsible_site() -> Option<&'static CallSite> {
    slots::current_site().or_else(|| slots::running_entry().map(|(site, _)| site)).or_else(slots::last_site)
}

extern "C" fn on_exit() {
    // A child process that a plugin forked may exit at any time.
    if HAS_FINISHED.load(Ordering::SeqCst) || !is_guarded() {
        return;
    }
    // A program that shares its process may exit while its threads run models.
    if owns_process() || slots::current_site().is_some() {
        exit_after_call("exit");
    }
}

/// Returns true in the process that was guarded, as opposed to a child process that was forked from it.
pub(super) fn is_guarded() -> bool {
    GUARDED_PID.load(Ordering::Relaxed) == std::process::id() && !HAS_FORKED.load(Ordering::Relaxed)
}

/// Exits because a plugin called a function that ends the process, unless the host has finished its work.
pub(super) fn exit_after_call(function: &str) {
    if HAS_FINISHED.load(Ordering::SeqCst) {
        return;
    }
    match responsible_site() {
        Some(site) => exit_with_error(PROCESS_ENDED, site, |line| {
            line.text("called ").text(function).text(" before byoc had finished");
        }),
        None => exit_with(|line| {
            line.error(PROCESS_ENDED).text(function).text(" was called before byoc had finished");
        }),
    }
}

/// Prints a line because a plugin sends the process a signal that ends or stops it, and that no handler can report.
pub(super) fn report_signal(signal: c_int) {
    const HARMLESS: [c_int; 4] = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
    let is_default = process::action_of(signal).is_some_and(|action| action.sa_sigaction == libc::SIG_DFL);
    if signal <= 0 || HARMLESS.contains(&signal) || !is_default {
        return;
    }
    if let Some(site) = responsible_site() {
        let mut line = Line::new();
        line.error(PROCESS_ENDED).site(site).text(": sent signal ").number(signal.unsigned_abs().into());
        line.text(" to the process").operators(site).write();
    }
}

/// Installs the host's handler instead of a plugin's request to ignore a fault, or to end the process without a message.
/// Returns false for other requests.
pub(super) fn keep_handler(signal: c_int, handler: libc::sighandler_t) -> bool {
    let is_kept =
        [libc::SIG_DFL, libc::SIG_IGN].contains(&handler) && SIGNALS.iter().any(|(fault, _)| *fault == signal);
    if is_kept {
        install_handler(signal, on_fault);
    }
    is_kept
}
