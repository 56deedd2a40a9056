//! The host of MPICH's mpiexec as the master of a job whose variables name none.
//!
//! hydra starts a proxy on every host, whose command line has the address of mpiexec
//! (`hydra_pmi_proxy --control-port n1:34897 …`). Its variables name no host, so rank 0 may be
//! anywhere; but it knows whether it is where mpiexec is, and refuses if not. Other nodes can only
//! know that they are not.

use crate::endpoint;
use crate::host::Host;
use crate::observe::{Claim, Contract, Evidence, Field, Reading, Strength};
use crate::procfs;

const PLATFORM: &str = "pmi";
const PROXY: &[u8] = b"hydra_pmi_proxy";
const OPTION: &str = "--control-port";

/// `HOST:PORT` of the mpiexec that started this process.
pub(crate) fn mpiexec_above(host: &Host) -> Option<String> {
    // Of other platforms no process is read.
    host.variable("PMI_RANK")?;
    procfs::above(host).into_iter().find_map(|process| {
        let argv = host.read(format!("/proc/{}/cmdline", process.pid)).ok()?;
        let mut argv = argv.trim_end_matches('\0').split('\0');
        (procfs::basename(argv.next()?.as_bytes()) == PROXY).then_some(())?;
        argv.find(|word| *word == OPTION)?;
        argv.next().map(str::to_owned)
    })
}

/// Adds the host of mpiexec as the master, unless another one is named, or rank 0 is elsewhere.
pub(crate) fn add_mpiexec(contract: &mut Contract, host: &Host, mpiexec: Option<String>) {
    let Some(value) = mpiexec.filter(|_| contract.platform == PLATFORM) else { return };
    let is_named = |found: &Evidence| {
        found.platform == PLATFORM && found.field == Field::MasterAddr && !found.claim.is_blank()
    };
    if contract.evidence.iter().any(is_named) {
        return;
    }
    let number = |name| host.variable(name)?.trim().parse::<u32>().ok();
    let own_index =
        number("PMI_RANK").and_then(|rank| rank.checked_div(number("MPI_LOCALNRANKS")?));
    let own_name = host.read("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = |name: &str| name.trim().split('.').next().unwrap_or_default().to_owned();
    let is_here = short(endpoint::split(&value).0) == short(&own_name);
    if own_index.is_none_or(|index| (index == 0) != is_here) {
        return;
    }
    let after = contract.evidence.iter().rposition(|found| found.platform == PLATFORM);
    let evidence = Evidence {
        platform: PLATFORM.to_owned(),
        field: Field::MasterAddr,
        claim: Claim { variable: format!("hydra_pmi_proxy {OPTION}"), value },
        reading: Reading::HostPart,
        beside: None,
        strength: Strength::Launcher,
    };
    contract.evidence.insert(after.map_or(0, |at| at.saturating_add(1)), evidence);
}
