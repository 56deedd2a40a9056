//! What accelerate's configuration file makes of the plan.
//!
//! Takes the plan's world size and the file; gives a warning where accelerate would
//! start a single process, and the decision about a default file that nobody named.
//! Never reads the file.

use crate::observe::AccelerateConfig;
use crate::plan::notes::Notes;
use crate::text;

/// Says what the file decides; `has_mode`: an argument of the engine names the mode anyway.
pub(crate) fn check(config: &AccelerateConfig, world: u32, has_mode: bool, notes: &mut Notes) {
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
            "engine.config",
            text!(
                "{path} says distributed_type: {mode}, so accelerate starts one process, but {world} are planned",
                "{path} 中 distributed_type 为 {mode}，accelerate 只会启动一个进程，而计划启动 {world} 个"
            ),
            config.cure(),
        ),
        (true, false) => notes.warn(
            "engine.config",
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
