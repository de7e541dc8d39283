//! Compiler logs, prepared for inclusion in diagnostics.

/// Maximum number of lines in an excerpt.
const MAX_LINES: usize = 3;
/// Maximum length of an excerpt in characters.
const MAX_CHARS: usize = 400;

/// Returns the first non-blank lines of a log, joined by semicolons. A compiler reports the cause of its failure first;
/// later errors often follow from it.
pub fn excerpt(log: &str) -> String {
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let text_of_log = lines.take(MAX_LINES).collect::<Vec<_>>().join("; ");
    text_of_log.chars().take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_have_the_first_lines() {
        assert_eq!(excerpt(""), "");
        assert_eq!(excerpt(" \n\n"), "");
        let log = "region.c: In function 'f':\n\nregion.c:3:5: error: unknown type\r\n    3 | float\n      | ^\n";
        assert_eq!(excerpt(log), "region.c: In function 'f':; region.c:3:5: error: unknown type; 3 | float");
        assert_eq!(excerpt(&"é".repeat(1000)).chars().count(), MAX_CHARS);
    }
}
