//! Naive `nn.conv2d`, with an optional deliberate mistake.

use crate::compute::Value;
use byoc_plugin_api::Node;

pub fn convolution(mistake: &str, node: &Node, args: &[&Value], out: &[usize]) -> Vec<f32> {
    let (x, w) = (args[0].floats(), args[1].floats());
    let [_, channels, height, width] = args[0].dims[..] else { return Vec::new() };
    let [filters, per_group, rows, columns] = args[1].dims[..] else { return Vec::new() };
    let pair_attribute = |key: &str| {
        let values = node.ints(key).unwrap_or_default();
        [values.first().copied().unwrap_or(1), values.get(1).or(values.first()).copied().unwrap_or(1)]
    };
    let (mut strides, mut dilation) = (pair_attribute("strides"), pair_attribute("dilation"));
    let mut pads = pair_attribute("padding");
    match mistake {
        "swapped_strides" => strides.reverse(),
        "dilation_ignored" => dilation = [1, 1],
        "padding_off_by_one" if pads[0] > 0 => pads[0] -= 1,
        _ => {}
    }
    let groups = node.int("groups").unwrap_or(1).max(1) as usize;
    let mut y = vec![0.0f32; out.iter().product()];
    for (at, y) in y.iter_mut().enumerate() {
        let index =
            [at / (out[1] * out[2] * out[3]), at / (out[2] * out[3]) % out[1], at / out[3] % out[2], at % out[3]];
        let [batch, filter, row, column] = index;
        let group = if mistake == "wrong_group" { filter % groups } else { filter / (filters / groups).max(1) };
        let mut sum = 0.0f64;
        for (i, r, c) in (0..per_group).flat_map(|i| (0..rows).flat_map(move |r| (0..columns).map(move |c| (i, r, c))))
        {
            let h = row as i64 * strides[0] - pads[0] + r as i64 * dilation[0];
            let v = column as i64 * strides[1] - pads[1] + c as i64 * dilation[1];
            if h < 0 || v < 0 || h >= height as i64 || v >= width as i64 {
                continue;
            }
            let channel = group * per_group + i;
            let data = x[((batch * channels + channel) * height + h as usize) * width + v as usize];
            let (r, c) = if mistake == "kernel_transposed" && rows == columns { (c, r) } else { (r, c) };
            let weight = w[((filter * per_group + i) * rows + r) * columns + c];
            sum += f64::from(data) * f64::from(weight);
            if mistake == "sums_in_half" {
                sum = f64::from(half(sum as f32));
            }
        }
        *y = sum as f32;
    }
    y
}

/// Rounds to the 11-bit significand of float16.
fn half(value: f32) -> f32 {
    f32::from_bits((value.to_bits() + 0x0fff + (value.to_bits() >> 13 & 1)) & !0x1fff)
}
