//! Value ranges.

/// Closed interval of real values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Range {
    /// Lower bound.
    pub lo: f64,
    /// Upper bound.
    pub hi: f64,
}

impl Range {
    /// Returns the smallest range that contains both ranges.
    pub fn union(self, other: Range) -> Range {
        Range { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    /// Returns the part of the range within `limit` of 0.
    pub fn within(self, limit: f64) -> Range {
        Range { lo: self.lo.max(-limit), hi: self.hi.min(limit) }
    }
}
