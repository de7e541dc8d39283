//! Imports of a plugin's library: the functions of the C library that end the process are replaced, so that the host
//! learns of the call.

use crate::entries::Interception;
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use object::{Endianness, ReadCache, elf};
use std::ffi::{CString, c_char, c_void};
use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Import of a function: a word of the library's memory that holds the address of the function.
pub(super) struct Import {
    function: Interception,
    /// Address of the word, relative to that of the library.
    offset: u64,
}

/// Imports of a library that are replaced.
#[derive(Default)]
pub(super) struct Imports {
    imports: Vec<Import>,
    /// Addresses that are read-only once the library is loaded, relative to that of the library.
    protected: Range<u64>,
}

/// Types of the relocations of imported functions: that of a call, and that of a pointer.
#[cfg(target_arch = "x86_64")]
const RELOCATIONS: [elf::RelocationType; 2] = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT];
#[cfg(target_arch = "aarch64")]
const RELOCATIONS: [elf::RelocationType; 2] = [elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const RELOCATIONS: [elf::RelocationType; 0] = [];

/// Returns the imports of a library that are replaced; none if they cannot be read.
pub(super) fn imports(path: &Path) -> Imports {
    let read = || -> object::Result<Imports> {
        let Ok(file) = File::open(path) else { return Ok(Imports::default()) };
        let data = ReadCache::new(file);
        let header = elf::FileHeader64::<Endianness>::parse(&data)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, &data)?;
        let protected = segments.iter().find(|segment| segment.p_type(endian) == elf::PT_GNU_RELRO);
        let protected = protected.map_or(0..0, |segment| {
            let start = segment.p_vaddr(endian);
            start..start.saturating_add(segment.p_memsz(endian))
        });
        let sections = header.sections(endian, &data)?;
        let symbols = sections.symbols(endian, &data, elf::SHT_DYNSYM)?;
        let mut imports = Vec::new();
        for section in sections.iter() {
            let Some((relocations, link)) = section.rela(endian, &data)? else { continue };
            for relocation in relocations.iter().filter(|_| link == symbols.section()) {
                let Some(index) = relocation.symbol(endian, false) else { continue };
                let symbol = symbols.symbol(index)?;
                let is_import = RELOCATIONS.contains(&relocation.r_type(endian, false)) && symbol.is_undefined(endian);
                let function = if is_import { Interception::of(symbols.symbol_name(endian, symbol)?) } else { None };
                if let Some(function) = function {
                    imports.push(Import { function, offset: relocation.r_offset(endian) });
                }
            }
        }
        Ok(Imports { imports, protected })
    };
    read().unwrap_or_default()
}

/// Replaces imports of the library with the handle `library`, which the dynamic loader has resolved.
pub(super) fn replace(library: *mut c_void, Imports { imports, protected }: &Imports) {
    let Some(library) = Loaded::of(library) else { return };
    for Import { function, offset } in imports {
        let address = library.address.wrapping_add(*offset as usize);
        let Ok(name) = CString::new(function.name()) else { continue };
        if !library.contains(address) {
            continue;
        }
        // SAFETY: the word is inside of the loaded library, and `mprotect` makes it writable, or fails. The word is replaced
        // only if it holds the address of the function, so that a file which has changed since the imports were read
        // does no harm. The replacement is called as the function would be. The dynamic loader protects whole pages.
        unsafe {
            let original = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).expose_provenance();
            let word = &*ptr::with_exposed_provenance::<AtomicUsize>(address);
            if original == 0 || word.load(Ordering::Relaxed) != original {
                continue;
            }
            let page_size = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
            let page = ptr::with_exposed_provenance_mut::<c_void>(address & !(page_size - 1));
            if libc::mprotect(page, page_size, libc::PROT_READ | libc::PROT_WRITE) == 0 {
                word.store(function.replace(original), Ordering::Release);
                let end = library.address.wrapping_add(protected.end as usize) & !(page_size - 1);
                if protected.contains(offset) && address < end {
                    libc::mprotect(page, page_size, libc::PROT_READ);
                }
            }
        }
    }
}

/// Beginning of the C library's `struct link_map`.
#[repr(C)]
struct LinkMap {
    address: usize,
    _name: *const c_char,
    dynamic: *const c_void,
}

/// Loaded library.
struct Loaded {
    /// Difference between the addresses in memory and those in the file.
    address: usize,
    /// Address of the first mapping.
    base: *const c_void,
}

impl Loaded {
    /// Returns the library with a handle of the dynamic loader.
    fn of(library: *mut c_void) -> Option<Loaded> {
        let mut map: *const LinkMap = ptr::null();
        // SAFETY: `library` is a handle that `dlopen` returned and nobody has closed. The call stores the address of a
        // `link_map`, which lives as long as the library.
        let map = unsafe { (libc::dlinfo(library, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0).then(|| &*map)? };
        Some(Loaded { address: map.address, base: base_of(map.dynamic)? })
    }

    /// Tests whether a word at an address is inside of the library.
    fn contains(&self, address: usize) -> bool {
        let word = ptr::without_provenance(address);
        address.is_multiple_of(size_of::<usize>()) && base_of(word) == Some(self.base)
    }
}

/// Returns the address of the first mapping of the library that contains an address.
fn base_of(address: *const c_void) -> Option<*const c_void> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the call only compares the address with those of the libraries, and an all-zero `Dl_info` is valid.
    let info = unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init())? };
    Some(info.dli_fbase.cast_const())
}
