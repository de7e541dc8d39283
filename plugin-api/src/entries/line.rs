//! Line on standard error, formatted and written without allocation, locks or other operations that are not
//! async-signal-safe.

use super::call_site::CallSite;
use std::sync::atomic::{AtomicI32, Ordering};

/// Fallback descriptor for lines if standard error is closed; -1 for none.
pub(super) static OTHER_STDERR: AtomicI32 = AtomicI32::new(-1);

/// Buffer for one line. Filled in place: the stack of a signal handler is small.
pub(super) struct Line {
    bytes: [u8; 1024],
    length: usize,
}

impl Line {
    /// Creates an empty line.
    pub(super) const fn new() -> Line {
        Line { bytes: [0; 1024], length: 0 }
    }

    /// Appends the prefix of an error message with the error code `code`.
    pub(super) fn error(&mut self, code: &str) -> &mut Line {
        self.text("error[").text(code).text("]: ")
    }

    /// Appends a string, truncated to the remaining space.
    pub(super) fn text(&mut self, text: &str) -> &mut Line {
        // One byte is reserved for the newline.
        let available = self.bytes.len() - 1 - self.length;
        let count = text.len().min(available);
        self.bytes[self.length..self.length + count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        self
    }

    /// Appends a number.
    pub(super) fn number(&mut self, number: u64) -> &mut Line {
        let mut digits = [0u8; 20];
        let (mut index, mut remaining) = (digits.len(), number);
        loop {
            index -= 1;
            digits[index] = b'0' + (remaining % 10) as u8;
            remaining /= 10;
            if remaining == 0 {
                break;
            }
        }
        self.text(std::str::from_utf8(&digits[index..]).unwrap_or_default())
    }

    /// Appends a call site in the format of its `Display`.
    pub(super) fn site(&mut self, site: &CallSite) -> &mut Line {
        self.text("plugin ").text(site.plugin).text(": ").text(site.entry.name());
        if site.region.is_empty() { self } else { self.text(": region ").text(site.region) }
    }

    /// Appends the operators of a call site, if known.
    pub(super) fn operators(&mut self, site: &CallSite) -> &mut Line {
        if site.operators.is_empty() { self } else { self.text("; operators: ").text(site.operators) }
    }

    /// Writes the line.
    pub(super) fn write(&mut self) {
        self.bytes[self.length] = b'\n';
        let line = &self.bytes[..=self.length];
        // SAFETY: `line` is initialized and borrowed for the call; on a closed descriptor, the call fails.
        let result = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        let descriptor = OTHER_STDERR.load(Ordering::Relaxed);
        if result < 0 && descriptor >= 0 {
            // SAFETY: `line` is initialized and borrowed for the call; on a closed descriptor, the call fails.
            unsafe { libc::write(descriptor, line.as_ptr().cast(), line.len()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_site::{CallSites, Entry};
    use super::*;

    fn read(line: &Line) -> &str {
        std::str::from_utf8(&line.bytes[..line.length]).unwrap()
    }

    #[test]
    fn line_formats_texts_numbers_and_call_sites() {
        let site = CallSites::of("mine", "r").at(Entry::Run);
        let mut line = Line::new();
        line.error("E0450").site(site).text(" took ").number(0).text(" of ").number(u64::MAX);
        assert_eq!(read(&line), format!("error[E0450]: {site} took 0 of {}", u64::MAX));
    }

    #[test]
    fn line_is_truncated() {
        let mut line = Line::new();
        line.error("E0450").text(&"x".repeat(5000));
        assert_eq!(line.length, 1023);
    }
}
