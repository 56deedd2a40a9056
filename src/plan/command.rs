//! The engine's command line.
//!
//! Takes a finished or unfinished [`Plan`]; gives what a person could paste
//! ([`argv`]) and what is executed, with our rank shim between the engine and
//! the program ([`exec_argv`]). Passes no flag that the installed torch does not
//! know. Never quotes: arguments stay arguments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::BASE64URL;

use crate::observe::AccelerateConfig;
use crate::plan::Plan;
use crate::settings::{Engine, Program, Rendezvous};

/// What only the supervisor knows when it starts the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// The engine's own local, temporary log folder.
    pub log_dir: Option<PathBuf>,
    /// How long the engine waits after TERM before it kills its ranks.
    pub shutdown_timeout: Option<Duration>,
}

/// The program as one rank runs it: `python -u script args…`.
pub fn rank_argv(plan: &Plan) -> Vec<OsString> {
    let mut argv = Vec::new();
    match &plan.program {
        Program::Script { path, args } => {
            argv.extend([python(plan), "-u".into(), path.clone()]);
            argv.extend(args.iter().cloned());
        }
        Program::Module { name, args } => {
            argv.extend([python(plan), "-u".into(), "-m".into(), name.into()]);
            argv.extend(args.iter().cloned());
        }
        Program::Command { argv: command } => argv.extend(command.iter().cloned()),
    }
    argv
}

/// The command line without us in it.
pub fn argv(plan: &Plan) -> Vec<OsString> {
    render(plan, None, &EngineOptions::default())
}

/// The command line that is executed; `shim` is our own executable.
pub fn exec_argv(plan: &Plan, shim: &Path, options: &EngineOptions) -> Vec<OsString> {
    render(plan, Some(shim), options)
}

fn render(plan: &Plan, shim: Option<&Path>, options: &EngineOptions) -> Vec<OsString> {
    let mut argv = match plan.engine {
        Engine::Command => return rank_argv(plan),
        Engine::Direct => Vec::new(),
        Engine::Torchrun => torchrun(plan, options),
        Engine::Accelerate => accelerate(plan, options),
        Engine::Deepspeed => deepspeed(plan),
    };
    let spelling = Spelling::of(plan);
    match (shim, &plan.program) {
        (Some(shim), _) => {
            if plan.engine != Engine::Direct {
                argv.push(spelling.flag("no-python"));
            }
            // The role stands before `--`: argparse eats a `--` that follows the program.
            argv.extend([shim.into(), "rank".into(), "--".into()]);
            argv.extend(rank_argv(plan));
        }
        (None, _) if plan.engine == Engine::Direct => argv.extend(rank_argv(plan)),
        (None, Program::Script { path, args }) => {
            argv.push(path.clone());
            argv.extend(args.iter().cloned());
        }
        (None, Program::Module { name, args }) => {
            argv.extend(["--module".into(), name.into()]);
            argv.extend(args.iter().cloned());
        }
        (None, Program::Command { argv: command }) => {
            argv.push(spelling.flag("no-python"));
            argv.extend(command.iter().cloned());
        }
    }
    argv
}

/// The interpreter, or the name by which a shell would find one.
fn python(plan: &Plan) -> OsString {
    plan.python.as_ref().map_or_else(|| "python3".into(), |path| path.into())
}

fn torchrun(plan: &Plan, options: &EngineOptions) -> Vec<OsString> {
    let m = &plan.membership;
    let mut line = Line::module(plan, "torch.distributed.run", Spelling::of(plan));
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
        if let Some(address) = plan.network.local_addr.filter(|_| version(plan) >= (2, 0)) {
            line.value("local-addr", address.to_string());
        }
    } else {
        line.value("node-rank", m.node_rank.to_string());
        line.value("rdzv-backend", "static");
        line.value("master-addr", &m.master_addr);
        line.value("master-port", m.master_port.to_string());
    }
    line.value("max-restarts", "0");
    if let Some(folder) = &options.log_dir {
        line.value("log-dir", folder);
    }
    // Since torch 2.15; older ones kill after a fixed 30 s.
    if let Some(timeout) = options.shutdown_timeout.filter(|_| version(plan) >= (2, 15)) {
        line.value("shutdown-timeout", timeout.as_secs().max(1).to_string());
    }
    line.own(plan)
}

/// One `k=v` list. Without is_host every node guesses by its host name; an elastic
/// job has no node rank, so there the guess stays.
fn rendezvous_settings(plan: &Plan) -> String {
    let seconds = plan.join_timeout.as_secs().max(1);
    let mut settings = Vec::new();
    if plan.membership.elastic.is_none() {
        settings.push(format!("is_host={}", u8::from(plan.membership.is_master())));
    }
    settings.push(format!("join_timeout={seconds}"));
    // A store that answers no read for this long is gone (torch's default is 60).
    settings.push("read_timeout=300".to_owned());
    settings.join(",")
}

/// `host:port`, an IPv6 address in brackets.
fn endpoint(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether the engine's own arguments name one of these flags, in either spelling.
fn names_one_of(args: &[String], flags: &[&str]) -> bool {
    args.iter().any(|arg| {
        let name = arg.split('=').next().unwrap_or_default().replace('-', "_");
        flags.iter().any(|flag| name == flag.replace('-', "_"))
    })
}

/// Whether accelerate is told its mode, which then no configuration file decides.
pub(crate) fn names_a_mode(engine_args: &[String]) -> bool {
    names_one_of(
        engine_args,
        &["--multi_gpu", "--cpu", "--tpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm"],
    )
}

/// accelerate counts processes over all machines and builds a torchrun call of its own.
fn accelerate(plan: &Plan, options: &EngineOptions) -> Vec<OsString> {
    let m = &plan.membership;
    let mut line = Line::module(plan, "accelerate.commands.launch", Spelling::Underscores);
    line.value("num-machines", m.nnodes.to_string());
    line.value("num-processes", plan.world_size.to_string());
    line.value("machine-rank", m.node_rank.to_string());
    line.value("main-process-ip", &m.master_addr);
    line.value("main-process-port", m.master_port.to_string());
    line.value("rdzv-backend", "static");
    line.value("max-restarts", "0");
    let given = |flags: &[&str]| names_one_of(&plan.engine_args, flags);
    // Its default file counts as well: it is read wherever none is named.
    let default = plan.accelerate.as_ref().filter(|config| !config.given);
    let has_config = given(&["--config_file"]) || default.is_some();
    // With neither these nor a configuration accelerate prints advice instead of defaults.
    if !has_config && !given(&["--mixed_precision"]) {
        line.value("mixed-precision", "no");
    }
    if !has_config && !given(&["--dynamo_backend"]) {
        line.value("dynamo-backend", "no");
    }
    // Its mode is otherwise guessed from the GPUs of this node, and a configuration
    // file's mode (DeepSpeed, FSDP) is only read while no mode flag is given.
    let single = default.is_some_and(AccelerateConfig::starts_one_process);
    if plan.world_size > 1 && (!has_config || single) && !names_a_mode(&plan.engine_args) {
        line.switch("multi-gpu");
        // A list for one process, from the same file, is refused beside it.
        if single && !given(&["--gpu_ids"]) {
            line.value("gpu-ids", "all");
        }
    }
    // Its DeepSpeed mode on several machines is pdsh over ssh unless told otherwise.
    if m.nnodes > 1 && !given(&["--deepspeed_multinode_launcher"]) {
        line.value("deepspeed-multinode-launcher", "standard");
    }
    if let Some(folder) = &options.log_dir {
        line.value("log-dir", folder);
    }
    line.own(plan)
}

/// The launcher that DeepSpeed's runner would start on every node through ssh.
fn deepspeed(plan: &Plan) -> Vec<OsString> {
    let m = &plan.membership;
    let mut line = Line::module(plan, "deepspeed.launcher.launch", Spelling::Underscores);
    line.value("world-info", world_info(plan));
    line.value("node-rank", m.node_rank.to_string());
    line.value("master-addr", &m.master_addr);
    line.value("master-port", m.master_port.to_string());
    // It would put --local_rank between the shim and its role; LOCAL_RANK is set anyway.
    line.switch("no-local-rank");
    line.own(plan)
}

/// Base64 of a JSON map node → device ids. The launcher sets CUDA_VISIBLE_DEVICES from
/// this node's list; of the other nodes only the number of devices counts.
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
            let devices = if node == plan.membership.node_rank {
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

/// How an engine spells its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    Hyphens,
    /// accelerate, DeepSpeed, and torchrun before 2.0, which knows no hyphens.
    Underscores,
}

impl Spelling {
    fn of(plan: &Plan) -> Spelling {
        if plan.engine == Engine::Torchrun && version(plan) >= (2, 0) {
            Spelling::Hyphens
        } else {
            Spelling::Underscores
        }
    }

    fn flag(self, name: &str) -> OsString {
        match self {
            Spelling::Hyphens => format!("--{name}").into(),
            Spelling::Underscores => format!("--{}", name.replace('-', "_")).into(),
        }
    }
}

/// torch's (major, minor); an unknown version counts as the plain 2.0.
fn version(plan: &Plan) -> (u32, u32) {
    let parsed = plan.torch_version.as_deref().and_then(|version| {
        let mut parts = version.split('.');
        let major = parts.next()?.parse().ok()?;
        let minor: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
        Some((major, minor.parse().ok()?))
    });
    parsed.unwrap_or((2, 0))
}

/// A command line that grows.
struct Line {
    argv: Vec<OsString>,
    spelling: Spelling,
}

impl Line {
    fn module(plan: &Plan, module: &str, spelling: Spelling) -> Line {
        Line { argv: vec![python(plan), "-m".into(), module.into()], spelling }
    }

    fn switch(&mut self, name: &str) {
        self.argv.push(self.spelling.flag(name));
    }

    fn value(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.switch(name);
        self.argv.push(value.as_ref().to_owned());
    }

    /// Ends with the user's own arguments for the engine, which win over ours.
    fn own(mut self, plan: &Plan) -> Vec<OsString> {
        self.argv.extend(plan.engine_args.iter().map(OsString::from));
        self.argv
    }
}
