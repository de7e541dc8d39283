//! The end of the process while plugins are at work: signals, `exit`, a process that a plugin forked, a thread that ends inside
//! an entry. Each ends with one line that names plugin, region and entry, and never with success.
//!
//! What runs in handlers here uses the table of entries, a line on the stack, and calls of the system; no memory, no locks.

use super::line::Line;
use super::product::Product;
use super::record::{self, Slot};
use super::{place::Place, process};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// The code of the lines written here: a plugin ended the process.
const ENDED: &str = "E0450";

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

/// Whether this process was forked off the host's by a plugin, inside an entry.
pub(super) static FORKED: AtomicBool = AtomicBool::new(false);
/// Whether the host has done all that it was started for.
static FINISHED: AtomicBool = AtomicBool::new(false);
/// Whether the end has been said; by one thread, and once.
static SAID: AtomicBool = AtomicBool::new(false);
/// The host's process.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// What was done on each signal before.
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

/// Has a Ctrl-C that ends the process at once, which is one while `at_once` is set, say which plugin was under way. Other
/// handlers go on after it, if they are set later.
pub fn interrupts_end_at_once(at_once: Arc<AtomicBool>) {
    AT_ONCE.store(Arc::into_raw(at_once).cast_mut(), Ordering::Release);
    handle(libc::SIGINT, on_interrupt);
}

static AT_ONCE: AtomicPtr<AtomicBool> = AtomicPtr::new(ptr::null_mut());

extern "C" fn on_interrupt(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: null, or an `Arc` that is never given back.
    let at_once = unsafe { AT_ONCE.load(Ordering::Acquire).as_ref() };
    let place = record::current().or_else(|| record::under_way().map(|(place, _)| place));
    if let (true, Some(place)) = (at_once.is_some_and(|flag| flag.load(Ordering::Relaxed)), place) {
        Line::error(ENDED).place(place).text(": interrupted while it was under way").write();
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
    let mine = record::current();
    let (under_way, last) = (record::under_way(), record::last());
    if last.is_some() && !SAID.swap(true, Ordering::SeqCst) {
        match (mine, under_way, last) {
            (Some(place), ..) => Line::error(ENDED).place(place).text(": ended by ").text(name).write(),
            (None, Some((place, others)), _) => {
                let line = Line::error(ENDED).place(place).text(": ended by ").text(name);
                let line = line.text(" on another thread while it was under way");
                match others {
                    0 => line.write(),
                    _ => line.text(", and ").number(others as u64).text(" more").write(),
                }
            }
            (None, None, Some(place)) => {
                let line = Line::error(ENDED).place(place).text(": ended by ").text(name);
                line.text(" outside of plugins, after this entry had returned").write();
            }
            (None, None, None) => {}
        }
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
    record::current().or_else(|| record::under_way().map(|(place, _)| place)).or_else(record::last)
}

fn end(line: Line) -> ! {
    if !SAID.swap(true, Ordering::SeqCst) {
        line.write();
    }
    // SAFETY: ends the process, without anything that a plugin has registered for its end.
    unsafe { libc::_exit(1) }
}

/// Ends the process with this line.
pub(super) fn end_with(code: &str, place: &Place, finish: impl FnOnce(Line) -> Line) -> ! {
    end(finish(Line::error(code).place(place).text(": ")))
}

extern "C" fn on_exit() {
    if FINISHED.load(Ordering::SeqCst) {
        return;
    }
    // How a child of the plugin's ends is the plugin's business.
    if FORKED.load(Ordering::Relaxed) {
        return;
    }
    match culprit() {
        Some(place) => end(Line::error(ENDED).place(place).text(": it called exit, which ends byoc before it is done")),
        None => end(Line::error(ENDED).text("exit was called before byoc was done")),
    }
}

extern "C" fn on_fork() {
    // A child of the host's own, which starts a program next, is none of these.
    if record::under_way().is_some() {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// A process that a plugin forked has come back from the entry: there must not be two hosts.
#[cold]
pub(super) fn end_child(place: &Place) -> ! {
    // Whatever was noted of the parent's threads holds for the parent.
    SAID.store(false, Ordering::SeqCst);
    let line = Line::error(ENDED).place(place);
    end(line.text(": it forked, and the child came back; the child ends here and byoc goes on"))
}

/// What a thread holds that enters plugins.
struct Thread {
    slot: &'static Slot,
    stack: *mut c_void,
}

/// The size of a stack for handlers: they need a page or two, and the system saves the registers there, which are many.
const STACK: usize = 128 << 10;

/// Gets a thread ready that enters plugins for the first time: a stack for handlers, as the other may be full, and a
/// destructor that sees the thread end.
pub(super) fn prepare_thread(slot: &'static Slot) {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: makes a key; the destructor lives as long as the process.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(on_thread_end)) } == 0).then_some(key)
    });
    let Some(key) = key else { return };
    let thread = Box::new(Thread { slot, stack: handler_stack() });
    // SAFETY: the destructor takes the box back.
    unsafe { libc::pthread_setspecific(key, Box::into_raw(thread).cast()) };
}

/// Gives the thread a stack for handlers, where it has none and this process handles signals.
fn handler_stack() -> *mut c_void {
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: asks for the stack that there is; zeroes where that fails.
    let there = unsafe {
        libc::sigaltstack(ptr::null(), stack.as_mut_ptr());
        stack.assume_init().ss_flags & libc::SS_DISABLE == 0
    };
    if there || BEFORE.get().is_none() {
        return ptr::null_mut();
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: maps fresh memory, which stays until the thread ends, and names it to the system.
    unsafe {
        let memory = libc::mmap(ptr::null_mut(), STACK, protection, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        let stack = libc::stack_t { ss_sp: memory, ss_flags: 0, ss_size: STACK };
        libc::sigaltstack(&raw const stack, ptr::null_mut());
        memory
    }
}

unsafe extern "C" fn on_thread_end(thread: *mut c_void) {
    // SAFETY: what `prepare_thread` gave.
    let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
    if let Some(place) = thread.slot.at() {
        if PROCESS.load(Ordering::Relaxed) == std::process::id() {
            end(Line::error(ENDED)
                .place(place)
                .text(": it ended a thread of byoc's (pthread_exit), which cannot go on"));
        }
        // Nobody owns the process: the slot stays what it is, and whoever waits for the thread waits.
        return;
    }
    record::disown();
    thread.slot.give_back();
    if !thread.stack.is_null() {
        let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: STACK };
        // SAFETY: takes the stack from the system, and gives back the memory, in which no handler runs.
        unsafe {
            libc::sigaltstack(&raw const none, ptr::null_mut());
            libc::munmap(thread.stack, STACK);
        }
    }
}
