//! Constants as a file, which is passed to the program at run time.
//!
//! The file begins with [`HEADER`] bytes: a magic number, and a hash of the remaining bytes. The program uses the hash
//! to reject the weights of a different model. The arrays follow, little-endian, each at a multiple of [`ALIGN`].

use byoc_loops::program::Array;

/// Size in bytes of the header.
pub const HEADER: usize = 16;

/// Alignment in bytes of each array in the file.
pub const ALIGN: usize = 16;

/// Alignment in bytes of the file in memory: the alignment of the widest element type.
pub const FILE_ALIGN: usize = 8;

/// Magic number at the start of the file.
const MARK: &[u8; 8] = b"BYOCWTS1";

/// Returns the offset of each array in the file.
pub fn offsets(arrays: &[Array]) -> Vec<usize> {
    let mut end = HEADER;
    let allocate = |array: &Array| {
        let offset = end.next_multiple_of(ALIGN);
        end = offset + array.array.bytes.len();
        offset
    };
    arrays.iter().map(allocate).collect()
}

/// Returns the content of the file.
pub fn content(arrays: &[Array]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    for (array, offset) in arrays.iter().zip(offsets(arrays)) {
        bytes.resize(offset, 0);
        bytes.extend_from_slice(&array.array.bytes);
    }
    let hash = hash(&bytes[HEADER..]);
    bytes[..8].copy_from_slice(MARK);
    bytes[8..HEADER].copy_from_slice(&hash.to_le_bytes());
    bytes
}

/// Returns the 64-bit FNV-1a hash of bytes.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
    bytes.iter().fold(14_695_981_039_346_656_037, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_loops::lower::ConstantArray;
    use byoc_plugin_api::DType;

    #[test]
    fn arrays_are_aligned_and_hashed() {
        let array = |bytes: &[u8]| Array {
            name: "x".into(),
            array: ConstantArray { dtype: DType::I8, bytes: bytes.to_vec(), comment: String::new() },
        };
        let arrays = [array(&[1; 17]), array(&[2; 3])];
        assert_eq!(offsets(&arrays), [16, 48]);
        let content = content(&arrays);
        assert_eq!((content.len(), &content[..8], content[48]), (51, &MARK[..], 2));
        assert_ne!(content[8..16], super::content(&arrays[..1])[8..16]);
    }
}
