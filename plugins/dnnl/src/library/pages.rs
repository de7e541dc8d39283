//! Advice to the system about pages of memory: of the library's code, and of weights.

use std::ffi::{c_int, c_void};
use std::ops::Range;

/// `MADV_DONTNEED`.
const DONT_NEED: c_int = 4;
/// `MADV_HUGEPAGE`.
const HUGE_PAGE: c_int = 14;

unsafe extern "C" {
    fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
}

/// Asks for large pages. The memory should be aligned to such, and not be touched yet.
pub fn in_large_pages(at: *mut u8, bytes: usize) {
    let small = 4096;
    let from = at.addr().next_multiple_of(small);
    let to = at.addr().saturating_add(bytes) / small * small;
    if from < to {
        // SAFETY: the advice changes nothing but the size of pages. Where it is not taken, they stay small.
        unsafe { madvise(at.wrapping_add(from - at.addr()).cast(), to - from, HUGE_PAGE) };
    }
}

/// Where the code of a library lies in memory.
pub struct Code(Vec<Range<usize>>);

impl Code {
    /// The code of the library that this address is in. Nothing where the system does not say.
    pub fn around(address: usize) -> Code {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mappings: Vec<(Range<usize>, &str, &str)> = maps.lines().filter_map(mapping).collect();
        let file = mappings.iter().find(|(range, ..)| range.contains(&address)).map(|(.., file)| *file);
        let own = |(_, rights, name): &&(Range<usize>, &str, &str)| *rights == "r-xp" && Some(*name) == file;
        Code(mappings.iter().filter(own).map(|(range, ..)| range.clone()).collect())
    }

    /// Lets the pages go. Whoever runs the code reads them again from the file.
    pub fn let_go(&self) {
        for range in &self.0 {
            // SAFETY: the library is never unmapped, and the range is a private mapping of its file that nobody may write to,
            // so that its pages hold the same when they are read again. Where the advice is not taken, they stay.
            unsafe { madvise(range.start as *mut c_void, range.len(), DONT_NEED) };
        }
    }
}

/// A line of `/proc/self/maps` that is of a file: where it lies, what may be done with it, and the file.
fn mapping(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let mut parts = line.splitn(6, ' ');
    let (from, to) = parts.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(from)?..address(to)?;
    let rights = parts.next()?;
    let file = parts.nth(3)?.trim_start();
    file.starts_with('/').then_some((range, rights, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_files_are_read() {
        let line = "7f0c8a000000-7f0c8a021000 r-xp 00001000 08:01 1234                       /opt/a b/libdnnl.so.3";
        let file = "/opt/a b/libdnnl.so.3";
        assert_eq!(mapping(line), Some((0x7f0c_8a00_0000..0x7f0c_8a02_1000, "r-xp", file)));
        assert_eq!(mapping("7ffc2d5e9000-7ffc2d60a000 rw-p 00000000 00:00 0                          [stack]"), None);
        assert_eq!(mapping("7ffc2d5e9000-7ffc2d60a000 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn code_that_was_let_go_runs_again() {
        let own = mapping as *const () as usize;
        let code = Code::around(own);
        assert!(code.0.iter().any(|range| range.contains(&own)), "the code of this test");
        code.let_go();
        lines_of_files_are_read();
    }
}
