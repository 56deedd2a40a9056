//! Who besides the processes of a job can say why it ended: the driver.
//!
//! Takes what watches them; gives their [`Statement`]s to the diagnosis, at any time.

use std::time::Instant;

use super::statements::Statement;
use super::xid_watch::XidWatch;

/// All of them, of one attempt.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    pub(super) xids: Option<XidWatch>,
}

impl Witnesses {
    /// What they said up to now.
    pub(super) fn statements(&self) -> Vec<Statement> {
        self.xids.iter().flat_map(XidWatch::statements).collect()
    }

    /// When the first of them said something while the ranks ran.
    pub(super) fn first(&self) -> Option<Instant> {
        self.xids.as_ref().and_then(XidWatch::first)
    }
}
