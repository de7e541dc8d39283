//! Bound on the code that the library never frees, over many dimensions.

use super::library;
use super::region::{random_floats, run};
use crate::library::retained::{MAX_RETAINED, reserved_count};
use crate::runtime::LoadedRegion;
use byoc_plugin_api::*;
use byoc_test_support::plugin;

const CHANNELS: usize = 16;

/// Creates a region of a convolution, transposed or not, and a ReLU, for images of the given size; `None` for images of
/// any size.
fn convolution(is_transposed: bool, size: Option<[usize; 2]>) -> LoadedRegion {
    // Windows overlap by one, so that no Winograd convolution is used; a transposed convolution keeps the size.
    let stride = if is_transposed { 1 } else { 2 };
    let image = |stride: usize| {
        let dims = ["h", "w"].into_iter().enumerate();
        let dims = dims
            .map(|(axis, name)| size.map_or(Dim::Unknown(name.into()), |size| Dim::Known(size[axis].div_ceil(stride))));
        TensorType { dtype: DType::F32, dims: [Dim::Known(1), Dim::Known(CHANNELS)].into_iter().chain(dims).collect() }
    };
    let kernel = [CHANNELS, CHANNELS, 3, 3];
    let mut graph = Graph::new("region_0");
    let x = ValueRef::of(graph.push_input("x", image(1)));
    let w = ValueRef::of(graph.push_constant(0, TensorType::new(DType::F32, &kernel)));
    let attrs = [("kernel_size", vec![3; 2]), ("padding", vec![1; 4]), ("strides", vec![stride as i64; 2])];
    let attrs = attrs.map(|(name, values)| Attr::new(name, values));
    let operator = if is_transposed { "nn.conv2d_transpose" } else { "nn.conv2d" };
    let y = ValueRef::of(graph.push_op(operator, [x, w], attrs, [image(stride)]));
    let y = ValueRef::of(graph.push_op("nn.relu", [y], [], [image(stride)]));
    graph.outputs.push(y);
    let constant = plugin::floats(&kernel, &random_floats(kernel.iter().product(), 3));
    LoadedRegion::new(graph, &[constant], &plugin::services(1)).unwrap()
}

/// Returns the size of the resident generated code in KiB: executable memory that maps no file.
fn code_kib() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_code, mut kib) = (false, 0);
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, access, _, _, "0"] => is_code = access.contains('x'),
            [_, access, _, _, _, _] if access.len() == 4 => is_code = false,
            ["Rss:", size, _] if is_code => kib += size.parse::<usize>().unwrap(),
            _ => {}
        }
    }
    kib
}

#[test]
fn code_is_bounded_over_many_dimensions() {
    if library().is_none() {
        return;
    }
    for is_transposed in [false, true] {
        let region = convolution(is_transposed, None);
        let mut sizes = (16..56).flat_map(|height| (16..36).map(move |width| [height, width]));
        let mut prepare_next = |count: usize| {
            for [height, width] in sizes.by_ref().take(count) {
                let plan = region.prepare(&[&[1, CHANNELS, height, width]]).unwrap().plan;
                let release = serde_json::json!({ "plan": plan }).to_string();
                region.query("plan.release", release.as_bytes()).unwrap();
            }
        };
        prepare_next(MAX_RETAINED + 72);
        assert!(reserved_count() <= MAX_RETAINED);
        let before = code_kib();
        prepare_next(600);
        // Other tests generate code at the same time. Without the bound, these plans leave more than 8 MiB.
        let after = code_kib();
        assert!(after < before + 4096, "transposed: {is_transposed}: {before} KiB of code, then {after} KiB");
    }
}

#[test]
fn implementations_beyond_the_bound_agree_with_those_of_known_dimensions() {
    if library().is_none() {
        return;
    }
    for is_transposed in [false, true] {
        let region = convolution(is_transposed, None);
        (1..=MAX_RETAINED + 1).for_each(|width| _ = region.prepare(&[&[1, CHANNELS, 3, width]]).unwrap());
        for size in [[17, 70], [40, 9]] {
            let shape = [1, CHANNELS, size[0], size[1]];
            let x = random_floats(shape.iter().product(), 5);
            let expected = run(&convolution(is_transposed, Some(size)), &shape, &x);
            let found = run(&region, &shape, &x);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
            assert!(expected.iter().zip(&found).all(close), "transposed: {is_transposed}, {size:?}");
        }
    }
}
