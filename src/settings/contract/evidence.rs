//! Claims of platform variables about the job, unparsed: plain data that can travel to another node;
//! and what the forms of their values mean.
//!
//! Takes a claim; gives hosts, a port, a position. Descriptions of a cluster in JSON are CLUSTER_SPEC
//! of Vertex AI and of TonY, TF_CONFIG and AFO_ENV_CLUSTER_SPEC: their training tasks are nodes in the
//! order of ranks; parameter servers and evaluators are no nodes of a PyTorch job.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hostlist::{self, split_endpoint};
use linux::host::Host;
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

impl Strength {
    /// The evidence of a platform whose claims have this strength.
    pub(super) fn evidence(
        self,
        platform: &str,
        field: Field,
        reading: Reading,
        claim: Claim,
        beside: Option<Claim>,
    ) -> Evidence {
        let platform = platform.to_owned();
        Evidence { platform, field, claim, reading, beside, strength: self }
    }
}

impl Claim {
    /// The variable and its value; None if it is not set.
    pub(crate) fn of(host: &Host, variable: &str) -> Option<Claim> {
        Some(Claim { variable: variable.to_owned(), value: host.variable(variable)? })
    }

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

impl Evidence {
    /// The master's host as the claim gives it, unchecked.
    pub fn host(&self) -> String {
        let value = self.claim.value.trim();
        match self.reading {
            Reading::HostPart => split_endpoint(value).0.to_owned(),
            Reading::FirstOfList => list(value).into_iter().next().unwrap_or_default(),
            Reading::HostlistFirst => {
                hostlist::expand(value).into_iter().next().unwrap_or_default()
            }
            Reading::DaemonHost => daemon_host(value).unwrap_or_default().to_owned(),
            Reading::PrterunHost => hostlist::of_prterun(value).unwrap_or_default().to_owned(),
            Reading::SecondDaemon => {
                hostlist::of_daemons(value).into_iter().nth(1).unwrap_or_default()
            }
            Reading::Cluster => split_endpoint(&first_member(value)).0.to_owned(),
            Reading::FirstReplica => match &self.beside {
                Some(domain) => format!("{value}-0.{}", domain.value.trim()),
                None => format!("{value}-0.{value}-job-svc"),
            },
            Reading::Loopback => "127.0.0.1".to_owned(),
            _ => value.to_owned(),
        }
    }

    /// The master's port as the claim gives it, unchecked; empty if an endpoint has none.
    pub fn port(&self) -> String {
        let value = self.claim.value.trim();
        match self.reading {
            Reading::PortPart => split_endpoint(value).1.unwrap_or_default().to_owned(),
            Reading::Cluster => {
                split_endpoint(&first_member(value)).1.unwrap_or_default().to_owned()
            }
            _ => value.to_owned(),
        }
    }

    /// The hosts or other members that a list names; empty for every other reading.
    pub fn hosts(&self) -> Vec<String> {
        match (self.reading, &self.beside) {
            (Reading::ListLength, _) => list(&self.claim.value),
            (Reading::Cluster, _) => members(&self.claim.value),
            (Reading::Hosts | Reading::OwnHosts, _) => hostlist::whole(&self.claim.value),
            (Reading::HostFile, Some(hosts)) => hostlist::whole(&hosts.value),
            _ => Vec::new(),
        }
    }

    /// The position of this node in a list; None also for every other reading.
    pub fn position(&self) -> Option<usize> {
        let beside = self.beside.as_ref().map_or("", |beside| beside.value.as_str());
        match self.reading {
            Reading::PositionInList => {
                list(beside).iter().position(|name| name == self.claim.value.trim())
            }
            Reading::PositionInHostlist => hostlist::position(beside, &self.claim.value),
            Reading::Cluster => place_in_cluster(&self.claim.value),
            _ => None,
        }
    }
}

/// Entries of a JSON list of strings, or of text separated by commas or white space.
fn list(value: &str) -> Vec<String> {
    serde_json::from_str::<Vec<String>>(value).unwrap_or_else(|_| {
        value
            .split(|letter: char| letter == ',' || letter.is_whitespace())
            .filter(|entry| !entry.is_empty())
            .map(str::to_owned)
            .collect()
    })
}

/// `4206.0;tcp://10.0.0.1,172.17.0.1:41897` → 10.0.0.1, the first of the host's addresses. Addresses of
/// IPv6 alone are in brackets, `tcp6://[fd00::1]:41897`.
fn daemon_host(uri: &str) -> Option<&str> {
    let (_, address) = uri.split_once("://")?;
    match address.strip_prefix('[') {
        Some(addresses) => addresses.split([',', ']']).next(),
        None => address.split([',', ':', ';']).next(),
    }
}

/// Training tasks in the order of ranks; the host of the chief is the master.
const ORDER: [&str; 5] = ["chief", "master", "workerpool0", "worker", "workerpool1"];

/// `host:port` of each node; empty if the text is no description.
fn members(text: &str) -> Vec<String> {
    let Some(spec) = parsed(text) else { return Vec::new() };
    ORDER.iter().flat_map(|kind| tasks_of(&spec, kind)).collect()
}

/// The first of the [`members`]; empty without any.
fn first_member(text: &str) -> String {
    members(text).into_iter().next().unwrap_or_default()
}

/// The position of this task among the [`members`].
fn place_in_cluster(text: &str) -> Option<usize> {
    let spec = parsed(text)?;
    let task = spec.get("task").unwrap_or(&spec);
    let own = task.get("type").or_else(|| task.get("role"))?.as_str()?;
    let index = match task.get("index")? {
        Value::String(index) => index.parse().ok()?,
        index => usize::try_from(index.as_u64()?).ok()?,
    };
    let place = ORDER.iter().position(|kind| *kind == own)?;
    let before: usize = ORDER.iter().take(place).map(|kind| tasks_of(&spec, kind).len()).sum();
    (index < tasks_of(&spec, own).len()).then(|| before.saturating_add(index))
}

fn parsed(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

fn tasks_of(spec: &Value, kind: &str) -> Vec<String> {
    match spec.get("cluster").unwrap_or(spec).get(kind) {
        Some(Value::Array(list)) => {
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        Some(Value::String(list)) => list.split(',').map(|host| host.trim().to_owned()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_host_is_its_first_address() {
        for (uri, host) in [
            ("4206.0;tcp://10.0.0.1,172.17.0.1:41897", Some("10.0.0.1")),
            ("4206.0;tcp://10.0.0.1:41897;tcp6://[fd00::1]:41898", Some("10.0.0.1")),
            ("4206.0;tcp6://[fd00::1,fd00::2]:41898", Some("fd00::1")),
            ("4206.0", None),
        ] {
            assert_eq!(daemon_host(uri), host, "{uri}");
        }
    }

    #[test]
    fn training_tasks_are_nodes_in_rank_order() {
        let spec = |kind: &str, index: &str| {
            format!(
                r#"{{"cluster":{{"ps":["p:1"],"worker":["w0:2","w1:2"],"chief":["c:2"]}},"task":{{"type":"{kind}","index":{index}}}}}"#
            )
        };
        assert_eq!(members(&spec("ps", "0")), ["c:2", "w0:2", "w1:2"]);
        for (kind, index, place) in [
            ("chief", "0", Some(0)),
            ("worker", "1", Some(2)),
            ("worker", "\"0\"", Some(1)),
            ("worker", "2", None),
            ("ps", "0", None),
            ("worker", "-1", None),
        ] {
            assert_eq!(place_in_cluster(&spec(kind, index)), place, "{kind} {index}");
        }
        let flat = r#"{"role":"worker","index":"1","worker":"w0:2, w1:2"}"#;
        assert_eq!(
            (members(flat).join(" "), place_in_cluster(flat)),
            ("w0:2 w1:2".to_owned(), Some(1))
        );
        for broken in ["", "{", "[]", "{\"cluster\": 3}"] {
            assert_eq!((members(broken).len(), place_in_cluster(broken)), (0, None), "{broken}");
        }
    }
}
