//! Compares the predicted cycles of chosen tilings with those of tilings tuned on hardware, for ten convolutions of
//! ResNet-18.

use crate::resnet::{CONVOLUTIONS, Shape};
use byoc_vta_machine::config::{Config, Profile};
use byoc_vta_program::layer::{Layer, Place};
use byoc_vta_program::search::{fastest, predict_cycles};

fn layer(shape: &Shape) -> Layer {
    Layer::Conv(shape.conv([1, 2, 3].map(|buffer| Place { buffer, offset: 0 })))
}

#[test]
fn choice_is_not_slower_than_tuned_tilings() {
    let config = Config { profile: Profile::Pynq, ..Config::default() };
    let mut ratios = Vec::new();
    for (name, shape, tuned_tile) in &CONVOLUTIONS {
        let layer = layer(shape);
        let (_, cycles) = fastest(&config, &layer).unwrap();
        let tuned_tile = predict_cycles(&config, &layer, *tuned_tile)
            .unwrap_or_else(|| panic!("{name}: expected a tiling that fits, found none"));
        ratios.push(cycles / tuned_tile);
    }
    assert!(
        ratios.iter().all(|ratio| *ratio <= 1.10),
        "expected at most 1.1 times the cycles of the tuned tilings, found {ratios:.3?}"
    );
    assert!(
        ratios.iter().filter(|ratio| **ratio < 1.0).count() >= 5,
        "expected at least 5 tilings faster than the tuned ones, found cycle ratios {ratios:.3?}"
    );
}

#[test]
fn no_tile_fits_a_kernel_larger_than_the_memory() {
    let layer = layer(&Shape { size: 64, inputs: 1, outputs: 1, kernel: 63, stride: 1 });
    assert_eq!(fastest(&Config::default(), &layer), None);
}
