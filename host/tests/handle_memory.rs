//! Memory that a count from outside demands: values of data types, closures, cells, calls, traces, and JSON. Each ends
//! in E0609 near the limit, and leaves the process as it was. The limit belongs to the process, so one test sets it.

use byoc::driver::Compiled;
use byoc::driver::plan::{LoweredProgram, plan};
use byoc::runtime::artifact::{parse, to_bytes};
use byoc::runtime::exec::{Executor, Pool, Program};
use byoc::trace::Trace;
use byoc_core::pass::{infer_type, monomorphize};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{Tensor, memory};
use byoc_ir::text::{ParseOptions, parse as parse_module};
use byoc_test_support::artifact::Entries;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LIMIT: usize = 64 << 20;
const T: &str = "Tensor[(2), float32]";

fn lower(text: &str) -> LoweredProgram {
    let text = format!("#[version = \"0.0.5\"]\n{text}");
    let parsed_module = parse_module(&text, &ParseOptions::default());
    assert_eq!(parsed_module.diagnostics, [], "{text}");
    let module = infer_type(&parsed_module.module).unwrap_or_else(|faults| panic!("{faults:?}"));
    plan(&monomorphize(&module).unwrap(), &[], &[]).unwrap()
}

fn run(program: Program, constants: Vec<Tensor>) -> Diagnostic {
    let regions = vec![None; program.regions.len()];
    let executor = Executor::new(program, constants, regions, Arc::new(Pool::new(1).unwrap())).unwrap();
    let used = memory::used();
    let error = executor.run(&[Tensor::from_slice(&[2], &[1.0f32, 2.0])]).unwrap_err();
    executor.release_memory();
    assert!(memory::used() <= used, "expected the memory of the run to be released");
    error
}

/// Returns the peak of the resident memory of this process in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

fn check(case: &str, start: usize, error: &Diagnostic) {
    assert_eq!(error.code, codes::runtime::OUT_OF_MEMORY, "{case}: {error}");
    assert!(error.help.as_ref().is_some_and(|help| help.contains("--max-memory")), "{case}: {error}");
    let peak = peak().saturating_sub(start);
    assert!(peak < 2 * LIMIT, "{case}: expected less than {} bytes, found {peak}", 2 * LIMIT);
}

/// A program whose function `f` calls itself, with `count` registers.
fn recursion(count: usize) -> Value {
    let value = json!({ "type": ["float32", 2], "place": "value" });
    let handle = json!({ "type": null, "place": "value" });
    let function = |name: &str, registers: Vec<Value>| {
        let call = json!({ "call": { "function": 1, "args": [0], "outs": [1] } });
        let code = json!([call, { "return": { "values": [1] } }]);
        json!({ "name": name, "params": 1, "results": 1, "arena": 0, "registers": registers, "code": code })
    };
    let registers = [value.clone(), value.clone()].into_iter().chain(std::iter::repeat_n(handle, count)).collect();
    let port = |name: &str| json!([{ "name": name, "type": ["float32", 2] }]);
    json!({
        "version": 2, "entry": 0, "sources": [], "constants": [], "regions": [],
        "inputs": port("x"), "outputs": port("y"),
        "functions": [function("main", vec![value.clone(), value]), function("f", registers)],
    })
}

/// Writes an artifact with a host program, and edits it.
fn artifact(edit: impl FnOnce(&mut Entries)) -> Vec<u8> {
    let LoweredProgram { program, constants, .. } = lower(&format!("def @main(%x: {T}) {{ nn.relu(%x) }}"));
    let compiled = Compiled {
        program,
        constants,
        absent: BTreeSet::new(),
        regions: Vec::new(),
        linked: BTreeMap::new(),
        explain: json!({ "nodes": [] }),
        model_digest: String::new(),
        options: json!({}),
        from_file: false,
        variants: Vec::new(),
        charges: Arc::default(),
    };
    let mut entries = Entries::unpack(&to_bytes(&compiled).unwrap());
    edit(&mut entries);
    entries.pack()
}

#[test]
fn counts_end_at_the_memory_limit() {
    let list = format!(
        "type List {{ Cons(List), Nil }}
         def @f(%x: {T}, %l: List) -> {T} {{ @f(%x, Cons(%l)) }}
         def @main(%x: {T}) -> {T} {{ @f(%x, Nil) }}"
    );
    let tensors = format!(
        "type List[A] {{ Cons(A, List[A]), Nil }}
         def @f(%x: {T}, %l: List[{T}]) -> {T} {{ @f(%x, Cons(nn.relu(%x), %l)) }}
         def @main(%x: {T}) -> {T} {{ @f(%x, Nil) }}"
    );
    let closures = format!(
        "def @f(%x: {T}, %g: fn({T}) -> {T}) -> {T} {{ @f(%x, fn (%q: {T}) -> {T} {{ nn.relu(%g(%q)) }}) }}
         def @main(%x: {T}) -> {T} {{ @f(%x, fn (%q: {T}) -> {T} {{ %q }}) }}"
    );
    let cells = format!(
        "type Cells {{ Cons(ref({T}), Cells), Nil }}
         def @f(%x: {T}, %l: Cells) -> {T} {{ @f(%x, Cons(ref(%x), %l)) }}
         def @main(%x: {T}) -> {T} {{ @f(%x, Nil) }}"
    );
    let (count, xs) = (500, |n: usize| vec!["%x"; n].join(", "));
    let params: Vec<String> = (0..count).map(|i| format!("%p{i}: {T}")).collect();
    let args: Vec<String> = (0..count).map(|i| format!("%p{}", (i + 1) % count)).collect();
    let parameters = format!(
        "def @f({}) -> {T} {{ nn.relu(@f({})) }}
         def @main(%x: {T}) -> {T} {{ @f({}) }}",
        params.join(", "),
        args.join(", "),
        xs(count)
    );
    let texts = [list, tensors, closures, cells, parameters];
    let programs: Vec<_> = texts.iter().map(|text| (text, lower(text))).collect();
    let elements = |item: &str| format!("[{}0]", format!("{item},").repeat((2 << 20) / item.len()));
    let deep: [Vec<u8>; 3] = ["[]", "{\"\":0}", "0"].map(|item| {
        artifact(|entries| {
            entries.replace("manifest.json", "\"explain\":{", &format!("\"explain\":{{\"x\":{},", elements(item)))
        })
    });
    let dims = artifact(|entries| {
        let dims = format!("[\"float32\",{}2]", "1,".repeat(1 << 20));
        entries.replace("program.json", "[\"float32\",2]", &dims);
    });
    let header = artifact(|entries| {
        let text = elements("[]").replace("[[]", "{\"x\":[[]") + "}";
        *entries.entry("weights.safetensors") = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    });

    let start = peak();
    memory::set_limit(memory::used() + LIMIT);
    for (text, lowered) in programs {
        check(text, start, &run(lowered.program, lowered.constants));
    }
    for count in [1000, 10_000] {
        let error = run(serde_json::from_value(recursion(count)).unwrap(), Vec::new());
        check(&format!("recursion with {count} registers"), start, &error);
    }
    let forever =
        lower(&format!("def @f(%x: {T}) -> {T} {{ @f(nn.relu(%x)) }} def @main(%x: {T}) -> {T} {{ @f(%x) }}"));
    let executor = Executor::new(forever.program, forever.constants, vec![], Arc::new(Pool::new(1).unwrap())).unwrap();
    let trace = Trace::new(true);
    let error = executor.run_observed(&[Tensor::from_slice(&[2], &[1.0f32, 2.0])], Some(&trace)).unwrap_err();
    check("trace", start, &error);
    assert!(error.notes.iter().any(|note| note.contains("trace")), "{error}");
    drop((trace, executor));
    let used = memory::used();
    for (case, bytes) in deep.into_iter().chain([dims, header]).enumerate() {
        let error = parse(Arc::new(bytes)).map(drop).unwrap_err();
        check(&format!("artifact {case}"), start, &error);
        assert_eq!(memory::used(), used, "artifact {case}: expected no memory to be held");
    }
    let small = parse(Arc::new(artifact(|_| {}))).unwrap();
    assert!(memory::used() > used, "expected the decoded parts to count");
    drop(small);
    assert_eq!(memory::used(), used);
}
