//! Claims of platform variables about the job, unparsed: plain data that can travel to another node.

use serde::{Deserialize, Serialize};

use text::lang::Text;
use verdict::Warning;

/// The claims of the platform about the job. `plan` decides which wins.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Contract {
    /// Id of the contract with the most specific evidence (`kubeflow-pytorchjob`); `none` without any.
    pub platform: String,
    /// A living ancestor that is torchrun: pid and command line.
    pub inside_torchrun: Option<(i32, String)>,
    /// LOCAL_RANK and the like that are set although no torchrun is our ancestor.
    pub stale_rank_variables: Vec<String>,
    /// PET_* variables, which never reach the engine.
    pub pet_variables: Vec<Claim>,
    /// Warnings about this platform.
    pub warnings: Vec<Warning>,
    /// Every claim of every contract whose variables are present, strongest first.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
    /// Variables that are set but unused by every detected platform.
    #[serde(default)]
    pub unread: Vec<Unread>,
    /// The platform's default master port.
    #[serde(default)]
    pub default_port: Option<u16>,
    /// Advice for this platform if a part of the evidence is missing.
    #[serde(default)]
    pub advice: Option<Text>,
    /// The node's own names and addresses.
    #[serde(default)]
    pub own_names: Vec<String>,
}

impl Contract {
    /// The strongest claim of a field that is not blank, else the strongest blank one.
    pub fn first(&self, field: Field) -> Option<&Claim> {
        let of_field = || self.evidence.iter().filter(|found| found.field == field);
        let spoken = of_field().find(|found| !found.claim.is_blank());
        spoken.or_else(|| of_field().next()).map(|found| &found.claim)
    }
}

/// A variable and its value, unparsed, so that a refusal can quote both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub variable: String,
    pub value: String,
}

/// A claim with its field, its reading and its strength.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Contract id.
    pub platform: String,
    pub field: Field,
    pub claim: Claim,
    pub reading: Reading,
    /// The second variable of a reading that needs one.
    pub beside: Option<Claim>,
    pub strength: Strength,
}

/// A variable that is set and not read, with the platform that would read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    pub platform: String,
    /// None: the platform is the profile's, and none of its variables is set.
    pub claim: Option<Claim>,
    /// The failing tests of the proof that is nearest to holding, as a profile writes them: `NAME`, `!NAME`.
    /// Empty: the platform is proven, and an earlier variable of the platform gives the field.
    pub missing: Vec<String>,
}

/// The field that a variable of a contract gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    Nnodes,
    NodeRank,
    /// A count that may mean nodes or processes.
    WorldSize,
    /// The rank that comes with [`Field::WorldSize`].
    Rank,
    MasterAddr,
    MasterPort,
    /// Processes per node that the user requested.
    Nproc,
    /// Processes per node that the platform sets by itself: the capacity of the node, not a
    /// request.
    Offered,
    GpuCount,
    RdzvEndpoint,
    RdzvBackend,
    /// torchrun's `--standalone`; any value means yes.
    Standalone,
    /// Number of tasks on this node.
    TasksPerNode,
    /// Number of tasks of the job.
    Tasks,
    /// Number of this task in the job.
    TaskRank,
    /// Number of this task on its node.
    TaskLocal,
    /// Evidence of other nodes or processes that does not tell the place of this one. It counts only
    /// if nothing else gives the number of nodes.
    Several,
    /// CPUs of this task, whether or not the platform binds it to them.
    Cpus,
    JobId,
}

/// The way in which the value of a variable becomes the value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    Plain,
    /// `n` or `min:max`.
    Range,
    /// Number of entries of a list (JSON, or separated by commas or white space).
    ListLength,
    FirstOfList,
    /// Position of the value in the list beside it.
    PositionInList,
    /// An index; the variable beside it has the index of the main node, which has rank 0.
    MainFirst,
    /// `host` of `host:port`.
    HostPart,
    /// `port` of `host:port`.
    PortPart,
    /// First host of a Slurm node list, `node[01-04,07]`.
    HostlistFirst,
    /// Position of the name in the Slurm node list beside it.
    PositionInHostlist,
    /// Counts or numbers processes; they are nodes only if the launcher starts one on each.
    Processes,
    /// A number of processes; the variable beside it has the number per node.
    PerNode,
    /// A number to which the number beside it is added.
    Sum,
    /// An index of a process on its node, which proves that as many processes precede it.
    LocalIndex,
    /// `{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 1}}`: the
    /// number of its tasks, the position of this one, or the first one's host or port.
    Cluster,
    /// Slurm's numbers of tasks by node, `8(x2),4`. The variable beside it has this node's index; for the
    /// rank of a task it has the task's place on its node, and the list of hosts gives the node's position.
    TaskList,
    /// A number that applies to one of several tasks of a node.
    PerTask,
    /// A job id in place of a port. All nodes derive a port from the id and the step beside it.
    PortOfJob,
    /// Host of `4206.0;tcp://10.0.0.1,172.17.0.1:41897`, the address of a daemon of Open MPI.
    DaemonHost,
    /// Second host of Open MPI's list of daemons, `login,n[2:1-16]@0(17)`. The second host has rank 0 if
    /// mpirun's own host, whose daemon is the first, has no process.
    SecondDaemon,
    /// Host in `prterun-n1-4206@1`, the id of a job of Open MPI 5.
    PrterunHost,
    /// First host of a headless service, from the prefix of its pods and the subdomain beside it.
    /// Without a subdomain the service is that of a job of Lepton.
    FirstReplica,
    /// A number of nodes; a number above one is evidence of other nodes.
    Count,
    /// An index of a process or node; an index above zero is evidence of others.
    Index,
    /// An index, with the count of members beside it.
    IndexOfCount,
    /// A list of hosts; several hosts are evidence of other nodes.
    Hosts,
    /// Like [`Reading::Hosts`] if the list has this host; otherwise it may be a list of services.
    OwnHosts,
    /// The path of a file of hosts; beside it are the hosts that the file names.
    HostFile,
    /// Set only on the main node, to which the platform does not give its own address.
    Loopback,
}

/// Strength of a claim against others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Only fills a gap in a job that is known to have several nodes.
    Hint,
    /// WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT.
    Generic,
    /// Names that many tools use, so they prove no platform.
    Conventional,
    /// Names that only one platform uses.
    Specific,
    /// The platform of the profile, which the user described for exactly these jobs.
    Profile,
    /// The launcher that started this process; outer platforms count other things.
    Launcher,
}

impl Claim {
    /// Whether the value is empty, or a null left behind by a template.
    pub fn is_blank(&self) -> bool {
        let value = self.value.trim();
        value.is_empty()
            || ["none", "null", "nil"].iter().any(|null| value.eq_ignore_ascii_case(null))
    }
}

/// `PET_NNODES=2`
impl std::fmt::Display for Claim {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}={}", self.variable, self.value)
    }
}
