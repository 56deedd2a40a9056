//! Reads the sources of facts side by side, each in a thread of its own and with its own deadline, so that a mount or a
//! driver that hangs blocks nothing else.
//!
//! Takes host and settings; gives [`Facts`], which name each source that was late. A source that is late gives nothing;
//! `plan` then uses its fallbacks.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::CheckpointFacts;
use super::{
    Facts, Folder, GpuFacts, HostFacts, Limits, NetworkFacts, PythonFacts, TimedOut, UsedFolder,
    gpu, limits, network, python, rdma, script, state,
};
use linux::deadline::{begun, millis};
use linux::host::{Host, LastPath};
use settings::contract::Contract;
use settings::{Settings, Sourced};
use text::lang::Text;
use text::text;

/// Time limit for resolving the master's name. The wait for the master has its own phase.
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
        driver: gpu::DRIVER_TIMEOUT,
        // A cold conda environment on a busy file server takes seconds; on a dead server it
        // never returns.
        files: Duration::from_secs(30),
        name: NAME,
    };

    /// The deadlines of a launch, unless `--deadline` sets one for each source.
    pub fn of(settings: &Settings) -> Deadlines {
        match &settings.deadline {
            None => Deadlines::LAUNCH,
            Some(Sourced { value: most, .. }) => {
                Deadlines { driver: *most, files: *most, name: NAME.min(*most) }
            }
        }
    }
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

/// The contract of the platform, but for the names of this node, which [`interfaces`] give.
pub async fn contract(
    host: &Host,
    settings: &Settings,
    deadlines: Deadlines,
    late: &mut Vec<TimedOut>,
) -> Contract {
    let files = deadlines.files;
    let above = read(host, text!("the processes above this one", "上层进程"), files, |host| {
        (Contract::torchrun_above(host), Contract::mpiexec_above(host))
    });
    let lists = read(host, text!("files of hosts", "主机列表文件"), files, Contract::host_files);
    let (torchrun, mpiexec) = above.answer(late).await.unwrap_or_default();
    let mut contract = Contract::read(host, torchrun, settings.own_platform());
    contract.add_mpiexec(host, mpiexec);
    contract.add_host_files(&lists.answer(late).await.unwrap_or_default());
    contract
}

/// Interfaces and routes, and the way to the master if it is given with its addresses.
pub async fn interfaces(
    host: &Host,
    master: Option<(String, Result<Vec<IpAddr>, Text>)>,
    deadlines: Deadlines,
    late: &mut Vec<TimedOut>,
) -> NetworkFacts {
    let source = text!("interfaces and routes", "网卡与路由");
    let (name, addresses) = master.unzip();
    let links = read(host, source, deadlines.files, move |host| {
        NetworkFacts::read(host, name.as_deref().zip(addresses))
    });
    links.answer(late).await.unwrap_or_else(|| NetworkFacts::unanswered(host))
}

/// The probe keeps the driver's deadline itself. This one also covers device nodes that hang.
fn read_gpus(host: &Host, settings: &Settings, driver: Duration) -> Reading<GpuFacts> {
    let source = text!("GPU driver and device nodes", "GPU 驱动与设备节点");
    let mode = settings.probe_mode();
    read(host, source, driver + Duration::from_secs(2), move |host| {
        gpu::gpus_within(host, mode, driver)
    })
}

/// The GPUs alone. `of_ranks` has the variables of the ranks.
pub async fn gpus(of_ranks: &Host, settings: &Settings) -> GpuFacts {
    let driver = Deadlines::of(settings).driver;
    let gpus = read_gpus(of_ranks, settings, driver).answer(&mut Vec::new()).await;
    gpus.unwrap_or_else(|| gpu::unanswered(of_ranks, driver))
}

/// Time limit for the folder of checkpoints: without an answer nothing is started, and a large folder of a file server
/// may take a while.
pub const CHECKPOINTS: Duration = Duration::from_secs(30);

/// All facts but those of [`contract`] and [`interfaces`]. `of_ranks` is the host with the variables of the ranks,
/// `logs` the folder for the run's files.
pub async fn equipment(
    host: &Host,
    of_ranks: &Host,
    settings: &Arc<Settings>,
    deadlines: Deadlines,
    logs: Option<PathBuf>,
) -> Facts {
    let Deadlines { driver, files, .. } = deadlines;
    let ours = || Arc::clone(settings);
    let gpus = read_gpus(of_ranks, settings, driver);
    let its = ours();
    let python = read(host, text!("python and torch", "Python 与 torch"), files, move |host| {
        python::python(host, &its)
    });
    let its = ours();
    let heads = read(
        host,
        text!("the checkpoint's config.json", "权重目录的 config.json"),
        files,
        move |host| python::checkpoint_heads(host, &its),
    );
    let its = ours();
    let checkpoints = read(
        host,
        text!("the folder of checkpoints", "检查点目录"),
        files.max(CHECKPOINTS),
        move |host| super::checkpoints(host, &its),
    );
    let hcas = read(host, text!("RDMA devices", "RDMA 设备"), files, rdma::hcas);
    let limits =
        read(host, text!("limits and cgroups", "资源限制与 cgroup"), files, limits::limits);
    let nccl = read(host, text!("NCCL's configuration files", "NCCL 配置文件"), files, |host| {
        let all = network::nccl_settings(host);
        let absent = network::absent_files(host, &all);
        (all, absent)
    });
    let folder_of = |source, path: PathBuf| {
        let look = read(host, source, files, {
            let path = path.clone();
            move |host| state::folder(host, &path)
        });
        (path, look)
    };
    let logs = logs.map(|path| folder_of(text!("the folder for logs", "日志目录"), path));
    // Each folder may be on a mount of its own.
    let folders: Vec<_> = state::cache_folders(host)
        .into_iter()
        .map(|(by, path)| (by, folder_of(text!("the folder of {by}", "{by} 目录"), path)))
        .collect();
    let leftovers =
        read(host, text!("files in /dev/shm", "/dev/shm 中的文件"), files, state::leftovers);
    let its = ours();
    let script = read(host, text!("the script", "脚本文件"), files, move |host| {
        (script::script(host, &its), script::engine_files(host, &its))
    });
    let marks = read(
        host,
        text!("libraries, modules and PID 1", "库、内核模块与 PID 1"),
        files,
        |host| HostFacts {
            hami: state::hami(host),
            clock: state::clock(host),
            compat: state::compat(host),
            gpudirect: state::gpudirect(host),
            numa_blocked: state::numa_blocked(host),
            non_forwarding_init: state::non_forwarding_init(host),
            ..HostFacts::default()
        },
    );

    let mut late = Vec::new();
    let of_environment = || (NetworkFacts::unanswered(host).nccl, Vec::new());
    let (nccl, absent) = nccl.answer(&mut late).await.unwrap_or_else(of_environment);
    let limits = limits.answer(&mut late).await.unwrap_or_default();
    let hcas = hcas.answer(&mut late).await.unwrap_or_default();
    let marks = marks.answer(&mut late).await.unwrap_or_default();
    let leftovers = leftovers.answer(&mut late).await.unwrap_or_default();
    let silent = |path: PathBuf| {
        let problem = Some(text!("no answer", "无应答"));
        Folder { path, problem, ..Folder::default() }
    };
    let (script, engine_files) = script.answer(&mut late).await.unwrap_or_default();
    let log_folder = match logs {
        Some((path, look)) => look.answer(&mut late).await.unwrap_or_else(|| Some(silent(path))),
        None => None,
    };
    let mut used = Vec::new();
    for (by, (path, look)) in folders {
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
    let silent = || {
        settings.checkpoint_dir.as_ref()?;
        let unread = Some(text!("its file system does not answer", "其文件系统无应答"));
        Some(CheckpointFacts { unread, ..CheckpointFacts::default() })
    };
    let checkpoints = checkpoints.answer(&mut late).await.unwrap_or_else(silent);
    let gpus = match gpus.answer(&mut late).await {
        Some(gpus) => gpus,
        None => gpu::unanswered(of_ranks, driver),
    };
    let (gpus, limits, hcas) = match &settings.assumed {
        // The hardware of this machine says nothing about an assumed node.
        Some(assumed) => (gpu::assumed(of_ranks, assumed), Limits::default(), Vec::new()),
        None => (gpus, limits, hcas),
    };
    Facts {
        hostname: String::new(),
        contract: Contract::default(),
        gpus,
        network: NetworkFacts { nccl, ..NetworkFacts::default() },
        hcas,
        limits,
        python,
        checkpoint_heads,
        checkpoints,
        environment: super::environment(host),
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
