//! The byoc binary.
fn main() {}
