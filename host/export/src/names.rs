//! C identifiers from names of the model.

use std::collections::BTreeSet;

/// Words that no identifier of the interface may be.
const RESERVED: &[&str] = &[
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
];

/// Returns true if `name` is a C identifier that the project may use.
pub fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !RESERVED.contains(&name)
}

/// Returns a different C identifier for each name.
pub fn identifiers<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut found = Vec::new();
    for name in names {
        let mut text: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if !is_identifier(&text) {
            text.insert_str(0, "x_");
        }
        let mut unique = text.clone();
        let mut number = 2;
        // Macros are the names in capitals, so that names that differ in case only would collide there.
        while !used.insert(unique.to_uppercase()) {
            unique = format!("{text}_{number}");
            number += 1;
        }
        found.push(unique);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_valid_and_distinct() {
        let names = ["image", "a.b", "a_b", "1x", "float", "Image", ""];
        assert_eq!(identifiers(names), ["image", "a_b", "a_b_2", "x_1x", "x_float", "Image_2", "x_"]);
        assert!(!is_identifier("3d") && !is_identifier("a-b") && !is_identifier("while") && is_identifier("net_2"));
    }
}
