//! Memory limit of the process; by default half of the available memory.

use byoc_ir::tensor::memory;
use std::path::{Path, PathBuf};

/// Sets the limit in bytes on the total memory of tensors, arenas and workspaces; the default is half of the available
/// memory. Allocations made by plugins are not counted.
pub fn set_max_memory(bytes: usize) {
    memory::set_limit(bytes);
}

/// Returns the memory limit in bytes; `usize::MAX` before the first [`Session`](crate::session::Session) is created.
pub fn max_memory() -> usize {
    memory::limit()
}

/// Sets the default memory limit unless a limit is set.
pub fn default_memory() {
    if memory::limit() == usize::MAX {
        memory::set_default_limit(available(Path::new("/")).map_or(usize::MAX - 1, |bytes| bytes / 2));
    }
}

/// Parses a size in bytes such as `2GiB`, `512M`, `1.5g` or `1073741824`. Units are powers of 1024.
///
/// # Errors
/// If the text is invalid; the message describes the expected format.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let size_error = || format!("expected a number of bytes such as 2GiB, 512M or 1073741824, found \"{text}\"");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (amount_text, unit) = text.split_at(digits);
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(size_error()),
    };
    let amount: f64 = amount_text.parse().map_err(|_| size_error())?;
    let bytes = amount * 1024f64.powi(power);
    if bytes >= 1.0 && bytes < usize::MAX as f64 { Ok(bytes as usize) } else { Err(size_error()) }
}

/// Returns the number of bytes that this process can still allocate: the minimum over the system, the control groups of
/// the process, and its limit on the address space; `None` if none of them can be determined.
fn available(root: &Path) -> Option<usize> {
    let system_bytes = std::fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    });
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let address_space = std::fs::read_to_string(root.join("proc/self/limits")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
        // "unlimited" does not parse as a number.
        line.split_whitespace().next()?.parse::<usize>().ok()
    });
    system_bytes
        .into_iter()
        .chain(address_space)
        .chain(groups.lines().filter_map(|line| remaining_in_group(root, line)))
        .min()
}

/// Returns the remaining memory, in bytes, of the control group in a line of `/proc/self/cgroup`
/// (`hierarchy:controllers:path`): the minimum over the group and its ancestors. In a container, the path may be valid
/// only on the host; the root of the hierarchy then holds the limits of the container.
fn remaining_in_group(root: &Path, line: &str) -> Option<usize> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, limit, usage) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max", "memory.current"),
        controller_list if controller_list.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    let read_bytes = |file: PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
    let group_dir = mount.join(path.trim_start_matches('/'));
    let groups = group_dir.ancestors().take_while(|group| group.starts_with(&mount));
    // "max" does not parse as a number and sets no limit.
    groups
        .filter_map(|group| {
            Some(read_bytes(group.join(limit))?.saturating_sub(read_bytes(group.join(usage)).unwrap_or(0)))
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes() {
        let read = ["1", "512M", "2GiB", "1.5g", "64 kb", "1t"].map(|text| parse_size(text).unwrap());
        assert_eq!(read, [1, 512 << 20, 2 << 30, 3 << 29, 64 << 10, 1 << 40]);
        for invalid in ["", "0", "-1", "GiB", "1x", "1e3", "nan", "99999999999999T", "1..2"] {
            assert!(parse_size(invalid).is_err(), "{invalid}");
        }
    }

    /// Calls `available` with a temporary root directory that contains the given files of `/proc` and `/sys`.
    fn available_with(files: &[(&str, &str)]) -> Option<usize> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        available(dir.path())
    }

    #[test]
    fn available_is_the_minimum_of_system_groups_and_limits() {
        let meminfo = ("proc/meminfo", "MemTotal:       8000 kB\nMemAvailable:   4000 kB\n");
        assert_eq!(available_with(&[]), None);
        assert_eq!(available_with(&[meminfo]), Some(4000 << 10));
        let limits = "Max file size             unlimited            unlimited            bytes\n\
                      Max address space         2000000              unlimited            bytes\n";
        assert_eq!(available_with(&[meminfo, ("proc/self/limits", limits)]), Some(2_000_000));
        let unlimited = limits.replace("2000000", "unlimited");
        assert_eq!(available_with(&[meminfo, ("proc/self/limits", &unlimited)]), Some(4000 << 10));
        let second_hierarchy = [
            meminfo,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1000000\n"),
            ("sys/fs/cgroup/a/memory.current", "300000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ];
        assert_eq!(available_with(&second_hierarchy), Some(700_000));
        let first_hierarchy = [
            meminfo,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/0123\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n"),
        ];
        assert_eq!(available_with(&first_hierarchy), Some(1_500_000));
        let unlimited_group =
            [meminfo, first_hierarchy[1], ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(available_with(&unlimited_group), Some(4000 << 10));
    }
}
