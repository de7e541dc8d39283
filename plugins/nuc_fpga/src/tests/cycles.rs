//! Tests the cycle model on cases computed by hand.

use crate::device::config::Config;
use crate::device::cycles::{Tiling, plan};
use crate::layer::{Conv, Dense, Layer};
use byoc_test_support::random::Random;

fn dense(batch: u32, in_features: u32, out_features: u32) -> Layer {
    Layer::Dense(Dense { batch, in_features, out_features })
}

fn conv(channels: u32, size: u32, kernels: u32, kernel: u32, group: u32) -> Conv {
    Conv {
        batch: 1,
        channels,
        height: size,
        width: size,
        kernels,
        group,
        pad_height: kernel / 2,
        pad_width: kernel / 2,
        kernel_height: kernel,
        kernel_width: kernel,
        stride_height: 1,
        stride_width: 1,
    }
}

/// Returns the parameters that the expected values assume: 16 bytes per cycle (3.2 GB/s at 200 MHz), 40 cycles of burst
/// latency.
fn device() -> Config {
    Config {
        array_rows: 16,
        array_columns: 16,
        clock_hz: 200_000_000,
        input_buffer_bytes: 131_072,
        weight_buffer_bytes: 131_072,
        sum_buffer_bytes: 131_072,
        dram_bytes_per_second: 3_200_000_000,
        dram_burst_bytes: 4096,
        dram_burst_latency_cycles: 40,
    }
}

#[test]
fn default_parameters_are_as_documented() {
    assert_eq!(Config::default(), device());
}

#[test]
fn one_tile_of_a_dense_layer() {
    let estimate = plan(&dense(1, 16, 16), &device()).unwrap();
    // Load: 40 + 256 / 16 = 56 for 16 x 16 weights, 40 + 1 = 41 for 16 features. Compute: 62, namely 16 to load the
    // array, 16 for one pass (the time to load the next weights, which is a lower bound), and 30 to drain. Store: 40 +
    // 4 = 44 for 16 sums of 4 bytes.
    assert_eq!(estimate.cycles, 56 + 41 + 62 + 44);
    assert_eq!((estimate.input_bytes, estimate.weight_bytes, estimate.sum_bytes), (16, 256, 64));
    assert_eq!((estimate.macs, estimate.possible_macs), (256, 203 * 256));
    assert_eq!(estimate.utilization(), 1.0 / 203.0);
}

#[test]
fn one_tile_of_a_convolution() {
    let estimate = plan(&Layer::Conv2d(conv(16, 8, 16, 1, 1)), &device()).unwrap();
    // Load: 56 for the weights, 40 + 64 = 104 for 16 contiguous planes of 64. Compute: 16 + 64 + 30 = 110. Store: 40 +
    // 256 = 296 for 4096 bytes in one burst.
    assert_eq!(estimate.cycles, 56 + 104 + 110 + 296);
    assert_eq!(estimate.compute_cycles, 110);
    assert_eq!(estimate.tiling, Tiling { channels: 16, outputs: 16, rows: 8, rows_first: true });
}

#[test]
fn loading_of_stripes_overlaps_computation() {
    // Half of the buffer is 512 bytes: four rows of 8 in 16 channels.
    let device = Config { input_buffer_bytes: 1024, ..device() };
    let estimate = plan(&Layer::Conv2d(conv(16, 8, 16, 1, 1)), &device).unwrap();
    assert_eq!((estimate.tiling.rows, estimate.steps), (4, 2));
    // Load per stripe: 16 * (40 + 2) = 672 for 16 runs of 32 bytes. Store per stripe: 16 * (40 + 8) = 768 for 16 runs
    // of 128 bytes. Compute: 16 + 32 + 30 = 78, overlapped by the second load, then by the first store.
    assert_eq!(estimate.cycles, (56 + 672) + 672 + 768 + 768);
    assert_eq!(estimate.compute_cycles, 2 * 78);
}

#[test]
fn blocks_of_input_channels_keep_sums_on_the_device() {
    // Half of the buffer is 256 bytes: 16 outputs of 16 terms.
    let device = Config { weight_buffer_bytes: 512, ..device() };
    let estimate = plan(&dense(1, 32, 16), &device).unwrap();
    assert_eq!((estimate.tiling.channels, estimate.steps), (16, 2));
    // Load per block: 16 * 41 = 656 for 16 runs of 16 weights, 41 for 16 features. Compute per block: 62; the second
    // load overlaps the first block. Store: 44 for 64 bytes at the end.
    assert_eq!(estimate.cycles, 697 + 697 + 62 + 44);
    assert_eq!(estimate.sum_bytes, 64);
}

#[test]
fn groups_are_processed_sequentially() {
    let estimate = plan(&Layer::Conv2d(conv(2, 4, 2, 3, 2)), &device()).unwrap();
    // Load per group: 41 for 9 weights, 41 for a plane of 16 features. Compute per group: 16 + 16 + 30 = 62. Store per
    // group: 44 for 64 bytes. The first group is computed while the second group is loaded (82), the second group while
    // the first group is stored.
    assert_eq!(estimate.steps, 2);
    assert_eq!(estimate.cycles, 82 + 82 + 62 + 44);
    assert_eq!(estimate.macs, 2 * 16 * 9);
}

#[test]
fn operands_on_the_device_are_not_reloaded() {
    // 64 rows of 1024 features are 65536 bytes, half of the buffer. 160 outputs of 1024 weights are 163840 bytes, more
    // than half of the buffer. Either operand can stay on the device while blocks of the other operand are streamed.
    let estimate = plan(&dense(64, 1024, 160), &device()).unwrap();
    assert_eq!(estimate.input_bytes, 65_536);
    assert_eq!(estimate.weight_bytes, 163_840);
    let estimate = plan(&dense(640, 1024, 16), &device()).unwrap();
    assert_eq!((estimate.input_bytes, estimate.weight_bytes), (655_360, 16_384));
}

#[test]
fn long_bursts_are_split() {
    let estimate = plan(&dense(1, 16, 16), &Config { dram_burst_bytes: 64, ..device() }).unwrap();
    // The 256 bytes of weights take four bursts, the remaining transfers one burst each.
    assert_eq!(estimate.cycles, (4 * 40 + 16) + 41 + 62 + 44);
}

#[test]
fn reports_bytes_of_a_layer_that_does_not_fit() {
    let wide_layer = Layer::Conv2d(Conv { width: 40_000, ..conv(16, 8, 16, 3, 1) });
    assert_eq!(
        plan(&wide_layer, &device()).unwrap_err(),
        "one output row of 16 input and 16 output channels: expected at most half of the input buffer of 131072 bytes, \
         found 1920000 bytes"
    );
}

/// Checks that faster hardware never takes more cycles, and that no estimate is below the lower bound from the peak
/// throughput of the array or the DRAM.
#[test]
fn bounds_hold_for_many_layers() {
    let mut random = Random::new(3);
    for _ in 0..200 {
        let mut random_in = |min: i64, max: i64| random.between(min, max) as u32;
        let kernel = [1, 3, 5, 7][random_in(0, 3) as usize];
        let layer = if random_in(0, 3) == 0 {
            dense(random_in(1, 64), random_in(1, 3000), random_in(1, 2000))
        } else {
            Layer::Conv2d(conv(random_in(1, 300), random_in(7, 60), random_in(1, 300), kernel, 1))
        };
        let estimate = plan(&layer, &device()).unwrap();
        assert!(estimate.utilization() <= 1.0, "{layer:?}: {estimate:?}");
        assert!(estimate.cycles >= estimate.bytes() / 16 && estimate.cycles >= estimate.compute_cycles, "{layer:?}");
        let [input, kernel, sum_count] = layer.elements();
        assert!(estimate.weight_bytes >= kernel && estimate.sum_bytes == 4 * sum_count, "{layer:?}: {estimate:?}");
        assert!(estimate.input_bytes >= input, "{layer:?}: {estimate:?}");
        let faster_dram = Config { dram_bytes_per_second: 6_400_000_000, ..device() };
        assert!(plan(&layer, &faster_dram).unwrap().cycles <= estimate.cycles, "{layer:?}");
        let larger_device = Config { input_buffer_bytes: 1 << 20, sum_buffer_bytes: 1 << 20, ..device() };
        assert!(plan(&layer, &larger_device).is_ok(), "{layer:?}");
    }
}
