//! Inspection of a file before it is mapped. Mapping a truncated library kills the process, and mapping any library
//! runs its constructors. Other files are therefore recognized by reading them.

use super::c::ENTRY as C_ENTRY;
use super::{Rejection, code};
use abi_stable::library::ROOT_MODULE_LOADER_NAME;
use memchr::memmem;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, ReadRef, elf};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

#[cfg(target_arch = "x86_64")]
const MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;
#[cfg(target_arch = "riscv64")]
const MACHINE: elf::Machine = elf::EM_RISCV;

/// Checks that the file can be a plugin for this machine, without running any of its code.
///
/// # Errors
/// If the file cannot be a plugin; the rejection states the reason.
pub fn sniff(path: &Path) -> Result<(), Rejection> {
    sniff_entry(path).map(drop)
}

/// Properties of a plugin file, read without mapping it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Human-readable name of the entry: `declare_plugin!`, or `byoc_plugin_entry` for a plugin in C.
    pub entry: &'static str,
    /// Names of the libraries that the plugin depends on.
    pub needed: Vec<String>,
}

/// Reads the properties of a plugin file.
///
/// # Errors
/// If the file cannot be a plugin, as for [`sniff`].
pub fn read_facts(path: &Path) -> Result<FileFacts, Rejection> {
    let entry = match sniff_entry(path)? {
        EntryKind::Rust => "declare_plugin!",
        EntryKind::C => C_ENTRY,
    };
    Ok(FileFacts { entry, needed: needed_libraries(path) })
}

/// Returns the names of the libraries that a library depends on; empty if they cannot be read.
pub(super) fn needed_libraries(path: &Path) -> Vec<String> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let file = ReadCache::new(file);
    let read = || -> object::Result<Vec<String>> {
        let header = elf::FileHeader64::<Endianness>::parse(&file)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &file)?;
        let mut names = Vec::new();
        if let Some((entries, strings)) = sections.dynamic(endian, &file)? {
            let strings = sections.strings(endian, &file, strings)?;
            for entry in entries.iter().filter(|entry| entry.d_tag(endian) == elf::DT_NEEDED) {
                let offset = u32::try_from(entry.d_val(endian)).unwrap_or(u32::MAX);
                let name = strings.get(offset).unwrap_or_default();
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        Ok(names)
    };
    read().unwrap_or_default()
}

/// Returns true if the loadable segments of the file contain `text`; false if they cannot be read. A plugin usually
/// contains the names that it registers, so a search for a name can try the files that lack it last.
pub fn contains_text(path: &Path, text: &str) -> bool {
    const CHUNK: u64 = 1 << 20;
    let Ok(file) = File::open(path) else { return false };
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return false;
    }
    let data = ReadCache::new(&file);
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(&data) else { return false };
    let Ok(endian) = header.endian() else { return false };
    let Ok(segments) = header.program_headers(endian, &data) else { return false };
    let mut buffer = Vec::new();
    let finder = memmem::Finder::new(text);
    segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).any(|segment| {
        let mut offset = segment.p_offset(endian);
        let end = offset.saturating_add(segment.p_filesz(endian));
        while offset < end {
            // Chunks overlap, so that a string across a chunk boundary is found.
            let length = CHUNK.saturating_add(text.len() as u64).min(end - offset);
            buffer.resize(length as usize, 0);
            if file.read_exact_at(&mut buffer, offset).is_err() {
                return false;
            }
            if finder.find(&buffer).is_some() {
                return true;
            }
            offset += CHUNK;
        }
        false
    })
}

/// Kind of a plugin's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// Rust entry, from `declare_plugin!`.
    Rust,
    /// C entry, declared in `byoc_plugin.h`.
    C,
}

/// Checks a file like [`sniff`] and returns the kind of its entry; a file with both kinds is a Rust plugin.
pub(super) fn sniff_entry(path: &Path) -> Result<EntryKind, Rejection> {
    // Opening a FIFO would block until another process opens it for writing.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| unreadable_rejection(&error))?;
    if !file.metadata().map_err(|error| unreadable_rejection(&error))?.is_file() {
        return Err(Rejection::new(code::UNREADABLE, "expected a regular file, found a directory or a special file"));
    }
    sniff_data(&ReadCache::new(file))
}

fn unreadable_rejection(error: &std::io::Error) -> Rejection {
    Rejection::new(code::UNREADABLE, format!("cannot be read: {error}"))
}

fn sniff_data<'data>(data: impl ReadRef<'data>) -> Result<EntryKind, Rejection> {
    let read_error = |_| Rejection::new(code::UNREADABLE, "cannot be read completely");
    let length = data.len().map_err(read_error)?;
    let prefix = data.read_bytes_at(0, length.min(512)).map_err(read_error)?;
    if prefix.is_empty() {
        return Err(Rejection::new(code::NOT_A_LIBRARY, "expected a shared library, found an empty file"));
    }
    if !prefix.starts_with(&elf::ELFMAG) {
        if elf::ELFMAG.starts_with(prefix) {
            return Err(truncated_rejection(length, None));
        }
        if let Some(system) = other_system(prefix) {
            return Err(Rejection::new(code::NOT_A_LIBRARY, format!("expected an ELF library, found {system}"))
                .hint(format!("build the plugin for {}-unknown-linux-gnu", std::env::consts::ARCH)));
        }
        let is_text = prefix.iter().all(|&byte| byte >= 32 || matches!(byte, 9 | 10 | 13));
        let reason = if is_text {
            "expected a shared library, found a text file"
        } else {
            "expected a shared library, found a file without an ELF header"
        };
        return Err(Rejection::new(code::NOT_A_LIBRARY, reason));
    }
    if let Some(&class) = prefix.get(4)
        && class != elf::ELFCLASS64.0
    {
        let reason = format!("expected ELF class {} (64-bit), found class {class}", elf::ELFCLASS64.0);
        return Err(Rejection::new(code::OTHER_MACHINE, reason));
    }
    let header = elf::FileHeader64::<Endianness>::parse(data).map_err(|_| truncated_rejection(length, None))?;
    let endian = header.endian().map_err(|_| Rejection::new(code::NOT_A_LIBRARY, "malformed ELF header"))?;
    let machine = header.e_machine(endian);
    if machine != MACHINE {
        let reason = format!("expected a library for ELF machine {}, found one for {}", MACHINE.0, machine.0);
        return Err(Rejection::new(code::OTHER_MACHINE, reason)
            .hint(format!("build the plugin for {}", std::env::consts::ARCH)));
    }
    if header.e_type(endian) != elf::ET_DYN {
        return Err(Rejection::new(code::NOT_A_LIBRARY, "expected a shared library, found another kind of ELF file")
            .hint("set crate-type = [\"cdylib\"], or link with -shared"));
    }
    let segments = header.program_headers(endian, data).map_err(|_| truncated_rejection(length, None))?;
    let mut required_length = 0u64;
    for segment in segments {
        if matches!(segment.p_type(endian), elf::PT_LOAD | elf::PT_DYNAMIC) {
            required_length = required_length.max(segment.p_offset(endian).saturating_add(segment.p_filesz(endian)));
        }
    }
    // Linkers write the section table last, so its end is the best test for truncation.
    let sections = u64::from(header.e_shentsize(endian)) * u64::from(header.e_shnum(endian));
    required_length = required_length.max(header.e_shoff(endian).saturating_add(sections));
    if required_length > length {
        return Err(truncated_rejection(length, Some(required_length)));
    }
    let corrupted_rejection =
        |_| Rejection::new(code::TRUNCATED, "corrupted: the symbol table cannot be read").hint(COPY_AGAIN);
    let file = object::File::parse(data).map_err(corrupted_rejection)?;
    let mut kind = None;
    let mut mangled_name = None;
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
        match symbol.name_bytes() {
            Ok(name) if name == ROOT_MODULE_LOADER_NAME.as_bytes() => return Ok(EntryKind::Rust),
            Ok(name) if name == C_ENTRY.as_bytes() => kind = Some(EntryKind::C),
            Ok(name) if name.windows(C_ENTRY.len()).any(|window| window == C_ENTRY.as_bytes()) => {
                mangled_name = Some(String::from_utf8_lossy(name).into_owned());
            }
            _ => {}
        }
    }
    kind.ok_or_else(|| {
        let rejection =
            Rejection::new(code::NO_ENTRY, "expected a byoc plugin, found a shared library without an entry symbol");
        match mangled_name {
            Some(name) => rejection.hint(format!(
                "include byoc_plugin.h, or declare {C_ENTRY} as extern \"C\": \"{name}\" is a mangled C++ name"
            )),
            None => rejection
                .hint(format!("in Rust, add one declare_plugin! line and build a cdylib; in C, export {C_ENTRY}")),
        }
    })
}

/// Recognizes a library for another operating system by the first bytes of the file: Mach-O (`loader.h` of macOS), or
/// PE with its MS-DOS header (Microsoft, "PE Format").
fn other_system(prefix: &[u8]) -> Option<&'static str> {
    const MACH_O: [[u8; 4]; 4] =
        [[0xfe, 0xed, 0xfa, 0xce], [0xce, 0xfa, 0xed, 0xfe], [0xfe, 0xed, 0xfa, 0xcf], [0xcf, 0xfa, 0xed, 0xfe]];
    const UNIVERSAL: [[u8; 4]; 2] = [[0xca, 0xfe, 0xba, 0xbe], [0xca, 0xfe, 0xba, 0xbf]];
    // A Java class file has the same magic number as a universal binary. Where a universal binary has the number of
    // architectures, a class file has its version, whose major number is at least 45.
    const MAX_ARCHITECTURES: u8 = 44;
    let (magic, rest) = prefix.split_first_chunk::<4>()?;
    if MACH_O.contains(magic) {
        return Some("a Mach-O library for macOS");
    }
    if UNIVERSAL.contains(magic)
        && rest.first_chunk().is_some_and(|&[a, b, c, d]| [a, b, c] == [0; 3] && d <= MAX_ARCHITECTURES)
    {
        return Some("a universal Mach-O library for macOS");
    }
    let offset = prefix.get(0x3c..0x40)?.try_into().map(u32::from_le_bytes).ok()? as usize;
    let is_pe = magic.starts_with(b"MZ") && prefix.get(offset..offset.checked_add(4)?) == Some(&b"PE\0\0"[..]);
    is_pe.then_some("a PE library for Windows")
}

const COPY_AGAIN: &str = "copy the file again";

fn truncated_rejection(length: u64, required_length: Option<u64>) -> Rejection {
    let reason = match required_length {
        Some(required_length) => format!("truncated: expected at least {required_length} bytes, found {length}"),
        None => format!("truncated: expected complete ELF headers, found {length} bytes"),
    };
    Rejection::new(code::TRUNCATED, reason).hint(COPY_AGAIN)
}
