//! Whether a stop of the container reaches this program.

use super::evidence::Evidence;
use super::finding::{Finding, Judged};
use crate::text;
use crate::verdict::Id;

pub(super) const JUDGES: &[Judged] = &[(Id::SignalsTerm, first_process)];

fn first_process(evidence: &Evidence<'_>) -> Vec<Finding> {
    let Some(shell) = &evidence.facts.state.deaf_shell else {
        return vec![Finding::ok(text!("PID 1 forwards SIGTERM", "PID 1 会转发 SIGTERM"))];
    };
    let (name, command) = (&shell.name, &shell.command);
    vec![Finding::bad(
        text!(
            "PID 1 is {name} ({command}), which does not forward SIGTERM: when this container is stopped, no rank receives the signal and all are killed after the grace period",
            "PID 1 是 {name}（{command}），它不会转发 SIGTERM：停止容器时各 rank 收不到信号，宽限期过后全部被强制终止"
        ),
        text!(
            "run ranklaunch as the last command of that script with exec, or make ranklaunch the entry point itself (exec form)",
            "请在脚本末尾用 exec ranklaunch 启动，或以 exec 形式直接将 ranklaunch 设为 ENTRYPOINT"
        ),
    )]
}
