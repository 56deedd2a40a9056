//! Endings because a process of ranklaunch was killed or hung: the guard or the agent.

use super::types::Ending;
use linux::sys::{Signal, signal_name};
use text::text;
use verdict::outcome::End;
use verdict::{Class, Id};

/// Signals by which the kernel, or abort(3) after a panic, ends a program for its own error.
const CRASHES: &[Signal] = &[Signal::SEGV, Signal::BUS, Signal::ILL, Signal::ABORT, Signal::FPE];

pub(super) fn guard_killed() -> Ending {
    Ending::new(
        End::Signal(Signal::KILL.as_raw()).shell_code(),
        Class::Launcher,
        Id::GuardKilled,
        None,
        text!("the guard process of ranklaunch was killed", "ranklaunch 的 guard 进程被杀死"),
        text!(
            "SIGKILL was sent to ranklaunch from outside, or the node ran out of memory",
            "ranklaunch 收到了来自外部的 SIGKILL，或节点内存耗尽"
        ),
    )
}

/// The agent was killed by `signal`, and with it the knowledge about the ranks. If a stop from
/// outside by `stopped_by` was in progress, the code is that of the stop.
pub fn agent_killed(signal: i32, stopped_by: Option<i32>) -> Ending {
    let name = signal_name(signal);
    Ending::new(
        End::Signal(stopped_by.unwrap_or(signal)).shell_code(),
        Class::Launcher,
        Id::AgentKilled,
        None,
        text!(
            "ranklaunch's agent was killed by {name}; its ranks were ended with it",
            "ranklaunch 的 agent 进程被 {name} 杀死，各 rank 已随之终止"
        ),
        if CRASHES.iter().any(|crash| crash.as_raw() == signal) {
            text!(
                "ranklaunch itself crashed, not the job: report the output of ranklaunch --version, the lines above and what dmesg says of the crash",
                "是 ranklaunch 自身崩溃，而非任务出错：请反馈 ranklaunch --version 的输出、上方的日志以及 dmesg 中的崩溃记录"
            )
        } else {
            text!(
                "the signal was sent to ranklaunch from outside, or the node ran out of memory",
                "该信号由外部发给 ranklaunch，或节点内存耗尽"
            )
        },
    )
}

/// After a stop from outside by `signal` the agent did not end within the grace period.
pub fn agent_hung(signal: i32) -> Ending {
    let name = signal_name(signal);
    Ending::new(
        End::Signal(signal).shell_code(),
        Class::Stopped,
        Id::AgentHung,
        None,
        text!(
            "stopped from outside by {name}; ranklaunch's agent did not end within the grace period and was killed with its ranks",
            "收到外部信号 {name}，任务停止；ranklaunch 的 agent 进程未能在宽限期内结束，已连同各 rank 一起被强制终止"
        ),
        text!(
            "it waits for a mount or a driver that does not answer, or the node is overloaded; the last lines of the ranks may be missing in the logs",
            "它在等待没有应答的挂载点或驱动，或节点过载；日志中可能缺少各 rank 的最后几行"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::lang::Text;

    #[test]
    fn only_crash_signals_blame_the_launcher_itself() {
        let hint = |signal: i32| agent_killed(signal, None).hint;
        let sent = hint(Signal::KILL.as_raw());
        for signal in [4, 6, 7, 8, 11] {
            let Text { en, zh } = hint(signal);
            assert!(en.contains("itself crashed") && en.contains("--version"), "{signal}: {en}");
            assert!(zh.contains("自身崩溃") && zh.contains("--version"), "{signal}: {zh}");
            assert_ne!(Text { en, zh }, sent, "{signal}");
        }
        for signal in [1, 2, 9, 15, 24, 31, 40] {
            assert_eq!(hint(signal), sent, "{signal}");
        }
        assert!(sent.en.contains("from outside"), "{}", sent.en);
    }
}
