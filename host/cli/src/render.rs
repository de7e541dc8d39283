//! Human-readable output. Diagnostics go to standard error: `error[E0401]: ...`, the source location if known, notes
//! and help.

use super::escape;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, Severity};
use byoc_ir::ir::{TensorType, Type};
use std::io::IsTerminal;
use std::sync::Arc;

/// Prints each diagnostic of a failure on standard error.
pub fn print_failure(failure: &Failure) {
    let source = failure.source.as_ref().map(|s| (s.name.as_str(), s.text.as_str()));
    for diagnostic in &failure.diagnostics {
        eprintln!("{}", text(diagnostic, source, supports_color(&std::io::stderr())));
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

/// Formats a diagnostic; `source` is the name and the text of the source that the diagnostic's labels refer to.
pub fn text(diagnostic: &Diagnostic, source: Option<(&str, &str)>, is_colored: bool) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let code = diagnostic.code.to_string();
    let mut group = Group::with_title(level.primary_title(escape::line(&diagnostic.message)).id(code));
    if let Some((name, text)) = source
        && !diagnostic.labels.is_empty()
    {
        let mut kind = AnnotationKind::Primary;
        let mut snippet = Snippet::source(text).path(escape::line(name));
        for label in &diagnostic.labels {
            let end = (label.span.end as usize).min(text.len());
            let span = (label.span.start as usize).min(end)..end;
            snippet = snippet.annotation(kind.span(span).label(escape::line(&label.text)));
            kind = AnnotationKind::Context;
        }
        group = group.element(snippet);
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

/// Formats a type as Relay text.
pub fn type_text(ty: &TensorType) -> String {
    Type::Tensor(Arc::new(ty.clone())).to_string()
}

/// Formats a count and a noun, as in `1 region` and `2 regions`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
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
        let rendered = text(&diagnostic, Some(("a.relay", "def }")), false);
        for part in ["error[E0101]: unexpected `}`", "a.relay:1:5", "here", "expected an expression", "remove it"] {
            assert!(rendered.contains(part), "expected {part} in\n{rendered}");
        }
    }
}
