//! Rounds of pieces: the rounds follow each other, the pieces of a round are computed by the calling thread and by
//! those threads of the pool that are free. Nobody waits for a thread that has not come: the calling thread takes the
//! pieces from the front, the others take them from the back as long as there are any. So a thread reads the same pieces
//! of a matrix in every round, and finds them in its cache.

use super::split;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Operations on elements in a round for which another thread pays off. It is woken once for all rounds.
const WORK_PER_THREAD: usize = 8_000;

/// Pieces of the current round.
struct Board {
    pieces: usize,
    /// Number of the round, and how many pieces were taken from the front and from the back: 32, 16 and 16 bits.
    taken: AtomicU64,
    finished: AtomicUsize,
    has_ended: AtomicBool,
}

impl Board {
    /// Takes a piece, if there is one. Returns the round and the piece.
    fn take(&self, from_front: bool) -> Option<(usize, usize)> {
        let mut taken = self.taken.load(Ordering::Acquire);
        loop {
            let [front, back] = [taken >> 16, taken].map(|count| (count & 0xffff) as usize);
            if front + back >= self.pieces {
                return None;
            }
            let (next, piece) =
                if from_front { (taken + (1 << 16), front) } else { (taken + 1, self.pieces - 1 - back) };
            match self.taken.compare_exchange_weak(taken, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(((taken >> 32) as usize, piece)),
                Err(found) => taken = found,
            }
        }
    }

    /// Computes pieces as long as there are any.
    fn work(&self, from_front: bool, piece: &(dyn Fn(usize, usize) + Sync)) -> bool {
        /// Counts a piece as finished, even after a panic.
        struct Finish<'a>(&'a AtomicUsize);
        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Release);
            }
        }
        let mut has_worked = false;
        while let Some((round, i)) = self.take(from_front) {
            let _finish = Finish(&self.finished);
            piece(round, i);
            has_worked = true;
        }
        has_worked
    }
}

/// Tells the other threads that there is no further round, even after a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits actively; the processor is handed on after a while.
struct Patience(u32);

impl Patience {
    fn wait(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(1 << 12) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// For every round, calls `before(round)` on the calling thread and then `piece(round, i)` for every i below `pieces` on
/// any thread, `work` operations on elements in all. A round ends with its last piece; no further one begins once
/// `before` returns false.
pub(super) fn for_each_round(
    rounds: usize,
    pieces: usize,
    work: usize,
    mut before: impl FnMut(usize) -> bool + Send,
    piece: impl Fn(usize, usize) + Sync,
) {
    let helpers = (work / WORK_PER_THREAD).min(split::available_threads() - 1).min(pieces.saturating_sub(1));
    if helpers == 0 || pieces >= 1 << 16 {
        // Every second round begins with the pieces that the last one ended with, which are in the cache.
        for round in 0..rounds {
            if !before(round) {
                return;
            }
            (0..pieces).for_each(|i| piece(round, if round % 2 == 0 { i } else { pieces - 1 - i }));
        }
        return;
    }
    let board = Board {
        pieces,
        taken: AtomicU64::new((pieces as u64) << 16),
        finished: AtomicUsize::new(0),
        has_ended: AtomicBool::new(false),
    };
    let lead = || {
        let _end = End(&board.has_ended);
        for round in 0..rounds {
            if !before(round) {
                return;
            }
            board.finished.store(0, Ordering::Relaxed);
            board.taken.store((round as u64) << 32, Ordering::Release);
            board.work(true, &piece);
            let mut patience = Patience(0);
            while board.finished.load(Ordering::Acquire) < pieces {
                patience.wait();
            }
        }
    };
    let help = |_| {
        let mut patience = Patience(0);
        while !board.has_ended.load(Ordering::Acquire) {
            if board.work(false, &piece) {
                patience = Patience(0);
            }
            patience.wait();
        }
    };
    split::lead(lead, helpers, help);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Every piece is computed once in every round, after the round's beginning and before the next.
    #[test]
    fn rounds_follow_each_other() {
        for (threads, pieces) in [(1, 5), (2, 1), (2, 7), (4, 64)] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let log: Vec<Mutex<Vec<usize>>> = (0..pieces).map(|_| Mutex::new(Vec::new())).collect();
            let rounds = 200;
            pool.install(|| {
                for_each_round(
                    rounds,
                    pieces,
                    1 << 20,
                    |round| {
                        assert!(log.iter().all(|log| log.lock().unwrap().len() == round));
                        true
                    },
                    |round, i| log[i].lock().unwrap().push(round),
                );
            });
            for log in log {
                assert_eq!(log.into_inner().unwrap(), (0..rounds).collect::<Vec<_>>());
            }
        }
    }

    /// A round that does not begin is the last, and a panic in a piece reaches the caller.
    #[test]
    fn rounds_end_early() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let count = AtomicUsize::new(0);
        let run = |piece: &(dyn Fn(usize, usize) + Sync)| {
            pool.install(|| for_each_round(100, 8, 1 << 20, |round| round < 3, piece));
        };
        run(&|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 24);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&|round, i| assert!((round, i) != (1, 7), "piece 7"));
        }));
        assert!(panics.is_err());
    }
}
