//! Mutations that keep JSON well-formed. They change one value, or all equal values in the same way, so that checks
//! that compare parts of the document still pass.

use crate::mutate::EDGE_VALUES;
use crate::{below, pick};
use byoc::io::random::Random;
use serde_json::Value;

/// Path of a value: keys and indices from the root.
pub type Path = Vec<String>;

/// Changes one value, or all values equal to it. Returns the paths of the changed values.
pub fn mutate(root: &mut Value, random: &mut Random) -> Vec<Path> {
    let mut paths = Vec::new();
    collect_paths(root, &mut Vec::new(), &mut paths);
    if paths.is_empty() {
        return Vec::new();
    }
    let at = pick(random, &paths).clone();
    let Some(before) = root.pointer(&pointer(&at)).cloned() else { return Vec::new() };
    let leaf = !before.is_array() && !before.is_object();
    if leaf && below(random, 3) == 0 {
        let after = mutate_value(&before, root, &paths, random);
        let same: Vec<Path> = paths.into_iter().filter(|at| root.pointer(&pointer(at)) == Some(&before)).collect();
        for at in &same {
            if let Some(slot) = root.pointer_mut(&pointer(at)) {
                *slot = after.clone();
            }
        }
        return same;
    }
    let after = mutate_value(&before, root, &paths, random);
    if below(random, 8) == 0 && remove(root, &at) {
        return vec![at];
    }
    if let Some(slot) = root.pointer_mut(&pointer(&at)) {
        *slot = after;
    }
    vec![at]
}

fn pointer(at: &[String]) -> String {
    at.iter().map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1"))).collect()
}

fn remove(root: &mut Value, at: &[String]) -> bool {
    let Some((last, parent)) = at.split_last() else { return false };
    match root.pointer_mut(&pointer(parent)) {
        Some(Value::Object(fields)) => fields.shift_remove(last).is_some(),
        Some(Value::Array(items)) => {
            let index = last.parse().unwrap_or(usize::MAX);
            index < items.len() && {
                items.remove(index);
                true
            }
        }
        _ => false,
    }
}

// The recursion depth equals the nesting depth of the JSON, which serde_json bounds for the seed and for the parts
// grafted into it.
fn collect_paths(value: &Value, at: &mut Path, paths: &mut Vec<Path>) {
    if !at.is_empty() {
        paths.push(at.clone());
    }
    let children: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, field)| (key.clone(), field)).collect(),
        _ => return,
    };
    for (key, child) in children {
        at.push(key);
        collect_paths(child, at, paths);
        at.pop();
    }
}

/// Returns a mutated value, close to `value` or of the same kind from elsewhere in the document.
fn mutate_value(value: &Value, root: &Value, paths: &[Path], random: &mut Random) -> Value {
    if below(random, 16) == 0 {
        let any = [Value::Null, Value::from(true), Value::from(""), Value::Array(Vec::new()), Value::from(0.5)];
        return pick(random, &any).clone();
    }
    match value {
        Value::Number(number) => {
            let now = number.as_i64().unwrap_or(0);
            let neighbors =
                [now.wrapping_add(1), now.wrapping_sub(1), now.wrapping_mul(2), now / 2, now.wrapping_neg()];
            match below(random, 3) {
                0 => Value::from(*pick(random, &EDGE_VALUES)),
                1 => value_from_elsewhere(value, root, paths, random),
                _ => Value::from(*pick(random, &neighbors)),
            }
        }
        Value::String(text) => match below(random, 4) {
            0 => {
                let types = ["float32", "int8", "uint8", "int32", "int64", "float64", "float16", "bfloat16", "bool"];
                Value::from(*pick(random, &types))
            }
            1 => Value::from(format!("{text}{text}")),
            _ => value_from_elsewhere(value, root, paths, random),
        },
        Value::Array(items) if !items.is_empty() => {
            let mut items = items.clone();
            let at = below(random, items.len());
            match below(random, 4) {
                0 => drop(items.remove(at)),
                1 => items.insert(at, items[at].clone()),
                2 => {
                    let to = below(random, items.len());
                    items.swap(at, to);
                }
                _ => items.push(value_from_elsewhere(&items[at], root, paths, random)),
            }
            Value::Array(items)
        }
        Value::Bool(flag) => Value::from(!flag),
        _ => value_from_elsewhere(value, root, paths, random),
    }
}

/// Returns a value from elsewhere in the document, of the same kind if a few attempts find one.
fn value_from_elsewhere(value: &Value, root: &Value, paths: &[Path], random: &mut Random) -> Value {
    for _ in 0..16 {
        if let Some(found) = root.pointer(&pointer(pick::<Path>(random, paths)))
            && std::mem::discriminant(found) == std::mem::discriminant(value)
            && found != value
        {
            return found.clone();
        }
    }
    value.clone()
}
