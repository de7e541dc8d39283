//! What is made for given dimensions and kept: at most so many entries and so many bytes, the least recently used go first.

use byoc_core::tensor::Shape;
use std::collections::HashMap;
use std::hash::Hash;

/// Values by key, within limits.
pub(super) struct Kept<K, V> {
    entries: HashMap<K, Entry<V>>,
    max_entries: usize,
    max_bytes: usize,
    /// Their sum, which 64 bits need not hold.
    bytes: u128,
    clock: u64,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    /// When it was last asked for.
    used: u64,
}

/// The key of what depends on the dimensions of several tensors alone.
pub(super) type Dims = Vec<Shape>;

impl<K: Eq + Hash + Clone, V: Clone> Kept<K, V> {
    /// Keeps nothing yet. The newest entry is kept whatever its size.
    pub fn new(max_entries: usize, max_bytes: usize) -> Kept<K, V> {
        Kept { entries: HashMap::new(), max_entries: max_entries.max(1), max_bytes, bytes: 0, clock: 0 }
    }

    /// Returns what is kept for a key, which is now the most recently used.
    pub fn get(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.value.clone())
    }

    /// Keeps a value, and returns what has to go for it. Dropping that may call a plugin: unlock first.
    #[must_use]
    pub fn insert(&mut self, key: K, value: V, bytes: usize) -> Vec<V> {
        self.clock += 1;
        let entry = Entry { value, bytes, used: self.clock };
        self.bytes += bytes as u128;
        let mut gone = Vec::new();
        if let Some(before) = self.entries.insert(key.clone(), entry) {
            self.bytes -= before.bytes as u128;
            gone.push(before.value);
        }
        while self.entries.len() > self.max_entries || (self.bytes > self.max_bytes as u128 && self.entries.len() > 1) {
            // Limits are small, and a new entry costs far more than looking through all of them. No two entries were used at
            // the same time, so the order of the map does not matter.
            let Some(oldest) = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone())
            else {
                break;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes as u128;
                gone.push(entry.value);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut kept = Kept::new(2, usize::MAX);
        assert!(kept.insert("a", 1, 0).is_empty());
        assert!(kept.insert("b", 2, 0).is_empty());
        assert_eq!(kept.get(&"a"), Some(1));
        assert_eq!(kept.insert("c", 3, 0), [2]);
        assert_eq!((kept.get(&"a"), kept.get(&"b"), kept.get(&"c")), (Some(1), None, Some(3)));
    }

    #[test]
    fn bytes_are_limited_and_the_newest_stays() {
        let mut kept = Kept::new(64, 100);
        assert!(kept.insert("a", 1, 40).is_empty());
        assert!(kept.insert("b", 2, 60).is_empty());
        assert_eq!(kept.insert("c", 3, 1), [1]);
        assert_eq!(kept.insert("d", 4, 1000), [2, 3]);
        assert_eq!(kept.get(&"d"), Some(4));
        assert_eq!(kept.insert("e", 5, usize::MAX), [4]);
    }

    #[test]
    fn a_key_that_comes_again_is_counted_once() {
        let mut kept = Kept::new(2, 100);
        assert!(kept.insert("a", 1, 60).is_empty());
        assert_eq!(kept.insert("a", 2, 60), [1]);
        assert!(kept.insert("b", 3, 40).is_empty());
    }
}
