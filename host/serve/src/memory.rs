//! Memory of requests and responses, charged to the memory limit of the process.

use crate::error::{Result, ServeError};
use byoc_ir::tensor::memory::{Charge, OutOfMemory};
use bytes::Bytes;

/// Adds `bytes` that a request or its response takes to `charge`.
///
/// # Errors
/// If the memory limit is exhausted.
pub fn grow(charge: &mut Charge, bytes: usize) -> Result<()> {
    charge.grow(bytes).map_err(out_of_memory)
}

/// Sets the bytes that `charge` counts for a request or its response.
///
/// # Errors
/// If the memory limit is exhausted.
pub fn resize(charge: &mut Charge, bytes: usize) -> Result<()> {
    charge.resize(bytes).map_err(out_of_memory)
}

/// Adds the bytes of a response to `charge`. Small responses, such as those of health checks, are sent in any case.
///
/// # Errors
/// If the memory limit is exhausted, and the response is large.
pub fn grow_for_response(charge: &mut Charge, bytes: usize) -> Result<()> {
    const SMALL: usize = 4 << 10;
    if bytes > SMALL {
        return grow(charge, bytes);
    }
    charge.merge(Charge::beyond_limit(bytes));
    Ok(())
}

fn out_of_memory(error: OutOfMemory) -> ServeError {
    let advice = "retry later, send less, or raise --max-memory";
    ServeError::overloaded(format!("not enough memory for the request; {advice}: {error}"))
}

/// Bytes of a response that are charged to the memory limit until they are sent.
pub struct ChargedBytes {
    bytes: Bytes,
    _charge: Charge,
}

impl ChargedBytes {
    /// Returns `bytes`, which keep `charge` until they are dropped.
    pub fn of(bytes: impl Into<Bytes>, charge: Charge) -> Bytes {
        Bytes::from_owner(ChargedBytes { bytes: bytes.into(), _charge: charge })
    }

    /// Returns the bytes of a response, which are charged until they are dropped.
    ///
    /// # Errors
    /// If the memory limit is exhausted, and the response is large.
    pub fn charge(bytes: impl Into<Bytes>) -> Result<Bytes> {
        let (bytes, mut charge) = (bytes.into(), Charge::default());
        grow_for_response(&mut charge, bytes.len())?;
        Ok(ChargedBytes::of(bytes, charge))
    }
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::tensor::memory;

    #[test]
    fn a_response_is_charged_until_its_last_part_is_sent() {
        let size = 1 << 32;
        // The charge alone, without the bytes.
        let response = ChargedBytes::of("part", Charge::new(size).unwrap());
        let last_part = response.slice(2..);
        drop(response);
        assert!(memory::used() >= size);
        drop(last_part);
        assert!(memory::used() < size);
    }
}
