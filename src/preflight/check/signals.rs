//! Check whether SIGTERM to the container reaches ranklaunch, or is lost in a shell that is PID
//! 1.

use super::finding::{CheckFinding, Judge};
use super::input::CheckInput;
use text::text;
use verdict::Id;

pub(super) const JUDGES: &[Judge] = &[(Id::SignalsTerm, first_process)];

fn first_process(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(shell) = &input.facts.state.non_forwarding_init else {
        return vec![CheckFinding::ok(text!("PID 1 forwards SIGTERM", "PID 1 会转发 SIGTERM"))];
    };
    let (name, command) = (&shell.name, &shell.command);
    vec![CheckFinding::bad(
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
