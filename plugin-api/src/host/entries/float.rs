//! The floating-point environment of a thread: rounding, flushing of subnormals, which exceptions trap. It belongs to whoever
//! calls: a plugin that changes it and does not change it back would change every later result on that thread.

/// What was set when it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatState {
    #[cfg(target_arch = "x86_64")]
    mxcsr: u32,
    #[cfg(target_arch = "x86_64")]
    x87: u16,
    #[cfg(target_arch = "aarch64")]
    fpcr: u64,
}

/// The bits of MXCSR that are no record of what has happened but say what is to happen.
#[cfg(target_arch = "x86_64")]
const CONTROL: u32 = !0x3f;

#[cfg(target_arch = "x86_64")]
impl FloatState {
    /// Reads it.
    #[inline(always)]
    pub(crate) fn read() -> FloatState {
        let (mut mxcsr, mut x87) = (0u32, 0u16);
        // SAFETY: the two instructions store to the two variables and do nothing else.
        unsafe {
            std::arch::asm!(
                "stmxcsr [{mxcsr}]",
                "fnstcw [{x87}]",
                mxcsr = in(reg) &raw mut mxcsr,
                x87 = in(reg) &raw mut x87,
                options(nostack, preserves_flags),
            );
        }
        FloatState { mxcsr, x87 }
    }

    /// Sets what differs from it, and gives whether anything did.
    #[inline(always)]
    pub(crate) fn restore(self) -> bool {
        let now = FloatState::read();
        let same = (now.mxcsr ^ self.mxcsr) & CONTROL == 0 && now.x87 == self.x87;
        if !same {
            self.set();
        }
        !same
    }

    #[cold]
    fn set(self) {
        // SAFETY: both values were read from these registers. What the x87 unit has recorded is cleared first: an exception
        // that traps now would be raised by the next instruction of that unit.
        unsafe {
            std::arch::asm!(
                "fnclex",
                "fldcw [{x87}]",
                "ldmxcsr [{mxcsr}]",
                mxcsr = in(reg) &raw const self.mxcsr,
                x87 = in(reg) &raw const self.x87,
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
        FloatState { fpcr }
    }

    /// Sets what differs from it, and gives whether anything did.
    #[inline(always)]
    pub(crate) fn restore(self) -> bool {
        if FloatState::read().fpcr == self.fpcr {
            return false;
        }
        // SAFETY: the value was read from this register.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) self.fpcr, options(nomem, nostack, preserves_flags)) };
        true
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloatState {
    /// Nothing is known of it on this processor.
    pub(crate) fn read() -> FloatState {
        FloatState {}
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
        assert!(!before.restore());
        // Round to zero, flush subnormals: then, exceptions that trap.
        for (mxcsr, x87) in [(0x1f80 | 0x8040 | 0x6000, 0x0f7f), (0, 0x0340)] {
            FloatState { mxcsr, x87 }.set();
            assert!(before.restore());
            assert!(!before.restore());
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
