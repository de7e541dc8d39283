//! Benches of parsing, type inference and partitioning on synthetic modules of 1,000 to 1,000,000 operators.
//!
//! Criterion measures each stage separately up to 100,000 operators. The entire pipeline, from text to a module
//! partitioned for three backends, runs once in a separate process for each module and size, to isolate its peak
//! memory. Targets: 100,000 operators in 1 s; 1,000,000 at no more than 8 µs and 1.5 kB per operator.
//!
//! A separate table measures the four partitioning passes of Relay on a typed module, with 95 patterns. Targets:
//! 100,000 operators within 0.5 s in total, 1,000,000 within 6 s.
//!
//! `cargo bench -p byoc-benches --bench passes -- --scale chain,wide 1000000` prints only the pipeline table, for the
//! given modules and sizes; with `--four`, only the table of the four passes.

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use byoc_benches::process::{self, thread_time};
use byoc_benches::{backends, programs};
use byoc_core::analysis::verify;
use byoc_core::pass::{self, AcceptAll};
use byoc_ir::ir::Module;
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use std::process::Command;
use std::time::Duration;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let values_of = |flag: &str| args.iter().position(|arg| arg == flag).map(|index| &args[index + 1..]);
    if let Some([program, size, ..]) = values_of("--one") {
        return print_run(program, size.parse().expect("expected an integer number of operators"));
    }
    if let Some([program, size, ..]) = values_of("--one-four") {
        return print_passes_run(program, size.parse().expect("expected an integer number of operators"));
    }
    for (flag, table) in [("--scale", print_runs as fn(&dyn Fn(&str) -> bool, &[usize])), ("--four", print_passes_runs)]
    {
        if let Some(rest) = values_of(flag) {
            let names = rest.first().map_or("", |names| names.as_str());
            let sizes: Vec<usize> = rest.iter().skip(1).filter_map(|size| size.parse().ok()).collect();
            return table(&|name| names.is_empty() || names.split(',').any(|item| item == name), &sizes);
        }
    }
    let mut criterion = byoc_benches::criterion();
    bench_stages(&mut criterion);
    criterion.final_summary();
    // The tables are skipped if a filter selects benches, and under `cargo test --benches`, which only checks that
    // benches run.
    if args.iter().any(|arg| arg == "--bench") && !args.iter().skip(1).any(|arg| !arg.starts_with('-')) {
        print_runs(&|_| true, &[1_000, 10_000, 100_000, 1_000_000]);
        print_passes_runs(&|_| true, &[100_000, 1_000_000]);
    }
}

fn parse_module(text: &str) -> Module {
    let parse_result = parse(text, &ParseOptions::default());
    assert!(parse_result.diagnostics.is_empty(), "{:?}", parse_result.diagnostics);
    parse_result.module
}

fn infer_types(mut module: Module) -> Module {
    pass::infer_type_in_place(&mut module, &[]).expect("expected a well-typed program");
    module
}

/// Measures each stage separately.
fn bench_stages(criterion: &mut Criterion) {
    let table = backends::table();
    for program in programs::PROGRAMS {
        let mut group = criterion.benchmark_group(program.name);
        for size in [1_000, 100_000] {
            let (text, operators) = (program.text)(size);
            let untyped_module = parse_module(&text);
            let module = infer_types(untyped_module.clone());
            group.throughput(Throughput::Elements(operators as u64));
            let id = |stage: &str| BenchmarkId::new(stage, size);
            group.bench_function(id("parse"), |b| b.iter_with_large_drop(|| parse_module(&text)));
            group.bench_function(id("infer_type"), |b| {
                b.iter_batched(|| untyped_module.clone(), infer_types, BatchSize::PerIteration);
            });
            group.bench_function(id("verify"), |b| b.iter(|| verify(&module).is_ok()));
            group.bench_function(id("print"), |b| {
                b.iter_with_large_drop(|| print(&module, &PrintOptions::default()));
            });
            let merge = || {
                pass::merge_composite(&module, &table, &mut AcceptAll, &mut |_, _| {}, &mut Vec::new())
                    .expect("cannot merge composites")
            };
            group.bench_function(id("merge_composite"), |b| b.iter_with_large_drop(merge));
            let composites = merge();
            let rules = backends::rules();
            let annotate = || pass::annotate_target(&composites, &rules, true).expect("cannot annotate the module");
            group.bench_function(id("annotate_target"), |b| b.iter_with_large_drop(annotate));
            let annotated_module = annotate();
            let regions = || pass::merge_compiler_regions(&annotated_module).expect("cannot merge regions");
            group.bench_function(id("merge_compiler_regions"), |b| b.iter_with_large_drop(regions));
            let merged = regions();
            group.bench_function(id("partition_graph"), |b| {
                b.iter_with_large_drop(|| {
                    pass::partition_graph(&merged, "default", true).expect("cannot partition the module")
                });
            });
            group.bench_function(id("partition_for"), |b| {
                b.iter_with_large_drop(|| backends::partition(&module, &table));
            });
            group.bench_function(id("text_to_partitioned"), |b| {
                b.iter_with_large_drop(|| backends::partition(&infer_types(parse_module(&text)), &table));
            });
        }
        group.finish();
    }
}

/// Prints the table of pipeline runs, each in a separate single-threaded process; times are CPU times.
fn print_runs(is_selected: &dyn Fn(&str) -> bool, sizes: &[usize]) {
    println!(
        "\n{:<13} {:>9}  {:>8} {:>8} {:>9} {:>9}  {:>7} {:>7}  {:>8} {:>8} {:>8}",
        "text to three",
        "operators",
        "parse",
        "infer",
        "partition",
        "total",
        "µs/op",
        "B/op",
        "regions",
        "verify",
        "print"
    );
    run_rows("--one", is_selected, sizes);
}

/// Prints the table of the four partitioning passes.
fn print_passes_runs(is_selected: &dyn Fn(&str) -> bool, sizes: &[usize]) {
    println!(
        "\n{:<13} {:>9}  {:>9} {:>9} {:>9} {:>9} {:>9}  {:>7} {:>9}",
        "four passes", "operators", "composite", "annotate", "merge", "partition", "total", "µs/op", "functions"
    );
    run_rows("--one-four", is_selected, sizes);
}

fn run_rows(flag: &str, is_selected: &dyn Fn(&str) -> bool, sizes: &[usize]) {
    let executable = std::env::current_exe().expect("cannot get the path of this executable");
    for program in programs::PROGRAMS.iter().filter(|program| is_selected(program.name)) {
        for size in sizes {
            let output = Command::new(&executable)
                .args([flag, program.name, &size.to_string()])
                .output()
                .expect("cannot start this executable");
            if output.status.success() {
                print!("{}", String::from_utf8_lossy(&output.stdout));
            } else {
                println!("{:<13} {size:>9}  {}", program.name, String::from_utf8_lossy(&output.stderr).trim_end());
            }
        }
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}ms", time.as_secs_f64() * 1e3)
}

/// Prints one row of the table of the four partitioning passes.
fn print_passes_run(program: &str, size: usize) {
    let (text, operators) = (programs::find(program).unwrap_or_else(|| panic!("unknown program {program}")).text)(size);
    let (table, rules) = (backends::table(), backends::rules());
    let module = infer_types(parse_module(&text));
    let start = thread_time();
    let composites = pass::merge_composite(&module, &table, &mut AcceptAll, &mut |_, _| {}, &mut Vec::new())
        .expect("cannot merge composites");
    let after_composites = thread_time() - start;
    let annotated_module = pass::annotate_target(&composites, &rules, true).expect("cannot annotate the module");
    let after_annotate = thread_time() - start;
    let merged_module = pass::merge_compiler_regions(&annotated_module).expect("cannot merge regions");
    let after_merge = thread_time() - start;
    let partitioned = pass::partition_graph(&merged_module, "default", true).expect("cannot partition the module");
    let total_time = thread_time() - start;
    assert!(verify(&partitioned).is_ok(), "expected a valid partitioned module");
    println!(
        "{program:<13} {operators:>9}  {:>9} {:>9} {:>9} {:>9} {:>9}  {:>7.2} {:>9}",
        milliseconds(after_composites),
        milliseconds(after_annotate - after_composites),
        milliseconds(after_merge - after_annotate),
        milliseconds(total_time - after_merge),
        milliseconds(total_time),
        total_time.as_secs_f64() * 1e6 / operators as f64,
        partitioned.globals.len(),
    );
}

/// Prints one row of the table of pipeline runs.
fn print_run(program: &str, size: usize) {
    let (text, operators) = (programs::find(program).unwrap_or_else(|| panic!("unknown program {program}")).text)(size);
    let table = backends::table();
    let initial_bytes = process::resident_bytes();
    let start = thread_time();
    let untyped_module = parse_module(&text);
    let after_parse = thread_time() - start;
    let module = infer_types(untyped_module);
    let after_infer = thread_time() - start;
    let (partitioned, report) = backends::partition(&module, &table);
    let total_time = thread_time() - start;
    let bytes = process::peak_resident_bytes().saturating_sub(initial_bytes) as f64 / operators as f64;
    let ms = milliseconds;
    let check = thread_time();
    let verify_result = verify(&partitioned);
    let check = thread_time() - check;
    assert!(
        verify_result.is_ok(),
        "expected a valid partitioned module, found {:?}",
        verify_result.err().map(|faults| faults[0].clone())
    );
    let write = thread_time();
    let printed_text = print(&partitioned, &PrintOptions::default());
    let write = thread_time() - write;
    assert!(!printed_text.text.is_empty());
    println!(
        "{program:<13} {operators:>9}  {:>8} {:>8} {:>9} {:>9}  {:>7.2} {bytes:>7.0}  {:>8} {:>8} {:>8}",
        ms(after_parse),
        ms(after_infer - after_parse),
        ms(total_time - after_infer),
        ms(total_time),
        total_time.as_secs_f64() * 1e6 / operators as f64,
        report.regions.len(),
        ms(check),
        ms(write),
    );
}
