//! Renders `ranklaunch ps`: the jobs that run here with their nodes, and the runs that have ended.
//! Renders `ranklaunch clean` as well: stale processes, and the effect of each mode on them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use linux::deadline::millis;
use monitor::socket::About;
use monitor::status::{NodeStatus, Phase, RankState};
use preflight::clear::{HeldResource, StaleProcess, shown_age};
use settings::StaleMode;
use text::columns::table;
use text::escape::{in_one_line, printable};
use text::lang::{Lang, Text, bytes};
use text::text;

/// A job with a process here.
#[derive(Debug, Default)]
pub struct ShownJob {
    /// Empty before the nodes agree on one.
    pub run_id: String,
    /// The agent here, in this PID namespace.
    pub pid: Option<u32>,
    /// The agent in its own PID namespace, if it has no pid in this one.
    pub pid_inside: Option<u32>,
    /// The owner, if that is another user.
    pub user: Option<String>,
    /// The owner, by the kernel.
    pub owner: Option<String>,
    /// None if its agent says nothing, or is of version 0.2.0.
    pub about: Option<About>,
    /// Whether it was started in the folder of the command, or writes into the log folder there.
    pub is_here: bool,
    pub nodes: Vec<NodeStatus>,
    pub all_nodes: u32,
    pub unanswered: Vec<(Text, Text)>,
    /// The reason why the job shows nothing.
    pub problem: Option<Text>,
}

/// A run in a log folder.
#[derive(Debug)]
pub struct EndedRun {
    pub run_id: String,
    pub folder: PathBuf,
    /// The run is alive on another node, or in another container.
    pub lives: bool,
    pub bytes: u64,
    /// Folders of launchers that are here.
    pub launchers: usize,
    pub started: Option<String>,
    pub ended: Option<String>,
    pub code: Option<i64>,
    pub verdict: Option<String>,
    pub cause: Option<String>,
}

/// `ended`: None if they were not requested.
pub fn text(jobs: &[ShownJob], ended: Option<&[EndedRun]>, lang: Lang) -> String {
    let mut out = String::new();
    if jobs.is_empty() {
        let none = text!("no job of ranklaunch runs here", "此处没有正在运行的 ranklaunch 任务");
        let _ = writeln!(out, "{}", none.get(lang));
    }
    for job in jobs {
        push_job(&mut out, job, lang);
    }
    let Some(ended) = ended else { return out };
    if ended.is_empty() {
        let none = text!("no earlier run in the log folder", "日志目录中没有以前的运行");
        let _ = writeln!(out, "{}", none.get(lang));
        return out;
    }
    let head = text!("earlier runs:", "以前的运行：");
    let _ = writeln!(out, "{}", head.get(lang));
    table(&mut out, ended.iter().map(|run| row_of_ended(run, lang)).collect());
    out
}

fn push_job(out: &mut String, job: &ShownJob, lang: Lang) {
    let Text { en, zh } = match (job.pid, job.pid_inside) {
        (Some(pid), _) => Text::same(pid.to_string()),
        (None, Some(pid)) => {
            text!("{pid} of its own PID namespace", "其自身 PID 命名空间中的 {pid}")
        }
        (None, None) => Text::same("?"),
    };
    let first = job.nodes.first();
    let attempt = first.and_then(|node| node.run.as_ref()).map_or(0, |run| run.attempt);
    let named = match job.run_id.as_str() {
        // The agent of the job did not answer.
        "" if job.problem.is_some() && job.nodes.is_empty() => {
            text!("a job of unknown run id (agent {en})", "运行 ID 未知的任务（agent {zh}）")
        }
        "" if first.is_some_and(|node| node.phase == Phase::Parked) => {
            text!("a spare without a seat (agent {en})", "没有席位的备用节点（agent {zh}）")
        }
        "" => {
            text!("a job without a run id yet (agent {en})", "尚无运行 ID 的任务（agent {zh}）")
        }
        id => text!("run {id} (agent {en})", "运行 {id}（agent {zh}）"),
    };
    let more = match attempt {
        0 => Text::same(""),
        attempt => text!(", attempt {attempt}", "，第 {attempt} 次尝试"),
    };
    let owner = match &job.user {
        None => Text::same(""),
        Some(user) => text!(", of user {user}", "，属于用户 {user}"),
    };
    let _ = writeln!(
        out,
        "{}{}{}",
        printable(named.get(lang)),
        more.get(lang),
        printable(owner.get(lang))
    );
    if let Some(problem) = &job.problem {
        let _ = writeln!(out, "  {}", printable(problem.get(lang)));
    }
    if let Some(about) = &job.about {
        let _ = writeln!(out, "  {}", in_one_line(described(job, about).get(lang)));
    }
    table(out, job.nodes.iter().map(|node| row_of_node(node, lang)).collect());
    for (who, why) in &job.unanswered {
        let line = format!("  {}{}{}", who.get(lang), lang.colon(), why.get(lang));
        let _ = writeln!(out, "{}", printable(&line));
    }
}

/// `program train.py, profile wan22, user root (0), folder /work (this one), for 3m`
fn described(job: &ShownJob, about: &About) -> Text {
    let About { program, profile, folder, started_ms } = about;
    let mut parts = vec![text!("program {program}", "程序 {program}")];
    parts.extend(profile.as_ref().map(|profile| text!("profile {profile}", "配置文件 {profile}")));
    parts.extend(job.owner.as_ref().map(|user| text!("user {user}", "用户 {user}")));
    parts.push(match job.is_here {
        true => text!("folder {folder} (this one)", "目录 {folder}（当前目录）"),
        false => text!("folder {folder}", "目录 {folder}"),
    });
    let age = ago(elapsed(*started_ms));
    parts.push(text!("for {age}", "已运行 {age}"));
    let join = |of: fn(&Text) -> &str, by: &str| parts.iter().map(of).collect::<Vec<_>>().join(by);
    Text::new(join(|part| &part.en, ", "), join(|part| &part.zh, "，"))
}

/// Seconds since a time in milliseconds since 1970.
fn elapsed(started_ms: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(now).saturating_sub(started_ms) / 1000
}

fn row_of_node(node: &NodeStatus, lang: Lang) -> Vec<String> {
    let number = node.run.as_ref().map(|run| run.node);
    let number = number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let place = text!("node {number}", "节点 {number}");
    let (running, all) = (node.count(RankState::Running), node.ranks.len());
    let ranks = text!("{running} of {all} ranks", "{running}/{all} 个 rank");
    let since = node.at_ms.saturating_sub(node.phase_since_ms) / 1000;
    let cpu: f64 = node.ranks.iter().filter_map(|rank| rank.cpu_percent).sum();
    // Another node may send any values.
    let memory = node.ranks.iter().filter_map(|rank| rank.memory).fold(0, u64::saturating_add);
    let (cpu, memory) = match memory {
        0 => Default::default(),
        memory => (format!("CPU {cpu:.0} %"), bytes(memory)),
    };
    let mut row = vec![
        place.get(lang).to_owned(),
        node.host.clone(),
        phase(node, lang).to_owned(),
        ago(since),
        ranks.get(lang).to_owned(),
        cpu,
        memory,
    ];
    row.extend(gpu_use(node).map(|mean| format!("GPU {mean} %")));
    row
}

/// The mean use of its GPUs in percent, as far as it is known.
pub fn gpu_use(node: &NodeStatus) -> Option<u64> {
    let used = || node.gpus.iter().filter_map(|gpu| gpu.utilization).map(u64::from);
    used().sum::<u64>().checked_div(used().count() as u64)
}

/// `3s`, `12m`, `5h`, `2d`
pub fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The phase of a launch, for people.
pub fn phase(node: &NodeStatus, lang: Lang) -> &'static str {
    if node.standstill.is_some() {
        return match lang {
            Lang::En => "stands still",
            Lang::Zh => "卡死",
        };
    }
    match (node.phase, lang) {
        (phase, Lang::En) => phase.name(),
        (Phase::Starting, _) => "启动中",
        (Phase::Observing, _) => "检查节点",
        (Phase::Planning, _) => "制定计划",
        (Phase::Agreeing, _) => "等待节点",
        (Phase::Parked, _) => "备用待命",
        (Phase::Clearing, _) => "清理残留",
        (Phase::Launching, _) => "启动 rank",
        (Phase::Running, _) => "运行中",
        (Phase::Stopping, _) => "停止中",
        (Phase::Judging, _) => "判断原因",
        (Phase::Finishing, _) => "写入文件",
        (Phase::Pausing, _) => "等待重启",
        (Phase::Ended, _) => "已结束",
    }
}

fn row_of_ended(run: &EndedRun, lang: Lang) -> Vec<String> {
    let when = run.started.as_deref().map(|at| at.get(..19).unwrap_or(at).replace('T', " "));
    let end = match (run.code, run.lives) {
        (Some(code), false) => text!("exit code {code}", "退出码 {code}").get(lang).to_owned(),
        (_, true) => text!("lives elsewhere", "正在别处运行").get(lang).to_owned(),
        (None, false) => text!("cut off", "被中断").get(lang).to_owned(),
    };
    let verdict = run.verdict.clone().unwrap_or_default();
    let cause = run.cause.clone().filter(|cause| *cause != verdict);
    let why = cause.map_or_else(|| verdict.clone(), |cause| format!("{verdict}: {cause}"));
    vec![
        printable(&run.run_id).into_owned(),
        when.unwrap_or_default(),
        end,
        printable(&why).into_owned(),
        bytes(run.bytes),
    ]
}

/// A job for programs.
pub fn json(job: &ShownJob, lang: Lang) -> Value {
    let unanswered: Vec<Value> = job
        .unanswered
        .iter()
        .map(|(who, why)| json!({ "who": who.get(lang), "why": why.get(lang) }))
        .collect();
    let about = job.about.as_ref();
    json!({
        "run_id": Some(&job.run_id).filter(|id| !id.is_empty()),
        "agent_pid": job.pid,
        "user": job.user,
        "owner": job.owner,
        "program": about.map(|about| &about.program),
        "profile": about.and_then(|about| about.profile.as_ref()),
        "folder": about.map(|about| &about.folder),
        "elapsed_s": about.map(|about| elapsed(about.started_ms)),
        "here": job.is_here,
        "nnodes": job.all_nodes,
        "nodes": job.nodes,
        "unanswered": unanswered,
        "problem": job.problem.as_ref().map(|problem| problem.get(lang)),
    })
}

pub fn ended_json(run: &EndedRun) -> Value {
    json!({
        "run_id": run.run_id,
        "folder": run.folder.to_string_lossy(),
        "lives": run.lives,
        "launchers": run.launchers,
        "started": run.started,
        "ended": run.ended,
        "exit_code": run.code,
        "verdict": run.verdict,
        "cause": run.cause,
        "bytes": run.bytes,
    })
}

/// A line for each process: the effect of each mode, its identity, and the reason.
pub fn stale_table(found: &[StaleProcess], lang: Lang) -> String {
    if found.is_empty() {
        return format!("{}\n", text!("nothing found", "未发现残留进程").get(lang));
    }
    let header = [
        Text::same("PID"),
        Text::same("kill"),
        Text::same("force"),
        text!("age", "已运行"),
        text!("parent", "父进程"),
        text!("command", "命令"),
        text!("why", "原因"),
    ];
    let mut rows: Vec<Vec<String>> =
        vec![header.iter().map(|text| text.get(lang).to_owned()).collect()];
    let fate = |one: &StaleProcess, mode| match one.is_ended_by(mode) {
        true => text!("end", "终止").get(lang).to_owned(),
        false => "-".to_owned(),
    };
    for one in found {
        let age =
            one.age.map(shown_age).map_or_else(|| "?".to_owned(), |age| age.get(lang).to_owned());
        rows.push(vec![
            one.pid.to_string(),
            fate(one, StaleMode::Kill),
            fate(one, StaleMode::Force),
            age,
            format!("{} {}", one.parent.pid, one.parent.name).trim_end().to_owned(),
            short(&one.command),
            one.reason().get(lang).to_owned(),
        ]);
    }
    let mut lines = String::new();
    table(&mut lines, rows);
    lines
}

/// A command, shortened for the table.
fn short(command: &str) -> String {
    const MOST: usize = 43;
    match command.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{}…", command.get(..cut).unwrap_or_default()),
        None => command.to_owned(),
    }
}

/// `clean --format json`. `ended` are the pids that have ended.
pub fn stale_json(found: &[StaleProcess], ended: &[i32], lang: Lang) -> Value {
    let processes: Vec<Value> = found
        .iter()
        .map(|one| {
            let holds: Vec<String> = one
                .holds
                .iter()
                .map(|held| match held {
                    HeldResource::Gpu(minor) => format!("/dev/nvidia{minor}"),
                    HeldResource::Port(port) => format!("port {port}"),
                })
                .collect();
            json!({
                "pid": one.pid,
                "command": one.command,
                "age_s": one.age.map(|age| age.as_secs()),
                "parent": { "pid": one.parent.pid, "name": one.parent.name },
                "rule": one.rule.id(),
                "holds": holds,
                "kill": one.is_ended_by(StaleMode::Kill),
                "force": one.is_ended_by(StaleMode::Force),
                "ended": ended.contains(&one.pid),
                "why": one.reason().get(lang),
            })
        })
        .collect();
    json!({ "schema": 1, "processes": processes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use monitor::status::{GpuStatus, RankStatus};

    #[test]
    fn job_without_run_id_shows_its_agent() {
        let job = |problem: Option<Text>| ShownJob { pid: Some(7), problem, ..ShownJob::default() };
        for (job, en, zh) in [
            (
                job(None),
                "a job without a run id yet (agent 7)\n",
                "尚无运行 ID 的任务（agent 7）\n",
            ),
            (
                job(Some(Text::same("it is silent"))),
                "a job of unknown run id (agent 7)\n  it is silent\n",
                "运行 ID 未知的任务（agent 7）\n  it is silent\n",
            ),
            (
                ShownJob { pid: None, pid_inside: Some(7), ..job(None) },
                "a job without a run id yet (agent 7 of its own PID namespace)\n",
                "尚无运行 ID 的任务（agent 其自身 PID 命名空间中的 7）\n",
            ),
        ] {
            let jobs = [job];
            assert_eq!(text(&jobs, None, Lang::En), en);
            assert_eq!(text(&jobs, None, Lang::Zh), zh);
        }
    }

    #[test]
    fn spare_is_no_job_of_its_own() {
        let node = NodeStatus { phase: Phase::Parked, ..NodeStatus::default() };
        let jobs = [ShownJob { pid: Some(7), nodes: vec![node], ..ShownJob::default() }];
        let shown = |lang| text(&jobs, None, lang);
        assert!(shown(Lang::En).starts_with("a spare without a seat (agent 7)\n"));
        assert!(shown(Lang::En).contains("parked"));
        assert!(shown(Lang::Zh).starts_with("没有席位的备用节点（agent 7）\n"));
    }

    #[test]
    fn extreme_node_numbers_never_panic() {
        let rank = RankStatus { memory: Some(u64::MAX), ..RankStatus::default() };
        let gpu = GpuStatus { utilization: Some(u32::MAX), ..GpuStatus::default() };
        let node = NodeStatus {
            ranks: vec![rank.clone(), rank],
            gpus: vec![gpu.clone(), gpu],
            ..NodeStatus::default()
        };
        let row = row_of_node(&node, Lang::En);
        assert_eq!(row.last().map(String::as_str), Some("GPU 4294967295 %"));
    }
}
