//! Functions from outside that a program calls.

use std::collections::BTreeMap;

/// Name of the operator that stands for a region of a backend; the attribute `symbol` names its function.
pub const REGION: &str = "byoc.region";

/// Function that computes an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Layout in which the function takes constant weights; empty for that of the model.
    pub kernel_layout: String,
}

/// Functions from outside.
#[derive(Clone, Debug, Default)]
pub struct Externals {
    /// Function of each operator, by Relay name.
    pub operators: BTreeMap<String, Function>,
    /// Regions, by symbol.
    pub regions: BTreeMap<String, Region>,
}

/// Region of a backend: `void SYMBOL(const void *const *in, void *const *out, const void *const *constants, void *work)`,
/// or a function of these arguments that returns an int.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Size in bytes of the workspace, which is aligned to 64 bytes.
    pub workspace: i64,
    /// Names of the arrays with the constants; `None` for a constant that the region does not read.
    pub constants: Vec<Option<String>>,
    /// True if the function returns an int, 0 for success; the program then has an `int *status` in its arguments.
    pub status: bool,
}

impl Externals {
    /// Returns true if an operator is a call of a function from outside.
    pub fn contains(&self, name: &str) -> bool {
        name == REGION || self.operators.contains_key(name)
    }
}
