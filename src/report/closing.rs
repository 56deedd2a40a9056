//! The closing block: cause, hint, exit code and last lines of the failed rank, for people.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::ending::Ending;
use super::why_view;
use node::observe::Growth;
use text::lang::{Lang, Text};
use text::style::{Style, paint};
use text::text;
use verdict::{Class, Id, Refusal, Warning, by_importance};

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
    /// Earlier warnings on this console, repeated for a failure.
    pub warnings: &'a [Warning],
    pub lang: Lang,
}

/// The block, ending in a newline.
pub fn block(closing: &Closing<'_>) -> String {
    let Closing { ending, exit_code, world_size, node_rank, lang, .. } = *closing;
    let seconds = format!("{:.1}", closing.elapsed.as_secs_f64());
    let mut out = String::new();
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
        let _ = writeln!(out, "{}", paint(Style::Title, &format!("── {}", title.get(lang))));
        for line in &closing.last_lines {
            let _ = writeln!(out, "   {line}");
        }
    }
    let verdict = ending.text.get(lang);
    if exit_code == 0 && ending.class == Class::Done {
        let title = text!(
            "done: {verdict} (world size {world_size}, node {node_rank}, {seconds} s)",
            "完成：{verdict}（总进程数 {world_size}，节点编号 {node_rank}，用时 {seconds} 秒）"
        );
        let title = format!("── ranklaunch: {}", title.get(lang));
        let _ = writeln!(out, "{}", paint(Style::Good, &title));
    } else {
        match &ending.why {
            Some(why) => out.push_str(&why_view::lines(why, ending, &seconds, lang)),
            None => push_verdict(&mut out, ending, &seconds, lang),
        }
        if !closing.link_errors.is_empty() {
            let list = link_errors(closing.link_errors);
            let line =
                text!("link errors since the start: {list}", "启动以来新增的链路错误：{list}");
            let _ = writeln!(out, "   {}", line.get(lang));
        }
        let id = &ending.id;
        let code = match &ending.why {
            Some(why) => {
                let cause = &why.id;
                text!(
                    "exit code {exit_code} ({id}), cause {cause}",
                    "退出码 {exit_code}（{id}），原因 {cause}"
                )
            }
            None => text!("exit code {exit_code} ({id})", "退出码 {exit_code}（{id}）"),
        };
        let _ = writeln!(out, "   {}", code.get(lang));
        // The sender of a stop knows why the job ended.
        if ending.class != Class::Stopped {
            push_warnings(&mut out, closing.warnings, lang);
        }
    }
    if let Some(folder) = closing.folder {
        let (engine, lines) = (closing.engine, closing.engine_lines);
        let hidden = match lines {
            0 => Text::same(""),
            _ => text!(
                " ({lines} lines of {engine}: engine.log)",
                "（{engine} 的 {lines} 行输出见 engine.log）"
            ),
        };
        let (folder, label) = (folder.display(), text!("logs", "日志"));
        let _ = writeln!(out, "   {}{}{folder}{}", label.get(lang), lang.colon(), hidden.get(lang));
    }
    out
}

/// The warnings of the start in one line each, since they have scrolled away.
fn push_warnings(out: &mut String, warnings: &[Warning], lang: Lang) {
    const SHOWN: usize = 5;
    let ordered = by_importance(warnings);
    for warning in ordered.iter().take(SHOWN) {
        let (label, id) = (text!("warned", "曾警告"), paint(Style::Warn, warning.id.as_str()));
        let (label, colon) = (label.get(lang), lang.colon());
        let _ = writeln!(out, "   {label}{colon}{id}: {}", warning.text.get(lang));
    }
    if let Some(more) = ordered.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let line =
            text!("warned: {more} more, see the start", "曾警告：另有 {more} 条，见启动时的输出");
        let _ = writeln!(out, "   {}", line.get(lang));
    }
}

/// Appends the verdict itself, for an output without a cause.
fn push_verdict(out: &mut String, ending: &Ending, seconds: &str, lang: Lang) {
    let title = why_view::timed(&ending.text, seconds);
    let title = format!("── ranklaunch: {}", title.get(lang));
    let _ = writeln!(out, "{}", paint(Style::Fail, &title));
    let hint = ending.hint.get(lang);
    if !hint.is_empty() {
        let _ = writeln!(out, "   {}{hint}", hint_label(lang));
    }
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
    let title = text!("refused", "拒绝启动");
    let title = paint(Style::Fail, title.get(lang));
    let title = format!("{title}{}{}", lang.colon(), refusal.text.get(lang));
    sentence(&title, &refusal.hint, refusal.id, exit_code, lang)
}

/// The refusal that `run` would give: the first lines of `plan` and `check`.
pub fn would_be_refused(refusal: &Refusal, exit_code: i32, lang: Lang) -> String {
    let title = text!("run would be refused", "run 会拒绝启动");
    let title = paint(Style::Fail, title.get(lang));
    let mut out = format!("{title}{}{}\n", lang.colon(), refusal.text.get(lang));
    out.push_str(&below(&refusal.hint, refusal.id, exit_code, lang));
    out
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
    let mut out = String::new();
    let hint = hint.get(lang);
    if !hint.is_empty() {
        let _ = writeln!(out, "  {}{hint}", hint_label(lang));
    }
    let _ = writeln!(
        out,
        "  {}",
        text!("exit code {exit_code} ({id})", "退出码 {exit_code}（{id}）").get(lang)
    );
    out
}

/// A warning for people, on two lines.
pub fn warning(warning: &Warning, lang: Lang) -> String {
    let label = paint(Style::Warn, text!("warning", "警告").get(lang));
    let mut out = format!("{label}{}{}\n", lang.colon(), warning.text.get(lang));
    let hint = warning.hint.get(lang);
    if !hint.is_empty() {
        let _ = writeln!(out, "  {}{hint}", hint_label(lang));
    }
    out
}

/// `hint: `
pub(crate) fn hint_label(lang: Lang) -> String {
    format!("{}{}", paint(Style::Info, text!("hint", "提示").get(lang)), lang.colon())
}

/// The prefix of every line of our own.
fn name() -> String {
    format!("{} ", paint(Style::Dim, "ranklaunch:"))
}

/// One line of our own while the job runs.
pub fn line(text: &Text, lang: Lang) -> String {
    format!("{}{}\n", name(), text.get(lang))
}
