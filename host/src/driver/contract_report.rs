//! Outcomes of a contract in the formats of code review and continuous integration: SARIF 2.1.0 and JUnit XML.

use super::contract::{Contract, RuleOutcome};
use byoc_ir::diag::Diagnostic;
use byoc_ir::escape;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Component, Path};

/// Schema of SARIF 2.1.0.
const SARIF_SCHEMA: &str = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// Returns the outcomes as a SARIF log with one run. Each rule of the contract is a rule of the log, and each violation a
/// result at the line of the rule.
pub fn sarif(contract: &Contract, outcomes: &[RuleOutcome]) -> Value {
    let rule = |outcome: &RuleOutcome| {
        json!({
            "id": rule_id(contract, outcome),
            "shortDescription": {"text": name_of(outcome)},
            "defaultConfiguration": {"level": "error"},
        })
    };
    let rules: Vec<Value> = distinct(outcomes).into_iter().map(rule).collect();
    let index_of = |outcome: &RuleOutcome| distinct(outcomes).iter().position(|other| other.line == outcome.line);
    let mut results = Vec::new();
    for outcome in outcomes {
        let uri = uri(contract.path());
        let location = json!({"physicalLocation": {
            "artifactLocation": {"uri": uri},
            "region": {"startLine": outcome.line},
        }});
        let result = |violation: &Diagnostic| {
            json!({
                "ruleId": rule_id(contract, outcome),
                "ruleIndex": index_of(outcome),
                "level": "error",
                "message": {"text": text_of(violation)},
                "locations": [location],
            })
        };
        results.extend(outcome.violations.iter().map(result));
    }
    let driver = json!({
        "name": "byoc",
        "version": env!("CARGO_PKG_VERSION"),
        "rules": rules,
    });
    json!({
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}],
    })
}

/// Returns the outcomes as JUnit XML: a test case for each rule. A rule that only a measurement can break is skipped.
pub fn junit(contract: &Contract, outcomes: &[RuleOutcome]) -> String {
    let suite = attribute(&contract.path().display().to_string());
    let failures = outcomes.iter().filter(|outcome| !outcome.violations.is_empty()).count();
    let skipped = outcomes.iter().filter(|outcome| is_measured(outcome)).count();
    let counts = format!("tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\"", outcomes.len());
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(xml, "<testsuites {counts}>\n  <testsuite name=\"{suite}\" {counts}>");
    for outcome in outcomes {
        let name = attribute(&format!("line {}: {}", outcome.line, name_of(outcome)));
        let _ = write!(xml, "    <testcase classname=\"{suite}\" name=\"{name}\"");
        if is_measured(outcome) {
            let _ = writeln!(xml, "><skipped message=\"measured by byoc verify and byoc bench\"/></testcase>");
        } else if outcome.violations.is_empty() {
            xml.push_str("/>\n");
        } else {
            xml.push_str(">\n");
            for violation in &outcome.violations {
                let (code, message) = (violation.code, attribute(&violation.message));
                let text = attribute(&text_of(violation));
                let _ = writeln!(xml, "      <failure type=\"{code}\" message=\"{message}\">{text}</failure>");
            }
            xml.push_str("    </testcase>\n");
        }
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

/// Returns one outcome for each rule; with programs for several sizes, a rule has an outcome for each.
fn distinct(outcomes: &[RuleOutcome]) -> Vec<&RuleOutcome> {
    let mut rules: Vec<&RuleOutcome> = Vec::new();
    for outcome in outcomes {
        if !rules.iter().any(|other| other.line == outcome.line) {
            rules.push(outcome);
        }
    }
    rules
}

fn rule_id(contract: &Contract, outcome: &RuleOutcome) -> String {
    let file = contract.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    format!("{file}/{}", outcome.line)
}

/// Returns the operators and requirements of a rule.
fn name_of(outcome: &RuleOutcome) -> String {
    let (mut requirements, measured) = outcome.rule.requirements();
    requirements.extend(measured);
    format!("{}: {}", outcome.rule.words(), requirements.join(", "))
}

fn is_measured(outcome: &RuleOutcome) -> bool {
    outcome.rule.requirements().0.is_empty() && outcome.violations.is_empty()
}

/// Returns message, notes and help of a violation, one a line.
fn text_of(violation: &Diagnostic) -> String {
    let lines = std::iter::once(&violation.message).chain(&violation.notes).chain(&violation.help);
    lines.map(String::as_str).collect::<Vec<_>>().join("\n")
}

/// Returns a path as a URI reference: relative, or with the scheme `file`.
fn uri(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir => parts.push("file://".to_owned()),
            Component::CurDir => {}
            other => parts.push(percent_encoded(&other.as_os_str().to_string_lossy())),
        }
    }
    parts.join("/")
}

fn percent_encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded =
        text.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    encoded.collect()
}

/// Escapes text for XML. Control characters, which XML cannot have, are spelled out.
fn attribute(text: &str) -> String {
    escape::lines(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\n', "&#10;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_uri_references() {
        assert_eq!(uri(Path::new("./models/a b/byoc.toml")), "models/a%20b/byoc.toml");
        assert_eq!(uri(Path::new("/models/byoc.toml")), "file:///models/byoc.toml");
    }

    #[test]
    fn text_is_escaped_for_xml() {
        assert_eq!(attribute("a < \"b\" & c\nd"), "a &lt; &quot;b&quot; &amp; c&#10;d");
        assert!(!attribute("\u{1b}[31m").contains('\u{1b}'));
    }
}
