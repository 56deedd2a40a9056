//! The last phase of an attempt: writes its record and its log files, and at the end of the run its report.
//!
//! The verdict is printed already, so a slow disk costs only this part of the time budget.
//! Writes run.json at once, then the log files, and run.json again if the log summary has
//! changed by then. The records of torch's flight recorder, which the ranks write on the local disk when a
//! collective failed or timed out, come to the logs as well. Finding the ranks that kept the others waiting
//! requires the records of all ranks: if other nodes have some, `ranklaunch explain` judges them.
//!
//! The report is dispensable: a full disk, a mount that hangs or a node that is gone costs the report or a part of
//! it, never the exit code, and no more than the time that is left. Node 0 asks the others for their histories;
//! they stay until it has them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::context::{Clock, Context};
use super::job_session::JobSession;
use super::node_questions;
use diagnose::recorder::{self, Hang, Job, RankRecord};
use linux::deadline::{in_thread, io_with_deadline};
use linux::regular_file;
use logs::{FolderLevel, LogFolder, Logs, LogsSummary, REPORT, RUN_JSON};
use monitor::history::{JobHistory, NodeHistory};
use monitor::watch::Sampling;
use plan::Plan;
use report::files::RunRecord;
use report::hang_view::HangView;
use report::page::{MOST_POINTS, page};
use report::runs::history;
use report::runs::streams::written;
use report::{Ending, files};
use supervise::EndStep;
use supervise::inject::RECORD;
use text::lang::{Lang, Text, cause};
use text::order::{InOrder, Ordered};
use text::text;

/// If the log files are written within this time, run.json is written only once.
const QUICK: Duration = Duration::from_millis(100);
/// Time limit for the lines of ranks on a console that does not drain.
const SHOWN: Duration = Duration::from_secs(2);

/// Data that remains to be written after the verdict of an attempt is printed.
pub(super) struct Rest {
    pub(super) clock: Clock,
    pub(super) logs: Arc<Logs>,
    pub(super) folder: Option<Arc<LogFolder>>,
    /// run.json without the summary of the logs.
    pub(super) record: RunRecord,
    /// Records of torch about the exceptions of ranks and about their collectives, by name.
    pub(super) evidence: Vec<(String, Vec<u8>)>,
    pub(super) sampling: Sampling,
}

impl Rest {
    /// Writes all files. `is_last`: no attempt follows, so the console's time ends as well.
    pub(super) async fn finish(self, context: &Context, is_last: bool) {
        let Rest { clock, logs, folder, record, evidence, sampling } = self;
        if let Some(folder) = folder.clone().filter(|_| !evidence.is_empty()) {
            keep(folder, evidence, clock.left_for_answer(EndStep::Logs)).await;
        }
        write_out(context, clock, logs, folder, record, is_last).await;
        sampling.finish(clock.left_for_answer(EndStep::Record)).await;
    }
}

async fn write_out(
    context: &Context,
    clock: Clock,
    logs: Arc<Logs>,
    folder: Option<Arc<LogFolder>>,
    mut record: RunRecord,
    is_last: bool,
) {
    let left = clock.left(EndStep::Logs);
    let writing = Arc::clone(&logs);
    let write_out = in_thread(move || writing.write_out(left));
    let Some(folder) = folder else { return write_out.await };
    // The record counts the lines that the console does not show.
    let show_out = async {
        if is_last {
            let console = context.console.clone();
            in_thread(move || console.show_out(SHOWN.min(left))).await;
        }
    };
    let write_out = async {
        tokio::join!(write_out, show_out);
    };
    tokio::pin!(write_out);
    let mut early = None;
    let quick = tokio::time::timeout(QUICK.min(left / 4), &mut write_out).await;
    if quick.is_err() {
        // If we are killed meanwhile, the record still counts the bytes that are not written
        // and the lines that are not shown yet.
        let summary = logs.summary();
        record.logs = account(&summary, context.lang());
        let time_left = clock.left_for_answer(EndStep::Record);
        let ((), written) = tokio::join!(write_out, write(&folder, &record, time_left));
        early = Some((summary, written));
    }
    let summary = logs.summary();
    let written = match early {
        Some((early, written)) if early == summary => written,
        _ => {
            record.logs = account(&summary, context.lang());
            write(&folder, &record, clock.left_for_answer(EndStep::Record)).await
        }
    };
    if let Err(error) = written {
        let path = folder.node_path();
        let (path, Text { en, zh }) = (path.display(), cause(&error));
        context.say(&text!(
            "cannot write run.json in {path}: {en}",
            "无法在 {path} 写入 run.json：{zh}"
        ));
    }
}

async fn write(
    folder: &Arc<LogFolder>,
    record: &RunRecord,
    time_left: Duration,
) -> std::io::Result<()> {
    let bytes = record.render()?;
    let folder = Arc::clone(folder);
    in_thread(move || {
        io_with_deadline(time_left, move || folder.replace(FolderLevel::Node, RUN_JSON, &bytes))
    })
    .await
}

/// Keeps torch's records. The job's cause has already been reported, so only a later `explain`
/// misses a file that cannot be written.
async fn keep(folder: Arc<LogFolder>, files: Vec<(String, Vec<u8>)>, time_left: Duration) {
    let write = move || {
        for (name, bytes) in files {
            folder.replace(FolderLevel::Attempt, &name, &bytes)?;
        }
        Ok(())
    };
    let written = in_thread(move || io_with_deadline(time_left, write)).await;
    if let Err(error) = written {
        tracing::warn!(%error, "cannot keep what torch wrote of the ranks");
    }
}

/// The summary of the logs for run.json.
fn account(summary: &LogsSummary, lang: Lang) -> Value {
    let owners: Map<String, Value> = summary
        .owners
        .iter()
        .map(|(owner, one)| {
            let value = json!({
                "bytes": one.bytes,
                "lines": one.lines,
                "dropped_file_bytes": one.dropped_file_bytes,
                "dropped_console_lines": one.dropped_console_lines,
                "truncated_bytes": one.truncated_bytes,
                "removed_file_bytes": one.removed_file_bytes,
            });
            (owner.to_string(), value)
        })
        .collect();
    let problems: Vec<&str> = summary.problems.iter().map(|problem| problem.get(lang)).collect();
    // JSON has no other bytes than UTF-8.
    let folder = summary.folder.as_ref().map(|folder| folder.to_string_lossy());
    json!({ "folder": folder, "owners": owners, "problems": problems })
}

/// Time limit for the histories of all other nodes. Most of it is for a node that hangs.
const GATHERED: Duration = Duration::from_secs(3);
/// Larger than any run.json.
const LARGEST_RUN_JSON: u64 = 64 << 20;
/// Time for which a node stays for node 0, which may have to wait for another node.
const STAYS: Duration = Duration::from_secs(4);
/// Number of values of all quantities over time in the report of a job.
const ALL_POINTS: usize = 200_000;

/// Writes the report of this launcher, and on node 0 that of the job. `session`: the session with the
/// other nodes, which ends here.
pub(super) async fn write_report(
    context: &Context,
    session: Option<Box<JobSession>>,
    clock: Clock,
) {
    let own = write_own(context, clock).await;
    let Some(mut session) = session else {
        if let Some(own) = own {
            write_job(context, own, Vec::new(), clock).await;
        }
        return;
    };
    let left = clock.left(EndStep::Record);
    if session.leads() {
        let questions = session.questions();
        let time_left = left.min(GATHERED);
        let others = in_thread(move || node_questions::histories(&questions, time_left)).await;
        // The others wait for this.
        session.close().await;
        if let Some(own) = own {
            write_job(context, own, others, clock).await;
        }
    } else {
        session.stay(left.min(STAYS)).await;
        session.close().await;
    }
}

/// The run ended after its last attempt with a verdict other than that attempt's.
pub(super) fn amend(
    context: &Context,
    ending: &Ending,
    closing: &Text,
    code: i32,
    time_left: Duration,
) {
    let Some(folder) = context.run.folder() else { return };
    let (ending, closing, lang) = (ending.clone(), closing.clone(), context.lang());
    let notice = context.notices.status();
    let written = io_with_deadline(time_left, move || {
        let run = regular_file::read(&folder.node_path().join(RUN_JSON), LARGEST_RUN_JSON)?;
        let amended = files::amended(&run, &ending, &closing, code, (notice.as_ref(), lang))?;
        folder.replace(FolderLevel::Node, RUN_JSON, &amended)
    });
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, "run.json has the verdict of the last attempt");
        }
        _ => {}
    }
}

/// The same if the run ended between two attempts, without the other nodes.
pub(super) fn write_late(context: &Context, clock: Clock) {
    if context.run.history.is_given() {
        return;
    }
    let Some(folder) = context.run.folder() else { return };
    let written = io_with_deadline(clock.left_for_answer(EndStep::Record), move || {
        let own = history::read_launcher(&folder.node_path(), MOST_POINTS)?;
        let is_lead = own.node == 0 && own.task.is_none_or(|task| task == 0);
        replace(&folder, FolderLevel::Node, vec![own.clone()], false)?;
        if is_lead {
            replace(&folder, FolderLevel::Run, with_siblings(&folder, own), true)
        } else {
            Ok(())
        }
    });
    if let Err(error) = written {
        tracing::warn!(%error, "no report");
    }
}

async fn write_own(context: &Context, clock: Clock) -> Option<NodeHistory> {
    let own = told_and_written(context, clock).await;
    if own.is_none() && !context.run.history.is_given() {
        // Node 0 need not wait for a history that does not come.
        context.run.history.give(Vec::new());
    }
    own
}

async fn told_and_written(context: &Context, clock: Clock) -> Option<NodeHistory> {
    let folder = context.run.folder()?;
    let left = clock.left_for_answer(EndStep::Record);
    let (written, slot) = (context.journal.mark(), context.run.history.clone());
    let done = in_thread(move || {
        io_with_deadline(left, move || {
            // The report uses the part of the journal that is written by then.
            if let Some(written) = written {
                let _ = written.recv_timeout(left / 2);
            }
            let own = history::read_launcher(&folder.node_path(), MOST_POINTS)?;
            let ranks = usize::try_from(own.plan.world_size).unwrap_or(usize::MAX).max(1);
            let mut told = own.clone();
            told.samples.thin((ALL_POINTS / ranks).clamp(8, MOST_POINTS));
            slot.give(serde_json::to_vec(&told)?);
            replace(&folder, FolderLevel::Node, vec![own.clone()], false)?;
            Ok(own)
        })
    });
    match done.await {
        Ok(own) => Some(own),
        Err(error) => {
            complain(context, &error);
            None
        }
    }
}

async fn write_job(context: &Context, own: NodeHistory, others: Vec<NodeHistory>, clock: Clock) {
    let Some(folder) = context.run.folder() else { return };
    if own.node != 0 || own.task.is_some_and(|task| task != 0) {
        return;
    }
    let left = clock.left_for_answer(EndStep::Record);
    let write = move || {
        let (run_id, place) = (own.run_id.clone(), (own.node, own.task));
        let mut nodes = vec![own];
        // A history from another node never takes the place of this node's own history.
        nodes.extend(
            others
                .into_iter()
                .filter(|other| other.run_id == run_id && (other.node, other.task) != place),
        );
        let missing =
            nodes.first().is_some_and(|own| (nodes.len() as u64) < u64::from(own.members));
        if missing && let Some(own) = nodes.first().cloned() {
            nodes.extend(with_siblings(&folder, own).into_iter().skip(1));
        }
        replace(&folder, FolderLevel::Run, nodes, true)
    };
    if let Err(error) = in_thread(move || io_with_deadline(left, write)).await {
        complain(context, &error);
    }
}

/// The folders of this launcher and of others beside it: the nodes may share them.
fn with_siblings(folder: &LogFolder, own: NodeHistory) -> Vec<NodeHistory> {
    let path = folder.node_path();
    let run = path.parent().map(history::launchers).unwrap_or_default();
    let others = run.iter().filter(|other| **other != path);
    let others: Vec<_> =
        others.filter_map(|other| history::read_launcher(other, MOST_POINTS).ok()).collect();
    std::iter::once(own).chain(others).collect()
}

fn replace(
    folder: &LogFolder,
    level: FolderLevel,
    nodes: Vec<NodeHistory>,
    whole: bool,
) -> std::io::Result<()> {
    let Some(job) = JobHistory::of(nodes) else { return Ok(()) };
    folder.replace(level, REPORT, page(job, whole).as_bytes())
}

fn complain(context: &Context, error: &std::io::Error) {
    let Text { en, zh } = cause(error);
    context.say(&text!("cannot write {REPORT}: {en}", "无法写入 {REPORT}：{zh}"));
}

/// A record of 2000 collectives with their stacks has about a MiB.
const LARGEST_RECORD: u64 = 32 << 20;
/// Maximum bytes of all records that are kept.
const MOST_RECORDS: usize = 256 << 20;

/// The records of one attempt on this node.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The records with their names.
    pub(super) files: Vec<(String, Vec<u8>)>,
    /// None if no rank is known to have kept others waiting.
    hang: Option<Hang>,
}

/// Reads the records of the ranks. The result is empty if there are none, or if they cannot be read.
pub(super) fn read_recorded(folder: &Path, plan: &Plan) -> Recorded {
    let mut recorded = Recorded::default();
    let mut records: Vec<RankRecord> = Vec::new();
    let mut size = 0;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Records that do not fit are left out, the same ones each time because of the order.
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        let Some((name, rank)) = name_of(&path) else { continue };
        let Ok(bytes) = regular_file::read(&path, LARGEST_RECORD) else { continue };
        size += bytes.len();
        if size > MOST_RECORDS {
            break;
        }
        if let Ok(dump) = recorder::read(&bytes) {
            let known = records.iter_mut().find(|record| record.rank == rank);
            match known {
                Some(record) => record.dumps.push(dump),
                None => records.push(RankRecord { rank, read: written(&path), dumps: vec![dump] }),
            }
        }
        recorded.files.push((name.to_owned(), bytes));
    }
    records.order_by_key(|record| record.rank);
    if plan.membership.nnodes == 1 && plan.membership.task.is_none() && !records.is_empty() {
        let job = Job { records, world: Some(plan.world_size), stood_still: false };
        recorded.hang = Some(recorder::judge(&job)).filter(|hang| !hang.culprits.is_empty());
    }
    recorded
}

/// The name of a record, and its rank.
fn name_of(path: &Path) -> Option<(&str, u32)> {
    let name = path.file_name()?.to_str()?;
    let rank = name.strip_prefix(RECORD)?;
    let end = rank.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rank.len());
    Some((name, rank.get(..end)?.parse().ok()?))
}

impl Recorded {
    /// Number of ranks that have written something. A rank may have a recorder for each backend.
    fn ranks(&self) -> usize {
        let ranks = self.files.iter().filter_map(|(name, _)| name_of(Path::new(name)));
        ranks.map(|(_, rank)| rank).in_set().len()
    }

    /// Names the ranks that kept the others waiting, or the way to find them. `folder`: the later place
    /// of the files.
    pub(super) fn say(&self, context: &Context, folder: Option<&Path>) {
        let ranks = self.ranks();
        if let Some(hang) = &self.hang {
            let view = HangView { hang, late: &[] };
            context.console.say(&view.text(context.lang(), None));
        } else if let Some(folder) = folder.filter(|_| ranks > 0) {
            let folder = folder.display();
            context.say(&text!(
                "torch recorded the collectives of {ranks} ranks in {folder}: ranklaunch explain, with such folders of all nodes, names the rank that kept the others waiting",
                "torch 已将 {ranks} 个 rank 的集合通信记录写入 {folder}：用 ranklaunch explain 读取所有节点的这类目录，可指出让其他 rank 等待的 rank"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_instead_of_files() {
        let names =
            ["comm_lib_trace_rank_0", "comm_lib_trace_rank_0_gloo", "comm_lib_trace_rank_10"];
        let files = names.map(|name| (name.to_owned(), Vec::new())).into();
        assert_eq!(Recorded { files, hang: None }.ranks(), 2);
    }
}
