//! The closing block: cause, hint, exit code and last lines of the failed rank, for people.
//!
//! The root cause of a failed job is shown to people here, and to programs in run.json.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::both_languages::one_language;
use super::ending::{Ending, read_log};
use super::saved::Saved;
use node::observe::Growth;
use text::lang::{Lang, Text};
use text::ranges::listed;
use text::style::{Style, paint, plain};
use text::text;
use verdict::{Class, Confidence, Id, Refusal, Warning, Why, by_importance};

/// Lines of a text for people in one language.
pub(super) struct Lines {
    pub(super) out: String,
    pub(super) lang: Lang,
}

impl Lines {
    pub(super) fn new(lang: Lang) -> Lines {
        Lines { out: String::new(), lang }
    }

    /// Appends a line.
    pub(super) fn line(&mut self, indent: &str, text: &Text) {
        let _ = writeln!(self.out, "{indent}{}", text.get(self.lang));
    }

    /// Appends the first line of a block: `── ranklaunch: text`.
    pub(super) fn title(&mut self, style: Style, text: &Text) {
        let title = paint(style, &format!("── ranklaunch: {}", text.get(self.lang)));
        let _ = writeln!(self.out, "{title}");
    }

    /// Appends `label: words`.
    pub(super) fn labelled(&mut self, indent: &str, label: &Text, words: &str) {
        let (label, colon) = (label.get(self.lang), self.lang.colon());
        let _ = writeln!(self.out, "{indent}{label}{colon}{words}");
    }
}

/// Contents of the closing block beside the verdict.
#[derive(Debug)]
pub struct Closing<'a> {
    pub ending: &'a Ending,
    pub exit_code: i32,
    /// Time from the start of the launcher to the end of the job, or to the beginning of its stop.
    pub elapsed: Duration,
    pub world_size: u32,
    pub node_rank: u32,
    /// Last lines of the failed rank, oldest first.
    pub last_lines: Vec<String>,
    /// The engine's name, and the number of its lines that are only in its log.
    pub engine: &'a str,
    pub engine_lines: u64,
    /// Error counters of HCAs that grew while the job ran.
    pub link_errors: &'a [Growth],
    pub folder: Option<&'a Path>,
    /// What a job that did not end by itself has saved; None: nobody looked.
    pub saved: Option<&'a Saved>,
    /// Earlier warnings on this console, repeated for a failure.
    pub warnings: &'a [Warning],
    pub lang: Lang,
}

/// The block, ending in a newline.
pub fn block(closing: &Closing<'_>) -> String {
    let Closing { ending, node_rank, lang, .. } = *closing;
    let mut lines = Lines::new(lang);
    if !closing.last_lines.is_empty() {
        let count = closing.last_lines.len();
        let title = match ending.culprit() {
            Some(rank) => {
                text!("last {count} lines of rank {rank}:", "rank {rank} 的最后 {count} 行输出：")
            }
            None if ending.blames_engine() => {
                text!("last {count} lines of the engine:", "启动引擎的最后 {count} 行输出：")
            }
            // Engine `command` has one process per node and no ranks.
            None => {
                let node = ending.node.unwrap_or(node_rank);
                text!(
                    "last {count} lines of the command on node {node}:",
                    "节点 {node} 上命令的最后 {count} 行输出："
                )
            }
        };
        let title = paint(Style::Title, &format!("── {}", title.get(lang)));
        let _ = writeln!(lines.out, "{title}");
        for line in &closing.last_lines {
            let _ = writeln!(lines.out, "   {line}");
        }
    }
    push_verdict(&mut lines, closing);
    if let Some(folder) = closing.folder {
        let (engine, count) = (closing.engine, closing.engine_lines);
        let hidden = match count {
            0 => Text::same(""),
            _ => text!(
                " ({count} lines of {engine}: engine.log)",
                "（{engine} 的 {count} 行输出见 engine.log）"
            ),
        };
        let words = format!("{}{}", folder.display(), hidden.get(lang));
        lines.labelled("   ", &text!("logs", "日志"), &words);
    }
    lines.out
}

/// The lines of the block that are the verdict, for run.json.
pub fn verdict(closing: &Closing<'_>) -> Text {
    both(|lang| {
        let mut lines = Lines::new(lang);
        push_verdict(&mut lines, closing);
        lines.out
    })
}

/// Words for the console in both languages, without colours.
pub fn both(words: impl Fn(Lang) -> String) -> Text {
    let of = |lang| plain(words(lang).trim_end()).into_owned();
    Text::new(of(Lang::En), of(Lang::Zh))
}

fn push_verdict(lines: &mut Lines, closing: &Closing<'_>) {
    let Closing { ending, exit_code, world_size, node_rank, .. } = *closing;
    let seconds = format!("{:.1}", closing.elapsed.as_secs_f64());
    if exit_code == 0 && ending.class == Class::Done {
        let verdict = ending.text.get(lines.lang);
        let title = text!(
            "done: {verdict} (world size {world_size}, node {node_rank}, {seconds} s)",
            "完成：{verdict}（总进程数 {world_size}，节点编号 {node_rank}，用时 {seconds} 秒）"
        );
        lines.title(Style::Good, &title);
        return;
    }
    match &ending.why {
        Some(why) => push_cause(lines, why, ending, &seconds),
        None => {
            lines.title(Style::Fail, &timed(&ending.text, &seconds));
            push_hint(lines, "   ", &ending.hint);
        }
    }
    if !closing.link_errors.is_empty() {
        let list = link_errors(closing.link_errors);
        let line = text!("link errors since the start: {list}", "启动以来新增的链路错误：{list}");
        lines.line("   ", &line);
    }
    if let Some(saved) = closing.saved {
        lines.labelled("   ", &text!("saved", "已保存"), saved.words().get(lines.lang));
    }
    let id = ending.id;
    let code = match &ending.why {
        Some(why) => {
            let cause = &why.id;
            text!(
                "exit code {exit_code} ({id}), cause {cause}",
                "退出码 {exit_code}（{id}），原因 {cause}"
            )
        }
        None => code_and_id(exit_code, id),
    };
    lines.line("   ", &code);
    // The sender of a stop knows why the job ended.
    if ending.class != Class::Stopped {
        push_warnings(lines, closing.warnings);
    }
}

/// The warnings of the start in one line each, since they have scrolled away.
fn push_warnings(lines: &mut Lines, warnings: &[Warning]) {
    const SHOWN: usize = 5;
    let ordered = by_importance(warnings);
    for warning in ordered.iter().take(SHOWN) {
        let id = paint(Style::Warn, warning.id.as_str());
        let words = format!("{id}: {}", warning.text.get(lines.lang));
        lines.labelled("   ", &text!("warned", "曾警告"), &words);
    }
    if let Some(more) = ordered.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let line =
            text!("warned: {more} more, see the start", "曾警告：另有 {more} 条，见启动时的输出");
        lines.line("   ", &line);
    }
}

/// Appends the hint, if there is one.
fn push_hint(lines: &mut Lines, indent: &str, hint: &Text) {
    if !hint.get(lines.lang).is_empty() {
        let label = paint(Style::Info, text!("hint", "提示").get(lines.lang));
        lines.labelled(indent, &Text::same(label), hint.get(lines.lang));
    }
}

fn code_and_id(exit_code: i32, id: Id) -> Text {
    text!("exit code {exit_code} ({id})", "退出码 {exit_code}（{id}）")
}

/// `mlx5_0:1 out_of_sequence +40, mlx5_1:1 link_downed +1`, largest first.
fn link_errors(grown: &[Growth]) -> String {
    const SHOWN: usize = 6;
    let each = |one: &Growth| format!("{} {} +{}", one.port, one.counter, one.by);
    let shown: Vec<String> = grown.iter().take(SHOWN).map(each).collect();
    let more = if grown.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A refusal for people: the problem, one hint, the exit code.
pub fn refusal(refusal: &Refusal, exit_code: i32, lang: Lang) -> String {
    let title = labelled(Style::Fail, &text!("refused", "拒绝启动"), &refusal.text, lang);
    sentence(&title, &refusal.hint, refusal.id, exit_code, lang)
}

/// `refused: text`
fn labelled(style: Style, label: &Text, text: &Text, lang: Lang) -> String {
    format!("{}{}{}", paint(style, label.get(lang)), lang.colon(), text.get(lang))
}

/// The refusal that `run` would give: the first lines of `plan` and `check`.
pub fn would_be_refused(refusal: &Refusal, exit_code: i32, lang: Lang) -> String {
    let label = text!("run would be refused", "run 会拒绝启动");
    let title = labelled(Style::Fail, &label, &refusal.text, lang);
    format!("{title}\n{}", below(&refusal.hint, refusal.id, exit_code, lang))
}

/// The text of a `wait` that timed out. This is not a refusal.
pub fn gave_up(text: &Text, hint: &Text, id: Id, exit_code: i32, lang: Lang) -> String {
    let said = text.get(lang);
    let title = text!("gave up: {said}", "放弃等待：{said}");
    sentence(title.get(lang), hint, id, exit_code, lang)
}

/// An ending before any rank started, for people.
pub fn ended_early(ending: &Ending, exit_code: i32, lang: Lang) -> String {
    sentence(ending.text.get(lang), &ending.hint, ending.id, exit_code, lang)
}

fn sentence(title: &str, hint: &Text, id: Id, exit_code: i32, lang: Lang) -> String {
    format!("{}{title}\n{}", name(), below(hint, id, exit_code, lang))
}

/// The hint and the code, indented.
fn below(hint: &Text, id: Id, exit_code: i32, lang: Lang) -> String {
    let mut lines = Lines::new(lang);
    push_hint(&mut lines, "  ", hint);
    lines.line("  ", &code_and_id(exit_code, id));
    lines.out
}

/// A warning for people, on two lines.
pub fn warning(warning: &Warning, lang: Lang) -> String {
    let title = labelled(Style::Warn, &text!("warning", "警告"), &warning.text, lang);
    let mut lines = Lines { out: format!("{title}\n"), lang };
    push_hint(&mut lines, "  ", &warning.hint);
    lines.out
}

/// The prefix of every line of our own.
fn name() -> String {
    format!("{} ", paint(Style::Dim, "ranklaunch:"))
}

/// One line of our own while the job runs.
pub fn line(text: &Text, lang: Lang) -> String {
    format!("{}{}\n", name(), text.get(lang))
}

/// The lines of the closing block: the event, the remedy, the rank, the place, the evidence, and the
/// fate of the other ranks.
fn push_cause(lines: &mut Lines, why: &Why, ending: &Ending, seconds: &str) {
    lines.title(Style::Fail, &title(why, ending, seconds));
    let mut line = |text: Text| lines.line("   ", &text);
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
        let at = |rank: u32| (format!(" on rank {rank}"), format!("（rank {rank}）"));
        let (at, at_zh) = other.rank.map(at).unwrap_or_default();
        line(text!(
            "and, independent of it{at}: {en} ({id})",
            "另有与之无关的原因{at_zh}：{zh}（{id}）"
        ));
    }
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
fn timed(verdict: &Text, seconds: &str) -> Text {
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
pub(super) fn cause_json(ending: &Ending, node: u32, lang: Lang) -> Value {
    let Some(why) = &ending.why else { return Value::Null };
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
        "victims": one_language(&json!(why.victims), lang),
        "also": also.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mut shown = Lines::new(Lang::En);
            push_cause(&mut shown, &why, &ending, "7.0");
            assert!(plain(&shown.out).contains(said), "{}", shown.out);
        }
    }
}
