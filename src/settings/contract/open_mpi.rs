//! The host of rank 0 in a job of Open MPI, for rows of [`super::launchers`].
//!
//! mpirun starts one daemon per host, numbered from 0; daemon 0 is on mpirun's own host. Hosts are
//! filled in the order of their daemons. No variable says whether mpirun's own host has processes,
//! but the number of this host's daemon and the number of ranks before this host do. Open MPI 4
//! names the hosts of all daemons. Open MPI 5 names only mpirun's own host, in the id of the job, and
//! tells each process its own daemon.

use crate::hostlist;
use linux::host::Host;

/// The variable with the address of this host's daemon, in Open MPI 4 and in Open MPI 5.
pub(super) const DAEMON: &str = "OMPI_MCA_orte_local_daemon_uri";
pub(super) const DAEMON_OF_5: &str = "PMIX_SERVER_URI2";

/// The host of mpirun has processes, so rank 0 is there.
pub(super) fn first_is_with_mpirun(host: &Host) -> bool {
    daemons_without_process(host, DAEMON) == Some(0)
}

/// The host of mpirun has no process, so rank 0 is on the host of the next daemon.
pub(super) fn first_is_second_daemon(host: &Host) -> bool {
    daemons_without_process(host, DAEMON) == Some(1)
}

/// As [`first_is_with_mpirun`], for Open MPI 5.
pub(super) fn first_is_with_prterun(host: &Host) -> bool {
    let names_host = |id: String| hostlist::of_prterun(&id).is_some();
    host.variable(DAEMON).is_none()
        && host.variable("PMIX_NAMESPACE").is_some_and(names_host)
        && daemons_without_process(host, DAEMON_OF_5) == Some(0)
}

/// Number of daemons before this host's that have no process, if all hosts have as many processes as this one.
fn daemons_without_process(host: &Host, daemon: &str) -> Option<u32> {
    let number = |name| host.variable(name)?.trim().parse::<u32>().ok();
    let local = number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let hosts_before = number("OMPI_COMM_WORLD_RANK")?.checked_div(local)?;
    // `<job>.<daemon>;tcp://…`; the id of a job of Open MPI 5 has a host name, which may have dots.
    let uri = host.variable(daemon)?;
    let (_, daemon) = uri.split_once(';')?.0.rsplit_once('.')?;
    daemon.parse::<u32>().ok()?.checked_sub(hosts_before)
}
