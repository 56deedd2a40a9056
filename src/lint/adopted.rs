//! A start-up script or a manifest as `adopt` reads it, with the findings of the rules at their lines.

use super::{LintSeverity, Manifest, lint};
use crate::launches::Profiles;
use adopt::{Adopted, InputKind};
use text::lang::Text;
use text::text;

/// What replaces a file. `files` gives the text of a file of accelerate that it names, or why there is none.
///
/// # Errors
/// No line of it is a launch.
pub fn adopted(
    name: &str,
    text: &str,
    files: &dyn Fn(&str) -> Result<String, Text>,
    profiles: Profiles,
) -> Result<Adopted, Text> {
    let adopted = Adopted::of(name, text, files)?;
    // A launch line makes a script of a file that nothing else tells.
    let is_script = InputKind::of(name, text) == InputKind::Unknown;
    Ok(judged(adopted, if is_script { "line.sh" } else { name }, text, profiles))
}

/// What replaces a command line.
///
/// # Errors
/// It is no launch.
pub fn adopted_line(
    words: &[String],
    files: &dyn Fn(&str) -> Result<String, Text>,
    profiles: Profiles,
) -> Result<Adopted, Text> {
    let (adopted, line) = Adopted::of_command(words, files)?;
    Ok(judged(adopted, "line.sh", &line, profiles))
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
