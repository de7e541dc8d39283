//! Region options: chosen by the user at compile time and stored in the region's graph.

use crate::cpu;
use byoc_plugin_api::{Attr, AttrValue, BackendOption, ComputeFormat, Graph, PrecisionClaim};
use serde_json::Value;
use std::collections::BTreeMap;

/// Region options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// True if matrix products and convolutions with constant weights may read bfloat16 operands.
    pub bf16: bool,
    /// True if convolutions may use Winograd.
    pub winograd: bool,
    /// True if small regions run on the calling thread alone.
    pub serial: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { bf16: false, winograd: true, serial: true }
    }
}

const BF16: &str = "bf16";
const WINOGRAD: &str = "winograd";
const SERIAL: &str = "serial";

/// Returns the option descriptions, by option name.
pub fn table() -> BTreeMap<String, BackendOption> {
    let bf16 = "Products and convolutions of bfloat16 operands with float32 accumulation, on CPUs with AVX512_BF16";
    let winograd = "Winograd algorithm for 3 x 3 convolutions, on CPUs with AVX-512: fewer multiplications, but the \
                    last digits of results differ, and an infinity turns neighboring results into NaN";
    let serial = "Small regions on one thread, as waking the others would take about as long as the work";
    let option = |about: &str, values: [&str; 2]| BackendOption {
        about: about.into(),
        values: values.into_iter().map(Into::into).collect(),
        ..BackendOption::default()
    };
    let precision = [("true".to_owned(), ComputeFormat::Bf16)].into();
    BTreeMap::from([
        (BF16.to_owned(), BackendOption { precision, ..option(bf16, ["false", "true"]) }),
        (WINOGRAD.to_owned(), option(winograd, ["true", "false"])),
        (SERIAL.to_owned(), option(serial, ["true", "false"])),
    ])
}

/// Returns the precision of the operators under the user's options. Operands are rounded to bfloat16, their products are
/// exact in float32: the sum of their errors is at most two units in the last place of bfloat16, relative to the sum of
/// the magnitudes.
pub fn precision(choices: &Value) -> BTreeMap<String, PrecisionClaim> {
    let claim = |name: &str| (name.to_owned(), PrecisionClaim::ulps(ComputeFormat::Bf16, 2.0));
    let has_bf16 = choices["backend_options"][BF16] == "true";
    if has_bf16 { BF16_OPERATORS.into_iter().map(claim).collect() } else { BTreeMap::new() }
}

/// Operators that may read bfloat16 operands.
const BF16_OPERATORS: [&str; 9] = [
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv3d",
    "nn.conv1d_transpose",
    "nn.conv2d_transpose",
    "nn.conv3d_transpose",
    "nn.dense",
    "nn.matmul",
    "nn.batch_matmul",
];

/// Stores non-default options in a region's graph.
pub fn store(graph: &mut Graph, options: &Value) {
    let options_of_backend = &options["backend_options"];
    if options_of_backend[BF16] == "true" {
        graph.attrs.push(Attr::new(BF16, true));
    }
    for name in [WINOGRAD, SERIAL] {
        if options_of_backend[name] == "false" {
            graph.attrs.push(Attr::new(name, false));
        }
    }
}

/// Returns the options in a region's graph, without those that this CPU does not support, and a warning if an option
/// is ignored.
pub fn of_graph(graph: &Graph) -> (Options, Option<&'static str>) {
    let flag = |name| match graph.attr(name) {
        Some(AttrValue::Bool(enabled)) => Some(*enabled),
        _ => None,
    };
    let allows_bf16 = flag(BF16) == Some(true);
    let options = Options {
        bf16: allows_bf16 && cpu::has_bf16(),
        winograd: flag(WINOGRAD) != Some(false),
        serial: flag(SERIAL) != Some(false),
    };
    (options, (allows_bf16 && !options.bf16).then_some(BF16_IGNORED))
}

/// Warning for CPUs without bfloat16 dot-product instructions.
const BF16_IGNORED: &str = "the option bf16 is ignored: this CPU does not support AVX512_BF16; float32 is used";
