//! Tables on standard output: aligned columns without frames, readable and easy to cut with other programs.

use super::{escape, out};
use comfy_table::{Cell, ContentArrangement, presets};

/// Table that escapes the text of its cells.
pub struct Table(comfy_table::Table);

impl Table {
    /// Adds a row.
    pub fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(|cell| Cell::new(escape::line(cell.as_ref()))));
    }
}

/// Creates a table with a header row. On a terminal long cells wrap at its width; elsewhere lines are not wrapped.
pub fn new(header: &[&str]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING);
    let on_terminal = out::is_terminal();
    table.set_content_arrangement(if on_terminal { ContentArrangement::Dynamic } else { ContentArrangement::Disabled });
    if let (true, Some(width)) = (on_terminal, out::width()) {
        table.set_width(width);
    }
    table.set_header(header.iter().map(|h| Cell::new(h.to_uppercase())));
    Table(table)
}

/// Prints the table without trailing blanks.
pub fn print(table: &Table) {
    println!("{}", table.0.trim_fmt());
}
