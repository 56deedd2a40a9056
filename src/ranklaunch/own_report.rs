//! Inputs of the report of this launch: the folder that it goes to, and the history for node 0.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use logs::LogFolder;

/// Time for which the answer to node 0 waits for the end of the run here.
const WAITS: Duration = Duration::from_secs(3);

/// The report of this launch.
#[derive(Debug, Default)]
pub(super) struct RunReport {
    /// None before the run has a folder.
    folder: Mutex<Option<Arc<LogFolder>>>,
    history: OwnHistory,
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

impl RunReport {
    /// The folder of this attempt.
    pub(super) fn goes_to(&self, folder: Option<&Arc<LogFolder>>) {
        *self.folder.lock().unwrap_or_else(PoisonError::into_inner) = folder.cloned();
    }

    /// The history for node 0.
    pub(super) fn history(&self) -> OwnHistory {
        self.history.clone()
    }

    pub(super) fn folder(&self) -> Option<Arc<LogFolder>> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
