//! Images (`.png`, `.jpg`) as model inputs.

use byoc_files::{bad_file, open_regular};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{DType, Element, Tensor, memory};
use byoc_ir::with_dtype;
use image::imageops::{FilterType, resize};
use image::{DynamicImage, ImageReader, Limits};
use std::io::BufReader;
use std::path::Path;

/// Normalization of pixel values: `(value / 255 - mean) / std` per channel. A single number applies to all channels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Normalization {
    /// Mean to subtract; 0 if empty.
    pub mean: Vec<f64>,
    /// Standard deviation to divide by; 1 if empty.
    pub std: Vec<f64>,
}

/// Number of channels, rows and columns of an image, and the order of its axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    channels: usize,
    height: usize,
    width: usize,
    channels_last: bool,
}

/// Reads an image as a tensor of element type `dtype` and dimensions `shape`. The image is scaled bilinearly to the
/// height and width, and converted to grayscale if the tensor has one channel. Integer elements are the pixel values;
/// floating-point elements are normalized.
///
/// # Errors
/// If the file is not an image, or `shape` is not the shape of a single image.
pub fn load(path: &Path, dtype: DType, shape: &[usize], normalization: &Normalization) -> Result<Tensor, Diagnostic> {
    let bad_input = |reason: String| {
        Diagnostic::error(codes::frontends::BAD_BINDING, reason)
            .note("image shapes: (1, C, H, W), (1, H, W, C), (C, H, W), (H, W, C) and (H, W), with C one of 1, 3, 4")
    };
    let layout = layout(shape).ok_or_else(|| bad_input(format!("expected the shape of an image, found {shape:?}")))?;
    let per_channel = |name: &str, values: &[f64], default: f64| match values.len() {
        0 => Ok(vec![default; layout.channels]),
        1 => Ok(vec![values[0]; layout.channels]),
        n if n == layout.channels => Ok(values.to_vec()),
        n => Err(bad_input(format!(
            "{name}: expected 1 value or {} values, one per channel, found {n}",
            layout.channels
        ))),
    };
    let mean = per_channel("mean", &normalization.mean, 0.0)?;
    let std = per_channel("std", &normalization.std, 1.0)?;

    let pixels = read_scaled(path, layout)?;
    let is_normalized = dtype.is_float();
    let tensor = Tensor::build(dtype, shape, |bytes| {
        with_dtype!(dtype, T => {
            let out = bytemuck::cast_slice_mut::<u8, T>(bytes);
            for (index, &value) in pixels.iter().enumerate() {
                let (pixel, channel) = (index / layout.channels, index % layout.channels);
                let value = f64::from(value);
                let value = if is_normalized { (value / 255.0 - mean[channel]) / std[channel] } else { value };
                let target = if layout.channels_last { index } else { channel * layout.height * layout.width + pixel };
                out[target] = T::from_f64(value);
            }
        });
    });
    Ok(tensor?)
}

fn layout(shape: &[usize]) -> Option<Layout> {
    let is_channels = |c: usize| matches!(c, 1 | 3 | 4);
    let shape = match shape {
        [1, trailing @ ..] if trailing.len() == 3 => trailing,
        other => other,
    };
    let layout = |channels, height, width, channels_last| Layout { channels, height, width, channels_last };
    match *shape {
        [h, w] => Some(layout(1, h, w, false)),
        [c, h, w] if is_channels(c) => Some(layout(c, h, w, false)),
        [h, w, c] if is_channels(c) => Some(layout(c, h, w, true)),
        _ => None,
    }
    .filter(|l| l.height > 0 && l.width > 0)
}

/// Returns the scaled pixels in row-major order, with interleaved channels.
fn read_scaled(path: &Path, layout: Layout) -> Result<Vec<u8>, Diagnostic> {
    let mut reader = open_regular(path)
        .and_then(|file| ImageReader::new(BufReader::new(file)).with_guessed_format())
        .map_err(|e| bad_file(path, e))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(1 << 15);
    limits.max_image_height = Some(1 << 15);
    limits.max_alloc = Some(1 << 30);
    reader.limits(limits);
    let picture: DynamicImage = reader.decode().map_err(|e| bad_file(path, e))?;
    let size = |n: usize| u32::try_from(n).map_err(|_| bad_file(path, format!("cannot scale an axis to {n} pixels")));
    let (width, height) = (size(layout.width)?, size(layout.height)?);
    let has_target_size = (picture.width(), picture.height()) == (width, height);
    // The resize is separable, one axis at a time; the intermediate result holds four float32 values per pixel.
    let pixels = |height: usize, bytes: usize| layout.width.saturating_mul(height).saturating_mul(bytes);
    let _reservation = memory::reserve(pixels(picture.height() as usize, 16).saturating_add(pixels(layout.height, 8)))?;
    macro_rules! scaled {
        ($pixels:expr) => {
            if has_target_size {
                $pixels.into_raw()
            } else {
                resize(&$pixels, width, height, FilterType::Triangle).into_raw()
            }
        };
    }
    Ok(match layout.channels {
        1 => scaled!(picture.to_luma8()),
        3 => scaled!(picture.to_rgb8()),
        _ => scaled!(picture.to_rgba8()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("p.png");
        let pixels = image::RgbImage::from_raw(2, 1, vec![255, 0, 51, 0, 255, 102]).unwrap();
        pixels.save(&path).unwrap();
        path
    }

    #[test]
    fn places_channels_by_layout() {
        let dir = tempfile::tempdir().unwrap();
        let path = picture(dir.path());
        let default_normalization = Normalization::default();
        let first_image = load(&path, DType::F32, &[1, 3, 1, 2], &default_normalization).unwrap();
        assert_eq!(first_image.as_slice::<f32>(), [1.0, 0.0, 0.0, 1.0, 0.2, 0.4]);
        // The shape has two rows because one row of two pixels could also be read as one channel of 3 x 2.
        let channels_last_image = load(&path, DType::F32, &[1, 2, 2, 3], &default_normalization).unwrap();
        assert_eq!(channels_last_image.as_slice::<f32>(), [[1.0, 0.0, 0.2, 0.0, 1.0, 0.4]; 2].as_flattened());
        let bytes = load(&path, DType::U8, &[3, 1, 2], &default_normalization).unwrap();
        assert_eq!(bytes.as_slice::<u8>(), [255, 0, 0, 255, 51, 102]);
    }

    #[test]
    fn mean_and_deviation_are_per_channel() {
        let dir = tempfile::tempdir().unwrap();
        let path = picture(dir.path());
        let n = Normalization { mean: vec![0.5, 0.0, 0.2], std: vec![0.5, 1.0, 2.0] };
        let out = load(&path, DType::F64, &[3, 1, 2], &n).unwrap();
        for (actual, expected) in out.as_slice::<f64>().iter().zip([1.0, -1.0, 0.0, 1.0, 0.0, 0.1]) {
            assert!((actual - expected).abs() < 1e-12, "expected {expected}, found {actual}");
        }
        let invalid = Normalization { mean: vec![0.5, 0.5], std: vec![] };
        assert!(load(&path, DType::F32, &[3, 1, 2], &invalid).is_err());
    }

    #[test]
    fn rejects_other_shapes_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = picture(dir.path());
        assert!(load(&path, DType::F32, &[2, 3, 1, 2], &Normalization::default()).is_err());
        std::fs::write(&path, "no picture").unwrap();
        let error = load(&path, DType::F32, &[1, 3, 1, 2], &Normalization::default()).unwrap_err();
        assert_eq!(error.code, codes::frontends::BAD_TENSOR_FILE);
    }
}
