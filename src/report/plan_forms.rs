//! A plan, or the reason why there is none, as JSON and as commands of a shell; the variables of the platform and their
//! effect.
//!
//! Takes a [`Plan`] or a [`Refusal`]; gives text and JSON values without secrets.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::both_languages::one_language;
use plan::{Decision, EngineOptions, Plan, WeighedEvidence, argv, exec_argv};
use text::columns::{columns, fold, padded};
use text::lang::{Lang, Text};
use text::letters::is_hidden;
use text::mask::{MASK, mask_args, mask_value};
use text::style::{Style, paint};
use verdict::Refusal;

/// The plan as JSON. `shim` is the path of this executable.
pub fn json(plan: &Plan, lang: Lang, shim: &Path) -> Value {
    let words = |argv: &[OsString]| -> Vec<String> {
        mask_args(argv).iter().map(|word| word.to_string_lossy().into_owned()).collect()
    };
    let env: Map<String, Value> = masked_env(plan)
        .into_iter()
        .map(|(name, value)| (name, Value::from(value.to_string_lossy().into_owned())))
        .collect();
    let decisions: Vec<Value> = plan
        .decisions
        .iter()
        .map(|decision| {
            json!({
                "what": decision.what,
                "value": shown(decision),
                "because": decision.because.get(lang),
                "source": decision.source,
            })
        })
        .collect();
    json!({
        "schema": 1,
        "scope": "local",
        "assumed": plan.decision("assumed").map(|decision| &decision.value),
        "membership": plan.membership,
        "nproc_per_node": plan.nproc_per_node,
        "world_size": plan.world_size,
        "gpus": plan.gpus,
        "layout": plan.layout,
        "network": plan.network,
        "env": env,
        "env_remove": plan.env_remove,
        "working_directory": plan.chdir,
        "engine": plan.engine,
        "argv": words(&argv(plan)),
        "exec_argv": words(&exec_argv(plan, shim, &EngineOptions::default())),
        "decisions": decisions,
        "warnings": one_language(&json!(plan.warnings), lang),
    })
}

/// A refusal for programs.
pub fn refusal_json(refusal: &Refusal, lang: Lang) -> Value {
    outlook_json(None, Some(refusal), &[], lang, Path::new(""))
}

/// The plan as far as it could be made. `refused` gives the reason if `run` would refuse it,
/// `evidence` the variables of the platform.
pub fn outlook_json(
    plan: Option<&Plan>,
    refusal: Option<&Refusal>,
    evidence: &[WeighedEvidence],
    lang: Lang,
    shim: &Path,
) -> Value {
    let mut document = json!({ "schema": 1 });
    if let Some(refusal) = refusal {
        document["refused"] = refused(refusal, lang);
    }
    if let (Some(Value::Object(plan)), Value::Object(document)) =
        (plan.map(|plan| json(plan, lang, shim)), &mut document)
    {
        document.extend(plan);
    }
    if !evidence.is_empty() {
        document["evidence"] = evidence_json(evidence, lang);
    }
    document
}

/// The value of a decision without secrets.
pub(super) fn shown(decision: &Decision) -> String {
    mask_value(&decision.what, decision.value.as_ref()).to_string_lossy().into_owned()
}

/// A refusal as a JSON value.
pub(super) fn refused(refusal: &Refusal, lang: Lang) -> Value {
    json!({
        "id": refusal.id,
        "text": refusal.text.get(lang),
        "hint": refusal.hint.get(lang),
    })
}

/// Lines for `sh`: variables to unset, variables to export, the command.
///
/// Masked values are named in a comment, since the user has to fill them in.
pub fn shell(plan: &Plan) -> String {
    let mut out = String::new();
    let (plain, masked) = (argv(plan), mask_args(&argv(plan)));
    let env = masked_env(plan);
    let hides = |(name, value): &(String, OsString)| plan.env.get(name) != Some(value);
    if masked != plain || env.iter().any(hides) {
        let _ = writeln!(out, "# values shown as {MASK} are secrets: fill them in");
    }
    if let Some(folder) = &plan.chdir {
        let _ = writeln!(out, "cd {}", quoted(folder.as_os_str()));
    }
    if !plan.env_remove.is_empty() {
        let names: Vec<&str> =
            plan.env_remove.iter().map(String::as_str).filter(|name| is_name(name)).collect();
        let _ = writeln!(out, "unset {}", names.join(" "));
    }
    for (name, value) in env.into_iter().filter(|(name, _)| is_name(name)) {
        let _ = writeln!(out, "export {name}={}", quoted(&value));
    }
    let words: Vec<String> = masked.iter().map(|word| quoted(word)).collect();
    let _ = writeln!(out, "{}", words.join(" "));
    out
}

/// A word quoted for a POSIX shell. Bytes that are not UTF-8, and letters that a terminal would obey or
/// not show, are written by printf, so that the output is text and reads as what it is.
pub(super) fn quoted(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=,+@%".contains(byte);
    // A leading `=` or `~` is special in some shells.
    if !bytes.is_empty() && bytes.iter().all(is_plain) && !bytes.starts_with(b"=") {
        return word.to_string_lossy().into_owned();
    }
    let mut out = String::new();
    let is_hidden = |letter: char| is_hidden(letter) && !matches!(letter, '\n' | '\t');
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while !rest.is_empty() {
            let plain = rest.find(is_hidden).unwrap_or(rest.len());
            let (shown, after) = rest.split_at(plain);
            if !shown.is_empty() {
                let _ = write!(out, "'{}'", shown.replace('\'', r"'\''"));
            }
            let hidden = after.find(|letter| !is_hidden(letter)).unwrap_or(after.len());
            let (hidden, after) = after.split_at(hidden);
            push_octal(&mut out, hidden.as_bytes());
            rest = after;
        }
        push_octal(&mut out, chunk.invalid());
    }
    if out.is_empty() { "''".to_owned() } else { out }
}

fn push_octal(out: &mut String, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    out.push_str("\"$(printf '");
    for byte in bytes {
        let _ = write!(out, "\\{byte:03o}");
    }
    out.push_str("')\"");
}

/// Whether a shell can export this name.
fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The variables of the ranks without secrets.
pub(super) fn masked_env(plan: &Plan) -> Vec<(String, OsString)> {
    plan.env.iter().map(|(name, value)| (name.clone(), mask_value(name, value))).collect()
}

/// Maximum width of the column of variables; longer ones do not widen it.
const WIDEST: usize = 32;

/// Empty if no variable of a platform is set.
pub fn evidence_text(evidence: &[WeighedEvidence], lang: Lang, width: Option<usize>) -> String {
    let say = |en: &'static str, zh: &'static str| Text::new(en, zh).get(lang).to_owned();
    if evidence.is_empty() {
        return String::new();
    }
    let title = paint(Style::Title, &say("variables of the platform", "平台变量"));
    let mut out = format!("\n{title}\n");
    let rows: Vec<[String; 3]> = evidence
        .iter()
        .map(|one| {
            let mark =
                if one.is_used { say("used", "采用") } else { say("not used", "未采用") };
            let shown = assignment(one).unwrap_or_else(|| one.platform.clone());
            [mark, shown, one.because.get(lang).to_owned()]
        })
        .collect();
    let widest =
        |at: usize| rows.iter().map(|row| columns(&row[at])).max().unwrap_or(0).min(WIDEST);
    let (marks, names) = (widest(0), widest(1));
    for [mark, name, because] in &rows {
        let indent = 2 + marks + 2 + names + 2;
        let because = paint(Style::Dim, because);
        let line = format!("  {}  {}  {because}", padded(mark, marks), padded(name, names));
        fold(&mut out, &line, indent, width);
    }
    out
}

fn evidence_json(evidence: &[WeighedEvidence], lang: Lang) -> Value {
    let all = evidence.iter().map(|one| {
        json!({
            "platform": one.platform,
            "variable": one.claim.as_ref().map(|claim| &claim.variable),
            "value": value(one),
            "field": one.field,
            "reading": one.reading,
            "used": one.is_used,
            "because": one.because.get(lang),
        })
    });
    all.collect()
}

/// `NAME=VALUE`.
fn assignment(one: &WeighedEvidence) -> Option<String> {
    Some(format!("{}={}", one.claim.as_ref()?.variable, value(one)?))
}

/// The value without secrets.
fn value(one: &WeighedEvidence) -> Option<String> {
    let claim = one.claim.as_ref()?;
    let value = mask_value(&claim.variable, claim.value.as_ref());
    Some(value.to_string_lossy().into_owned())
}
