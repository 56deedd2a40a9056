//! The look at this node: every source of facts beside the others, each with its own deadline.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::host::Host;
use crate::lang::Text;
use crate::logs;
use crate::names;
use crate::observe::{self, Contract, Facts, GpuFacts, Late, LogFolder, NodeState, PythonFacts};
use crate::plan;
use crate::probe::{self, Answer};
use crate::settings::{Device, ProbeMode, Settings};
use crate::text;

/// How long the facts may wait for the master's name; one that resolves later is
/// waited for in a phase of its own.
const NAME: Duration = Duration::from_secs(2);

/// How long the sources of facts may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// NVML, and nvidia-smi after it.
    pub(super) driver: Duration,
    /// Anything that may lie on a mount of its own.
    pub(super) files: Duration,
    pub(super) name: Duration,
}

impl Patience {
    pub(super) const LAUNCH: Patience = Patience {
        driver: observe::gpu::DRIVER_PATIENCE,
        // A cold conda environment on a busy file server takes seconds, a dead one for ever.
        files: Duration::from_secs(30),
        name: NAME,
    };

    /// No source may take longer than `most`.
    pub(super) fn at_most(self, most: Duration) -> Patience {
        Patience {
            driver: self.driver.min(most),
            files: self.files.min(most),
            name: self.name.min(most),
        }
    }
}

/// All facts, with the patience of a launch.
pub(super) async fn observe(host: &Arc<Host>, settings: &Arc<Settings>) -> Facts {
    observe_within(host, settings, Patience::LAUNCH).await
}

/// A blocking read in a thread of its own, which is left behind when it is late.
struct Reading<T> {
    source: Text,
    patience: Duration,
    started: tokio::time::Instant,
    task: tokio::task::JoinHandle<T>,
}

fn read<T: Send + 'static>(
    source: Text,
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Reading<T> {
    let started = tokio::time::Instant::now();
    Reading { source, patience, started, task: tokio::task::spawn_blocking(work) }
}

impl<T> Reading<T> {
    /// None when it is late, which is noted, or broke down.
    async fn answer(self, late: &mut Vec<Late>) -> Option<T> {
        match tokio::time::timeout_at(self.started + self.patience, self.task).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                let after_millis = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
                late.push(Late { source: self.source, after_millis });
                None
            }
        }
    }
}

/// All facts; independent sources side by side, each with its own deadline.
pub(super) async fn observe_within(
    host: &Arc<Host>,
    settings: &Arc<Settings>,
    patience: Patience,
) -> Facts {
    let Patience { driver, files, name: for_name } = patience;
    let contract = observe::contract(host);
    let both = || (Arc::clone(host), Arc::clone(settings));
    // Ranks on CPUs need no driver's answer, which costs half of a quick start;
    // device nodes are still listed.
    let mode = match settings.device.value {
        Device::Cpu => ProbeMode::Off,
        Device::Auto | Device::Gpu => settings.probe.value,
    };
    // The probe keeps the driver's deadline itself; this one is for device nodes that hang too.
    let (its, _) = both();
    let gpus = read(
        text!("GPU driver and device nodes", "GPU 驱动与设备节点"),
        driver + Duration::from_secs(2),
        move || observe::gpu::gpus_within(&its, mode, driver),
    );
    let (its, ours) = both();
    let python = read(text!("python and torch", "Python 与 torch"), files, move || {
        observe::python(&its, &ours)
    });
    let (its, ours) = both();
    let heads = read(
        text!("the checkpoint's config.json", "权重目录的 config.json"),
        files,
        move || observe::checkpoint_heads(&its, &ours),
    );
    let (its, _) = both();
    let hcas = read(text!("RDMA devices", "RDMA 设备"), files, move || observe::rdma::hcas(&its));
    let (its, _) = both();
    let limits = read(text!("limits and cgroups", "资源限制与 cgroup"), files, move || {
        observe::limits::limits(&its)
    });
    let (its, _) = both();
    let nccl = read(text!("NCCL's configuration files", "NCCL 配置文件"), files, move || {
        let all = observe::network::nccl_settings(&its);
        let absent = observe::network::absent_files(&its, &all);
        (all, absent)
    });
    let (its, ours) = both();
    let logs = read(text!("the folder for logs", "日志目录"), files, move || {
        let candidates = log_candidates(&its, &ours);
        observe::state::log_folder(&its, candidates.first()?)
    });
    let (its, _) = both();
    let marks = read(text!("marks of HAMi", "HAMi 标记"), files, move || {
        (observe::state::hami(&its), observe::state::clock(&its))
    });

    let master = master_name(settings, &contract);
    let addresses = match &master {
        Some(name) => {
            let last = last_resort(mode);
            let found = names::resolve(host, name, for_name, Some(&last)).await;
            Some(found.map_err(|error| error.to_string()))
        }
        None => None,
    };
    let mut network = observe::network::links(host, master.as_deref().zip(addresses));

    let mut late = Vec::new();
    // A reader that broke down knows nothing; the fallbacks of `plan` then speak.
    let mut absent = Vec::new();
    if let Some(found) = nccl.answer(&mut late).await {
        (network.nccl, absent) = found;
    }
    let limits = limits.answer(&mut late).await.unwrap_or_default();
    let hcas = hcas.answer(&mut late).await.unwrap_or_default();
    let (hami, clock) = marks.answer(&mut late).await.unwrap_or_default();
    let log_folder = logs.answer(&mut late).await;
    let log_folder = log_folder.unwrap_or_else(|| {
        let path = log_candidates(host, settings).into_iter().next()?;
        Some(LogFolder { path, problem: Some("no answer".to_owned()), ..LogFolder::default() })
    });
    let python = python.answer(&mut late).await.unwrap_or_else(|| PythonFacts {
        problem: Some(text!(
            "the search for python did not come to an end; a folder of PATH or of the environment is on a mount that does not answer",
            "查找 Python 未能结束；PATH 或环境所在目录的挂载点无应答"
        )),
        ..PythonFacts::default()
    });
    let checkpoint_heads = heads.answer(&mut late).await.flatten();
    let gpus = match gpus.answer(&mut late).await {
        Some(gpus) => gpus,
        None => observe::gpu::unanswered(host, driver),
    };
    Facts {
        hostname: nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned(),
        contract,
        gpus,
        network,
        hcas,
        limits,
        python,
        checkpoint_heads,
        environment: observe::environment(host),
        state: NodeState { logs: log_folder, clock, hami, late, absent },
    }
}

/// Where the run's files may go, the best first.
pub(super) fn log_candidates(host: &Host, settings: &Settings) -> Vec<PathBuf> {
    let flag = settings.log_dir.as_ref().map(|dir| dir.value.as_path());
    let tmpdir = host.variable("TMPDIR");
    logs::default_candidates(flag, tmpdir.as_deref().map(AsRef::as_ref))
}

/// The master's name, where there is another node to talk to.
///
/// A claim may be a node list or an endpoint (`n[03-04]`, `host:port`), so the
/// membership reads it. GPUs, not counted yet, only matter where WORLD_SIZE
/// counts processes; then the claim's own text has to do.
fn master_name(settings: &Settings, contract: &Contract) -> Option<String> {
    let unknown = GpuFacts::default();
    let (mut decisions, mut warnings) = (Vec::new(), Vec::new());
    match plan::membership(settings, contract, &unknown, &mut decisions, &mut warnings) {
        Ok(member) => (member.nnodes > 1).then_some(member.master_addr),
        Err(_) => {
            let claimed = contract.master_addr.as_ref().map(|claim| &claim.value);
            let name = settings.master_addr.as_ref().map(|name| &name.value).or(claimed)?;
            (!name.is_empty() && name != "None").then(|| name.clone())
        }
    }
}

/// getaddrinfo in the probe, for names that only the C library's plugins know.
pub(super) fn last_resort(
    mode: ProbeMode,
) -> impl Fn(&str, Duration) -> Result<Vec<IpAddr>, String> {
    move |name, patience| {
        let answer =
            probe::run(mode, &["resolve", name], patience).map_err(|error| error.to_string())?;
        match answer {
            Answer::Names(names) if !names.addresses.is_empty() => Ok(names.addresses),
            Answer::Names(names) => Err(names.error.map_or_else(String::new, |(_, words)| words)),
            _ => Err("the probe answered something else".to_owned()),
        }
    }
}
