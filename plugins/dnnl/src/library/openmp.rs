//! OpenMP runtime: oneDNN's thread pool.
//!
//! Idle workers should spin between two primitives of a run, so that the next primitive starts immediately, and sleep
//! soon after the run. GNU OpenMP reads the number of spin iterations from the environment when it is loaded; the
//! default number takes milliseconds. So the library is loaded with an environment that sets a shorter spin time,
//! unless the user has set one.

use libloading::os::unix::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// `omp_set_num_threads`: sets the number of threads of the calling thread's parallel regions.
pub type SetThreads = unsafe extern "C" fn(c_int);

/// Time for which an idle worker spins before it sleeps: longer than the gap between two primitives. The caller spins
/// for the same time while waiting for workers. If the operating system has woken a worker on the caller's core, that
/// worker is not scheduled until the caller's spin time has passed, which delays every primitive.
const SPIN: Duration = Duration::from_micros(50);

/// Environment variables that let the user set the spin time.
const SPIN_VARIABLES: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];

unsafe extern "C" {
    // Environment of the C library: a null-terminated array of `NAME=value` strings.
    static environ: AtomicPtr<*mut c_char>;
}

/// GNU OpenMP functions that run hand-written kernels on the library's threads.
#[derive(Clone, Copy)]
pub struct Team {
    parallel: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint),
    thread_num: unsafe extern "C" fn() -> c_int,
    num_threads: unsafe extern "C" fn() -> c_int,
    max_threads: unsafe extern "C" fn() -> c_int,
}

impl Team {
    /// Looks up the GNU OpenMP functions. Returns `None` if the library uses another OpenMP implementation.
    pub fn of(library: &Library) -> Option<Team> {
        // SAFETY: GNU OpenMP and compatible libraries define the functions with these signatures.
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
        // SAFETY: `omp_get_max_threads` has no preconditions.
        unsafe { (self.max_threads)() }.max(1) as usize
    }

    /// Calls `body(thread, threads)` on every thread of the team.
    pub fn run(&self, body: &(dyn Fn(usize, usize) + Sync)) {
        struct Task<'a> {
            team: Team,
            body: &'a (dyn Fn(usize, usize) + Sync),
        }
        unsafe extern "C" fn thread_body(task: *mut c_void) {
            // SAFETY: `run` passes a pointer to its `Task`, which outlives the parallel region.
            let task = unsafe { &*task.cast::<Task<'_>>() };
            // SAFETY: neither function has preconditions.
            let (thread, threads) = unsafe { ((task.team.thread_num)(), (task.team.num_threads)()) };
            (task.body)(thread.max(0) as usize, threads.max(1) as usize);
        }
        let mut task = Task { team: *self, body };
        // SAFETY: `GOMP_parallel` returns after every thread has finished, so `task` outlives its uses. 0 selects the
        // calling thread's number of threads.
        unsafe { (self.parallel)(thread_body, (&raw mut task).cast(), 0, 0) };
    }
}

/// Looks up `omp_set_num_threads` in the OpenMP library on which `library` depends.
pub fn set_threads(library: &Library) -> Option<SetThreads> {
    // SAFETY: every OpenMP library defines the function with this signature. The lookup includes the library's
    // dependencies.
    unsafe { library.get::<SetThreads>(b"omp_set_num_threads") }.ok().map(|function| *function)
}

/// Calls `open_library` with an environment in which workers spin for [`SPIN`].
pub fn with_short_spin<T>(open_library: impl FnOnce() -> T) -> T {
    if SPIN_VARIABLES.iter().any(|name| std::env::var_os(name).is_some()) {
        return open_library();
    }
    let Ok(entry) = CString::new(format!("GOMP_SPINCOUNT={}", spin_count())) else { return open_library() };
    // SAFETY: the C library defines `environ` as a pointer, which has the layout of `AtomicPtr`.
    let environment = unsafe { &environ };
    let original = environment.load(Ordering::Acquire);
    let mut extended_environment = vec![entry.into_raw()];
    let mut entry_pointer = original;
    // SAFETY: the C library ends the array with a null pointer; a null array is empty.
    while !entry_pointer.is_null() && unsafe { !(*entry_pointer).is_null() } {
        // SAFETY: the loop condition ensures that `entry_pointer` points to an entry.
        extended_environment.push(unsafe { *entry_pointer });
        // SAFETY: the loop condition ensures that the current entry is not the terminator.
        entry_pointer = unsafe { entry_pointer.add(1) };
    }
    extended_environment.push(std::ptr::null_mut());
    // Both arrays stay allocated and unchanged, so a thread that reads the environment concurrently sees a valid array.
    environment.store(Box::leak(extended_environment.into_boxed_slice()).as_mut_ptr(), Ordering::Release);
    let result = open_library();
    environment.store(original, Ordering::Release);
    result
}

/// Measures the number of spin iterations that take [`SPIN`] on this machine.
fn spin_count() -> u64 {
    const ITERATIONS: u32 = 2000;
    let best_time = (0..5).map(|_| {
        let start = Instant::now();
        (0..ITERATIONS).for_each(|_| spin_loop());
        start.elapsed()
    });
    let iteration =
        best_time.min().unwrap_or_default().max(Duration::from_nanos(1)).as_nanos() as f64 / f64::from(ITERATIONS);
    (SPIN.as_nanos() as f64 / iteration).clamp(100.0, 300_000.0) as u64
}
