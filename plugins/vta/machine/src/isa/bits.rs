//! Bit fields of two 64-bit words, filled from bit 0 up.

use super::{DecodeError, EncodeError};

/// Writer of bit fields.
#[derive(Default)]
pub(super) struct Writer {
    words: [u64; 2],
    word_index: usize,
    bit: u32,
}

impl Writer {
    pub(super) fn write_field(&mut self, field: &'static str, value: u64, width: u32) -> Result<(), EncodeError> {
        if value >> width != 0 {
            return Err(EncodeError { field, value, width });
        }
        self.words[self.word_index] |= value << self.bit;
        self.bit += width;
        Ok(())
    }

    pub(super) fn start_second_word(&mut self) {
        (self.word_index, self.bit) = (1, 0);
    }

    pub(super) fn words(&self) -> [u64; 2] {
        self.words
    }
}

/// Reader of bit fields. Each read shifts the field out of its word.
pub(super) struct Reader {
    words: [u64; 2],
    word_index: usize,
}

impl Reader {
    pub(super) fn new(words: [u64; 2]) -> Reader {
        Reader { words, word_index: 0 }
    }

    pub(super) fn take(&mut self, width: u32) -> u64 {
        let current_word = &mut self.words[self.word_index];
        let value = *current_word & ((1 << width) - 1);
        *current_word >>= width;
        value
    }

    /// Continues with the second word. The unread bits of the first word must be 0.
    pub(super) fn start_second_word(&mut self) -> Result<(), DecodeError> {
        let unread_bits = self.words[0];
        self.word_index = 1;
        if unread_bits == 0 { Ok(()) } else { Err(DecodeError::ExtraBits) }
    }

    /// Checks that all unread bits are 0.
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        let unread_bits = self.words[self.word_index] | if self.word_index == 0 { self.words[1] } else { 0 };
        if unread_bits == 0 { Ok(()) } else { Err(DecodeError::ExtraBits) }
    }
}
