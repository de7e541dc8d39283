//! Call sites: the plugin, the region and the entry that a thread executes.

use super::permanent::{store, store_str};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Entry of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Mapping of the library, which runs its constructors.
    Dlopen,
    /// `byoc_plugin_entry`, or the module of `declare_plugin!`.
    Entry,
    /// `init` of a plugin.
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

    /// Name of the entry in messages.
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

/// Entry that a thread executes, with its plugin and, if any, its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// Name of the plugin, or its file until the name is known.
    pub plugin: &'static str,
    /// Symbol of the region; empty if the entry concerns no region.
    pub region: &'static str,
    /// Operators of the model in the region, for messages; empty if unknown.
    pub operators: &'static str,
    /// Entry of the plugin.
    pub entry: Entry,
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {}: {}", self.plugin, self.entry.name())?;
        if self.region.is_empty() { Ok(()) } else { write!(f, ": region {}", self.region) }
    }
}

thread_local! {
    /// Operators of the region that this thread compiles or loads.
    static OPERATORS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Compiles or loads a region in `body`; messages about its entries contain `operators`, the operators of the model in
/// the region.
pub fn with_operators<R>(operators: String, body: impl FnOnce() -> R) -> R {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            OPERATORS.with_borrow_mut(String::clear);
        }
    }
    OPERATORS.set(operators);
    let _reset = Reset;
    body()
}

/// Maximum number of stored pairs of plugin and region. Later regions share the call sites of their plugin.
const MAX_STORED: usize = 1 << 14;

/// Call sites of all entries of one plugin for one region.
///
/// Never freed: readers of the entry table may hold a call site after the entry has ended. Equal names are stored once,
/// so that loading models repeatedly does not leak memory, and names that models invent are stored up to a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSites([CallSite; 11]);

impl CallSites {
    /// Returns the call sites of `plugin` for the region named `region`, or for no region if the name is empty.
    pub(crate) fn of(plugin: &str, region: &str) -> &'static CallSites {
        type Key = (&'static str, &'static str, &'static str);
        static INTERNED: LazyLock<Mutex<HashMap<Key, &'static CallSites>>> = LazyLock::new(Mutex::default);
        let operators = if region.is_empty() { String::new() } else { OPERATORS.with_borrow(String::clone) };
        let (plugin, region, operators) = (escape_name(plugin), escape_name(region), escape_name(&operators));
        let mut interned_names = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sites) = interned_names.get(&(&*plugin, &*region, &*operators)) {
            return sites;
        }
        let is_full = interned_names.len() >= MAX_STORED && !region.is_empty();
        let (region, operators) = if is_full { ("", "") } else { (&*region, &*operators) };
        if let Some(sites) = interned_names.get(&(&*plugin, region, operators)).filter(|_| is_full) {
            return sites;
        }
        let (plugin, region, operators) = (store_str(&plugin), store_str(region), store_str(operators));
        let sites = store(CallSites(Entry::ALL.map(|entry| CallSite { plugin, region, operators, entry })));
        interned_names.insert((plugin, region, operators), sites);
        sites
    }

    /// Returns the call site of an entry.
    pub(crate) fn at(&'static self, entry: Entry) -> &'static CallSite {
        &self.0[entry as usize]
    }
}

/// Makes a name safe to print on a terminal, and truncates it.
fn escape_name(name: &str) -> Cow<'_, str> {
    const MAX_CHARS: usize = 160;
    if name.len() <= MAX_CHARS && name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(name);
    }
    let is_plain = |c: char| {
        !c.is_control() && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    name.chars().take(MAX_CHARS).map(|c| if is_plain(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_share_a_call_site() {
        let first_sites = CallSites::of("mine", "region_0");
        assert!(std::ptr::eq(first_sites, CallSites::of("mine", "region_0")));
        assert!(!std::ptr::eq(first_sites, CallSites::of("mine", "region_1")));
        assert_eq!(first_sites.at(Entry::Run).to_string(), "plugin mine: run: region region_0");
        assert_eq!(CallSites::of("m\u{202e}i\x1bne", "").at(Entry::Init).to_string(), "plugin m?i?ne: init");
        let sites = with_operators("Conv a\nb".into(), || CallSites::of("mine", "region_0"));
        assert_eq!(sites.at(Entry::Run).operators, "Conv a?b");
        assert!(std::ptr::eq(first_sites, CallSites::of("mine", "region_0")));
        for (index, entry) in Entry::ALL.into_iter().enumerate() {
            assert_eq!(entry as usize, index);
        }
    }
}
