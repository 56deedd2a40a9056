//! Whether a stop of the container reaches this program.

use super::{Evidence, Finding, Judged};
use crate::text;
use crate::verdict::Id;

pub(super) const JUDGES: &[Judged] = &[(Id::SignalsTerm, first_process)];

fn first_process(evidence: &Evidence<'_>) -> Vec<Finding> {
    let Some(shell) = &evidence.facts.state.deaf_shell else {
        return vec![Finding::ok(text!(
            "no shell keeps the container's signals to itself",
            "没有 shell 截留容器收到的信号"
        ))];
    };
    let (name, command) = (&shell.name, &shell.command);
    vec![Finding::bad(
        text!(
            "PID 1 is {name} ({command}), which does not pass SIGTERM on: a stop of this container reaches no rank, and when its time is over everything is killed",
            "PID 1 是 {name}（{command}），它不会转发 SIGTERM：停止容器时 rank 收不到信号，超时后全部被强制杀死"
        ),
        text!(
            "write exec before ranklaunch, the last command of that script, or make ranklaunch the entry point itself (exec form)",
            "请在该脚本的最后一条命令 ranklaunch 前加上 exec，或直接以 exec 形式将 ranklaunch 设为入口"
        ),
    )]
}
