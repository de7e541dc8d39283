//! Validation of JSON values against a schema, for the subset of JSON Schema that the project uses. An unknown keyword
//! is an error, so that no constraint is silently ignored.

use serde_json::Value;

/// Returns the schema `docs/schema/<name>.json`.
///
/// # Panics
/// If the schema cannot be read or is not JSON.
pub fn schema(name: &str) -> Value {
    let path = super::workspace().join(format!("docs/schema/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Checks that `value` matches `schema`.
///
/// # Errors
/// If `value` violates `schema`; the message names the first violation.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    check_at(schema, schema, value, "")
}

// The recursion depth equals the nesting depth of the value, which JSON readers bound.
fn check_at(root: &Value, schema: &Value, value: &Value, location: &str) -> Result<(), String> {
    let keywords = schema.as_object().ok_or_else(|| format!("expected a schema, found {schema}"))?;
    let violation = |problem: String| {
        Err(format!("{}: {problem}, found {value}", if location.is_empty() { "/" } else { location }))
    };
    let child_path = |key: &str| format!("{location}/{key}");
    for (keyword, expected) in keywords {
        match (keyword.as_str(), value) {
            ("$schema" | "title" | "description" | "$defs", _) => {}
            ("$ref", _) => {
                let pointer = expected.as_str().and_then(|path| path.strip_prefix('#')).unwrap_or("/nowhere");
                let target =
                    root.pointer(pointer).ok_or_else(|| format!("expected {expected} in the schema, found none"))?;
                check_at(root, target, value, location)?;
            }
            ("allOf", _) => {
                for schema in items(expected) {
                    check_at(root, schema, value, location)?;
                }
            }
            ("oneOf", _) => {
                let matching =
                    items(expected).iter().filter(|schema| check_at(root, schema, value, location).is_ok()).count();
                if matching != 1 {
                    return violation(format!("expected exactly one matching alternative instead of {matching}"));
                }
            }
            ("type", _) => {
                let names = if expected.is_array() { items(expected).to_vec() } else { vec![expected.clone()] };
                if !names.iter().filter_map(Value::as_str).any(|name| has_type(value, name)) {
                    return violation(format!("expected {expected}"));
                }
            }
            ("const", _) if value != expected => return violation(format!("expected {expected}")),
            ("enum", _) if !items(expected).contains(value) => return violation(format!("expected one of {expected}")),
            ("minimum", Value::Number(number)) if number.as_f64() < expected.as_f64() => {
                return violation(format!("expected at least {expected}"));
            }
            ("maximum", Value::Number(number)) if number.as_f64() > expected.as_f64() => {
                return violation(format!("expected at most {expected}"));
            }
            ("minItems", Value::Array(list)) if (list.len() as u64) < expected.as_u64().unwrap_or(0) => {
                return violation(format!("expected at least {expected} items"));
            }
            ("maxItems", Value::Array(list)) if list.len() as u64 > expected.as_u64().unwrap_or(0) => {
                return violation(format!("expected at most {expected} items"));
            }
            ("items", Value::Array(list)) => {
                for (index, item) in list.iter().enumerate() {
                    check_at(root, expected, item, &child_path(&index.to_string()))?;
                }
            }
            ("required", Value::Object(fields)) => {
                for key in items(expected).iter().filter_map(Value::as_str) {
                    if !fields.contains_key(key) {
                        return violation(format!("expected the key \"{key}\""));
                    }
                }
            }
            ("properties", Value::Object(fields)) => {
                for (key, schema) in expected.as_object().into_iter().flatten() {
                    if let Some(field) = fields.get(key) {
                        check_at(root, schema, field, &child_path(key))?;
                    }
                }
            }
            ("additionalProperties", Value::Object(fields)) => {
                for (key, field) in fields {
                    if schema["properties"].get(key).is_none() {
                        check_at(root, expected, field, &child_path(key))?;
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

fn has_type(value: &Value, name: &str) -> bool {
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
