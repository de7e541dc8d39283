//! Comparison of the oneDNN backend with the naive operator references, over random shapes, windows, groups and axes.
//! The tests are skipped if oneDNN is not installed.

mod cases;
mod check;
mod dynamic;
mod quantized;

use check::Bench;

/// Runs `count` random cases of a family. At most a tenth of the cases may be refused; all supported cases must be
/// correct.
fn run_family(name: &str, count: u64, make: fn(&mut cases::Case)) {
    let Some(bench) = Bench::new() else { return };
    let mut refusals = Vec::new();
    for seed in 0..count {
        let mut case = cases::Case::new(name, seed);
        make(&mut case);
        if let Err(reason) = bench.check(case) {
            refusals.push(format!("seed {seed}: {reason}"));
        }
    }
    assert!(
        refusals.len() as u64 * 10 <= count,
        "{name}: expected at most a tenth of {count} cases to be refused, found {}:\n{}",
        refusals.len(),
        refusals.join("\n")
    );
}

macro_rules! families {
    (in $of:ident: $($name:ident $count:literal;)*) => {$(
        #[test]
        fn $name() {
            if $of::is_supported() {
                run_family(stringify!($name), $count, $of::$name);
            }
        }
    )*};
}

families! {
    in cases:
    convolution_1d 200;
    convolution_2d 500;
    convolution_3d 100;
    convolution_3x3 300;
    depthwise_convolution 150;
    transposed_convolution 200;
    dense 300;
    batch_matmul 300;
    pooling 300;
    softmax 150;
    layer_norm 120;
    batch_norm 100;
    elementwise 300;
    binary 300;
    diamonds 400;
    reductions 200;
    joins_and_views 300;
    resizing 80;
    attention 60;
    masked_rows 80;
    lstm 80;
    gru 120;
    channel_shuffle 60;
    residual_blocks 100;
}

families! {
    in quantized:
    quantized_convolution 400;
    quantized_depthwise 120;
    quantized_dense 200;
    quantized_large_accumulators 60;
    quantized_elementwise 200;
    quantized_blocks 100;
    quantized_pools_and_joins 200;
    quantized_float_post_ops 200;
}
