//! Tables on standard output: aligned columns without frames, readable and easy to process with tools such as `cut`.

use super::wrap::wrap;
use super::{escape, stdout};
use byoc_ir::cancel::Ticks;
use comfy_table::{Cell, ContentArrangement, presets};

/// Table that escapes the text of its cells.
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Maximum length of a cell in characters.
const MAX_CELL: usize = 4096;

impl Table {
    pub fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cell = |text: T| escape::line(&shorten_cell(text.as_ref(), MAX_CELL)).into_owned();
        self.rows.push(cells.into_iter().map(cell).collect());
    }
}

/// Creates a table with a header row. On a terminal, long cells wrap so that the table fits the terminal width;
/// elsewhere lines are not wrapped.
pub fn new(header: &[&str]) -> Table {
    Table { header: header.iter().map(|name| name.to_uppercase()).collect(), rows: Vec::new() }
}

/// Maximum number of rows that are laid out together. The columns of further rows are aligned among themselves.
const MAX_ALIGNED: usize = 10_000;

/// Prints the table without trailing spaces.
pub fn print(table: &Table) {
    let mut header = Some(&table.header);
    for rows in table.rows.chunks(MAX_ALIGNED).chain(table.rows.is_empty().then_some(&[][..])) {
        stdout::end_if_cancelled(|| format!("a table of {} rows was being printed", table.rows.len()));
        let mut block = comfy_table::Table::new();
        block.load_style(presets::NOTHING);
        let on_terminal = stdout::is_terminal();
        block.set_content_arrangement(match on_terminal {
            true => ContentArrangement::Dynamic,
            false => ContentArrangement::Disabled,
        });
        if let (true, Some(width)) = (on_terminal, stdout::width()) {
            block.set_width(width);
        }
        if let Some(header) = header.take() {
            block.set_header(header.iter().map(Cell::new));
        }
        for row in rows {
            block.add_row(row.iter().map(Cell::new));
        }
        println!("{}", block.trim_fmt());
    }
}

/// Minimum width to which a column is narrowed.
const MIN_COLUMN: usize = 12;

/// Prints a header and single-line rows. On a terminal the columns in `shorten` are narrowed so that each line fits.
pub fn print_lines(header: &[&str], rows: &[Vec<String>], shorten: &[usize]) {
    let mut lines = vec![header.iter().map(|name| name.to_uppercase()).collect::<Vec<_>>()];
    let cell = |text: &String| escape::line(&shorten_cell(text, MAX_CELL)).into_owned();
    lines.extend(rows.iter().map(|row| row.iter().map(cell).collect()));
    let rows = lines;
    let mut widths = vec![0; header.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    if let (true, Some(width)) = (stdout::is_terminal(), stdout::width()) {
        fit(&mut widths, width.into(), shorten);
    }
    let mut ticks = Ticks::every(1 << 10);
    for row in &rows {
        if ticks.is_requested() {
            stdout::end_if_cancelled(|| format!("a table of {} rows was being printed", rows.len()));
        }
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{:width$}", shorten_cell(cell, width)));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Narrows the columns in `shorten`, the widest first, until all columns, separated by two spaces, fit into `width`.
fn fit(widths: &mut [usize], width: usize, shorten: &[usize]) {
    let mut excess = (widths.iter().sum::<usize>() + 2 * (widths.len() - 1)).saturating_sub(width);
    while excess > 0 {
        let Some(&widest) = shorten.iter().max_by_key(|&&column| widths[column]) else { return };
        if widths[widest] <= MIN_COLUMN {
            return;
        }
        widths[widest] -= 1;
        excess -= 1;
    }
}

/// Shortens text to `width` characters by replacing its middle, the least specific part, with an ellipsis.
fn shorten_cell(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let text_width = width.saturating_sub(1);
    let start: String = text.chars().take(text_width / 2).collect();
    let end: String = text.chars().skip(length - (text_width - text_width / 2)).collect();
    format!("{start}\u{2026}{end}")
}

/// Prints a string after a prefix. On a terminal the string wraps between words, indented by the width of the prefix.
pub fn print_wrapped(prefix: &str, text: &str) {
    let text = escape::line(text);
    let width = if stdout::is_terminal() { stdout::width() } else { None };
    let text_width = width.map_or(usize::MAX, |width| usize::from(width).saturating_sub(prefix.len()).max(MIN_COLUMN));
    let mut indent = prefix.to_owned();
    for line in wrap(&text, text_width) {
        println!("{indent}{line}");
        indent = " ".repeat(prefix.len());
    }
}

/// Formats a count with an SI prefix.
pub fn count(n: u64) -> String {
    match n {
        0 => "-".to_owned(),
        n if n < 10_000 => n.to_string(),
        n if n < 10_000_000 => format!("{:.1} k", n as f64 / 1e3),
        n if n < 10_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        n => format!("{:.1} G", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widest_columns_give_up_width() {
        let mut widths = [10, 60, 6, 40];
        fit(&mut widths, 80, &[1, 3]);
        assert_eq!(widths, [10, 29, 6, 29]);
        fit(&mut widths, 200, &[1, 3]);
        assert_eq!(widths, [10, 29, 6, 29]);
        fit(&mut widths, 10, &[1, 3]);
        assert_eq!(widths, [10, 12, 6, 12]);
    }

    #[test]
    fn long_texts_keep_both_ends() {
        assert_eq!(shorten_cell("conv1", 8), "conv1");
        assert_eq!(shorten_cell("/layer1/layer1.0/conv1/Conv", 12), "/laye\u{2026}1/Conv");
        assert_eq!(shorten_cell("\u{e4}\u{f6}\u{fc}abcdef", 5).chars().count(), 5);
    }
}
