//! The `.byoc` file: a built model in one file, mapped where it is used.
//!
//! It is a ZIP archive with stored entries, each beginning at a multiple of 64 bytes, so that constants are used where
//! they lie in the mapped file. `docs/artifact.md` describes the format. Nothing in it depends on time, folder or threads.
//!
//! Before anything in a file is used its digest is compared; after that every entry's, and every tensor's. What a correct
//! digest does not say is whether the contents make sense, so they are checked too: [`crate::runtime::validate`].

mod manifest;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use manifest::{Entry, FORMAT, Manifest, RegionRecord, TensorRecord};
pub use read::{Artifact, open};
pub use write::{write, write_to};

/// What the archive's comment begins with; the digest of everything before follows in hexadecimal.
const TRAILER: &[u8] = b"byoc-blake3:";

/// Hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// Entries begin at multiples of this.
const ALIGN: usize = 64;

const MANIFEST: &str = "manifest.json";
const PROGRAM: &str = "program.json";
const WEIGHTS: &str = "weights.safetensors";
