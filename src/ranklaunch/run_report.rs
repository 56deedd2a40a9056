//! Writes the report of a run when it is over: of this launcher, and on node 0 of the job.
//!
//! The verdict has been reported, and run.json is written. The report is dispensable: a full disk, a
//! mount that hangs or a node that is gone costs the report or a part of it, never the exit code, and
//! no more than the time that is left. Node 0 asks the others for their histories; they stay until it
//! has them.

use std::time::Duration;

use super::clock::Clock;
use super::context::Context;
use super::job_session::JobSession;
use super::node_questions;
use super::run_files;
use linux::deadline::{in_thread, io_with_deadline};
use linux::regular_file;
use logs::{FolderLevel, LogFolder, REPORT, RUN_JSON};
use monitor::history::{JobHistory, NodeHistory};
use report::Ending;
use report::files;
use report::page::{MOST_POINTS, page};
use supervise::EndStep;
use text::lang::{Text, cause};
use text::text;

/// Time limit for the histories of all other nodes. Most of it is for a node that hangs.
const GATHERED: Duration = Duration::from_secs(3);
/// Larger than any run.json.
const LARGEST: u64 = 64 << 20;
/// Time for which a node stays for node 0, which may have to wait for another node.
const STAYS: Duration = Duration::from_secs(4);
/// Number of values of all quantities over time in the report of a job.
const ALL_POINTS: usize = 200_000;

/// Writes the report of this launcher, and on node 0 that of the job. `session`: the session with the
/// other nodes, which ends here.
pub(super) async fn write(context: &Context, session: Option<Box<JobSession>>, clock: Clock) {
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
pub(super) fn amend(context: &Context, ending: &Ending, code: i32, time_left: Duration) {
    let Some(folder) = context.report.folder() else { return };
    let (ending, lang) = (ending.clone(), context.lang());
    let written = io_with_deadline(time_left, move || {
        let run = regular_file::read(&folder.node_path().join(RUN_JSON), LARGEST)?;
        let amended = files::amended(&run, &ending, code, lang)?;
        folder.replace(FolderLevel::Node, RUN_JSON, &amended)
    });
    if let Err(error) = written {
        tracing::warn!(%error, "run.json has the verdict of the last attempt");
    }
}

/// The same if the run ended between two attempts, without the other nodes.
pub(super) fn write_late(context: &Context, clock: Clock) {
    if context.report.history().is_given() {
        return;
    }
    let Some(folder) = context.report.folder() else { return };
    let written = io_with_deadline(clock.left_for_answer(EndStep::Record), move || {
        let own = run_files::read(&folder.node_path(), MOST_POINTS)?;
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
    if own.is_none() && !context.report.history().is_given() {
        // Node 0 need not wait for a history that does not come.
        context.report.history().give(Vec::new());
    }
    own
}

async fn told_and_written(context: &Context, clock: Clock) -> Option<NodeHistory> {
    let folder = context.report.folder()?;
    let left = clock.left_for_answer(EndStep::Record);
    let (written, slot) = (context.journal.mark(), context.report.history());
    let done = in_thread(move || {
        io_with_deadline(left, move || {
            // The report uses the part of the journal that is written by then.
            if let Some(written) = written {
                let _ = written.recv_timeout(left / 2);
            }
            let own = run_files::read(&folder.node_path(), MOST_POINTS)?;
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
    let Some(folder) = context.report.folder() else { return };
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
    let run = path.parent().map(run_files::launchers).unwrap_or_default();
    let others = run.iter().filter(|other| **other != path);
    let others: Vec<_> =
        others.filter_map(|other| run_files::read(other, MOST_POINTS).ok()).collect();
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
