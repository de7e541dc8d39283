//! The host's threads: one rayon pool of a fixed size that runs kernels and serves the `parallel_for` calls of plugins.
//! Rayon's global pool is never used: it belongs to the application that embeds this library.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_kernels::split;
use byoc_plugin_api::host::entries;
use rayon::prelude::*;
use std::cell::Cell;
use std::collections::TryReserveError;

/// Thread pool of a fixed size.
pub struct Pool {
    pool: rayon::ThreadPool,
    threads: usize,
}

thread_local! {
    /// True while this thread runs a body of `parallel_for`.
    static IS_NESTED: Cell<bool> = const { Cell::new(false) };
}

/// Size of a thread's stack in bytes.
const STACK_BYTES: usize = 2 << 20;
/// Size of a thread's guard page and bookkeeping data in bytes.
const THREAD_BYTES: usize = 64 << 10;

/// Checks that the stacks of all threads fit into the address space together. Without this check, the threads that do
/// start would exhaust the address space, and the next small allocation would abort the process.
fn check_address_space(threads: usize) -> Result<(), TryReserveError> {
    let mut stacks = Vec::<u8>::new();
    stacks.try_reserve_exact(threads.saturating_mul(STACK_BYTES + THREAD_BYTES))?;
    std::hint::black_box(&stacks);
    Ok(())
}

impl Pool {
    /// Creates a pool of `threads` threads; 0 stands for the number of processors.
    ///
    /// # Errors
    /// If the system cannot start the threads.
    pub fn new(threads: usize) -> Result<Pool, Diagnostic> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let start_error = |reason: &dyn std::fmt::Display| {
            Diagnostic::error(codes::runtime::NO_THREADS, format!("cannot start {threads} threads: {reason}"))
        };
        check_address_space(threads).map_err(|e| start_error(&e))?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(STACK_BYTES)
            .thread_name(|i| format!("byoc-{i}"))
            .start_handler(|_| entries::prepare_thread())
            .build()
            .map_err(|e| start_error(&e))?;
        Ok(Pool { pool, threads })
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `body` on a thread of the pool, so that rayon splits its work within this pool. `body` runs inline if the
    /// calling thread belongs to the pool, or runs [its kernels itself](split::inline).
    pub fn install<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        if split::is_inline() { body() } else { self.pool.install(body) }
    }

    /// Runs `body` like [`install`](Pool::install), or on the calling thread alone if its work `is_small`.
    pub fn install_unless<R: Send>(&self, is_small: bool, body: impl FnOnce() -> R + Send) -> R {
        if is_small { split::inline(body) } else { self.install(body) }
    }

    /// Starts `body` on a thread of the pool, and returns immediately.
    pub fn spawn(&self, body: impl FnOnce() + Send + 'static) {
        self.pool.spawn(body);
    }

    /// Runs `body(i)` for every `i` below `n`, and returns after the last call has ended. The calls run inline and in
    /// order if there is one thread or one index, or inside another `parallel_for`.
    ///
    /// # Panics
    /// If `body` panics.
    pub fn parallel_for(&self, n: usize, body: &(dyn Fn(usize) + Sync)) {
        if self.threads == 1 || n <= 1 || IS_NESTED.get() {
            (0..n).for_each(body);
            return;
        }
        split::record_split();
        self.pool.install(|| {
            (0..n).into_par_iter().with_max_len(1).for_each(|i| {
                let _guard = Nested::enter();
                body(i);
            });
        });
    }
}

/// Sets `IS_NESTED` while a body runs, and restores it even if the body panics.
struct Nested(bool);

impl Nested {
    fn enter() -> Nested {
        Nested(IS_NESTED.replace(true))
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        IS_NESTED.set(self.0);
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn runs_every_index_once_for_any_thread_count() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            let hit_counts: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            pool.parallel_for(hit_counts.len(), &|i| {
                hit_counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hit_counts.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn small_work_stays_on_the_calling_thread() {
        let pool = Pool::new(2).unwrap();
        let caller = std::thread::current().id();
        let run =
            |is_small| pool.install_unless(is_small, || (std::thread::current().id() == caller, split::is_inline()));
        assert_eq!(run(true), (true, true));
        assert_eq!(run(false), (false, false));
    }

    #[test]
    fn runs_nested_calls_inline() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        pool.parallel_for(8, &|_| {
            let thread = std::thread::current().id();
            pool.parallel_for(8, &|j| {
                assert_eq!(std::thread::current().id(), thread);
                sum.fetch_add(j, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 8 * 28);
    }

    #[test]
    fn propagates_panic_of_body_and_survives() {
        let pool = Pool::new(2).unwrap();
        let body = || pool.parallel_for(10, &|i| assert!(i != 5, "deliberate panic in task 5"));
        let panic_result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        assert!(panic_result.is_err());
        pool.parallel_for(2, &|_| assert!(IS_NESTED.get()));
        assert!(!IS_NESTED.get());
    }
}
