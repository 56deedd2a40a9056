//! Where the ranks are when their time to end is over: a rank that did not save in time is told what it was doing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::Context;
use diagnose::Frame;
use diagnose::stacks::RankStacks;
use linux::deadline::with_deadline;
use monitor::socket::{RunningRanks, Selection};
use text::escape::printable;
use text::ranges::listed;
use text::text;

/// Time limit of the reading, for which SIGKILL waits; a short grace period has only a part of itself.
const READING: Duration = Duration::from_millis(500);
const PART: u32 = 10;

/// Says the innermost line of the user's own code of each rank that still runs.
pub(super) fn say(context: &Context, running: &RunningRanks) {
    let (running, limit) = (running.clone(), READING.min(context.settings.grace.value / PART));
    let read = with_deadline(limit, move || running.read(&Selection::default()));
    let mut places: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for rank in read.iter().flat_map(|read| &read.ranks) {
        if let Some(place) = place(rank) {
            places.entry(place).or_default().push(rank.rank.0);
        }
    }
    for (place, ranks) in places {
        let ranks = listed(ranks, '-');
        context.say(&text!(
            "rank {ranks} has not ended in time: {place}",
            "rank {ranks} 未能及时结束：{place}"
        ));
    }
}

/// `train.py:41 in save`
fn place(rank: &RankStacks) -> Option<String> {
    let Frame { path, line, function } = rank.process.threads.first()?.own_frame()?;
    Some(printable(&format!("{path}:{line} in {function}")).into_owned())
}
