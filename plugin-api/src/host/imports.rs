//! Imports of a plugin's library: the functions of the C library that end the process are replaced, so that the host
//! learns of the call.
//!
//! The tables are read where the dynamic loader has mapped them, which takes microseconds; reading them from the file
//! would take a tenth of the time that a plugin needs to load.

use crate::entries::Interception;
use object::elf;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Types of the relocations of imported functions: that of a call, and that of a pointer.
#[cfg(target_arch = "x86_64")]
const RELOCATIONS: [elf::RelocationType; 2] = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT];
#[cfg(target_arch = "aarch64")]
const RELOCATIONS: [elf::RelocationType; 2] = [elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const RELOCATIONS: [elf::RelocationType; 0] = [];

/// Beginning of the C library's `struct link_map`.
#[repr(C)]
struct LinkMap {
    /// Difference between the addresses in memory and those in the file.
    address: usize,
    _name: *const c_char,
    dynamic: *const Dynamic,
}

/// `Elf64_Dyn`: entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// `Elf64_Rela`: relocation.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// `Elf64_Sym`: symbol.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Replaces imports of the library with the handle `library`, which `dlopen` has returned, so that the dynamic loader has
/// mapped it and resolved its imports.
pub(super) fn replace(library: *mut c_void) {
    if size_of::<usize>() != size_of::<u64>() || RELOCATIONS.is_empty() {
        return;
    }
    let mut map: *const LinkMap = ptr::null();
    // SAFETY: `library` is a handle that `dlopen` returned and nobody has closed. The call stores the address of a
    // `link_map`, which lives as long as the library.
    let map = unsafe { (libc::dlinfo(library, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0).then(|| &*map) };
    let Some(map) = map else { return };
    let tables = Tables::of(map);
    let mut imports: Vec<(&AtomicUsize, usize)> = Vec::new();
    for relocation in tables.relocations() {
        let (kind, symbol) = (elf::RelocationType(relocation.info as u32), relocation.info >> 32);
        if !RELOCATIONS.contains(&kind) {
            continue;
        }
        let Some(function) = Interception::of(tables.name_of_undefined(symbol as usize)) else { continue };
        let address = map.address.wrapping_add(relocation.offset as usize);
        // SAFETY: the dynamic loader has stored the address of the function in this word, which stays mapped.
        let word = unsafe { &*ptr::with_exposed_provenance::<AtomicUsize>(address) };
        imports.extend(function.replacement(word.load(Ordering::Relaxed)).map(|replacement| (word, replacement)));
    }
    let protected = if imports.is_empty() { 0..0 } else { protected_addresses(map.address) };
    // SAFETY: the call has no preconditions.
    let page_size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let page_of = |word: &AtomicUsize| ptr::from_ref(word).addr() & !(page_size - 1);
    imports.sort_unstable_by_key(|(word, _)| page_of(word));
    for words in imports.chunk_by(|a, b| page_of(a.0) == page_of(b.0)) {
        let page = page_of(words[0].0);
        // The dynamic loader protects whole pages.
        let is_protected = (protected.start & !(page_size - 1)..protected.end & !(page_size - 1)).contains(&page);
        let protect = |protection: c_int| {
            // SAFETY: the page belongs to the library. Its words are data, to which the protection gives no more access
            // than the dynamic loader had when it stored them.
            !is_protected
                || unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(page), page_size, protection) } == 0
        };
        if protect(libc::PROT_READ | libc::PROT_WRITE) {
            words.iter().for_each(|(word, replacement)| word.store(*replacement, Ordering::Release));
            protect(libc::PROT_READ);
        }
    }
}

/// Tables of a loaded library, by the addresses in its dynamic section; 0 for each that it lacks.
#[derive(Default)]
struct Tables {
    symbols: usize,
    names: usize,
    /// Address and size of the relocations of data, and number of those at the beginning that name no symbol.
    data: (usize, usize),
    relative: usize,
    /// Address and size of the relocations of calls.
    calls: (usize, usize),
}

impl Tables {
    fn of(map: &LinkMap) -> Tables {
        let mut tables = Tables::default();
        // Some loaders leave the addresses as they are in the file, where they are lower than those in memory.
        let address = |value: usize| if value < map.address { map.address.wrapping_add(value) } else { value };
        // SAFETY: the dynamic section of a loaded library is mapped, and ends with an entry whose tag is `DT_NULL`.
        let entries = (0..).map(|index| unsafe { &*map.dynamic.add(index) });
        for Dynamic { tag, value } in entries.take_while(|entry| entry.tag != elf::DT_NULL.0) {
            let value = *value as usize;
            match elf::DynamicTag(*tag) {
                elf::DT_SYMTAB => tables.symbols = address(value),
                elf::DT_STRTAB => tables.names = address(value),
                elf::DT_RELA => tables.data.0 = address(value),
                elf::DT_RELASZ => tables.data.1 = value,
                elf::DT_RELACOUNT => tables.relative = value,
                elf::DT_JMPREL => tables.calls.0 = address(value),
                elf::DT_PLTRELSZ => tables.calls.1 = value,
                _ => {}
            }
        }
        tables
    }

    fn relocations(&self) -> impl Iterator<Item = &Relocation> {
        let table = |(address, bytes): (usize, usize)| match address {
            0 => &[][..],
            // SAFETY: the dynamic loader has applied this table, which stays mapped as long as the library.
            _ => unsafe {
                slice::from_raw_parts(ptr::with_exposed_provenance(address), bytes / size_of::<Relocation>())
            },
        };
        let data = table(self.data);
        data[self.relative.min(data.len())..].iter().chain(table(self.calls))
    }

    /// Returns the name of a symbol that another library defines; empty if the library itself defines it.
    fn name_of_undefined(&self, index: usize) -> &[u8] {
        if index == 0 || self.symbols == 0 || self.names == 0 {
            return b"";
        }
        // SAFETY: the dynamic loader has looked this symbol up by its name, to apply the relocation that refers to it.
        unsafe {
            let symbol = &*ptr::with_exposed_provenance::<Symbol>(self.symbols).add(index);
            match symbol.section {
                0 => CStr::from_ptr(ptr::with_exposed_provenance::<c_char>(self.names).add(symbol.name as usize))
                    .to_bytes(),
                _ => b"",
            }
        }
    }
}

/// Returns the addresses that are read-only once the library at `address` is loaded; an empty range if there are none.
fn protected_addresses(address: usize) -> std::ops::Range<usize> {
    struct Search {
        address: usize,
        protected: std::ops::Range<usize>,
    }
    extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the caller passes the description of a loaded library, with its program headers, and the search.
        let (info, headers, search) = unsafe {
            let info = &*info;
            let headers = slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            (info, headers, &mut *search.cast::<Search>())
        };
        if info.dlpi_addr as usize != search.address {
            return 0;
        }
        if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO) {
            let start = search.address.wrapping_add(header.p_vaddr as usize);
            search.protected = start..start.saturating_add(header.p_memsz as usize);
        }
        1
    }
    let mut search = Search { address, protected: 0..0 };
    // SAFETY: the callback has the expected signature, and the search outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.protected
}
