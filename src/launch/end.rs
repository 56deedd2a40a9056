//! What follows the last rank of an attempt: its record and its log files.
//!
//! Takes an attempt of which the verdict is said already, so whatever is slow here
//! costs its own part of the budget only. Writes run.json at once, the log
//! files for as long as the disk takes them, and run.json again where the account
//! of the logs has changed by then.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::clock::Clock;
use super::context::Context;
use crate::deadline::{in_thread, io_with_deadline};
use crate::lang::Lang;
use crate::logs::{Level, LogFolder, Logs, LogsSummary};
use crate::report::files::RunRecord;
use crate::supervise::EndStep;
use crate::text;
use crate::watch::Sampling;

/// A disk that takes everything within this time needs one record only.
const QUICK: Duration = Duration::from_millis(100);

/// An attempt that has been spoken about, and what is still to be written.
pub(super) struct Rest {
    pub(super) clock: Clock,
    pub(super) logs: Arc<Logs>,
    pub(super) folder: Option<Arc<LogFolder>>,
    /// run.json without the account of the logs.
    pub(super) record: RunRecord,
    pub(super) sampling: Sampling,
}

impl Rest {
    /// Writes all of it out.
    pub(super) async fn finish(self, context: &Context) {
        let Rest { clock, logs, folder, record, sampling } = self;
        write_out(context, clock, logs, folder, record).await;
        sampling.finish(clock.left_for_answer(EndStep::Record)).await;
    }
}

async fn write_out(
    context: &Context,
    clock: Clock,
    logs: Arc<Logs>,
    folder: Option<Arc<LogFolder>>,
    mut record: RunRecord,
) {
    let left = clock.left(EndStep::Logs);
    let writing = Arc::clone(&logs);
    let write_out = in_thread(move || writing.write_out(left));
    let Some(folder) = folder else { return write_out.await };
    tokio::pin!(write_out);
    let mut early = None;
    let quick = tokio::time::timeout(QUICK.min(left / 4), &mut write_out).await;
    if quick.is_err() {
        // Whoever kills us meanwhile leaves a record that counts what is not written yet.
        let summary = logs.summary();
        record.logs = account(&summary, context.lang());
        let patience = clock.left_for_answer(EndStep::Record);
        let ((), written) = tokio::join!(write_out, write(&folder, &record, patience));
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
        let path = path.display();
        context.say(&text!(
            "cannot write run.json in {path}: {error}",
            "无法在 {path} 写入 run.json：{error}"
        ));
    }
}

async fn write(
    folder: &Arc<LogFolder>,
    record: &RunRecord,
    patience: Duration,
) -> std::io::Result<()> {
    let bytes = record.render()?;
    let folder = Arc::clone(folder);
    in_thread(move || {
        io_with_deadline(patience, move || folder.replace(Level::Node, "run.json", &bytes))
    })
    .await
}

/// The logs' account for run.json.
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
