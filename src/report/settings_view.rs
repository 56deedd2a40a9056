//! Shows the keys that the layers of settings set, each with its value and the place that decided it.

use std::fmt::Write as _;

use serde_json::{Value, json};

use settings::{Settings, Stated};
use text::columns::{columns, fold, padded};
use text::lang::Lang;
use text::style::{Style, paint};
use text::text;

/// The keys for people, one per line; empty if no layer sets one.
pub fn text(settings: &Settings, width: Option<usize>) -> String {
    /// A longer name or value does not move those of the others.
    const WIDEST: usize = 32;
    let lang = settings.lang;
    let mut out = String::new();
    if settings.stated.is_empty() {
        return out;
    }
    let _ = writeln!(out, "{}", paint(Style::Title, text!("settings", "设置").get(lang)));
    let rows: Vec<[String; 3]> = settings.stated.iter().map(|one| row(one, lang)).collect();
    let wide = |at: usize| {
        let cells = rows.iter().map(|row| columns(&row[at]));
        cells.filter(|wide| *wide <= WIDEST).max().unwrap_or(0)
    };
    let (names, values) = (wide(0), wide(1));
    for [key, value, source] in &rows {
        let line = format!("  {}  {}  {source}", padded(key, names), padded(value, values));
        fold(&mut out, &line, names + 4, width);
    }
    out
}

fn row(stated: &Stated, lang: Lang) -> [String; 3] {
    const SHOWN: usize = 120;
    let Stated { key, value, source, locked, .. } = stated;
    let mut value: String = value.escape_debug().to_string().replace("\\\"", "\"");
    if let Some((end, _)) = value.char_indices().nth(SHOWN) {
        value.truncate(end);
        value.push('…');
    }
    let lock = match locked {
        true => text!(", locked", "，已锁定").get(lang).to_owned(),
        false => String::new(),
    };
    [key.clone(), value, paint(Style::Dim, &format!("[{source}{lock}]"))]
}

/// The keys for programs, and the platform's file; nothing without one.
pub fn json(settings: &Settings) -> Vec<(&'static str, Value)> {
    let Some(site) = &settings.site else { return Vec::new() };
    let of_key = |one: &Stated| {
        json!({
            "key": one.key,
            "value": one.value,
            "layer": one.source.layer(),
            "source": one.source.to_string(),
            "locked": one.locked,
        })
    };
    let keys: Vec<Value> = settings.stated.iter().map(of_key).collect();
    vec![
        ("site", json!({ "file": site.file, "locked": site.locked })),
        ("settings", Value::from(keys)),
    ]
}
