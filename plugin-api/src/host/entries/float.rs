//! The floating-point environment of a thread: rounding, flushing of subnormals, which exceptions trap. It belongs to whoever
//! calls: a plugin that changes it and does not change it back would change every later result on that thread.

/// Floating-point environment as it was read, packed for a slot of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FloatState(pub(super) u64);

/// On x86-64: MXCSR, and above it the control word of the x87 unit.
#[cfg(target_arch = "x86_64")]
impl FloatState {
    /// The bits of MXCSR that are no record of what has happened but say what is to happen, and all of the control word.
    const CONTROL: u64 = !0x3f;

    /// Reads it. That takes some nanoseconds: MXCSR is known when what was computed before is.
    #[inline(always)]
    pub(crate) fn read() -> FloatState {
        let (mut mxcsr, mut word) = (0u32, 0u16);
        // SAFETY: stores to the two variables and does nothing else.
        unsafe {
            std::arch::asm!(
                "stmxcsr [{mxcsr}]",
                "fnstcw [{word}]",
                mxcsr = in(reg) &raw mut mxcsr,
                word = in(reg) &raw mut word,
                options(nostack, preserves_flags),
            );
        }
        FloatState(u64::from(mxcsr) | u64::from(word) << 32)
    }

    /// Returns true if the environment has changed.
    #[inline(always)]
    pub(crate) fn differs(self) -> bool {
        (FloatState::read().0 ^ self.0) & Self::CONTROL != 0
    }

    /// Sets what differs from it, and gives whether anything did.
    pub(crate) fn restore(self) -> bool {
        let changed = self.differs();
        if changed {
            self.set();
        }
        changed
    }

    #[cold]
    fn set(self) {
        let (mxcsr, word) = (self.0 as u32, (self.0 >> 32) as u16);
        // SAFETY: both values were read from these registers. What the x87 unit has recorded is cleared first: an exception
        // that traps now would be raised by the next instruction of that unit.
        unsafe {
            std::arch::asm!(
                "fnclex",
                "fldcw [{word}]",
                "ldmxcsr [{mxcsr}]",
                mxcsr = in(reg) &raw const mxcsr,
                word = in(reg) &raw const word,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl FloatState {
    /// Reads it.
    #[inline(always)]
    pub(crate) fn read() -> FloatState {
        let fpcr;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        FloatState(fpcr)
    }

    /// Returns true if the environment has changed.
    #[inline(always)]
    pub(crate) fn differs(self) -> bool {
        FloatState::read() != self
    }

    /// Sets what differs from it, and gives whether anything did.
    pub(crate) fn restore(self) -> bool {
        if !self.differs() {
            return false;
        }
        // SAFETY: the value was read from this register.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) self.0, options(nomem, nostack, preserves_flags)) };
        true
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloatState {
    /// Nothing is known of it on this processor.
    pub(crate) fn read() -> FloatState {
        FloatState(0)
    }

    /// Nothing is known of it on this processor.
    pub(crate) fn differs(self) -> bool {
        false
    }

    /// Leaves it as it is.
    pub(crate) fn restore(self) -> bool {
        false
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn what_was_set_is_put_back() {
        let before = FloatState::read();
        assert!(!before.differs() && !before.restore());
        let usual = (0x1f80u64, 0x037fu64);
        let changes = [
            (usual.0 | 0x2000, usual.1),
            (usual.0 | 0x4000, usual.1),
            (usual.0 | 0x6000, usual.1),
            (usual.0 | 0x8000, usual.1),
            (usual.0 | 0x0040, usual.1),
            (usual.0 & !0x0200, usual.1),
            (usual.0 | 0x8040 | 0x6000, 0x0f7f),
            (0, 0x0340),
        ];
        for (mxcsr, word) in changes {
            FloatState(mxcsr | word << 32).set();
            let seen = before.differs();
            assert!(before.restore(), "{mxcsr:x} {word:x}");
            assert!(seen, "{mxcsr:x} {word:x}");
            assert!(!before.differs() && !before.restore());
            let third = black_box(1.0f32) / black_box(3.0);
            assert_eq!(third.to_bits(), 0x3eaa_aaab);
        }
    }

    #[test]
    fn what_has_happened_is_no_change() {
        let before = FloatState::read();
        assert!(black_box(black_box(1.0f64) / black_box(0.0)).is_infinite());
        assert!(!before.restore());
    }
}
