//! Line breaking between words.

/// Breaks text into lines of at most `width` characters. A word longer than `width` is placed on a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_between_words() {
        assert_eq!(wrap("a bc def g", 4), ["a bc", "def", "g"]);
        assert_eq!(wrap("a longest b", 3), ["a", "longest", "b"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
