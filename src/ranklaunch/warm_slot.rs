//! The place of the warmed interpreter in the context of a launch.

use std::sync::{Arc, OnceLock};

use supervise::warm::Warmed;
use text::lang::Text;

/// The interpreter of this launch, or the reason why there is none; empty if nobody asked for it.
#[derive(Debug, Clone, Default)]
pub(super) struct WarmSlot(pub(super) Arc<OnceLock<Result<Warmed, Text>>>);

impl WarmSlot {
    /// Ends the interpreter. Ranks that it has forked go on.
    pub(super) fn end(&self) {
        if let Some(Ok(warmed)) = self.0.get() {
            warmed.end();
        }
    }
}
