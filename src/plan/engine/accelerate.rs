//! accelerate's command line, and the effect of its configuration file on the plan.
//!
//! Takes the plan and the parsed file; gives the command line, a warning if accelerate would
//! start a single process, and the decision about its default file. Never reads the file.

use super::line::{EngineOptions, Line, Spelling};
use crate::Plan;
use crate::notes::Notes;
use node::observe::AccelerateConfig;
use text::text;
use verdict::Id;

/// Records what the file decides. `has_mode`: an argument of the engine already names the mode.
pub fn check(config: &AccelerateConfig, world: u32, has_mode: bool, notes: &mut Notes) {
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
pub(super) fn line(plan: &Plan, options: &EngineOptions) -> Line {
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
