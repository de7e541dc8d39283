//! Runs large synthetic graphs through the passes. The results must be correct, and no pass may recurse deeply.
//! `--nocapture` prints the times; no assertion depends on them.

#![expect(clippy::print_stdout, reason = "the times are printed for manual runs")]

use super::{assert_equal, table, targets};
use byoc_core::analysis::{structural_equal, verify};
use byoc_core::pass::manager::{RunOptions, run};
use byoc_core::pass::{AcceptAll, Backend, ControlFlow, PassOptions, RefusalCode, infer_type_in_place, partition_for};
use byoc_ir::ir::{Attrs, ExprId, Module, Type};
use byoc_ir::tensor::DType;
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use byoc_ir::typing::Builder;
use std::fmt::Write;
use std::time::Instant;

const SIZE: usize = 100_000;

fn build(build_body: impl FnOnce(&mut Builder, ExprId) -> ExprId) -> Module {
    let mut builder = Builder::default();
    let x = builder.var("x", Type::tensor(DType::F32, &[4, 4]));
    let body = build_body(&mut builder, x);
    builder.define("main", &[x], body).unwrap();
    builder.module
}

fn op(builder: &mut Builder, name: &str, args: &[ExprId]) -> ExprId {
    builder.op(name, args, Attrs::none()).unwrap()
}

/// Generates the chain relu, abs, exp, relu, ...
fn chain() -> Module {
    build(|b, x| (0..SIZE).fold(x, |value, i| op(b, ["nn.relu", "abs", "exp"][i % 3], &[value])))
}

/// Generates stages, each the sum of relu and exp of the preceding stage.
fn diamonds() -> Module {
    build(|b, x| {
        (0..SIZE / 3).fold(x, |value, _| {
            let (relu, exp) = (op(b, "nn.relu", &[value]), op(b, "exp", &[value]));
            op(b, "add", &[relu, exp])
        })
    })
}

/// Generates one tuple of many values.
fn wide_module() -> Module {
    build(|b, x| {
        let fields: Vec<ExprId> =
            (0..SIZE / 2).map(|i| op(b, if i % 2 == 0 { "nn.relu" } else { "exp" }, &[x])).collect();
        let tuple = b.tuple(&fields).unwrap();
        op(b, "concatenate", &[tuple])
    })
}

/// Generates a chain of one backend's operators. The result of each is also read by an operator on the host.
fn leaking_module() -> Module {
    build(|b, x| {
        let mut value = x;
        let mut out = Vec::new();
        for _ in 0..SIZE / 2 {
            value = op(b, "nn.relu", &[value]);
            out.push(op(b, "exp", &[value]));
        }
        out.push(value);
        let tuple = b.tuple(&out).unwrap();
        op(b, "concatenate", &[tuple])
    })
}

/// Generates a chain of one backend's operators, each of which uses a result computed on the host.
fn feeding_module() -> Module {
    build(|b, x| {
        (0..SIZE / 2).fold(x, |value, _| {
            let side = op(b, "exp", &[x]);
            op(b, "add", &[value, side])
        })
    })
}

fn entries(count: usize) -> PassOptions {
    let mut text = String::from("t.ra: abs(nn.relu(*))\n");
    for i in 1..count {
        text.push_str(&format!("t.c{i}: nn.bias_add(nn.conv2d{{groups={i}}}(*, *), *) ? nn.relu\n"));
    }
    let annotate = targets(&[("t", &["nn.relu", "add", "concatenate"])], true);
    PassOptions { patterns: table(&text), ..annotate }
}

#[test]
fn four_passes() {
    let options = entries(95);
    for (name, make) in [
        ("chain", chain as fn() -> Module),
        ("diamonds", diamonds),
        ("wide", wide_module),
        ("leaking", leaking_module),
        ("feeding", feeding_module),
    ] {
        let module = make();
        let names = ["merge_composite", "annotate_target", "merge_compiler_regions", "partition_graph"];
        let output = run(module, &names, &options, &mut RunOptions::default()).unwrap();
        println!("{name}: {:?}", output.timings.iter().map(|t| t.time).collect::<Vec<_>>());
        verify(&output.module).unwrap();
        assert!(output.module.globals.len() > 1, "{name}");
    }
}

#[test]
fn backends_in_priority_order() {
    let options = entries(95);
    for (name, make) in [
        ("chain", chain as fn() -> Module),
        ("diamonds", diamonds),
        ("wide", wide_module),
        ("leaking", leaking_module),
        ("feeding", feeding_module),
    ] {
        let module = make();
        let start = Instant::now();
        let (mut p, mut q, mut r) = (AcceptAll, AcceptAll, AcceptAll);
        let [p_ops, q_ops, r_ops] = [["nn.relu"], ["add"], ["concatenate"]].map(|ops| ops.map(str::to_owned));
        let mut backends = [
            Backend {
                name: "p".into(),
                table: &options.patterns,
                operators: &p_ops,
                control_flow: ControlFlow::default(),
                judge: &mut p,
            },
            Backend {
                name: "q".into(),
                table: &[],
                operators: &q_ops,
                control_flow: ControlFlow::default(),
                judge: &mut q,
            },
            Backend {
                name: "r".into(),
                table: &[],
                operators: &r_ops,
                control_flow: ControlFlow::default(),
                judge: &mut r,
            },
        ];
        let (result, report) = partition_for(&module, &mut backends, "default").unwrap();
        println!("{name}: {:?}, {} regions", start.elapsed(), report.regions.len());
        verify(&result).unwrap();
        assert!(!report.regions.is_empty());
    }
}

#[test]
fn partitioning_is_deterministic() {
    let options = entries(3);
    let names = ["merge_composite", "annotate_target", "merge_compiler_regions", "partition_graph"];
    let first_run = run(leaking_module(), &names, &options, &mut RunOptions::default()).unwrap().module;
    let second_run = run(leaking_module(), &names, &options, &mut RunOptions::default()).unwrap().module;
    assert_equal(&first_run, &second_run);
}

/// Checks that a partitioned program round-trips through text.
fn partitions_and_reads_back(text: &str) -> usize {
    let read = |text: &str| {
        let mut module = parse(text, &ParseOptions::default()).module;
        infer_type_in_place(&mut module, &[]).unwrap();
        module
    };
    let module = read(text);
    let operators = ["nn.relu".to_owned()];
    let mut backends = [Backend {
        name: "a".into(),
        table: &[],
        operators: &operators,
        control_flow: ControlFlow::default(),
        judge: &mut AcceptAll,
    }];
    let (partitioned, report) = partition_for(&module, &mut backends, "default").unwrap();
    assert_eq!(verify(&partitioned), Ok(()));
    assert!(report.operators.iter().all(|row| row.region.is_some()));
    let reread = read(&print(&partitioned, &PrintOptions::default()).text);
    assert_eq!(structural_equal(&partitioned, &reread), Ok(()));
    report.regions.len()
}

const HEAD: &str = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 64), float32]) {\n";

#[test]
fn a_chain_of_a_million_operators_is_one_region() {
    let mut text = format!("{HEAD}  %0 = nn.relu(%x);\n");
    for i in 1..1_000_000 {
        let _ = writeln!(text, "  %{i} = nn.relu(%{});", i - 1);
    }
    text.push_str("  nn.relu(%999999)\n}\n");
    assert_eq!(partitions_and_reads_back(&text), 1);
}

#[test]
fn a_hundred_thousand_lets_are_as_many_regions() {
    let text = format!("{HEAD}{}%x\n}}\n", "let %x = nn.relu(%x);\n".repeat(100_000));
    assert_eq!(partitions_and_reads_back(&text), 100_000);
}

#[test]
fn refuses_region_with_too_many_outputs() {
    // Every later relu reads the first relu and is read by an add on the host.
    let text = |outputs: usize| {
        let mut text = format!("{HEAD}  %0 = nn.relu(%x);\n");
        for i in 0..outputs {
            let (sum, relu) = (2 * i, 2 * i + 1);
            let _ = writeln!(text, "  %{relu} = nn.relu(%0);\n  %{} = add(%{sum}, %{relu});", relu + 1);
        }
        let _ = writeln!(text, "  %{}\n}}", 2 * outputs);
        text
    };
    let module = |outputs: usize| {
        let mut module = parse(&text(outputs), &ParseOptions::default()).module;
        infer_type_in_place(&mut module, &[]).unwrap();
        module
    };
    let operators = ["nn.relu".to_owned()];
    for (outputs, regions) in [(1000, 1), (Type::MAX_PARTS, 0)] {
        let module = module(outputs);
        let mut backends = [Backend {
            name: "a".into(),
            table: &[],
            operators: &operators,
            control_flow: ControlFlow::default(),
            judge: &mut AcceptAll,
        }];
        let (partitioned, report) = partition_for(&module, &mut backends, "default").unwrap();
        assert_eq!(report.regions.len(), regions);
        assert_eq!(verify(&partitioned), Ok(()));
        let refusals = report
            .operators
            .iter()
            .filter(|row| row.refusals.iter().any(|(_, refusal)| refusal.code == RefusalCode::ResourceLimit));
        assert_eq!(refusals.count(), if regions == 0 { outputs + 1 } else { 0 });
    }
}

/// The search for near misses is bounded: of very many operators, the last have none.
#[test]
fn the_search_for_near_misses_ends() {
    let mut text = format!("{HEAD}  %0 = nn.relu(%x);\n");
    for i in 1..500_000 {
        let _ = writeln!(text, "  %{i} = nn.relu(%{});", i - 1);
    }
    text.push_str("  nn.relu(%499999)\n}\n");
    let mut module = parse(&text, &ParseOptions::default()).module;
    infer_type_in_place(&mut module, &[]).unwrap();
    let entries = (0..20).map(|i| format!("a.e{i}: exp(nn.relu(abs(*)))\n")).collect::<String>();
    let mut backends = [Backend {
        name: "a".into(),
        table: &table(&entries),
        operators: &[],
        control_flow: ControlFlow::default(),
        judge: &mut AcceptAll,
    }];
    let (_, report) = partition_for(&module, &mut backends, "default").unwrap();
    let found = report.near_misses.len();
    assert!((1..report.operators.len()).contains(&found), "{found}");
    assert_eq!(report.near_misses[0].near_miss.position, "input 0 of nn.relu");
}
