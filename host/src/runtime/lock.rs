//! Locking of what a panic leaves whole.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even one that a panicking thread held.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
