//! Calibration data: samples of the model inputs, read and validated before any computation.

use super::labels;
use super::source::Source;
use super::weight_inputs::WeightInputs;
use byoc::frontend::{PortInfo, Signature};
use byoc::io::{self, image};
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes, nearest};
use byoc_ir::ir::{Dim, Type};
use byoc_ir::tensor::{DType, Element, Shape, Tensor};
use byoc_ir::with_dtype;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Samples for all model inputs.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Columns in the order of the model inputs.
    inputs: Vec<Column>,
    /// Number of samples.
    pub count: usize,
    /// Batch size of the model, if fixed.
    pub fixed_batch: Option<usize>,
    /// Correct class of each sample, if the data has labels.
    pub labels: Option<Vec<i64>>,
    /// Non-fatal diagnostics.
    pub warnings: Vec<Diagnostic>,
}

/// Values of one input.
#[derive(Clone, Debug)]
enum Column {
    /// One row per sample.
    Rows(Tensor),
    /// One value for all runs.
    Broadcast(Tensor),
}

/// Default number of random samples.
pub const RANDOM_SAMPLES: usize = 32;

/// Reads at most `limit` samples (all by default) for a model with the inputs of `signature`. `weights` are inputs
/// whose values have already been read, and `dims` are the dimensions bound by the user.
///
/// # Errors
/// E0530 if names, types or shapes do not match the model, E0531 if a value is NaN or infinite, E0532 if there are no
/// samples, E0512 if a file cannot be read.
pub fn read(
    source: &Source,
    signature: &Signature,
    weights: &WeightInputs,
    dims: &BTreeMap<String, usize>,
    limit: Option<usize>,
) -> Result<Samples, Failure> {
    let ports: Vec<PortInfo> = signature.inputs.iter().map(|port| bind_dims(port, dims)).collect();
    match source {
        Source::Arrays(path) => read_arrays(path, &ports, weights, limit),
        Source::Images(path, normalization) => read_images(path, &ports, normalization, limit),
        Source::Random(seed) => random_samples(*seed, &ports, limit.unwrap_or(RANDOM_SAMPLES)),
    }
}

impl Samples {
    /// Returns the input shapes for `batch` samples, in the order of the model inputs.
    pub fn shapes(&self, batch: usize) -> Vec<Vec<usize>> {
        let shape = |column: &Column| match column {
            Column::Rows(rows) => std::iter::once(batch).chain(rows.shape()[1..].iter().copied()).collect(),
            Column::Broadcast(value) => value.shape().to_vec(),
        };
        self.inputs.iter().map(shape).collect()
    }

    /// Returns the number of samples per run: the fixed batch size of the model, or at most 64 samples with about 2^20
    /// input elements.
    pub fn batch(&self) -> usize {
        const TARGET_ELEMENTS: usize = 1 << 20;
        const MAX_BATCH: usize = 64;
        self.fixed_batch.unwrap_or_else(|| {
            let elements = |shape: &Vec<usize>| shape.iter().fold(1usize, |n, &dim| n.saturating_mul(dim));
            let per_sample = self.shapes(1).iter().map(elements).fold(0, usize::saturating_add);
            (TARGET_ELEMENTS / per_sample.max(1)).clamp(1, MAX_BATCH).min(self.count)
        })
    }

    /// Returns the run inputs for the samples `first_row..first_row + batch`.
    pub fn rows(&self, first_row: usize, batch: usize) -> Vec<Tensor> {
        let slice = |column: &Column| match column {
            Column::Broadcast(value) => value.clone(),
            Column::Rows(rows) => {
                let row = rows.bytes().len() / rows.shape()[0].max(1);
                let shape: Shape = std::iter::once(batch).chain(rows.shape()[1..].iter().copied()).collect();
                let bytes = &rows.bytes()[first_row * row..(first_row + batch) * row];
                Tensor::from_bytes(rows.dtype(), &shape, bytes).expect("the slice has the size of `batch` rows")
            }
        };
        self.inputs.iter().map(slice).collect()
    }
}

/// Returns the input with the dimensions in `dims` replaced by their values.
fn bind_dims(port: &PortInfo, dims: &BTreeMap<String, usize>) -> PortInfo {
    let mut port = port.clone();
    for dim in port.dims.iter_mut().flatten() {
        *dim = dim.with_sizes(|name| dims.get(name).copied());
    }
    port
}

/// Formats an input type for messages.
fn expected_type(port: &PortInfo) -> String {
    match &port.dims {
        Some(dims) => Type::tensor_of(port.dtype, dims.iter().cloned()).to_string(),
        None => format!("a tensor of {}", port.dtype),
    }
}

fn mismatch(message: String) -> Diagnostic {
    Diagnostic::error(codes::frontends::CALIBRATION_MISFIT, message)
}

fn data_error(message: String) -> Diagnostic {
    Diagnostic::error(codes::frontends::NO_CALIBRATION_DATA, message)
}

fn read_arrays(
    path: &Path,
    ports: &[PortInfo],
    weights: &WeightInputs,
    limit: Option<usize>,
) -> Result<Samples, Failure> {
    let mut file = io::npz::Npz::open(path)?;
    let names = file.names().to_vec();
    if names.is_empty() {
        return Err(data_error(format!("{}: expected at least one array, found none", path.display())).into());
    }
    let mut entries = Vec::with_capacity(names.len());
    let mut mismatches = Vec::new();
    for (index, name) in names.iter().enumerate() {
        // Mismatched entries are rejected based on their headers, without decompression.
        let header = file.header(index)?;
        let port = ports.iter().find(|port| port.name == *name);
        let location = format!("{}: entry \"{name}\"", path.display());
        match port.map_or(Ok(()), |port| check_port(&location, port, header.dtype, &header.shape)) {
            Ok(()) => entries.push((name.clone(), file.read(index)?)),
            Err(mismatch) => mismatches.push(mismatch),
        }
    }
    if !mismatches.is_empty() {
        return Err(mismatches.into());
    }
    let mut warnings = Vec::new();
    let mut errors = Vec::new();
    let labels = labels::take_entry(&mut entries, ports);
    let mut values = Vec::new();
    for port in ports {
        match entries.iter().position(|(name, _)| *name == port.name) {
            Some(index) => values.push((port, entries.swap_remove(index).1)),
            None => {
                let mut error = mismatch(format!("{} has no entry for model input \"{}\"", path.display(), port.name))
                    .note(format!(
                        "entries of the file: {}",
                        names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ")
                    ));
                let unused = names.iter().map(String::as_str).filter(|n| ports.iter().all(|p| p.name != **n));
                error = match nearest(&port.name, unused) {
                    Some(suggestion) => error.help(format!("rename the entry \"{suggestion}\" to \"{}\"", port.name)),
                    None => error.help(format!("add an entry of type {}", expected_type(port))),
                };
                errors.push(error);
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors.into());
    }
    entries.retain(|(name, _)| !weights.values.contains_key(name));
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, _) in &entries {
        let message = format!("{}: entry \"{name}\" is not a model input and is ignored", path.display());
        warnings.push(Diagnostic::warning(codes::frontends::CALIBRATION_MISFIT, message));
    }
    for (port, tensor) in &values {
        let location = format!("{}: entry \"{}\"", path.display(), port.name);
        errors.extend(check_finite(&location, tensor).err());
    }
    if !errors.is_empty() {
        return Err(errors.into());
    }
    let mut samples = build_samples(path, values, limit)?;
    samples.labels = labels.map(|labels| labels.into_iter().take(limit.unwrap_or(usize::MAX)).collect());
    samples.warnings = warnings;
    Ok(samples)
}

/// Checks the element type of an array, and all its dimensions but the first, against an input. If the batch size of
/// the input is fixed, a non-empty array must have at least that many samples.
fn check_port(location: &str, port: &PortInfo, dtype: DType, shape: &[usize]) -> Result<(), Diagnostic> {
    let actual_type = Type::tensor(dtype, shape);
    if dtype != port.dtype {
        return Err(mismatch(format!("{location}: expected {}, found {actual_type}", expected_type(port)))
            .help(format!("convert the entry to {}", port.dtype)));
    }
    if let Some(dims) = &port.dims {
        let matches = |dim: &Dim, size: usize| dim.fixed().is_none_or(|n| n == size);
        let has_same_rank = dims.len() == shape.len();
        let is_rest_equal = has_same_rank && dims.iter().zip(shape).skip(1).all(|(d, &size)| matches(d, size));
        if !is_rest_equal {
            let help =
                "reshape the entry to the dimensions of the input, with the number of samples as the first dimension";
            return Err(
                mismatch(format!("{location}: expected {}, found {actual_type}", expected_type(port))).help(help)
            );
        }
        if let (Some(Dim::Fixed(batch)), Some(&rows)) = (dims.first(), shape.first())
            && rows < *batch
            && rows > 0
        {
            let message = format!("{location}: expected at least {batch} samples, found {rows}");
            return Err(mismatch(message).help("provide a multiple of the fixed batch size of the model"));
        }
    }
    Ok(())
}

/// Checks that all values are finite.
fn check_finite(location: &str, tensor: &Tensor) -> Result<(), Diagnostic> {
    if !tensor.dtype().is_float() {
        return Ok(());
    }
    let invalid_element = with_dtype!(tensor.dtype(), T => {
        tensor.as_slice::<T>().iter().map(|v| v.to_f64()).enumerate().find(|(_, v)| !v.is_finite())
    });
    let Some((position, value)) = invalid_element else { return Ok(()) };
    let mut index = vec![0; tensor.shape().len()];
    let mut remainder = position;
    for (i, &size) in index.iter_mut().zip(tensor.shape()).rev() {
        (*i, remainder) = (remainder % size, remainder / size);
    }
    Err(Diagnostic::error(
        codes::frontends::CALIBRATION_NOT_FINITE,
        format!("{location}: expected finite values, found {value} at {index:?}"),
    )
    .help("remove or correct the sample, because the ranges are computed from all samples"))
}

/// Combines the input values into samples.
fn build_samples(path: &Path, values: Vec<(&PortInfo, Tensor)>, limit: Option<usize>) -> Result<Samples, Failure> {
    let mut inputs = Vec::new();
    let mut count: Option<(usize, &str)> = None;
    let mut fixed_batch: Option<usize> = None;
    // True if the first dimension of some input is symbolic, or differs from the first dimension of its array. In that
    // case, an array that matches the fixed first dimension of its input is broadcast.
    let has_open_batch = values.iter().any(|(port, tensor)| match port.dims.as_deref().and_then(<[Dim]>::first) {
        Some(Dim::Fixed(n)) => tensor.shape().first().is_some_and(|rows| rows != n),
        Some(_) => true,
        None => false,
    });
    for (port, tensor) in values {
        let batch_dim = port.dims.as_deref().and_then(<[Dim]>::first);
        let batch = batch_dim.and_then(Dim::fixed);
        let is_single_run = match (batch_dim, tensor.shape().first()) {
            (None, _) | (_, None) => true,
            (Some(Dim::Fixed(n)), Some(rows)) => n == rows && has_open_batch,
            _ => false,
        };
        if is_single_run {
            inputs.push(Column::Broadcast(tensor));
            continue;
        }
        let rows = tensor.shape()[0];
        match count {
            Some((other_rows, name)) if other_rows != rows => {
                let message = format!(
                    "{}: expected {other_rows} samples for \"{}\", as for \"{name}\", found {rows}",
                    path.display(),
                    port.name
                );
                return Err(mismatch(message).help("provide the same number of samples for every input").into());
            }
            _ => count = Some((rows, &port.name)),
        }
        if let Some(batch) = batch {
            if fixed_batch.is_some_and(|other| other != batch) {
                let message = format!(
                    "expected the same batch size for all inputs of the model, found {batch} for \"{}\"",
                    port.name
                );
                return Err(mismatch(message).help("calibrate the model with one value per input").into());
            }
            fixed_batch = Some(batch);
        }
        inputs.push(Column::Rows(tensor));
    }
    let (mut count, fixed_batch) = match count {
        Some((count, _)) => (count, fixed_batch),
        // Every input has a single value, so there is one run.
        None => (1, Some(1)),
    };
    if count == 0 {
        return Err(data_error(format!(
            "{}: expected at least one sample, found a first dimension of 0",
            path.display()
        ))
        .into());
    }
    count = count.min(limit.unwrap_or(usize::MAX)).max(fixed_batch.unwrap_or(1));
    Ok(Samples { inputs, count, fixed_batch, labels: None, warnings: Vec::new() })
}

fn read_images(
    dir: &Path,
    ports: &[PortInfo],
    normalization: &image::Normalization,
    limit: Option<usize>,
) -> Result<Samples, Failure> {
    let [port] = ports else {
        return Err(mismatch(format!(
            "{}: expected an .npz for a model with {} inputs, found a directory of images",
            dir.display(),
            ports.len()
        ))
        .help("provide an .npz with an entry for each input")
        .into());
    };
    let paths = std::fs::read_dir(dir).and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect());
    let mut files: Vec<PathBuf> = paths.map_err(|e: std::io::Error| io::bad_file(dir, e))?;
    files.retain(|file| {
        let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        !file.is_dir() && ["png", "jpg", "jpeg"].contains(&extension.as_str())
    });
    files.sort();
    if files.is_empty() {
        return Err(data_error(format!("{}: expected at least one image, found none", dir.display()))
            .note("images are .png, .jpg and .jpeg files directly in the directory")
            .into());
    }
    files.truncate(limit.unwrap_or(usize::MAX));
    let shape = one_sample(port)?;
    let mut bytes = Vec::new();
    for file in &files {
        bytes.extend_from_slice(image::load(file, port.dtype, &shape, normalization)?.bytes());
    }
    let shape: Shape = std::iter::once(files.len()).chain(shape[1..].iter().copied()).collect();
    let Some(tensor) = Tensor::from_bytes(port.dtype, &shape, &bytes) else {
        let (dir, expected) = (dir.display(), expected_type(port));
        return Err(mismatch(format!("{dir}: expected {expected}, found a directory of images")).into());
    };
    check_finite(&format!("{}: normalized images", dir.display()), &tensor)?;
    let fixed_batch = port.dims.as_deref().and_then(<[Dim]>::first).and_then(Dim::fixed);
    if let Some(batch) = fixed_batch.filter(|&batch| batch > files.len()) {
        let message = format!("{}: expected at least {batch} images, found {}", dir.display(), files.len());
        return Err(mismatch(message).help("add images").into());
    }
    Ok(Samples {
        inputs: vec![Column::Rows(tensor)],
        count: files.len(),
        fixed_batch,
        labels: None,
        warnings: Vec::new(),
    })
}

fn random_samples(seed: u64, ports: &[PortInfo], count: usize) -> Result<Samples, Failure> {
    let fixed_dim = |port: &PortInfo| port.dims.as_deref().and_then(<[Dim]>::first).and_then(Dim::fixed);
    let batch = ports.iter().find_map(fixed_dim);
    let has_mixed_batches = ports.iter().any(|port| fixed_dim(port) != batch);
    let mut inputs = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let seed = seed ^ index as u64;
        let is_scalar = port.dims.as_ref().is_some_and(Vec::is_empty);
        if is_scalar || has_mixed_batches && fixed_dim(port).is_some() {
            let shape: Shape = if is_scalar { Shape::new() } else { sizes(port)?.into_iter().collect() };
            let value = io::random::try_tensor(port.dtype, &shape, seed).map_err(Diagnostic::from)?;
            inputs.push(Column::Broadcast(value));
            continue;
        }
        let sample = one_sample(port)?;
        let rows = count.max(batch.unwrap_or(1));
        let shape: Shape = std::iter::once(rows).chain(sample[1..].iter().copied()).collect();
        let values = io::random::try_tensor(port.dtype, &shape, seed).map_err(Diagnostic::from)?;
        inputs.push(Column::Rows(values));
    }
    let has_rows = inputs.iter().any(|column| matches!(column, Column::Rows(_)));
    let fixed_batch = if has_mixed_batches { None } else { batch };
    let (count, fixed_batch) = if has_rows { (count.max(fixed_batch.unwrap_or(1)), fixed_batch) } else { (1, Some(1)) };
    let message = "calibration with random data: the ranges do not reflect real inputs";
    let warning = Diagnostic::warning(codes::frontends::CALIBRATION_MADE_UP, message)
        .help("for production, pass real samples with --calibrate FILE.npz or a directory of images");
    Ok(Samples { inputs, count, fixed_batch, labels: None, warnings: vec![warning] })
}

/// Returns the shape of an input for one sample; all its dimensions but the first must be known.
fn one_sample(port: &PortInfo) -> Result<Vec<usize>, Diagnostic> {
    let mut item_port = port.clone();
    if let Some(batch_dim) = item_port.dims.as_mut().and_then(|dims| dims.first_mut()) {
        *batch_dim = Dim::Fixed(1);
    }
    sizes(&item_port)
}

fn sizes(port: &PortInfo) -> Result<Vec<usize>, Diagnostic> {
    let sizes: Option<Vec<usize>> = port.dims.as_ref().and_then(|dims| dims.iter().map(Dim::fixed).collect());
    sizes.filter(|sizes| !sizes.is_empty()).ok_or_else(|| {
        mismatch(format!("input \"{}\": expected known dimensions, found {}", port.name, expected_type(port)))
            .help("bind the dimensions with --dim NAME=N, or provide an .npz")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, dims: &[Dim]) -> PortInfo {
        PortInfo::tensor(name, DType::F32, Some(dims.to_vec()))
    }

    fn signature(inputs: Vec<PortInfo>) -> Signature {
        Signature { inputs, ..Signature::default() }
    }

    fn npz(entries: &[(&str, Tensor)]) -> (tempfile::TempDir, Source) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.npz");
        io::npz::write(&path, entries.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        (dir, Source::Arrays(path))
    }

    fn batch() -> Dim {
        Dim::symbol("batch")
    }

    fn read_error(source: &Source, signature: &Signature) -> Diagnostic {
        read(source, signature, &WeightInputs::default(), &BTreeMap::new(), None).unwrap_err().diagnostics.remove(0)
    }

    #[test]
    fn open_batch_accepts_any_number_of_samples() {
        let (_dir, source) = npz(&[("x", Tensor::from_slice(&[5, 2], &[0f32, 1., 2., 3., 4., 5., 6., 7., 8., 9.]))]);
        let samples = read(
            &source,
            &signature(vec![port("x", &[batch(), Dim::Fixed(2)])]),
            &WeightInputs::default(),
            &BTreeMap::new(),
            None,
        )
        .unwrap();
        assert_eq!((samples.count, samples.batch(), samples.fixed_batch), (5, 5, None));
        assert_eq!(samples.rows(1, 2), [Tensor::from_slice(&[2, 2], &[2f32, 3., 4., 5.])]);
        let first_samples = read(
            &source,
            &signature(vec![port("x", &[batch(), Dim::Fixed(2)])]),
            &WeightInputs::default(),
            &BTreeMap::new(),
            Some(3),
        )
        .unwrap();
        assert_eq!(first_samples.count, 3);
    }

    #[test]
    fn repeats_single_value_for_every_sample() {
        let (_dir, source) = npz(&[
            ("x", Tensor::zeros(DType::F32, &[4, 2]).unwrap()),
            ("mask", Tensor::from_slice(&[3], &[1f32, 2., 3.])),
            ("t", Tensor::scalar(7f32)),
        ]);
        let inputs = vec![port("x", &[batch(), Dim::Fixed(2)]), port("mask", &[Dim::Fixed(3)]), port("t", &[])];
        let samples = read(&source, &signature(inputs), &WeightInputs::default(), &BTreeMap::new(), None).unwrap();
        assert_eq!(samples.count, 4);
        assert_eq!(samples.shapes(2), [vec![2, 2], vec![3], vec![]]);
        assert_eq!(samples.rows(2, 1)[1], Tensor::from_slice(&[3], &[1f32, 2., 3.]));
    }

    #[test]
    fn reports_misfits_with_their_place() {
        let model = signature(vec![port("image", &[batch(), Dim::Fixed(2)])]);
        let (_a, source) = npz(&[("imag", Tensor::zeros(DType::F32, &[4, 2]).unwrap())]);
        let error = read_error(&source, &model);
        assert_eq!(error.code, codes::frontends::CALIBRATION_MISFIT);
        assert!(
            error.message.contains("no entry for model input \"image\"") && error.help.unwrap().contains("\"imag\"")
        );
        let (_b, source) = npz(&[("image", Tensor::zeros(DType::F32, &[4, 3]).unwrap())]);
        let error = read_error(&source, &model);
        assert!(error.message.contains("(4, 3)") && error.message.contains("(batch, 2)"), "{error}");
        let (_c, source) = npz(&[("image", Tensor::zeros(DType::F64, &[4, 2]).unwrap())]);
        assert!(read_error(&source, &model).message.contains("float64"));
        let (_d, source) = npz(&[("image", Tensor::from_slice(&[2, 2], &[0f32, 1., f32::NAN, 3.]))]);
        let error = read_error(&source, &model);
        assert_eq!(error.code, codes::frontends::CALIBRATION_NOT_FINITE);
        assert!(error.message.ends_with("entry \"image\": expected finite values, found NaN at [1, 0]"), "{error}");
        let (_e, source) = npz(&[("image", Tensor::zeros(DType::F32, &[0, 2]).unwrap())]);
        assert_eq!(read_error(&source, &model).code, codes::frontends::NO_CALIBRATION_DATA);
        let (_f, source) = npz(&[]);
        assert_eq!(read_error(&source, &model).code, codes::frontends::NO_CALIBRATION_DATA);
        let (_g, source) = npz(&[("image", Tensor::zeros(DType::F32, &[3, 2]).unwrap())]);
        let error = read_error(&source, &signature(vec![port("image", &[Dim::Fixed(4), Dim::Fixed(2)])]));
        assert!(error.message.contains("expected at least 4 samples, found 3"), "{error}");
        let two_inputs = signature(vec![port("a", &[batch(), Dim::Fixed(2)]), port("b", &[batch(), Dim::Fixed(2)])]);
        let (_h, source) = npz(&[
            ("a", Tensor::zeros(DType::F32, &[4, 2]).unwrap()),
            ("b", Tensor::zeros(DType::F32, &[5, 2]).unwrap()),
        ]);
        assert!(read_error(&source, &two_inputs).message.contains("4 samples for \"b\", as for \"a\", found 5"));
    }

    #[test]
    fn warns_about_unused_entries_and_keeps_labels() {
        let model = signature(vec![port("image", &[batch(), Dim::Fixed(2)])]);
        let (_dir, source) = npz(&[
            ("image", Tensor::zeros(DType::F32, &[2, 2]).unwrap()),
            ("label", Tensor::from_slice(&[2], &[7i64, 1])),
            ("other", Tensor::scalar(0f32)),
        ]);
        let samples = read(&source, &model, &WeightInputs::default(), &BTreeMap::new(), None).unwrap();
        assert_eq!(samples.labels, Some(vec![7, 1]));
        assert_eq!(samples.warnings.len(), 1);
        assert!(samples.warnings[0].message.contains("\"other\""));
    }

    #[test]
    fn rejects_directory_without_images_and_model_with_two_inputs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("readme.txt"), "no picture").unwrap();
        let source = Source::parse(&dir.path().display().to_string(), image::Normalization::default());
        let image = port("x", &[batch(), Dim::Fixed(1), Dim::Fixed(2), Dim::Fixed(2)]);
        assert_eq!(read_error(&source, &signature(vec![image.clone()])).code, codes::frontends::NO_CALIBRATION_DATA);
        assert_eq!(
            read_error(&source, &signature(vec![image.clone(), image])).code,
            codes::frontends::CALIBRATION_MISFIT
        );
    }

    #[test]
    fn warns_about_random_data() {
        let model = signature(vec![port("x", &[Dim::Fixed(1), Dim::Fixed(2)])]);
        assert_eq!(Source::parse("random:7", image::Normalization::default()), Source::Random(7));
        let samples = read(&Source::Random(7), &model, &WeightInputs::default(), &BTreeMap::new(), None).unwrap();
        assert_eq!((samples.count, samples.fixed_batch), (RANDOM_SAMPLES, Some(1)));
        assert_eq!(samples.warnings[0].code, codes::frontends::CALIBRATION_MADE_UP);
    }
}
