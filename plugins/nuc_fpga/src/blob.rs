//! A command list on disk: eight bytes of magic, the form's version and the length of the rest (32 and 64 bits,
//! little-endian), and the program as JSON.

use crate::program::Program;
use byoc_plugin_api::{Error, Result};

const MAGIC: &[u8; 8] = b"NUCFPGA\n";

/// The version of the form that this plugin writes and reads.
pub const VERSION: u32 = 1;

/// The most commands of a program that is read.
const MOST_COMMANDS: usize = 1 << 16;

/// Writes a program.
pub fn write(program: &Program) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(program)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&text);
    Ok(bytes)
}

/// Reads and checks a program.
///
/// # Errors
/// Where it is none, of another version, damaged, or would reach beside its tensors.
pub fn read(bytes: &[u8]) -> Result<Program> {
    let damaged = |what: &str| Error::new(format!("the region's command list is damaged: {what}"));
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| Error::new("the region is no command list of nuc_fpga: it does not begin with its magic"))?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(|| damaged("it ends in its header"))?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(Error::new(format!(
            "the region's command list has version {version}; this plugin reads {VERSION}"
        ))
        .hint("compile the model again with this plugin"));
    }
    let (length, text) = rest.split_first_chunk::<8>().ok_or_else(|| damaged("it ends in its header"))?;
    let length = u64::from_le_bytes(*length);
    if length != text.len() as u64 {
        return Err(damaged(&format!("{} bytes of commands, {length} promised", text.len())));
    }
    let program: Program = serde_json::from_slice(text).map_err(|error| damaged(&error.to_string()))?;
    if program.commands.len() > MOST_COMMANDS {
        return Err(damaged(&format!("{} commands, {MOST_COMMANDS} at most", program.commands.len())));
    }
    program.check().map_err(|what| damaged(&what))?;
    Ok(program)
}
