//! Build script that makes the types of `examples/other_layout.rs` appear to belong to `byoc-plugin-api`, as in a
//! plugin that was built against a modified copy of that crate: the package of a type is part of its layout.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=CARGO_PKG_NAME=byoc-plugin-api");
}
