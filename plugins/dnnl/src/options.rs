//! What a user may choose for a region.
//!
//! The choice is made when the region is compiled, and is in its graph from then on.

use crate::cpu;
use byoc_plugin_api::{Attr, AttrValue, BackendOption, Graph};
use std::collections::BTreeMap;

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// True if products and convolutions with constant weights may read bfloat16.
    pub narrow: bool,
    /// True if convolutions may be computed with fewer multiplications.
    pub winograd: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { narrow: false, winograd: true }
    }
}

const NARROW: &str = "bf16";
const WINOGRAD: &str = "winograd";

/// The options, by name.
pub fn table() -> BTreeMap<String, BackendOption> {
    let narrow = "products and convolutions read bfloat16 and sum in float32, where the CPU has AVX512_BF16";
    let winograd = "convolutions by 3 x 3 kernels multiply less (Winograd), where the CPU has AVX-512; their last digits differ, \
                    and an infinity makes NaN of its neighbours";
    let option = |about: &str, values: [&str; 2]| BackendOption {
        about: about.into(),
        values: values.into_iter().map(Into::into).collect(),
    };
    BTreeMap::from([
        (NARROW.to_owned(), option(narrow, ["false", "true"])),
        (WINOGRAD.to_owned(), option(winograd, ["true", "false"])),
    ])
}

/// Writes into a region's graph what was chosen, where that is not what happens anyway.
pub fn mark(graph: &mut Graph, options: &serde_json::Value) {
    let chosen = &options["backend_options"];
    if chosen[NARROW] == "true" {
        graph.attrs.push(Attr::new(NARROW, true));
    }
    if chosen[WINOGRAD] == "false" {
        graph.attrs.push(Attr::new(WINOGRAD, false));
    }
}

/// What was chosen for a region, as far as this CPU can. Second, what is to be said of the rest.
pub fn of(graph: &Graph) -> (Options, Option<&'static str>) {
    let chosen = |name| match graph.attr(name) {
        Some(AttrValue::Bool(chosen)) => Some(*chosen),
        _ => None,
    };
    let narrow = chosen(NARROW) == Some(true);
    let options = Options { narrow: narrow && cpu::has_bf16(), winograd: chosen(WINOGRAD) != Some(false) };
    (options, (narrow && !options.narrow).then_some(IGNORED))
}

/// What is said on other CPUs.
const IGNORED: &str = "the option bf16 is ignored: this CPU does not have AVX512_BF16; float32 is computed";
