//! Human-readable output. Diagnostics go to standard error: `error[E0401]: ...`, the source location if known, notes
//! and help.

use super::escape;
use annotate_snippets::{AnnotationKind, Element, Group, Level, Origin, Renderer, Snippet};
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, Label, Lines, Severity};
use byoc_ir::ir::{TensorType, Type};
use std::io::IsTerminal;
use std::sync::Arc;

/// Prints each diagnostic of a failure on standard error.
pub fn print_failure(failure: &Failure) {
    let source = failure.source.as_ref().map(|s| Source { name: &s.name, lines: Lines::of(&s.text) });
    for diagnostic in &failure.diagnostics {
        eprintln!("{}", text(diagnostic, source.as_ref(), supports_color(&std::io::stderr())));
    }
}

/// Prints one diagnostic without source text.
pub fn print_diagnostic(diagnostic: &Diagnostic) {
    eprintln!("{}", text(diagnostic, None, supports_color(&std::io::stderr())));
}

/// Tests whether output to `stream` is colored: `stream` must be a terminal, and `NO_COLOR` must not be set.
pub fn supports_color(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Source that the labels of diagnostics refer to.
pub struct Source<'s> {
    /// Name of the source, as the user named it.
    pub name: &'s str,
    /// Lines of its text.
    pub lines: Lines<'s>,
}

/// Formats a diagnostic; its labels refer to `source`.
pub fn text(diagnostic: &Diagnostic, source: Option<&Source<'_>>, is_colored: bool) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let code = diagnostic.code.to_string();
    let mut group = Group::with_title(level.primary_title(escape::line(&diagnostic.message)).id(code));
    if let Some(source) = source {
        group = group.elements(excerpts(&diagnostic.labels, source));
    }
    for note in &diagnostic.notes {
        group = group.element(Level::NOTE.message(escape::lines(note)));
    }
    if let Some(help) = &diagnostic.help {
        group = group.element(Level::HELP.message(escape::lines(help)));
    }
    let renderer = if is_colored { Renderer::styled() } else { Renderer::plain() };
    renderer.render(&[group])
}

/// Maximum length of an excerpt of the source in bytes. The renderer takes time linear in the text that it is given, for
/// each diagnostic, so it is given only the lines around the labels.
const MAX_EXCERPT: usize = 16 << 10;

/// Number of characters that are shown before and after the start of a label in a line longer than [`MAX_EXCERPT`].
const SHOWN_AROUND_LABEL: usize = 60;

/// Returns the excerpts of the source that show the labels: one excerpt if the labels are close to each other, and
/// otherwise one for the start of each label.
fn excerpts<'s>(labels: &'s [Label], source: &'s Source<'_>) -> Vec<Element<'s>> {
    let lines = &source.lines;
    let length = lines.text().len();
    let mut kind = AnnotationKind::Primary;
    let spans: Vec<_> = labels
        .iter()
        .map(|label| {
            let end = (label.span.end as usize).min(length);
            let span = (label.span.start as usize).min(end)..end;
            (span, escape::line(&label.text), std::mem::replace(&mut kind, AnnotationKind::Context))
        })
        .collect();
    let Some(start) = spans.iter().map(|(span, ..)| span.start).min() else { return Vec::new() };
    let end = spans.iter().map(|(span, ..)| span.end).max().unwrap_or(start);
    // The line before the labels is included because the end of the text is shown after its last character.
    let first_line = lines.line(start).saturating_sub(1).max(1);
    let excerpt = lines.range(first_line).start..lines.range(lines.line(end)).end;
    if excerpt.len() <= MAX_EXCERPT {
        let path = escape::line(source.name);
        let mut snippet = Snippet::source(&lines.text()[excerpt.clone()]).path(path).line_start(first_line);
        for (span, text, kind) in spans {
            let span = span.start - excerpt.start..span.end - excerpt.start;
            snippet = snippet.annotation(kind.span(span).label(text));
        }
        return vec![snippet.into()];
    }
    let mut elements = Vec::new();
    for (span, text, kind) in spans {
        let (line, path) = (lines.line(span.start), escape::line(source.name));
        let range = lines.range(line);
        let is_long = range.len() > MAX_EXCERPT;
        let (excerpt, path) = if is_long {
            let column = lines.text()[range.start..span.start].chars().count() + 1;
            elements.push(Origin::path(path).line(line).char_column(column).into());
            let start = lines.text().floor_char_boundary(span.start.saturating_sub(SHOWN_AROUND_LABEL));
            let end = lines.text().ceil_char_boundary(span.start + SHOWN_AROUND_LABEL);
            (start.max(range.start)..end.min(range.end), None)
        } else {
            (range, Some(path))
        };
        let span = span.start - excerpt.start..span.end.min(excerpt.end).max(span.start) - excerpt.start;
        let snippet = Snippet::source(&lines.text()[excerpt]).path(path).line_start(line);
        elements.push(snippet.annotation(kind.span(span).label(text)).into());
    }
    elements
}

/// Formats a type as Relay text.
pub fn type_text(ty: &TensorType) -> String {
    Type::Tensor(Arc::new(ty.clone())).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::diag::{Span, codes};

    #[test]
    fn renders_label_note_and_help() {
        let diagnostic = Diagnostic::error(codes::text::UNEXPECTED_TOKEN, "unexpected `}`")
            .at(Span { start: 4, end: 5 }, "here")
            .note("expected an expression")
            .help("remove it");
        let source = Source { name: "a.relay", lines: Lines::of("def }") };
        let rendered = text(&diagnostic, Some(&source), false);
        for part in ["error[E0101]: unexpected `}`", "a.relay:1:5", "here", "expected an expression", "remove it"] {
            assert!(rendered.contains(part), "expected {part} in\n{rendered}");
        }
    }

    /// Returns a diagnostic with labels at the given positions, rendered.
    fn rendered(source_text: &str, starts: &[usize]) -> String {
        let mut diagnostic = Diagnostic::error(codes::text::UNEXPECTED_TOKEN, "message");
        for (i, &start) in starts.iter().enumerate() {
            diagnostic = diagnostic.at(Span { start: start as u32, end: start as u32 + 1 }, format!("label {i}"));
        }
        text(&diagnostic, Some(&Source { name: "a.relay", lines: Lines::of(source_text) }), false)
    }

    #[test]
    fn renderer_is_given_only_the_lines_around_labels() {
        let lines: String = (1..=20_000).map(|i| format!("line {i:05}\n")).collect();
        let offset = |line: usize| (line - 1) * 11;
        let near = rendered(&lines, &[offset(9000), offset(9003)]);
        for part in ["a.relay:9000:1", "9000 | line 09000", "label 0", "9003 | line 09003", "label 1"] {
            assert!(near.contains(part), "expected {part} in\n{near}");
        }
        assert!(!near.contains("08999") && !near.contains("09004"), "{near}");
        let far = rendered(&lines, &[offset(19_000), offset(2)]);
        for part in ["a.relay:19000:1", "19000 | line 19000", "label 0", "a.relay:2:1", "line 00002", "label 1"] {
            assert!(far.contains(part), "expected {part} in\n{far}");
        }
        assert!(far.len() < 500, "{far}");
        // The whole text is one label.
        let whole = Diagnostic::error(codes::text::UNEXPECTED_TOKEN, "message")
            .at(Span { start: 0, end: lines.len() as u32 }, "whole");
        let whole = text(&whole, Some(&Source { name: "a.relay", lines: Lines::of(&lines) }), false);
        assert!(whole.contains("1 | line 00001") && whole.contains("whole") && whole.len() < 500, "{whole}");
    }

    #[test]
    fn long_lines_are_shortened_around_labels() {
        let line = format!("first\n{}é here {}\n", "é".repeat(MAX_EXCERPT), "x".repeat(MAX_EXCERPT));
        let middle = rendered(&line, &[line.find("here").unwrap()]);
        assert!(middle.contains(&format!("a.relay:2:{}", MAX_EXCERPT + 3)), "{middle}");
        assert!(middle.contains("é here x") && middle.contains("label 0") && middle.len() < 1000, "{middle}");
        let end = rendered(&line, &[line.len() - 1, line.len()]);
        assert!(end.contains("label 1"), "{end}");
    }
}
