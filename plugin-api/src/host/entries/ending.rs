//! The end of the process while plugins are at work: signals, `exit`, a process that a plugin forked, a thread that ends inside
//! an entry. Each ends with one line that names plugin, region and entry, and never with success.
//!
//! What runs in handlers here uses the table of entries, a line on the stack, and calls of the system; no memory, no locks.

use super::end::{ENDED, FORKED, PROCESS, SAID, end, end_with};
use super::line::Line;
use super::place::Place;
use super::product::Product;
use super::{process, slots};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

/// The signals that end a process for its own fault.
const SIGNALS: [(c_int, &str); 7] = [
    (libc::SIGSEGV, "SIGSEGV (a segmentation fault)"),
    (libc::SIGBUS, "SIGBUS (a bus error)"),
    (libc::SIGFPE, "SIGFPE (an arithmetic fault)"),
    (libc::SIGILL, "SIGILL (an illegal instruction)"),
    (libc::SIGABRT, "SIGABRT (an abort)"),
    (libc::SIGSYS, "SIGSYS (a forbidden call of the system)"),
    (libc::SIGTRAP, "SIGTRAP (a trap)"),
];

/// Set when the host has finished its work.
static FINISHED: AtomicBool = AtomicBool::new(false);
/// Previous action of each signal.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// Makes this process the host's own: a signal, `exit`, or a fork inside a plugin ends with a line that names it, changes of
/// what belongs to the process are put back after each entry, and standard output is the host's alone.
///
/// For a program whose whole process it is, and once, before it starts threads. It says [`finished`] before it ends.
///
/// # Errors
/// When the system has no descriptor left for standard output.
pub fn own_process() -> io::Result<Product> {
    let product = Product::take()?;
    process::begin();
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = SIGNALS.map(|(signal, _)| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: asks for what is done on a signal; where that fails, zeroes say: the default.
            unsafe {
                libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
                action.assume_init()
            }
        });
        let _ = BEFORE.set(before);
        for (signal, _) in SIGNALS {
            handle(signal, on_fault);
        }
        // SAFETY: both functions live as long as the process. Where the system has no room for them, nothing is said.
        unsafe {
            libc::atexit(on_exit);
            libc::pthread_atfork(None, None, Some(on_fork));
        }
    });
    Ok(product)
}

/// The host has done all that it was started for: the end of the process is no plugin's from here on.
pub fn finished() {
    FINISHED.store(true, Ordering::SeqCst);
}

/// Has Ctrl-C say which plugin is under way, if one is. It ends nothing by itself: handlers that are set later go on after it.
///
/// Gives `false` and sets nothing where Ctrl-C is ignored, as it is in the background of a shell.
pub fn say_interrupts() -> bool {
    if process::interrupt().is_some_and(|action| action.sa_sigaction == libc::SIG_IGN) {
        return false;
    }
    handle(libc::SIGINT, on_interrupt);
    true
}

extern "C" fn on_interrupt(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    if let Some(place) = slots::current().or_else(|| slots::under_way().map(|(place, _)| place)) {
        let mut line = Line::new();
        line.text("interrupted in ").place(place).write();
    }
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn handle(signal: c_int, handler: Handler) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeroes are an action without flags; the handler lives as long as the process and is one with information.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, action, ptr::null_mut());
    }
}

/// Has the signal do what it does by default, or what it did before.
fn reset(signal: c_int, before: Option<&libc::sigaction>) {
    let mut default = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeroes are the default action.
    unsafe {
        let action = before.unwrap_or(default.assume_init_mut());
        libc::sigaction(signal, action, ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: c_int, information: *mut libc::siginfo_t, _: *mut c_void) {
    let index = SIGNALS.iter().position(|(other, _)| *other == signal);
    let name = index.map_or("a signal", |index| SIGNALS[index].1);
    let mine = slots::current();
    let (under_way, last) = (slots::under_way(), slots::last());
    if let Some(place) = mine.or(under_way.map(|(place, _)| place)).or(last)
        && !SAID.swap(true, Ordering::SeqCst)
    {
        let mut line = Line::new();
        line.error(ENDED).place(place).text(": ended by ").text(name);
        match (mine, under_way) {
            (Some(_), _) => {}
            (None, Some((_, 0))) => _ = line.text(" on another thread while it was under way"),
            (None, Some((_, others))) => {
                line.text(" on another thread while it and ").number(others as u64).text(" more were under way");
            }
            (None, None) => _ = line.text(" outside of plugins, after this entry had returned"),
        }
        line.write();
    }
    // In the host itself, what was done before says more: of a stack that overflows, for one.
    let before = if under_way.is_none() { index.and_then(|index| BEFORE.get()?.get(index)) } else { None };
    reset(signal, before);
    // SAFETY: the system gives the information of the signal.
    let sent = unsafe { information.as_ref() }.is_none_or(|information| information.si_code <= 0);
    if sent {
        // A fault happens again when the handler returns. What was sent does not: it is sent again, and arrives then.
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(signal) };
    }
}

/// Whose doing the end of the process is: this thread's entry, or some other thread's, or the last one.
fn culprit() -> Option<&'static Place> {
    slots::current().or_else(|| slots::under_way().map(|(place, _)| place)).or_else(slots::last)
}

extern "C" fn on_exit() {
    // How a child of the plugin's ends is the plugin's business.
    if FINISHED.load(Ordering::SeqCst) || FORKED.load(Ordering::Relaxed) {
        return;
    }
    match culprit() {
        Some(place) => {
            end_with(ENDED, place, |line| _ = line.text("it called exit, which ends byoc before it is done"));
        }
        None => end(|line| _ = line.error(ENDED).text("exit was called before byoc was done")),
    }
}

extern "C" fn on_fork() {
    // A child of the host's own, which starts a program next, is none of these.
    if slots::under_way().is_some() {
        FORKED.store(true, Ordering::Relaxed);
    }
}
