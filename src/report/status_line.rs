//! The current state of a job, in one line for the end of a terminal.
//!
//! Takes a [`NodeStatus`]; gives a text whose most important part comes first, since a narrow
//! window cuts it.

use std::time::Duration;

use linux::pace::clock;
use monitor::status::{GpuStatus, NodeStatus, Phase, RankState};
use text::lang::{Text, bytes};
use text::text;

/// Ranks alive, the age of the last line, GPUs, the rate of the logs, and the time.
pub fn line(status: &NodeStatus) -> Text {
    let mut parts = vec![ranks(status)];
    if let Some(standstill) = &status.standstill {
        let time = time(status.at_ms.saturating_sub(standstill.since_ms));
        parts.insert(0, text!("STANDS STILL for {time}", "卡死 {time}"));
    }
    parts.push(last_line(status));
    parts.extend(gpus(&status.gpus));
    if status.logs.rate >= 1.0 {
        // `as` saturates, and a rate is a positive number.
        #[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
        let rate = bytes(status.logs.rate as u64);
        parts.push(text!("log {rate}/s", "日志 {rate}/s"));
    }
    let ran = time(status.at_ms.saturating_sub(status.started_ms));
    parts.push(Text::same(ran));
    let of = |one: fn(&Text) -> &str| parts.iter().map(one).collect::<Vec<_>>();
    Text::new(of(|part| &part.en).join(" · "), of(|part| &part.zh).join(" · "))
}

fn time(ms: u64) -> String {
    clock(Duration::from_millis(ms))
}

fn ranks(status: &NodeStatus) -> Text {
    let alive = status.ranks.iter().filter(|rank| rank.state == RankState::Running).count();
    let (planned, nodes) = (status.ranks.len(), status.run.as_ref().map_or(1, |run| run.nodes));
    let lasts = time(status.at_ms.saturating_sub(status.phase_since_ms));
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

fn last_line(status: &NodeStatus) -> Text {
    match status.ranks.iter().filter_map(|rank| rank.last_line_age_ms).min() {
        None => text!("no line yet", "尚无输出"),
        Some(..2000) => text!("last line now", "最近输出：刚刚"),
        Some(age @ ..120_000) => {
            let seconds = age / 1000;
            text!("last line {seconds} s ago", "最近输出：{seconds} 秒前")
        }
        Some(age) => {
            let age = time(age);
            text!("last line {age} ago", "最近输出：{age} 前")
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use monitor::status::{LogStatus, RankStatus, RunStatus, StandstillStatus};
    use text::columns::columns;
    use text::lang::Lang;

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
        let line = line(&running());
        assert_eq!(
            line.en,
            "3 of 3 ranks live · last line 12 s ago · GPU 63–94% 41.0/80 GiB · log 2 KiB/s · 12:33"
        );
        assert_eq!(
            line.zh,
            "3/3 个 rank 存活 · 最近输出：12 秒前 · GPU 63–94% 41.0/80 GiB · 日志 2 KiB/s · 12:33"
        );
    }

    #[test]
    fn essential_status_fits_80_columns() {
        let mut status = running();
        status.standstill =
            Some(StandstillStatus { since_ms: 640_000, ..StandstillStatus::default() });
        let words = line(&status);
        assert!(words.en.starts_with("STANDS STILL for 6:00 · 3 of 3 ranks live"), "{}", words.en);
        status.standstill = None;
        for (phase, begins) in [
            (Phase::Launching, "starting 16:40: 3 of 3 ranks have begun · last line"),
            (Phase::Stopping, "stopping 16:40: 3 of 3 ranks live · last line"),
        ] {
            status.phase = phase;
            let words = line(&status);
            assert!(words.en.starts_with(begins), "{}", words.en);
            let before_gpus = words.zh.split(" · GPU").next().unwrap_or_default();
            assert!(
                columns(before_gpus) < 80 && !before_gpus.is_empty(),
                "{}",
                words.get(Lang::Zh)
            );
        }
        assert!(line(&NodeStatus::default()).en.contains("no line yet"));
    }
}
