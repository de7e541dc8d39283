//! Process-wide state that plugins must not change: working directory, limits, locale, standard streams, and the
//! handling of Ctrl-C. After each entry it is compared with the state at the time of [`begin`], restored, and reported
//! once.

use super::line::OTHER_STDERR;
use super::place::Place;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Change of process-wide state by a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Current entry, or the last one before the change was noticed.
    pub place: Place,
    /// State that changed, such as "the working directory".
    pub what: &'static str,
    /// True if the change was undone.
    pub restored: bool,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.restored { "it was restored" } else { "it cannot be restored" };
        write!(f, "{}: changed {}; {end}", self.place, self.what)
    }
}

static REPORT: OnceLock<fn(&Change)> = OnceLock::new();

/// Sets the function that reports changes, instead of warnings in the log. Only the first call has an effect.
pub fn on_change(report: fn(&Change)) {
    let _ = REPORT.set(report);
}

/// Changes that could not be undone, each reported once and not again for every later plugin.
static LOST: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Reports a change, once for each plugin and entry.
#[cold]
fn say(place: &Place, what: &'static str, restored: bool) {
    static SAID: Mutex<BTreeSet<(&'static str, &'static str, &'static str)>> = Mutex::new(BTreeSet::new());
    if !restored && !LOST.lock().unwrap_or_else(PoisonError::into_inner).insert(what) {
        return;
    }
    let key = (place.plugin, place.entry.name(), what);
    if !SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
        return;
    }
    let change = Change { place: *place, what, restored };
    match REPORT.get() {
        Some(report) => report(&change),
        None => tracing::warn!(target: "byoc::plugin", "{change}"),
    }
}

/// Reports a change of the floating-point environment, which was restored.
#[cold]
pub(super) fn float_changed(place: &Place) {
    say(place, "the floating-point environment (rounding, subnormals or exceptions)", true);
}

/// Identity of a file: device, inode and type.
pub(super) type Identity = (libc::dev_t, libc::ino_t, libc::mode_t);

/// Limits that a plugin could lower so that the host fails later. (C libraries disagree about the type of their names.)
#[allow(clippy::cast_possible_wrap, reason = "small numbers")]
const LIMITS: [(c_int, &str); 5] = [
    (libc::RLIMIT_NOFILE as c_int, "the limit on open files"),
    (libc::RLIMIT_AS as c_int, "the limit on address space"),
    (libc::RLIMIT_DATA as c_int, "the limit on data"),
    (libc::RLIMIT_FSIZE as c_int, "the limit on the size of files"),
    (libc::RLIMIT_CPU as c_int, "the limit on processor time"),
];

const STREAMS: [(RawFd, &str); 3] = [(0, "standard input"), (1, "standard output"), (2, "standard error")];

/// State of the process at its start.
struct Begin {
    limits: [Option<libc::rlimit>; LIMITS.len()],
    streams: [Option<(Identity, OwnedFd)>; STREAMS.len()],
    folder: Option<(Identity, OwnedFd)>,
    locale: Option<CString>,
    interrupt: Mutex<Option<libc::sigaction>>,
}

static BEGIN: OnceLock<Begin> = OnceLock::new();

fn limit(resource: c_int) -> Option<libc::rlimit> {
    let mut limit = MaybeUninit::uninit();
    // SAFETY: the structure is filled if the call succeeds.
    unsafe { (libc::getrlimit(resource as _, limit.as_mut_ptr()) == 0).then(|| limit.assume_init()) }
}

fn identity_of(status: &libc::stat) -> Identity {
    (status.st_dev, status.st_ino, status.st_mode & libc::S_IFMT)
}

/// Returns the identity of the file of a descriptor; `None` if it is not open.
pub(super) fn identity(descriptor: RawFd) -> Option<Identity> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: the structure is filled if the call succeeds.
    unsafe { (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| identity_of(&status.assume_init())) }
}

fn folder() -> Option<Identity> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: as above; the path is a C string.
    unsafe { (libc::stat(c".".as_ptr(), status.as_mut_ptr()) == 0).then(|| identity_of(&status.assume_init())) }
}

fn locale() -> Option<CString> {
    // SAFETY: a query without side effects. The returned pointer is valid until the next call that sets a locale.
    let name = unsafe { libc::setlocale(libc::LC_ALL, std::ptr::null()) };
    // SAFETY: null, or a C string.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
}

pub(super) fn interrupt() -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: a query without side effects; the structure is filled if the call succeeds.
    unsafe { (libc::sigaction(libc::SIGINT, std::ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}

/// Duplicates a descriptor to a high number, which code that closes "all" descriptors is unlikely to reach.
pub(super) fn own_descriptor(descriptor: RawFd) -> io::Result<OwnedFd> {
    for least in [800, 100, 3] {
        // SAFETY: creates a descriptor.
        let own = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, least) };
        if own >= 0 {
            // SAFETY: the descriptor was created above and has no other owner.
            return Ok(unsafe { OwnedFd::from_raw_fd(own) });
        }
    }
    Err(io::Error::last_os_error())
}

/// Records the state of the process. Only the first call has an effect.
pub(super) fn begin() {
    BEGIN.get_or_init(|| {
        let own = |descriptor| Some((identity(descriptor)?, own_descriptor(descriptor).ok()?));
        let streams = STREAMS.map(|(descriptor, _)| own(descriptor));
        if let Some((_, stderr)) = &streams[2] {
            OTHER_STDERR.store(stderr.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: opens a directory.
        let here = unsafe { libc::open(c".".as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        let here = (here >= 0).then(|| {
            // SAFETY: the descriptor was created above and has no other owner.
            unsafe { OwnedFd::from_raw_fd(here) }
        });
        let here = here.and_then(|here| own_descriptor(here.as_raw_fd()).ok());
        Begin {
            limits: LIMITS.map(|(resource, _)| limit(resource)),
            streams,
            folder: folder().zip(here),
            locale: locale(),
            interrupt: Mutex::new(interrupt()),
        }
    });
}

/// Restores the state that an entry has changed.
pub(super) fn check(place: &Place) {
    let Some(begin) = BEGIN.get() else { return };
    for ((resource, name), before) in LIMITS.into_iter().zip(&begin.limits) {
        let Some(before) = before else { continue };
        let same = |now: libc::rlimit| now.rlim_cur == before.rlim_cur && now.rlim_max == before.rlim_max;
        if limit(resource).is_some_and(|now| !same(now)) {
            // SAFETY: restores a limit.
            let restored = unsafe { libc::setrlimit(resource as _, before) } == 0;
            say(place, name, restored);
        }
    }
    for ((descriptor, name), before) in STREAMS.into_iter().zip(&begin.streams) {
        let Some((before, own)) = before else { continue };
        // A closed descriptor may refer to another file by now; so may the copy.
        if identity(descriptor) != Some(*before) {
            let restored = identity(own.as_raw_fd()) == Some(*before)
                // SAFETY: restores the file of a descriptor.
                && unsafe { libc::dup2(own.as_raw_fd(), descriptor) } >= 0;
            say(place, name, restored);
        }
    }
    if let Some((before, own)) = &begin.folder
        && folder() != Some(*before)
    {
        // SAFETY: changes the working directory.
        let restored = unsafe { libc::fchdir(own.as_raw_fd()) } == 0 && folder() == Some(*before);
        say(place, "the working directory", restored);
    }
    if let Some(before) = &begin.locale
        && locale().as_ref() != Some(before)
    {
        // SAFETY: sets a locale by a name that the system returned.
        let restored = unsafe { !libc::setlocale(libc::LC_ALL, before.as_ptr()).is_null() };
        say(place, "the locale", restored);
    }
    check_interrupt(place, &begin.interrupt);
}

/// Restores the handler of Ctrl-C if a plugin has made it ignored. The host changes handlers itself, but never ignores
/// Ctrl-C.
fn check_interrupt(place: &Place, seen: &Mutex<Option<libc::sigaction>>) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(now) = interrupt() else { return };
    match &*seen {
        Some(before) if now.sa_sigaction == libc::SIG_IGN && before.sa_sigaction != libc::SIG_IGN => {
            // SAFETY: restores a handler that was installed before.
            let restored = unsafe { libc::sigaction(libc::SIGINT, before, std::ptr::null_mut()) } == 0;
            say(place, "the handling of Ctrl-C", restored);
        }
        _ => *seen = Some(now),
    }
}
