//! Evidence that no row can give, since it is in other processes, in files, or in several variables.
//!
//! - A torchrun among our ancestors, and the variables of an earlier or outer one.
//! - MPICH's mpiexec as the master of a job whose variables name none. hydra starts a proxy on every
//!   host, whose command line has the address of mpiexec (`hydra_pmi_proxy --control-port n1:34897 …`).
//!   Its variables name no host, so rank 0 may be anywhere. The host with rank 0 knows whether mpiexec
//!   runs on it, and refuses if not. Every other host knows only that rank 0 is elsewhere.
//! - Volcano's plugins env and svc without its pytorch plugin: variables whose names contain the name of
//!   a task (`VC_<TASK>_NUM`, `VC_<TASK>_HOSTS`; volcano, `plugins/svc/const.go`).
//! - Determined under its own agents, where no variable has a count.
//! - Files in which a platform describes a job. SageMaker, in an image without its training toolkit:
//!   only the toolkit sets SM_HOSTS; the platform itself writes a file on every host (developer guide,
//!   "Distributed Training Configuration"). Determined, whose containers ask its master for the addresses
//!   and ranks of all before the entry point of a trial starts
//!   (`harness/determined/exec/prep_container.py`, `_info.py`).
//!
//! Takes the environment, /proc and the text of such a file; gives the same evidence as a row of
//! [`super::table`] would. `plan` decides what it means for a launch.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use serde::Deserialize;
use serde_json::Value;

use super::row::Platform;
use super::shapes;
use crate::contract::{Claim, Contract, Evidence, Field, Reading, Strength};
use crate::hostlist::split_endpoint;
use crate::launchers::{Launcher, LauncherKind};
use linux::host::Host;
use linux::own_executable;
use linux::procfs::{self, Process};
use text::mask::mask_args;
use text::order::Ordered;

impl Contract {
    /// Variables that torchrun sets for each worker, which are wrong in any other process. Its
    /// tunables (TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, TORCHELASTIC_ERROR_FILE…) belong to the
    /// user, RANK and WORLD_SIZE to the contracts.
    #[rustfmt::skip]
    pub const RANK_VARIABLES: [&str; 11] = [
        "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE",
    ];

    /// The nearest ancestor that is torchrun or a similar launcher, including ranklaunch with the
    /// engine `direct`: pid and command line, without secrets.
    pub fn torchrun_above(host: &Host) -> Option<(i32, String)> {
        // Without these variables the shim is that of the engine `command`, whose program starts ranks itself.
        let in_rank = ["RANK", "LOCAL_RANK"].iter().all(|name| host.variable(name).is_some());
        host.ancestors().into_iter().find_map(|Process { pid, .. }| {
            // Skip a process that cannot be read (hidepid, or it has ended).
            let argv = host.read(format!("/proc/{pid}/cmdline")).ok()?;
            let argv: Vec<&str> = argv.trim_end_matches('\0').split('\0').collect();
            let starts_ranks = is_torchrun(&argv) || (in_rank && is_shim(&argv));
            starts_ranks.then(|| {
                // A refusal quotes the command line, so secrets are masked.
                let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
                let shown = mask_args(&argv).join(OsStr::new(" "));
                (pid, shown.to_string_lossy().into_owned())
            })
        })
    }
}

pub(super) fn rank_variables(host: &Host) -> Vec<String> {
    let set = Contract::RANK_VARIABLES.into_iter().filter(|name| host.variable(name).is_some());
    set.map(str::to_owned).collect()
}

/// PET_*: torchrun takes each as the default of a flag.
pub(super) fn pet_variables(host: &Host) -> Vec<Claim> {
    let set = host.environment().iter().filter_map(|(name, value)| {
        let variable = name.to_str().filter(|name| name.starts_with("PET_"))?.to_owned();
        Some(Claim { variable, value: value.to_string_lossy().into_owned() })
    });
    set.collect()
}

/// Whether a command line is that of a rank shim.
fn is_shim(argv: &[&str]) -> bool {
    matches!(argv, [first, "rank", ..] if own_executable::is_named(first.as_bytes()))
}

/// Whether a command line starts one process per GPU. General launchers (mpirun, srun) do not
/// count: they may have started one ranklaunch per node.
fn is_torchrun(argv: &[&str]) -> bool {
    Launcher::of_argv(argv).is_some_and(|(launcher, _)| match launcher.kind {
        LauncherKind::Torchrun
        | LauncherKind::Accelerate
        | LauncherKind::Deepspeed
        | LauncherKind::PerGpu => true,
        LauncherKind::Anywhere | LauncherKind::Daemon => false,
    })
}

/// The row of MPICH, whose mpiexec starts a proxy on every host.
const PMI: &str = "pmi";
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
        let Some(value) = mpiexec.filter(|_| self.platform == PMI) else { return };
        let own_name = host.read("/proc/sys/kernel/hostname").unwrap_or_default();
        let short = |name: &str| name.trim().split('.').next().unwrap_or_default().to_owned();
        let is_here = short(split_endpoint(&value).0) == short(&own_name);
        let is_first = own_index(host).map(|index| index == 0);
        let mut fields =
            vec![(Field::MasterPort, Reading::PortOfJob), (Field::JobId, Reading::Plain)];
        if is_first == Some(is_here) {
            fields.push((Field::MasterAddr, Reading::HostPart));
        }
        for (field, reading) in fields {
            let is_ours = |found: &Evidence| found.platform == PMI;
            let is_given = |found: &Evidence| {
                is_ours(found) && found.field == field && !found.claim.is_blank()
            };
            if self.evidence.iter().any(is_given) {
                continue;
            }
            let after = self.evidence.iter().rposition(is_ours);
            let variable = format!("{} {OPTION}", String::from_utf8_lossy(PROXY));
            let claim = Claim { variable, value: value.clone() };
            let evidence = Strength::Launcher.evidence(PMI, field, reading, claim, None);
            self.evidence.insert(after.map_or(0, |at| at.saturating_add(1)), evidence);
        }
    }
}

/// The index of this host among those of the job, if all hosts have the same number of processes.
fn own_index(host: &Host) -> Option<u32> {
    let number = |name| host.variable(name)?.trim().parse::<u32>().ok();
    number("PMI_RANK")?.checked_div(number("MPI_LOCALNRANKS")?)
}

/// The evidence of several variables of a proven platform.
pub(super) fn evidence(host: &Host, platform: &Platform) -> Vec<Evidence> {
    let mut found = of_volcano(host, platform);
    found.extend(of_determined(host, platform));
    found
}

const ONE: &str = "volcano-workers";
const SEVERAL: &str = "volcano-tasks";

/// Whether the job has one kind of task. The index of this pod within its task is then its node rank.
pub(super) fn has_one_task(host: &Host) -> bool {
    has_index(host) && counts(host).len() == 1
}

pub(super) fn has_several_tasks(host: &Host) -> bool {
    has_index(host) && counts(host).len() > 1
}

fn has_index(host: &Host) -> bool {
    ["VC_TASK_INDEX", "VK_TASK_INDEX"].iter().any(|name| host.variable(name).is_some())
}

/// The number of pods of each task.
fn counts(host: &Host) -> Vec<Claim> {
    let names = host.environment().keys().filter_map(|name| name.to_str());
    let counts = names.filter(|name| name.starts_with("VC_") && name.ends_with("_NUM"));
    counts.filter_map(|name| Claim::of(host, name)).collect()
}

/// Count and master of a proven row of tasks.
fn of_volcano(host: &Host, platform: &Platform) -> Vec<Evidence> {
    let found = |field, reading, claim, beside| {
        platform.strength.evidence(platform.id, field, reading, claim, beside)
    };
    if ![ONE, SEVERAL].contains(&platform.id) {
        return Vec::new();
    }
    let mut counts = counts(host);
    // The first task of a job is its master by custom only.
    counts.order_by_key(|claim| claim.variable != "VC_MASTER_NUM");
    let Some((first, rest)) = counts.split_first() else { return Vec::new() };
    let sum = (!rest.is_empty()).then(|| {
        let names: Vec<&str> = rest.iter().map(|claim| claim.variable.as_str()).collect();
        let numbers: Option<Vec<u32>> =
            rest.iter().map(|claim| claim.value.trim().parse().ok()).collect();
        let sum =
            numbers.map(|numbers| numbers.iter().fold(0, |sum: u32, n| sum.saturating_add(*n)));
        Claim {
            variable: names.join("+"),
            value: sum.map_or_else(|| "?".to_owned(), |sum| sum.to_string()),
        }
    });
    let reading = if sum.is_some() { Reading::Sum } else { Reading::Plain };
    let hosts = first.variable.strip_suffix("_NUM").map(|task| format!("{task}_HOSTS"));
    let mut all = vec![found(Field::Nnodes, reading, first.clone(), sum)];
    let hosts = hosts.and_then(|variable| Claim::of(host, &variable));
    all.extend(hosts.map(|hosts| found(Field::MasterAddr, Reading::FirstOfList, hosts, None)));
    all
}

const CONFIG: &str = "DET_EXPERIMENT_CONFIG";
/// A list of numbers in JSON.
const SLOTS: &str = "DET_SLOT_IDS";

/// A trial has several containers if one container has fewer slots than the trial
/// (`master/pkg/tasks/task_trial.go`).
fn of_determined(host: &Host, platform: &Platform) -> Option<Evidence> {
    if platform.id != "determined" {
        return None;
    }
    let config: Value = serde_json::from_str(&host.variable(CONFIG)?).ok()?;
    let all = config.pointer("/resources/slots_per_trial")?.as_u64()?;
    let own = host.variable(SLOTS).and_then(|list| serde_json::from_str::<Vec<Value>>(&list).ok());
    let own = own.map_or(1, |slots| slots.len().max(1));
    let variable = format!("{CONFIG}:resources.slots_per_trial");
    let claim = Claim { variable, value: all.to_string() };
    let (id, strength) = (platform.id, platform.strength);
    (all > own as u64).then(|| strength.evidence(id, Field::Several, Reading::Count, claim, None))
}

struct JobFile {
    platform: &'static str,
    path: &'static str,
    default_port: Option<u16>,
    /// One of these variables shows that the file is of this job, and not left in the image.
    of_job: &'static [&'static str],
    /// A variable that gives the same facts. If it is set, the file is not read.
    unless: Option<&'static str>,
    parse: fn(&str) -> Option<Place>,
}

/// The hosts of a job, in the same order on each, and the place of this host.
struct Place {
    hosts: (&'static str, Vec<String>),
    own: (&'static str, String),
    /// The reading of `own`.
    reading: Reading,
}

const FILES: &[JobFile] = &[
    JobFile {
        platform: "sagemaker",
        path: "/opt/ml/input/config/resourceconfig.json",
        // The same port as in the row of the toolkit's variables.
        default_port: Some(7777),
        of_job: &["TRAINING_JOB_NAME"],
        unless: Some("SM_HOSTS"),
        parse: sagemaker,
    },
    JobFile {
        platform: "determined",
        path: "/run/determined/info/rendezvous.json",
        default_port: None,
        of_job: &["DET_AGENT_ID", "DET_ALLOCATION_ID"],
        unless: None,
        parse: determined,
    },
];

fn sagemaker(text: &str) -> Option<Place> {
    #[derive(Deserialize)]
    struct ResourceConfig {
        current_host: String,
        hosts: Vec<String>,
    }
    let ResourceConfig { current_host, hosts } = serde_json::from_str(text).ok()?;
    let own = ("current_host", current_host);
    Some(Place { hosts: ("hosts", hosts), own, reading: Reading::PositionInList })
}

fn determined(text: &str) -> Option<Place> {
    #[derive(Deserialize)]
    struct Rendezvous {
        container_addrs: Vec<String>,
        container_rank: u32,
    }
    let Rendezvous { container_addrs, container_rank } = serde_json::from_str(text).ok()?;
    let own = ("container_rank", container_rank.to_string());
    Some(Place { hosts: ("container_addrs", container_addrs), own, reading: Reading::Plain })
}

/// The texts of the files of this job, by path.
pub(super) fn job_files(host: &Host) -> impl Iterator<Item = (String, String)> {
    let is_set = |name: &&str| host.variable(name).is_some();
    let of_job =
        move |file: &&JobFile| file.of_job.iter().any(&is_set) && !file.unless.iter().any(is_set);
    let text = |file: &JobFile| Some((file.path.to_owned(), shapes::text(host, file.path)?));
    FILES.iter().filter(of_job).filter_map(text)
}

/// Adds the hosts of these files. A launcher inside of the job and MASTER_ADDR win over them.
pub(super) fn add_job_files(contract: &mut Contract, texts: &BTreeMap<String, String>) {
    for file in FILES {
        if let Some(place) = texts.get(file.path).and_then(|text| (file.parse)(text)) {
            file.add(contract, place);
        }
    }
}

impl JobFile {
    fn add(&self, contract: &mut Contract, place: Place) {
        let Place { hosts: (list, hosts), own: (name, own), reading } = place;
        let Ok(hosts) = serde_json::to_string(&hosts) else { return };
        let claim =
            |name: &str, value: String| Claim { variable: format!("{}:{name}", self.path), value };
        let of = |field, reading, claim, beside| {
            Strength::Specific.evidence(self.platform, field, reading, claim, beside)
        };
        let hosts = claim(list, hosts);
        let beside = (reading == Reading::PositionInList).then(|| hosts.clone());
        let has_master =
            |found: &Evidence| found.claim.variable == "MASTER_ADDR" && !found.claim.is_blank();
        let mut found = vec![
            of(Field::Nnodes, Reading::ListLength, hosts.clone(), None),
            of(Field::NodeRank, reading, claim(name, own), beside),
        ];
        if !contract.evidence.iter().any(has_master) {
            found.push(of(Field::MasterAddr, Reading::FirstOfList, hosts, None));
        }
        let is_stronger = |one: &&Evidence| one.strength >= Strength::Specific;
        let at = contract.evidence.iter().take_while(is_stronger).count();
        if at == 0 {
            contract.platform = self.platform.to_owned();
            contract.default_port = contract.default_port.or(self.default_port);
        }
        contract.evidence.splice(at..at, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_above_is_reported_without_secrets() {
        let stat = |pid: i32, parent: i32| {
            format!(
                "{pid} (x) S {parent} {pid} {pid} 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 0 0 \
                 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
            )
        };
        let argv = "torchrun\0--nproc-per-node\x002\0a.py\0--hf_token\0S3CR3T\0";
        let (own, above) = (stat(8, 7), stat(7, 1));
        let (_root, host) = Host::of_files(&[
            ("proc/self/stat", own.as_str()),
            ("proc/7/stat", above.as_str()),
            ("proc/7/cmdline", argv),
        ]);
        let shown = "torchrun --nproc-per-node 2 a.py --hf_token ***";
        assert_eq!(Contract::torchrun_above(&host), Some((7, shown.to_owned())));
    }

    #[test]
    fn torchrun_is_recognised_by_the_executed_program() {
        let table = [
            ("/usr/bin/torchrun --nproc-per-node 2 a.py", true),
            ("/usr/bin/python3 /opt/venv/bin/torchrun a.py", true),
            ("python3.11 -u -m torch.distributed.run a.py", true),
            ("python -X faulthandler -m torch.distributed.launch a.py", true),
            ("python -mtorch.distributed.run a.py", true),
            ("python -um torch.distributed.run a.py", true),
            ("python -uX dev -m torch.distributed.run a.py", true),
            ("accelerate launch a.py", true),
            ("python -m accelerate.commands.launch a.py", true),
            ("python /opt/venv/bin/deepspeed a.py", true),
            ("mpirun -np 2 ranklaunch", false),
            ("srun ranklaunch", false),
            ("timeout 1h torchrun a.py", true),
            ("uv run torchrun a.py", true),
            ("conda run -n x python -m torch.distributed.run a.py", true),
            ("timeout 1h ranklaunch -- a.py", false),
            ("uv run a.py torchrun", false),
            ("python -m pdb -m torch.distributed.run a.py", false),
            ("python train.py torchrun", false),
            ("python -c torchrun", false),
            ("vim torchrun", false),
            ("bash torchrun", false),
            ("", false),
        ];
        for (line, expected) in table {
            let argv: Vec<&str> = line.split(' ').collect();
            assert_eq!(is_torchrun(&argv), expected, "{line}");
        }
    }
}
