//! Schedules: tiling, blocking and task division of each loop nest. Schedules are pure functions of shapes and strides.
//! Most of [`crate::lower`] turns them into steps of a nest ([`crate::nest::step`]); contractions, depthwise convolutions
//! and transposes are lowered to loops with these numbers directly.

pub mod contraction;
pub mod nest;
pub mod window;

/// Multiple to which columns and channels are padded in packed constants, regardless of the vector width.
pub const LANES: i64 = 16;

/// Rounds `n` up to a multiple of `to`.
pub fn round_up(n: i64, to: i64) -> i64 {
    (n + to - 1) / to * to
}

/// Returns the number of tasks for `work` operations: one per `grain` operations, but at least 1, and at most the
/// smaller of `most` and `items`, the number of items to distribute.
pub fn tasks(work: i64, grain: i64, most: i64, items: i64) -> i64 {
    (work / grain).clamp(1, most).min(items.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_follow_work_and_items() {
        assert_eq!(tasks(10, 1000, 16, 8), 1, "little work");
        assert_eq!(tasks(5000, 1000, 16, 8), 5);
        assert_eq!(tasks(1 << 40, 1000, 16, 8), 8, "a task has at least one item");
        assert_eq!(tasks(1 << 40, 1000, 16, 1000), 16);
        assert_eq!(tasks(0, 1000, 16, 0), 1);
    }
}
