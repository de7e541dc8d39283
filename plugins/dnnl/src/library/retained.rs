//! Primitives whose generated code the library never frees.
//!
//! oneDNN stores the kernels of convolutions with `brg` in their names in a set that lives as long as the process: up to
//! version 3.3 on x86-64, and in every version 3 on other processors. The set recognizes equal kernels, but the code of
//! an elementwise post-op contains addresses, so creating such a convolution twice stores its kernels twice, 20 to
//! 60 KiB each time.
//!
//! Such a primitive is therefore created once and kept: every plan that needs an equal one shares it. Plans for
//! dimensions that become known at run time create at most [`MAX_RETAINED`] of them in the whole process, which occupy
//! about 100 KiB each. Plans for further dimensions use the library's next implementation, whose code is freed with the
//! plan; it is about as fast.

use super::OneDnnError;
use super::handles::{ConvKey, PostOpKey, Primitive, PrimitiveDesc, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of primitives with retained code that are created for dimensions that become known at run time.
pub const MAX_RETAINED: usize = 128;

struct Entry {
    key: ConvKey,
    /// Primitive; `None` while only its place is reserved.
    primitive: Option<Arc<Primitive>>,
}

struct Pool {
    entries: Vec<Entry>,
    /// Number of entries that [`PrimitiveDesc::within_retained_limit`] has reserved.
    reserved_count: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { entries: Vec::new(), reserved_count: 0 });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn find(&mut self, key: &ConvKey) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == *key)
    }

    /// Returns true if the pool has, or can still reserve, an entry for this primitive.
    fn reserve(&mut self, key: &ConvKey) -> bool {
        if self.find(key).is_some() {
            return true;
        }
        let has_room = self.reserved_count < MAX_RETAINED;
        if has_room {
            self.reserved_count += 1;
            self.entries.push(Entry { key: key.clone(), primitive: None });
        }
        has_room
    }
}

/// Returns the number of primitives that plans for dimensions known at run time have reserved.
#[cfg(test)]
pub fn reserved_count() -> usize {
    pool().reserved_count
}

impl PrimitiveDesc {
    /// Returns this implementation, or the next one whose code is freed if the library would retain the code and
    /// [`MAX_RETAINED`] such primitives exist.
    ///
    /// # Errors
    /// If the library has no other implementation.
    pub fn within_retained_limit(mut self) -> Result<PrimitiveDesc> {
        while let Some(key) = self.retained_key()
            && !pool().reserve(key)
        {
            let is_found_in_set = key.post_ops.iter().all(|post_op| *post_op == PostOpKey::Sum);
            let has_epilogue = !key.post_ops.is_empty() || key.has_bias();
            match self.advance() {
                Err(OneDnnError::Unsupported(_)) if is_found_in_set => return Ok(self.without_retained_key()),
                outcome => outcome?,
            }
            self.check_epilogue(has_epilogue)?;
        }
        Ok(self)
    }
}

impl Primitive {
    /// Returns the primitive of an implementation: an existing one if the library retains its code, otherwise a new one.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn shared(desc: &PrimitiveDesc) -> Result<Arc<Primitive>, OneDnnError> {
        let Some(key) = desc.retained_key() else { return Ok(Arc::new(Primitive::new(desc)?)) };
        // The lock is held during the creation, so that no other thread creates an equal primitive.
        let mut pool = pool();
        if let Some(primitive) = pool.find(key).and_then(|entry| entry.primitive.clone()) {
            return Ok(primitive);
        }
        let primitive = Arc::new(Primitive::new(desc)?);
        match pool.find(key) {
            Some(entry) => entry.primitive = Some(primitive.clone()),
            None => pool.entries.push(Entry { key: key.clone(), primitive: Some(primitive.clone()) }),
        }
        Ok(primitive)
    }
}
