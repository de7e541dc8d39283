//! Holds a JSON value against a JSON schema: as much of the language as the project's own schemas use. A keyword that is not
//! known here is an error, so that no schema says something that nothing checks.

use serde_json::Value;

/// The schema `docs/schema/<name>.json`.
///
/// # Panics
/// When it cannot be read.
pub fn schema(name: &str) -> Value {
    let path = super::workspace().join(format!("docs/schema/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Returns true if `value` is as `schema` says.
///
/// # Errors
/// The first place where it is not.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    holds(schema, schema, value, "")
}

// As deep as the value nests, which a reader of JSON bounds.
fn holds(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let keywords = schema.as_object().ok_or_else(|| format!("{schema} is no schema"))?;
    let wrong = |what: String| Err(format!("{}: {what}: {value}", if at.is_empty() { "/" } else { at }));
    let inside = |key: &str| format!("{at}/{key}");
    for (keyword, wanted) in keywords {
        match (keyword.as_str(), value) {
            ("$schema" | "title" | "description" | "$defs", _) => {}
            ("$ref", _) => {
                let pointer = wanted.as_str().and_then(|path| path.strip_prefix('#')).unwrap_or("/nowhere");
                let target = root.pointer(pointer).ok_or_else(|| format!("no {wanted} in the schema"))?;
                holds(root, target, value, at)?;
            }
            ("allOf", _) => {
                for schema in items(wanted) {
                    holds(root, schema, value, at)?;
                }
            }
            ("oneOf", _) => {
                let matching = items(wanted).iter().filter(|schema| holds(root, schema, value, at).is_ok()).count();
                if matching != 1 {
                    return wrong(format!("{matching} of the forms that it may have fit"));
                }
            }
            ("type", _) => {
                let names = if wanted.is_array() { items(wanted).to_vec() } else { vec![wanted.clone()] };
                if !names.iter().filter_map(Value::as_str).any(|name| is_a(value, name)) {
                    return wrong(format!("{wanted} is wanted"));
                }
            }
            ("const", _) if value != wanted => return wrong(format!("{wanted} is wanted")),
            ("enum", _) if !items(wanted).contains(value) => return wrong(format!("one of {wanted} is wanted")),
            ("minimum", Value::Number(number)) if number.as_f64() < wanted.as_f64() => {
                return wrong(format!("at least {wanted} is wanted"));
            }
            ("maximum", Value::Number(number)) if number.as_f64() > wanted.as_f64() => {
                return wrong(format!("at most {wanted} is wanted"));
            }
            ("minItems", Value::Array(list)) if (list.len() as u64) < wanted.as_u64().unwrap_or(0) => {
                return wrong(format!("at least {wanted} items are wanted"));
            }
            ("maxItems", Value::Array(list)) if list.len() as u64 > wanted.as_u64().unwrap_or(0) => {
                return wrong(format!("at most {wanted} items are wanted"));
            }
            ("items", Value::Array(list)) => {
                for (index, item) in list.iter().enumerate() {
                    holds(root, wanted, item, &inside(&index.to_string()))?;
                }
            }
            ("required", Value::Object(fields)) => {
                for key in items(wanted).iter().filter_map(Value::as_str) {
                    if !fields.contains_key(key) {
                        return wrong(format!("\"{key}\" is missing"));
                    }
                }
            }
            ("properties", Value::Object(fields)) => {
                for (key, schema) in wanted.as_object().into_iter().flatten() {
                    if let Some(field) = fields.get(key) {
                        holds(root, schema, field, &inside(key))?;
                    }
                }
            }
            ("additionalProperties", Value::Object(fields)) => {
                for (key, field) in fields {
                    if schema["properties"].get(key).is_none() {
                        holds(root, wanted, field, &inside(key))?;
                    }
                }
            }
            (
                "const"
                | "enum"
                | "minimum"
                | "maximum"
                | "minItems"
                | "maxItems"
                | "items"
                | "required"
                | "properties"
                | "additionalProperties",
                _,
            ) => {}
            (other, _) => return Err(format!("the schema says \"{other}\", which nothing checks")),
        }
    }
    Ok(())
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn is_a(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
