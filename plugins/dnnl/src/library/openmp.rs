//! OpenMP, the thread pool of oneDNN.
//!
//! Idle workers should spin between two primitives of a run, so that the next primitive starts at once, and sleep soon
//! after the run. GNU OpenMP reads the number of spin iterations from the environment when it is loaded, and the
//! default amounts to milliseconds. So the library is loaded with an environment that sets a shorter spin time, unless
//! the user has set one.

use libloading::os::unix::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// `omp_set_num_threads`: sets the number of threads of the calling thread's parallel regions.
pub type SetThreads = unsafe extern "C" fn(c_int);

/// Time for which an idle worker spins before it sleeps: longer than the gap between two primitives. The caller spins
/// for the same time while waiting for workers. If the system has woken a worker on the caller's core, that worker is
/// not scheduled until the caller's spin time has passed, which delays every primitive.
const SPIN: Duration = Duration::from_micros(50);

/// Environment variables with which a user sets the spin time.
const SPIN_VARIABLES: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];

unsafe extern "C" {
    // Environment of the C library: a null-terminated array of strings `NAME=value`.
    static environ: AtomicPtr<*mut c_char>;
}

/// Functions of GNU OpenMP that run hand-written kernels on the library's threads.
#[derive(Clone, Copy)]
pub struct Team {
    parallel: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint),
    thread_num: unsafe extern "C" fn() -> c_int,
    num_threads: unsafe extern "C" fn() -> c_int,
    max_threads: unsafe extern "C" fn() -> c_int,
}

impl Team {
    /// Looks up the functions of GNU OpenMP. Returns `None` if the library uses another implementation of OpenMP.
    pub fn of(library: &Library) -> Option<Team> {
        // SAFETY: in GNU OpenMP and compatible libraries the functions have these signatures.
        unsafe {
            Some(Team {
                parallel: *library.get(b"GOMP_parallel").ok()?,
                thread_num: *library.get(b"omp_get_thread_num").ok()?,
                num_threads: *library.get(b"omp_get_num_threads").ok()?,
                max_threads: *library.get(b"omp_get_max_threads").ok()?,
            })
        }
    }

    /// Returns the number of threads in a team of the calling thread.
    pub fn size(&self) -> usize {
        // SAFETY: the function has no arguments.
        unsafe { (self.max_threads)() }.max(1) as usize
    }

    /// Calls `body(thread, threads)` on every thread of the team.
    pub fn run(&self, body: &(dyn Fn(usize, usize) + Sync)) {
        struct Task<'a> {
            team: Team,
            body: &'a (dyn Fn(usize, usize) + Sync),
        }
        unsafe extern "C" fn enter(task: *mut c_void) {
            // SAFETY: the pointer is to the `Task` below, which outlives the team's run.
            let task = unsafe { &*task.cast::<Task<'_>>() };
            // SAFETY: the functions have no arguments, and this is a thread of the team.
            let (thread, threads) = unsafe { ((task.team.thread_num)(), (task.team.num_threads)()) };
            (task.body)(thread.max(0) as usize, threads.max(1) as usize);
        }
        let mut task = Task { team: *self, body };
        // SAFETY: the team has finished when the function returns. 0 selects the calling thread's number of threads.
        unsafe { (self.parallel)(enter, (&raw mut task).cast(), 0, 0) };
    }
}

/// Looks up `omp_set_num_threads` in the OpenMP library on which `library` depends.
pub fn set_threads(library: &Library) -> Option<SetThreads> {
    // SAFETY: the function has this signature in every OpenMP library. The lookup includes the library's dependencies.
    unsafe { library.get::<SetThreads>(b"omp_set_num_threads") }.ok().map(|function| *function)
}

/// Calls `open` with an environment in which workers spin for [`SPIN`].
pub fn with_short_spin<T>(open: impl FnOnce() -> T) -> T {
    if SPIN_VARIABLES.iter().any(|name| std::env::var_os(name).is_some()) {
        return open();
    }
    let Ok(entry) = CString::new(format!("GOMP_SPINCOUNT={}", spin_count())) else { return open() };
    // SAFETY: the C library defines the variable.
    let environment = unsafe { &environ };
    let before = environment.load(Ordering::Acquire);
    let mut with = vec![entry.into_raw()];
    let mut at = before;
    // SAFETY: the array ends with a null pointer; a null array is an empty one.
    while !at.is_null() && unsafe { !(*at).is_null() } {
        // SAFETY: as above.
        with.push(unsafe { *at });
        // SAFETY: the current entry is not the terminator.
        at = unsafe { at.add(1) };
    }
    with.push(std::ptr::null_mut());
    // Both arrays stay allocated and unchanged, so another thread that reads the environment meanwhile sees a valid
    // array in either case.
    environment.store(Box::leak(with.into_boxed_slice()).as_mut_ptr(), Ordering::Release);
    let opened = open();
    environment.store(before, Ordering::Release);
    opened
}

/// Measures the number of spin iterations that take [`SPIN`] on this machine.
fn spin_count() -> u64 {
    const ITERATIONS: u32 = 2000;
    let best = (0..5).map(|_| {
        let start = Instant::now();
        (0..ITERATIONS).for_each(|_| spin_loop());
        start.elapsed()
    });
    let iteration =
        best.min().unwrap_or_default().max(Duration::from_nanos(1)).as_nanos() as f64 / f64::from(ITERATIONS);
    (SPIN.as_nanos() as f64 / iteration).clamp(100.0, 300_000.0) as u64
}
