//! Texts of many errors, and texts whose parsing is to end: the number of diagnostics is bounded, and so is the work.

use byoc_ir::cancel::Cancel;
use byoc_ir::diag::{Diagnostic, MAX_REPORTED, codes};
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use std::time::Duration;

fn diagnostics(source: &str) -> Vec<Diagnostic> {
    parse(source, &ParseOptions::default()).diagnostics
}

/// Returns `@main` of a parameter `%x`, whose body begins with `count` lines.
fn program(count: usize, line: impl Fn(usize) -> String) -> String {
    let lines: String = (0..count).map(line).collect();
    format!("#[version = \"0.0.5\"]\ntype L {{ A, B }}\ndef @main(%x: int32) {{\n{lines} %x\n}}\n")
}

const COUNT: usize = 3 * MAX_REPORTED;

#[test]
fn errors_beyond_the_first_are_counted() {
    let cases: [(&str, &dyn Fn(usize) -> String); 6] = [
        ("undefined variable", &|i| format!(" let %a{i} = %undefined{i};\n")),
        ("undefined function", &|i| format!(" let %a{i} = @undefined{i}(%x);\n")),
        ("unknown operator", &|i| format!(" let %a{i} = undefined{i}(%x);\n")),
        ("unknown type", &|i| format!(" let %a{i}: Undefined{i} = %x;\n")),
        ("unknown constructor", &|i| format!(" let %a{i} = match? (%x) {{ Undefined{i}(_) => %x }};\n")),
        ("duplicate definition", &|_| " %0 = %x;\n".to_owned()),
    ];
    for (message, line) in cases {
        let errors = diagnostics(&program(COUNT, line));
        assert_eq!(errors.len(), MAX_REPORTED, "{message}");
        assert!(errors.iter().all(|error| error.message.contains(message)), "{message}: {}", errors[0]);
        let omitted = COUNT - MAX_REPORTED - usize::from(message == "duplicate definition");
        let note = format!("{omitted} more errors are not shown");
        assert_eq!(errors[MAX_REPORTED - 1].notes.last(), Some(&note), "{message}");
    }
}

#[test]
fn syntax_errors_end_the_parse() {
    let errors = diagnostics(&program(COUNT, |_| " let = );\n".to_owned()));
    assert!(errors.len() <= MAX_REPORTED + 1, "{}", errors.len());
    assert!(errors.last().unwrap().message.contains("parsing stopped"), "{:?}", errors.last());
}

#[test]
fn lists_that_are_searched_are_bounded() {
    let list = |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let too_long = 1001;
    let params = list(too_long, &|i| format!("A{i}"));
    let attrs = list(too_long, &|i| format!("a{i}=1"));
    let dims = list(65, &|_| "1".to_owned());
    for (code, source) in [
        (codes::text::TOO_LARGE, format!("#[version = \"0.0.5\"]\ndef @main[{params}](%x: int32) {{ %x }}\n")),
        (codes::text::TOO_LARGE, format!("#[version = \"0.0.5\"]\ndef @main(%x: int32, {attrs}) {{ %x }}\n")),
        (codes::text::TOO_LARGE, program(1, |_| format!(" nn.relu(%x, {attrs});\n"))),
        (
            codes::types::TYPE_TOO_LARGE,
            format!("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[({dims}), int8]) {{ %x }}\n"),
        ),
    ] {
        assert_eq!(diagnostics(&source)[0].code, code);
    }
}

#[test]
fn cancelled_parse_reports_only_its_cancellation() {
    let cancel = Cancel::default();
    cancel.set_timeout(Some(Duration::ZERO));
    let nested = format!("{}%x{}", "(".repeat(100_000), ")".repeat(100_000));
    let metadata = format!("{}\n#[metadata]\n{}", program(0, |_| String::new()), "[".repeat(1 << 20));
    for source in [program(100_000, |i| format!(" let %a{i} = %b;\n")), program(1, |_| nested.clone()), metadata] {
        let errors = cancel.within(|| diagnostics(&source));
        assert_eq!(errors.iter().map(|error| error.code).collect::<Vec<_>>(), [codes::runtime::TIMED_OUT]);
        // The parse ended at its first poll.
        let position = errors[0].notes[0].split(' ').nth(1).and_then(|number| number.parse::<usize>().ok());
        assert!(position.is_some_and(|position| position < source.len() / 2), "{:?}", errors[0].notes);
    }
}

#[test]
fn cancelled_print_is_not_complete() {
    let parsed = parse(&program(10_000, |i| format!(" let %a{i} = exp(%x);\n")), &ParseOptions::default());
    let print = || print(&parsed.module, &PrintOptions::default());
    let length = print().complete().unwrap().text.len();
    let cancel = Cancel::default();
    cancel.set_timeout(Some(Duration::ZERO));
    let printed = cancel.within(print);
    assert!(printed.text.len() < length / 2);
    assert_eq!(printed.complete().unwrap_err().code, codes::runtime::TIMED_OUT);
}
