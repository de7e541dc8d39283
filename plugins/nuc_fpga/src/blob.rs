//! Serialized form of a command list: 8-byte magic number, format version (32 bits, little-endian), length of the list
//! in bytes (64 bits, little-endian), and the list as JSON.

use crate::command_list::CommandList;
use byoc_plugin_api::{Error, Result};

const MAGIC: &[u8; 8] = b"NUCFPGA\n";

/// Format version that this plugin writes and reads.
pub const VERSION: u32 = 1;

/// Maximum number of commands in a list.
const MAX_COMMANDS: usize = 1 << 16;

/// Serializes a command list.
pub fn write(list: &CommandList) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(list)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&text);
    Ok(bytes)
}

/// Parses and validates a command list.
///
/// # Errors
/// If the bytes are not a command list, have an unsupported version, are corrupt, or describe accesses outside the
/// list's tensors.
pub fn read(bytes: &[u8]) -> Result<CommandList> {
    let invalid = |problem: &str| Error::new(format!("command list: {problem}"));
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| Error::new("expected a nuc_fpga command list, found foreign or corrupted data"))?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(|| invalid("truncated header"))?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(Error::new(format!("command list: expected version {VERSION}, found {version}"))
            .hint("compile the model again with this plugin"));
    }
    let (length, text) = rest.split_first_chunk::<8>().ok_or_else(|| invalid("truncated header"))?;
    let length = u64::from_le_bytes(*length);
    if length != text.len() as u64 {
        return Err(invalid(&format!("expected {length} bytes of commands, found {}", text.len())));
    }
    let list: CommandList = serde_json::from_slice(text).map_err(|error| invalid(&error.to_string()))?;
    if list.commands.len() > MAX_COMMANDS {
        return Err(invalid(&format!("expected at most {MAX_COMMANDS} commands, found {}", list.commands.len())));
    }
    list.check().map_err(|problem| invalid(&problem))?;
    Ok(list)
}
