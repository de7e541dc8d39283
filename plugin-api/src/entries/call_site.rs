//! Call sites: the plugin, the region and the entry that a thread executes.

use super::permanent::{store, store_str};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Entry of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug)]
pub struct CallSite {
    /// Name of the plugin, or its file until the name is known.
    pub plugin: &'static str,
    /// Symbol of the region; empty if the entry concerns no region.
    pub region: &'static str,
    /// Operators of the model in the region, for messages; empty if unknown.
    pub operators: &'static str,
    /// Entry of the plugin.
    pub entry: Entry,
    /// Number of completed entries of this kind, for all regions of the plugin.
    pub(super) completed: &'static AtomicU32,
}

impl PartialEq for CallSite {
    fn eq(&self, other: &CallSite) -> bool {
        let names = |site: &CallSite| (site.plugin, site.region, site.operators, site.entry);
        names(self) == names(other)
    }
}

impl Eq for CallSite {}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {}: {}", self.plugin, self.entry.name())?;
        if self.region.is_empty() { Ok(()) } else { write!(f, ": region {}", self.region) }
    }
}

thread_local! {
    /// Operators of the region that this thread compiles or loads.
    static OPERATORS: RefCell<String> = const { RefCell::new(String::new()) };
    /// Call sites that this thread asked for last.
    static LATEST: Cell<Option<&'static CallSites>> = const { Cell::new(None) };
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
        OPERATORS.with_borrow(|operators| {
            let operators = if region.is_empty() { "" } else { operators.as_str() };
            let latest = LATEST.get().filter(|sites| sites.has_names(plugin, region, operators));
            latest.unwrap_or_else(|| {
                let sites = CallSites::interned(plugin, region, operators);
                LATEST.set(Some(sites));
                sites
            })
        })
    }

    fn has_names(&self, plugin: &str, region: &str, operators: &str) -> bool {
        // Entries change the floating-point environment, and a comparison with vector instructions would wait for that.
        let is_same = |a: &str, b: &str| a.len() == b.len() && a.bytes().zip(b.bytes()).all(|(a, b)| a == b);
        let [site, ..] = &self.0;
        is_same(site.region, region) && is_same(site.plugin, plugin) && is_same(site.operators, operators)
    }

    fn interned(plugin: &str, region: &str, operators: &str) -> &'static CallSites {
        type Key = (&'static str, &'static str, &'static str);
        static INTERNED: LazyLock<Mutex<HashMap<Key, &'static CallSites>>> = LazyLock::new(Mutex::default);
        let (plugin, region, operators) = (escape_name(plugin), escape_name(region), escape_name(operators));
        let mut interned_names = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sites) = interned_names.get(&(&*plugin, &*region, &*operators)) {
            return sites;
        }
        let is_full = interned_names.len() >= MAX_STORED && !region.is_empty();
        let (region, operators) = if is_full { ("", "") } else { (&*region, &*operators) };
        // The sites without a region, which have the counters of the plugin.
        let plugin_sites = interned_names.get(&(&*plugin, "", "")).copied();
        if let Some(sites) = plugin_sites.filter(|_| region.is_empty()) {
            return sites;
        }
        let plugin_sites = plugin_sites.unwrap_or_else(|| {
            let plugin = store_str(&plugin);
            let sites = store(CallSites(Entry::ALL.map(|entry| CallSite {
                plugin,
                region: "",
                operators: "",
                entry,
                completed: Box::leak(Box::new(AtomicU32::new(0))),
            })));
            interned_names.insert((plugin, "", ""), sites);
            sites
        });
        if region.is_empty() {
            return plugin_sites;
        }
        let (region, operators) = (store_str(region), store_str(operators));
        let sites = store(CallSites(plugin_sites.0.map(|site| CallSite { region, operators, ..site })));
        interned_names.insert((plugin_sites.0[0].plugin, region, operators), sites);
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
