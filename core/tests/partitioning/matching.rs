use super::{module, table};
use byoc_core::pattern::{Checks, Graph, Matcher, entry_name, parse_pattern, parse_table};
use byoc_ir::diag::Severity;
use byoc_ir::ir::{ExprId, Module};
use byoc_test_support::random::Random;

/// Returns true if a pattern matches the body of `@main`.
fn matches(pattern: &str, body: &str) -> bool {
    let program = module(&format!("def @main(%a: T, %b: T, %c: T, %d: bool) {{ {body} }}"));
    matches_in(pattern, &program, program.main().unwrap().body)
}

fn matches_in(pattern: &str, module: &Module, root: ExprId) -> bool {
    let (pattern, _) = parse_pattern(pattern).unwrap_or_else(|errors| panic!("{pattern}: {errors:?}"));
    let graph = Graph::new(module);
    Matcher::new(&graph).match_at(&pattern, root).is_some()
}

#[test]
fn atoms() {
    for (pattern, body, expected) in [
        ("*", "%a", true),
        ("var", "%a", true),
        ("var(a)", "%a", true),
        ("var(%b)", "%a", false),
        ("var", "nn.relu(%a)", false),
        ("const", "1f", true),
        ("const", "%a", false),
        ("const(1f)", "1f", true),
        ("const(1.0)", "1f", true),
        ("const(1)", "1f", false),
        ("const(2f)", "1f", false),
        ("const(-3i64)", "-3i64", true),
        ("const(True)", "True", true),
        ("nn.relu(*)", "nn.relu(%a)", true),
        ("nn.relu(*)", "abs(%a)", false),
        ("nn.relu(..)", "nn.relu(%a)", true),
        ("(*, *)", "(%a, %b)", true),
        ("(*, *)", "(%a, %b, %c)", false),
        ("(*,)", "(%a,)", true),
        ("(..)", "(%a, %b, %c)", true),
        ("(..)", "%a", false),
        ("()", "()", true),
        ("(*)", "%a", true),
        ("split(*).0", "split(%a, indices_or_sections=2).0", true),
        ("split(*).1", "split(%a, indices_or_sections=2).0", false),
        ("split(*).*", "split(%a, indices_or_sections=2).1", true),
        ("((*, *), *).0.1", "((%a, %b), %c).0.1", true),
        ("if (var, *, nn.relu(*))", "if (%d) { %a } else { nn.relu(%b) }", true),
        ("if (var, *, nn.relu(*))", "if (%d) { %a } else { abs(%b) }", false),
        ("let (var, abs(*), nn.relu(*))", "let %x = abs(%a); nn.relu(%x)", true),
        ("let (*v, abs(*), nn.relu(*v))", "let %x = abs(%a); nn.relu(%x)", true),
        ("let (*v, abs(*), nn.relu(*v))", "let %x = abs(%a); nn.relu(%b)", false),
        ("fn (*x) { nn.relu(*x) }", "fn (%x: T) { nn.relu(%x) }", true),
        ("fn (*x, *) { nn.relu(*x) }", "fn (%x: T) { nn.relu(%x) }", false),
        ("fn (..) { nn.relu(*) }", "fn (%x: T) { nn.relu(%x) }", true),
        ("fn{Composite=\"k\"} (..) { * }", "fn (%x: T, Composite=\"k\") { nn.relu(%x) }", true),
        ("fn{Composite=\"k\"} (..) { * }", "fn (%x: T, Composite=\"j\") { nn.relu(%x) }", false),
        ("call(fn (..) { * }; *)", "fn (%x: T) { nn.relu(%x) }(%a)", true),
        ("call(nn.relu | abs; *)", "abs(%a)", true),
        ("call(nn.relu | abs; *)", "exp(%a)", false),
        ("call(op{TOpPattern=0}; *)", "exp(%a)", true),
        ("call(*; *)", "exp(%a)", true),
        ("call(*; *, *)", "exp(%a)", false),
        ("op{TOpPattern=0}", "exp(%a)", true),
        ("op{TOpPattern=1}", "exp(%a)", false),
    ] {
        assert_eq!(matches(pattern, body), expected, "{pattern} on {body}");
    }
}

#[test]
fn the_same_name_is_the_same_expression() {
    assert!(matches("add(nn.relu(*x), *x)", "add(nn.relu(%a), %a)"));
    assert!(!matches("add(nn.relu(*x), *x)", "add(nn.relu(%a), %b)"));
    // Equality is not identity: two calls are two expressions.
    assert!(!matches("add(*x, *x)", "add(nn.relu(%a), nn.relu(%a))"));
    assert!(matches("add(*x, *x)", "%0 = nn.relu(%a); add(%0, %0)"));
    assert!(matches("let c = abs(*); add(nn.relu(c), exp(c))", "%0 = abs(%a); add(nn.relu(%0), exp(%0))"));
    assert!(!matches("let c = abs(*); add(nn.relu(c), exp(c))", "add(nn.relu(abs(%a)), exp(abs(%a)))"));
}

#[test]
fn only_add_and_multiply_commute() {
    assert!(matches("add(nn.relu(*), var)", "add(%a, nn.relu(%b))"));
    assert!(matches("multiply(nn.relu(*), var)", "multiply(%a, nn.relu(%b))"));
    assert!(!matches("subtract(nn.relu(*), var)", "subtract(%a, nn.relu(%b))"));
    assert!(!matches("maximum(nn.relu(*), var)", "maximum(%a, nn.relu(%b))"));
    // The bindings of the first argument order are undone before the second order is tried.
    assert!(matches("add(*x, nn.relu(*x))", "add(nn.relu(%a), %a)"));
}

#[test]
fn alternation_does_not_backtrack() {
    assert!(matches("nn.relu(abs(*) | exp(*))", "nn.relu(exp(%a))"));
    assert!(matches("abs(*) | exp(*)", "abs(%a)"));
    // The left side of the first argument binds x to %a; when the second argument then fails, the right side is not
    // tried.
    assert!(!matches("subtract(abs(*x) | abs(*y), *x)", "subtract(abs(%a), %b)"));
    assert!(matches("subtract(exp(*x) | abs(*y), *x)", "subtract(abs(%a), %b)"));
}

#[test]
fn optional_users() {
    let pattern = "abs(*) ? nn.relu ? clip{a_max=6}";
    for (body, expected) in [
        ("abs(%a)", true),
        ("nn.relu(abs(%a))", true),
        ("clip(nn.relu(abs(%a)), a_min=0f, a_max=6f)", true),
        ("clip(abs(%a), a_min=0f, a_max=6f)", true),
        ("clip(abs(%a), a_min=0f, a_max=5f)", false),
        ("nn.relu(exp(%a))", false),
    ] {
        assert_eq!(matches(pattern, body), expected, "{body}");
    }
    assert!(matches("abs(*) ? add", "add(%b, abs(%a))"));
}

#[test]
fn divide_and_multiply_commute() {
    assert!(matches("divide(multiply(var(a), var(b)), var(c))", "divide(multiply(%a, %b), %c)"));
    assert!(matches("divide(multiply(var(a), var(b)), var(c))", "multiply(%a, divide(%b, %c))"));
    assert!(matches("divide(multiply(var(a), var(b)), var(c))", "multiply(divide(%a, %c), %b)"));
    assert!(!matches("divide(multiply(var(a), var(b)), var(c))", "multiply(%a, divide(%c, %b))"));
    assert!(matches("multiply(divide(var(a), var(b)), var(c))", "divide(multiply(%a, %c), %b)"));
    assert!(matches("multiply(var(c), divide(var(a), var(b)))", "divide(multiply(%c, %a), %b)"));
    assert!(!matches("multiply(divide(var(a), var(b)), var(c))", "divide(multiply(%a, %b), %c)"));
}

#[test]
fn attributes() {
    let conv = |attrs: &str| {
        module(&format!(
            "def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 3, 3), float32]) {{ nn.conv2d(%x, %w, kernel_size=[3, 3]{attrs}) }}"
        ))
    };
    let is_match = |pattern: &str, program: &Module| matches_in(pattern, program, program.main().unwrap().body);
    let conv_call = conv("");
    assert!(is_match("nn.conv2d{groups=1}(*, *)", &conv_call), "expected a default to match an explicit value");
    assert!(is_match("nn.conv2d{strides=[1, 1], data_layout=\"NCHW\"}(*, *)", &conv_call));
    assert!(!is_match("nn.conv2d{groups=2}(*, *)", &conv_call));
    assert!(!is_match("nn.conv2d{channels=4}(*, *)", &conv_call));
    assert!(is_match("nn.conv2d{channels=4}(*, *)", &conv(", channels=4")));
    assert!(is_match("nn.conv2d{padding=[1, 1, 1, 1]}(*, *)", &conv(", padding=[1, 1, 1, 1]")));
}

#[test]
fn unknown_attribute_warns_and_never_matches() {
    let (pattern, warnings) = parse_pattern("nn.conv2d{grups=1}(*, *)").unwrap();
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].severity, Severity::Warning);
    assert_eq!(warnings[0].code.to_string(), "E0313");
    assert_eq!(warnings[0].help.as_deref(), Some("did you mean \"groups\"?"));
    let program = module(
        "def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 3, 3), float32]) { nn.conv2d(%x, %w, kernel_size=[3, 3]) }",
    );
    let graph = Graph::new(&program);
    assert!(Matcher::new(&graph).match_at(&pattern, program.main().unwrap().body).is_none());
}

#[test]
fn types() {
    for (pattern, body, expected) in [
        ("nn.relu(*): float32", "nn.relu(%a)", true),
        ("nn.relu(*): int8", "nn.relu(%a)", false),
        ("nn.relu(*: float32)", "nn.relu(%a)", true),
        ("*: (10, 10)", "%a", true),
        ("*: (10, ?)", "%a", false),
        ("*: (10)", "%a", false),
        ("*: Tensor[(10, 10), float32]", "%a", true),
        ("*: Tensor[(10, 10), float16]", "%a", false),
        ("*: (bool, bool)", "(%d, %d)", true),
        ("*: ()", "1f", true),
        ("*: float32", "(%a, %b)", false),
    ] {
        assert_eq!(matches(pattern, body), expected, "{pattern} on {body}");
    }
    let dynamic = module("def @main(%x: Tensor[(?, 3), float32]) { nn.relu(%x) }");
    let body = dynamic.main().unwrap().body;
    assert!(matches_in("nn.relu(*): (?, 3)", &dynamic, body));
    assert!(!matches_in("nn.relu(*): (2, 3)", &dynamic, body));
}

#[test]
fn dominators() {
    let pattern = "dominates(abs(*), op{TOpPattern=0}, add(*, *))";
    for (body, expected) in [
        ("%0 = abs(%a); add(nn.relu(%0), exp(nn.relu(%0)))", true),
        ("%0 = abs(%a); add(%0, exp(%0))", true),
        // One path ends in a different parent.
        ("add(nn.relu(abs(%a)), exp(abs(%b)))", false),
        // One path ends at an input.
        ("%0 = abs(%a); add(nn.relu(%0), exp(%b))", false),
        // An intermediate value has a user after the child.
        ("%0 = abs(%a); add(nn.relu(%0), subtract(%0, %0))", false),
    ] {
        assert_eq!(matches(pattern, body), expected, "{body}");
    }
    let escaping = module("def @main(%a: T) { %0 = abs(%a); %1 = nn.relu(%0); (add(%1, %0), %1) }");
    let add = (0..escaping.nodes.len())
        .map(byoc_ir::ir::Id::new)
        .find(|&id: &ExprId| escaping.expr(id).as_op_call().is_some_and(|(op, _)| byoc_ir::op::get(op).name == "add"))
        .unwrap();
    assert!(!matches_in(pattern, &escaping, add), "expected no match: the parent's value escapes");
}

/// Tests `post_dominates`: operands off the paths are unconstrained, but the parent's value must not leave the paths.
#[test]
fn post_dominators() {
    let pattern = "post_dominates(abs(*), op{TOpPattern=0} | subtract(*, *), add(*, *))";
    for (body, expected) in [
        ("%0 = abs(%a); add(nn.relu(%0), exp(nn.relu(%0)))", true),
        ("%0 = abs(%a); add(%0, exp(%0))", true),
        // An operand that does not depend on the parent.
        ("%0 = abs(%a); add(nn.relu(%0), %b)", true),
        ("%0 = abs(%a); add(nn.relu(%0), exp(%b))", true),
        ("%0 = abs(%a); add(subtract(%0, %b), %0)", true),
        ("%0 = abs(%a); add(%b, subtract(%c, nn.relu(%0)))", true),
        // The parent's value flows through an expression that does not match the path.
        ("%0 = abs(%a); add(nn.relu(%0), multiply(%0, %b))", false),
        ("%0 = abs(%a); add(nn.relu(%0), multiply(%b, exp(%0)))", false),
        // No parent.
        ("add(nn.relu(%a), %b)", false),
    ] {
        assert_eq!(matches(pattern, body), expected, "{body}");
    }
    // The expressions inside the child need not match the path.
    let nested = "post_dominates(abs(*), nn.relu(*), tanh(multiply(add(*, *), *)))";
    assert!(matches(nested, "%0 = abs(%a); tanh(multiply(add(nn.relu(%0), %0), %b))"));
    assert!(!matches(nested, "%0 = abs(%a); tanh(multiply(add(exp(%0), %0), %b))"));
    let escaping = module("def @main(%a: T) { %0 = abs(%a); %1 = nn.relu(%0); (add(%1, %0), %1) }");
    let add = (0..escaping.nodes.len())
        .map(byoc_ir::ir::Id::new)
        .find(|&id: &ExprId| escaping.expr(id).as_op_call().is_some_and(|(op, _)| byoc_ir::op::get(op).name == "add"))
        .unwrap();
    assert!(!matches_in(pattern, &escaping, add), "expected no match: the parent's value escapes");
}

/// Tests that the help for each mistake suggests notation that parses.
#[test]
fn mistakes_are_answered_with_forms_that_work() {
    for (written, suggestion) in [
        (
            "a: nn.relu(nn.conv2d(*, const) ? nn.bias_add(*, const))",
            "let p0 = nn.conv2d(*, const); nn.relu((p0 | nn.bias_add(p0, const)))",
        ),
        (
            "a: let p0 = nn.conv2d(*, const) ? add(*, const) ? nn.relu; p0 ? clip where small",
            "let p1 = nn.conv2d(*, const); let p0 = (p1 | add(p1, const)) ? nn.relu; p0 ? clip where small",
        ),
        ("a: nn.conv2d(*, const) ? nn.relu()", "let p0 = nn.conv2d(*, const); (p0 | nn.relu(p0))"),
        ("a: nn.dense(*, const) ? nn.bias_add(const)", "let p0 = nn.dense(*, const); (p0 | nn.bias_add(p0, const))"),
        ("a: nn.dense(*, const) ? add(..)", "let p0 = nn.dense(*, const); (p0 | add(p0, *))"),
        (
            "a: nn.conv2d(*, const) ? nn.bias_add{axis=1}(add(const, const))",
            "let p0 = nn.conv2d(*, const); (p0 | nn.bias_add{axis=1}(p0, add(const, const)))",
        ),
        ("nn.relu(nn.conv2d(*, *))", "relu_1: nn.relu(nn.conv2d(*, *))"),
        ("a: nn.relu(wildcard())", "*"),
        ("a: nn.dense(*, is_constant())", "const"),
        ("a: is_op(*)", "nn.relu(*)"),
        ("a: add(%x, nn.relu(%x))", "*x"),
        ("a: add(x, 1)", "*x"),
        ("a: add(*, 2)", "const(2)"),
        ("a: nn.conv2d{groups: 1}(*, *)", "{groups=...}"),
        ("a: dominates(nn.relu(*), add(*, *))", "dominates(nn.relu(*), op{TOpPattern=0}, add(*, *))"),
        ("a: nn.relu(nn.conv2d)", "nn.conv2d(..)"),
        ("a: nn.conv2d(*)", "nn.conv2d(*, *)"),
        ("a: nn.relu(nn.conv2d(*, const)", "nn.relu(nn.conv2d(*, const))"),
        ("a nn.relu(*)", "a: nn.relu(*)"),
        ("a: nn.dense(*, constant)", "const"),
        ("a: nn.conv2d(*, *, strides=[1, 1])", "nn.conv2d{strides=[1, 1]}(..)"),
        ("a: nn.conv2d(*, const).relu", "nn.relu(nn.conv2d(*, const))"),
        ("a: split(*)[0]", "split(*).0"),
        ("a: let c = nn.relu(*) in add(c, c)", "let c = nn.relu(*); add(c, c)"),
        ("a: nn.relu(nn.bias_add?(nn.conv2d(*, const)))", "(nn.conv2d(*, const) ? nn.bias_add)"),
        ("a: nn.relu(*)+", "let c = nn.relu(c | *); c"),
        ("a: nn.relu(optional(*))", "nn.conv2d(*, *) ? nn.bias_add"),
    ] {
        let parsed = parse_table(written, Checks::Allowed);
        let help = parsed.diagnostics[0].help.clone().unwrap_or_default();
        assert!(help.starts_with(&format!("write {suggestion}")), "{written}: {help}");
        if suggestion.starts_with('{') {
            continue;
        }
        // A suggestion is a complete entry or a pattern.
        let entry = if suggestion.contains("_1: ") || suggestion.starts_with("a: ") {
            suggestion.to_owned()
        } else {
            format!("a: {suggestion}")
        };
        let repaired = parse_table(&entry, Checks::Allowed);
        assert!(repaired.diagnostics.is_empty(), "{entry}: {:?}", repaired.diagnostics);
    }
    for (written, help) in [
        ("a: relu(*)", "did you mean \"nn.relu\"?"),
        ("a: *: float33", "did you mean \"float32\"?"),
        ("a: nn.relu(*: [1, 2])", "write (1, 2)"),
    ] {
        let parsed = parse_table(written, Checks::Allowed);
        assert_eq!(parsed.diagnostics[0].help.as_deref(), Some(help), "{written}");
    }
    // The repaired entry matches with and without the optional operator.
    let suggestion = "let p0 = nn.conv2d(*, *); nn.relu((p0 | nn.bias_add(p0, *)))";
    let bodies = |body: &str| {
        let types = "%x: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32], %v: Tensor[(3), float32]";
        let program = module(&format!("def @main({types}) {{ {body} }}"));
        matches_in(suggestion, &program, program.main().unwrap().body)
    };
    assert!(bodies("nn.relu(nn.conv2d(%x, %w, kernel_size=[1, 1]))"));
    assert!(bodies("nn.relu(nn.bias_add(nn.conv2d(%x, %w, kernel_size=[1, 1]), %v))"));
    assert!(!bodies("nn.relu(nn.bias_add(%x, %v))"));
}

#[test]
fn tables_keep_order_and_join_indented_lines() {
    let entries = table(
        "# what it takes\n\
         b.first: nn.relu(\n    *)   # the rest\n  ? clip\n\n\
         b.second: let x = abs(*);\n   let y = exp(x); add(x, y) where fits\n",
    );
    let names: Vec<_> = entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["b.first", "b.second"]);
    assert_eq!(entries[1].check.as_deref(), Some("fits"));
}

#[test]
fn reports_every_error_of_a_file_with_its_place() {
    let text = "a: nn.relu(*\nb: nn.conv2(*, *)\nc: nn.relu(x)\nd: nn.relu(*)\ne: add(*, *) where fits\n: *\nf: *: float99\ng: nn.relu(*, *)\n";
    let parsed = parse_table(text, Checks::Refused);
    let error_texts: Vec<(String, &str)> = parsed
        .diagnostics
        .iter()
        .map(|d| {
            let span = d.labels[0].span;
            (d.code.to_string(), &text[span.start as usize..span.end as usize])
        })
        .collect();
    let error_texts: Vec<(&str, &str)> = error_texts.iter().map(|(code, text)| (&**code, *text)).collect();
    assert_eq!(
        error_texts,
        [
            ("E0310", ""),
            ("E0311", "nn.conv2"),
            ("E0312", "x"),
            ("E0314", "where fits"),
            ("E0310", ":"),
            ("E0310", "float99"),
            ("E0315", "nn.relu")
        ]
    );
    let names: Vec<_> = parsed.entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["d", "g"], "entries with warnings stay in the table, entries with errors do not");
    assert_eq!(parsed.diagnostics[1].help.as_deref(), Some("did you mean \"nn.conv2d\"?"));
}

#[test]
fn parser_survives_malformed_input() {
    let deep_pattern = |n: usize| format!("x: {}*{}", "nn.relu(".repeat(n), ")".repeat(n));
    assert!(!parse_table(&deep_pattern(90), Checks::Allowed).has_errors());
    for malformed in [
        deep_pattern(100_000),
        format!("x: *{}", " ? nn.relu".repeat(100_000)),
        format!("x: *{}", ".0".repeat(100_000)),
        format!("x: nn.relu{{a={}", "[".repeat(100_000)),
        format!("x: *: {}", "(float32, ".repeat(100_000)),
    ] {
        assert!(parse_table(&malformed, Checks::Allowed).has_errors(), "{}", &malformed[..30]);
    }
    // Alternatives of one choice do not count as nesting.
    let alternatives = parse_table(&format!("x: exp(*){}", " | nn.relu(*)".repeat(10_000)), Checks::Allowed);
    assert!(!alternatives.has_errors() && !alternatives.entries[0].pattern.looks_into_functions());
    let vocabulary = [
        "nn.relu(", "*", "?", "|", ")", "x", ".0", ":", "let ", "= ", ";", "{", "}", "\"", "..", "1f", "é", "where ",
        "\n", "\n ",
    ];
    let mut random = Random::new(7);
    for _ in 0..20_000 {
        let mut text = String::from("n: ");
        for _ in 0..12 {
            text.push_str(random.pick(&vocabulary));
        }
        let parsed = parse_table(&text, Checks::Allowed);
        for diagnostic in &parsed.diagnostics {
            let span = diagnostic.labels[0].span;
            assert!(span.start <= span.end && span.end as usize <= text.len(), "{text:?}: {diagnostic:?}");
        }
    }
}

#[test]
fn names_the_entry_around_a_place() {
    let table = "# comment\na: nn.relu(*)\n  | exp(*)\n\nb: add(*, *)\n";
    for (excerpt, name) in [("nn.relu", "a"), ("| exp", "a"), ("add", "b"), ("# comment", "")] {
        assert_eq!(entry_name(table, table.find(excerpt).unwrap()), name, "{excerpt}");
    }
    assert_eq!(entry_name(table, table.len() + 1), "");
}
