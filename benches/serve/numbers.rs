//! Percentiles and medians, and their formatting in tables.

use std::time::Duration;

/// Returns a percentile of unsorted values; 0 if `values` is empty.
pub fn percentile(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = ((sorted.len() as f64 * fraction) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

/// Returns the median of unsorted values.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// Converts a duration to microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Formats the median, minimum and maximum of `values`, which contains one value per round.
pub fn format_range(values: &[f64], digits: usize) -> String {
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    format!("{:.digits$} ({low:.digits$} to {high:.digits$})", median(values))
}

/// Returns the table entry for a limit: `met` or `missed`.
pub fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}
