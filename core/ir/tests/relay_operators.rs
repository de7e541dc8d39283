//! `docs/relay-operators.md`: every operator of TVM 0.14, from the list in `tests/relay/operators.tsv` and the operator table.
//! `BYOC_BLESS=1` rewrites the page.

use byoc_ir::op;
use std::fmt::Write as _;
use std::path::Path;

const LIST: &str = include_str!("../../../tests/relay/operators.tsv");

struct Row {
    kind: &'static str,
    name: &'static str,
    file: &'static str,
    remark: &'static str,
}

fn rows(kind: &str) -> impl Iterator<Item = Row> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut columns = line.split('\t');
        let mut column = || columns.next().unwrap_or_default();
        Row { kind: column(), name: column(), file: column(), remark: column() }
    };
    lines.map(row).filter(move |row| row.kind == kind)
}

fn page() -> String {
    let (count, lacking) = (rows("operator").count(), rows("lacking").count());
    let mut page = format!(
        "# Operators of Relay\n\n\
         Users who bring a Relay program look up here whether byoc has its operators. The list is every operator that TVM 0.14 registers,\n\
         from [the registrations](../tests/relay/operators.tsv) in `src/relay` of its tag v0.14.0. `byoc ops NAME` prints arguments,\n\
         attributes, defaults and the definition of an operator. This page is generated;\n\
         `BYOC_BLESS=1 cargo test --workspace --test ir relay_operators` renews it.\n\n\
         Internal operators are those that TVM's own passes insert for its executors, schedulers and built-in accelerators after a\n\
         program is written; no front end emits them. Of the {} others, byoc has {count}.\n\n\
         ## Operators\n\n\
         | operator | byoc | registered in |\n|---|---|---|\n",
        count + lacking
    );
    let mut operators: Vec<Row> = rows("operator").chain(rows("lacking")).collect();
    operators.sort_by_key(|row| row.name);
    for Row { kind, name, file, remark } in operators {
        let answer = match (kind, remark) {
            ("lacking", reason) => format!("no: {reason}"),
            (_, "") => "yes".to_owned(),
            (_, remark) => format!("yes: {remark}"),
        };
        writeln!(page, "| `{name}` | {answer} | `{file}` |").unwrap();
    }
    page += "\n## Internal operators\n\nA text with one of these ends with [E0204](errors/E0204.md).\n\n\
             | operator | what it is |\n|---|---|\n";
    for Row { name, remark, .. } in rows("internal") {
        writeln!(page, "| `{name}` | {remark} |").unwrap();
    }
    page += "\n## Functions without an operator\n\nFunctions of `tvm.relay` that build other operators, and the form in which a text has them.\n\n\
             | function | form |\n|---|---|\n";
    for Row { name, remark, .. } in rows("function") {
        writeln!(page, "| `{name}` | {remark} |").unwrap();
    }
    page += "\n## Operators that TVM does not have\n\n\
             Most of them come from ONNX, whose operators have no form in Relay.\n\n| operator | |\n|---|---|\n";
    let is_known =
        |name: &str| ["operator", "internal", "lacking"].iter().any(|kind| rows(kind).any(|row| row.name == name));
    for def in op::table().iter().filter(|def| !is_known(def.name)) {
        let sentence = def.doc.split_once(". ").map_or(def.doc, |(first, _)| first);
        writeln!(page, "| `{}` | {} |", def.name, sentence.trim_end_matches('.').replace('|', "\\|")).unwrap();
    }
    page
}

#[test]
fn page_lists_every_operator() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/relay-operators.md");
    let page = page();
    if std::env::var_os("BYOC_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == page,
        "{}: expected the generated page",
        path.display()
    );
}

#[test]
fn table_has_what_the_list_says() {
    let missing: Vec<&str> = rows("operator").map(|row| row.name).filter(|name| op::lookup(name).is_none()).collect();
    assert!(missing.is_empty(), "expected in the operator table: {}", missing.join(", "));
    let present: Vec<&str> =
        rows("lacking").chain(rows("internal")).map(|row| row.name).filter(|name| op::lookup(name).is_some()).collect();
    assert!(present.is_empty(), "expected as operators in the list: {}", present.join(", "));
    let (count, lacking) = (rows("operator").count(), rows("lacking").count());
    assert!(
        count >= 19 * lacking,
        "expected at least 95 % of the operators that are not internal, found {count} and {lacking}"
    );
}
