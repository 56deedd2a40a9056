//! The form of a contract: what proves a platform, and which variable gives which field.
//!
//! The program's own rows are in [`super::table`], [`super::launchers`] and
//! [`super::conventions`]; a profile may add one (`[platform]`). All are read by the same code. The
//! planner would treat any other reading of a field than those of [`readings_of`] as a plain number,
//! so a row of any table has one of these; tests hold the program's own rows to this rule too.

use std::borrow::Cow;
use std::fmt;

use Field::{
    Cpus, GpuCount, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Nproc, Offered, RdzvBackend,
    RdzvEndpoint, Standalone, TaskLocal, TaskRank, Tasks, TasksPerNode,
};
use Reading::{
    Cluster, DaemonHost, FirstOfList, HostPart, HostlistFirst, ListLength, LocalIndex, Loopback,
    MainFirst, PerNode, PerTask, Plain, PortOfJob, PortPart, PositionInHostlist, PositionInList,
    Processes, PrterunHost, Range, SecondDaemon, Sum, TaskList,
};

use crate::contract::{Field, Reading, Strength};
use linux::host::Host;

/// Tests, or rows of variables, in groups.
pub(crate) type Groups<T> = &'static [&'static [T]];

/// One contract.
#[derive(Debug)]
pub struct Platform {
    pub id: &'static str,
    pub strength: Strength,
    /// The platform is proven when all tests of any one group hold.
    pub proofs: Groups<Test>,
    /// In order; rows that several platforms share are groups.
    pub claims: Groups<PlatformRow>,
    /// The master port if the contract does not give it.
    pub default_port: Option<u16>,
}

#[derive(Debug, Clone, Copy)]
pub enum Test {
    Set(&'static str),
    Unset(&'static str),
    Is(&'static str, &'static str),
    Ends(&'static str, &'static str),
    /// A property of several variables, by the name of one of them.
    Holds(&'static str, fn(&Host) -> bool),
    /// A port, but not the tcp://… of a Kubernetes Service link.
    Port(&'static str),
}

#[derive(Debug, Clone, Copy)]
pub struct PlatformRow {
    pub field: Field,
    /// `{OTHER}` in the name stands for the value of another variable.
    pub variable: &'static str,
    pub reading: Reading,
    pub beside: Option<&'static str>,
    /// Read only if the rows before it give no value for the field.
    pub fallback: bool,
    /// Read only if this test holds.
    pub only: Option<fn(&Host) -> bool>,
}

pub(super) const fn is(field: Field, variable: &'static str) -> PlatformRow {
    PlatformRow { field, variable, reading: Plain, beside: None, fallback: false, only: None }
}

pub(super) const fn or(field: Field, variable: &'static str) -> PlatformRow {
    PlatformRow { fallback: true, ..is(field, variable) }
}

pub(super) const fn as_(row: PlatformRow, reading: Reading) -> PlatformRow {
    PlatformRow { reading, ..row }
}

pub(super) const fn only(row: PlatformRow, test: fn(&Host) -> bool) -> PlatformRow {
    PlatformRow { only: Some(test), ..row }
}

pub(super) const fn beside(row: PlatformRow, variable: &'static str) -> PlatformRow {
    PlatformRow { beside: Some(variable), ..row }
}

/// The number of nodes and the rank of this node.
pub(super) const fn nodes(count: &'static str, rank: &'static str) -> [PlatformRow; 2] {
    [is(Nnodes, count), is(NodeRank, rank)]
}

/// The user's master, which wins if the platform leaves both variables to the user.
pub(super) const MASTER: [PlatformRow; 2] =
    [is(MasterAddr, "MASTER_ADDR"), is(MasterPort, "MASTER_PORT")];

/// The user's master, or the platform's own name of it.
pub(super) const fn master(variable: &'static str, reading: Reading) -> [PlatformRow; 3] {
    let [address, port] = MASTER;
    [address, as_(or(MasterAddr, variable), reading), port]
}

/// A description of the cluster, and the user's master.
pub(super) const fn cluster(spec: &'static str) -> [PlatformRow; 6] {
    let [nnodes, rank] = nodes(spec, spec);
    let [own_address, address, own_port] = master(spec, Cluster);
    let port = as_(or(MasterPort, spec), Cluster);
    [as_(nnodes, Cluster), as_(rank, Cluster), own_address, address, own_port, port]
}

impl Strength {
    /// A platform whose claims have this strength, without a port of its own.
    pub(super) const fn platform(
        self,
        id: &'static str,
        proofs: Groups<Test>,
        claims: Groups<PlatformRow>,
    ) -> Platform {
        Platform { id, strength: self, proofs, claims, default_port: None }
    }
}

impl PlatformRow {
    /// The name of the row's variable; None if a part of the name is not known.
    pub(super) fn name(&self, host: &Host) -> Option<Cow<'static, str>> {
        let Some((before, rest)) = self.variable.split_once('{') else {
            return Some(Cow::Borrowed(self.variable));
        };
        let (other, after) = rest.split_once('}')?;
        Some(Cow::Owned(format!("{before}{}{after}", host.variable(other)?.trim())))
    }
}

impl Test {
    pub(super) const fn variable(&self) -> &'static str {
        match self {
            Test::Set(name)
            | Test::Unset(name)
            | Test::Is(name, _)
            | Test::Ends(name, _)
            | Test::Holds(name, _)
            | Test::Port(name) => name,
        }
    }

    pub(super) fn holds(&self, host: &Host) -> bool {
        let value = host.variable(self.variable());
        match self {
            Test::Set(_) => value.is_some(),
            Test::Unset(_) => value.is_none(),
            Test::Is(_, wanted) => value.is_some_and(|found| found == *wanted),
            Test::Ends(_, end) => value.is_some_and(|found| found.ends_with(end)),
            Test::Holds(_, test) => test(host),
            Test::Port(_) => value.is_some_and(|found| found.parse::<u16>().is_ok()),
        }
    }
}

/// As a profile writes it: `NAME`, `!NAME`, `NAME=VALUE`, `NAME=*END`.
impl fmt::Display for Test {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Set(name) | Test::Holds(name, _) | Test::Port(name) => out.write_str(name),
            Test::Unset(name) => write!(out, "!{name}"),
            Test::Is(name, value) => write!(out, "{name}={value}"),
            Test::Ends(name, end) => write!(out, "{name}=*{end}"),
        }
    }
}

impl Platform {
    pub(super) const fn port(self, port: u16) -> Platform {
        Platform { default_port: Some(port), ..self }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &'static PlatformRow> {
        self.claims.iter().copied().flatten()
    }

    pub(super) fn is_proven(&self, host: &Host) -> bool {
        self.proofs.iter().any(|group| group.iter().all(|test| test.holds(host)))
    }

    /// The failing tests of the group that is nearest to a proof; empty if the platform is proven.
    pub(super) fn missing(&self, host: &Host) -> Vec<&'static Test> {
        let failing = |group: &&'static [Test]| -> Vec<&'static Test> {
            group.iter().filter(|test| !test.holds(host)).collect()
        };
        self.proofs.iter().map(failing).min_by_key(Vec::len).unwrap_or_default()
    }
}

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
