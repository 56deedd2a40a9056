//! Shows the variables of the platform and their effect: for people and for programs.

use serde_json::{Value, json};

use plan::WeighedEvidence;
use text::columns::{columns, fold, padded};
use text::lang::Lang;
use text::mask::mask_value;
use text::style::{Style, paint};

/// Maximum width of the column of variables; longer ones do not widen it.
const WIDEST: usize = 32;

/// Empty if no variable of a platform is set.
pub fn text(evidence: &[WeighedEvidence], lang: Lang, width: Option<usize>) -> String {
    let say = |en: &'static str, zh: &'static str| match lang {
        Lang::En => en,
        Lang::Zh => zh,
    };
    if evidence.is_empty() {
        return String::new();
    }
    let title = paint(Style::Title, say("variables of the platform", "平台变量"));
    let mut out = format!("\n{title}\n");
    let rows: Vec<[String; 3]> = evidence
        .iter()
        .map(|one| {
            let mark =
                if one.is_used { say("used", "采用") } else { say("not used", "未采用") };
            let shown = shown(one).unwrap_or_else(|| one.platform.clone());
            [mark.to_owned(), shown, one.because.get(lang).to_owned()]
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

pub(super) fn json(evidence: &[WeighedEvidence], lang: Lang) -> Value {
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
fn shown(one: &WeighedEvidence) -> Option<String> {
    Some(format!("{}={}", one.claim.as_ref()?.variable, value(one)?))
}

/// The value without secrets.
fn value(one: &WeighedEvidence) -> Option<String> {
    let claim = one.claim.as_ref()?;
    let value = mask_value(&claim.variable, claim.value.as_ref());
    Some(value.to_string_lossy().into_owned())
}
