//! Device parameters, from this crate's `device.json` or from a file next to the library with the library's name
//! (`libbyoc_nuc_fpga.so` reads `libbyoc_nuc_fpga.json`).

use byoc_plugin_api::{Error, Result};
use serde::Deserialize;
use std::path::Path;

/// Device parameters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of array rows: terms of a dot product that are multiplied per cycle.
    pub array_rows: u64,
    /// Number of array columns: output channels that are accumulated per cycle.
    pub array_columns: u64,
    /// Clock frequency in hertz.
    pub clock_hz: u64,
    /// Size of the feature map buffer in bytes. All buffers are double-buffered: one half is transferred while the
    /// array processes the other half.
    pub input_buffer_bytes: u64,
    /// Size of the kernel buffer in bytes.
    pub weight_buffer_bytes: u64,
    /// Size of the accumulator buffer in bytes.
    pub sum_buffer_bytes: u64,
    /// Bandwidth between DRAM and the buffers in bytes per second, in one direction at a time.
    pub dram_bytes_per_second: u64,
    /// Maximum burst size in bytes.
    pub dram_burst_bytes: u64,
    /// Latency of a burst's first byte in cycles.
    pub dram_burst_latency_cycles: u64,
}

impl Default for Config {
    fn default() -> Config {
        parse(include_str!("../../device.json")).expect("the crate's device.json is valid")
    }
}

impl Config {
    /// Reads the file next to the library. Without a file, returns the defaults.
    ///
    /// # Errors
    /// If the file cannot be read, lacks a parameter, or has an unknown or out-of-range parameter.
    pub fn load_beside(library: &Path) -> Result<Config> {
        let path = library.with_extension("json");
        if !path.exists() {
            return Ok(Config::default());
        }
        let invalid = |problem: String| Error::new(format!("{}: {problem}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
        parse(&text).map_err(invalid)
    }
}

fn parse(text: &str) -> std::result::Result<Config, String> {
    let config: Config = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let bounds = [
        ("array_rows", config.array_rows, 1, 4096),
        ("array_columns", config.array_columns, 1, 4096),
        ("clock_hz", config.clock_hz, 1, 1 << 40),
        ("input_buffer_bytes", config.input_buffer_bytes, 2, 1 << 40),
        ("weight_buffer_bytes", config.weight_buffer_bytes, 2, 1 << 40),
        ("sum_buffer_bytes", config.sum_buffer_bytes, 8, 1 << 40),
        ("dram_bytes_per_second", config.dram_bytes_per_second, 1, 1 << 50),
        ("dram_burst_bytes", config.dram_burst_bytes, 1, 1 << 40),
        ("dram_burst_latency_cycles", config.dram_burst_latency_cycles, 0, 1 << 20),
    ];
    for (name, value, min, max) in bounds {
        if !(min..=max).contains(&value) {
            return Err(format!("{name}: expected {min} to {max}, found {value}"));
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_beside_the_library_overrides_the_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libbyoc_nuc_fpga.so");
        assert_eq!(Config::load_beside(&library).unwrap(), Config::default());
        let write = |text: &str| std::fs::write(dir.path().join("libbyoc_nuc_fpga.json"), text).unwrap();
        let text = include_str!("../../device.json");
        write(&text.replace("\"array_rows\": 16", "\"array_rows\": 32"));
        assert_eq!(Config::load_beside(&library).unwrap(), Config { array_rows: 32, ..Config::default() });
        for (original, replacement, expected) in [
            ("\"array_rows\": 16", "\"array_rows\": 0", "array_rows: expected 1 to 4096, found 0"),
            ("\"array_rows\": 16", "\"array_row\": 16", "unknown field `array_row`"),
            ("\"array_rows\": 16,", "", "missing field `array_rows`"),
            ("\"array_rows\": 16", "\"array_rows\": -1", "invalid value"),
        ] {
            write(&text.replace(original, replacement));
            let error = Config::load_beside(&library).unwrap_err();
            assert!(error.message.contains(expected) && error.message.contains("libbyoc_nuc_fpga.json"), "{error}");
        }
    }
}
