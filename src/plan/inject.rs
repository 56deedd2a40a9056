//! Decides whether the ranks get torch's worker server.
//!
//! The server costs a rank only threads: httplib starts one per CPU of the machine, less one, and
//! at least eight, whatever the container may use; torch adds one thread that listens
//! (`c10d/control_plane/WorkerServer.cpp`). A container with few processes left must not spend
//! them on the server.

use super::notes::Notes;
use linux::cpus::CpuList;
use node::observe::Limits;
use settings::{Need, Settings};
use text::text;

const LEAST_THREADS: u64 = 8;
/// The part of the remaining processes that the server may take, as a divisor.
const SHARE: u64 = 4;

/// Whether `ranks` ranks of this launcher may start the server.
pub(super) fn injects(settings: &Settings, limits: &Limits, ranks: u32, notes: &mut Notes) -> bool {
    let chosen = &settings.inject;
    if chosen.value == Need::Off {
        let because = text!(
            "no worker server in the ranks: what they wait for is seen from outside only",
            "rank 中不启动 worker server：只能从外部观察它们在等待什么"
        );
        notes.decide("inject", "off", because, &chosen.source);
        return false;
    }
    let threads = threads(limits) * u64::from(ranks);
    let Some((left, source)) = processes_left(limits) else { return true };
    let fits = threads <= left / SHARE;
    if !fits {
        let because = text!(
            "torch's worker server has {threads} threads in {ranks} ranks, more than a quarter of the {left} that may still start",
            "{ranks} 个 rank 的 worker server 共有 {threads} 个线程，超过还可启动的 {left} 个的四分之一"
        );
        notes.decide("inject", "off", because, source);
    }
    fits
}

/// Threads of the server in one rank.
fn threads(limits: &Limits) -> u64 {
    let machine: usize = limits.numa.values().map(CpuList::len).sum();
    let cpus = u64::try_from(machine).unwrap_or(0).max(u64::from(limits.cpus));
    cpus.saturating_sub(1).max(LEAST_THREADS) + 1
}

/// Processes and threads that may still start, and the limit that applies; None without a limit.
fn processes_left(limits: &Limits) -> Option<(u64, &'static str)> {
    let of_group =
        limits.pids_max.map(|max| max.saturating_sub(limits.pids_current.unwrap_or_default()));
    let of_group = of_group.map(|left| (left, "pids.max"));
    let of_user = limits.nproc_soft.map(|most| (most, "ulimit -u"));
    of_group.into_iter().chain(of_user).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{flag, settings};

    fn limits(cpus: &str, pids_max: Option<u64>) -> Limits {
        let numa = [(0, CpuList::read(cpus))].into();
        Limits { cpus: 4, numa, pids_max, pids_current: Some(40), ..Limits::default() }
    }

    #[test]
    fn server_takes_at_most_a_quarter_of_processes() {
        for (cpus, pids_max, fits) in [
            ("0-191", None, true),
            // 8 × 192 threads.
            ("0-191", Some(40 + 4 * 8 * 192), true),
            ("0-191", Some(40 + 4 * 8 * 192 - 1), false),
            // 8 × 9 threads.
            ("0-1", Some(40 + 4 * 8 * 9), true),
            ("0-1", Some(40 + 4 * 8 * 9 - 1), false),
            ("0-1", Some(0), false),
        ] {
            let mut notes = Notes::default();
            let found = injects(&settings(&[]), &limits(cpus, pids_max), 8, &mut notes);
            assert_eq!(found, fits, "{cpus} {pids_max:?}");
            assert_eq!(notes.decisions.len(), usize::from(!fits), "{:?}", notes.decisions);
        }
    }

    #[test]
    fn the_tightest_limit_is_the_source() {
        for (user, expected) in [(4096, "pids.max"), (100, "ulimit -u")] {
            let limits = Limits { nproc_soft: Some(user), ..limits("0-191", Some(240)) };
            let mut notes = Notes::default();
            assert!(!injects(&settings(&[]), &limits, 8, &mut notes));
            let decision = notes.decisions.first().expect("a decision");
            let left = user.min(200);
            assert_eq!(decision.source, expected);
            assert!(decision.because.en.contains(&format!("of the {left} that")), "{decision:?}");
        }
    }

    #[test]
    fn user_can_turn_the_server_off() {
        let mut settings = settings(&[]);
        settings.inject = flag(Need::Off, "--inject");
        let mut notes = Notes::default();
        assert!(!injects(&settings, &limits("0-1", None), 1, &mut notes));
        assert_eq!(notes.decisions.len(), 1);
    }
}
