//! Difference between two explanations: operators that moved, with the reasons, and what the builds were made with.

use super::explanation::{Explanation, NodeRow, Totals};
use byoc_ir::diag::{list, plural};
use byoc_ir::escape;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

/// Difference between two explanations.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Operators of both models whose placement differs.
    pub moved: Vec<Moved>,
    /// Operators of the new model alone, as type and name.
    pub added: Vec<String>,
    /// Operators of the old model alone, as type and name.
    pub removed: Vec<String>,
    /// Differences of the builds: backends, versions of plugins, options.
    pub builds: Vec<String>,
    /// Totals of the old explanation.
    pub old: Totals,
    /// Totals of the new explanation.
    pub new: Totals,
}

/// Operator whose placement differs.
#[derive(Clone, Debug, Serialize)]
pub struct Moved {
    /// Operator type in the model.
    pub op: String,
    /// Name in the model.
    pub source: String,
    /// FLOPs of the operator in the new model.
    pub flops: u64,
    /// Old place: a backend, `host` or `folded`.
    pub from: String,
    /// New place.
    pub to: String,
    /// Reasons of the backend that had the operator, or those in the old explanation of the backend that has it now.
    pub why: Vec<String>,
}

impl Difference {
    /// Compares two explanations. Operators with the same type and name are the same, in the order of the models.
    pub fn between(old: &Explanation, new: &Explanation) -> Difference {
        let mut known: BTreeMap<(&str, &str), VecDeque<&NodeRow>> = BTreeMap::new();
        old.nodes.iter().for_each(|node| known.entry((&*node.op, &*node.source)).or_default().push_back(node));
        let (mut moved, mut added) = (Vec::new(), Vec::new());
        for node in &new.nodes {
            match known.get_mut(&(&*node.op, &*node.source)).and_then(VecDeque::pop_front) {
                None => added.push(name_of(node)),
                Some(before) => moved.extend(moved_between(before, node)),
            }
        }
        let left: BTreeMap<usize, String> =
            known.into_values().flatten().map(|node| (node.id, name_of(node))).collect();
        Difference {
            moved,
            added,
            removed: left.into_values().collect(),
            builds: build_differences(old, new),
            old: old.totals.clone(),
            new: new.totals.clone(),
        }
    }

    /// Returns the share of the new model's FLOPs that moved.
    pub fn moved_share(&self) -> f64 {
        let flops = self.moved.iter().map(|moved| moved.flops).fold(0, u64::saturating_add);
        flops as f64 / self.new.flops.max(1) as f64
    }

    /// Summarizes the difference in lines.
    pub fn summary(&self) -> Vec<String> {
        let share = |totals: &Totals| format!("{:.1} %", 100.0 * totals.offload_share);
        let mut lines = vec![
            format!("{} moved, {:.1} % of the FLOPs", plural(self.moved.len(), "operator"), 100.0 * self.moved_share()),
            format!("FLOPs on backends: {}, before {}", share(&self.new), share(&self.old)),
            format!("regions: {}, before {}", self.new.regions, self.old.regions),
        ];
        for (names, what) in [(&self.added, "added"), (&self.removed, "removed")] {
            if !names.is_empty() {
                lines.push(format!("{} {what}: {}", plural(names.len(), "operator"), list(names, ", ")));
            }
        }
        lines.extend(self.builds.iter().cloned());
        lines
    }

    /// Formats the difference as Markdown, for a comment on a pull request.
    pub fn markdown(&self, old: &str, new: &str) -> String {
        let mut text = format!("### Placement of {}, compared with {}\n\n", cell(new), cell(old));
        for line in self.summary() {
            let _ = writeln!(text, "* {}", cell(&line));
        }
        if self.moved.is_empty() {
            return text;
        }
        text.push_str("\n| operator | name | FLOPs | before | now | why |\n|---|---|---|---|---|---|\n");
        for Moved { op, source, flops, from, to, why } in &self.moved {
            let texts = [op, source, &flops.to_string(), from, to, &why.join("; ")].map(|text| cell(text));
            let _ = writeln!(text, "| {} |", texts.join(" | "));
        }
        text
    }
}

fn name_of(node: &NodeRow) -> String {
    format!("{} {}", node.op, node.source)
}

/// Returns the places of an operator by their backends, as regions have other names in every build.
fn places(node: &NodeRow) -> Vec<&str> {
    let mut places: Vec<&str> = Vec::new();
    for part in std::iter::once(&node.placement).chain(&node.parts) {
        let name = part.backend.as_deref().unwrap_or(part.kind.name());
        if !places.contains(&name) {
            places.push(name);
        }
    }
    places
}

fn moved_between(old: &NodeRow, new: &NodeRow) -> Option<Moved> {
    let (before, now) = (places(old), places(new));
    if before == now {
        return None;
    }
    let left = |backend: &str| before.contains(&backend) && !now.contains(&backend);
    let entered = |backend: &str| now.contains(&backend) && !before.contains(&backend);
    let lost = new.refusals.iter().filter(|refusal| left(&refusal.backend)).map(ToString::to_string);
    let was =
        old.refusals.iter().filter(|refusal| entered(&refusal.backend)).map(|refusal| format!("before: {refusal}"));
    Some(Moved {
        op: new.op.clone(),
        source: new.source.clone(),
        flops: new.flops,
        from: before.join(", "),
        to: now.join(", "),
        why: lost.chain(was).collect(),
    })
}

/// Returns the differences of the backends and the options of two builds, one line each.
fn build_differences(old: &Explanation, new: &Explanation) -> Vec<String> {
    let (Some(old), Some(new)) = (&old.build, &new.build) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for backend in &new.backends {
        match old.backends.iter().find(|other| other.name == backend.name) {
            Some(other) if other.version != backend.version => {
                lines.push(format!(
                    "{}: plugin {} {}, before {}",
                    backend.name, backend.plugin, backend.version, other.version
                ));
            }
            Some(_) => {}
            None => lines.push(format!("{}: plugin {} {}, new", backend.name, backend.plugin, backend.version)),
        }
    }
    let is_gone = |name: &str| !new.backends.iter().any(|other| other.name == name);
    lines.extend(
        old.backends
            .iter()
            .filter(|other| is_gone(&other.name))
            .map(|other| format!("{}: no longer a backend", other.name)),
    );
    let (before, now) = (fields(&old.options), fields(&new.options));
    for key in now.keys().chain(before.keys().filter(|key| !now.contains_key(*key))).filter(|key| *key != "backends") {
        let text = |fields: &BTreeMap<String, Value>| fields.get(key).map_or("none".to_owned(), Value::to_string);
        if before.get(key) != now.get(key) {
            lines.push(format!("{key}: {}, before {}", text(&now), text(&before)));
        }
    }
    lines
}

fn fields(options: &Value) -> BTreeMap<String, Value> {
    options.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Escapes text for a cell of a Markdown table. Names come from models.
fn cell(text: &str) -> String {
    let mut escaped = String::new();
    for c in escape::line(text).chars() {
        if "\\|*_`<>[]#".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::explanation::{BackendRow, BuildRow, Placement, PlacementKind, RefusalRow};

    fn node(id: usize, backend: Option<&str>) -> NodeRow {
        let kind = if backend.is_some() { PlacementKind::Region } else { PlacementKind::Host };
        let refusal = || RefusalRow {
            backend: "chip".into(),
            code: "UnsupportedAttr".into(),
            detail: format!("stride {id}"),
            ..RefusalRow::default()
        };
        NodeRow {
            id,
            op: "Conv".into(),
            source: format!("a|{id}"),
            flops: 10,
            placement: Placement { kind, backend: backend.map(Into::into), ..Placement::default() },
            parts: Vec::new(),
            refusals: Vec::from_iter(backend.is_none().then(refusal)),
            inputs: Vec::new(),
        }
    }

    fn explanation(nodes: Vec<NodeRow>, version: &str) -> Explanation {
        let row = BackendRow { name: "chip".into(), plugin: "chip".into(), version: version.into() };
        let build = Some(BuildRow { backends: vec![row], options: Value::Null });
        Explanation { nodes, build, totals: Totals { flops: 40, ..Totals::default() }, ..Explanation::default() }
    }

    #[test]
    fn tells_what_moved_and_why() {
        let old = explanation(vec![node(0, Some("chip")), node(1, None), node(2, Some("chip"))], "1.0");
        let new = explanation(vec![node(0, None), node(1, Some("chip")), node(3, Some("chip"))], "1.1");
        let difference = Difference::between(&old, &new);
        let moved: Vec<(&str, &str, &str)> =
            difference.moved.iter().map(|moved| (&*moved.from, &*moved.to, &*moved.why[0])).collect();
        let expected = [
            ("chip", "host", "chip: UnsupportedAttr: stride 0"),
            ("host", "chip", "before: chip: UnsupportedAttr: stride 1"),
        ];
        assert_eq!(moved, expected);
        assert_eq!(
            (&difference.added[..], &difference.removed[..]),
            (&["Conv a|3".to_owned()][..], &["Conv a|2".to_owned()][..])
        );
        assert_eq!(difference.builds, ["chip: plugin chip 1.1, before 1.0"]);
        assert!(
            difference
                .markdown("old", "new")
                .contains("| Conv | a\\|0 | 10 | chip | host | chip: UnsupportedAttr: stride 0 |")
        );
        assert!(Difference::between(&new, &new).moved.is_empty());
    }
}
