//! Shorthands for test programs.

/// Expands `B[t](e)` and `E[t](e)` to the begin and end annotations of the backend `t`, and each name in `types` to the
/// type that it abbreviates.
pub fn expand(text: &str, types: &[(&str, &str)]) -> String {
    let mut out = String::new();
    // Backend of each open parenthesis, if an annotation opened it.
    let mut closers: Vec<Option<&str>> = Vec::new();
    let mut tail = text;
    while let Some(c) = tail.chars().next() {
        let is_standalone = !out.chars().last().is_some_and(|p| p.is_ascii_alphanumeric() || "_.%@".contains(p));
        let expansion = [("B[", "annotation.compiler_begin("), ("E[", "annotation.compiler_end(")]
            .into_iter()
            .find(|(short, _)| is_standalone && tail.starts_with(short));
        if let Some((short, long)) = expansion
            && let Some(close) = tail.find("](")
        {
            closers.push(Some(&tail[short.len()..close]));
            out.push_str(long);
            tail = &tail[close + 2..];
            continue;
        }
        let word_len = tail.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(tail.len());
        if let Some((name, ty)) = types.iter().find(|(name, _)| is_standalone && *name == &tail[..word_len]) {
            out.push_str(ty);
            tail = &tail[name.len()..];
            continue;
        }
        match c {
            '(' => closers.push(None),
            ')' => {
                if let Some(Some(target)) = closers.pop() {
                    out.push_str(&format!(", compiler=\"{target}\""));
                }
            }
            _ => {}
        }
        out.push(c);
        tail = &tail[c.len_utf8()..];
    }
    out
}
