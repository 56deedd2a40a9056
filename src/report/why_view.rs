//! The root cause of a failed job for people and for programs: in the closing block and in run.json.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::ending::{Ending, read_log};
use text::lang::{Lang, Text};
use text::ranges::listed;
use text::style::{Style, paint};
use text::text;
use verdict::{Confidence, Id, Why};

/// The lines of the closing block: the event, the remedy, the rank, the place, the evidence, and the
/// fate of the other ranks.
pub(super) fn lines(why: &Why, ending: &Ending, seconds: &str, lang: Lang) -> String {
    let mut out = String::new();
    let title = format!("── ranklaunch: {}", title(why, ending, seconds).get(lang));
    let _ = writeln!(out, "{}", paint(Style::Fail, &title));
    let mut line = |text: Text| {
        let _ = writeln!(out, "   {}", text.get(lang));
    };
    let Text { en, zh } = &why.remedy;
    let (remedy, remedy_zh) = (paint(Style::Info, "remedy"), paint(Style::Info, "处理"));
    line(text!("{remedy}: {en}", "{remedy_zh}：{zh}"));
    if let Some(who) = who(why, ending) {
        line(who);
    }
    // The hint of this ending, beside its cause.
    let Text { en, zh } = &ending.hint;
    if !en.is_empty() && ending.hint != why.remedy && ending.hint != read_log() {
        line(text!("hint: {en}", "提示：{zh}"));
    }
    let Why { log, line: number, evidence, .. } = why;
    if !log.is_empty() {
        line(Text::same(format!("{log}:{number}: {evidence}")));
    }
    if !why.missing.is_empty() {
        line(missing(&why.missing));
    }
    for victims in &why.victims {
        line(others(&victims.ranks, victims.id == why.id, &victims.text));
    }
    for other in &why.also {
        let (id, Text { en, zh }) = (&other.id, &other.text);
        let (at, at_zh) = other.rank.map_or_else(
            || (String::new(), String::new()),
            |rank| (format!(" on rank {rank}"), format!("（rank {rank}）")),
        );
        line(text!(
            "and, independent of it{at}: {en} ({id})",
            "另有与之无关的原因{at_zh}：{zh}（{id}）"
        ));
    }
    out
}

fn title(why: &Why, ending: &Ending, seconds: &str) -> Text {
    // The end of a rank is certain, but the rank that kept the others waiting may be a guess.
    if why.log.is_empty() && ending.id != Id::Hang {
        return timed(&why.text, seconds);
    }
    let Text { en, zh } = &why.text;
    // The time follows in the same sentence.
    let (en, zh) = (en.trim_end_matches('.'), zh.trim_end_matches('。'));
    if why.confidence == Confidence::Certain {
        text!("{en} (after {seconds} s)", "{zh}（已运行 {seconds} 秒）")
    } else {
        text!("{en} (likely; after {seconds} s)", "{zh}（很可能；已运行 {seconds} 秒）")
    }
}

/// A verdict with the time that the job ran.
pub(super) fn timed(verdict: &Text, seconds: &str) -> Text {
    let Text { en, zh } = verdict;
    if en.contains(": ") {
        text!("{en} (after {seconds} s)", "{zh}（已运行 {seconds} 秒）")
    } else {
        text!("{en} after {seconds} s", "{zh}（已运行 {seconds} 秒）")
    }
}

/// The end of the first rank, and the rank and line of the user's code that caused it. None if the
/// ending names the cause itself, and is already the first line.
fn who(why: &Why, ending: &Ending) -> Option<Text> {
    if ending.text == why.text {
        return None;
    }
    let Text { en, zh } = &ending.text;
    let (mut en, mut zh) = (en.to_string(), zh.to_string());
    if let Some(rank) = why.rank.filter(|rank| Some(*rank) != ending.rank) {
        let _ = write!(en, "; the cause is in rank {rank}");
        let _ = write!(zh, "；原因在 rank {rank}");
    }
    if let Some(frame) = &why.frame {
        let _ = write!(en, ", at {frame}");
        let _ = write!(zh, "，位于 {frame}");
    }
    Some(Text::new(en, zh))
}

/// The ranks that are the cause by their absence.
pub(super) fn missing(ranks: &[u32]) -> Text {
    let (noun, ranks) = named(ranks);
    text!(
        "{noun} {ranks} did not reach what the others waited for",
        "rank {ranks} 未到达其他 rank 等待之处"
    )
}

/// The fate of the ranks that are not the cause. `alike`: they report the same as the cause.
pub(super) fn others(ranks: &[u32], alike: bool, what: &Text) -> Text {
    let (noun, ranks) = named(ranks);
    let Text { en, zh } = what;
    if alike {
        text!("{noun} {ranks} waited and say the same", "rank {ranks} 在等待，报告相同")
    } else {
        text!("{noun} {ranks} failed as a consequence: {en}", "rank {ranks} 因此失败：{zh}")
    }
}

/// `ranks`, `0–2, 4–7`
fn named(ranks: &[u32]) -> (&'static str, String) {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    (noun, listed(ranks.iter().copied(), '–'))
}

/// The form in which `explain --format json` shows a cause, with the victims; null if none is known.
pub(super) fn json(ending: &Ending, node: u32, lang: Lang) -> Value {
    let Some(why) = &ending.why else { return Value::Null };
    let victims = why.victims.iter().map(|victims| {
        json!({ "ranks": victims.ranks, "id": victims.id, "text": victims.text.get(lang) })
    });
    let also = why
        .also
        .iter()
        .map(|other| json!({ "id": other.id, "rank": other.rank, "text": other.text.get(lang) }));
    json!({
        "id": why.id,
        "rank": ending.culprit(),
        "node": ending.node.unwrap_or(node),
        "confidence": why.confidence,
        "text": why.text.get(lang),
        "remedy": why.remedy.get(lang),
        "owner": why.owner,
        "retry": why.retry,
        "log": why.log,
        "line": why.line,
        "evidence": why.evidence,
        "frame": why.frame,
        "missing_ranks": why.missing,
        "victims": victims.collect::<Vec<_>>(),
        "also": also.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::style;
    use verdict::Class;

    #[test]
    fn likely_hang_culprit_is_marked_likely() {
        for (id, said) in [
            (Id::Hang, "rank 2 never came (likely; after 7.0 s)"),
            (Id::RankSignal, "rank 2 never came after 7.0 s"),
        ] {
            let text = Text::same("rank 2 never came");
            let why = Why {
                confidence: Confidence::Likely,
                ..Why::without_log(id.as_str(), text.clone(), Text::same(""))
            };
            let ending = Ending {
                code: 1,
                class: Class::Script,
                id,
                rank: None,
                node: None,
                text,
                hint: Text::same(""),
                why: None,
                consequence: false,
            };
            let shown = lines(&why, &ending, "7.0", Lang::En);
            assert!(style::plain(&shown).contains(said), "{shown}");
        }
    }
}
