//! Chosen tilings against those that were tuned on hardware, in the cycle model: ten convolutions of ResNet-18.

use byoc_vta_machine::config::{Config, Profile};
use byoc_vta_machine::isa::AluOp;
use byoc_vta_program::layer::{Conv, Form, Layer, Place, Step};
use byoc_vta_program::search::{fastest, predicted};
use byoc_vta_program::tile::{Threads, Tile};

/// Returns a layer with blocks of 16 channels, and its tuned tile.
fn layer(
    [size, inputs, outputs, kernel, stride]: [usize; 5],
    [rows, columns, tile_outputs]: [usize; 3],
    threads: Threads,
) -> (Layer, Tile) {
    let (pad, place) = (kernel / 2, |buffer| Place { buffer, offset: 0 });
    let conv = Conv {
        batch: 1,
        groups: 1,
        inputs,
        outputs,
        size: [size; 2],
        kernel: [kernel; 2],
        strides: [stride; 2],
        pads: [[pad; 2]; 2],
        data: place(1),
        weight: place(2),
        steps: [(AluOp::Shr, 8), (AluOp::Max, -127), (AluOp::Min, 127)]
            .map(|(op, imm)| Step::Immediate(op, imm))
            .to_vec(),
        result: place(3),
        form: Form::Bytes,
    };
    (Layer::Conv(conv), Tile { size: [rows, columns], inputs: 1, outputs: tile_outputs, threads })
}

#[test]
fn choice_is_not_slower_than_tuned_tilings() {
    use Threads::{OverOutputs, OverRows};
    let layers = [
        layer([56, 4, 4, 3, 1], [8, 56, 2], OverOutputs),
        layer([56, 4, 8, 3, 2], [7, 28, 4], OverOutputs),
        layer([56, 4, 8, 1, 2], [7, 28, 4], OverRows),
        layer([28, 8, 8, 3, 1], [14, 28, 2], OverRows),
        layer([28, 8, 16, 3, 2], [14, 14, 4], OverOutputs),
        layer([28, 8, 16, 1, 2], [7, 14, 8], OverOutputs),
        layer([14, 16, 16, 3, 1], [14, 14, 4], OverOutputs),
        layer([14, 16, 32, 3, 2], [7, 7, 16], OverOutputs),
        layer([14, 16, 32, 1, 2], [7, 7, 16], OverOutputs),
        layer([7, 32, 32, 3, 1], [7, 7, 16], OverOutputs),
    ];
    let config = Config { profile: Profile::Pynq, ..Config::default() };
    let mut ratios = Vec::new();
    for (number, (layer, tuned)) in layers.into_iter().enumerate() {
        let (_, chosen) = fastest(&config, &layer).unwrap();
        let tuned = predicted(&config, &layer, tuned).unwrap_or_else(|| panic!("C{} does not fit", number + 2));
        ratios.push(chosen / tuned);
    }
    assert!(ratios.iter().all(|ratio| *ratio <= 1.10), "{ratios:.3?}");
    assert!(ratios.iter().filter(|ratio| **ratio < 1.0).count() >= 5, "{ratios:.3?}");
}

#[test]
fn no_tile_fits_a_kernel_larger_than_the_memory() {
    let (layer, _) = layer([64, 1, 1, 63, 1], [1, 1, 1], Threads::One);
    assert_eq!(fastest(&Config::default(), &layer), None);
}
