//! A document for people of both languages.

use serde_json::{Map, Value, json};

use text::lang::Lang;

/// The document with `{"en": "…", "zh": "…"}` in place of each text that differs between the
/// languages.
pub(super) fn both_languages(render: impl Fn(Lang) -> Value) -> Value {
    joined(render(Lang::En), render(Lang::Zh))
}

/// The document in one language, from the document for both.
pub(super) fn one_language(document: &Value, lang: Lang) -> Value {
    match document {
        Value::Object(entries) => match (entries.len(), entries.get("en"), entries.get("zh")) {
            (2, Some(Value::String(en)), Some(Value::String(zh))) => {
                Value::from(if lang == Lang::En { en.as_str() } else { zh })
            }
            _ => {
                let entries =
                    entries.iter().map(|(key, value)| (key.clone(), one_language(value, lang)));
                Value::Object(entries.collect())
            }
        },
        Value::Array(items) => items.iter().map(|item| one_language(item, lang)).collect(),
        plain => plain.clone(),
    }
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
    fn only_differing_text_has_both_languages() {
        let of = |lang| match lang {
            Lang::En => json!({ "id": "x", "rows": [{ "text": "two nodes", "n": 2 }] }),
            Lang::Zh => json!({ "id": "x", "rows": [{ "text": "两个节点", "n": 2 }] }),
        };
        let both = both_languages(of);
        let text = json!({ "en": "two nodes", "zh": "两个节点" });
        assert_eq!(both, json!({ "id": "x", "rows": [{ "text": text, "n": 2 }] }));
        for lang in [Lang::En, Lang::Zh] {
            assert_eq!(one_language(&both, lang), of(lang));
            assert_eq!(one_language(&of(lang), lang), of(lang), "it was in one language");
        }
    }
}
