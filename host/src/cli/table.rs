//! Tables on standard output: aligned columns without frames, which read well and can be cut by other programs.

use super::out;
use comfy_table::{Cell, ContentArrangement, Table, presets};

/// A table with a header row. On a terminal long cells wrap at its width; elsewhere lines are as long as they need.
pub fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let on_terminal = out::is_terminal();
    table.set_content_arrangement(if on_terminal { ContentArrangement::Dynamic } else { ContentArrangement::Disabled });
    if let (true, Some(width)) = (on_terminal, out::width()) {
        table.set_width(width);
    }
    table.set_header(header.iter().map(|h| Cell::new(h.to_uppercase())));
    table
}

/// Prints it, without blanks at the ends of lines.
pub fn print(table: &Table) {
    println!("{}", table.trim_fmt());
}
