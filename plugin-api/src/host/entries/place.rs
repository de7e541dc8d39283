//! Where a thread is: plugin, region, entry.

use super::keep::{keep, keep_text};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

/// An entry into a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// The library is mapped, and its constructors run.
    Dlopen,
    /// `byoc_plugin_entry`, or the module of `declare_plugin!`.
    Entry,
    /// `init`.
    Init,
    /// `describe` of a code generator.
    Describe,
    /// `judge` of a code generator.
    Judge,
    /// `compile` of a code generator.
    Compile,
    /// `query` of any object.
    Query,
    /// `load` of a loader.
    Load,
    /// `prepare` of a loaded region.
    Prepare,
    /// `run` of a loaded region.
    Run,
    /// `release`, or the destructor of any object.
    Release,
}

impl Entry {
    const ALL: [Entry; 11] = [
        Entry::Dlopen,
        Entry::Entry,
        Entry::Init,
        Entry::Describe,
        Entry::Judge,
        Entry::Compile,
        Entry::Query,
        Entry::Load,
        Entry::Prepare,
        Entry::Run,
        Entry::Release,
    ];

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Entry::Dlopen => "dlopen",
            Entry::Entry => "entry",
            Entry::Init => "init",
            Entry::Describe => "describe",
            Entry::Judge => "judge",
            Entry::Compile => "compile",
            Entry::Query => "query",
            Entry::Load => "load",
            Entry::Prepare => "prepare",
            Entry::Run => "run",
            Entry::Release => "release",
        }
    }
}

/// An entry of a plugin, for a region or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The plugin's name, or its file before it has said a name.
    pub plugin: &'static str,
    /// The region's symbol; empty where the entry is not about one.
    pub region: &'static str,
    /// The entry.
    pub entry: Entry,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {}: {}", self.plugin, self.entry.name())?;
        if self.region.is_empty() { Ok(()) } else { write!(f, ": region {}", self.region) }
    }
}

/// Every entry of one plugin for one region.
///
/// They are kept for good: whoever reads the table of entries may be late, and must not find names that are gone. Equal names
/// are kept once, so that a program that loads models again and again keeps no more of them than there are names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places([Place; 11]);

impl Places {
    /// The entries of `plugin` for the region of this symbol, or for none where it is empty.
    pub(crate) fn of(plugin: &str, region: &str) -> &'static Places {
        static KNOWN: LazyLock<Mutex<HashMap<(&'static str, &'static str), &'static Places>>> =
            LazyLock::new(Mutex::default);
        let (plugin, region) = (printable(plugin), printable(region));
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = known.get(&(&*plugin, &*region)) {
            return places;
        }
        let (plugin, region) = (keep_text(&plugin), keep_text(&region));
        let places = keep(Places(Entry::ALL.map(|entry| Place { plugin, region, entry })));
        known.insert((plugin, region), places);
        places
    }

    /// The place of an entry.
    pub(crate) fn at(&'static self, entry: Entry) -> &'static Place {
        &self.0[entry as usize]
    }
}

/// A name as it may stand on a terminal, and not longer than fits into a line.
fn printable(name: &str) -> Cow<'_, str> {
    const MAX_CHARS: usize = 160;
    if name.len() <= MAX_CHARS && name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(name);
    }
    name.chars().take(MAX_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_one_place() {
        let first = Places::of("mine", "region_0");
        assert!(std::ptr::eq(first, Places::of("mine", "region_0")));
        assert!(!std::ptr::eq(first, Places::of("mine", "region_1")));
        assert_eq!(first.at(Entry::Run).to_string(), "plugin mine: run: region region_0");
        assert_eq!(Places::of("mi\x1bne", "").at(Entry::Init).to_string(), "plugin mi?ne: init");
        for (index, entry) in Entry::ALL.into_iter().enumerate() {
            assert_eq!(entry as usize, index);
        }
    }
}
