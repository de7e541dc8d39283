//! File tests: cases in files, with the expectations beside the input; `BYOC_BLESS=1` rewrites the expectations.

use byoc_ir::tensor::{DType, Tensor};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Result of a case: the text of the case with the actual results. The case passes if this text equals the original.
pub type Outcome = Result<String, String>;

/// Line between two cases of a file.
const SEPARATOR: &str = "// ====\n";

/// Returns the files of cases in a directory, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "relay" || e == "patterns")).collect();
    files.sort();
    files
}

/// Returns true if the run rewrites the expectations.
pub fn is_blessing() -> bool {
    std::env::var_os("BYOC_BLESS").is_some()
}

/// Returns the cases of a file.
///
/// # Errors
/// If the file cannot be read.
pub fn read_cases(path: &Path) -> Result<Vec<String>, String> {
    let source = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(source.split(SEPARATOR).map(str::to_owned).collect())
}

/// Runs the cases of a file. A case passes if `run` returns its text unchanged; in a run that rewrites the expectations,
/// the returned texts are written to the file.
///
/// # Errors
/// If a case fails; the message has the differences.
pub fn check_file(path: &Path, run: impl Fn(&str) -> Outcome) -> Result<(), String> {
    let is_blessing = is_blessing();
    let cases = read_cases(path)?;
    let mut failures = Vec::new();
    let mut blessed_cases = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        match run(case) {
            Ok(actual) => {
                if actual != *case {
                    let diff = similar::TextDiff::from_lines(case.as_str(), &actual);
                    let diff = diff.unified_diff().header("expected", "actual").to_string();
                    failures.push(format!("case {i}:\n{diff}"));
                }
                blessed_cases.push(actual);
            }
            Err(failed) => {
                failures.push(format!("case {i}: {failed}"));
                blessed_cases.push(case.to_owned());
            }
        }
    }
    if is_blessing && blessed_cases != cases {
        fs::write(path, blessed_cases.join(SEPARATOR)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if failures.is_empty() || is_blessing {
        Ok(())
    } else {
        Err(format!("{}\n{}\nBYOC_BLESS=1 rewrites the expectations", path.display(), failures.join("\n")))
    }
}

/// Returns the values of `// key: value` lines, in order.
pub fn headers<'c>(case: &'c str, key: &str) -> Vec<&'c str> {
    let value = |line: &'c str| line.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(':').map(str::trim);
    case.lines().filter_map(value).collect()
}

/// Parses the constants that a case declares.
///
/// # Errors
/// If the line of a constant does not have the form `DTYPE (DIMS): VALUES`.
pub fn constants(case: &str) -> Result<Vec<Arc<Tensor>>, String> {
    headers(case, "constant")
        .into_iter()
        .map(|line| {
            constant(line).map(Arc::new).ok_or_else(|| format!("constant: expected DTYPE (DIMS): VALUES, found {line}"))
        })
        .collect()
}

/// Parses `float32 (2, 2): 1 2 3 4`. A single value fills the tensor, and `ramp` stands for multiples of an eighth from -1
/// to 1, over and over.
fn constant(line: &str) -> Option<Tensor> {
    let (dtype, rest) = line.split_once(' ')?;
    let (shape, values) = rest.split_once(':')?;
    let shape = shape.trim().strip_prefix('(')?.strip_suffix(')')?;
    let shape: Vec<usize> =
        shape.split(',').map(str::trim).filter(|d| !d.is_empty()).map(|d| d.parse().ok()).collect::<Option<_>>()?;
    let count = shape.iter().product();
    let values: Vec<f64> = match values.trim() {
        "ramp" => (0..count).map(|i| (i % 17) as f64 / 8.0 - 1.0).collect(),
        values => values.split_whitespace().map(|v| v.parse().ok()).collect::<Option<_>>()?,
    };
    let values: Vec<f64> = if values.len() == 1 { vec![values[0]; count] } else { values };
    if values.len() != count {
        return None;
    }
    Some(match DType::parse(dtype)? {
        DType::F32 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as f32).collect::<Vec<_>>()),
        DType::I8 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as i8).collect::<Vec<_>>()),
        DType::I32 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as i32).collect::<Vec<_>>()),
        DType::I64 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as i64).collect::<Vec<_>>()),
        DType::Bool => Tensor::from_bools(&shape, &values.iter().map(|&v| v != 0.0).collect::<Vec<_>>()),
        _ => return None,
    })
}
