//! Lets the types of `examples/other_layout.rs` pass for those of `byoc-plugin-api`, as they would be in a plugin that was
//! built against a changed copy of it: the package of a type is a part of its layout.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=CARGO_PKG_NAME=byoc-plugin-api");
}
