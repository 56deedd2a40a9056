//! The host of MPICH's mpiexec as the master of a job whose variables name none.
//!
//! hydra starts a proxy on every host, whose command line has the address of mpiexec
//! (`hydra_pmi_proxy --control-port n1:34897 …`). Its variables name no host, so rank 0 may be
//! anywhere. The host with rank 0 knows whether mpiexec runs on it, and refuses if not. Every other
//! host knows only that rank 0 is elsewhere.

use crate::contract::{Claim, Contract, Evidence, Field, Reading, Strength};
use crate::endpoint;
use linux::host::Host;
use linux::procfs;

const PLATFORM: &str = "pmi";
const PROXY: &[u8] = b"hydra_pmi_proxy";
const OPTION: &str = "--control-port";

impl Contract {
    /// `HOST:PORT` of the mpiexec that started this process.
    pub fn mpiexec_above(host: &Host) -> Option<String> {
        // No process is read on other platforms.
        host.variable("PMI_RANK")?;
        host.ancestors().into_iter().find_map(|process| {
            let argv = host.read(format!("/proc/{}/cmdline", process.pid)).ok()?;
            let mut argv = argv.trim_end_matches('\0').split('\0');
            (procfs::basename(argv.next()?.as_bytes()) == PROXY).then_some(())?;
            argv.find(|word| *word == OPTION)?;
            argv.next().map(str::to_owned)
        })
    }

    /// Adds the evidence that mpiexec's address gives and no variable does: the id of the job, from which
    /// all nodes derive a port, and the host of the master, unless rank 0 is known to be elsewhere.
    pub fn add_mpiexec(&mut self, host: &Host, mpiexec: Option<String>) {
        let Some(value) = mpiexec.filter(|_| self.platform == PLATFORM) else { return };
        let own_name = host.read("/proc/sys/kernel/hostname").unwrap_or_default();
        let short = |name: &str| name.trim().split('.').next().unwrap_or_default().to_owned();
        let is_here = short(endpoint::split(&value).0) == short(&own_name);
        let is_first = own_index(host).map(|index| index == 0);
        let mut fields =
            vec![(Field::MasterPort, Reading::PortOfJob), (Field::JobId, Reading::Plain)];
        if is_first == Some(is_here) {
            fields.push((Field::MasterAddr, Reading::HostPart));
        }
        for (field, reading) in fields {
            let is_ours = |found: &Evidence| found.platform == PLATFORM;
            let is_given = |found: &Evidence| {
                is_ours(found) && found.field == field && !found.claim.is_blank()
            };
            if self.evidence.iter().any(is_given) {
                continue;
            }
            let after = self.evidence.iter().rposition(is_ours);
            let variable = format!("{} {OPTION}", String::from_utf8_lossy(PROXY));
            let evidence = Evidence {
                platform: PLATFORM.to_owned(),
                field,
                claim: Claim { variable, value: value.clone() },
                reading,
                beside: None,
                strength: Strength::Launcher,
            };
            self.evidence.insert(after.map_or(0, |at| at.saturating_add(1)), evidence);
        }
    }
}

/// The index of this host among those of the job, if all hosts have the same number of processes.
fn own_index(host: &Host) -> Option<u32> {
    let number = |name| host.variable(name)?.trim().parse::<u32>().ok();
    number("PMI_RANK")?.checked_div(number("MPI_LOCALNRANKS")?)
}
