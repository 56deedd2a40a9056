//! Single lines: of a rank's output as `ranklaunch logs` and `ranklaunch top` show it, of the current state of a job for
//! the end of a terminal, and of a rank that holds the others back.
//!
//! The most important part of a state comes first, since a narrow window cuts the line.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

use linux::pace::clock;
use logs::{LogLine, Writer};
use monitor::status::{GpuStatus, NodeStatus, NoticeStatus, Phase, ProgressStatus, RankState};
use monitor::watch::{Slow, SlowNews};
use text::escape::printable;
use text::lang::{Lang, Text, bytes};
use text::text;

/// The beginning of each line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineStyle {
    /// Columns of the number of a rank; 0 names no rank, since there is only one.
    pub width: usize,
    pub timestamps: bool,
    pub lang: Lang,
}

impl LineStyle {
    /// The style for ranks up to this one.
    pub fn of(last_rank: u32, timestamps: bool, lang: Lang) -> LineStyle {
        let width = if last_rank == 0 { 0 } else { last_rank.to_string().len() };
        LineStyle { width, timestamps, lang }
    }
}

/// `[r03!] text`, as on the console, without an end of the line.
pub fn log_line(line: &LogLine, style: LineStyle) -> String {
    let mut out = String::with_capacity(line.text.len() + 40);
    if style.timestamps {
        let at = line.at_ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        let _ = write!(out, "{} ", at.map(OffsetDateTime::from).map_or("-".to_owned(), stamp));
    }
    out.push_str(&prefix(line, style.width));
    if let Some(text) = left_out(line.left_out) {
        out.push_str(text.get(style.lang));
    }
    out.push_str(&printable(&line.text).replace('\n', " "));
    out
}

/// The mark of a line that is too long to be shown whole.
fn left_out(bytes: u64) -> Option<Text> {
    match bytes {
        0 => None,
        LogLine::COUNTED.. => Some(text!(
            "[ranklaunch: the first {bytes} bytes or more are left out] ",
            "[ranklaunch：省略了开头至少 {bytes} 字节] "
        )),
        _ => Some(text!(
            "[ranklaunch: the first {bytes} bytes are left out] ",
            "[ranklaunch：省略了开头 {bytes} 字节] "
        )),
    }
}

/// UTC, RFC 3339, always of the same width.
fn stamp(at: OffsetDateTime) -> String {
    let format =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    at.format(format).unwrap_or_default()
}

fn prefix(line: &LogLine, width: usize) -> String {
    let mark = if line.is_err { "!" } else { "" };
    let number = line.number;
    match line.writer {
        Writer::Engine => "[engine] ".to_owned(),
        _ if width == 0 => String::new(),
        Writer::Rank => format!("[r{number:0width$}{mark}] "),
        Writer::Command => format!("[n{number:0width$}{mark}] "),
    }
}

/// The step, the time that has passed, ranks alive, the time of a step and the remaining time, GPUs, how long nothing
/// was printed, and the rate of the logs. During a standstill the step is no news.
pub fn status_line(status: &NodeStatus) -> Text {
    let mut parts = Vec::new();
    parts.extend(status.notice.as_ref().map(|notice| time_left(notice, status.at_ms)));
    if let Some(standstill) = &status.standstill {
        let time = duration(status.at_ms.saturating_sub(standstill.since_ms));
        parts.push(text!("STANDS STILL for {time}", "卡死 {time}"));
    }
    let ran = Text::same(duration(status.at_ms.saturating_sub(status.started_ms)));
    if matches!(status.phase, Phase::Launching | Phase::Stopping) {
        parts.extend([ranks(status), ran]);
    } else {
        let progress = status.progress.as_ref();
        let (step, ran) = (progress.and_then(step), [ran, ranks(status)]);
        if status.standstill.is_none() {
            parts.extend(step.into_iter().chain(ran));
        } else {
            parts.extend(ran.into_iter().chain(step));
        }
        parts.extend(progress.into_iter().flat_map(pace));
    }
    parts.extend(gpus(&status.gpus));
    parts.extend(last_line(status));
    if status.logs.rate >= 1.0 {
        // `as` saturates, and a rate is a positive number.
        #[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
        let rate = bytes(status.logs.rate as u64);
        parts.push(text!("log {rate}/s", "日志 {rate}/s"));
    }
    let of = |one: fn(&Text) -> &str| parts.iter().map(one).collect::<Vec<_>>();
    Text::new(of(|part| &part.en).join(" · "), of(|part| &part.zh).join(" · "))
}

/// `ENDS in 1:42`, by a notice.
pub fn time_left(notice: &NoticeStatus, at_ms: u64) -> Text {
    match notice.deadline_ms {
        Some(deadline) => {
            let left = duration(deadline.saturating_sub(at_ms));
            text!("ENDS in {left}", "将在 {left} 后终止")
        }
        None => text!("ENDS soon", "即将终止"),
    }
}

/// `step 37/60`, or the share, as far as the lines of rank 0 tell it.
fn step(progress: &ProgressStatus) -> Option<Text> {
    if let Some((step, total)) = progress.step.zip(progress.total) {
        let (step, total) = (short_count(step), short_count(total));
        return Some(text!("step {step}/{total}", "第 {step}/{total} 步"));
    }
    let done = progress.done? * 100.0;
    Some(text!("{done:.0} % done", "完成 {done:.0} %"))
}

/// `1.0 s/step` and `0:23 left`.
fn pace(progress: &ProgressStatus) -> Vec<Text> {
    /// Steps whose mean is shown: the first ones are slower than those to come.
    const MEAN: usize = 10;
    let mut parts = Vec::new();
    if progress.step.is_some() {
        let last = progress.step_ms.iter().rev().take(MEAN);
        match last.clone().sum::<f64>() / last.len() as f64 {
            mean @ 1000.0.. => {
                let mean = mean / 1000.0;
                parts.push(text!("{mean:.1} s/step", "{mean:.1} 秒/步"));
            }
            mean @ 0.5.. => parts.push(text!("{mean:.0} ms/step", "{mean:.0} 毫秒/步")),
            _ => {}
        }
    }
    let left = progress.remaining_ms.filter(|left| *left > 0).map(duration);
    parts.extend(left.map(|left| text!("{left} left", "剩余 {left}")));
    parts
}

/// At most ten columns: `9.0e15`.
fn short_count(count: u64) -> String {
    if count < 10_000_000_000 { count.to_string() } else { format!("{:.1e}", count as f64) }
}

/// From two days on in days: `90.2 d`.
fn duration(ms: u64) -> String {
    const DAY: u64 = 86_400_000;
    if ms < 2 * DAY {
        clock(Duration::from_millis(ms))
    } else {
        format!("{:.1} d", ms as f64 / DAY as f64)
    }
}

fn ranks(status: &NodeStatus) -> Text {
    let alive = status.ranks.iter().filter(|rank| rank.state == RankState::Running).count();
    let (planned, nodes) = (status.ranks.len(), status.run.as_ref().map_or(1, |run| run.nodes));
    let lasts = duration(status.at_ms.saturating_sub(status.phase_since_ms));
    match status.phase {
        Phase::Launching => text!(
            "starting {lasts}: {alive} of {planned} ranks have begun",
            "启动中 {lasts}：{alive}/{planned} 个 rank 已开始"
        ),
        Phase::Stopping => text!(
            "stopping {lasts}: {alive} of {planned} ranks live",
            "停止中 {lasts}：{alive}/{planned} 个 rank 存活"
        ),
        _ if nodes > 1 => text!(
            "{alive} of {planned} ranks of this node live",
            "本节点 {alive}/{planned} 个 rank 存活"
        ),
        _ => text!("{alive} of {planned} ranks live", "{alive}/{planned} 个 rank 存活"),
    }
}

/// None while lines come.
fn last_line(status: &NodeStatus) -> Option<Text> {
    Some(match status.ranks.iter().filter_map(|rank| rank.last_line_age_ms).min() {
        None => text!("no line yet", "尚无输出"),
        Some(..2000) => return None,
        Some(age @ ..120_000) => {
            let seconds = age / 1000;
            text!("last line {seconds} s ago", "最近输出：{seconds} 秒前")
        }
        Some(age) => {
            let age = duration(age);
            text!("last line {age} ago", "最近输出：{age} 前")
        }
    })
}

/// The range of the GPUs' utilisation, and the memory of the fullest GPU.
fn gpus(gpus: &[GpuStatus]) -> Option<Text> {
    let used = gpus.iter().filter_map(|gpu| gpu.utilization);
    let (least, most) = (used.clone().min(), used.max());
    let memory = gpus.iter().filter_map(|gpu| gpu.memory_used.zip(gpu.memory_total));
    let memory = memory.max_by_key(|(used, _)| *used).map(|(used, total)| {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        format!("{:.1}/{:.0} GiB", gib(used), gib(total))
    });
    let load = match (least?, most?) {
        (least, most) if least == most => format!("{most}%"),
        (least, most) => format!("{least}–{most}%"),
    };
    Some(match memory {
        Some(memory) => text!("GPU {load} {memory}", "GPU {load} {memory}"),
        None => Text::same(format!("GPU {load}")),
    })
}

/// Maximum number of reasons that a line names; the event has all.
const MOST_REASONS: usize = 2;

/// One line. `node`: the node of the rank, which shows the reasons.
pub fn slow_line(news: &SlowNews, node: u32) -> Text {
    let slow = match news {
        SlowNews::Slow(slow) => slow,
        SlowNews::Over(rank) => {
            return text!(
                "rank {rank} no longer holds the others back",
                "rank {rank} 不再拖慢其他 rank"
            );
        }
    };
    let Slow { rank, group, of, share, median_ms, lost, reasons } = slow;
    let (share, lost) = (share * 100.0, lost * 100.0);
    let (why, why_zh) = match reasons.as_deref() {
        None => (
            format!("node {node} did not answer what it shows"),
            format!("节点 {node} 未答复其上的情况"),
        ),
        Some([]) => (
            format!(
                "node {node} shows nothing abnormal: compare what the rank does between two collectives (ranklaunch stacks)"
            ),
            format!(
                "节点 {node} 上未见异常：请比较该 rank 在两次集合通信之间的工作（ranklaunch stacks）"
            ),
        ),
        Some(reasons) => {
            let words = |of: fn(&Text) -> &str| -> Vec<&str> {
                reasons.iter().take(MOST_REASONS).map(|reason| of(&reason.text)).collect()
            };
            let (en, zh) = (words(|text| text.en.as_ref()), words(|text| text.zh.as_ref()));
            (format!("node {node}: {}", en.join("; ")), format!("节点 {node}：{}", zh.join("；")))
        }
    };
    text!(
        "rank {rank} holds the others of group {group} back: they lose {lost:.0} % of the time, it comes last to {share:.0} % of {of} collectives, by {median_ms:.1} ms in the median; {why}",
        "rank {rank} 拖慢了组 {group} 的其他 rank：损失 {lost:.0} % 的时间，{of} 个集合通信中有 {share:.0} % 最后到达，中位数晚 {median_ms:.1} 毫秒；{why_zh}"
    )
}

/// The event of agent.jsonl: `slow`, or `slow_over`. `node`: the node of the rank.
pub fn slow_event(news: &SlowNews, node: u32) -> Value {
    match news {
        SlowNews::Over(rank) => json!({ "message": "slow_over", "node": node, "rank": rank }),
        SlowNews::Slow(slow) => {
            let mut event = json!({ "message": "slow", "node": node });
            if let (Value::Object(event), Ok(Value::Object(fields))) =
                (&mut event, serde_json::to_value(slow))
            {
                event.extend(fields);
            }
            event
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use monitor::status::{LogStatus, RankStatus, RunStatus, StandstillStatus};
    use text::columns::columns;
    use text::rank::GlobalRank;

    #[test]
    fn lines_look_as_on_the_console() {
        let of = |writer, number, is_err| LogLine {
            at_ms: Some(1_500),
            attempt: 0,
            writer,
            number,
            is_err,
            text: "a\x1b[2Jb".to_owned(),
            left_out: 0,
        };
        let style = LineStyle::of(12, false, Lang::En);
        assert_eq!(log_line(&of(Writer::Rank, 3, true), style), "[r03!] a\\x1b[2Jb");
        assert_eq!(log_line(&of(Writer::Command, 1, false), style), "[n01] a\\x1b[2Jb");
        assert_eq!(log_line(&of(Writer::Engine, 0, true), style), "[engine] a\\x1b[2Jb");
        let alone = LineStyle::of(0, true, Lang::En);
        assert_eq!(
            log_line(&of(Writer::Rank, 0, false), alone),
            "1970-01-01T00:00:01.500Z a\\x1b[2Jb"
        );
        let unknown = LogLine { at_ms: None, ..of(Writer::Rank, 0, false) };
        assert_eq!(log_line(&unknown, alone), "- a\\x1b[2Jb");
        let cut = |left_out| LogLine { left_out, ..of(Writer::Rank, 3, false) };
        assert_eq!(
            log_line(&cut(7), style),
            "[r03] [ranklaunch: the first 7 bytes are left out] a\\x1b[2Jb"
        );
        let uncounted = LineStyle { lang: Lang::Zh, ..style };
        assert_eq!(
            log_line(&cut(LogLine::COUNTED + 1), uncounted),
            "[r03] [ranklaunch：省略了开头至少 67108865 字节] a\\x1b[2Jb"
        );
    }

    fn running() -> NodeStatus {
        let rank = |age| RankStatus {
            state: RankState::Running,
            last_line_age_ms: age,
            ..RankStatus::default()
        };
        let gpu = |load, used: u64| GpuStatus {
            utilization: Some(load),
            memory_used: Some(used << 30),
            memory_total: Some(80 << 30),
            ..GpuStatus::default()
        };
        NodeStatus {
            at_ms: 1_000_000,
            started_ms: 247_000,
            phase: Phase::Running,
            run: Some(RunStatus { nodes: 1, ..RunStatus::default() }),
            ranks: vec![rank(Some(90_000)), rank(Some(12_345)), rank(None)],
            gpus: vec![gpu(63, 41), gpu(94, 40)],
            logs: LogStatus { rate: 2048.0, ..LogStatus::default() },
            ..NodeStatus::default()
        }
    }

    #[test]
    fn status_line_shows_live_ranks_and_output_age() {
        let line = status_line(&running());
        assert_eq!(
            line.en,
            "12:33 · 3 of 3 ranks live · GPU 63–94% 41.0/80 GiB · last line 12 s ago · log 2 KiB/s"
        );
        assert_eq!(
            line.zh,
            "12:33 · 3/3 个 rank 存活 · GPU 63–94% 41.0/80 GiB · 最近输出：12 秒前 · 日志 2 KiB/s"
        );
    }

    #[test]
    fn essential_status_fits_80_columns() {
        let mut status = running();
        status.standstill =
            Some(StandstillStatus { since_ms: 640_000, ..StandstillStatus::default() });
        let words = status_line(&status);
        assert!(
            words.en.starts_with("STANDS STILL for 6:00 · 12:33 · 3 of 3 ranks live"),
            "{}",
            words.en
        );
        status.standstill = None;
        for (phase, begins) in [
            (Phase::Launching, "starting 16:40: 3 of 3 ranks have begun · 12:33"),
            (Phase::Stopping, "stopping 16:40: 3 of 3 ranks live · 12:33"),
        ] {
            status.phase = phase;
            let words = status_line(&status);
            assert!(words.en.starts_with(begins), "{}", words.en);
        }
        assert!(status_line(&NodeStatus::default()).en.contains("no line yet"));
    }

    fn at_step(step: u64, total: u64, ms: f64, left: u64) -> Option<ProgressStatus> {
        Some(ProgressStatus {
            step: Some(step),
            total: Some(total),
            step_ms: [90_000.0].into_iter().chain([ms; 10]).collect(),
            remaining_ms: Some(left),
            ..ProgressStatus::default()
        })
    }

    proptest! {
        /// A narrow terminal cuts the end of the line, and leaves the last column free.
        #[test]
        fn step_time_and_ranks_fit_80_columns(
            (step, total) in (0..=64_u32, 0..=64_u32).prop_flat_map(|(step, total)| {
                (0..=u64::MAX.unbounded_shr(step), 0..=u64::MAX.unbounded_shr(total))
            }),
            ran in 0..100_u64 * 366 * 86_400_000, stood in proptest::option::of(0..100_000_000_u64),
            ranks in 0..10_000_usize, nodes in 1..3_u32, pace in 0.0..1e9, left in any::<u64>(),
        ) {
            let mut status = running();
            (status.at_ms, status.started_ms) = (1_795_000_000_000 + ran, 1_795_000_000_000);
            status.run = Some(RunStatus { nodes, ..RunStatus::default() });
            status.ranks = vec![status.ranks[0].clone(); ranks];
            status.progress = at_step(step, total, pace, left);
            let since = |stood| StandstillStatus {
                since_ms: status.at_ms - stood,
                ..StandstillStatus::default()
            };
            status.standstill = stood.map(since);
            let line = status_line(&status);
            let place = if stood.is_some() { 3 } else { 0 };
            for (words, begins) in [(&line.en, "step "), (&line.zh, "第 ")] {
                let parts: Vec<_> = words.split(" · ").collect();
                prop_assert!(columns(&parts[..3].join(" · ")) < 80, "{}", words);
                prop_assert!(parts[place].starts_with(begins), "{}", words);
                prop_assert!(parts[2].contains(&ranks.to_string()), "{}", words);
            }
        }
    }

    #[test]
    fn steps_have_pace_and_remaining_time() {
        let mut status = running();
        let long = 90 * 86_400_000 + 20_000_000;
        for (progress, words) in [
            (
                at_step(37, 60, 1040.0, 23_000),
                "step 37/60 · 12:33 · 3 of 3 ranks live · 1.0 s/step · 0:23 left · GPU",
            ),
            (
                at_step(1, 2, 3.2, 172_799_000),
                "step 1/2 · 12:33 · 3 of 3 ranks live · 3 ms/step · 47:59:59 left · GPU",
            ),
            (
                at_step(1_234_002, 12_345_678, 0.4, long),
                "step 1234002/12345678 · 12:33 · 3 of 3 ranks live · 90.2 d left · GPU",
            ),
            (at_step(9, 1 << 53, 0.0, 0), "step 9/9.0e15 · 12:33 · 3 of 3 ranks live · GPU"),
        ] {
            status.progress = progress;
            let line = status_line(&status).en;
            assert!(line.starts_with(words), "{line}");
        }
        let share = ProgressStatus { done: Some(0.421), ..ProgressStatus::default() };
        status.progress = Some(share);
        assert!(status_line(&status).en.starts_with("42 % done · 12:33"));
        status.progress = Some(ProgressStatus::default());
        assert!(status_line(&status).en.starts_with("12:33 · 3 of 3"));
    }

    #[test]
    fn slow_rank_has_a_sentence_and_an_event() {
        let slow = Slow {
            rank: GlobalRank(3),
            group: "default_pg".to_owned(),
            of: 200,
            share: 0.97,
            median_ms: 20.4,
            lost: 0.31,
            reasons: Some(Vec::new()),
        };
        let news = SlowNews::Slow(slow.clone());
        let text = slow_line(&news, 1);
        assert!(text.en.starts_with("rank 3 holds the others of group default_pg back: they lose 31 % of the time, it comes last to 97 % of 200 collectives, by 20.4 ms in the median; node 1 shows nothing"), "{}", text.en);
        assert!(text.zh.contains("拖慢") && text.zh.contains("中位数晚 20.4 毫秒"), "{}", text.zh);
        let event = slow_event(&news, 1);
        assert_eq!(
            (&event["message"], &event["node"], &event["rank"]),
            (&json!("slow"), &json!(1), &json!(3))
        );
        assert_eq!((&event["lost"], &event["reasons"]), (&json!(0.31), &json!([])));
        let unknown = slow_line(&SlowNews::Slow(Slow { reasons: None, ..slow }), 1);
        assert!(unknown.en.ends_with("; node 1 did not answer what it shows"), "{}", unknown.en);
    }
}
