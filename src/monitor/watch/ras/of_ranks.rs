//! Whether the RAS of these ranks is asked, and at which address.

use std::path::Path;
use std::time::{Duration, Instant};

use super::client::{ADDRESS, RasError, RasReport, ask};
use super::view::RasVerdict;
use linux::deadline::with_deadline;
use linux::host::Host;
use linux::procfs::{self, Process};
use text::rank::GlobalRank;

/// The value 0 switches RAS off.
const ENABLED: &str = "NCCL_RAS_ENABLE";
/// Least time that remains for the RAS after the environments of the ranks, which are read first.
const LEAST: Duration = Duration::from_millis(500);

/// Ranks with the pids of processes.
type Pids = Vec<(GlobalRank, i32)>;

/// The ranks that may have a RAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RasSource {
    /// The ranks use GPUs, so RAS listens unless it is switched off.
    Gpus,
    /// RAS is asked only if the ranks name its address.
    IfNamed,
}

/// The report of the job that these ranks belong to. None if the job has no RAS to ask. Blocks for `timeout` at
/// most.
pub fn report(
    source: RasSource,
    ranks: &[(GlobalRank, i32)],
    timeout: Duration,
) -> Option<Result<RasReport, RasError>> {
    Some(asked(source, ranks, timeout)?.1)
}

/// The meaning of the report. None also if no report can be read. `world`: ranks of the job.
pub fn verdict(
    source: RasSource,
    world: Option<u32>,
    ranks: &[(GlobalRank, i32)],
    timeout: Duration,
) -> Option<RasVerdict> {
    let (processes, report) = asked(source, ranks, timeout)?;
    Some(report.ok()?.view?.verdict(world, &processes))
}

/// The report, asked for with the processes of the ranks.
fn asked(
    source: RasSource,
    ranks: &[(GlobalRank, i32)],
    timeout: Duration,
) -> Option<(Pids, Result<RasReport, RasError>)> {
    let until = Instant::now() + timeout;
    let own = ranks.to_vec();
    let (address, processes) = with_deadline(timeout.saturating_sub(LEAST), move || {
        let host = Host::live();
        Some((address(&host, source, &own)?, processes(&own)))
    })??;
    let left = until.saturating_duration_since(Instant::now());
    let report = ask(address.as_deref(), &processes, left);
    Some((processes, report))
}

/// The RAS address of the first rank that has one. An inner None is NCCL's own address; an outer None means that
/// there is no RAS.
fn address(host: &Host, source: RasSource, ranks: &[(GlobalRank, i32)]) -> Option<Option<String>> {
    ranks.iter().find_map(|(_, pid)| {
        // A rank whose environment is hidden is taken to have NCCL's defaults.
        let environ = host.process(*pid).environ().unwrap_or_default();
        let value = |name| {
            let value = String::from_utf8_lossy(procfs::variable(&environ, name)?).into_owned();
            Some(value).filter(|value| !value.is_empty())
        };
        let named = value(ADDRESS);
        let is_on = value(ENABLED).is_none_or(|value| value.trim() != "0");
        (is_on && (named.is_some() || source == RasSource::Gpus)).then_some(named)
    })
}

/// The ranks with the pids of their processes and of all descendants: any of these may be the one that uses
/// NCCL.
fn processes(ranks: &[(GlobalRank, i32)]) -> Pids {
    let all = Process::scan(Path::new("/proc"));
    let below = |rank: &(GlobalRank, i32)| {
        let rank = *rank;
        let below = Process::descendants(&all, &[rank.1]);
        std::iter::once(rank).chain(below.into_iter().map(move |one| (rank.0, one.pid)))
    };
    ranks.iter().flat_map(below).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A process with this environment, which waits for its input to end.
    fn rank(variables: &[(&str, &str)]) -> Child {
        let mut command = Command::new("cat");
        command.env_clear().envs(variables.iter().copied());
        command.stdin(std::process::Stdio::piped()).spawn().expect("cat")
    }

    #[test]
    fn rank_environment_names_the_ras_address() {
        let host = Host::live();
        let named = Some(Some("127.0.0.1:4000".to_owned()));
        for (variables, gpus, else_named) in [
            (&[(ADDRESS, "127.0.0.1:4000")][..], &named, &named),
            (&[(ADDRESS, "127.0.0.1:4000"), (ENABLED, "0")], &None, &None),
            (&[(ADDRESS, "127.0.0.1:4000"), (ENABLED, "1")], &named, &named),
            (&[], &Some(None), &None),
            (&[(ADDRESS, "")], &Some(None), &None),
        ] {
            let mut child = rank(variables);
            let ranks = [(GlobalRank(0), child.id().cast_signed())];
            assert_eq!(&address(&host, RasSource::Gpus, &ranks), gpus, "{variables:?}");
            assert_eq!(&address(&host, RasSource::IfNamed, &ranks), else_named, "{variables:?}");
            assert!(processes(&ranks).contains(&ranks[0]));
            drop(child.stdin.take());
            child.wait().expect("it ends");
        }
    }
}
