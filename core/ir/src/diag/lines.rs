//! Lines of a text, by number and by offset.

use std::ops::Range;

/// Table of the lines of a text, built in one pass; a position is then found by binary search.
#[derive(Clone, Debug)]
pub struct Lines<'t> {
    text: &'t str,
    /// Offset of the first byte of each line.
    starts: Vec<u32>,
}

impl<'t> Lines<'t> {
    /// Creates the table for a text of less than 4 GiB.
    pub fn of(text: &'t str) -> Lines<'t> {
        let line_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(line_breaks.map(|(offset, _)| offset as u32 + 1)).collect();
        Lines { text, starts }
    }

    /// Returns the text.
    pub fn text(&self) -> &'t str {
        self.text
    }

    /// Returns the number, counted from 1, of the line that contains the byte at `offset`.
    pub fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|&start| start as usize <= offset)
    }

    /// Returns the range of the bytes of a line, without its line break.
    pub fn range(&self, line: usize) -> Range<usize> {
        let start = |index: usize| self.starts.get(index).map(|&start| start as usize);
        start(line - 1).unwrap_or(self.text.len())..start(line).map_or(self.text.len(), |next| next - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_line_of_every_byte() {
        let cases: [(&str, &[(usize, usize)]); 3] =
            [("", &[(0, 0)]), ("ab\n\ncd", &[(0, 2), (3, 3), (4, 6)]), ("a\n", &[(0, 1), (2, 2)])];
        for (text, expected) in cases {
            let lines = Lines::of(text);
            for offset in 0..=text.len() {
                let line = lines.line(offset);
                assert_eq!(line, text[..offset].matches('\n').count() + 1);
                let Range { start, end } = lines.range(line);
                assert_eq!((start, end), expected[line - 1]);
            }
        }
    }
}
