//! Syntax tree of a configuration, common to the text format and JSON.

use crate::error::{Result, ServeError};
use serde_json::Value;

/// Fields of a message in order; a repeated field may occur several times.
pub type Fields = Vec<(String, Node)>;

/// Value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Number, Boolean or enumeration name.
    Word(String),
    /// Quoted text.
    Text(String),
    /// Repeated values.
    List(Vec<Node>),
    /// Nested message, or JSON object.
    Message(Fields),
}

impl Node {
    /// Returns a word or a text, which JSON has where the text format has words.
    pub fn word(&self) -> Option<&str> {
        match self {
            Node::Word(word) | Node::Text(word) => Some(word),
            Node::List(_) | Node::Message(_) => None,
        }
    }
}

/// Parses JSON; `serde_json` limits the nesting depth.
pub fn from_json(text: &str) -> Result<Fields> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| ServeError::repository(format!("the model configuration is not valid JSON: {error}")))?;
    let found = match from_value(value) {
        Some(Node::Message(fields)) => return Ok(fields),
        Some(Node::Word(content)) => content,
        Some(Node::Text(_)) => "a string".to_owned(),
        Some(Node::List(_)) => "an array".to_owned(),
        None => "null".to_owned(),
    };
    Err(ServeError::repository(format!("expected a model configuration as a JSON object, found {found}")))
}

fn from_value(value: Value) -> Option<Node> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => Node::Word(value.to_string()),
        Value::Number(value) => Node::Word(value.to_string()),
        Value::String(text) => Node::Text(text),
        Value::Array(values) => Node::List(values.into_iter().filter_map(from_value).collect()),
        Value::Object(fields) => {
            Node::Message(fields.into_iter().filter_map(|(name, value)| Some((name, from_value(value)?))).collect())
        }
    })
}
