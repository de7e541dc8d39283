//! The memory of what a text becomes counts against the limit. The limit is global, so all tests are in one function.

use byoc_ir::diag::codes;
use byoc_ir::tensor::memory;
use byoc_ir::text::{ParseOptions, parse};

#[test]
fn text_is_parsed_within_the_memory_limit() {
    let statements = "1;".repeat(1 << 18);
    let program = format!("#[version = \"0.0.5\"]\ndef @main(%x: int32) {{ {statements} %x }}\n");
    let lists = format!("{program}#[metadata]\n{}", "[".repeat(1 << 20));
    let objects = format!("{program}#[metadata]\n{}", "{\"\":".repeat(1 << 18));
    let used = memory::used();
    memory::set_limit(used + (16 << 20));
    for source in [&program, &lists, &objects] {
        let parsed = parse(source, &ParseOptions::default());
        let found: Vec<_> = parsed.diagnostics.iter().map(|error| error.code).collect();
        assert_eq!(found, [codes::runtime::OUT_OF_MEMORY]);
        assert!(parsed.module.nodes.len() < 1 << 18);
    }
    memory::set_limit(usize::MAX);
    let parsed = parse(&program, &ParseOptions::default());
    assert!(parsed.diagnostics.is_empty() && memory::used() >= used + (16 << 20));
    drop(parsed);
    assert!(memory::used() < used + (16 << 20));
}
