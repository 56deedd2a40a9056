//! Where rank 0 of a job of Open MPI 4 runs, for rows of [`super::launchers`].
//!
//! mpirun starts one daemon per host, numbered from 0, which is its own host; hosts are filled in
//! the order of their daemons. No variable says whether mpirun's own host has processes, but the
//! number of this host's daemon beside the ranks that precede it does. Open MPI 5 gives processes
//! none of these variables.

use crate::host::Host;

/// The host of mpirun has processes, so rank 0 is there.
pub(super) fn first_is_with_mpirun(host: &Host) -> bool {
    daemons_without_process(host) == Some(0)
}

/// The host of mpirun has no process, so rank 0 is on that of the next daemon.
pub(super) fn first_is_second_daemon(host: &Host) -> bool {
    daemons_without_process(host) == Some(1)
}

/// Daemons before this host's that have no process, if all hosts have as many as this one.
fn daemons_without_process(host: &Host) -> Option<u32> {
    let number = |name| host.variable(name)?.trim().parse::<u32>().ok();
    let local = number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let hosts_before = number("OMPI_COMM_WORLD_RANK")?.checked_div(local)?;
    // `<job>.<daemon>;tcp://…`
    let uri = host.variable("OMPI_MCA_orte_local_daemon_uri")?;
    let (_, daemon) = uri.split_once(';')?.0.split_once('.')?;
    daemon.parse::<u32>().ok()?.checked_sub(hosts_before)
}
