//! Mutations that keep JSON well-formed. They change one value, or all equal values in the same way, so that checks
//! that compare parts of the document can still pass.

use crate::mutate::EDGE_VALUES;
use crate::{random_below, random_item};
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
    let path = random_item(random, &paths).clone();
    let Some(old_value) = root.pointer(&pointer(&path)).cloned() else { return Vec::new() };
    let is_leaf = !old_value.is_array() && !old_value.is_object();
    if is_leaf && random_below(random, 3) == 0 {
        let mutated_value = mutate_value(&old_value, root, &paths, random);
        let equal_paths: Vec<Path> =
            paths.into_iter().filter(|path| root.pointer(&pointer(path)) == Some(&old_value)).collect();
        for path in &equal_paths {
            if let Some(slot) = root.pointer_mut(&pointer(path)) {
                *slot = mutated_value.clone();
            }
        }
        return equal_paths;
    }
    let mutated_value = mutate_value(&old_value, root, &paths, random);
    if random_below(random, 8) == 0 && remove(root, &path) {
        return vec![path];
    }
    if let Some(slot) = root.pointer_mut(&pointer(&path)) {
        *slot = mutated_value;
    }
    vec![path]
}

fn pointer(path: &[String]) -> String {
    path.iter().map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1"))).collect()
}

fn remove(root: &mut Value, path: &[String]) -> bool {
    let Some((last_key, parent)) = path.split_last() else { return false };
    match root.pointer_mut(&pointer(parent)) {
        Some(Value::Object(fields)) => fields.shift_remove(last_key).is_some(),
        Some(Value::Array(items)) => {
            let index = last_key.parse().unwrap_or(usize::MAX);
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
fn collect_paths(value: &Value, path: &mut Path, paths: &mut Vec<Path>) {
    if !path.is_empty() {
        paths.push(path.clone());
    }
    let children: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, field)| (key.clone(), field)).collect(),
        _ => return,
    };
    for (key, child) in children {
        path.push(key);
        collect_paths(child, path, paths);
        path.pop();
    }
}

/// Returns a mutated value, close to `value` or of the same kind from elsewhere in the document.
fn mutate_value(value: &Value, root: &Value, paths: &[Path], random: &mut Random) -> Value {
    if random_below(random, 16) == 0 {
        let candidates = [Value::Null, Value::from(true), Value::from(""), Value::Array(Vec::new()), Value::from(0.5)];
        return random_item(random, &candidates).clone();
    }
    match value {
        Value::Number(old_number) => {
            let value_before = old_number.as_i64().unwrap_or(0);
            let nearby_values = [
                value_before.wrapping_add(1),
                value_before.wrapping_sub(1),
                value_before.wrapping_mul(2),
                value_before / 2,
                value_before.wrapping_neg(),
            ];
            match random_below(random, 3) {
                0 => Value::from(*random_item(random, &EDGE_VALUES)),
                1 => value_from_elsewhere(value, root, paths, random),
                _ => Value::from(*random_item(random, &nearby_values)),
            }
        }
        Value::String(text) => match random_below(random, 4) {
            0 => {
                let types = ["float32", "int8", "uint8", "int32", "int64", "float64", "float16", "bfloat16", "bool"];
                Value::from(*random_item(random, &types))
            }
            1 => Value::from(format!("{text}{text}")),
            _ => value_from_elsewhere(value, root, paths, random),
        },
        Value::Array(items) if !items.is_empty() => {
            let mut items = items.clone();
            let index = random_below(random, items.len());
            match random_below(random, 4) {
                0 => drop(items.remove(index)),
                1 => items.insert(index, items[index].clone()),
                2 => {
                    let other_index = random_below(random, items.len());
                    items.swap(index, other_index);
                }
                _ => items.push(value_from_elsewhere(&items[index], root, paths, random)),
            }
            Value::Array(items)
        }
        Value::Bool(flag) => Value::from(!flag),
        _ => value_from_elsewhere(value, root, paths, random),
    }
}

/// Returns a different value of the same kind from elsewhere in the document, or `value` if a few attempts find none.
fn value_from_elsewhere(value: &Value, root: &Value, paths: &[Path], random: &mut Random) -> Value {
    for _ in 0..16 {
        if let Some(other_value) = root.pointer(&pointer(random_item::<Path>(random, paths)))
            && std::mem::discriminant(other_value) == std::mem::discriminant(value)
            && other_value != value
        {
            return other_value.clone();
        }
    }
    value.clone()
}
