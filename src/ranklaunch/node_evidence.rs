//! The evidence that this node gives of a running job, for a bug report: `ranklaunch dump`.
//!
//! Takes the ranks, their control sockets, their last lines and the files of the run; gives texts
//! without secrets, and the list of missing evidence. Each source has a time limit, and nothing is written.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::own_run::OwnHistory;
use diagnose::recorder;
use linux::deadline::{io_with_deadline, spawn_detached};
use logs::{JOURNAL, Logs, RUN_JSON};
use monitor::hang::{node_document, ras_report};
use monitor::socket::{NodeDump, READING, RunningRanks};
use monitor::watch::{ControlSocket, NodeSources, RasSource};
use report::runs::records;
use text::lang::{Text, cause};
use text::mask::{mask_file, mask_json};
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::Owner;

/// Time limit of one file.
const ANSWER: Duration = Duration::from_secs(1);
/// Bytes at the end of a journal.
const JOURNAL_END: u64 = 1 << 20;
/// Number of lines of each rank.
const LINES: usize = 200;
/// Files of the kernel about a rank. None of these waits for a lock that the process holds.
const OF_RANK: &[&str] = &["status", "stat", "wchan", "syscall", "schedstat", "limits", "cgroup"];
/// Files of the kernel about the node.
const OF_NODE: &[&str] =
    &["version", "uptime", "loadavg", "meminfo", "pressure/cpu", "pressure/io", "pressure/memory"];

/// Sources of the evidence.
pub(super) struct NodeEvidence {
    pub(super) ranks: RunningRanks,
    pub(super) logs: Arc<Logs>,
    /// The plan as JSON, without secrets.
    pub(super) plan: Value,
    /// The folder with the journal; None if there is no folder.
    pub(super) folder: Option<PathBuf>,
    /// The history that is reported when the run is over.
    pub(super) history: OwnHistory,
    /// The folder with the control sockets of the ranks; None with `--inject off`.
    pub(super) control: Option<PathBuf>,
    /// Places of the counters of the node and of NCCL's RAS.
    pub(super) sources: NodeSources,
    pub(super) ras: RasSource,
}

/// The records of the backends that a rank uses; a single empty one if it uses none.
fn without_empty(mut records: Vec<String>) -> Vec<String> {
    let is_empty =
        |text: &String| recorder::read(text.as_bytes()).is_ok_and(|dump| dump.is_empty());
    match records.iter().all(is_empty) {
        true => records.truncate(1),
        false => records.retain(|text| !is_empty(text)),
    }
    records
}

impl NodeEvidence {
    /// The flight recorders of each rank: the first as `rank_N.json`, further ones as `rank_N.2.json`.
    pub(super) fn records(&self) -> NodeDump {
        let mut dump = self.begin();
        let pids = self.ranks.pids();
        let Some(folder) = self.control.clone() else {
            dump.miss(
                text!("the flight recorders", "飞行记录"),
                text!(
                    "the ranks have no control socket (--inject off)",
                    "各 rank 没有控制套接字（--inject off）"
                ),
            );
            return dump;
        };
        let until = Instant::now() + READING;
        let (tell, told) = mpsc::channel();
        for socket in ControlSocket::all(&folder) {
            let Some(rank) = socket.rank else { continue };
            let tell = tell.clone();
            spawn_detached(move || {
                let records = socket.records("", READING).and_then(|records| {
                    let texts = records.into_iter().map(String::from_utf8);
                    texts.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)
                });
                let _ = tell.send((rank, records.map(without_empty)));
            });
        }
        drop(tell);
        let mut failed = Vec::new();
        let mut read = Vec::new();
        while let Ok((rank, records)) =
            told.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            match records {
                Ok(records) => {
                    // A rank may have several processes, and each process may have a record of its own for
                    // each backend.
                    for record in records {
                        let before = read.iter().filter(|of| **of == rank).count();
                        let name = match before {
                            0 => format!("rank_{rank}.json"),
                            _ => format!("rank_{rank}.{}.json", before + 1),
                        };
                        read.push(rank);
                        dump.add(name, record);
                    }
                }
                Err(error) => failed.push((rank, cause(&error))),
            }
        }
        for (rank, _) in pids.iter().filter(|(rank, _)| !read.contains(rank)) {
            let why = failed.iter().find(|(of, _)| of == rank).map(|(_, why)| why.clone());
            let why = why.unwrap_or_else(|| {
                text!(
                    "its process has no control socket that answers; only Python with torch.distributed has one",
                    "其进程没有可应答的控制套接字；只有导入了 torch.distributed 的 Python 才有"
                )
            });
            dump.miss(text!("flight recorder of rank {rank}", "rank {rank} 的飞行记录"), why);
        }
        dump
    }

    /// The plan, the journal, the last lines, and the reports of NCCL and the kernel about the ranks and
    /// the node.
    pub(super) fn state(&self) -> NodeDump {
        let mut dump = self.begin();
        let until = Instant::now() + READING;
        let (tell_counters, counters) = mpsc::channel();
        let (sources, own) = (self.sources.clone(), self.ranks.pids());
        spawn_detached(move || drop(tell_counters.send(node_document(sources, &own))));
        let (tell_ras, ras) = mpsc::channel();
        let (source, own) = (self.ras, self.ranks.pids());
        spawn_detached(move || drop(tell_ras.send(ras_report(source, &own))));
        dump.add("plan.json".to_owned(), format!("{:#}\n", self.masked_plan()));
        let version = env!("CARGO_PKG_VERSION");
        let mut node = format!("ranklaunch {version}\n");
        push_proc(&mut node, Path::new("/proc"), OF_NODE);
        dump.add("node.state".to_owned(), node);
        for (name, must_be) in [(JOURNAL, true), (RUN_JSON, false)] {
            match self.folder.as_ref().map(|folder| end_of(folder.join(name))) {
                Some(Ok(text)) => dump.add(name.to_owned(), masked(&text)),
                // The file is written at the end of an attempt.
                Some(Err(error)) if error.kind() == io::ErrorKind::NotFound && !must_be => {}
                Some(Err(error)) => dump.miss(Text::same(name), cause(&error)),
                None if must_be => dump.miss(
                    Text::same(name),
                    text!("the run has no log folder", "本次运行没有日志目录"),
                ),
                None => {}
            }
        }
        for (rank, pid) in self.ranks.pids() {
            let lines = self.logs.tail(Owner::Rank(rank), LINES);
            let text: String = lines.iter().map(|line| format!("{}\n", line.text())).collect();
            dump.add(format!("{}.log", numbered(rank)), mask_file(&text));
            let mut state = format!("pid {pid}\n");
            push_proc(&mut state, &Path::new("/proc").join(pid.to_string()), OF_RANK);
            dump.add(format!("{}.state", numbered(rank)), mask_file(&state));
        }
        let left = || until.saturating_duration_since(Instant::now());
        let late = || text!("no answer in time", "未在时限内应答");
        match counters.recv_timeout(left()) {
            Ok(document) => dump.add("node.json".to_owned(), masked(&document.to_string())),
            Err(_) => dump.miss(text!("the counters of the node", "节点的计数器"), late()),
        }
        let report = ras.recv_timeout(left()).unwrap_or_else(|_| Some(Err(late())));
        match report {
            Some(Ok(report)) => {
                let end = if report.view.is_some() { "json" } else { "txt" };
                dump.add(format!("ras.{end}"), masked(&report.text));
            }
            Some(Err(why)) => {
                dump.miss(text!("what NCCL's RAS says", "NCCL RAS 的报告"), why);
            }
            None => {}
        }
        dump
    }

    /// The plan, without secrets.
    pub(super) fn masked_plan(&self) -> Value {
        let mut plan = self.plan.clone();
        mask_json(&mut plan);
        plan
    }

    fn begin(&self) -> NodeDump {
        NodeDump { node: self.ranks.job().node, files: Vec::new(), missing: Vec::new() }
    }
}

/// The prefix of the run's own files for this rank.
fn numbered(rank: GlobalRank) -> String {
    format!("rank-{:05}", rank.0)
}

/// Masked line by line, since each line of a journal is a document; any other file as a whole.
fn masked(text: &str) -> String {
    let line = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(mut value) => {
            mask_json(&mut value);
            format!("{value}\n")
        }
        Err(_) => format!("{}\n", mask_file(line)),
    };
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            mask_json(&mut value);
            format!("{value:#}\n")
        }
        Err(_) => text.lines().map(line).collect(),
    }
}

/// The end of a file, from the beginning of a line.
fn end_of(path: PathBuf) -> io::Result<String> {
    let read = move || records::end_of(&path, JOURNAL_END);
    let (bytes, is_cut) = io_with_deadline(ANSWER, read)?;
    let text = String::from_utf8_lossy(&bytes);
    let cut = if is_cut { text.find('\n').map_or(0, |end| end + 1) } else { 0 };
    Ok(text.get(cut..).unwrap_or_default().to_owned())
}

/// The files below a folder of /proc, each with its name; for files that cannot be read, the reason.
fn push_proc(out: &mut String, folder: &Path, names: &[&str]) {
    for name in names {
        let path = folder.join(name);
        let shown = path.display().to_string();
        let text = match io_with_deadline(ANSWER, move || std::fs::read(path)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
            Err(error) => format!("({error})"),
        };
        let _ = writeln!(out, "\n== {shown}\n{text}");
    }
}
