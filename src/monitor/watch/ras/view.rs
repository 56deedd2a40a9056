//! The report of RAS as JSON, and its meaning for the ranks that keep the others waiting.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use text::order::{InOrder, Ordered};
use text::rank::GlobalRank;

/// All communicators of a job, as RAS knows them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RasView {
    pub communicators: Vec<RasCommunicator>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RasCommunicator {
    #[serde(default)]
    pub hash: String,
    /// Number of ranks of the communicator.
    #[serde(default)]
    pub size: u32,
    #[serde(default)]
    pub ranks: Vec<RasRank>,
    /// Ranks that RAS did not reach.
    #[serde(default)]
    pub missing_ranks: Vec<RasRank>,
}

/// A rank, as far as RAS knows it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RasRank {
    /// Rank in the communicator.
    pub rank: u32,
    /// An IP address.
    #[serde(default)]
    pub host: String,
    #[serde(default)]
    pub pid: i32,
    #[serde(default)]
    pub status: RasStatus,
    /// Number of collectives that the rank launched, by kind.
    #[serde(default)]
    pub collective_counts: BTreeMap<String, u64>,
}

/// The states are `ncclResult_t`s: 0 success, 7 in progress, others are errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RasStatus {
    pub init_state: i32,
    pub async_error: i32,
    /// A missing rank did not answer this time.
    pub unresponsive: bool,
    /// A missing rank has not answered for a minute.
    pub considered_dead: bool,
}

/// A rank that launched fewer collectives than others of its communicator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Behind {
    pub rank: GlobalRank,
    /// Hash of the communicator.
    pub communicator: String,
    /// `AllReduce`
    pub op: String,
    pub count: u64,
    /// Count of the rank that is furthest.
    pub most: u64,
    /// Ranks of the communicator.
    pub of: u32,
}

/// The meaning of the view, by global ranks as far as they can be determined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasVerdict {
    /// Considered dead by NCCL.
    pub dead: BTreeSet<GlobalRank>,
    /// Ranks not reached this time: stopped, or without RAS thread or link.
    pub unresponsive: BTreeSet<GlobalRank>,
    /// Ranks that are behind, the furthest first, at most 512.
    pub behind: Vec<Behind>,
    /// Ranks with an error of NCCL that the program has not checked.
    pub failed: BTreeSet<GlobalRank>,
}

/// IN_PROGRESS of ncclResult_t.
const IN_PROGRESS: i32 = 7;
/// Maximum number of reported ranks that are behind: each node hears of all ranks of a job, and reports them to
/// node 0. If so many are behind, the few others are ahead.
const MOST_BEHIND: usize = 512;
/// Operations of which a healthy rank may have launched fewer than others.
const BETWEEN_TWO: &[&str] = &["Send", "Recv", "SendRecv"];

impl RasView {
    /// Whether the view contains one of these processes. True if the view or `ranks` has no process, since nothing
    /// can be decided then.
    pub fn knows(&self, ranks: &[(GlobalRank, i32)]) -> bool {
        let listed = self.communicators.iter().flat_map(|one| {
            let missing = one.missing_ranks.iter().map(|rank| rank.pid);
            one.ranks.iter().map(|rank| rank.pid).chain(missing)
        });
        let listed: BTreeSet<i32> = listed.in_set();
        ranks.is_empty() || listed.is_empty() || ranks.iter().any(|(_, pid)| listed.contains(pid))
    }

    /// `world`: number of ranks of the job. `ranks`: the ranks of this node with their pids. A communicator of all
    /// ranks numbers them as the job does; in a smaller one only the ranks of this node are known.
    pub fn verdict(&self, world: Option<u32>, ranks: &[(GlobalRank, i32)]) -> RasVerdict {
        let own_host = self.own_host(ranks);
        let global = |of: &RasCommunicator, rank: u32, host: &str, pid: i32| {
            if world == Some(of.size) {
                return Some(GlobalRank(rank));
            }
            let own = ranks.iter().find(|(_, own)| *own == pid && own_host == Some(host));
            own.map(|(rank, _)| *rank)
        };
        let mut verdict = RasVerdict::default();
        for one in &self.communicators {
            for missing in &one.missing_ranks {
                let Some(rank) = global(one, missing.rank, &missing.host, missing.pid) else {
                    continue;
                };
                if missing.status.considered_dead {
                    verdict.dead.insert(rank);
                } else if missing.status.unresponsive {
                    verdict.unresponsive.insert(rank);
                }
            }
            let mut most: BTreeMap<&str, u64> = BTreeMap::new();
            for (op, count) in one.ranks.iter().flat_map(|rank| &rank.collective_counts) {
                let known = most.entry(op).or_default();
                *known = (*known).max(*count);
            }
            for reached in &one.ranks {
                let Some(rank) = global(one, reached.rank, &reached.host, reached.pid) else {
                    continue;
                };
                let status = reached.status;
                if [status.init_state, status.async_error]
                    .iter()
                    .any(|code| ![0, IN_PROGRESS].contains(code))
                {
                    verdict.failed.insert(rank);
                }
                let behind = reached.collective_counts.iter().filter_map(|(op, count)| {
                    let most =
                        *most.get(op.as_str()).filter(|_| !BETWEEN_TWO.contains(&op.as_str()))?;
                    let (communicator, op) = (one.hash.clone(), op.clone());
                    (*count < most).then_some(Behind {
                        rank,
                        communicator,
                        op,
                        count: *count,
                        most,
                        of: one.size,
                    })
                });
                verdict.behind.extend(behind);
            }
        }
        let dead = &verdict.dead;
        verdict.unresponsive.retain(|rank| !dead.contains(rank));
        verdict.behind.order_by_key(|one| (std::cmp::Reverse(one.most - one.count), one.rank));
        verdict.behind.truncate(MOST_BEHIND);
        verdict
    }

    /// The host for which most of our processes are listed; processes of other nodes may have the same pids.
    fn own_host(&self, ranks: &[(GlobalRank, i32)]) -> Option<&str> {
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        for reached in self.communicators.iter().flat_map(|one| &one.ranks) {
            if ranks.iter().any(|(_, pid)| *pid == reached.pid) {
                *found.entry(&reached.host).or_default() += 1;
            }
        }
        found.into_iter().max_by_key(|(_, count)| *count).map(|(host, _)| host)
    }
}

/// Parses a report. NCCL 2.28.9 forgets a comma among missing ranks.
///
/// # Errors
/// The bytes are not a report.
pub(super) fn read(bytes: &[u8]) -> Result<RasView, serde_json::Error> {
    serde_json::from_slice(bytes).or_else(|error| match with_commas(bytes) {
        Cow::Owned(repaired) => serde_json::from_slice(&repaired),
        Cow::Borrowed(_) => Err(error),
    })
}

/// The report with a comma added wherever a value or a field begins directly after another one.
fn with_commas(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut repaired = Vec::new();
    let (mut taken, mut in_string, mut escaped) = (0, false, false);
    let mut before = b'{';
    for (at, byte) in bytes.iter().enumerate() {
        if in_string {
            in_string = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        if byte.is_ascii_whitespace() {
            continue;
        }
        let begins = matches!(byte, b'"' | b'{');
        if begins && !matches!(before, b'{' | b'[' | b',' | b':') {
            // The comma is missing directly after the value, as NCCL writes it.
            let end = bytes[..at].iter().rposition(|byte| !byte.is_ascii_whitespace());
            let end = end.map_or(at, |last| last + 1);
            repaired.extend_from_slice(&bytes[taken..end]);
            repaired.push(b',');
            taken = end;
        }
        in_string = *byte == b'"';
        before = *byte;
    }
    if taken == 0 {
        return Cow::Borrowed(bytes);
    }
    repaired.extend_from_slice(&bytes[taken..]);
    Cow::Owned(repaired)
}
