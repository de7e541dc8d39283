//! Mutations that keep JSON well-formed: of one value, or of all equal values in the same way, which gets past checks
//! that compare one part with another.

use crate::mutate::EDGES;
use crate::{below, pick};
use byoc::io::random::Random;
use serde_json::Value;

/// Path of a value: keys and indices from the root.
pub type Path = Vec<String>;

/// Changes one value, or all values equal to it. Returns their paths.
pub fn mutate(root: &mut Value, random: &mut Random) -> Vec<Path> {
    let mut places = Vec::new();
    walk(root, &mut Vec::new(), &mut places);
    if places.is_empty() {
        return Vec::new();
    }
    let at = pick(random, &places).clone();
    let Some(before) = root.pointer(&pointer(&at)).cloned() else { return Vec::new() };
    let leaf = !before.is_array() && !before.is_object();
    if leaf && below(random, 3) == 0 {
        let after = other(&before, root, &places, random);
        let same: Vec<Path> = places.into_iter().filter(|at| root.pointer(&pointer(at)) == Some(&before)).collect();
        for at in &same {
            if let Some(place) = root.pointer_mut(&pointer(at)) {
                *place = after.clone();
            }
        }
        return same;
    }
    let after = other(&before, root, &places, random);
    if below(random, 8) == 0 && remove(root, &at) {
        return vec![at];
    }
    if let Some(place) = root.pointer_mut(&pointer(&at)) {
        *place = after;
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

// Recursion depth is that of the seed's JSON and the parts grafted into it, which serde_json bounds.
fn walk(value: &Value, at: &mut Path, places: &mut Vec<Path>) {
    if !at.is_empty() {
        places.push(at.clone());
    }
    let children: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, field)| (key.clone(), field)).collect(),
        _ => return,
    };
    for (key, child) in children {
        at.push(key);
        walk(child, at, places);
        at.pop();
    }
}

/// Returns another value: close to the given one, or of the same kind from elsewhere.
fn other(value: &Value, root: &Value, places: &[Path], random: &mut Random) -> Value {
    if below(random, 16) == 0 {
        let any = [Value::Null, Value::from(true), Value::from(""), Value::Array(Vec::new()), Value::from(0.5)];
        return pick(random, &any).clone();
    }
    match value {
        Value::Number(number) => {
            let now = number.as_i64().unwrap_or(0);
            let near = [now.wrapping_add(1), now.wrapping_sub(1), now.wrapping_mul(2), now / 2, now.wrapping_neg()];
            match below(random, 3) {
                0 => Value::from(*pick(random, &EDGES)),
                1 => elsewhere(value, root, places, random),
                _ => Value::from(*pick(random, &near)),
            }
        }
        Value::String(text) => match below(random, 4) {
            0 => {
                let types = ["float32", "int8", "uint8", "int32", "int64", "float64", "float16", "bfloat16", "bool"];
                Value::from(*pick(random, &types))
            }
            1 => Value::from(format!("{text}{text}")),
            _ => elsewhere(value, root, places, random),
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
                _ => items.push(elsewhere(&items[at], root, places, random)),
            }
            Value::Array(items)
        }
        Value::Bool(flag) => Value::from(!flag),
        _ => elsewhere(value, root, places, random),
    }
}

/// Returns a value from another place, of the same kind if a few tries find one.
fn elsewhere(value: &Value, root: &Value, places: &[Path], random: &mut Random) -> Value {
    for _ in 0..16 {
        if let Some(found) = root.pointer(&pointer(pick::<Path>(random, places)))
            && std::mem::discriminant(found) == std::mem::discriminant(value)
            && found != value
        {
            return found.clone();
        }
    }
    value.clone()
}
