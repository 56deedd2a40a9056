//! Values of documents that may be anything.

use serde_json::Value;

use super::types::Words;
use text::lang::Text;

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
    }
}

pub(super) fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

pub(super) fn code(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|number| i32::try_from(number).ok())
}

/// A sentence: `"…"`, or `{"en": "…", "zh": "…"}`.
pub(super) fn words(value: &Value) -> Words {
    match (value["en"].as_str(), value["zh"].as_str()) {
        (Some(en), Some(zh)) => Words::Both(Text::new(en.to_owned(), zh.to_owned())),
        _ => Words::One(text(value)),
    }
}

pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Keys and values as text.
pub(super) fn pairs(value: &Value) -> impl Iterator<Item = (String, String)> + '_ {
    let entries = value.as_object().into_iter().flatten();
    entries.filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), text(value)))
}
