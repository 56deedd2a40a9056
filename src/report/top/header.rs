//! The two lines above every page: what runs and how far it is, and how well.

use std::time::Duration;

use ratatui::style::{Color, Modifier, Style};

use super::model::{Model, Source};
use super::tables::{Cell, bar, of_nodes};
use crate::ps_view::{ago, phase};
use linux::pace::clock;
use monitor::status::{NodeStatus, Phase, ProgressStatus, RankState};
use text::columns::columns;
use text::lang::{Lang, Text};
use text::order::Ordered;
use text::text;

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAR: Style = Style::new().fg(Color::Cyan);

/// The last values, one column each: half of the height is their median.
fn sparkline(values: &[f64], width: usize) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = values.get(values.len().saturating_sub(width)..).unwrap_or_default();
    let most = 2.0 * median(shown).unwrap_or_default();
    let level = |value: &f64| {
        #[expect(clippy::cast_sign_loss, reason = "a time is not negative")]
        let at = (value / most * 7.0).round() as usize;
        LEVELS[at.min(7)]
    };
    shown.iter().filter(|value| value.is_finite()).map(level).collect()
}

/// The median of the last steps.
fn step_time(values: &[f64]) -> Option<f64> {
    const LAST: usize = 15;
    median(values.get(values.len().saturating_sub(LAST)..)?)
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.order_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn took(ms: f64) -> String {
    match ms {
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        ..100_000.0 => format!("{:.1} s", ms / 1000.0),
        _ => Duration::try_from_secs_f64(ms / 1000.0)
            .map_or_else(|_| String::new(), |time| ago(time.as_secs())),
    }
}

fn progress(model: &Model) -> Option<&ProgressStatus> {
    model.nodes.iter().find_map(|node| node.progress.as_ref())
}

/// The program, its phase and its steps.
pub(super) fn title(model: &Model, width: usize) -> Vec<Cell> {
    let lang = model.lang;
    let owner = model.owner.as_ref();
    let owner = owner.map(|user| text!("job of user {user}", "用户 {user} 的任务"));
    let owner = owner.map(|text| (text.get(lang).to_owned(), DIM));
    let Some(node) = model.nodes.first() else {
        let name = match &model.source {
            Source::Socket => "ranklaunch top".to_owned(),
            Source::Http(at) => format!("ranklaunch top {at}"),
        };
        return [(name, BOLD)].into_iter().chain(owner).collect();
    };
    let name = node.run.as_ref().map(|run| {
        [Some(run.program.clone()), run.profile.clone()].into_iter().flatten().collect::<Vec<_>>()
    });
    let name = name.unwrap_or_default().join(" · ");
    let name = if name.is_empty() { "ranklaunch top".to_owned() } else { name };
    let stands = model.nodes.iter().find(|node| node.standstill.is_some());
    let colour = match (stands, node.phase) {
        (Some(_), _) => Color::Red,
        (None, Phase::Running) => Color::Green,
        (None, _) => Color::Yellow,
    };
    let state = (phase(stands.unwrap_or(node), lang).to_owned(), Style::new().fg(colour));
    let mut parts: Vec<Cell> = [(name, BOLD), state].into_iter().chain(owner).collect();
    let Some(progress) = progress(model) else { return parts };
    if let (Some(step), Some(total)) = (progress.step, progress.total) {
        let step = text!("step {step}/{total}", "第 {step}/{total} 步");
        parts.push((step.get(lang).to_owned(), BOLD));
    }
    let Some(done) = progress.done else { return parts };
    let left = progress.remaining_ms.filter(|_| done < 1.0).map(|left| {
        let left = clock(Duration::from_millis(left));
        text!("{left} left", "剩余 {left}").get(lang).to_owned()
    });
    let percent = format!("{:.0} %", done * 100.0);
    let used: usize = parts.iter().map(|(text, _)| columns(text) + 2).sum();
    let after = columns(&percent) + left.as_ref().map_or(0, |left| columns(left) + 2) + 2;
    let room = width.saturating_sub(used + after).min(40);
    if room >= 6 {
        parts.push((bar(done, room), BAR));
    }
    parts.push((percent, Style::new()));
    parts.extend(left.map(|left| (left, Style::new())));
    parts
}

/// Nodes, ranks, the pace and the goodput, and the number of remarks.
pub(super) fn summary(model: &Model, remarks: usize, width: usize) -> Vec<Cell> {
    let lang = model.lang;
    let say = |text: Text| (text.get(lang).to_owned(), Style::new());
    let Some(node) = model.nodes.first() else { return Vec::new() };
    let run = node.run.clone().unwrap_or_default();
    let (nodes, heard, world) = (run.nodes, model.nodes.len(), run.world_size);
    let running: usize = model.nodes.iter().map(|one| one.count(RankState::Running)).sum();
    let up = ago(node.at_ms.saturating_sub(node.started_ms) / 1000);
    let mut parts = Vec::new();
    if nodes > 1 || heard > 1 {
        parts.push(say(text!("{heard}/{nodes} nodes", "{heard}/{nodes} 个节点")));
    }
    parts.push(say(text!("{running}/{world} ranks", "{running}/{world} 个 rank")));
    parts.push(say(text!("up {up}", "已运行 {up}")));
    if run.attempt > 0 {
        let attempt = run.attempt;
        parts.push(say(text!("attempt {attempt}", "第 {attempt} 次尝试")));
    }
    if let Some(goodput) = model.nodes.iter().find_map(|node| node.ledger.goodput()) {
        let percent = (goodput * 100.0).round();
        parts.push((format!("goodput {percent} %"), Style::new()));
    }
    let remarks = match remarks {
        0 => None,
        1 => Some(text!("1 remark: n", "1 条提示：按 n")),
        _ => Some(text!("{remarks} remarks: n", "{remarks} 条提示：按 n")),
    };
    let remarks = remarks.map(|text| (text.get(lang).to_owned(), Style::new().fg(Color::Yellow)));
    let used = |parts: &[Cell]| parts.iter().map(|(text, _)| columns(text) + 2).sum::<usize>();
    let room = |parts: &[Cell]| {
        width
            .saturating_sub(used(parts) + remarks.as_ref().map_or(0, |(text, _)| columns(text) + 2))
    };
    if let Some(times) = progress(model).map(|progress| progress.step_ms.as_slice())
        && let Some(time) = step_time(times)
    {
        let time = took(time);
        let pace = say(text!("{time} a step", "每步 {time}"));
        if room(&parts) > columns(&pace.0) {
            parts.push(pace);
        }
        let most = room(&parts).min(60);
        if most >= 8 {
            parts.push((sparkline(times, most), BAR));
        }
    }
    parts.extend(remarks);
    parts
}

/// The memory, traffic and GPUs of a job's only node.
pub(super) fn of_lone_node(node: &NodeStatus, lang: Lang) -> Vec<Cell> {
    of_nodes(&[node], lang, 10)
        .into_iter()
        .filter(|column| column.is_of_lone_node)
        .filter_map(|column| {
            let (cell, style) = column.cells.into_iter().next()?;
            let title = column.title.get(lang).to_owned();
            (!cell.is_empty()).then_some([(title, DIM), (cell, style)])
        })
        .flatten()
        .collect()
}
