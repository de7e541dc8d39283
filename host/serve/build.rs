//! Compiles `inference.proto` to Rust: a structure for each message that is served, with its memory layout, and a table
//! of all messages with what the server does with each field.
//!
//! This is no work for `prost-build`: it knows neither the layouts, from which the memory of a message is charged before
//! the message is decoded, nor the states of fields, and with a compiler of protocol buffers it adds 16 packages to every
//! build. A declaration of the file is one line.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Message or enumeration.
struct Item<'a> {
    /// Name with the names of the messages around it.
    path: String,
    comment: &'a str,
    is_enumeration: bool,
    fields: Vec<Field<'a>>,
}

/// Field of a message, or value of an enumeration.
struct Field<'a> {
    number: u32,
    name: &'a str,
    ty: &'a str,
    choice: Option<&'a str>,
    comment: &'a str,
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=inference.proto");
    let text = std::fs::read_to_string("inference.proto").expect("cannot read inference.proto");
    let dir = std::env::var_os("OUT_DIR").expect("expected OUT_DIR to be set");
    std::fs::write(Path::new(&dir).join("inference.rs"), rust(&parse(&text))).expect("cannot write inference.rs");
}

fn parse(text: &str) -> Vec<Item<'_>> {
    let mut items: Vec<Item> = Vec::new();
    // The blocks around a line: the message or enumeration, and the choice.
    let mut blocks: Vec<(Option<usize>, Option<&str>)> = Vec::new();
    let mut comment_above = "";
    for line in text.lines() {
        let (code, comment) = line.split_once("//").unwrap_or((line, ""));
        let (code, mut comment) = (code.trim(), comment.trim());
        if code.is_empty() {
            comment_above = comment;
            continue;
        }
        let comment_above = std::mem::take(&mut comment_above);
        let (item, choice) = blocks.last().copied().unwrap_or_default();
        if let Some((head, tail)) = code.split_once(" {") {
            let (keyword, name) = head.split_once(' ').expect("expected the name of a block");
            let block = match keyword {
                "message" | "enum" => {
                    let parent = item.map(|index| &items[index]);
                    if comment.is_empty() {
                        comment = parent.map_or(comment_above, |parent| parent.comment);
                    }
                    let path = parent.map_or(name.to_owned(), |parent| format!("{}.{name}", parent.path));
                    items.push(Item { path, comment, is_enumeration: keyword == "enum", fields: Vec::new() });
                    (Some(items.len() - 1), None)
                }
                "oneof" => (item, Some(name)),
                _ => (None, None),
            };
            if tail.is_empty() {
                blocks.push(block);
            }
        } else if code == "}" {
            blocks.pop();
        } else if let (Some(item), Some((left, number))) = (item, code.trim_end_matches(';').split_once(" = ")) {
            let (ty, name) = left.rsplit_once(' ').unwrap_or(("", left));
            let number = number.parse().expect("expected the number of a field");
            items[item].fields.push(Field { number, name, ty, choice, comment });
        }
    }
    items
}

impl Item<'_> {
    /// Returns the name of the structure; messages with equal fields have one.
    fn rust_name(&self) -> &str {
        match self.path.rsplit('.').next().unwrap_or_default() {
            _ if self.fields.is_empty() => "Empty",
            "ServerReadyResponse" | "ModelReadyResponse" => "ReadyResponse",
            "ModelReadyRequest" | "ModelMetadataRequest" | "ModelConfigRequest" | "ModelStatisticsRequest" => {
                "ModelRequest"
            }
            "InferInputTensor" | "InferOutputTensor" => "InferTensor",
            "InferRequestedOutputTensor" => "InferRequestedOutput",
            "RepositoryModelLoadRequest" | "RepositoryModelUnloadRequest" => "RepositoryModelRequest",
            "SystemSharedMemoryStatusRequest" | "SystemSharedMemoryUnregisterRequest" => "SharedMemoryRequest",
            "SystemSharedMemoryStatusResponse" => "SharedMemoryStatusResponse",
            "SystemSharedMemoryRegisterRequest" | "RegionStatus" => "SharedMemoryRegion",
            "LogSettingsRequest" | "LogSettingsResponse" => "LogSettings",
            "SettingValue" => "LogSetting",
            "Latest" => "LatestVersions",
            "Specific" => "SpecificVersions",
            "Input" => "WarmupInput",
            name => name,
        }
    }

    fn is_compiled(&self) -> bool {
        !self.is_enumeration && !self.comment.starts_with("refused") && self.comment != "not read"
    }
}

impl Field<'_> {
    fn is_compiled(&self) -> bool {
        !self.comment.starts_with("ignored")
            && (!self.comment.starts_with("refused") || self.comment.starts_with("refused if true"))
    }

    /// Returns the name of the structure's field.
    fn rust_name(&self) -> String {
        let mut name = String::new();
        for c in self.name.chars() {
            if c.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        if name == "type" { "r#type".to_owned() } else { name }
    }

    /// Returns the name of the variant of a choice.
    fn variant(&self) -> String {
        match self.ty {
            _ if !self.name.ends_with("_param") => camel_case(self.name),
            "int64" => "Int".to_owned(),
            "uint32" | "uint64" => "Uint".to_owned(),
            "double" => "Float".to_owned(),
            "string" => "Text".to_owned(),
            ty => camel_case(ty),
        }
    }

    /// Returns the state of the field, as a variant of `State`.
    fn state(&self, message: &Item) -> String {
        let comment = if message.comment.starts_with("refused") { message.comment } else { self.comment };
        for (word, state) in [("refused if true", "RefusedIfTrue"), ("refused", "Refused"), ("ignored", "Ignored")] {
            if let Some(note) = comment.strip_prefix(word) {
                return format!("State::{state}({:?})", note.trim_start_matches(": "));
            }
        }
        "State::Served".to_owned()
    }
}

fn camel_case(name: &str) -> String {
    let words = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect()
}

/// Returns the type of an element in the attributes of `prost`, and in Rust.
fn element<'a>(ty: &str, items: &'a [Item]) -> (&'static str, &'a str) {
    match ty {
        "bool" => ("bool", "bool"),
        "int32" => ("int32", "i32"),
        "int64" => ("int64", "i64"),
        "uint32" => ("uint32", "u32"),
        "uint64" => ("uint64", "u64"),
        "float" => ("float", "f32"),
        "double" => ("double", "f64"),
        "string" => ("string", "String"),
        "bytes" => ("bytes = \"bytes\"", "Bytes"),
        name => match items.iter().find(|item| item.path == name) {
            Some(item) if item.is_enumeration => ("int32", "i32"),
            Some(item) => ("message", item.rust_name()),
            None => panic!("expected a type of the file, found {name:?}"),
        },
    }
}

/// Returns the structure for a message, and the enumeration for its choice.
fn structure(message: &Item, items: &[Item]) -> String {
    let name = message.rust_name();
    let (mut fields, mut layout, mut variants, mut numbers) = (String::new(), String::new(), String::new(), Vec::new());
    for field in message.fields.iter().filter(|field| field.is_compiled()) {
        let number = field.number;
        let (attribute, ty) = if let Some(inner) = field.ty.strip_prefix("map<") {
            let (key, value) = inner.trim_end_matches('>').split_once(", ").expect("expected a key and a value");
            let (key, value) = (element(key, items), element(value, items));
            (format!("btree_map = \"{}, {}\"", key.0, value.0), format!("BTreeMap<{}, {}>", key.1, value.1))
        } else if let Some(inner) = field.ty.strip_prefix("repeated ") {
            let (kind, ty) = element(inner, items);
            (format!("{kind}, repeated"), format!("Vec<{ty}>"))
        } else {
            match element(field.ty, items) {
                ("message", ty) if field.choice.is_none() => ("message, optional".to_owned(), format!("Option<{ty}>")),
                (kind, ty) => (kind.to_owned(), ty.to_owned()),
            }
        };
        if field.choice.is_some() {
            numbers.push(number.to_string());
            let _ = writeln!(variants, "    #[prost({attribute}, tag = \"{number}\")] {}({ty}),", field.variant());
        } else {
            let field_name = field.rust_name();
            let _ = writeln!(fields, "    #[prost({attribute}, tag = \"{number}\")] pub {field_name}: {ty},");
            let _ = write!(layout, "\"tag = \\\"{number}\\\"\" => {ty}, ");
        }
    }
    let mut text = String::new();
    if let Some(choice) = message.fields.iter().find_map(|field| field.choice).map(camel_case) {
        let numbers = numbers.join(", ");
        let _ =
            writeln!(fields, "    #[prost(oneof = \"{choice}\", tags = \"{numbers}\")] pub choice: Option<{choice}>,");
        let _ = write!(layout, "\"\" => Option<{choice}>, ");
        let _ = writeln!(text, "#[derive(Clone, PartialEq, prost::Oneof)]\npub enum {choice} {{\n{variants}}}");
        let _ = writeln!(text, "byoc::io::choice_layout!({choice});");
    }
    let _ = writeln!(text, "#[derive(Clone, PartialEq, Message)]\npub struct {name} {{\n{fields}}}");
    let _ = writeln!(text, "byoc::io::layout!({name} {{ {layout}}});");
    text
}

fn rust(items: &[Item]) -> String {
    let mut structures = BTreeMap::new();
    let mut tables = "pub static MESSAGES: &[Descriptor] = &[\n".to_owned();
    for message in items.iter().filter(|item| !item.is_enumeration) {
        if message.is_compiled() {
            let text = structure(message, items);
            let first = structures.entry(message.rust_name()).or_insert_with(|| text.clone());
            assert!(*first == text, "{}: expected the fields {first}, found {text}", message.path);
        }
        let _ = writeln!(tables, "    Descriptor {{ name: {:?}, fields: &[", message.path);
        for field in &message.fields {
            let Field { number, name, ty, choice, .. } = field;
            let (is_choice, state) = (choice.is_some(), field.state(message));
            let row = format!("number: {number}, name: {name:?}, ty: {ty:?}, is_choice: {is_choice}, state: {state}");
            let _ = writeln!(tables, "        Field {{ {row} }},");
        }
        tables.push_str("    ] },\n");
    }
    tables.push_str("];\npub static ENUMERATIONS: &[(&str, &[&str])] = &[\n");
    for item in items.iter().filter(|item| item.is_enumeration) {
        let names: Vec<&str> = item.fields.iter().map(|field| field.name).collect();
        let _ = writeln!(tables, "    ({:?}, &{names:?}),", item.path);
    }
    structures.into_values().collect::<String>() + &tables + "];\n"
}
