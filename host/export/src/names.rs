//! C identifiers from model names.

use std::collections::BTreeSet;

/// Words reserved in the interface: keywords of C and C++, and macros of the included headers. C++ code may include the
/// header of the interface.
const RESERVED: &str = "
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const const_cast consteval
constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit export extern false float for
friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch template
this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor
xor_eq EOF HUGE_VAL INFINITY NAN NULL linux main stderr stdin stdout unix
";

/// Returns true if `name` is a valid, unreserved C identifier that begins with a letter.
pub fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && RESERVED.split_whitespace().all(|reserved_word| reserved_word != name)
}

/// Returns a unique C identifier for each name.
pub fn identifiers<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut used_names: BTreeSet<String> = BTreeSet::new();
    let mut unique_names = Vec::new();
    for name in names {
        let mut text: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if !is_identifier(&text) {
            text.insert_str(0, "x_");
        }
        let mut unique = text.clone();
        let mut suffix = 2;
        // Macro names are uppercase, so names that differ only in case would collide there.
        while !used_names.insert(unique.to_uppercase()) {
            unique = format!("{text}_{suffix}");
            suffix += 1;
        }
        unique_names.push(unique);
    }
    unique_names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_valid_and_distinct() {
        let names = ["image", "a.b", "a_b", "1x", "float", "Image", "", "class", "NULL"];
        let expected = ["image", "a_b", "a_b_2", "x_1x", "x_float", "Image_2", "x_", "x_class", "x_NULL"];
        assert_eq!(identifiers(names), expected);
        assert!(!is_identifier("3d") && !is_identifier("a-b") && !is_identifier("while") && is_identifier("net_2"));
    }
}
