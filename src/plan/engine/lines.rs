//! Builds the command lines of torchrun, DeepSpeed and accelerate flag by flag.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::{Notes, Plan};
use data_encoding::BASE64URL;
use node::observe::AccelerateConfig;
use settings::Rendezvous;
use settings::torchrun_options::{Becomes, TorchrunOption};
use text::text;
use text::version::Version;
use verdict::Id;

/// Options that are known only when the engine is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// The engine's own local, temporary log folder.
    pub log_dir: Option<PathBuf>,
    /// Time for which an engine that fails by itself waits after TERM before it kills its ranks.
    pub shutdown_timeout: Option<Duration>,
}

/// The interpreter, or the name by which a shell would find one.
pub(super) fn python(plan: &Plan) -> OsString {
    plan.python.as_ref().map_or_else(|| "python3".into(), |path| path.into())
}

/// The spelling of an engine's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    Hyphens,
    Underscores,
}

impl Spelling {
    fn flag(self, name: &str) -> OsString {
        match self {
            Spelling::Hyphens => format!("--{name}").into(),
            Spelling::Underscores => format!("--{}", name.replace('-', "_")).into(),
        }
    }
}

/// torch's version; an unknown one counts as the plain 2.0.
pub(super) fn torch_version(plan: &Plan) -> Version {
    let known = plan.torch_version.as_deref().and_then(|version| version.parse().ok());
    known.unwrap_or(Version::new(2, 0, 0))
}

/// The command line so far.
pub(super) struct Line {
    pub(super) argv: Vec<OsString>,
    spelling: Spelling,
}

impl Line {
    pub(super) fn module(plan: &Plan, module: &str, spelling: Spelling) -> Line {
        Line { argv: vec![python(plan), "-m".into(), module.into()], spelling }
    }

    pub(super) fn switch(&mut self, name: &str) {
        self.argv.push(self.spelling.flag(name));
    }

    pub(super) fn value(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.switch(name);
        self.argv.push(value.as_ref().to_owned());
    }
}

/// torchrun's command line.
pub(super) fn torchrun(plan: &Plan, options: &EngineOptions) -> Line {
    let m = &plan.membership;
    // Before 2.0 its flags have no hyphens.
    let spelling = if torch_version(plan) >= Version::new(2, 0, 0) {
        Spelling::Hyphens
    } else {
        Spelling::Underscores
    };
    let mut line = Line::module(plan, "torch.distributed.run", spelling);
    let nnodes = match m.elastic {
        Some((min, max)) if min != max => format!("{min}:{max}"),
        _ => m.nnodes.to_string(),
    };
    line.value("nnodes", nnodes);
    line.value("nproc-per-node", plan.nproc_per_node.to_string());
    if plan.rdzv == Rendezvous::C10d || m.elastic.is_some() {
        let run_id = plan.identity.as_ref().map(|identity| identity.run_id.clone());
        let id = plan.rdzv_id.clone().or(run_id).unwrap_or_else(|| "{run_id}".to_owned());
        line.value("rdzv-backend", "c10d");
        line.value("rdzv-endpoint", endpoint(&m.master_addr, m.master_port));
        line.value("rdzv-id", id);
        line.value("rdzv-conf", rendezvous_settings(plan));
        let own = plan.network.local_addr.map(|address| address.to_string());
        let stated = plan.torchrun.get("local-addr").cloned();
        if let Some(address) =
            stated.or(own).filter(|_| torch_version(plan) >= Version::new(2, 0, 0))
        {
            line.value("local-addr", address);
        }
    } else {
        line.value("node-rank", m.seat().to_string());
        line.value("rdzv-backend", "static");
        line.value("master-addr", &m.master_addr);
        line.value("master-port", m.master_port.to_string());
    }
    // If the job is not elastic, all nodes start again together, which torchrun must not decide.
    line.value("max-restarts", plan.engine_restarts.to_string());
    for (name, value) in &plan.torchrun {
        match TorchrunOption::named(name).map(|option| (option.becomes, option.is_switch())) {
            Some((Becomes::Passed, true)) => line.switch(name),
            Some((Becomes::Passed, false)) => line.value(name, value),
            _ => {}
        }
    }
    if let Some(folder) = &options.log_dir {
        line.value("log-dir", folder);
    }
    // The flag exists since torch 2.15; older versions kill after a fixed 30 s.
    let since = torch_version(plan) >= Version::new(2, 15, 0);
    if let Some(timeout) =
        options.shutdown_timeout.filter(|_| plan.knows("shutdown-timeout", since))
    {
        line.value("shutdown-timeout", timeout.as_secs().max(1).to_string());
    }
    line
}

/// The `k=v` list. Without is_host every node guesses by its host name. An elastic job has no
/// node rank, so the guess remains. Values in PET_RDZV_CONF win.
fn rendezvous_settings(plan: &Plan) -> String {
    let stated = plan.torchrun.get("rdzv-conf").map_or("", |stated| stated.trim());
    let keys: Vec<&str> =
        stated.split(',').filter_map(|one| Some(one.split('=').next()?.trim())).collect();
    let mut own = Vec::new();
    if plan.membership.elastic.is_none() {
        own.push(("is_host", u64::from(plan.membership.is_master())));
    }
    own.push(("join_timeout", plan.join_timeout.as_secs().max(1)));
    // Timeout for reads from the store (torch's default is 60).
    own.push(("read_timeout", 300));
    own.retain(|(key, _)| !keys.contains(key));
    let own = own.into_iter().map(|(key, value)| format!("{key}={value}"));
    own.chain((!stated.is_empty()).then(|| stated.to_owned())).collect::<Vec<_>>().join(",")
}

/// `host:port`, an IPv6 address in brackets.
fn endpoint(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The launcher of DeepSpeed that DeepSpeed's runner would start on every node through ssh.
pub(super) fn deepspeed(plan: &Plan) -> Line {
    let m = &plan.membership;
    let mut line = Line::module(plan, "deepspeed.launcher.launch", Spelling::Underscores);
    line.value("world-info", world_info(plan));
    line.value("node-rank", m.seat().to_string());
    line.value("master-addr", &m.master_addr);
    line.value("master-port", m.master_port.to_string());
    // DeepSpeed would put --local_rank between the shim and its role; LOCAL_RANK is set anyway.
    line.switch("no-local-rank");
    line
}

/// Base64 of a JSON map from node to device ids. The launcher sets CUDA_VISIBLE_DEVICES from
/// this node's list; of the other nodes it uses only the number of devices.
fn world_info(plan: &Plan) -> String {
    let tokens: Vec<String> = match plan.env.get("CUDA_VISIBLE_DEVICES") {
        Some(value) => value.to_string_lossy().split(',').map(str::to_owned).collect(),
        None => plan.device_tokens.clone(),
    };
    let own: Vec<serde_json::Value> = (0..plan.nproc_per_node)
        .map(|rank| match tokens.get(rank as usize) {
            Some(token) => token.parse::<u32>().map_or_else(|_| token.clone().into(), Into::into),
            None => rank.into(),
        })
        .collect();
    let others: Vec<u32> = (0..plan.nproc_per_node).collect();
    let map: serde_json::Map<String, serde_json::Value> = (0..plan.membership.nnodes)
        .map(|node| {
            let devices = if node == plan.membership.seat() {
                own.clone().into()
            } else {
                others.clone().into()
            };
            (format!("node-{node}"), devices)
        })
        .collect();
    // As DeepSpeed reads it: RFC 4648 §5, padded.
    BASE64URL.encode(serde_json::Value::Object(map).to_string().as_bytes())
}

/// Records what accelerate's configuration file decides, and warns if accelerate would start a
/// single process. `has_mode`: an argument of the engine already names the mode.
pub(crate) fn check_accelerate(
    config: &AccelerateConfig,
    world: u32,
    has_mode: bool,
    notes: &mut Notes,
) {
    let path = config.path.display();
    let single = config.starts_one_process() && world > 1 && !has_mode;
    let mode = config.mode();
    if !config.given {
        notes.decide(
            "accelerate_config",
            &path,
            text!("distributed_type {mode}", "distributed_type 为 {mode}"),
            "accelerate's default",
        );
    }
    match (single, config.given) {
        (false, _) => {}
        (true, true) => notes.warn(
            Id::EngineConfig,
            text!(
                "{path} says distributed_type: {mode}, so accelerate starts one process, but {world} are planned",
                "{path} 中 distributed_type 为 {mode}，accelerate 只会启动一个进程，而计划启动 {world} 个"
            ),
            config.cure(),
        ),
        (true, false) => notes.warn(
            Id::EngineConfig,
            text!(
                "{path}, accelerate's default configuration, says distributed_type: {mode}, but {world} processes are planned: --multi_gpu is passed instead",
                "accelerate 的默认配置 {path} 中 distributed_type 为 {mode}，而计划启动 {world} 个进程：将改为传递 --multi_gpu"
            ),
            text!(
                "correct that file, or name another one with --config_file in engine_args",
                "请修正该文件，或在 engine_args 中用 --config_file 指定其他配置"
            ),
        ),
    }
}

/// Warns of a mode that accelerate does not use on CPUs. Its state is MULTI_CPU with ACCELERATE_USE_CPU,
/// whatever the mode is (`AcceleratorState` in state.py); without that variable each rank would be a
/// world of its own.
pub(crate) fn check_on_cpus(
    config: Option<&AccelerateConfig>,
    engine_args: &[String],
    notes: &mut Notes,
) {
    let by_flag = || {
        let (flag, mode) =
            MODES.into_iter().find(|(flag, _)| names_one_of(engine_args, &[flag]))?;
        Some((flag.to_owned(), mode))
    };
    let by_file = || {
        let config = config.filter(|_| !names_a_mode(engine_args))?;
        let is_meant = |(_, mode): &(&str, &str)| config.distributed_type.as_deref() == Some(*mode);
        let (_, mode) = MODES.into_iter().find(is_meant)?;
        Some((config.path.display().to_string(), mode))
    };
    let Some((place, mode)) = by_flag().or_else(by_file) else { return };
    notes.warn(
        Id::EngineConfig,
        text!(
            "{place} asks for {mode}, which accelerate uses only on GPUs: on this node's CPUs the ranks train as MULTI_CPU, without its settings",
            "{place} 要求使用 {mode}，而 accelerate 只在 GPU 上使用它：在本节点的 CPU 上各 rank 以 MULTI_CPU 方式训练，其设置不起作用"
        ),
        text!(
            "use nodes with GPUs; if CPUs are meant, distributed_type: MULTI_GPU says what happens",
            "请使用有 GPU 的节点；若确要使用 CPU，写 distributed_type: MULTI_GPU 才与实际一致"
        ),
    );
}

/// The flags of the modes that need GPUs, and their names in a file. MEGATRON_LM needs a package whose
/// absence ends every rank.
const MODES: [(&str, &str); 2] = [("--use_deepspeed", "DEEPSPEED"), ("--use_fsdp", "FSDP")];

/// accelerate counts processes over all machines and builds a torchrun call of its own.
pub(super) fn accelerate(plan: &Plan, options: &EngineOptions) -> Line {
    let m = &plan.membership;
    let mut line = Line::module(plan, "accelerate.commands.launch", Spelling::Underscores);
    line.value("num-machines", m.nnodes.to_string());
    line.value("num-processes", plan.world_size.to_string());
    line.value("machine-rank", m.seat().to_string());
    line.value("main-process-ip", &m.master_addr);
    line.value("main-process-port", m.master_port.to_string());
    line.value("rdzv-backend", "static");
    line.value("max-restarts", "0");
    let given = |flags: &[&str]| names_one_of(&plan.engine_args, flags);
    // accelerate reads its default file if none is named.
    let default = plan.accelerate.as_ref().filter(|config| !config.given);
    let has_config = given(&["--config_file"]) || default.is_some();
    // Without these flags and without a configuration accelerate prints advice instead of using
    // defaults.
    if !has_config && !given(&["--mixed_precision"]) {
        line.value("mixed-precision", "no");
    }
    if !has_config && !given(&["--dynamo_backend"]) {
        line.value("dynamo-backend", "no");
    }
    // Without a mode accelerate guesses it from the GPUs of this node. The mode of a configuration file
    // (DeepSpeed, FSDP) is read only without a mode flag.
    let single = default.is_some_and(AccelerateConfig::starts_one_process);
    if plan.world_size > 1 && (!has_config || single) && !names_a_mode(&plan.engine_args) {
        line.switch("multi-gpu");
        // accelerate refuses `gpu_ids` of the file for a single process together with this flag.
        if single && !given(&["--gpu_ids"]) {
            line.value("gpu-ids", "all");
        }
    }
    // By default accelerate's DeepSpeed mode on several machines uses pdsh over ssh.
    if m.nnodes > 1 && !given(&["--deepspeed_multinode_launcher"]) {
        line.value("deepspeed-multinode-launcher", "standard");
    }
    // The flag exists since accelerate 1.0.
    if let Some(folder) = options.log_dir.as_ref().filter(|_| plan.knows("log-dir", true)) {
        line.value("log-dir", folder);
    }
    line
}

/// Whether the arguments name accelerate's mode, so that a configuration file does not decide
/// it.
pub(crate) fn names_a_mode(engine_args: &[String]) -> bool {
    names_one_of(
        engine_args,
        &["--multi_gpu", "--cpu", "--tpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm"],
    )
}

/// Whether the engine's own arguments name one of these flags, in either spelling.
fn names_one_of(args: &[String], flags: &[&str]) -> bool {
    args.iter().any(|arg| {
        let name = arg.split('=').next().unwrap_or_default().replace('-', "_");
        flags.iter().any(|flag| name == flag.replace('-', "_"))
    })
}
