//! `ranklaunch stacks`: shows the present activity of a running job's ranks; `ranklaunch dump`: writes the evidence of
//! a running job into a folder, for a bug report.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::output::{print, show, unwritten_file};
use crate::find_run::{none, running, silent, unanswered};
use crate::here::RunningJob;
use linux::deadline::spawn_detached;
use monitor::socket::{
    self, Answer, Ask, DumpFile, Job, JobDump, JobStacks, Listener, Missing, NodeDump, NodeStacks,
    Selection, Unanswered,
};
use report::runs::view::{refusal_of, silence};
use report::stacks_view;
use settings::cli::{Dump, ReportFormat, Stacks};
use text::lang::{Lang, Text, cause, counted};
use text::order::Ordered;
use text::ranges::listed;
use text::rank::GlobalRank;
use text::text;
use verdict::{Id, Refusal};

pub(crate) fn stacks(asked: &Stacks, lang: Lang) -> Result<i32, Refusal> {
    let wanted = numbers(asked)?;
    let mut job = running(asked.run.as_deref(), asked.log_dir.as_deref())?;
    // If the nodes do not know each other, the agent of that node has to be asked.
    job.agents.order_by_key(|(_, job)| Some(job.node) != wanted.node);
    let selection = Selection { node: wanted.node, ranks: wanted.rank.into_iter().collect() };
    let found =
        collected(job, lang, |agent| match socket::ask(agent, &Ask::Stacks(selection.clone())) {
            Ok(Answer::Stacks(stacks)) => Ok((stacks, JobDump::default())),
            Ok(other) => Err(unanswered(agent, &refusal_of(&other))),
            Err(error) => Err(silent(agent, &cause(&error))),
        })?;
    is_there(&found, &wanted)?;
    let Evidence { job, stacks, .. } = found;
    match asked.format {
        ReportFormat::Text => show(&stacks_view::text(&job, &stacks, lang)),
        ReportFormat::Json => print(format!("{:#}\n", stacks_view::json(&job, &stacks))),
    }
    Ok(0)
}

/// The answers of the agents of a job; the dump is empty where only stacks are asked for.
struct Evidence {
    job: Job,
    stacks: JobStacks,
    dump: JobDump,
}

/// Collects the evidence from one agent, which asks the others; if the nodes do not know each
/// other, from all agents that are here.
fn collected(
    job: RunningJob,
    lang: Lang,
    ask: impl Fn(&Listener) -> Result<(JobStacks, JobDump), Refusal>,
) -> Result<Evidence, Refusal> {
    job.tell_owner(lang);
    let mut found: Option<Evidence> = None;
    let mut failed = None;
    for (agent, job) in job.agents {
        let (stacks, dump) = match ask(&agent) {
            Ok(both) => both,
            Err(refusal) => {
                failed = Some(refusal);
                continue;
            }
        };
        let reaches_all = stacks.reaches_all;
        match &mut found {
            Some(found) => {
                found.stacks.nodes.extend(stacks.nodes);
                found.dump.nodes.extend(dump.nodes);
            }
            None => found = Some(Evidence { job, stacks, dump }),
        }
        if reaches_all {
            break;
        }
    }
    found.ok_or_else(|| failed.unwrap_or_else(|| none(None, &[], None, None)))
}

/// Refuses a node or a rank without any answer.
fn is_there(found: &Evidence, wanted: &Wanted) -> Result<(), Refusal> {
    let Evidence { job, stacks, .. } = found;
    let of_node = |one: &&NodeStacks| wanted.node.is_none_or(|node| node == one.job.node);
    let mut missing: Vec<Text> = stacks.unanswered.iter().map(silence).collect();
    if !stacks.reaches_all {
        missing.push(stacks_view::only_here());
    }
    let join = |of: fn(&Text) -> &str, between: &str| {
        missing.iter().map(of).collect::<Vec<_>>().join(between)
    };
    let (why_en, why_zh) = (join(|text| &text.en, "; "), join(|text| &text.zh, "；"));
    if let Some(node) = wanted.node.filter(|_| stacks.nodes.iter().filter(of_node).count() == 0) {
        let (nodes, last) = (job.nodes, job.nodes.saturating_sub(1));
        let (text, hint) = if node >= nodes {
            let text = text!(
                "--node asks for node {node}, but the job has nodes 0 to {last}",
                "--node 要求节点 {node}，但该任务只有节点 0 至 {last}"
            );
            (text, text!("name one of these", "请指定其中一个"))
        } else {
            let text = text!(
                "node {node} shows no stacks ({why_en})",
                "节点 {node} 没有给出栈（{why_zh}）"
            );
            let hint = text!(
                "run ranklaunch stacks on that node, such as by kubectl exec into its pod",
                "请在该节点上运行 ranklaunch stacks，例如用 kubectl exec 进入其 Pod"
            );
            (text, hint)
        };
        return Err(Refusal::new(Id::StacksPlace, text, hint));
    }
    let ranks = stacks.nodes.iter().filter(of_node).flat_map(|one| &one.job.ranks).copied();
    let mut running: Vec<GlobalRank> = ranks.collect();
    running.sort_unstable();
    if let Some(rank) = wanted.rank.filter(|rank| !running.contains(rank)) {
        let listed = listed(running.iter().map(|rank| rank.0), '-');
        let (mut en, mut zh) = match running.is_empty() {
            true => ("no rank runs".to_owned(), "没有正在运行的 rank".to_owned()),
            false => (format!("ranks {listed} run"), format!("正在运行的 rank 为 {listed}")),
        };
        if let Some(node) = wanted.node {
            (en, zh) = (format!("{en} on node {node}"), format!("节点 {node} 上{zh}"));
        }
        if !missing.is_empty() {
            (en, zh) = (format!("{en}; {why_en}"), format!("{zh}；{why_zh}"));
        }
        return Err(Refusal::new(
            Id::StacksPlace,
            text!("rank {rank} was not found: {en}", "未找到 rank {rank}：{zh}"),
            text!(
                "name one of these; a rank that has ended has no stack",
                "请指定其中一个；已经结束的 rank 没有栈"
            ),
        ));
    }
    Ok(())
}

struct Wanted {
    node: Option<u32>,
    rank: Option<GlobalRank>,
}

fn numbers(asked: &Stacks) -> Result<Wanted, Refusal> {
    let number = |flag: &str, value: &Option<std::ffi::OsString>| {
        let Some(value) = value else { return Ok(None) };
        let value = value.to_string_lossy();
        value.parse::<u32>().map(Some).map_err(|_| {
            Refusal::new(
                Id::StacksPlace,
                text!("{flag} `{value}` is not a number", "{flag} `{value}` 不是数字"),
                text!(
                    "write a number from 0, such as {flag} 3",
                    "请写从 0 开始的数字，例如 {flag} 3"
                ),
            )
        })
    };
    let rank = number("--rank", &asked.rank)?.map(GlobalRank);
    Ok(Wanted { node: number("--node", &asked.node)?, rank })
}

pub(crate) fn dump(asked: &Dump, lang: Lang) -> Result<i32, Refusal> {
    show(&written(asked, lang)?);
    Ok(0)
}

fn written(asked: &Dump, lang: Lang) -> Result<String, Refusal> {
    let job = running(asked.run.as_deref(), asked.log_dir.as_deref())?;
    let evidence = collected(job, lang, asked_for_all)?;
    let folder = match &asked.output {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(format!("ranklaunch-dump-{}", evidence.job.run_id)),
    };
    let shown = folder.display().to_string();
    let place = |error| unwritten_file(&folder, &error);
    create(&folder).map_err(place)?;
    if folder.read_dir().map_err(place)?.next().is_some() {
        return Err(Refusal::new(
            Id::ReportWrite,
            text!("{shown} is not empty", "{shown} 不是空目录"),
            text!("name another folder with --output", "请用 --output 指定其他目录"),
        ));
    }
    let mut written = Written { folder: folder.clone(), kinds: BTreeMap::new(), count: 0 };
    let missing = written.all(evidence, lang).map_err(place)?;
    Ok(written.text(&missing, lang))
}

fn asked_for_all(agent: &Listener) -> Result<(JobStacks, JobDump), Refusal> {
    // Both are asked in parallel, since each waits for the silent nodes.
    let (tell, told) = mpsc::channel();
    let same = agent.clone();
    spawn_detached(move || drop(tell.send(socket::ask(&same, &Ask::Dump))));
    let stacks = socket::ask(agent, &Ask::Stacks(Selection::default()));
    let dump = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    match (stacks, dump) {
        (Ok(Answer::Stacks(stacks)), Ok(Answer::Dump(dump))) => Ok((stacks, dump)),
        (Err(error), _) | (_, Err(error)) => Err(silent(agent, &cause(&error))),
        (Ok(other), Ok(_)) => Err(unanswered(agent, &refusal_of(&other))),
    }
}

/// Creates the folder for its owner only: the output of a rank may be private.
fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The files so far: by kind their names and their ranks or nodes.
struct Written {
    folder: PathBuf,
    kinds: BTreeMap<Kind, (String, Vec<u32>)>,
    count: usize,
}

/// The kinds in the order in which they are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Stacks,
    Records,
    Plan,
    Journal,
    Lines,
    State,
    NodeState,
    NodeCounters,
    Ras,
}

impl Kind {
    /// The kind of a file that a node named, and the rank in the name. None for a name that no node
    /// gives: it could lead out of the folder.
    fn of(name: &str) -> Option<(Kind, Option<u32>)> {
        let number = |text: &str| text.parse::<u32>().ok();
        let between = |before: &str, after: &str| {
            let middle = name.strip_prefix(before)?.strip_suffix(after)?;
            middle.split('.').map(number).collect::<Option<Vec<u32>>>()?.first().copied()
        };
        Some(match name {
            "plan.json" => (Kind::Plan, None),
            "agent.jsonl" | "run.json" => (Kind::Journal, None),
            "node.state" => (Kind::NodeState, None),
            "node.json" => (Kind::NodeCounters, None),
            "ras.json" | "ras.txt" => (Kind::Ras, None),
            _ => {
                let record = between("rank_", ".json").map(|rank| (Kind::Records, rank));
                let lines = || between("rank-", ".log").map(|rank| (Kind::Lines, rank));
                let state = || between("rank-", ".state").map(|rank| (Kind::State, rank));
                let (kind, rank) = record.or_else(lines).or_else(state)?;
                (kind, Some(rank))
            }
        })
    }

    fn text(self, numbers: &str) -> Text {
        match self {
            Kind::Stacks => text!("stacks of ranks {numbers}", "rank {numbers} 的栈"),
            Kind::Records => {
                text!("flight recorders of ranks {numbers}", "rank {numbers} 的飞行记录")
            }
            Kind::Plan => text!("plans of nodes {numbers}", "节点 {numbers} 的计划"),
            Kind::Journal => text!("journals of nodes {numbers}", "节点 {numbers} 的日志记录"),
            Kind::Lines => {
                text!("last lines of ranks {numbers}", "rank {numbers} 的最后若干行输出")
            }
            Kind::State => {
                text!("what the kernel says of ranks {numbers}", "内核给出的 rank {numbers} 的状态")
            }
            Kind::NodeState => text!(
                "version, memory and pressure of nodes {numbers}",
                "节点 {numbers} 的版本、内存与压力信息"
            ),
            Kind::NodeCounters => text!(
                "limits, links and GPUs of nodes {numbers}, and what is abnormal about them",
                "节点 {numbers} 的资源限制、链路与 GPU 计数，以及其中的异常"
            ),
            Kind::Ras => {
                text!(
                    "what NCCL's RAS says on nodes {numbers}",
                    "节点 {numbers} 上 NCCL RAS 的报告"
                )
            }
        }
    }
}

impl Written {
    fn all(&mut self, evidence: Evidence, lang: Lang) -> io::Result<Vec<Missing>> {
        let Evidence { job, stacks, dump } = evidence;
        let ranks: Vec<u32> = stacks
            .nodes
            .iter()
            .flat_map(|node| node.ranks.iter().map(|rank| rank.rank.0))
            .collect();
        let document = stacks_view::json(&job, &stacks);
        let text = text::escape::printable(&stacks_view::text(&job, &stacks, lang)).into_owned();
        self.write(Path::new("stacks.json"), &format!("{document:#}\n"), None)?;
        self.write(Path::new("stacks.txt"), &text, None)?;
        self.kinds.insert(Kind::Stacks, ("stacks.json, stacks.txt".to_owned(), ranks));
        let mut missing = Vec::new();
        for NodeDump { node, files, missing: more } in dump.nodes {
            missing.extend(more.into_iter().map(|Missing { what, why }| {
                let Text { en, zh } = what;
                Missing { what: text!("{en} (node {node})", "{zh}（节点 {node}）"), why }
            }));
            let below = self.below(node, &files);
            for file in files {
                self.one(node, &below, &file)?;
            }
        }
        let mut silent = stacks.unanswered;
        silent.extend(dump.unanswered);
        for Unanswered { who, why } in silent {
            let missing_one = Missing { what: who, why };
            if !missing.contains(&missing_one) {
                missing.push(missing_one);
            }
        }
        if !stacks.reaches_all {
            let what = text!("the other nodes", "其他节点");
            missing.push(Missing { what, why: stacks_view::only_here() });
        }
        let lost = |Missing { what, why }: &Missing| json!({"what": what.en, "why": why.en});
        let index = json!({
            "schema": 1,
            "run_id": job.run_id,
            "attempt": job.attempt,
            "nodes": job.nodes,
            "version": env!("CARGO_PKG_VERSION"),
            "missing": missing.iter().map(lost).collect::<Vec<_>>(),
        });
        self.write(Path::new("dump.json"), &format!("{index:#}\n"), None)?;
        Ok(missing)
    }

    /// The folder of a node, or of each launcher if a node has several.
    fn below(&self, node: u32, files: &[DumpFile]) -> PathBuf {
        let name = |number: u32| match number {
            0 => PathBuf::from(format!("node-{node}")),
            _ => PathBuf::from(format!("node-{node}.{number}")),
        };
        let is_free = |name: &PathBuf| {
            files.iter().all(|file| !self.folder.join(name).join(&file.name).exists())
        };
        (0..u32::MAX).map(name).find(is_free).unwrap_or_default()
    }

    fn one(&mut self, node: u32, below: &Path, file: &DumpFile) -> io::Result<()> {
        let Some((kind, rank)) = Kind::of(&file.name) else { return Ok(()) };
        // Records lie beside each other, as torch's own dumps do.
        let (path, shown) = match kind {
            Kind::Records => (PathBuf::from(&file.name), "rank_N.json".to_owned()),
            Kind::Lines => (below.join(&file.name), "node-N/rank-N.log".to_owned()),
            Kind::State => (below.join(&file.name), "node-N/rank-N.state".to_owned()),
            _ => (below.join(&file.name), format!("node-N/{}", file.name)),
        };
        // If two nodes give the same name, the first one keeps it.
        match self.write(&path, &file.text, Some(file.read_ms)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            written => written?,
        }
        self.kinds.entry(kind).or_insert((shown, Vec::new())).1.push(rank.unwrap_or(node));
        Ok(())
    }

    /// `read_ms` becomes the time of the file: the findings about a record depend on it.
    fn write(&mut self, name: &Path, text: &str, read_ms: Option<u64>) -> io::Result<()> {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            create(parent)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        let read = read_ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        if let Some(read) = read.filter(|read| *read < SystemTime::now()) {
            // A file system without times is not a reason to give up.
            let _ = file.set_modified(read);
        }
        self.count += 1;
        Ok(())
    }

    fn text(&self, missing: &[Missing], lang: Lang) -> String {
        let mut out = String::new();
        for (kind, (name, numbers)) in &self.kinds {
            let mut numbers = numbers.clone();
            numbers.sort_unstable();
            numbers.dedup();
            let text = kind.text(&listed(numbers, '-'));
            let _ = writeln!(out, "{name:<24} {}", text.get(lang));
        }
        for Missing { what, why } in missing {
            let (Text { en, zh }, Text { en: why_en, zh: why_zh }) = (what, why);
            let line = text!("missing: {en}: {why_en}", "缺少：{zh}：{why_zh}");
            let _ = writeln!(out, "{}", line.get(lang));
        }
        let (files, folder) = (counted(self.count, "file"), self.folder.display());
        let count = self.count;
        let end = text!(
            "{files} in {folder}, secrets masked; ranklaunch explain {folder} reads the flight recorders",
            "已将 {count} 个文件写入 {folder}，敏感信息已隐去；可用 ranklaunch explain {folder} 读取飞行记录"
        );
        let _ = writeln!(out, "{}", end.get(lang));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_rank_number_is_refused() {
        let asked = |rank: &str| Stacks {
            run: None,
            log_dir: None,
            node: None,
            rank: Some(rank.into()),
            format: ReportFormat::Text,
            lang: None,
        };
        assert_eq!(numbers(&asked("7")).ok().and_then(|wanted| wanted.rank), Some(GlobalRank(7)));
        for wrong in ["-1", "x", "", "99999999999"] {
            let refusal = numbers(&asked(wrong)).err().expect(wrong);
            assert_eq!(refusal.id, Id::StacksPlace);
            assert!(refusal.text.en.contains(wrong), "{}", refusal.text.en);
        }
    }
}

#[cfg(test)]
mod dump_tests {
    use super::*;

    /// Names come from other nodes.
    #[test]
    fn unknown_file_name_is_not_written() {
        for (name, kind) in [
            ("rank_3.json", Some((Kind::Records, Some(3)))),
            ("rank_3.4711.json", Some((Kind::Records, Some(3)))),
            ("rank-00012.log", Some((Kind::Lines, Some(12)))),
            ("rank-00012.state", Some((Kind::State, Some(12)))),
            ("plan.json", Some((Kind::Plan, None))),
            ("node.json", Some((Kind::NodeCounters, None))),
            ("ras.txt", Some((Kind::Ras, None))),
            ("ras.jsonl", None),
            ("../plan.json", None),
            ("rank_../../x.json", None),
            ("rank_3/../x.json", None),
            ("rank_.json", None),
            ("/etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(Kind::of(name), kind, "{name}");
        }
    }
}
