//! External functions that a program calls.

use std::collections::BTreeMap;

/// Name of the operator that represents a backend region; the attribute `symbol` names its function.
pub const REGION: &str = "byoc.region";

/// Function that computes an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// C name of the function.
    pub name: String,
    /// Layout in which the function expects constant weights; empty for the model's layout.
    pub kernel_layout: String,
}

/// External functions of a program.
#[derive(Clone, Debug, Default)]
pub struct Externals {
    /// Function of each operator, by Relay name.
    pub operators: BTreeMap<String, Function>,
    /// Regions, by symbol.
    pub regions: BTreeMap<String, Region>,
}

/// Backend region: `void SYMBOL(const void *const *in, void *const *out, const void *const *constants, void *work)`, or
/// a function with the same parameters that returns an int.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Size in bytes of the workspace, which is aligned to 64 bytes.
    pub workspace: i64,
    /// Names of the constant arrays; `None` for a constant that the region does not read.
    pub constants: Vec<Option<String>>,
    /// True if the function returns an int, 0 for success; the program then has an `int *status` in its arguments.
    pub status: bool,
}

impl Externals {
    /// Returns true if an operator calls an external function.
    pub fn contains(&self, name: &str) -> bool {
        name == REGION || self.operators.contains_key(name)
    }
}
