//! Cache of objects that depend on dimensions, bounded in entries and bytes; evicts the least recently used first.

use byoc_ir::tensor::Shape;
use std::collections::HashMap;
use std::hash::Hash;

/// Bounded cache with eviction of the least recently used entry.
pub(super) struct LruCache<K, V> {
    entries: HashMap<K, Entry<V>>,
    max_entries: usize,
    max_bytes: usize,
    /// Total size of all entries in bytes, which may exceed 64 bits.
    bytes: u128,
    clock: u64,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    /// Value of `clock` at the last access.
    last_use: u64,
}

/// Cache key of objects that depend only on the dimensions of several tensors.
pub(super) type Dims = Vec<Shape>;

impl<K: Eq + Hash + Clone, V: Clone> LruCache<K, V> {
    /// Creates an empty cache. The newest entry is retained even if it exceeds `max_bytes` by itself.
    pub fn new(max_entries: usize, max_bytes: usize) -> LruCache<K, V> {
        LruCache { entries: HashMap::new(), max_entries: max_entries.max(1), max_bytes, bytes: 0, clock: 0 }
    }

    /// Returns the value for a key, and marks it as the most recently used.
    pub fn get(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        entry.last_use = self.clock;
        Some(entry.value.clone())
    }

    /// Removes all values and returns them. Dropping a value may call a plugin, so the caller must release its lock
    /// first.
    #[must_use]
    pub fn clear(&mut self) -> Vec<V> {
        self.bytes = 0;
        self.entries.drain().map(|(_, entry)| entry.value).collect()
    }

    /// Inserts a value and returns the evicted values. Dropping an evicted value may call a plugin, so the caller must
    /// release its lock first.
    #[must_use]
    pub fn insert(&mut self, key: K, value: V, bytes: usize) -> Vec<V> {
        self.clock += 1;
        let entry = Entry { value, bytes, last_use: self.clock };
        self.bytes += bytes as u128;
        let mut evicted_entries = Vec::new();
        if let Some(previous) = self.entries.insert(key.clone(), entry) {
            self.bytes -= previous.bytes as u128;
            evicted_entries.push(previous.value);
        }
        while self.entries.len() > self.max_entries || (self.bytes > self.max_bytes as u128 && self.entries.len() > 1) {
            // A linear search suffices: the number of entries is small, and creating an entry costs far more than the
            // search. No two entries have the same `last_use`, so the order of the map does not matter.
            let Some(oldest) = self.entries.iter().min_by_key(|(_, entry)| entry.last_use).map(|(key, _)| key.clone())
            else {
                break;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes as u128;
                evicted_entries.push(entry.value);
            }
        }
        evicted_entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_least_recently_used() {
        let mut cache = LruCache::new(2, usize::MAX);
        assert!(cache.insert("a", 1, 0).is_empty());
        assert!(cache.insert("b", 2, 0).is_empty());
        assert_eq!(cache.get(&"a"), Some(1));
        assert_eq!(cache.insert("c", 3, 0), [2]);
        assert_eq!((cache.get(&"a"), cache.get(&"b"), cache.get(&"c")), (Some(1), None, Some(3)));
        let mut removed_entries = cache.clear();
        removed_entries.sort_unstable();
        assert_eq!((removed_entries, cache.get(&"a")), (vec![1, 3], None));
    }

    #[test]
    fn limits_bytes_but_keeps_newest() {
        let mut cache = LruCache::new(64, 100);
        assert!(cache.insert("a", 1, 40).is_empty());
        assert!(cache.insert("b", 2, 60).is_empty());
        assert_eq!(cache.insert("c", 3, 1), [1]);
        assert_eq!(cache.insert("d", 4, 1000), [2, 3]);
        assert_eq!(cache.get(&"d"), Some(4));
        assert_eq!(cache.insert("e", 5, usize::MAX), [4]);
    }

    #[test]
    fn counts_replaced_key_once() {
        let mut cache = LruCache::new(2, 100);
        assert!(cache.insert("a", 1, 60).is_empty());
        assert_eq!(cache.insert("a", 2, 60), [1]);
        assert!(cache.insert("b", 3, 40).is_empty());
    }
}
