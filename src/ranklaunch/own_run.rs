//! The run of this launch in its log folder: the folder itself, its mark of life, the earlier runs beside it, and the
//! history that goes to node 0.
//!
//! The mark and the removal of runs that `--log-keep` does not cover happen once per launch, when the log folder is
//! open. The removal is in a thread of its own, since it may have much to remove on a slow file system. Its result
//! is reported and kept in the journal.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use linux::deadline::{spawn_detached, with_deadline_async};
use logs::{LogFolder, RunMark, keep_within};
use settings::LogKeep;
use text::lang::{Text, bytes, cause};
use text::text;

/// Time for which the answer to node 0 waits for the end of the run here.
const WAITS: Duration = Duration::from_secs(3);
/// Time limit for setting the mark.
const MARKING: Duration = Duration::from_secs(3);

/// The run of this launch.
#[derive(Debug, Default)]
pub(super) struct OwnRun {
    /// None before the run has a folder.
    folder: Mutex<Option<Arc<LogFolder>>>,
    /// The mark in the log folder that shows that the run lives.
    mark: Mutex<Option<RunMark>>,
    pub(super) history: OwnHistory,
}

/// The history that this launcher gives node 0 at the end. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnHistory(Arc<(Mutex<Option<Vec<u8>>>, Condvar)>);

impl OwnHistory {
    pub(super) fn give(&self, history: Vec<u8>) {
        let (slot, given) = &*self.0;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(history);
        given.notify_all();
    }

    pub(super) fn is_given(&self) -> bool {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until the run is over here; empty if that takes too long.
    pub(super) fn wait(&self) -> Vec<u8> {
        let (slot, given) = &*self.0;
        let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = given.wait_timeout_while(slot, WAITS, |slot| slot.is_none());
        let (slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        slot.clone().unwrap_or_default()
    }
}

impl OwnRun {
    /// The folder of this attempt.
    pub(super) fn goes_to(&self, folder: Option<&Arc<LogFolder>>) {
        *self.folder.lock().unwrap_or_else(PoisonError::into_inner) = folder.cloned();
    }

    pub(super) fn folder(&self) -> Option<Arc<LogFolder>> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Marks the run in this folder as alive, and removes the runs beside it that `keep` does not cover; only once.
    pub(super) async fn begin(
        &self,
        folder: &Arc<LogFolder>,
        keep: LogKeep,
        say: impl Fn(&Text) + Send + 'static,
    ) {
        if self.mark.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return;
        }
        let marked = Arc::clone(folder);
        let mark = with_deadline_async(MARKING, move || RunMark::set(&marked)).await.flatten();
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
        let node = folder.node_path();
        let Some(run) = node.parent().map(ToOwned::to_owned) else { return };
        let Some(base) = run.parent().map(ToOwned::to_owned) else { return };
        spawn_detached(move || match keep_within(&base, &run, keep) {
            Ok(removed) => {
                let (runs, size, base) = (removed.runs, bytes(removed.bytes), base.display());
                if runs > 0 {
                    tracing::info!(runs, bytes = removed.bytes, "earlier runs were removed");
                    say(&text!(
                        "removed {runs} earlier runs with {size} from {base} (--log-keep)",
                        "已从 {base} 删除 {runs} 次以前的运行，共 {size}（--log-keep）"
                    ));
                }
                if let Some((path, why)) = removed.failed {
                    let path = path.display();
                    say(&text!(
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

    /// The launch has ended.
    pub(super) fn remove_mark(&self, timeout: Duration) {
        let mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mark) = mark {
            mark.remove(timeout);
        }
    }
}
