//! The verdict: one exit code and its cause, from how everything ended.

use std::io::IsTerminal;

use serde::{Deserialize, Serialize};

use crate::lang::Text;
use crate::rank::GlobalRank;
use crate::supervise::{End, Halt, OtherWorld, Outcome, Planned, StopReason, Unit};
use crate::sys::{self, Signal};
use crate::text;
use crate::verdict::{Class, Id, Refusal, Verdict};

/// How the program ends, and why, in one place for the console, run.json and
/// the termination message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Exit code of the program, before the profile's `[exit]` remaps it.
    pub code: i32,
    pub class: Class,
    /// Stable id of the cause (`rank.exit`, `rank.signal`, `layout.unsolvable`…).
    pub id: Id,
    /// Global rank that caused it.
    pub rank: Option<u32>,
    /// Node that caused it, where the nodes share one verdict.
    #[serde(default)]
    pub node: Option<u32>,
    pub text: Text,
    pub hint: Text,
}

/// Whose output shows the cause of an ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The rank's, or that of the command which the node runs in a rank's place.
    Started(GlobalRank),
    Engine,
}

impl Ending {
    /// Nobody, where the launcher itself or somebody outside is the cause.
    pub fn speaker(&self, planned: Planned) -> Option<Speaker> {
        let command = self.class == Class::Script && planned.what == Unit::Command;
        let started = self.rank.map(GlobalRank).or(command.then_some(planned.first));
        started.map(Speaker::Started).or(self.blames_engine().then_some(Speaker::Engine))
    }

    /// It names processes that could not be ended.
    pub fn names_survivors(&self) -> bool {
        [Id::Unkillable, Id::Forbidden].contains(&self.id)
    }

    /// What the engine said last led to this, on whichever node.
    pub fn blames_engine(&self) -> bool {
        self.rank.is_none()
            && matches!(
                self.id,
                Id::EngineExec
                    | Id::EngineStart
                    | Id::EngineRanks
                    | Id::EngineGone
                    | Id::EngineEnd
                    | Id::PortLost
            )
    }
}

fn make(code: i32, class: Class, id: Id, rank: Option<u32>, text: Text, hint: Text) -> Ending {
    Ending { code, class, id, rank, node: None, text, hint }
}

/// A refusal as an ending.
pub fn refused(refusal: &Refusal) -> Ending {
    make(
        refusal.verdict.code(),
        Class::Launcher,
        refusal.id,
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
        Some(StopReason::GuardGone) => guard_killed(),
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
        Class::Launcher,
        Id::NodeOther,
        None,
        text!("stopped because another node failed", "因其他节点失败而停止"),
        text!("read the report of the other nodes", "查看其他节点的报告"),
    )
}

/// Ended while no rank ran.
pub fn halted(halt: Halt) -> Ending {
    match halt {
        Halt::Signal(signal) => stopped(signal),
        Halt::GuardGone => guard_killed(),
    }
}

fn guard_killed() -> Ending {
    make(
        End::Signal(Signal::KILL.as_raw()).shell_code(),
        Class::Launcher,
        Id::GuardKilled,
        None,
        text!("the guard process of ranklaunch was killed", "ranklaunch 的 guard 进程被杀死"),
        text!(
            "somebody sent SIGKILL to ranklaunch, or the node ran out of memory",
            "有人向 ranklaunch 发送了 SIGKILL，或节点内存耗尽"
        ),
    )
}

/// Stopped from outside by `signal`.
pub fn stopped(signal: i32) -> Ending {
    let name = signal_name(signal);
    // Whoever sits at the terminal pressed Ctrl-C and knows it.
    let hint = if signal == Signal::INT.as_raw() && std::io::stderr().is_terminal() {
        Text::same("")
    } else {
        text!(
            "look for who sent it: a deleted pod, a preemption, a time limit, a Ctrl-C",
            "查明信号来源：删除 Pod、抢占、超时限制或 Ctrl-C"
        )
    };
    make(
        End::Signal(signal).shell_code(),
        Class::Stopped,
        Id::StoppedSignal,
        None,
        text!("stopped from outside by {name}", "被外部信号 {name} 停止"),
        hint,
    )
}

/// The agent, which knows how the ranks are, was killed by `signal`; perhaps while a
/// stop from outside by `stopped_by` was under way, whose code then stands.
pub fn agent_killed(signal: i32, stopped_by: Option<i32>) -> Ending {
    let name = signal_name(signal);
    make(
        End::Signal(stopped_by.unwrap_or(signal)).shell_code(),
        Class::Launcher,
        Id::AgentKilled,
        None,
        text!(
            "ranklaunch's agent was killed by {name}; its ranks were ended with it",
            "ranklaunch 的 agent 被 {name} 杀死；其 rank 已随之终止"
        ),
        text!(
            "somebody sent it to ranklaunch, or the node ran out of memory",
            "有人向 ranklaunch 发送了该信号，或节点内存耗尽"
        ),
    )
}

/// Stopped from outside by `signal`, and the agent did not end within the grace.
pub fn agent_hung(signal: i32) -> Ending {
    let name = signal_name(signal);
    make(
        End::Signal(signal).shell_code(),
        Class::Stopped,
        Id::AgentHung,
        None,
        text!(
            "stopped from outside by {name}; ranklaunch's agent did not end within the grace and was killed with its ranks",
            "被外部信号 {name} 停止；ranklaunch 的 agent 未能在宽限期内结束，已连同其 rank 一起被杀死"
        ),
        text!(
            "something that it waits for does not answer (a dead mount, a driver), or the node is overloaded; the last lines of the ranks may be missing in the logs",
            "它所等待的对象没有应答（挂载点失效或驱动挂死），或节点过载；日志中可能缺少各 rank 的最后几行"
        ),
    )
}

fn by_itself(outcome: &Outcome) -> Ending {
    if let Some(failed) = outcome.ranks.iter().find(|rank| rank.failed()) {
        return rank_failed(outcome, failed.id.global);
    }
    if outcome.ranks.is_empty() {
        let how = outcome.engine.map_or_else(|| Text::same("?"), describe);
        let (en, zh) = (how.en, how.zh);
        return make(
            Verdict::EngineStart.code(),
            Class::Engine,
            Id::EngineStart,
            None,
            text!(
                "the engine ended before any rank began: {en}",
                "引擎在任何 rank 启动之前就结束了：{zh}"
            ),
            text!(
                "its last lines are above, all of them in engine.log",
                "其最后几行见上方，完整内容见 engine.log"
            ),
        );
    }
    if outcome.other_world.is_some() || began(outcome) < outcome.planned.local {
        return engine_ranks(outcome);
    }
    match outcome.engine {
        None | Some(End::Code(0)) => make(
            0,
            Class::Done,
            Id::Done,
            None,
            text!("all ranks ended with code 0", "所有 rank 均以 0 结束"),
            Text::same(""),
        ),
        Some(end) => {
            let Text { en, zh } = describe(end);
            make(
                end.shell_code(),
                Class::Engine,
                Id::EngineEnd,
                None,
                text!(
                    "all ranks of this node ended with code 0, but the engine ended with {en}",
                    "本节点所有 rank 均以 0 结束，但引擎的结束状态为{zh}"
                ),
                text!(
                    "another node may have failed: read the last lines of the engine above and the other nodes' reports",
                    "可能是其他节点失败：查看上方引擎的最后几行和其他节点的报告"
                ),
            )
        }
    }
}

fn began(outcome: &Outcome) -> u32 {
    u32::try_from(outcome.ranks.len()).unwrap_or(u32::MAX)
}

/// All ranks that began ended well, but it was not the job that was planned.
fn engine_ranks(outcome: &Outcome) -> Ending {
    let planned = outcome.planned;
    let (began, local) = (began(outcome), planned.local);
    let text = match (planned.world, outcome.other_world) {
        (Some(world), _) if began < local && local == world => text!(
            "only {began} of {world} ranks ever began (world size {world} was planned)",
            "{world} 个 rank 中只启动了 {began} 个（计划的总进程数为 {world}）"
        ),
        (Some(world), _) if began < local => text!(
            "only {began} of the {local} ranks of this node ever began (world size {world} was planned)",
            "本节点 {local} 个 rank 中只启动了 {began} 个（计划的总进程数为 {world}）"
        ),
        (Some(world), Some(other)) => other_world(other, world),
        _ => text!(
            "only {began} of the {local} ranks of this node ever began",
            "本节点 {local} 个 rank 中只启动了 {began} 个"
        ),
    };
    make(Verdict::EngineStart.code(), Class::Engine, Id::EngineRanks, None, text, own_mode())
}

/// What a rank found instead of the `planned` world size.
pub fn other_world(other: OtherWorld, planned: u32) -> Text {
    let rank = other.rank;
    match other.world_size {
        Some(size) => text!(
            "rank {rank} found WORLD_SIZE={size}, but world size {planned} was planned",
            "rank {rank} 的环境中 WORLD_SIZE={size}，而计划的总进程数为 {planned}"
        ),
        None => text!(
            "rank {rank} found no WORLD_SIZE, so it was alone, but world size {planned} was planned",
            "rank {rank} 的环境中没有 WORLD_SIZE，即独自运行，而计划的总进程数为 {planned}"
        ),
    }
}

/// The ending with a better `cure` than the general one, where the engine started another
/// job than the planned one.
pub fn with_cure(ending: Ending, outcome: &Outcome, cure: Option<Text>) -> Ending {
    let blamed = ending.id == Id::EngineRanks
        || (ending.class == Class::Script && outcome.other_world.is_some());
    match cure {
        Some(hint) if blamed => Ending { hint, ..ending },
        _ => ending,
    }
}

fn own_mode() -> Text {
    text!(
        "the engine's own arguments or configuration ask for another number of processes: correct them, ask for that number with --nnodes and --nproc-per-node, or use --engine command for a program that starts its ranks itself",
        "引擎自身的参数或配置文件要求了不同的进程数：请修正它们，或用 --nnodes 与 --nproc-per-node 指定该数目；若程序自行启动各 rank，请使用 --engine command"
    )
}

/// The end of the user's own launcher, which is no rank.
fn command_failed(outcome: &Outcome, node: GlobalRank, end: Option<End>) -> Ending {
    let ending = rank_end(outcome, node, end);
    if outcome.not_executed.is_some() {
        return Ending { rank: None, ..ending };
    }
    let text = match end {
        Some(End::Code(code)) => text!(
            "the command on node {node} ended with code {code}",
            "节点 {node} 上的命令以退出码 {code} 结束"
        ),
        Some(End::Signal(signal)) => {
            let name = signal_name(signal);
            text!(
                "the command on node {node} was killed by {name}",
                "节点 {node} 上的命令被 {name} 杀死"
            )
        }
        None => text!(
            "the process that watched the command on node {node} was killed; the command was ended with it",
            "监视节点 {node} 上的命令的进程被杀死；该命令已随之终止"
        ),
    };
    let hint = match end {
        Some(End::Code(_)) => text!(
            "the last lines of its output are above; a rank that it started may have failed",
            "其输出的最后几行见上方；可能是它启动的某个 rank 失败"
        ),
        _ => ending.hint.clone(),
    };
    Ending { rank: None, text, hint, ..ending }
}

fn rank_failed(outcome: &Outcome, rank: GlobalRank) -> Ending {
    let end = outcome.ranks.iter().find(|seen| seen.id.global == rank).and_then(|seen| seen.end);
    if outcome.planned.what == Unit::Command {
        return command_failed(outcome, rank, end);
    }
    let ending = rank_end(outcome, rank, end);
    match (outcome.planned.world, outcome.other_world) {
        (Some(world), Some(other)) => {
            let Text { en, zh } = other_world(other, world);
            let Text { en: mode, zh: mode_zh } = own_mode();
            Ending { hint: text!("{en}: {mode}", "{zh}：{mode_zh}"), ..ending }
        }
        _ => ending,
    }
}

fn rank_end(outcome: &Outcome, rank: GlobalRank, end: Option<End>) -> Ending {
    let read_log = text!("the last lines of its output are above", "其输出的最后几行见上方");
    if let (Some((program, errno)), Some(End::Code(code))) = (&outcome.not_executed, end) {
        let error = std::io::Error::from_raw_os_error(*errno);
        return make(
            code,
            Class::Script,
            Id::RankExec,
            Some(rank.0),
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
            Class::Script,
            Id::RankExit,
            Some(rank.0),
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
            make(128 + signal, Class::Script, Id::RankSignal, Some(rank.0), text, hint)
        }
        None => make(
            137,
            Class::Launcher,
            Id::ShimKilled,
            Some(rank.0),
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
        Class::Engine,
        Id::EngineGone,
        None,
        text!(
            "the engine ended while its ranks were running: {en}",
            "引擎在 rank 仍在运行时结束：{zh}"
        ),
        text!(
            "its ranks were stopped; its last lines are above, all of them in engine.log",
            "其 rank 已被停止；其最后几行见上方，完整内容见 engine.log"
        ),
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
    if outcome.survivors.iter().any(|left| left.forbidden) {
        return make(
            Verdict::Stale.code(),
            Class::Launcher,
            Id::Forbidden,
            None,
            text!(
                "processes that ranklaunch may not signal are left: {list}",
                "仍有 ranklaunch 无权发送信号的进程：{list}"
            ),
            text!(
                "they run as another user and this container has no CAP_KILL (docker run --cap-drop, securityContext.capabilities): keep KILL, or start ranklaunch as the user that the job runs as",
                "它们以其他用户身份运行，而此容器没有 CAP_KILL（docker run --cap-drop、securityContext.capabilities）：请保留 KILL，或以任务的用户身份启动 ranklaunch"
            ),
        );
    }
    make(
        Verdict::Stale.code(),
        Class::Launcher,
        Id::Unkillable,
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
    sys::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::rank::{LocalRank, RankId};
    use crate::supervise::RankEnd;

    fn rank(rank: u32, end: Option<End>) -> RankEnd {
        let id = RankId { global: GlobalRank(rank), local: LocalRank(rank) };
        RankEnd { id, pid: Some(1), end, at: SystemTime::now() }
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
            (two(ok, ok, None), 0, Id::Done),
            (
                two(
                    Some(End::Signal(15)),
                    Some(End::Code(7)),
                    Some(StopReason::RankFailed(GlobalRank(1))),
                ),
                7,
                Id::RankExit,
            ),
            (
                two(
                    Some(End::Signal(11)),
                    Some(End::Signal(15)),
                    Some(StopReason::RankFailed(GlobalRank(0))),
                ),
                139,
                Id::RankSignal,
            ),
            (two(ok, ok, Some(StopReason::Signal(15))), 143, Id::StoppedSignal),
            (two(None, ok, Some(StopReason::RankFailed(GlobalRank(0)))), 137, Id::ShimKilled),
            (two(ok, ok, Some(StopReason::EngineGone(End::Signal(9)))), 137, Id::EngineGone),
            (Outcome { engine: Some(End::Code(1)), ..Outcome::default() }, 68, Id::EngineStart),
            (Outcome { engine: Some(End::Code(1)), ..two(ok, ok, None) }, 1, Id::EngineEnd),
        ];
        for (outcome, code, id) in rows {
            let ending = ending(&outcome);
            assert_eq!((ending.code, ending.id), (code, id), "{outcome:?}");
        }
    }

    fn planned(local: u32, world: u32) -> Planned {
        Planned { local, world: Some(world), ..Planned::default() }
    }

    #[test]
    fn fewer_ranks_or_another_world_is_never_done() {
        let ok = Some(End::Code(0));
        let began = |count: u32, planned, other_world| Outcome {
            ranks: (0..count).map(|number| rank(number, ok)).collect(),
            engine: ok,
            planned,
            other_world,
            ..Outcome::default()
        };
        let alone = Some(OtherWorld { rank: GlobalRank(0), world_size: None });
        let two = Some(OtherWorld { rank: GlobalRank(2), world_size: Some(2) });
        let elastic = Planned { world: None, ..planned(2, 0) };
        let rows = [
            (began(4, planned(4, 4), None), 0, "all ranks ended with code 0"),
            (
                began(1, planned(4, 4), alone),
                68,
                "only 1 of 4 ranks ever began (world size 4 was planned)",
            ),
            (
                began(1, planned(2, 4), None),
                68,
                "only 1 of the 2 ranks of this node ever began (world size 4 was planned)",
            ),
            (
                began(1, planned(1, 2), alone),
                68,
                "rank 0 found no WORLD_SIZE, so it was alone, but world size 2 was planned",
            ),
            (
                began(2, planned(2, 4), two),
                68,
                "rank 2 found WORLD_SIZE=2, but world size 4 was planned",
            ),
            // An elastic job has no size to compare with, but each node has its ranks.
            (began(1, elastic, None), 68, "only 1 of the 2 ranks of this node ever began"),
        ];
        for (outcome, code, words) in rows {
            let ending = ending(&outcome);
            assert_eq!((ending.code, &*ending.text.en), (code, words));
            assert_eq!(ending.class == Class::Done, code == 0);
        }
    }

    #[test]
    fn what_a_failing_rank_found_is_in_the_hint() {
        let outcome = Outcome {
            ranks: vec![rank(0, Some(End::Code(1)))],
            stop: Some(StopReason::RankFailed(GlobalRank(0))),
            planned: planned(2, 4),
            other_world: Some(OtherWorld { rank: GlobalRank(0), world_size: None }),
            ..Outcome::default()
        };
        let ending = ending(&outcome);
        assert_eq!((ending.code, ending.id), (1, Id::RankExit));
        assert!(ending.hint.en.starts_with("rank 0 found no WORLD_SIZE"), "{ending:?}");
    }

    #[test]
    fn the_command_of_a_node_is_no_rank() {
        let of = |end| Outcome {
            ranks: vec![rank(1, end)],
            stop: Some(StopReason::RankFailed(GlobalRank(1))),
            planned: Planned { what: Unit::Command, local: 1, ..Planned::default() },
            ..Outcome::default()
        };
        for (end, code, words) in [
            (Some(End::Code(7)), 7, "the command on node 1 ended with code 7"),
            (Some(End::Signal(9)), 137, "the command on node 1 was killed by SIGKILL"),
            (None, 137, "the process that watched the command on node 1 was killed"),
        ] {
            let ending = ending(&of(end));
            assert_eq!((ending.code, ending.rank), (code, None));
            assert!(ending.text.en.starts_with(words), "{ending:?}");
        }
    }
}
