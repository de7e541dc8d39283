//! Sample labels, and the number of samples that a model classifies correctly.

use byoc::frontend::PortInfo;
use byoc::io;
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::Type;
use byoc_ir::tensor::Tensor;
use std::path::Path;

/// Accepted names of the label entry in an `.npz` file of samples.
const NAMES: &[&str] = &["label", "labels", "y"];

/// Removes the label entry from the entries of a file and returns the labels. An entry that is a model input is never
/// the label entry.
pub fn take_entry(entries: &mut Vec<(String, Tensor)>, ports: &[PortInfo]) -> Option<Vec<i64>> {
    let index = entries.iter().position(|(name, tensor)| {
        NAMES.contains(&name.as_str())
            && ports.iter().all(|port| port.name != *name)
            && tensor.shape().len() == 1
            && tensor.view().to_i64s().is_some()
    })?;
    entries.swap_remove(index).1.view().to_i64s()
}

/// Reads labels from an integer array (`.npy`, `.pb`, or the entry `label` or the only entry of an `.npz` file), or
/// from a text file with one integer per line.
///
/// # Errors
/// E0512 if the file cannot be read or contains a value that is not an integer.
pub fn read(path: &Path) -> Result<Vec<i64>, Failure> {
    let label_error = |reason: String| Failure::from(io::bad_file(path, reason));
    match path.extension().and_then(|e| e.to_str()) {
        Some("npy" | "npz" | "pb") => {
            let tensor = io::read_tensor(path, Some("label"))?;
            let values = tensor.view().to_i64s().filter(|_| tensor.shape().len() == 1);
            let tensor_type = Type::tensor(tensor.dtype(), tensor.shape());
            values.ok_or_else(|| label_error(format!("expected a vector of integer labels, found {tensor_type}")))
        }
        _ => {
            let text = io::read_text(path).map_err(|e| label_error(e.to_string()))?;
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            lines
                .map(|(i, line)| {
                    let parsed_label = line.trim().parse();
                    parsed_label.map_err(|_| {
                        label_error(format!("line {}: expected a class index, found \"{}\"", i + 1, line.trim()))
                    })
                })
                .collect()
        }
    }
}

/// Checks that there are `samples` labels.
///
/// # Errors
/// E0614 if the number of labels differs from `samples`.
pub fn check(labels: &[i64], samples: usize) -> Result<(), Diagnostic> {
    if labels.len() == samples {
        return Ok(());
    }
    Err(Diagnostic::error(
        codes::runtime::BAD_LABELS,
        format!("expected {samples} labels, one per calibration sample, found {}", labels.len()),
    )
    .help("provide one label for each sample, in the same order"))
}

/// Counts the rows of `outputs` whose largest value is at the index of their label.
pub fn count_correct(outputs: &[f64], labels: &[i64]) -> usize {
    let classes = outputs.len() / labels.len().max(1);
    let rows = outputs.chunks(classes.max(1)).zip(labels);
    rows.filter(|(row, label)| {
        let prediction = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)));
        prediction.is_some_and(|prediction| prediction as i64 == **label)
    })
    .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_from_texts_and_arrays() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("labels.txt");
        std::fs::write(&text, "3\n\n 1\n").unwrap();
        assert_eq!(read(&text).unwrap(), [3, 1]);
        std::fs::write(&text, "3\ncat\n").unwrap();
        assert!(
            read(&text).unwrap_err().diagnostics[0].message.contains("line 2: expected a class index, found \"cat\"")
        );
        let array = dir.path().join("labels.npy");
        io::npy::write(&array, &Tensor::from_slice(&[2], &[5u8, 6])).unwrap();
        assert_eq!(read(&array).unwrap(), [5, 6]);
        io::npy::write(&array, &Tensor::from_slice(&[2], &[5f32, 6.0])).unwrap();
        assert_eq!(read(&array).unwrap_err().diagnostics[0].code, codes::frontends::BAD_TENSOR_FILE);
    }

    #[test]
    fn largest_value_is_the_prediction() {
        let outputs = [0.1, 0.9, 0.0, 2.0, 2.0, 1.0];
        assert_eq!(count_correct(&outputs, &[1, 0]), 2);
        assert_eq!(count_correct(&outputs, &[1, 1]), 1);
        assert_eq!(count_correct(&[], &[]), 0);
        assert_eq!(check(&[1], 2).unwrap_err().code, codes::runtime::BAD_LABELS);
    }
}
