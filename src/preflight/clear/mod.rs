//! Stale processes: finds the processes that an earlier run left behind, and ends them.
//!
//! Takes a [`Request`]: the job's program, its GPUs, its master port. Gives the processes
//! [`StaleProcess`], each with the rule that matched and its [`Fate`], and a [`ClearReport`] or a
//! refusal that names those that cannot be ended.
//!
//! The rule. A running script may be a healthy job, and `nohup` leaves exactly such processes:
//! orphaned but healthy. So by default ([`StaleMode::Kill`]) only proof ends a process, with all
//! that it started:
//! - it carries our marker ([`MARKER`]) of a run whose agent is dead; the agent is identified by
//!   pid and start time, since pids are reused. A run that goes on may have inherited such a
//!   marker, so it does not count for a living agent, nor for what is above or below that agent;
//! - or it runs this job's script, as our user and in our container, has a variable that only a
//!   launcher sets for its ranks, and that launcher is dead: PID 1 or a subreaper adopted it.
//!   [`orphan`] contains the proof. Variables that anyone sets (LOCAL_RANK) prove nothing.
//!
//! Everything else that runs the script, has a GPU of the job open or holds the master port is
//! only reported. `--stale force` ([`StaleMode::Force`]) ends everything that runs the script,
//! even under a living launcher, with that launcher and its tree, as `pkill -f SCRIPT` would.
//!
//! A process that gives no answer in time ([`reading`]) is left alone and named, since it may be any.
//!
//! Never ended: ourselves and our ancestors, processes of another user or container, those that
//! began after us, PID 1, an interactive shell, and processes that only name the script
//! (editors, `grep`, `sh -c`). Arguments are read by their structure, never as text.

mod find;
mod kill;
mod orphan;
mod reading;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

pub use find::find;
pub use kill::clear;

use settings::StaleMode;
use settings::contract::Claim;
use text::lang::Text;
use text::text;

pub use linux::procfs::JOB_MARK as MARKER;

/// Describes the job whose stale processes are sought, and the devices and ports that it needs.
#[derive(Debug, Clone)]
pub struct Request {
    /// The job's script, absolute, links resolved.
    pub script: Option<PathBuf>,
    /// The job's module, for `-m NAME`.
    pub module: Option<String>,
    /// N of the `/dev/nvidiaN` that this job will use; empty if unknown.
    pub gpu_minors: Vec<u32>,
    /// Pids that the driver names as users of these GPUs. Some may be of another namespace, so
    /// the open devices of each are read.
    pub gpu_users: Vec<i32>,
    /// The port that this node must bind; None on the other nodes.
    pub master_port: Option<u16>,
    /// On a platform that starts a launcher per rank: the variables that all these launchers
    /// share. A process below one of them belongs to this job.
    pub siblings: Vec<Claim>,
    /// Processes of which an earlier scan could read nothing.
    pub unreadable: BTreeSet<i32>,
    pub mode: StaleMode,
    /// If set, only this process with its ancestors and descendants; all others are left alone.
    pub only: Option<i32>,
    /// Time between TERM and KILL.
    pub term_wait: Duration,
    /// Time between KILL and giving up.
    pub kill_wait: Duration,
}

impl Request {
    /// An empty request with the usual waits: 10 s after TERM, 20 s after KILL.
    pub fn new(mode: StaleMode) -> Request {
        Request {
            script: None,
            module: None,
            gpu_minors: Vec::new(),
            gpu_users: Vec::new(),
            master_port: None,
            siblings: Vec::new(),
            unreadable: BTreeSet::new(),
            mode,
            only: None,
            term_wait: Duration::from_secs(10),
            kill_wait: Duration::from_secs(20),
        }
    }
}

/// A process that a rule matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleProcess {
    pub pid: i32,
    /// Together with the pid, the identity of the process.
    pub start_ticks: u64,
    /// Arguments with secrets masked.
    pub command: String,
    /// Time since it began; None if /proc/uptime cannot be read.
    pub age: Option<Duration>,
    pub parent: Parent,
    pub rule: StaleRule,
    /// Resources of this job that it holds.
    pub holds: Vec<HeldResource>,
    pub fate: Fate,
    /// An ancestor shares its fate, so one line for that ancestor is enough.
    pub inner: bool,
}

/// The parent of a process, as it is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// 0: outside of this PID namespace, as after `docker exec`.
    pub pid: i32,
    /// The kernel's short name, escaped.
    pub name: String,
}

/// Something that this job needs exclusively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldResource {
    /// The process has `/dev/nvidiaN` of this job open.
    Gpu(u32),
    /// The process listens on the master port.
    Port(u16),
}

/// The reason why a process matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StaleRule {
    /// The process runs the job's script or module.
    Program,
    /// The process is a launcher of the job's script or module.
    Launcher,
    /// The process carries the marker of a ranklaunch job.
    Marker { job: String },
    /// The process is below or in the session of a process that is ended, or it starts one.
    PartOf { root: i32 },
    /// The process holds something that the job needs; nothing else is known about it.
    Holds,
    /// The kernel gives neither the arguments nor the environment of the process: a thread of it waits for a page of a
    /// dead mount.
    Unreadable,
}

/// The mode that ends a process, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Proven leftover: ended by `kill` and `force`.
    Leftover(Text),
    /// Perhaps a healthy job: ended only by `force`.
    Forced(Text),
    /// No mode ends the process.
    Spared(Text),
}

impl StaleProcess {
    /// Whether this mode ends it.
    pub fn is_ended_by(&self, mode: StaleMode) -> bool {
        match (&self.fate, mode) {
            (_, StaleMode::Report | StaleMode::Off) | (Fate::Spared(_), _) => false,
            (Fate::Leftover(_), StaleMode::Kill | StaleMode::Force) => true,
            (Fate::Forced(_), mode) => mode == StaleMode::Force,
        }
    }

    pub fn holds_port(&self) -> bool {
        self.holds.iter().any(|held| matches!(held, HeldResource::Port(_)))
    }

    pub fn holds_gpu(&self) -> bool {
        self.holds.iter().any(|held| matches!(held, HeldResource::Gpu(_)))
    }

    pub fn why(&self) -> &Text {
        let (Fate::Leftover(why) | Fate::Forced(why) | Fate::Spared(why)) = &self.fate;
        why
    }

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

/// Result of the clearing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClearReport {
    pub found: Vec<StaleProcess>,
    /// Pids that have ended.
    pub ended: Vec<i32>,
    /// Time from the first signal to the last exit.
    pub waited: Duration,
}

impl StaleRule {
    pub fn text(&self) -> Text {
        match self {
            StaleRule::Program => text!("runs this job's script", "运行的正是本任务的脚本"),
            StaleRule::Launcher => text!("launches this job's script", "正在启动本任务的脚本"),
            StaleRule::Marker { job } => {
                let marker = MARKER;
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
