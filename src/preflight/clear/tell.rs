//! Texts about a process that was found: its identity, the rule that matched, the reason for its
//! fate.

use std::time::Duration;

use super::{Fate, HeldResource, StaleProcess, StaleRule};
use settings::StaleMode;
use text::lang::Text;
use text::text;

impl StaleRule {
    pub fn text(&self) -> Text {
        match self {
            StaleRule::Program => text!("runs this job's script", "运行的正是本任务的脚本"),
            StaleRule::Launcher => text!("launches this job's script", "正在启动本任务的脚本"),
            StaleRule::Marker { job } => {
                let marker = super::MARKER;
                text!("carries {marker} of job {job}", "带有任务 {job} 的 {marker} 标记")
            }
            StaleRule::PartOf { root } => {
                text!("belongs to the process tree of {root}", "属于进程 {root} 的进程树")
            }
            StaleRule::Holds => text!("holds what this job needs", "占用所需资源"),
            StaleRule::Unreadable => text!("cannot be read", "无法读取"),
        }
    }

    /// The id in JSON output.
    pub fn id(&self) -> &'static str {
        match self {
            StaleRule::Program => "program",
            StaleRule::Launcher => "launcher",
            StaleRule::Marker { .. } => "marker",
            StaleRule::PartOf { .. } => "tree",
            StaleRule::Holds => "holds",
            StaleRule::Unreadable => "unreadable",
        }
    }
}

impl HeldResource {
    fn text(self) -> Text {
        match self {
            HeldResource::Gpu(minor) => {
                text!("has /dev/nvidia{minor} open", "打开着 /dev/nvidia{minor}")
            }
            HeldResource::Port(port) => {
                text!("listens on master port {port}", "正在监听 Master 端口 {port}")
            }
        }
    }
}

impl StaleProcess {
    /// Pid, command, age and parent.
    pub fn identity(&self) -> Text {
        let StaleProcess { pid, command, .. } = self;
        let (parent, name) = (self.parent.pid, &self.parent.name);
        let name = if name.is_empty() { String::new() } else { format!(" {name}") };
        match self.age.map(shown_age) {
            Some(Text { en: age, zh: age_zh }) => text!(
                "pid {pid} ({command}; {age} old, parent {parent}{name})",
                "pid {pid}（{command}；已运行 {age_zh}，父进程 {parent}{name}）"
            ),
            None => text!(
                "pid {pid} ({command}; parent {parent}{name})",
                "pid {pid}（{command}；父进程 {parent}{name}）"
            ),
        }
    }

    /// The rule, the resources that the process holds, and the reason for its fate.
    pub fn reason(&self) -> Text {
        self.reason_with(self.holds.iter().map(|held| held.text()).collect())
    }

    /// The same, without the resources.
    pub fn standing(&self) -> Text {
        self.reason_with(Vec::new())
    }

    fn reason_with(&self, holds: Vec<Text>) -> Text {
        let rule = (self.rule != StaleRule::Holds).then(|| self.rule.text());
        let facts: Vec<Text> = rule.into_iter().chain(holds).collect();
        let why = self.why();
        if facts.is_empty() {
            return why.clone();
        }
        let en = facts.iter().map(|text| &*text.en).collect::<Vec<_>>().join(", ");
        let zh = facts.iter().map(|text| &*text.zh).collect::<Vec<_>>().join("，");
        Text::new(format!("{en}: {}", why.en), format!("{zh}：{}", why.zh))
    }

    /// One line, after it has ended.
    pub fn ended(&self) -> Text {
        let Text { en, zh } = self.line(&text!("ended", "已终止"));
        match &self.fate {
            Fate::Forced(_) => text!("{en}; by --stale force", "{zh}；由 --stale force 终止"),
            _ => Text { en, zh },
        }
    }

    /// One line on a process that this mode leaves alone.
    pub fn left_alone(&self, mode: StaleMode) -> Text {
        let Text { en, zh } = self.line(&text!("left alone", "不处理"));
        match (&self.fate, mode) {
            (Fate::Leftover(_), StaleMode::Report) => {
                text!("{en}; --stale kill would end it", "{zh}；--stale kill 会终止它")
            }
            (Fate::Forced(_), StaleMode::Kill | StaleMode::Report) => {
                text!("{en}; --stale force would end it", "{zh}；--stale force 会终止它")
            }
            _ => Text { en, zh },
        }
    }

    fn line(&self, fate: &Text) -> Text {
        let (who, why) = (self.identity(), self.reason());
        Text::new(
            format!("{}: {} {}", fate.en, who.en, why.en),
            format!("{}：{} {}", fate.zh, who.zh, why.zh),
        )
    }
}

/// A rounded age: `40 s`, `12 min`, `3 h`, `4 days`.
pub fn shown_age(age: Duration) -> Text {
    let seconds = age.as_secs();
    match seconds {
        0..120 => text!("{seconds} s", "{seconds} 秒"),
        120..7200 => {
            let minutes = seconds / 60;
            text!("{minutes} min", "{minutes} 分钟")
        }
        7200..172_800 => {
            let hours = seconds / 3600;
            text!("{hours} h", "{hours} 小时")
        }
        _ => {
            let days = seconds / 86_400;
            text!("{days} days", "{days} 天")
        }
    }
}

/// The reason why a process that cannot be read is spared.
pub(super) fn silence() -> Text {
    text!(
        "the kernel gives neither its arguments nor its environment in time, as if its memory were on a dead mount",
        "内核未能及时给出其参数与环境，可能是其内存所在的挂载点已失效"
    )
}
