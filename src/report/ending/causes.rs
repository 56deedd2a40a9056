//! The choice of the cause, and its text: a rank, the user's own launcher (engine `command`), the engine, a job of
//! another size, a stop from outside or of another node, a process of ranklaunch itself, and processes that outlived
//! SIGKILL.

use std::io::IsTerminal;

use super::Ending;
use linux::sys::{Signal, signal_name};
use text::lang::{Text, cause};
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::{End, Halt, OtherWorld, Outcome, RankUnit, StopReason};
use verdict::{Class, Id, Refusal, Verdict};

/// Signals by which the kernel, or abort(3) after a panic, ends a program for its own error.
const CRASHES: &[Signal] = &[Signal::SEGV, Signal::BUS, Signal::ILL, Signal::ABORT, Signal::FPE];

impl Ending {
    /// The ending of a job. The exit code is that of the first failed rank, or 128 plus its signal.
    /// After a stop from outside it is 128 plus that signal even if the ranks ended with 0, since an
    /// unfinished job must not count as complete.
    pub fn of(outcome: &Outcome) -> Ending {
        if !outcome.survivors.is_empty() {
            return unkillable(outcome);
        }
        match outcome.stop {
            Some(StopReason::Signal(signal)) => Ending::stopped(signal),
            Some(StopReason::GuardGone) => guard_killed(),
            Some(StopReason::RankFailed(rank)) => rank_failed(outcome, rank),
            Some(StopReason::EngineGone(end)) => engine_gone(end),
            Some(StopReason::OtherNode | StopReason::GivenUp) => Ending::judged(
                Class::Launcher,
                Id::NodeOther,
                text!("stopped because another node failed", "因其他节点失败而停止"),
                text!("read the report of the other nodes", "请查看其他节点的报告"),
            ),
            Some(StopReason::StoodStill) => Ending::judged(
                Class::Launcher,
                Id::Hang,
                text!("the job stood still", "任务卡死"),
                text!("look at the hang in run.json", "请查看 run.json 中的 hang"),
            ),
            Some(StopReason::RuleBroken) => Ending::judged(
                Class::Launcher,
                Id::WatchRule,
                text!("a rule of the profile was broken", "违反了配置文件中的规则"),
                text!("look at the event rule in agent.jsonl", "请查看 agent.jsonl 中的 rule 事件"),
            ),
            Some(StopReason::Noticed(_)) => Ending::noticed(),
            None => by_itself(outcome),
        }
    }

    /// Stopped since a notice came. The code is the one of SIGTERM, which platforms retry, whatever signal the ranks
    /// got.
    pub fn noticed() -> Ending {
        Ending::new(
            End::Signal(Signal::TERM.as_raw()).shell_code(),
            Class::Stopped,
            Id::StoppedNotice,
            text!(
                "stopped after a notice that the job is to end",
                "收到任务即将终止的通知，任务停止"
            ),
            text!("the job goes on when it is started again", "重新启动后任务会继续"),
        )
    }

    /// The job is done, and this node had no seat in its last attempt.
    pub fn not_needed() -> Ending {
        Ending::new(
            0,
            Class::Done,
            Id::Done,
            text!(
                "done: the ranks of the other nodes succeeded, and this spare has no seat",
                "完成：其他节点的 rank 均已成功，本备用节点没有席位"
            ),
            Text::same(""),
        )
    }

    /// Another node withdrew after a notice while the nodes met.
    pub fn noticed_by(refusal: &Refusal) -> Ending {
        Ending { text: refusal.text.clone(), ..Ending::noticed() }
    }

    /// The ending if a stop or the loss of the guard came while no rank ran.
    pub fn halted(halt: Halt) -> Ending {
        match halt {
            Halt::Signal(signal) => Ending::stopped(signal),
            Halt::GuardGone => guard_killed(),
            Halt::Noticed => Ending::noticed(),
        }
    }

    /// A refusal as an ending.
    pub fn refused(refusal: &Refusal) -> Ending {
        let Refusal { verdict, id, text, hint } = refusal.clone();
        Ending::new(verdict.code(), Class::Launcher, id, text, hint)
    }

    /// Stopped from outside by `signal`.
    pub fn stopped(signal: i32) -> Ending {
        let name = signal_name(signal);
        // After Ctrl-C at the terminal the user needs no hint.
        let hint = if signal == Signal::INT.as_raw() && std::io::stderr().is_terminal() {
            Text::same("")
        } else if signal == Signal::HUP.as_raw() {
            text!(
                "the terminal was closed or its connection broke; a job that outlives it starts in tmux or screen, or with nohup or setsid: nohup ranklaunch … > job.log 2>&1 &",
                "终端被关闭或连接断开；要让任务继续运行，请在 tmux、screen 中启动，或使用 nohup、setsid：nohup ranklaunch … > job.log 2>&1 &"
            )
        } else {
            text!(
                "find where the signal came from: a deleted pod, a preemption, a time limit or Ctrl-C",
                "请查明信号来源：Pod 被删除或抢占、达到时间限制，或 Ctrl-C"
            )
        };
        Ending::new(
            End::Signal(signal).shell_code(),
            Class::Stopped,
            Id::StoppedSignal,
            text!("stopped from outside by {name}", "收到外部信号 {name}，任务停止"),
            hint,
        )
    }

    /// `rank` printed an exception that nothing caught, and was stopped before it ended by itself.
    pub fn rank_raised(rank: GlobalRank) -> Ending {
        let text = text!("rank {rank} failed", "rank {rank} 失败");
        let ending = Ending::new(1, Class::Script, Id::RankExit, text, Text::same(""));
        Ending { rank: Some(rank.0), ..ending }
    }

    /// The engine could not listen on the master port. `taken` is the reason why the port cannot be
    /// bound now; None if it is free again.
    pub fn port_lost(port: u16, taken: Option<&Text>) -> Ending {
        let text = match taken {
            Some(Text { en, zh }) => {
                text!("the engine could not listen: {en}", "启动引擎无法监听端口：{zh}")
            }
            None => text!(
                "the engine could not listen on port {port}: another process took it between the agreement and the start",
                "启动引擎无法监听端口 {port}：从协商完成到启动之间，该端口被其他进程占用"
            ),
        };
        Ending::judged(
            Class::Engine,
            Id::PortLost,
            text,
            text!(
                "choose another --master-port on all nodes, outside of ip_local_port_range; --max-restarts tries again",
                "请为所有节点选择 ip_local_port_range 之外的其他 --master-port；--max-restarts 会重试"
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

    /// The agent stood still for so long that the other nodes may go on without this one.
    pub fn agent_still() -> Ending {
        Ending::new(
            End::Signal(Signal::KILL.as_raw()).shell_code(),
            Class::Launcher,
            Id::AgentKilled,
            text!(
                "ranklaunch's agent stood still while the other nodes may go on without this one; it was killed with its ranks",
                "ranklaunch 的 agent 进程停顿，其他节点可能已在没有本节点的情况下继续；它已连同各 rank 一起被强制终止"
            ),
            text!(
                "the agent was stopped (SIGSTOP, a debugger), or it waits for a mount or a driver that does not answer",
                "agent 进程曾被暂停（SIGSTOP、调试器），或在等待没有应答的挂载点或驱动"
            ),
        )
    }

    /// After a stop from outside by `signal` the agent did not end within the grace period.
    pub fn agent_hung(signal: i32) -> Ending {
        let name = signal_name(signal);
        Ending::new(
            End::Signal(signal).shell_code(),
            Class::Stopped,
            Id::AgentHung,
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

    /// The ending with a more specific hint `cure`, if the engine started another job than the
    /// planned one.
    pub fn with_cure(self, outcome: &Outcome, cure: Option<Text>) -> Ending {
        let blamed = self.id == Id::EngineRanks
            || (self.class == Class::Script && outcome.other_world.is_some());
        match cure {
            Some(hint) if blamed => Ending { hint, ..self },
            _ => self,
        }
    }
}

/// The ending of a job that was not stopped.
fn by_itself(outcome: &Outcome) -> Ending {
    if let Some(failed) = outcome.ranks.iter().find(|rank| rank.failed()) {
        return rank_failed(outcome, failed.id.global);
    }
    if outcome.ranks.is_empty() {
        return none_began(outcome.engine);
    }
    if outcome.other_world.is_some() || began(outcome) < outcome.planned.local {
        return not_as_planned(outcome);
    }
    match outcome.engine {
        None | Some(End::Code(0)) => Ending::new(
            0,
            Class::Done,
            Id::Done,
            text!("all ranks ended with code 0", "所有 rank 的退出码均为 0"),
            Text::same(""),
        ),
        Some(end) => engine_failed(end),
    }
}

fn rank_failed(outcome: &Outcome, rank: GlobalRank) -> Ending {
    let end = outcome.ranks.iter().find(|seen| seen.id.global == rank).and_then(|seen| seen.end);
    let ending = rank_end(outcome, rank, end);
    match (outcome.planned.what, outcome.planned.world, outcome.other_world) {
        (RankUnit::Command, ..) => of_command(Ending { rank: None, ..ending }, outcome, rank, end),
        // The hint also names the wrong world size that the ranks found.
        (RankUnit::Rank, Some(world), Some(other)) => {
            let Text { en, zh } = other_world(other, world);
            let Text { en: mode, zh: mode_zh } = own_mode();
            Ending { hint: text!("{en}: {mode}", "{zh}：{mode_zh}"), ..ending }
        }
        (RankUnit::Rank, ..) => ending,
    }
}

/// The end of a rank; `end` is None if its shim was killed.
fn rank_end(outcome: &Outcome, rank: GlobalRank, end: Option<End>) -> Ending {
    let read_log = read_log();
    if let (Some((program, errno)), Some(End::Code(code))) = (&outcome.not_executed, end) {
        let error = std::io::Error::from_raw_os_error(*errno);
        let Text { en, zh } = cause(&error);
        let ending = Ending::new(
            code,
            Class::Script,
            Id::RankExec,
            text!(
                "the program {program} cannot be executed: {en}",
                "程序 {program} 无法执行：{zh}"
            ),
            not_executed_hint(&error).unwrap_or_else(|| {
                text!(
                    "check its path, its execute permission and the interpreter in its first line",
                    "检查其路径、执行权限以及首行指定的解释器"
                )
            }),
        );
        return Ending { rank: Some(rank.0), ..ending };
    }
    let ending = match end {
        Some(End::Code(code)) => Ending::new(
            code,
            Class::Script,
            Id::RankExit,
            text!("rank {rank} exited with code {code}", "rank {rank} 退出，退出码 {code}"),
            read_log,
        ),
        Some(End::Signal(signal)) => {
            let name = signal_name(signal);
            let hint = match signal {
                9 => text!(
                    "mostly the kernel's out-of-memory killer, else a SIGKILL from outside: compare memory use with the container's limit",
                    "通常是内核 OOM killer，也可能是来自外部的 SIGKILL：请对比内存用量与容器的内存限制"
                ),
                7 => text!(
                    "a bus error mostly means that /dev/shm is full: mount an emptyDir with medium Memory, or use docker run --shm-size",
                    "总线错误多半是 /dev/shm 已满：请挂载 medium 为 Memory 的 emptyDir，或使用 docker run --shm-size"
                ),
                _ => read_log,
            };
            let text = text!("rank {rank} was killed by {name}", "rank {rank} 被 {name} 杀死");
            Ending::new(128 + signal, Class::Script, Id::RankSignal, text, hint)
        }
        None => Ending::new(
            137,
            Class::Launcher,
            Id::ShimKilled,
            text!(
                "the shim of rank {rank} was killed, so the rank was ended with it",
                "rank {rank} 的 shim 被杀死，该 rank 已随之终止"
            ),
            text!(
                "SIGKILL was sent to `ranklaunch rank` from outside, or the node ran out of memory",
                "`ranklaunch rank` 收到了来自外部的 SIGKILL，或节点内存耗尽"
            ),
        ),
    };
    Ending { rank: Some(rank.0), ..ending }
}

/// The hint if nothing more is known. It appears below the lines as well as alone, in run.json, the
/// termination message and the reports of other nodes, and all of these have the same text.
pub(crate) fn read_log() -> Text {
    text!(
        "read the last lines of its output; if there are none, let the program say why it ends",
        "请查看其最后几行输出；若没有输出，请让程序在结束前说明原因"
    )
}

/// The hint if the kernel refused a process or thread (EAGAIN of fork(2)).
pub fn not_executed_hint(error: &std::io::Error) -> Option<Text> {
    (error.kind() == std::io::ErrorKind::WouldBlock).then(|| {
        text!(
            "no more processes can be created here: raise the pids limit (podPidsLimit, docker run --pids-limit) or the user's nproc limit (ulimit -u)",
            "此处不允许创建更多进程：请提高 pids 限制（podPidsLimit、docker run --pids-limit）或用户的 nproc 限制（ulimit -u）"
        )
    })
}

/// The ending if the command on `node` failed; None if its shim was killed.
fn of_command(ending: Ending, outcome: &Outcome, node: GlobalRank, end: Option<End>) -> Ending {
    if outcome.not_executed.is_some() {
        return ending;
    }
    let text = match end {
        Some(End::Code(code)) => text!(
            "the command on node {node} ended with code {code}",
            "节点 {node} 上的命令退出，退出码 {code}"
        ),
        Some(End::Signal(signal)) => {
            let name = signal_name(signal);
            text!(
                "the command on node {node} was killed by {name}",
                "节点 {node} 上的命令被 {name} 杀死"
            )
        }
        None => text!(
            "the shim of the command on node {node} was killed, so the command was ended with it",
            "节点 {node} 上命令的 shim 被杀死，该命令已随之终止"
        ),
    };
    let hint = match end {
        Some(End::Code(_)) => text!(
            "a rank that it started may have failed: read the last lines of its output",
            "可能是它启动的某个 rank 失败：请查看其最后几行输出"
        ),
        _ => ending.hint.clone(),
    };
    Ending { text, hint, ..ending }
}

/// All ranks that started ended well, but they were not the planned job.
fn not_as_planned(outcome: &Outcome) -> Ending {
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
    Ending::judged(Class::Engine, Id::EngineRanks, text, own_mode())
}

/// The text about a rank whose world size differs from `planned`.
pub fn other_world(other: OtherWorld, planned: u32) -> Text {
    let rank = other.rank;
    match other.world_size {
        Some(size) => text!(
            "rank {rank} found WORLD_SIZE={size}, but world size {planned} was planned",
            "rank {rank} 的环境中 WORLD_SIZE={size}，而计划的总进程数为 {planned}"
        ),
        None => text!(
            "rank {rank} found no WORLD_SIZE, so it ran by itself, but world size {planned} was planned",
            "rank {rank} 的环境中没有 WORLD_SIZE，即独自运行，而计划的总进程数为 {planned}"
        ),
    }
}

/// The remedy for an engine that starts another number of ranks.
fn own_mode() -> Text {
    text!(
        "the engine's own arguments or configuration request another number of processes: correct them, set that number with --nnodes and --nproc-per-node, or use --engine command for a program that starts its ranks itself",
        "启动引擎自身的参数或配置文件指定了不同的进程数：请修正它们，或用 --nnodes 与 --nproc-per-node 指定该数目；若程序自行启动各 rank，请使用 --engine command"
    )
}

/// Number of ranks that started on this node.
fn began(outcome: &Outcome) -> u32 {
    u32::try_from(outcome.ranks.len()).unwrap_or(u32::MAX)
}

/// The engine ended before any rank started. `end` is None if unknown.
fn none_began(end: Option<End>) -> Ending {
    let Text { en, zh } = end.map_or_else(|| Text::same("?"), describe);
    Ending::judged(
        Class::Engine,
        Id::EngineStart,
        text!(
            "the engine ended before any rank began: {en}",
            "尚无 rank 启动，启动引擎就已结束：{zh}"
        ),
        text!(
            "read its last lines; its whole output is in engine.log",
            "请查看其最后几行输出，完整输出见 engine.log"
        ),
    )
}

/// The engine ended while its ranks were running.
fn engine_gone(end: End) -> Ending {
    let code = if end.success() { Verdict::Internal.code() } else { end.shell_code() };
    let Text { en, zh } = describe(end);
    Ending::new(
        code,
        Class::Engine,
        Id::EngineGone,
        text!(
            "the engine ended while its ranks were running: {en}",
            "rank 仍在运行，启动引擎却已结束：{zh}"
        ),
        text!(
            "its ranks were stopped; read its last lines, its whole output is in engine.log",
            "其 rank 已被停止；请查看其最后几行输出，完整输出见 engine.log"
        ),
    )
}

/// The engine failed although all ranks had ended with 0.
fn engine_failed(end: End) -> Ending {
    let Text { en, zh } = describe(end);
    Ending::new(
        end.shell_code(),
        Class::Engine,
        Id::EngineEnd,
        text!(
            "all ranks of this node ended with code 0, but the engine ended with {en}",
            "本节点所有 rank 的退出码均为 0，但启动引擎失败：{zh}"
        ),
        text!(
            "another node may have failed: read the last lines of the engine and the other nodes' reports",
            "可能是其他节点失败：请查看启动引擎的最后几行输出和其他节点的报告"
        ),
    )
}

/// Messages about a port in use: of torch since 1.11, of Python, and of accelerate's check
/// before it starts torch.
const TAKEN: [&str; 3] =
    ["eaddrinuse", "address already in use", "another process is utilizing it"];

/// Whether the engine could not listen on `port`, since another process had it.
pub fn lost_port<'a>(lines: impl IntoIterator<Item = &'a str>, port: u16) -> bool {
    lines.into_iter().any(|line| {
        let lower = line.to_ascii_lowercase();
        TAKEN.iter().any(|words| lower.contains(words)) && names(line, port)
    })
}

/// Whether the line contains the port as a whole number.
fn names(line: &str, port: u16) -> bool {
    let port = port.to_string();
    line.split(|letter: char| !letter.is_ascii_digit()).any(|number| number == port)
}

fn guard_killed() -> Ending {
    Ending::new(
        End::Signal(Signal::KILL.as_raw()).shell_code(),
        Class::Launcher,
        Id::GuardKilled,
        text!("the guard process of ranklaunch was killed", "ranklaunch 的 guard 进程被杀死"),
        text!(
            "SIGKILL was sent to ranklaunch from outside, or the node ran out of memory",
            "ranklaunch 收到了来自外部的 SIGKILL，或节点内存耗尽"
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
        return Ending::judged(
            Class::Launcher,
            Id::Forbidden,
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
    // A process that would run if it got a CPU, or that the kernel is ending, does not sleep in the
    // kernel.
    let are_ending = outcome.survivors.iter().all(|left| matches!(left.state, 'R' | 'Z' | 'X'));
    let hint = if are_ending {
        text!(
            "they are not blocked, but got no CPU in time: this node is overloaded; they end when it lets them",
            "它们没有阻塞，只是未能及时得到 CPU：该节点过载；得到 CPU 后它们会自行结束"
        )
    } else {
        text!(
            "they are blocked in the kernel by a hung driver or file system; reboot the node",
            "它们因驱动或文件系统挂死而卡在内核中；请重启该节点"
        )
    };
    Ending::judged(
        Class::Launcher,
        Id::Unkillable,
        text!("processes outlived SIGKILL: {list}", "以下进程收到 SIGKILL 后仍未退出：{list}"),
        hint,
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

#[cfg(test)]
pub(super) mod tests;
