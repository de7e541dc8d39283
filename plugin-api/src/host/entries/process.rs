//! What belongs to the process and not to a plugin: its working directory, limits, locale, standard streams, and how it takes
//! Ctrl-C. After each entry it is compared with what it was when [`begin`] was called, put back, and said once.

use super::line::OTHER_STDERR;
use super::place::Place;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Something that a plugin changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Entry under way, or the last one before the change was noticed.
    pub place: Place,
    /// Thing that changed, such as "the working directory".
    pub what: &'static str,
    /// True if the change was undone.
    pub restored: bool,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.restored { "it is put back" } else { "it cannot be put back" };
        write!(f, "{}: changed {}; {end}", self.place, self.what)
    }
}

static REPORT: OnceLock<fn(&Change)> = OnceLock::new();

/// Has changes said by `report` from now on, instead of as warnings in the log. The first call counts.
pub fn on_change(report: fn(&Change)) {
    let _ = REPORT.set(report);
}

/// Changes that could not be undone, each reported once and not for every plugin after it.
static LOST: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Says a change, once for each plugin and entry.
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

/// The floating-point environment was found changed, and is as it was.
#[cold]
pub(super) fn float_changed(place: &Place) {
    say(place, "the floating-point environment (rounding, subnormals or exceptions)", true);
}

/// A file, by what tells it from others.
pub(super) type Identity = (libc::dev_t, libc::ino_t, libc::mode_t);

/// The limits that a plugin could lower so that the host fails later. (C libraries disagree about the type of their names.)
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
    // SAFETY: the structure is filled where the call succeeds.
    unsafe { (libc::getrlimit(resource as _, limit.as_mut_ptr()) == 0).then(|| limit.assume_init()) }
}

fn identity_of(status: &libc::stat) -> Identity {
    (status.st_dev, status.st_ino, status.st_mode & libc::S_IFMT)
}

/// Returns the file behind a descriptor; `None` if it is not open.
pub(super) fn identity(descriptor: RawFd) -> Option<Identity> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: the structure is filled where the call succeeds.
    unsafe { (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| identity_of(&status.assume_init())) }
}

fn folder() -> Option<Identity> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: as above; the path is a C string.
    unsafe { (libc::stat(c".".as_ptr(), status.as_mut_ptr()) == 0).then(|| identity_of(&status.assume_init())) }
}

fn locale() -> Option<CString> {
    // SAFETY: asks and changes nothing. What it points at is valid until somebody sets another.
    let name = unsafe { libc::setlocale(libc::LC_ALL, std::ptr::null()) };
    // SAFETY: null, or a C string.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
}

pub(super) fn interrupt() -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: asks and changes nothing; the structure is filled where the call succeeds.
    unsafe { (libc::sigaction(libc::SIGINT, std::ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}

/// A descriptor of the host's own for the same file, with a number that whoever closes "all" of them hardly reaches.
pub(super) fn own_descriptor(descriptor: RawFd) -> io::Result<OwnedFd> {
    for least in [800, 100, 3] {
        // SAFETY: makes a descriptor.
        let own = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, least) };
        if own >= 0 {
            // SAFETY: it was made by the line above, and nobody else has it.
            return Ok(unsafe { OwnedFd::from_raw_fd(own) });
        }
    }
    Err(io::Error::last_os_error())
}

/// Takes down how the process is. The first call counts.
pub(super) fn begin() {
    BEGIN.get_or_init(|| {
        let own = |descriptor| Some((identity(descriptor)?, own_descriptor(descriptor).ok()?));
        let streams = STREAMS.map(|(descriptor, _)| own(descriptor));
        if let Some((_, stderr)) = &streams[2] {
            OTHER_STDERR.store(stderr.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: opens a folder.
        let here = unsafe { libc::open(c".".as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        let here = (here >= 0).then(|| {
            // SAFETY: it was made by the line above, and nobody else has it.
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

/// Puts back what an entry has changed.
pub(super) fn check(place: &Place) {
    let Some(begin) = BEGIN.get() else { return };
    for ((resource, name), before) in LIMITS.into_iter().zip(&begin.limits) {
        let Some(before) = before else { continue };
        let same = |now: libc::rlimit| now.rlim_cur == before.rlim_cur && now.rlim_max == before.rlim_max;
        if limit(resource).is_some_and(|now| !same(now)) {
            // SAFETY: sets a limit to what it was.
            let restored = unsafe { libc::setrlimit(resource as _, before) } == 0;
            say(place, name, restored);
        }
    }
    for ((descriptor, name), before) in STREAMS.into_iter().zip(&begin.streams) {
        let Some((before, own)) = before else { continue };
        // What was closed may be another file by now; so may the copy.
        if identity(descriptor) != Some(*before) {
            let restored = identity(own.as_raw_fd()) == Some(*before)
                // SAFETY: makes a descriptor refer to what it referred to.
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
        // SAFETY: sets a locale by the name that the system gave for it.
        let restored = unsafe { !libc::setlocale(libc::LC_ALL, before.as_ptr()).is_null() };
        say(place, "the locale", restored);
    }
    check_interrupt(place, &begin.interrupt);
}

/// Ctrl-C that is ignored from now on is not. Handlers come and go by the host's own doing; that it is ignored does not.
fn check_interrupt(place: &Place, seen: &Mutex<Option<libc::sigaction>>) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(now) = interrupt() else { return };
    match &*seen {
        Some(before) if now.sa_sigaction == libc::SIG_IGN && before.sa_sigaction != libc::SIG_IGN => {
            // SAFETY: sets a handler that was set before.
            let restored = unsafe { libc::sigaction(libc::SIGINT, before, std::ptr::null_mut()) } == 0;
            say(place, "how Ctrl-C is taken", restored);
        }
        _ => *seen = Some(now),
    }
}
