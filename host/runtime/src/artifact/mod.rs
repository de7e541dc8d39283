//! The `.byoc` file: a built model in one file, which is mapped into memory for use.
//!
//! The file is a ZIP archive of uncompressed entries, aligned to 64 bytes, so that constants are used in place in the
//! mapped file. `docs/artifact.md` describes the format. The contents do not depend on the time, the directory, or the
//! thread count.
//!
//! The digest of the file is verified before anything in it is used, then the digests of all entries and tensors. A
//! correct digest does not imply consistent contents, so [`crate::exec::validate`] checks the program as well.
//!
//! Every byte of the file is part of one thing only: entries, tensors, and the uses of entries do not overlap. So the
//! work of the checks and the memory of the parts are bounded by the size of the file. The decoded JSON, which may be a
//! hundred times larger than its text, counts toward the memory limit.

mod json;
mod manifest;
mod read;
mod write;

use byoc_ir::diag::{Diagnostic, codes};

pub use manifest::{Entry, FORMAT, Manifest, RegionRecord, TensorRecord, VariantRecord};
pub use read::{Artifact, open, parse};
pub use write::{to_bytes, write, write_to};

/// Prefix of the archive comment; the digest of all preceding bytes follows in hexadecimal.
const TRAILER: &[u8] = b"byoc-blake3:";

/// Number of hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 64;

/// Alignment of entries, in bytes.
const ALIGN: usize = 64;

const MANIFEST: &str = "manifest.json";
const PROGRAM: &str = "program.json";
const WEIGHTS: &str = "weights.safetensors";

fn malformed(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(codes::artifacts::MALFORMED, message)
}
