//! Validation of a JSON value against a JSON schema, for the subset of the language that the project's schemas use. An
//! unknown keyword is an error, so that every statement of a schema is checked.

use serde_json::Value;

/// Returns the schema `docs/schema/<name>.json`.
///
/// # Panics
/// If it cannot be read.
pub fn schema(name: &str) -> Value {
    let path = super::workspace().join(format!("docs/schema/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Checks that `value` matches `schema`.
///
/// # Errors
/// The first position that does not match.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    holds(schema, schema, value, "")
}

// Recursion depth is that of the value, which JSON readers bound.
fn holds(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let keywords = schema.as_object().ok_or_else(|| format!("expected a schema, found {schema}"))?;
    let wrong = |what: String| Err(format!("{}: {what}: {value}", if at.is_empty() { "/" } else { at }));
    let inside = |key: &str| format!("{at}/{key}");
    for (keyword, wanted) in keywords {
        match (keyword.as_str(), value) {
            ("$schema" | "title" | "description" | "$defs", _) => {}
            ("$ref", _) => {
                let pointer = wanted.as_str().and_then(|path| path.strip_prefix('#')).unwrap_or("/nowhere");
                let target = root.pointer(pointer).ok_or_else(|| format!("expected {wanted} in the schema"))?;
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
                    return wrong(format!("expected one matching alternative, found {matching}"));
                }
            }
            ("type", _) => {
                let names = if wanted.is_array() { items(wanted).to_vec() } else { vec![wanted.clone()] };
                if !names.iter().filter_map(Value::as_str).any(|name| is_a(value, name)) {
                    return wrong(format!("expected {wanted}"));
                }
            }
            ("const", _) if value != wanted => return wrong(format!("expected {wanted}")),
            ("enum", _) if !items(wanted).contains(value) => return wrong(format!("expected one of {wanted}")),
            ("minimum", Value::Number(number)) if number.as_f64() < wanted.as_f64() => {
                return wrong(format!("expected at least {wanted}"));
            }
            ("maximum", Value::Number(number)) if number.as_f64() > wanted.as_f64() => {
                return wrong(format!("expected at most {wanted}"));
            }
            ("minItems", Value::Array(list)) if (list.len() as u64) < wanted.as_u64().unwrap_or(0) => {
                return wrong(format!("expected at least {wanted} items"));
            }
            ("maxItems", Value::Array(list)) if list.len() as u64 > wanted.as_u64().unwrap_or(0) => {
                return wrong(format!("expected at most {wanted} items"));
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
            (other, _) => return Err(format!("unsupported schema keyword \"{other}\"")),
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
