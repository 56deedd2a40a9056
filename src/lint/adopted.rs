//! A start-up script or a manifest as `adopt` reads it, with the findings of the rules at their lines.

use super::{LintSeverity, Manifest, lint};
use crate::launches::Profiles;
use adopt::Adopted;
use text::lang::Text;
use text::text;

/// What replaces a file. None: no line of it is a launch.
pub fn adopted(name: &str, text: &str, profiles: Profiles) -> Option<Adopted> {
    let adopted = match is_yaml(name, text) {
        true => Adopted::of_manifest(name, text)?,
        false => Adopted::of_script(name, text)?,
    };
    Some(judged(adopted, name, text, profiles))
}

/// What replaces a command line. None: it is no launch.
pub fn adopted_line(words: &[String], profiles: Profiles) -> Option<Adopted> {
    let (adopted, line) = Adopted::of_command(words)?;
    Some(judged(adopted, "line.sh", &line, profiles))
}

fn judged(mut adopted: Adopted, name: &str, text: &str, profiles: Profiles) -> Adopted {
    let manifest = Manifest { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    for found in lint(&[manifest], None, profiles).findings {
        if found.importance == LintSeverity::Info {
            continue;
        }
        let (Text { en, zh }, hint) = (&found.text, &found.hint);
        let (hint, hint_zh, id) = (&hint.en, &hint.zh, found.id);
        adopted.add_wrong(found.line, text!("{en}; {hint} ({id})", "{zh}；{hint_zh}（{id}）"));
    }
    adopted
}

fn is_yaml(name: &str, text: &str) -> bool {
    let end = name.rsplit_once('.').map(|(_, end)| end).unwrap_or_default();
    let has_key = |key: &str| text.lines().any(|line| line.starts_with(key));
    matches!(end, "yaml" | "yml") || has_key("apiVersion:") || has_key("services:")
}
