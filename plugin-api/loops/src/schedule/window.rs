//! Schedules of depthwise convolutions and pooling.

use super::{LANES, round_up, tasks};

/// Loop nest of a depthwise convolution over `[n, pixels.., channel]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depthwise {
    /// Number of channels.
    pub channels: i64,
    /// Number of channels in the packed weights, padded to a multiple of [`LANES`].
    pub padded: i64,
    /// Number of pixels in a row.
    pub len: i64,
    /// Number of rows.
    pub rows: i64,
    /// Number of pixels that share the loaded weights of a tap.
    pub pixels: i64,
    /// Number of tasks.
    pub tasks: i64,
}

impl Depthwise {
    /// Schedules a depthwise convolution over `domain` with the given number of taps.
    pub fn new(domain: &[i64], taps: i64) -> Depthwise {
        let (channels, len) = (domain[domain.len() - 1], domain[domain.len() - 2]);
        let rows: i64 = domain[..domain.len() - 2].iter().product();
        let padded_channels = round_up(channels, LANES);
        // Minimizes the number of tiles per row, then maximizes the tile size.
        let pixels = (1..=len.min(8)).min_by_key(|p| ((len + p - 1) / p * 8 + len, -p)).unwrap_or(1);
        let tasks = tasks(rows * len * padded_channels * taps, 400_000, 24, rows);
        Depthwise { channels, padded: padded_channels, len, rows, pixels, tasks }
    }
}

/// Loop nest of a pooling operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Number of channels that are reduced together.
    pub block: i64,
    /// Number of tasks.
    pub tasks: i64,
}

impl Pooling {
    /// Schedules a pooling operator whose outer dimensions are `outer`; `work` is the number of elements read.
    pub fn new(channels: i64, outer: &[i64], work: i64) -> Pooling {
        let rows: i64 = outer.iter().product();
        let block = if rows >= 8 { channels.min(512) } else { channels.min(64) };
        let blocks = (channels + block - 1) / block;
        Pooling { block, tasks: tasks(work, 60_000, 24, rows * blocks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_fewest_tiles() {
        let pixels = |len| Depthwise::new(&[1, 1, len, 32], 9).pixels;
        assert_eq!([7, 8, 14, 56, 3, 1].map(pixels), [7, 8, 8, 8, 3, 1]);
        let depthwise = Depthwise::new(&[1, 112, 112, 33], 9);
        assert_eq!((depthwise.padded, depthwise.rows, depthwise.len), (48, 112, 112));
        assert!(depthwise.tasks > 8 && depthwise.tasks <= 24);
    }

    #[test]
    fn few_rows_are_divided_by_channels() {
        assert_eq!(Pooling::new(2048, &[1], 2048 * 49), Pooling { block: 64, tasks: 1 });
        assert_eq!(Pooling::new(64, &[1, 56], 64 * 112 * 112 * 9), Pooling { block: 64, tasks: 24 });
    }
}
