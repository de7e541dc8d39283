//! Relay text and weights files, written by tests.

use byoc_test_support::random::Random;
use std::fmt::Write;
use std::path::Path;

/// Model constant, with its element type as spelled in safetensors files.
pub struct Constant {
    pub dtype: &'static str,
    pub shape: Vec<i64>,
    pub bytes: Vec<u8>,
}

/// Relay text and the constants to which it refers.
#[derive(Default)]
pub struct Model {
    pub text: String,
    pub constants: Vec<Constant>,
}

impl Model {
    /// Adds a constant, and returns the reference to it for the text.
    pub fn constant(&mut self, dtype: &'static str, shape: &[i64], bytes: Vec<u8>) -> String {
        self.constants.push(Constant { dtype, shape: shape.to_vec(), bytes });
        format!("meta[relay.Constant][{}]", self.constants.len() - 1)
    }

    /// Writes the model to `dir` and returns the path of the text.
    pub fn write(&self, dir: &Path) -> String {
        let file = dir.join("m.relay");
        std::fs::write(&file, &self.text).unwrap();
        let (mut header, mut data) = (String::new(), Vec::new());
        for (i, constant) in self.constants.iter().enumerate() {
            let start = data.len();
            data.extend_from_slice(&constant.bytes);
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                header,
                "{comma}\"{i}\":{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{start},{}]}}",
                constant.dtype,
                constant.shape,
                data.len()
            );
        }
        let mut header = format!("{{{header}}}");
        while header.len() % 8 != 0 {
            header.push(' ');
        }
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&data);
        std::fs::write(dir.join("m.relay.safetensors"), bytes).unwrap();
        file.display().to_string()
    }
}

/// Converts a float32 that is zero or exactly representable as a normal float16 to its float16 bit pattern.
pub fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    if value == 0.0 {
        return 0;
    }
    let exponent = (bits >> 23 & 255) as i32 - 112;
    assert!((1..31).contains(&exponent) && bits & 0x1fff == 0, "expected a normal float16, found {value}");
    (bits >> 16 & 0x8000) as u16 | (exponent as u16) << 10 | (bits >> 13 & 1023) as u16
}

/// Returns a number in (-1, 1), a multiple of 1/64.
pub fn next_real(random: &mut Random) -> f32 {
    random.between(-63, 63) as f32 / 64.0
}
