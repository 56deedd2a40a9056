//! The mark of a live run, for the time of a launch.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use logs::RunMark;

/// The mark of this launch, once there is one.
#[derive(Debug, Default)]
pub(super) struct MarkSlot(Mutex<Option<RunMark>>);

impl MarkSlot {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    pub(super) fn set(&self, mark: Option<RunMark>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }

    /// The launch has ended.
    pub(super) fn remove(&self, timeout: Duration) {
        let mark = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mark) = mark {
            mark.remove(timeout);
        }
    }
}
