//! Collects the facts of this node from all sources in parallel, each with its own deadline.
//!
//! Takes host and settings; gives [`Facts`], which name each source that was late. Every source
//! is read in its own thread, so a mount or a driver that hangs blocks nothing else.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use linux::deadline::{begun, millis};
use linux::host::{Host, LastPath};
use muster::names::{self, LastResort};
use node::observe::{
    self, Facts, Folder, GpuFacts, HostFacts, Limits, NetworkFacts, PythonFacts, TimedOut,
    UsedFolder,
};
use node::probe::{self, Answer};
use plan::Notes;
use settings::contract::{self, Contract, Field};
use settings::{Device, ProbeMode, Settings, Sourced};
use text::lang::Text;
use text::text;

/// Time limit for resolving the master's name here. The wait for the master has its own phase.
const NAME: Duration = Duration::from_secs(2);

/// Time limits for the sources of facts.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// Time limit for NVML, and nvidia-smi after it.
    pub driver: Duration,
    /// Time limit for files that may be on a mount of their own.
    pub files: Duration,
    pub name: Duration,
}

impl Deadlines {
    /// The deadlines of a launch, unless `--deadline` sets others.
    pub const LAUNCH: Deadlines = Deadlines {
        driver: observe::gpu::DRIVER_TIMEOUT,
        // A cold conda environment on a busy file server takes seconds; on a dead server it
        // never returns.
        files: Duration::from_secs(30),
        name: NAME,
    };

    /// The deadlines of a launch, unless `--deadline` sets one for each source.
    pub(super) fn of(settings: &Settings) -> Deadlines {
        match &settings.deadline {
            None => Deadlines::LAUNCH,
            Some(Sourced { value: most, .. }) => {
                Deadlines { driver: *most, files: *most, name: NAME.min(*most) }
            }
        }
    }
}

/// All facts, within the deadlines of the settings.
pub(super) async fn observe(host: &Arc<Host>, settings: &Arc<Settings>) -> Facts {
    observe_within(host, settings, Deadlines::of(settings)).await
}

/// A blocking read in a thread of its own, which is abandoned when it is late.
struct Reading<T> {
    source: Text,
    last_path: LastPath,
    timeout: Duration,
    started: Instant,
    task: oneshot::Receiver<T>,
}

fn read<T: Send + 'static>(
    host: &Host,
    source: Text,
    timeout: Duration,
    work: impl FnOnce(&Host) -> T + Send + 'static,
) -> Reading<T> {
    let started = Instant::now();
    let (host, last_path) = host.traced();
    let task = begun(move || work(&host));
    Reading { source, last_path, timeout, started, task }
}

impl<T> Reading<T> {
    /// None if the read is late; it is recorded with the path at which it hangs.
    async fn answer(self, late: &mut Vec<TimedOut>) -> Option<T> {
        match tokio::time::timeout_at(self.started + self.timeout, self.task).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                let after_millis = millis(self.timeout);
                late.push(TimedOut {
                    source: self.source,
                    path: self.last_path.get(),
                    after_millis,
                });
                None
            }
        }
    }
}

/// All facts. Independent sources run in parallel, each in its own thread and with its own
/// deadline.
#[tracing::instrument(name = "observe", skip_all)]
pub async fn observe_within(
    host: &Arc<Host>,
    settings: &Arc<Settings>,
    deadlines: Deadlines,
) -> Facts {
    let Deadlines { driver, files, name: for_name } = deadlines;
    let ours = || Arc::clone(settings);
    let mode = probe_mode(settings);
    // The interfaces are read once it has answered.
    let above = read(host, text!("the processes above this one", "上层进程"), files, |host| {
        (Contract::torchrun_above(host), Contract::mpiexec_above(host))
    });
    let of_ranks = as_ranks_see(host, settings);
    let gpus = read_gpus(&of_ranks, settings, driver);
    let its = ours();
    let python = read(host, text!("python and torch", "Python 与 torch"), files, move |host| {
        observe::python(host, &its)
    });
    let lists = read(host, text!("files of hosts", "主机列表文件"), files, Contract::host_files);
    let its = ours();
    let heads = read(
        host,
        text!("the checkpoint's config.json", "权重目录的 config.json"),
        files,
        move |host| observe::checkpoint_heads(host, &its),
    );
    let hcas = read(host, text!("RDMA devices", "RDMA 设备"), files, observe::rdma::hcas);
    let limits = read(
        host,
        text!("limits and cgroups", "资源限制与 cgroup"),
        files,
        observe::limits::limits,
    );
    let nccl = read(host, text!("NCCL's configuration files", "NCCL 配置文件"), files, |host| {
        let all = observe::network::nccl_settings(host);
        let absent = observe::network::absent_files(host, &all);
        (all, absent)
    });
    let its = ours();
    let logs = read(host, text!("the folder for logs", "日志目录"), files, move |host| {
        let candidates = log_candidates(host, &its);
        observe::state::folder(host, &candidates.first()?.path)
    });
    // Each folder may be on a mount of its own.
    let folders: Vec<_> = observe::state::cache_folders(host)
        .into_iter()
        .map(|(by, path)| {
            let source = text!("the folder of {by}", "{by} 目录");
            let look = read(host, source, files, {
                let path = path.clone();
                move |host| observe::state::folder(host, &path)
            });
            (by, path, look)
        })
        .collect();
    let leftovers = read(
        host,
        text!("files in /dev/shm", "/dev/shm 中的文件"),
        files,
        observe::leftovers::leftovers,
    );
    let its = ours();
    let script = read(host, text!("the script", "脚本文件"), files, move |host| {
        (observe::script(host, &its), observe::engine_files(host, &its))
    });
    let marks = read(
        host,
        text!("libraries, modules and PID 1", "库、内核模块与 PID 1"),
        files,
        |host| HostFacts {
            hami: observe::state::hami(host),
            clock: observe::state::clock(host),
            compat: observe::cuda::compat(host),
            gpudirect: observe::cuda::gpudirect(host),
            numa_blocked: observe::state::numa_blocked(host),
            non_forwarding_init: observe::non_forwarding_init(host),
            ..HostFacts::default()
        },
    );

    let mut late = Vec::new();
    let (torchrun, mpiexec) = above.answer(&mut late).await.unwrap_or_default();
    let mut contract = Contract::read(host, torchrun, settings.own_platform());
    contract.add_mpiexec(host, mpiexec);
    contract.add_host_files(&lists.answer(&mut late).await.unwrap_or_default());
    let master = master_name(settings, &contract);
    let addresses = match &master {
        Some(name) => Some(resolved(host, name, for_name, mode).await),
        None => None,
    };
    let links = read(host, text!("interfaces and routes", "网卡与路由"), files, move |host| {
        observe::network::links(host, master.as_deref().zip(addresses))
    });
    let links = links.answer(&mut late).await;
    let mut network = links.unwrap_or_else(|| observe::network::unanswered(host));

    // A source that is late gives nothing; `plan` then uses its fallbacks.
    let mut absent = Vec::new();
    if let Some(found) = nccl.answer(&mut late).await {
        (network.nccl, absent) = found;
    }
    let limits = limits.answer(&mut late).await.unwrap_or_default();
    let hcas = hcas.answer(&mut late).await.unwrap_or_default();
    let marks = marks.answer(&mut late).await.unwrap_or_default();
    let leftovers = leftovers.answer(&mut late).await.unwrap_or_default();
    let silent = |path: PathBuf| {
        let problem = Some(text!("no answer", "无应答"));
        Folder { path, problem, ..Folder::default() }
    };
    let (script, engine_files) = script.answer(&mut late).await.unwrap_or_default();
    let log_folder = logs
        .answer(&mut late)
        .await
        .unwrap_or_else(|| Some(silent(log_candidates(host, settings).into_iter().next()?.path)));
    let mut used = Vec::new();
    for (by, path, look) in folders {
        let folder = look.answer(&mut late).await.unwrap_or_else(|| Some(silent(path)));
        used.extend(folder.map(|folder| UsedFolder { by: by.to_owned(), folder }));
    }
    let python = python.answer(&mut late).await.unwrap_or_else(|| PythonFacts {
        problem: Some(text!(
            "the search for python did not finish; a folder of PATH or of the environment is on a mount that does not answer",
            "查找 Python 未能结束；PATH 或环境所在目录的挂载点无应答"
        )),
        ..PythonFacts::default()
    });
    let checkpoint_heads = heads.answer(&mut late).await.flatten();
    let gpus = match gpus.answer(&mut late).await {
        Some(gpus) => gpus,
        None => observe::gpu::unanswered(&of_ranks, driver),
    };
    let (gpus, limits, hcas) = match &settings.assumed {
        // The hardware of this machine says nothing about an assumed node.
        Some(assumed) => (observe::gpu::assumed(&of_ranks, assumed), Limits::default(), Vec::new()),
        None => (gpus, limits, hcas),
    };
    let hostname = hostname(host);
    contract.own_names = network.own_names(&hostname);
    let listed = names_here(host, settings, &contract, &network, for_name, mode).await;
    contract.own_names.extend(listed);
    Facts {
        hostname,
        contract,
        gpus,
        network,
        hcas,
        limits,
        python,
        checkpoint_heads,
        environment: observe::environment(host),
        state: HostFacts {
            logs: log_folder,
            folders: used,
            leftovers,
            script,
            engine_files,
            late,
            absent,
            ..marks
        },
    }
}

/// The host with the CUDA_VISIBLE_DEVICES that the ranks get. A placeholder has no value yet.
fn as_ranks_see(host: &Host, settings: &Settings) -> Host {
    const DEVICES: &str = "CUDA_VISIBLE_DEVICES";
    let setting = settings.env.iter().find(|setting| {
        let is_used = plan::variables::overrides(setting) || host.variable(DEVICES).is_none();
        setting.name == DEVICES && is_used && !setting.value.to_string_lossy().contains('{')
    });
    match setting {
        Some(setting) => host.with_variable(DEVICES, &setting.value),
        None => host.clone(),
    }
}

/// The probe keeps the driver's deadline itself. This one also covers device nodes that hang.
fn read_gpus(host: &Host, settings: &Settings, driver: Duration) -> Reading<GpuFacts> {
    let source = text!("GPU driver and device nodes", "GPU 驱动与设备节点");
    let mode = probe_mode(settings);
    read(host, source, driver + Duration::from_secs(2), move |host| {
        observe::gpu::gpus_within(host, mode, driver)
    })
}

/// Reads only the GPUs again.
pub(super) async fn gpus(host: &Host, settings: &Settings) -> GpuFacts {
    let driver = Deadlines::of(settings).driver;
    let host = &as_ranks_see(host, settings);
    let gpus = read_gpus(host, settings, driver).answer(&mut Vec::new()).await;
    gpus.unwrap_or_else(|| observe::gpu::unanswered(host, driver))
}

/// Ranks on CPUs do not need the driver, whose answer takes half the time of a quick start.
/// Device nodes are still listed.
fn probe_mode(settings: &Settings) -> ProbeMode {
    match settings.device.value {
        _ if settings.assumed.is_some() => ProbeMode::Off,
        Device::Cpu => ProbeMode::Off,
        Device::Auto | Device::Gpu => settings.probe.value,
    }
}

/// The addresses of a name. For a captured node these are the recorded addresses, since the name
/// servers of this machine may answer differently.
async fn resolved(
    host: &Host,
    name: &str,
    timeout: Duration,
    mode: ProbeMode,
) -> Result<Vec<IpAddr>, Text> {
    let kept = format!("name/{name}");
    if !host.is_live()
        && let Some(found) = host.answer(&kept, || Err(Text::same("")))
    {
        return found;
    }
    let found = names::resolve(host, name, timeout, Some(&last_resort(mode))).await;
    let found = found.map_err(|error| error.text());
    host.keep(&kept, &found);
    found
}

/// The names of `--nodes` that lead to an address of this node, if no text identifies its own name.
async fn names_here(
    host: &Arc<Host>,
    settings: &Settings,
    contract: &Contract,
    network: &NetworkFacts,
    timeout: Duration,
    mode: ProbeMode,
) -> Vec<String> {
    let mut asked = JoinSet::new();
    for name in plan::needs_addresses(settings, &contract.own_names) {
        let (host, name) = (Arc::clone(host), name.clone());
        asked.spawn(async move {
            let found = resolved(&host, &name, timeout, mode).await.unwrap_or_default();
            (name, found)
        });
    }
    // A loopback address proves nothing: any host may have it for any name.
    let is_here = |address: &IpAddr| {
        !address.is_loopback()
            && network.interfaces.iter().any(|interface| interface.addresses.contains(address))
    };
    let answers = asked.join_all().await;
    let here = answers.into_iter().filter(|(_, found)| found.iter().any(is_here));
    here.map(|(name, _)| name).collect()
}

pub(super) fn hostname(host: &Host) -> String {
    let own = || linux::sys::hostname();
    let file = || host.read("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    host.answer("hostname", own).unwrap_or_else(file)
}

/// The candidate folders for the run's files, best first.
pub(super) fn log_candidates(host: &Host, settings: &Settings) -> Vec<logs::Candidate> {
    let flag = settings.log_dir.as_ref().map(|dir| dir.value.as_path());
    let tmpdir = host.variable("TMPDIR");
    logs::default_candidates(flag, tmpdir.as_deref().map(AsRef::as_ref))
}

/// The master's name, if the job has another node.
///
/// A claim may be a node list or an endpoint (`n[03-04]`, `host:port`), so the planner parses
/// it. If the planner cannot tell the number of nodes before GPUs are counted, the text of the
/// claim is used.
fn master_name(settings: &Settings, contract: &Contract) -> Option<String> {
    if plan::listed(settings).is_some_and(|list| list.value.len() > 1) {
        // The position of this node in the list depends on its addresses, which come later.
        return plan::stated_master(settings).map(|master| master.value.clone());
    }
    match plan::identity(settings, contract, &mut Notes::default()) {
        Ok(member) => (member.nnodes > 1).then_some(member.master_addr),
        Err(_) => {
            // A plain host name is required; a node list cannot be resolved.
            let plain = contract.evidence.iter().find(|found| {
                let is_name = found.reading == contract::Reading::Plain && !found.claim.is_blank();
                found.field == Field::MasterAddr && is_name
            });
            let claimed = plain.map(|found| &found.claim.value);
            let stated = plan::stated_master(settings).map(|name| name.value.clone());
            stated.or(claimed.cloned()).filter(|name| !name.is_empty())
        }
    }
}

/// getaddrinfo in the probe, for names that only the C library's NSS plugins resolve.
pub(super) fn last_resort(mode: ProbeMode) -> LastResort {
    Arc::new(move |name, timeout| {
        let answer =
            probe::run(mode, &["resolve", name], timeout).map_err(|error| error.to_string())?;
        match answer {
            Answer::Names(names) if !names.addresses.is_empty() => Ok(names.addresses),
            Answer::Names(names) => Err(names.error.map_or_else(String::new, |(_, words)| words)),
            _ => Err("the probe answered something else".to_owned()),
        }
    })
}
