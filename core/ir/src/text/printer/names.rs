//! Names in the text. A name is quoted unless it is an identifier; the names of variables are made unique.

use crate::ir::{ExprId, Name};
use crate::text::lexer::{is_name_part, is_name_start};
use std::collections::HashMap;

/// Printed names of variables, unique in one global function.
#[derive(Default)]
pub(super) struct VarNames {
    printed: HashMap<ExprId, Name>,
    /// Used names, each with the last suffix tried.
    used: HashMap<Name, u32>,
}

impl VarNames {
    /// Clears all names. Replaces the maps: clearing them would take time proportional to their capacity, which may be
    /// large after a large function.
    pub(super) fn clear(&mut self) {
        *self = VarNames::default();
    }

    /// Writes `%name`, with a numeric suffix if another variable has the name.
    pub(super) fn write(&mut self, out: &mut String, id: ExprId, name: &Name) {
        out.push('%');
        if !self.printed.contains_key(&id) {
            let unique = self.unique(name);
            self.printed.insert(id, unique);
        }
        write_name(out, &self.printed[&id]);
    }

    fn unique(&mut self, name: &Name) -> Name {
        let name: Name = if name.is_empty() { "_".into() } else { name.clone() };
        if !self.used.contains_key(&name) {
            self.used.insert(name.clone(), 0);
            return name;
        }
        loop {
            let suffix = self.used.entry(name.clone()).or_insert(0);
            *suffix += 1;
            let candidate: Name = format!("{name}{suffix}").into();
            if !self.used.contains_key(&candidate) {
                self.used.insert(candidate.clone(), 0);
                return candidate;
            }
        }
    }
}

/// Writes a name, in quotes unless it is a single token. (A quotation mark in the name, which the verifier reports,
/// becomes `'`.)
pub(super) fn write_name(out: &mut String, name: &str) {
    if is_plain(name) {
        out.push_str(name);
    } else {
        out.push('"');
        out.extend(name.chars().map(|c| if c == '"' { '\'' } else { c }));
        out.push('"');
    }
}

fn is_plain(name: &str) -> bool {
    let bytes = name.as_bytes();
    let is_part = |i: usize| bytes.get(i).is_some_and(|&b| is_name_part(b));
    let start = match bytes.first() {
        Some(b'/') => is_part(1),
        Some(&first) => is_name_start(first),
        None => false,
    };
    start && (0..bytes.len()).all(|i| is_part(i) || (bytes[i] == b'/' && is_part(i + 1)))
}
