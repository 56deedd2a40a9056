//! The readings that a field can have, for a row that a profile writes.
//!
//! The planner would treat any other reading of a field as a plain number. So a row of any table has
//! one of these readings; tests hold the program's own rows to this rule too.

use Field::{
    Cpus, GpuCount, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Nproc, Offered, RdzvBackend,
    RdzvEndpoint, Standalone, TaskLocal, TaskRank, Tasks, TasksPerNode,
};
use Reading::{
    Cluster, DaemonHost, FirstOfList, HostPart, HostlistFirst, ListLength, LocalIndex, Loopback,
    MainFirst, PerNode, PerTask, Plain, PortOfJob, PortPart, PositionInHostlist, PositionInList,
    Processes, PrterunHost, Range, SecondDaemon, Sum, TaskList,
};

use crate::contract::{Field, Reading};

/// Whether a reading has a second variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Never,
    /// The second variable may be absent.
    Maybe,
    Always,
}

const OF_FIELDS: &[(Field, &[Reading])] = &[
    (Nnodes, &[Plain, Range, ListLength, PerNode, Sum, Processes, Cluster]),
    (NodeRank, &[Plain, PositionInList, PositionInHostlist, MainFirst, Processes, Cluster]),
    (
        MasterAddr,
        &[
            Plain,
            FirstOfList,
            HostPart,
            HostlistFirst,
            Loopback,
            Cluster,
            DaemonHost,
            SecondDaemon,
            PrterunHost,
        ],
    ),
    (MasterPort, &[Plain, PortPart, PortOfJob, Cluster]),
    (Nproc, &[Plain]),
    (Offered, &[Plain]),
    (GpuCount, &[Plain]),
    (TasksPerNode, &[Plain, TaskList, LocalIndex]),
    (Tasks, &[Plain]),
    (TaskRank, &[Plain, TaskList]),
    (TaskLocal, &[Plain]),
    (Cpus, &[Plain, PerTask]),
    (JobId, &[Plain]),
    (RdzvEndpoint, &[Plain]),
    (RdzvBackend, &[Plain]),
    (Standalone, &[Plain]),
];

/// The readings of a field, `plain` first; empty for a field that only the program's own rows
/// give: WORLD_SIZE and RANK, whose meaning `--world-size-counts` sets.
pub(crate) fn readings_of(field: Field) -> &'static [Reading] {
    OF_FIELDS.iter().find(|(of, _)| *of == field).map_or(&[], |(_, readings)| readings)
}

/// Every field that a profile can give.
pub fn fields() -> impl Iterator<Item = Field> {
    OF_FIELDS.iter().map(|(field, _)| *field)
}

pub(crate) fn beside_of(reading: Reading) -> Beside {
    match reading {
        PositionInList | PositionInHostlist | PerNode | Sum | TaskList => Beside::Always,
        MainFirst | PortOfJob => Beside::Maybe,
        _ => Beside::Never,
    }
}
