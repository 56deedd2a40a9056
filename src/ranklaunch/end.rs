//! The last phase of an attempt: writes its record and its log files.
//!
//! The verdict is printed already, so a slow disk costs only this part of the time budget.
//! Writes run.json at once, then the log files, and run.json again if the log summary has
//! changed by then.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::clock::Clock;
use super::context::Context;
use linux::deadline::{in_thread, io_with_deadline};
use logs::{FolderLevel, LogFolder, Logs, LogsSummary, RUN_JSON};
use monitor::watch::Sampling;
use report::files::RunRecord;
use supervise::EndStep;
use text::lang::{Lang, Text, cause};
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
    json!({ "folder": summary.folder, "owners": owners, "problems": problems })
}
