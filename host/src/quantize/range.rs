//! A range of values.

/// A closed range of values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Range {
    /// The smallest.
    pub lo: f64,
    /// The largest.
    pub hi: f64,
}

impl Range {
    /// The smallest range that holds both.
    pub fn union(self, other: Range) -> Range {
        Range { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    /// The part that is no farther from 0 than `reach`.
    pub fn within(self, reach: f64) -> Range {
        Range { lo: self.lo.max(-reach), hi: self.hi.min(reach) }
    }
}
