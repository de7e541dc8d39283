//! Sources of calibration data.

use byoc::io::image;
use std::path::{Path, PathBuf};

/// Source of calibration data.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// `.npz` file with an entry for each input. The first dimension of an entry is the number of samples.
    Arrays(PathBuf),
    /// Directory of images, for a model with one input.
    Images(PathBuf, image::Normalization),
    /// Random values from a seed.
    Random(u64),
}

impl Source {
    /// Parses the value of `--calibrate`: `random`, `random:SEED`, a directory, or a file.
    pub fn parse(text: &str, normalization: image::Normalization) -> Source {
        let seed = match text.split_once(':') {
            Some(("random", seed)) => seed.parse().ok(),
            _ => (text == "random").then_some(0),
        };
        match seed {
            Some(seed) if !Path::new(text).exists() => Source::Random(seed),
            _ if Path::new(text).is_dir() => Source::Images(text.into(), normalization),
            _ => Source::Arrays(text.into()),
        }
    }
}
