//! Second half of the demo: runs the classifier, quantized to int8, on the software models of two accelerators.

use crate::process::output;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::Command;

/// Backends of the accelerators.
pub const BACKENDS: [&str; 2] = ["nuc_fpga", "vta"];

/// Minimum number of correct classifications out of 360; the float model has 357.
const MIN_CORRECT: usize = 355;

/// Classifies all test pictures with a quantized model in one run, prints the number of correct classifications, and
/// lists the device calls recorded in the trace.
pub fn classify(
    byoc: impl Fn(&[&str]) -> Command,
    model: &str,
    build: &[&str],
    pictures: &Path,
    trace: &Path,
) -> Result<(), String> {
    let input = format!("image={}", pictures.display());
    let trace_text = trace.display().to_string();
    let run =
        ["run", model, "--input", &input, "--labels", "tests/digits/labels.txt", "--json", "--trace", &trace_text];
    let stdout = output(&mut byoc(&[&run, build].concat()))?;
    let labels = labels(pictures)?;
    let rows: Vec<Value> = stdout.lines().map(parse).collect::<Result<_, _>>()?;
    if rows.len() != labels.len() {
        return Err(format!("expected one result per picture, found {} for {} pictures", rows.len(), labels.len()));
    }
    let correct = rows.iter().zip(&labels).filter(|(row, label)| row["top"][0]["label"] == label.to_string()).count();
    println!("  {correct} of {} correct", labels.len());
    if correct < MIN_CORRECT {
        return Err(format!("expected at least {MIN_CORRECT} of {} correct results, found {correct}", labels.len()));
    }
    let text = std::fs::read_to_string(trace).map_err(|e| format!("{}: {e}", trace.display()))?;
    let trace = parse(&text)?;
    let events = trace["traceEvents"].as_array().map(Vec::as_slice).unwrap_or_default();
    println!("  {:<16} {:>10} {:>12} {:>8}  arguments", "call", "cycles", "utilization", "MB");
    let mut calls = 0;
    for event in events.iter().filter(|event| event["cat"] == "plugin" && event["ph"] == "i") {
        let (name, fields) = (event["name"].as_str().unwrap_or_default(), &event["args"]);
        let number = |key: &str| fields[key].as_f64().unwrap_or(f64::NAN);
        let (share, megabytes) = (100.0 * number("utilisation"), number("bytes") / 1e6);
        // The event of a layer with several operators contains the names of all operators; only the first name is
        // printed.
        let name = name.split([',', ' ']).next().unwrap_or_default();
        let arguments = fields["arguments"].to_string();
        println!("  {name:<16} {:>10} {share:>10.1} % {megabytes:>8.2}  {arguments}", fields["cycles"].to_string());
        calls += 1;
    }
    if calls == 0 {
        return Err("expected device calls in the trace, found none".into());
    }
    Ok(())
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text)
        .map_err(|e| format!("output of byoc: {e}: {}", text.chars().take(80).collect::<String>()))
}

/// Returns the correct classes: the entry `label` of the picture archive, 64-bit integers in NumPy format.
fn labels(archive: &Path) -> Result<Vec<i64>, String> {
    let error = |reason: String| format!("{}: {reason}", archive.display());
    let file = std::fs::File::open(archive).map_err(|e| error(e.to_string()))?;
    let mut archive_entries = zip::ZipArchive::new(file).map_err(|e| error(e.to_string()))?;
    let mut bytes = Vec::new();
    archive_entries
        .by_name("label.npy")
        .map_err(|e| error(e.to_string()))?
        .read_to_end(&mut bytes)
        .map_err(|e| error(e.to_string()))?;
    // Layout: magic and version (eight bytes), length of the header (two bytes), header, elements.
    let header = bytes.get(8..10).map(|b| usize::from(b[0]) | usize::from(b[1]) << 8);
    let text = header.and_then(|length| bytes.get(10..10 + length)).unwrap_or_default();
    let header_text = String::from_utf8_lossy(text);
    if !header_text.contains("'<i8'") {
        return Err(error(format!("label: expected an array of 64-bit integers, found {}", header_text.trim())));
    }
    Ok(bytes[10 + text.len()..].as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect())
}
