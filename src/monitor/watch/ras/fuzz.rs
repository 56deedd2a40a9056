//! The reading of an answer as a function that a fuzzer feeds. Not part of the program.

use super::view::{RasView, read};
use text::rank::GlobalRank;

/// Reads bytes as the report of NCCL and judges it.
///
/// A rank is named only if its number is known, no rank is dead and unresponsive at once, and each rank that is
/// behind has launched less than another, the furthest behind first.
pub fn ras(data: &[u8]) -> bool {
    let Ok(view) = read(data) else { return false };
    let ranks = [(GlobalRank(0), 17), (GlobalRank(1), 18)];
    let own = |rank: &GlobalRank| ranks.iter().any(|(known, _)| known == rank);
    let local = RasView::verdict(&view, None, &ranks);
    assert!(
        local.dead.iter().chain(&local.failed).chain(&local.unresponsive).all(own),
        "{local:?}"
    );
    assert!(local.behind.iter().all(|one| own(&one.rank)), "{local:?}");
    for verdict in [local, view.verdict(Some(2), &ranks), view.verdict(Some(4), &[])] {
        assert!(verdict.dead.is_disjoint(&verdict.unresponsive), "{verdict:?}");
        assert!(verdict.behind.iter().all(|one| one.count < one.most), "{verdict:?}");
        assert!(verdict.behind.is_sorted_by_key(|one| one.count.wrapping_sub(one.most)));
    }
    assert!(view.knows(&[]));
    true
}
