//! The verdict: one exit code and its cause, from how everything ended.

use serde::{Deserialize, Serialize};

use crate::lang::Text;
use crate::supervise::{End, Outcome, StopReason};
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// How the program ends, and why, in one place for the console, run.json and
/// the termination message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Exit code of the program, before the profile's `[exit]` remaps it.
    pub code: i32,
    /// `done`, `script`, `stopped`, `engine` or `launcher`: tells a script's own
    /// code 66 from the launcher's.
    pub class: String,
    /// Stable id of the cause (`rank.exit`, `rank.signal`, `layout.unsolvable`…).
    pub id: String,
    /// Global rank that caused it.
    pub rank: Option<u32>,
    /// Node that caused it, where the nodes share one verdict.
    #[serde(default)]
    pub node: Option<u32>,
    pub text: Text,
    pub hint: Text,
}

fn make(code: i32, class: &str, id: &str, rank: Option<u32>, text: Text, hint: Text) -> Ending {
    Ending { code, class: class.into(), id: id.into(), rank, node: None, text, hint }
}

/// A refusal as an ending.
pub fn refused(refusal: &Refusal) -> Ending {
    make(
        refusal.verdict.code(),
        "launcher",
        &refusal.id,
        None,
        refusal.text.clone(),
        refusal.hint.clone(),
    )
}

/// The first failing rank's own code, or 128 plus its signal. Stopped from
/// outside it is 128 plus that signal even when the ranks ended with 0, since an
/// unfinished job must not count as complete.
pub fn ending(outcome: &Outcome) -> Ending {
    if !outcome.survivors.is_empty() {
        return unkillable(outcome);
    }
    match outcome.stop {
        Some(StopReason::Signal(signal)) => stopped(signal),
        Some(StopReason::GuardGone) => make(
            137,
            "launcher",
            "guard.killed",
            None,
            text!("the launcher's guard process was killed", "启动器的守护进程被杀死"),
            text!(
                "somebody sent SIGKILL to ranklaunch, or the node ran out of memory",
                "有人向 ranklaunch 发送了 SIGKILL，或节点内存耗尽"
            ),
        ),
        Some(StopReason::RankFailed(rank)) => rank_failed(outcome, rank),
        Some(StopReason::EngineGone(end)) => engine_gone(end),
        Some(StopReason::OtherNode) => other_node(),
        None => by_itself(outcome),
    }
}

/// Stopped because of another node that could not say more.
fn other_node() -> Ending {
    make(
        Verdict::OtherNode.code(),
        "launcher",
        "node.other",
        None,
        text!("stopped because another node failed", "因其他节点失败而停止"),
        text!("read the report of the other nodes", "查看其他节点的报告"),
    )
}

/// Stopped from outside by `signal`.
pub fn stopped(signal: i32) -> Ending {
    let name = signal_name(signal);
    make(
        128 + signal,
        "stopped",
        "stopped.signal",
        None,
        text!("stopped from outside by {name}", "被外部信号 {name} 停止"),
        text!(
            "look for who sent it: a deleted pod, a preemption, a time limit, a Ctrl-C",
            "查明信号来源：删除 Pod、抢占、超时限制或 Ctrl-C"
        ),
    )
}

/// The agent, which knows how the ranks are, was killed by `signal`.
pub fn agent_killed(signal: i32) -> Ending {
    let name = signal_name(signal);
    make(
        128 + signal,
        "launcher",
        "agent.killed",
        None,
        text!(
            "the launcher's agent was killed by {name}; its ranks were ended with it",
            "启动器的 agent 被 {name} 杀死；其 rank 已随之终止"
        ),
        text!(
            "somebody sent it to ranklaunch, or the node ran out of memory",
            "有人向 ranklaunch 发送了该信号，或节点内存耗尽"
        ),
    )
}

fn by_itself(outcome: &Outcome) -> Ending {
    if let Some(failed) = outcome.ranks.iter().find(|rank| rank.failed()) {
        return rank_failed(outcome, failed.rank);
    }
    if outcome.ranks.is_empty() {
        let how = outcome.engine.map_or_else(|| Text::same("?"), describe);
        let (en, zh) = (how.en, how.zh);
        return make(
            Verdict::EngineStart.code(),
            "engine",
            "engine.start",
            None,
            text!(
                "the engine ended before any rank began: {en}",
                "引擎在任何 rank 启动之前就结束了：{zh}"
            ),
            text!("read engine.log in the log folder", "查看日志目录中的 engine.log"),
        );
    }
    match outcome.engine {
        None | Some(End::Code(0)) => make(
            0,
            "done",
            "done",
            None,
            text!("all ranks ended with code 0", "所有 rank 均以 0 结束"),
            Text::same(""),
        ),
        Some(end) => {
            let Text { en, zh } = describe(end);
            make(
                end.shell_code(),
                "engine",
                "engine.end",
                None,
                text!(
                    "all ranks of this node ended with code 0, but the engine ended with {en}",
                    "本节点所有 rank 均以 0 结束，但引擎的结束状态为{zh}"
                ),
                text!(
                    "another node may have failed; read engine.log and the other nodes' reports",
                    "可能是其他节点失败；查看 engine.log 和其他节点的报告"
                ),
            )
        }
    }
}

fn rank_failed(outcome: &Outcome, rank: u32) -> Ending {
    let end = outcome.ranks.iter().find(|seen| seen.rank == rank).and_then(|seen| seen.end);
    let read_log = text!("the last lines of its output are above", "其输出的最后几行见上方");
    if let (Some((program, errno)), Some(End::Code(code))) = (&outcome.not_executed, end) {
        let error = std::io::Error::from_raw_os_error(*errno);
        return make(
            code,
            "script",
            "rank.exec",
            Some(rank),
            text!(
                "the program {program} cannot be executed: {error}",
                "程序 {program} 无法执行：{error}"
            ),
            not_executed_hint(&error).unwrap_or_else(|| {
                text!(
                    "check its path, its execute permission and the interpreter in its first line",
                    "检查其路径、执行权限以及首行指定的解释器"
                )
            }),
        );
    }
    match end {
        Some(End::Code(code)) => make(
            code,
            "script",
            "rank.exit",
            Some(rank),
            text!("rank {rank} exited with code {code}", "rank {rank} 以退出码 {code} 结束"),
            read_log,
        ),
        Some(End::Signal(signal)) => {
            let name = signal_name(signal);
            let hint = match signal {
                9 => text!(
                    "the kernel's out-of-memory killer does this, or a person: compare memory use with the container's limit",
                    "通常是内核 OOM killer，或有人手动执行：请对比内存用量与容器限制"
                ),
                7 => text!(
                    "a bus error is mostly a full /dev/shm: mount an emptyDir with medium Memory, or --shm-size",
                    "总线错误多半是 /dev/shm 已满：请挂载 medium: Memory 的 emptyDir，或使用 --shm-size"
                ),
                _ => read_log,
            };
            let text = text!("rank {rank} was killed by {name}", "rank {rank} 被 {name} 杀死");
            make(128 + signal, "script", "rank.signal", Some(rank), text, hint)
        }
        None => make(
            137,
            "launcher",
            "shim.killed",
            Some(rank),
            text!(
                "the process that watched rank {rank} was killed; the rank was ended with it",
                "监视 rank {rank} 的进程被杀死；该 rank 已随之终止"
            ),
            text!(
                "somebody sent SIGKILL to `ranklaunch rank`",
                "有人向 `ranklaunch rank` 发送了 SIGKILL"
            ),
        ),
    }
}

/// What helps where the kernel made no process or thread (EAGAIN of fork(2)).
pub fn not_executed_hint(error: &std::io::Error) -> Option<Text> {
    (error.kind() == std::io::ErrorKind::WouldBlock).then(|| {
        text!(
            "no more processes are allowed here: raise the pids limit (podPidsLimit, docker run --pids-limit) or the user's nproc limit (ulimit -u)",
            "此处不允许创建更多进程：请提高 pids 限制（podPidsLimit、docker run --pids-limit）或用户的 nproc 限制（ulimit -u）"
        )
    })
}

fn engine_gone(end: End) -> Ending {
    let code = if end.success() { Verdict::Internal.code() } else { end.shell_code() };
    let Text { en, zh } = describe(end);
    make(
        code,
        "engine",
        "engine.gone",
        None,
        text!(
            "the engine ended while its ranks were running: {en}",
            "引擎在 rank 仍在运行时结束：{zh}"
        ),
        text!("its ranks were stopped; read engine.log", "其 rank 已被停止；查看 engine.log"),
    )
}

fn unkillable(outcome: &Outcome) -> Ending {
    let list: Vec<String> = outcome
        .survivors
        .iter()
        .map(|left| {
            let place = left.wait_channel.as_deref().unwrap_or("?");
            format!("{} ({}, {}, {place})", left.pid, left.comm, left.state)
        })
        .collect();
    let list = list.join(", ");
    make(
        Verdict::Stale.code(),
        "launcher",
        "unkillable",
        None,
        text!("processes outlived SIGKILL: {list}", "以下进程在 SIGKILL 后仍存活：{list}"),
        text!(
            "they sleep in the kernel (a hung driver or file system); the node needs a reset",
            "它们卡在内核中（驱动或文件系统挂死）；该节点需要重启"
        ),
    )
}

/// `exit code 7`, `signal SIGKILL`.
pub fn describe(end: End) -> Text {
    match end {
        End::Code(code) => text!("exit code {code}", "退出码 {code}"),
        End::Signal(signal) => {
            let name = signal_name(signal);
            text!("signal {name}", "信号 {name}")
        }
    }
}

pub fn signal_name(signal: i32) -> String {
    nix::sys::signal::Signal::try_from(signal)
        .map_or_else(|_| format!("signal {signal}"), |name| name.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::supervise::RankEnd;

    fn rank(rank: u32, end: Option<End>) -> RankEnd {
        RankEnd { rank, local_rank: rank, pid: Some(1), end, at: SystemTime::now() }
    }

    #[test]
    fn the_code_is_that_of_the_first_failure() {
        let two = |a, b, stop| Outcome {
            ranks: vec![rank(0, a), rank(1, b)],
            stop,
            ..Outcome::default()
        };
        let ok = Some(End::Code(0));
        let rows = [
            (two(ok, ok, None), 0, "done"),
            (
                two(Some(End::Signal(15)), Some(End::Code(7)), Some(StopReason::RankFailed(1))),
                7,
                "rank.exit",
            ),
            (
                two(Some(End::Signal(11)), Some(End::Signal(15)), Some(StopReason::RankFailed(0))),
                139,
                "rank.signal",
            ),
            (two(ok, ok, Some(StopReason::Signal(15))), 143, "stopped.signal"),
            (two(None, ok, Some(StopReason::RankFailed(0))), 137, "shim.killed"),
            (two(ok, ok, Some(StopReason::EngineGone(End::Signal(9)))), 137, "engine.gone"),
            (Outcome { engine: Some(End::Code(1)), ..Outcome::default() }, 68, "engine.start"),
            (Outcome { engine: Some(End::Code(1)), ..two(ok, ok, None) }, 1, "engine.end"),
        ];
        for (outcome, code, id) in rows {
            let ending = ending(&outcome);
            assert_eq!((ending.code, ending.id.as_str()), (code, id), "{outcome:?}");
        }
    }
}
