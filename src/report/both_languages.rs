//! A document for people of both languages.

use serde_json::{Map, Value, json};

use crate::lang::Lang;

/// The document with `{"en": "…", "zh": "…"}` in place of each text that the languages tell apart.
pub(super) fn document(render: impl Fn(Lang) -> Value) -> Value {
    joined(render(Lang::En), render(Lang::Zh))
}

fn joined(en: Value, zh: Value) -> Value {
    match (en, zh) {
        (Value::Object(en), Value::Object(mut zh)) => {
            let entries = en.into_iter().map(|(key, value)| {
                let other = zh.remove(&key).unwrap_or_else(|| value.clone());
                (key, joined(value, other))
            });
            Value::Object(entries.collect::<Map<_, _>>())
        }
        (Value::Array(en), Value::Array(zh)) if en.len() == zh.len() => {
            Value::Array(en.into_iter().zip(zh).map(|(en, zh)| joined(en, zh)).collect())
        }
        (Value::String(en), Value::String(zh)) if en != zh => json!({ "en": en, "zh": zh }),
        (en, _) => en,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_there_twice() {
        let both = document(|lang| match lang {
            Lang::En => json!({ "id": "x", "rows": [{ "text": "two nodes", "n": 2 }] }),
            Lang::Zh => json!({ "id": "x", "rows": [{ "text": "两个节点", "n": 2 }] }),
        });
        let text = json!({ "en": "two nodes", "zh": "两个节点" });
        assert_eq!(both, json!({ "id": "x", "rows": [{ "text": text, "n": 2 }] }));
    }
}
