//! Dependencies of ELF files, read without mapping the files.

use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, elf};
use std::fs::File;
use std::io::{Error, Result};
use std::path::Path;

/// Properties of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// Processor architecture, as the ELF code `e_machine`.
    pub machine: u16,
    /// Path of the dynamic loader of an executable; `None` for a library.
    pub interpreter: Option<String>,
    /// Names of the required libraries (`DT_NEEDED`).
    pub needed: Vec<String>,
    /// Library search path recorded in the file (`DT_RUNPATH`, or else `DT_RPATH`), which may contain `$ORIGIN`.
    pub search_path: Vec<String>,
}

/// Reads the properties of a 64-bit ELF file; `None` if the file has a different format.
///
/// # Errors
/// If the file cannot be opened, or its headers are malformed.
pub fn read(path: &Path) -> Result<Option<Elf>> {
    let file = ReadCache::new(byoc_files::open_regular(path)?);
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(&file) else { return Ok(None) };
    parse(header, &file).map(Some).map_err(|error| Error::other(format!("malformed ELF file: {error}")))
}

fn parse(header: &elf::FileHeader64<Endianness>, file: &ReadCache<File>) -> object::Result<Elf> {
    let endian = header.endian()?;
    let mut found = Elf { machine: header.e_machine(endian).0, interpreter: None, needed: vec![], search_path: vec![] };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for segment in header.program_headers(endian, file)? {
        if let Some(path) = segment.interpreter(endian, file)? {
            found.interpreter = Some(text(path));
        }
    }
    let sections = header.sections(endian, file)?;
    let Some((entries, strings)) = sections.dynamic(endian, file)? else { return Ok(found) };
    let strings = sections.strings(endian, file, strings)?;
    let string = |entry: &elf::Dyn64<Endianness>| {
        let index = u32::try_from(entry.d_val(endian)).unwrap_or(u32::MAX);
        text(strings.get(index).unwrap_or_default())
    };
    let values = |tag| entries.iter().filter(move |entry| entry.d_tag(endian) == tag);
    found.needed = values(elf::DT_NEEDED).map(string).collect();
    let path = values(elf::DT_RUNPATH).next().or_else(|| values(elf::DT_RPATH).next()).map(string).unwrap_or_default();
    found.search_path = path.split(':').filter(|dir| !dir.is_empty()).map(str::to_owned).collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_program_and_no_text() {
        let program = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(program.needed.iter().any(|name| name == "libc.so.6"), "{program:?}");
        assert!(program.interpreter.unwrap().contains("ld-linux"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("text");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read(&file).unwrap(), None);
        assert!(read(dir.path()).is_err());
    }
}
