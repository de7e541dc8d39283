//! Process-wide state that plugins must not change: working directory, limits, locale, standard streams, and the
//! handling of Ctrl-C. After each entry, the state is compared with the state that [`record_initial_state`] recorded;
//! changes are undone, and reported once.

use super::call_site::CallSite;
use super::line::OTHER_STDERR;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Change that a plugin made to process-wide state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Entry after which the change was detected. Runs are not checked individually; for them, this is a recent entry.
    pub site: CallSite,
    /// State that changed, such as "the working directory".
    pub state: &'static str,
    /// True if the change was undone.
    pub restored: bool,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.restored { "byoc restored it" } else { "byoc failed to restore it" };
        write!(f, "{}: changed {}; {end}", self.site, self.state)
    }
}

static REPORTER: OnceLock<fn(&Change)> = OnceLock::new();

/// Sets the function that reports changes; by default, changes are logged as warnings. Only the first call has an
/// effect.
pub fn set_change_reporter(report: fn(&Change)) {
    let _ = REPORTER.set(report);
}

/// Names of the states that could not be restored. Each is reported once, not after every later entry.
static UNRESTORED_STATES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Reports a change, once per plugin, entry and state.
#[cold]
fn report_change(site: &CallSite, state: &'static str, is_restored: bool) {
    static REPORTED_CHANGES: Mutex<BTreeSet<(&'static str, &'static str, &'static str)>> = Mutex::new(BTreeSet::new());
    if !is_restored && !UNRESTORED_STATES.lock().unwrap_or_else(PoisonError::into_inner).insert(state) {
        return;
    }
    let key = (site.plugin, site.entry.name(), state);
    if !REPORTED_CHANGES.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
        return;
    }
    let change = Change { site: *site, state, restored: is_restored };
    match REPORTER.get() {
        Some(report) => report(&change),
        None => tracing::warn!(target: "byoc::plugin", "{change}"),
    }
}

/// Reports a change to the floating-point environment, which has been restored.
#[cold]
pub(super) fn report_float_change(site: &CallSite) {
    report_change(site, "the floating-point environment (rounding, subnormals or exceptions)", true);
}

/// Identity of a file: device, inode and type.
pub(super) type Identity = (libc::dev_t, libc::ino_t, libc::mode_t);

/// Resource limits that a plugin could lower, which would make the host fail later. The type of the constants differs
/// between C libraries, hence the casts.
#[allow(clippy::cast_possible_wrap, reason = "small numbers")]
const LIMITS: [(c_int, &str); 5] = [
    (libc::RLIMIT_NOFILE as c_int, "the open file limit"),
    (libc::RLIMIT_AS as c_int, "the address space limit"),
    (libc::RLIMIT_DATA as c_int, "the data segment limit"),
    (libc::RLIMIT_FSIZE as c_int, "the file size limit"),
    (libc::RLIMIT_CPU as c_int, "the CPU time limit"),
];

const STREAMS: [(RawFd, &str); 3] = [(0, "standard input"), (1, "standard output"), (2, "standard error")];

/// State of the process at its start.
struct InitialState {
    limits: [Option<libc::rlimit>; LIMITS.len()],
    streams: [Option<(Identity, OwnedFd)>; STREAMS.len()],
    working_dir: Option<(Identity, OwnedFd)>,
    locale: Option<CString>,
    interrupt: Mutex<Option<libc::sigaction>>,
}

static INITIAL_STATE: OnceLock<InitialState> = OnceLock::new();

fn resource_limit(resource: c_int) -> Option<libc::rlimit> {
    let mut limit = MaybeUninit::uninit();
    // SAFETY: `limit` is a valid output pointer, and is initialized if the call succeeds.
    unsafe { (libc::getrlimit(resource as _, limit.as_mut_ptr()) == 0).then(|| limit.assume_init()) }
}

fn identity_of(status: &libc::stat) -> Identity {
    (status.st_dev, status.st_ino, status.st_mode & libc::S_IFMT)
}

/// Returns the identity of the file that `descriptor` refers to; `None` if the descriptor is not open.
pub(super) fn identity(descriptor: RawFd) -> Option<Identity> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: `status` is a valid output pointer, and is initialized if the call succeeds.
    unsafe { (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| identity_of(&status.assume_init())) }
}

fn working_dir() -> Option<Identity> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: the path is a C string; `status` is a valid output pointer, and is initialized if the call succeeds.
    unsafe { (libc::stat(c".".as_ptr(), status.as_mut_ptr()) == 0).then(|| identity_of(&status.assume_init())) }
}

fn locale() -> Option<CString> {
    // SAFETY: with a null locale, the call is a query. The returned pointer is valid until the next call that sets a
    // locale.
    let name = unsafe { libc::setlocale(libc::LC_ALL, std::ptr::null()) };
    // SAFETY: `setlocale` returns null or a C string.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
}

/// Returns the action of a signal. Async-signal-safe.
pub(super) fn action_of(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: the call is a query; `action` is a valid output pointer, and is initialized if the call succeeds.
    unsafe { (libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}

/// Duplicates a file descriptor to a high descriptor number, which code that closes "all" descriptors is unlikely to
/// reach.
pub(super) fn duplicate_high(descriptor: RawFd) -> io::Result<OwnedFd> {
    for min in [800, 100, 3] {
        // SAFETY: `fcntl` fails on a closed descriptor, and the duplicate does not replace an open one.
        let duplicate = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, min) };
        if duplicate >= 0 {
            // SAFETY: the descriptor was created above and has no other owner.
            return Ok(unsafe { OwnedFd::from_raw_fd(duplicate) });
        }
    }
    Err(io::Error::last_os_error())
}

/// Records the state of the process. Only the first call has an effect.
pub(super) fn record_initial_state() {
    INITIAL_STATE.get_or_init(|| {
        let duplicate = |descriptor| Some((identity(descriptor)?, duplicate_high(descriptor).ok()?));
        let streams = STREAMS.map(|(descriptor, _)| duplicate(descriptor));
        if let Some((_, stderr)) = &streams[2] {
            OTHER_STDERR.store(stderr.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: the path is a C string.
        let dir = unsafe { libc::open(c".".as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        let dir = (dir >= 0).then(|| {
            // SAFETY: the descriptor was created above and has no other owner.
            unsafe { OwnedFd::from_raw_fd(dir) }
        });
        let dir = dir.and_then(|dir| duplicate_high(dir.as_raw_fd()).ok());
        InitialState {
            limits: LIMITS.map(|(resource, _)| resource_limit(resource)),
            streams,
            working_dir: working_dir().zip(dir),
            locale: locale(),
            interrupt: Mutex::new(action_of(libc::SIGINT)),
        }
    });
}

/// Restores the state that an entry has changed.
pub(super) fn restore_changes(site: &CallSite) {
    let Some(initial_state) = INITIAL_STATE.get() else { return };
    for ((resource, name), initial_limit) in LIMITS.into_iter().zip(&initial_state.limits) {
        let Some(initial_limit) = initial_limit else { continue };
        let is_same =
            |limit: libc::rlimit| limit.rlim_cur == initial_limit.rlim_cur && limit.rlim_max == initial_limit.rlim_max;
        if resource_limit(resource).is_some_and(|limit| !is_same(limit)) {
            // SAFETY: `initial_limit` is borrowed for the call.
            let is_restored = unsafe { libc::setrlimit(resource as _, initial_limit) } == 0;
            report_change(site, name, is_restored);
        }
    }
    for ((descriptor, name), initial_identity) in STREAMS.into_iter().zip(&initial_state.streams) {
        let Some((initial_identity, duplicate)) = initial_identity else { continue };
        // The numbers of closed descriptors, including that of the duplicate, may have been reused for other files.
        if identity(descriptor) != Some(*initial_identity) {
            let is_restored = identity(duplicate.as_raw_fd()) == Some(*initial_identity)
                // SAFETY: `dup2` fails on a closed duplicate, and replaces only a descriptor that a plugin has changed.
                && unsafe { libc::dup2(duplicate.as_raw_fd(), descriptor) } >= 0;
            report_change(site, name, is_restored);
        }
    }
    if let Some((initial_identity, duplicate)) = &initial_state.working_dir
        && working_dir() != Some(*initial_identity)
    {
        // SAFETY: `fchdir` fails on a descriptor that is closed or not a directory.
        let is_restored =
            unsafe { libc::fchdir(duplicate.as_raw_fd()) } == 0 && working_dir() == Some(*initial_identity);
        report_change(site, "the working directory", is_restored);
    }
    if let Some(initial_locale) = &initial_state.locale
        && locale().as_ref() != Some(initial_locale)
    {
        // SAFETY: `initial_locale` is a C string, the name of a locale that the system returned.
        let is_restored = unsafe { !libc::setlocale(libc::LC_ALL, initial_locale.as_ptr()).is_null() };
        report_change(site, "the locale", is_restored);
    }
    check_interrupt(site, &initial_state.interrupt);
}

/// Restores the handler of Ctrl-C if a plugin has set Ctrl-C to be ignored. The host itself may change the handler, but
/// never ignores Ctrl-C.
fn check_interrupt(site: &CallSite, last_action: &Mutex<Option<libc::sigaction>>) {
    let mut last_action = last_action.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(action) = action_of(libc::SIGINT) else { return };
    match &*last_action {
        Some(previous_action)
            if action.sa_sigaction == libc::SIG_IGN && previous_action.sa_sigaction != libc::SIG_IGN =>
        {
            // SAFETY: `previous_action` is an action that the system returned, and is borrowed for the call.
            let is_restored = unsafe { libc::sigaction(libc::SIGINT, previous_action, std::ptr::null_mut()) } == 0;
            report_change(site, "the handling of Ctrl-C", is_restored);
        }
        _ => *last_action = Some(action),
    }
}
