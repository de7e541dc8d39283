//! Explanation as HTML: a self-contained page with the model graph, colored by region.
//!
//! Operators are arranged in layers, each operator one layer below its lowest predecessor; an operator without
//! predecessors is placed right above its first consumer. Hovering over an operator shows its placement and every
//! refusal.

use super::explanation::{Explanation, NodeRow};
use byoc_ir::diag::plural;
use byoc_ir::escape;
use std::collections::BTreeMap;
use std::fmt::Write;

const BOX: (usize, usize) = (150, 34);
const GAP: (usize, usize) = (16, 30);
/// Maximum width of a layer in boxes; wider layers are wrapped to fit on the page.
const COLUMNS: usize = 12;
/// Maximum length in characters of a name in a box.
const MAX_NAME_CHARS: usize = 26;

/// Renders an explanation as an HTML page.
pub fn page(title: &str, explanation: &Explanation) -> String {
    let rows = Rows::of(explanation);
    let positions = layout(&explanation.nodes, &rows);
    let width = positions.iter().map(|p| p.0).max().unwrap_or(0) + BOX.0 + 2 * GAP.0;
    let height = positions.iter().map(|p| p.1).max().unwrap_or(0) + BOX.1 + GAP.1;
    let mut page = String::new();
    let title = escape_html(title);
    let totals = &explanation.totals;
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>{STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n<p>{} operators: {} in {}, {} on the host, {} folded; {:.1} % of the FLOPs on backends</p>\n<ul class=\"legend\">\n",
        totals.operators,
        totals.in_regions,
        plural(totals.regions, "region"),
        totals.on_host,
        totals.folded,
        100.0 * totals.offload_share
    );
    for (i, region) in explanation.regions.iter().enumerate() {
        let _ = writeln!(
            page,
            "<li><i style=\"background:{}\"></i>{} <small>{}, {} FLOPs</small></li>",
            color(i),
            escape_html(&region.symbol),
            plural(region.nodes.len(), "operator"),
            region.flops
        );
    }
    let _ = writeln!(page, "<li><i class=\"host\"></i>host</li><li><i class=\"folded\"></i>folded</li>\n</ul>");
    let _ = writeln!(page, "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">");
    for (node, &position) in explanation.nodes.iter().zip(&positions) {
        for input in rows.inputs(node) {
            let _ = writeln!(page, "<path d=\"{}\"/>", edge(positions[input], position));
        }
    }
    for (node, &position) in explanation.nodes.iter().zip(&positions) {
        draw_node(&mut page, &rows, node, position);
    }
    page.push_str("</svg>\n</body></html>\n");
    page
}

/// Returns the SVG path of an edge between two boxes. Between neighboring layers, the edge runs from the bottom of the
/// upper box to the top of the lower box. An edge that skips layers leaves and enters the boxes at their right sides,
/// where the boxes in between do not hide it.
fn edge((x0, y0): (usize, usize), (x1, y1): (usize, usize)) -> String {
    if y1 > y0 + BOX.1 + GAP.1 {
        let (x0, y0, x1, y1) = (x0 + BOX.0, y0 + BOX.1 / 2, x1 + BOX.0, y1 + BOX.1 / 2);
        return format!("M{x0} {y0}C{} {y0} {} {y1} {x1} {y1}", x0 + 2 * GAP.0, x1 + 2 * GAP.0);
    }
    let (x0, y0, x1) = (x0 + BOX.0 / 2, y0 + BOX.1, x1 + BOX.0 / 2);
    let middle_y = (y0 + y1) / 2;
    format!("M{x0} {y0}C{x0} {middle_y} {x1} {middle_y} {x1} {y1}")
}

fn draw_node(page: &mut String, rows: &Rows<'_>, node: &NodeRow, (x, y): (usize, usize)) {
    let region = node.placement.region.as_ref().and_then(|symbol| rows.regions.get(&**symbol));
    let fill = region.map_or_else(String::new, |&i| format!(" style=\"fill:{}\"", color(i)));
    let mut hover = format!("{} {}\n", node.op, node.source);
    hover += &match (&node.placement.region, &node.placement.into) {
        (Some(symbol), _) => format!("region {symbol}"),
        (None, Some(target)) => format!("folded into {target}"),
        _ => node.placement.kind.name().to_owned(),
    };
    for refusal in &node.refusals {
        let _ = write!(hover, "\n{}", refusal.with_near_miss());
    }
    // Exporters write names as paths that differ at the end, so long names are truncated at the front.
    let length = node.source.chars().count();
    let name = match length.checked_sub(MAX_NAME_CHARS) {
        Some(max_chars @ 1..) => format!("…{}", node.source.chars().skip(max_chars + 1).collect::<String>()),
        _ => node.source.clone(),
    };
    let _ = writeln!(
        page,
        "<g class=\"{}\" transform=\"translate({x} {y})\"><title>{}</title><rect width=\"{}\" height=\"{}\" rx=\"5\"{fill}/>\
         <text x=\"8\" y=\"14\">{}</text><text class=\"name\" x=\"8\" y=\"27\">{}</text></g>",
        node.placement.kind.name(),
        escape_html(&hover),
        BOX.0,
        BOX.1,
        escape_html(&node.op),
        escape_html(&name)
    );
}

/// Returns the upper left corner of each operator's box, in the order of `nodes`, including folded operators.
fn layout(nodes: &[NodeRow], rows: &Rows<'_>) -> Vec<(usize, usize)> {
    let mut layer = vec![0usize; nodes.len()];
    let mut first_reader = vec![usize::MAX; nodes.len()];
    for (row, node) in nodes.iter().enumerate() {
        let inputs_above = rows.inputs(node).filter(|&input| input < row);
        layer[row] = inputs_above.map(|input| layer[input] + 1).max().unwrap_or(0);
    }
    for (row, node) in nodes.iter().enumerate() {
        for input in rows.inputs(node) {
            first_reader[input] = layer[row].min(first_reader[input]);
        }
    }
    for (row, _) in nodes.iter().enumerate().filter(|(_, node)| node.inputs.is_empty()) {
        if first_reader[row] != usize::MAX {
            layer[row] = first_reader[row].saturating_sub(1);
        }
    }
    let layers = layer.iter().max().map_or(0, |m| m + 1);
    let mut rows_by_layer: Vec<Vec<usize>> = vec![Vec::new(); layers];
    for (row, &l) in layer.iter().enumerate() {
        rows_by_layer[l].push(row);
    }
    let mut positions = vec![(0, 0); nodes.len()];
    let mut y = GAP.1;
    for rows in rows_by_layer {
        for line in rows.chunks(COLUMNS) {
            for (column, &row) in line.iter().enumerate() {
                positions[row] = (GAP.0 + column * (BOX.0 + GAP.0), y);
            }
            y += BOX.1 + GAP.1;
        }
    }
    positions
}

/// Rows of operators and regions by the names that other rows use. An explanation from an artifact may name rows that
/// do not exist; of rows with the same name, the first counts.
struct Rows<'a> {
    nodes: BTreeMap<usize, usize>,
    regions: BTreeMap<&'a str, usize>,
}

impl<'a> Rows<'a> {
    fn of(explanation: &'a Explanation) -> Rows<'a> {
        let mut rows = Rows { nodes: BTreeMap::new(), regions: BTreeMap::new() };
        for (row, node) in explanation.nodes.iter().enumerate() {
            rows.nodes.entry(node.id).or_insert(row);
        }
        for (row, region) in explanation.regions.iter().enumerate() {
            rows.regions.entry(&region.symbol).or_insert(row);
        }
        rows
    }

    /// Returns the rows of a node's predecessors.
    fn inputs(&self, node: &NodeRow) -> impl Iterator<Item = usize> {
        node.inputs.iter().filter_map(|input| self.nodes.get(input).copied())
    }
}

/// Returns the color of a region. Successive hues are a golden angle apart, so neighbors differ.
fn color(region: usize) -> String {
    format!("hsl({} 62% 74%)", (region * 137 + 205) % 360)
}

/// Escapes text for HTML. Names come from models, so characters that control a terminal or the text direction are
/// escaped as well.
fn escape_html(text: &str) -> String {
    let escaped_text = escape::lines(text);
    escaped_text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

const STYLE: &str = "body{font:14px system-ui,sans-serif;margin:24px;color:#1b1f24;background:#fff}\
h1{font-size:20px;margin:0 0 4px}p{margin:0 0 12px;color:#57606a}\
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:4px 18px}.legend i{display:inline-block;width:12px;\
height:12px;border-radius:3px;margin-right:6px;border:1px solid #8c959f}.legend i.host{background:#eaeef2}\
.legend i.folded{background:#fff;border-style:dashed}small{color:#57606a}\
path{fill:none;stroke:#afb8c1;stroke-width:1}rect{stroke:#57606a;stroke-width:.8}.host rect{fill:#eaeef2}\
.folded rect{fill:#fff;stroke-dasharray:3 3}text{font-size:11px}text.name{font-size:9px;fill:#424a53}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::explanation::{Placement, RefusalRow};

    fn row(id: usize, inputs: &[usize]) -> NodeRow {
        NodeRow {
            id,
            op: "Conv".into(),
            source: format!("<n{id}>"),
            flops: 1,
            placement: Placement::default(),
            parts: Vec::new(),
            refusals: vec![RefusalRow {
                backend: "b".into(),
                code: "UnsupportedOp".into(),
                detail: "\"x\"".into(),
                hint: "remove <y>".into(),
                ..RefusalRow::default()
            }],
            inputs: inputs.to_vec(),
        }
    }

    fn positions(nodes: Vec<NodeRow>) -> Vec<(usize, usize)> {
        let explanation = Explanation { nodes, ..Explanation::default() };
        layout(&explanation.nodes, &Rows::of(&explanation))
    }

    #[test]
    fn escapes_names_and_places_consumers_below() {
        let nodes = vec![row(0, &[]), row(1, &[0]), row(2, &[0, 1])];
        let positions = positions(nodes.clone());
        assert!(positions[0].1 < positions[1].1 && positions[1].1 < positions[2].1);
        let html = page("m", &Explanation { nodes, ..Explanation::default() });
        assert!(html.contains("&lt;n0&gt;") && html.contains("UnsupportedOp: &quot;x&quot; (remove &lt;y&gt;)"));
        assert!(!html.contains("<n0>"));
    }

    #[test]
    fn ids_from_an_artifact_need_not_be_positions() {
        // The same chain with other ids, without its first row, with a cycle, and with ids that are used twice.
        assert_eq!(positions(vec![row(7, &[]), row(3, &[7])]), positions(vec![row(0, &[]), row(1, &[0])]));
        for nodes in [
            vec![row(1, &[0]), row(2, &[0, 1])],
            vec![row(usize::MAX, &[usize::MAX, 1]), row(1, &[usize::MAX])],
            vec![row(0, &[1]), row(0, &[0]), row(0, &[2])],
        ] {
            let html = page("m", &Explanation { nodes: nodes.clone(), ..Explanation::default() });
            assert_eq!(html.matches("<rect").count(), nodes.len());
        }
    }
}
