//! Guarded memory: guard bytes before and after a buffer have a known value, and are checked after a run.

use byoc_ir::tensor::OutOfMemory;

/// Number of guard bytes on each side.
const GUARD: usize = 4096;

/// Bytes of a tensor or a workspace, aligned to 64 bytes, between two guards.
pub struct GuardedBuffer {
    lines: Vec<CacheLine>,
    len: usize,
    guard_value: u8,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

impl GuardedBuffer {
    /// Creates `len` bytes of `fill` between guards of `poison`.
    ///
    /// # Errors
    /// If memory is insufficient.
    pub fn new(len: usize, fill: u8, poison: u8) -> Result<GuardedBuffer, OutOfMemory> {
        let count = len.checked_add(2 * GUARD).ok_or(OutOfMemory::OVERFLOW)?.div_ceil(64);
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| OutOfMemory { bytes: Some(len), limit: None })?;
        lines.resize(count, CacheLine([poison; 64]));
        let mut guarded_buffer = GuardedBuffer { lines, len, guard_value: poison };
        guarded_buffer.bytes_mut().fill(fill);
        Ok(guarded_buffer)
    }

    /// Creates a copy of `bytes` between guards of `poison`.
    ///
    /// # Errors
    /// If memory is insufficient.
    pub fn copy_of(bytes: &[u8], poison: u8) -> Result<GuardedBuffer, OutOfMemory> {
        let mut guarded_buffer = GuardedBuffer::new(bytes.len(), 0, poison)?;
        guarded_buffer.bytes_mut().copy_from_slice(bytes);
        Ok(guarded_buffer)
    }

    /// Returns the bytes between the guards.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer()[GUARD..GUARD + self.len]
    }

    /// Returns the bytes between the guards, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        // SAFETY: `self.lines` owns `self.lines.len() * 64` initialized bytes: `CacheLine` is `[u8; 64]` without
        // padding. The exclusive borrow of `self` lasts as long as the slice.
        let buffer =
            unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<u8>(), self.lines.len() * 64) };
        &mut buffer[GUARD..GUARD + len]
    }

    fn buffer(&self) -> &[u8] {
        // SAFETY: `self.lines` owns `self.lines.len() * 64` initialized bytes: `CacheLine` is `[u8; 64]` without
        // padding. The borrow of `self` lasts as long as the slice.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<u8>(), self.lines.len() * 64) }
    }

    /// Describes writes to the guards: the number of changed bytes, and the distance from the buffer to the nearest
    /// changed byte.
    pub fn damage(&self) -> Option<String> {
        let buffer = self.buffer();
        let (guard_before, guard_after) = (&buffer[..GUARD], &buffer[GUARD + self.len..]);
        let count_changed = |bytes: &[u8]| bytes.iter().filter(|&&b| b != self.guard_value).count();
        if let Some(index) = guard_after.iter().position(|&b| b != self.guard_value) {
            return Some(format!(
                "{} bytes written after the end, the first at offset {index} past the end",
                count_changed(guard_after)
            ));
        }
        let index_before = guard_before.iter().rposition(|&b| b != self.guard_value)?;
        Some(format!(
            "{} bytes written before the start, the last at offset -{}",
            count_changed(guard_before),
            GUARD - index_before
        ))
    }
}

/// Names the first buffer whose guards were changed during a run, and describes the writes to these guards.
pub fn first_damage(outputs: &[GuardedBuffer], workspace: &GuardedBuffer, inputs: &[GuardedBuffer]) -> Option<String> {
    let damage_of = |role: &'static str, memory: &'_ [GuardedBuffer]| -> Option<String> {
        memory.iter().enumerate().find_map(|(i, memory)| Some(format!("{role} {i}: {}", memory.damage()?)))
    };
    let workspace_damage = || Some(format!("workspace: {}", workspace.damage()?));
    damage_of("output", outputs).or_else(workspace_damage).or_else(|| damage_of("input", inputs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_writes_outside_the_bounds() {
        let mut memory = GuardedBuffer::new(10, 7, 0xff).unwrap();
        assert_eq!(memory.bytes(), [7; 10]);
        assert_eq!(memory.bytes().as_ptr() as usize % 64, 0);
        memory.bytes_mut().fill(0);
        assert_eq!(memory.damage(), None);
        let start = memory.bytes_mut().as_mut_ptr();
        // SAFETY: `memory` owns the guard after the buffer, and that guard contains `start + 12`.
        unsafe { start.add(12).write(1) };
        assert!(memory.damage().unwrap().contains("the first at offset 2 past the end"));
        // SAFETY: `memory` owns the guards around the buffer, and these guards contain `start + 12` and `start - 3`.
        unsafe {
            start.add(12).write(0xff);
            start.sub(3).write(1);
        }
        assert!(memory.damage().unwrap().contains("the last at offset -3"));
        assert_eq!(GuardedBuffer::new(0, 0, 0).unwrap().damage(), None);
    }
}
