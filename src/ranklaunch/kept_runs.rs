//! Marks a run as alive, and removes the runs that `--log-keep` does not cover.
//!
//! Happens once per launch, when its log folder is open. The removal is in a thread of its own,
//! since it may have much to remove on a slow file system. Its result is reported and kept in the
//! journal.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use linux::deadline::{spawn_detached, with_deadline_async};
use logs::{LogFolder, RunMark, keep_within};
use report::closing;
use text::lang::{bytes, cause};
use text::text;

/// Time limit for setting the mark.
const MARKING: Duration = Duration::from_secs(3);

pub(super) async fn begin(context: &Context, folder: &Arc<LogFolder>) {
    let marked = Arc::clone(folder);
    let marking = with_deadline_async(MARKING, move || RunMark::set(&marked));
    context.mark.set(marking.await.flatten());
    let keep = context.settings.log_keep.value;
    let node = folder.node_path();
    let Some((base, run)) = places(&node) else { return };
    let (console, lang) = (context.console.clone(), context.lang());
    let say = move |text| console.say(&closing::line(&text, lang));
    spawn_detached(move || match keep_within(&base, &run, keep) {
        Ok(removed) => {
            let (runs, size, base) = (removed.runs, bytes(removed.bytes), base.display());
            if runs > 0 {
                tracing::info!(runs, bytes = removed.bytes, "earlier runs were removed");
                say(text!(
                    "removed {runs} earlier runs with {size} from {base} (--log-keep)",
                    "已从 {base} 删除 {runs} 次以前的运行，共 {size}（--log-keep）"
                ));
            }
            if let Some((path, why)) = removed.failed {
                let path = path.display();
                say(text!(
                    "cannot remove the earlier run {path}: {why}",
                    "无法删除以前的运行 {path}：{why}"
                ));
            }
        }
        Err(error) => {
            let (base, why) = (base.display(), cause(&error).en);
            tracing::warn!(folder = %base, error = %why, "--log-keep: the log folder cannot be read");
        }
    });
}

/// The log folder and the folder of the run above that of a launcher.
fn places(launcher: &Path) -> Option<(PathBuf, PathBuf)> {
    let run = launcher.parent()?;
    Some((run.parent()?.to_owned(), run.to_owned()))
}
