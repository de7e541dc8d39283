//! Floating-point environment of a thread: rounding, flushing of subnormals, trapping of exceptions. The environment
//! belongs to the caller: a plugin that changes it and does not restore it would affect every later result on the
//! thread.

/// Snapshot of the floating-point environment, packed into 64 bits for a slot of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FloatState(pub(super) u64);

/// MXCSR, with the x87 control word in the upper half.
#[cfg(target_arch = "x86_64")]
impl FloatState {
    /// Mask of the control bits: all bits except the sticky exception flags of MXCSR.
    const CONTROL: u64 = !0x3f;

    /// Reads the environment. Takes a few nanoseconds, because reading MXCSR waits for all earlier computations.
    #[inline(always)]
    pub(crate) fn read() -> FloatState {
        let (mut mxcsr, mut control_word) = (0u32, 0u16);
        // SAFETY: the instructions store only to the two variables.
        unsafe {
            std::arch::asm!(
                "stmxcsr [{mxcsr}]",
                "fnstcw [{control_word}]",
                mxcsr = in(reg) &raw mut mxcsr,
                control_word = in(reg) &raw mut control_word,
                options(nostack, preserves_flags),
            );
        }
        FloatState(u64::from(mxcsr) | u64::from(control_word) << 32)
    }

    /// Returns true if the environment has changed since this snapshot.
    #[inline(always)]
    pub(crate) fn has_changed(self) -> bool {
        (FloatState::read().0 ^ self.0) & Self::CONTROL != 0
    }

    /// Restores the snapshot, and returns true if the environment had changed.
    pub(crate) fn restore(self) -> bool {
        let has_changed = self.has_changed();
        if has_changed {
            self.set();
        }
        has_changed
    }

    #[cold]
    fn set(self) {
        let (mxcsr, control_word) = (self.0 as u32, (self.0 >> 32) as u16);
        // SAFETY: both values were read from these registers. The exception flags of the x87 unit are cleared first: an
        // exception that is unmasked now would be raised by the next x87 instruction.
        unsafe {
            std::arch::asm!(
                "fnclex",
                "fldcw [{control_word}]",
                "ldmxcsr [{mxcsr}]",
                mxcsr = in(reg) &raw const mxcsr,
                control_word = in(reg) &raw const control_word,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl FloatState {
    /// Reads the environment.
    #[inline(always)]
    pub(crate) fn read() -> FloatState {
        let fpcr;
        // SAFETY: reading FPCR has no side effects.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        FloatState(fpcr)
    }

    /// Returns true if the environment has changed since this snapshot.
    #[inline(always)]
    pub(crate) fn has_changed(self) -> bool {
        FloatState::read() != self
    }

    /// Restores the snapshot, and returns true if the environment had changed.
    pub(crate) fn restore(self) -> bool {
        if !self.has_changed() {
            return false;
        }
        // SAFETY: the value was read from this register.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) self.0, options(nomem, nostack, preserves_flags)) };
        true
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloatState {
    /// Returns an empty snapshot: unsupported on this processor.
    pub(crate) fn read() -> FloatState {
        FloatState(0)
    }

    /// Returns false: unsupported on this processor.
    pub(crate) fn has_changed(self) -> bool {
        false
    }

    /// Does nothing: unsupported on this processor.
    pub(crate) fn restore(self) -> bool {
        false
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn restores_changed_control_bits() {
        let initial_state = FloatState::read();
        assert!(!initial_state.has_changed() && !initial_state.restore());
        let default_state = (0x1f80u64, 0x037fu64);
        let changes = [
            (default_state.0 | 0x2000, default_state.1),
            (default_state.0 | 0x4000, default_state.1),
            (default_state.0 | 0x6000, default_state.1),
            (default_state.0 | 0x8000, default_state.1),
            (default_state.0 | 0x0040, default_state.1),
            (default_state.0 & !0x0200, default_state.1),
            (default_state.0 | 0x8040 | 0x6000, 0x0f7f),
            (0, 0x0340),
        ];
        for (mxcsr, control_word) in changes {
            FloatState(mxcsr | control_word << 32).set();
            let has_changed = initial_state.has_changed();
            assert!(initial_state.restore(), "{mxcsr:x} {control_word:x}");
            assert!(has_changed, "{mxcsr:x} {control_word:x}");
            assert!(!initial_state.has_changed() && !initial_state.restore());
            let quotient = black_box(1.0f32) / black_box(3.0);
            assert_eq!(quotient.to_bits(), 0x3eaa_aaab);
        }
    }

    #[test]
    fn ignores_sticky_exception_flags() {
        let initial_state = FloatState::read();
        assert!(black_box(black_box(1.0f64) / black_box(0.0)).is_infinite());
        assert!(!initial_state.restore());
    }
}
