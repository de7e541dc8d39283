//! Releases memory to the system before a model runs.

/// Returns unused heap pages to the system. Compilation of a model leaves many small holes between live allocations;
/// call this function before the memory for the runs is allocated.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: glibc guarantees that `malloc_trim` may be called at any time from any thread.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Releases pages of executable code. After loading, a run needs little of the code that reads, compiles and loads a
/// model (about 15 MB with a large library). Pages that are needed again are read from their files.
pub fn release_code() {
    #[cfg(target_os = "linux")]
    for range in clean_code_mappings(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default()) {
        let address = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: `clean_code_mappings` returns only unwritable file mappings without modified pages, so the kernel
        // restores the same contents from the file. An address range that was unmapped in the meantime makes the call
        // fail without effect.
        unsafe { libc::madvise(address, range.len(), libc::MADV_DONTNEED) };
    }
}

/// Returns the address ranges of the mappings in `/proc/self/smaps` that map a file, are executable and not writable,
/// and have no modified page. A dynamic linker that relocates code, or a debugger that sets a breakpoint, modifies
/// pages.
fn clean_code_mappings(smaps: &str) -> Vec<std::ops::Range<usize>> {
    let mut mappings = Vec::new();
    let mut code = None;
    for line in smaps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(first_field) = fields.next() else { continue };
        if let Some(key) = first_field.strip_suffix(':') {
            if key == "Anonymous" && fields.next() == Some("0") {
                mappings.extend(code.take());
            }
        } else {
            let address = |text| usize::from_str_radix(text, 16).ok();
            let range = first_field.split_once('-').and_then(|(start, end)| Some(address(start)?..address(end)?));
            let is_code = fields.next() == Some("r-xp") && fields.nth(3).is_some_and(|file| file.starts_with('/'));
            code = range.filter(|_| is_code);
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_clean_code() {
        let mapping = |range: &str, rights: &str, file: &str, anonymous: u32| {
            let usage_lines = format!("Size:  8 kB\nRss:  8 kB\nAnonymous:  {anonymous} kB\nVmFlags: rd ex mr\n");
            format!("{range} {rights} 00001000 08:01 1234    {file}\n{usage_lines}")
        };
        let smaps = mapping("1000-3000", "r-xp", "/usr/bin/a b", 0)
            + &mapping("3000-4000", "rw-p", "/usr/bin/a b", 0)
            + &mapping("5000-6000", "r-xp", "/usr/lib/changed.so", 4)
            + &mapping("6000-7000", "r-xp", "", 0)
            + &mapping("7ffc2d5e9000-7ffc2d5ea000", "r-xp", "[vdso]", 0)
            + &mapping("8000-a000", "r-xp", "/usr/lib/b.so", 0);
        assert_eq!(clean_code_mappings(&smaps), [0x1000..0x3000, 0x8000..0xa000]);
    }

    #[test]
    fn released_code_runs_again() {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let function_address = clean_code_mappings as *const () as usize;
        if cfg!(target_os = "linux") {
            assert!(
                clean_code_mappings(&smaps).iter().any(|range| range.contains(&function_address)),
                "expected a clean mapping that contains this test"
            );
        }
        release_code();
        finds_clean_code();
    }
}
