//! Images (`.png`, `.jpg`) as model inputs.
//!
//! A file of a few megabytes can declare a billion pixels. So the header is read first, and everything that follows
//! from its dimensions is counted against the memory limit before it is allocated. The decoders have no means to be
//! interrupted, except that reading the file fails: they run on a thread of their own, and a cancelled load does not wait
//! for it. The maximum number of pixels bounds how long such a thread goes on, and it holds its memory as counted until it
//! ends.

use byoc_files::{bad_file, open_regular};
use byoc_ir::cancel::{self, Cancel, CancellableReader};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::memory::{self, Charge};
use byoc_ir::tensor::{DType, Element, Tensor};
use byoc_ir::with_dtype;
use image::imageops::{FilterType, resize};
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum width and height of an image in pixels.
const MAX_SIDE: u32 = 1 << 15;

/// Maximum number of pixels of an image: 16384 x 16384.
const MAX_PIXELS: u64 = 1 << 28;

/// Time after which a load that waits for a decoder polls its cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

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
/// If the file is not an image or has too many pixels, `shape` is not the shape of a single image, the memory limit is
/// exceeded, or the work is cancelled.
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

    let pixels = read_on_thread(path, layout)?;
    let is_normalized = dtype.is_float();
    let tensor = Tensor::build(dtype, shape, |bytes| {
        with_dtype!(dtype, T => {
            let out = bytemuck::cast_slice_mut::<u8, T>(bytes);
            for (index, &value) in pixels.values.iter().enumerate() {
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

/// Scaled pixels in row-major order, with interleaved channels.
struct Pixels {
    values: Vec<u8>,
    _charge: Charge,
}

/// Calls [`read_scaled`] on a thread of its own, which continues if the work is cancelled meanwhile.
fn read_on_thread(path: &Path, layout: Layout) -> Result<Pixels, Diagnostic> {
    let position = || format!("{} was being decoded", path.display());
    cancel::check(position)?;
    let (sender, receiver) = channel();
    let thread_path = PathBuf::from(path);
    // The receiver is gone after a cancellation.
    let token = Cancel::current().unwrap_or_default();
    let read = move || drop(sender.send(token.within(|| read_scaled(&thread_path, layout))));
    let thread = std::thread::Builder::new().name("byoc-image".into()).spawn(read);
    thread.map_err(|error| bad_file(path, format!("cannot start a thread: {error}")))?;
    loop {
        match receiver.recv_timeout(POLL_INTERVAL) {
            Ok(pixels) => return pixels,
            Err(RecvTimeoutError::Timeout) => cancel::check(position)?,
            Err(RecvTimeoutError::Disconnected) => return Err(bad_file(path, "the decoder failed")),
        }
    }
}

fn read_scaled(path: &Path, layout: Layout) -> Result<Pixels, Diagnostic> {
    let reader = open_regular(path)
        .and_then(|file| ImageReader::new(BufReader::new(CancellableReader::new(file))).with_guessed_format())
        .map_err(|e| bad_file(path, e))?;
    let size = |n: usize| u32::try_from(n).map_err(|_| bad_file(path, format!("cannot scale an axis to {n} pixels")));
    let (width, height) = (size(layout.width)?, size(layout.height)?);
    let (picture, _picture_charge) = decode(path, reader)?;
    let has_target_size = (picture.width(), picture.height()) == (width, height);
    // The conversion to the channels of the tensor copies the picture. The resize is separable, one axis at a time: the
    // rows are scaled first, to an intermediate result of four float32 values per pixel.
    let pixels = |width: usize, height: usize, bytes: usize| width.saturating_mul(height).saturating_mul(bytes);
    let (old_width, old_height) = (picture.width() as usize, picture.height() as usize);
    let _conversion_charge = memory::reserve(pixels(old_width, old_height, layout.channels))?;
    let _resize_charge = match has_target_size {
        true => None,
        false => Some(memory::reserve(pixels(old_width, layout.height, 16))?),
    };
    let charge = memory::reserve(pixels(layout.width, layout.height, layout.channels))?;
    macro_rules! scaled {
        ($pixels:expr) => {
            if has_target_size {
                $pixels.into_raw()
            } else {
                resize(&$pixels, width, height, FilterType::Triangle).into_raw()
            }
        };
    }
    let values = match layout.channels {
        1 => scaled!(picture.into_luma8()),
        3 => scaled!(picture.into_rgb8()),
        _ => scaled!(picture.into_rgba8()),
    };
    Ok(Pixels { values, _charge: charge })
}

/// Decodes an image. The charge counts the picture and what the decoder allocates beside it.
fn decode(
    path: &Path,
    reader: ImageReader<BufReader<CancellableReader<File>>>,
) -> Result<(DynamicImage, Charge), Diagnostic> {
    // The JPEG decoder reads the whole file before its header, and copies the segments for applications.
    let is_jpeg = reader.format() == Some(ImageFormat::Jpeg);
    let file_size = if is_jpeg { std::fs::metadata(path).map_or(0, |file| file.len() as usize) } else { 0 };
    let mut charge = memory::reserve(2 * file_size)?;
    let mut limits = Limits::no_limits();
    // Bounds what a header of a PNG can become: compressed color profiles and texts.
    limits.max_alloc = Some(memory::available().min(MAX_HEADER) as u64);
    let mut reader = reader;
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|e| bad_file(path, e))?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if width.max(height) > MAX_SIDE || pixels > MAX_PIXELS {
        let limit = format!("{MAX_SIDE} x {MAX_SIDE} and {MAX_PIXELS} pixels");
        return Err(bad_file(path, format!("expected an image of at most {limit}, found {width} x {height}")));
    }
    // A progressive JPEG is decoded from coefficients of 16 bits, up to four for each pixel, in blocks of 16 x 16 pixels.
    let coefficients = match is_jpeg {
        true => pixels_in_blocks(width) * pixels_in_blocks(height) * jpeg_components(decoder.color_type()) * 2,
        false => 0,
    };
    let bytes = decoder.total_bytes().saturating_add(coefficients);
    charge.merge(memory::reserve(usize::try_from(bytes).unwrap_or(usize::MAX))?);
    let picture = DynamicImage::from_decoder(decoder).map_err(|e| bad_file(path, e))?;
    Ok((picture, charge))
}

/// Maximum size in bytes of what the header of an image is decoded to.
const MAX_HEADER: usize = 64 << 20;

fn pixels_in_blocks(side: u32) -> u64 {
    u64::from(side).next_multiple_of(16)
}

/// Returns the maximum number of components of a JPEG that is decoded to pixels of the given type.
fn jpeg_components(color: ColorType) -> u64 {
    if color == ColorType::L8 { 1 } else { 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(dir: &Path) -> PathBuf {
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

    /// Writes the header of a JPEG or PNG file of the given size, and no pixels.
    fn header(path: &Path, format: ImageFormat, width: u16, height: u16) {
        let mut bytes = Vec::new();
        let pixel = image::GrayImage::new(16, 16);
        pixel.write_to(&mut std::io::Cursor::new(&mut bytes), format).unwrap();
        match format {
            ImageFormat::Png => {
                bytes[16..20].copy_from_slice(&u32::from(width).to_be_bytes());
                bytes[20..24].copy_from_slice(&u32::from(height).to_be_bytes());
                let crc = crc32(&bytes[12..29]);
                bytes[29..33].copy_from_slice(&crc.to_be_bytes());
            }
            _ => {
                let frame = bytes.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
                bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
                bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
            }
        }
        std::fs::write(path, bytes).unwrap();
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
        })
    }

    #[test]
    fn dimensions_are_checked_before_pixels_are_decoded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        for format in [ImageFormat::Png, ImageFormat::Jpeg] {
            for (width, height) in [(30_000, 30_000), (40_000, 2), (2, 40_000)] {
                header(&path, format, width, height);
                let error = load(&path, DType::U8, &[1, 2, 2], &Normalization::default()).unwrap_err();
                assert_eq!(error.code, codes::frontends::BAD_TENSOR_FILE);
                let message = format!("32768 x 32768 and 268435456 pixels, found {width} x {height}");
                assert!(error.message.contains(&message), "{format:?}: {error}");
            }
        }
    }

    #[test]
    fn cancelled_load_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = picture(dir.path());
        let cancel = Cancel::default();
        cancel.set_timeout(Some(Duration::ZERO));
        let error = cancel.within(|| load(&path, DType::F32, &[3, 1, 2], &Normalization::default())).unwrap_err();
        assert_eq!(error.code, codes::runtime::TIMED_OUT);
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
