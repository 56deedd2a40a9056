//! Remarks on a rank that is at work while others wait for it. A remark ends nothing, since this is no
//! hang.

use std::time::Duration;

use serde_json::json;

use super::shared::{Shared, Standstill};
use text::rank::GlobalRank;

/// A remark is repeated after a wait that is longer by this factor.
const AGAIN: u32 = 2;

/// The remarks on the current wait.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    /// Ranks that the others wait for, with their nodes, and the length of the wait at the last remark.
    said: Option<(Vec<(u32, u32)>, Duration)>,
}

impl Remarks {
    pub(super) fn make(&mut self, shared: &Shared, found: &Standstill) {
        let awaited: Vec<(u32, u32)> =
            found.hang.culprits.iter().filter_map(|one| one.node.zip(one.rank)).collect();
        let is_news = self.said.as_ref().is_none_or(|(before, after)| {
            *before != awaited || found.after >= after.saturating_mul(AGAIN)
        });
        if awaited.is_empty() || !is_news || shared.state().is_closed {
            return;
        }
        if self.said.as_ref().is_some_and(|(before, _)| *before != awaited) {
            self.over(shared);
        }
        let watched = &shared.watched;
        let document = watched.reporter.document(found);
        watched.reporter.keep(json!({ "message": "held_up", "held_up": document }));
        for (node, rank) in &awaited {
            watched.board.holds_up(*node, GlobalRank(*rank));
        }
        watched.reporter.remark(found);
        self.said = Some((awaited, found.after));
    }

    /// The ranks move.
    pub(super) fn over(&mut self, shared: &Shared) {
        let Some((awaited, _)) = self.said.take() else { return };
        if shared.state().is_closed {
            return;
        }
        for (node, rank) in awaited {
            shared.watched.board.holds_up_no_more(GlobalRank(rank));
            let event = json!({ "message": "held_up_over", "node": node, "rank": rank });
            shared.watched.reporter.keep(event);
        }
    }
}
