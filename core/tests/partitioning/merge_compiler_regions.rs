use super::{check, module, passes, print_module, targets};
use byoc_core::pass::PassOptions;
use byoc_core::pass::manager::{RunOptions, run};

fn merge(before: &str, after: &str) {
    check(&["merge_compiler_regions"], &PassOptions::default(), before, after);
}

#[test]
fn r1_diamond() {
    merge(
        "def @main(%data: T) {
            %0 = abs(B[test](%data));
            %1 = nn.relu(B[test](E[test](%0)));
            %2 = tanh(B[default](E[test](%0)));
            E[test](add(B[test](E[test](%1)), B[test](E[default](%2))))
        }",
        "def @main(%data: T) {
            %0 = abs(B[test](%data));
            %1 = nn.relu(%0);
            %2 = tanh(B[default](E[test](%0)));
            E[test](add(B[test](E[test](%1)), B[test](E[default](%2))))
        }",
    );
}

#[test]
fn a_diamond_of_one_target_is_one_region() {
    merge(
        "def @main(%x: T) {
            %0 = abs(B[t](%x)); %1 = exp(B[t](E[t](%0))); %2 = tanh(B[t](E[t](%0)));
            E[t](add(B[t](E[t](%1)), B[t](E[t](%2))))
        }",
        "def @main(%x: T) { %0 = abs(B[t](%x)); %1 = exp(%0); %2 = tanh(%0); E[t](add(%1, %2)) }",
    );
}

#[test]
fn siblings_that_share_an_input_do_not_merge() {
    let source = "def @main(%x: T) { (E[t](abs(B[t](%x))), E[t](exp(B[t](%x)))) }";
    merge(source, source);
}

#[test]
fn no_cycle_through_a_branch() {
    // The first region computes the condition, and the branch feeds the last region: a merged region would depend on
    // itself.
    let source = "def @main(%x: T, %y: float32) {
        %0 = abs(B[t](%y));
        %1 = equal(B[default](E[t](%0)), B[default](1f));
        %2 = if (E[default](%1)) { %x } else { E[default](exp(B[default](%x))) };
        E[t](add(B[t](%2), B[t](E[t](%0))))
    }";
    merge(source, source);
}

#[test]
fn no_cycle_through_a_region_that_grew_later() {
    // Three targets: p feeds both x and r, q feeds both r and y. r merges with p; then y must not merge with q, because
    // y depends on x, x depends on the merged region of r and p, and the merged region depends on q.
    merge(
        "def @main(%a: T, %b: T) {
            %0 = abs(B[t](%a));
            %1 = exp(B[u](%b));
            %2 = tanh(B[v](E[t](%0)));
            %3 = add(B[t](E[t](%0)), B[t](E[u](%1)));
            %4 = add(B[u](E[v](%2)), B[u](E[u](%1)));
            (E[t](%3), E[u](%4))
        }",
        "def @main(%a: T, %b: T) {
            %0 = abs(B[t](%a));
            %1 = exp(B[u](%b));
            %2 = tanh(B[v](E[t](%0)));
            %3 = add(%0, B[t](E[u](%1)));
            %4 = add(B[u](E[v](%2)), B[u](E[u](%1)));
            (E[t](%3), E[u](%4))
        }",
    );
}

#[test]
fn regions_of_a_loop_body_stay_in_it() {
    let source = "def @main(%x: T) {
        %0 = abs(B[t](%x));
        let %f = fn (%y: T) { E[t](add(B[t](%y), B[t](E[t](%0)))) };
        %f(E[t](%0))
    }";
    merge(source, source);
}

#[test]
fn rejects_inconsistent_annotations() {
    for (source, excerpt) in [
        ("def @main(%x: T) { E[t](abs(%x)) }", "in no region"),
        ("def @main(%x: T) { E[u](abs(B[t](%x))) }", "in a region of \"t\""),
        ("def @main(%x: T) { E[t](add(B[t](%x), B[u](%x))) }", "found \"t\" and \"u\""),
    ] {
        let result =
            run(module(source), &["merge_compiler_regions"], &PassOptions::default(), &mut RunOptions::default());
        let error = result.unwrap_err();
        assert_eq!(error.diagnostics[0].code.to_string(), "E0330");
        assert!(error.diagnostics[0].message.contains(excerpt), "{}", error.diagnostics[0]);
    }
}

/// Tests that no merge creates a cycle, not even through the unused value of a let.
#[test]
fn unused_let_value_precedes_its_result() {
    let options = targets(&[("t", &["tanh", "add", "nn.relu"])], true);
    let before = module(
        "def @main(%x: T) {
           let %v = exp(%x);
           %0 = tanh(%v);
           %1 = nn.relu((let %unused = %0; %v));
           add(%1, %0)
         }",
    );
    let after = passes(&before, &["annotate_target", "merge_compiler_regions", "partition_graph"], &options);
    let regions = after.globals.keys().filter(|name| name.starts_with("tvmgen_")).count();
    assert_eq!(regions, 2, "{}", print_module(&after));
}
