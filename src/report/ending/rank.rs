//! Endings because a rank failed, was killed, or could not be executed.

use super::job_size::{other_world, own_mode};
use super::types::Ending;
use linux::sys::signal_name;
use text::lang::{Text, cause};
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::{End, Outcome};
use verdict::{Class, Id};

/// `rank` failed; `end` is None if its shim was killed. The hint also names a wrong world size,
/// if the ranks found one.
pub(super) fn failed(outcome: &Outcome, rank: GlobalRank, end: Option<End>) -> Ending {
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

/// `rank` printed an exception that nothing caught, and was stopped before it ended by itself.
pub fn rank_raised(rank: GlobalRank) -> Ending {
    Ending::new(
        1,
        Class::Script,
        Id::RankExit,
        Some(rank.0),
        text!("rank {rank} failed", "rank {rank} 失败"),
        Text::same(""),
    )
}

/// The hint if nothing more is known. It appears below the lines as well as alone, in run.json, the
/// termination message and the reports of other nodes, and all of these have the same text.
pub(crate) fn read_log() -> Text {
    text!(
        "read the last lines of its output; if there are none, let the program say why it ends",
        "请查看其最后几行输出；若没有输出，请让程序在结束前说明原因"
    )
}

pub(super) fn rank_end(outcome: &Outcome, rank: GlobalRank, end: Option<End>) -> Ending {
    let read_log = read_log();
    if let (Some((program, errno)), Some(End::Code(code))) = (&outcome.not_executed, end) {
        let error = std::io::Error::from_raw_os_error(*errno);
        let Text { en, zh } = cause(&error);
        return Ending::new(
            code,
            Class::Script,
            Id::RankExec,
            Some(rank.0),
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
    }
    match end {
        Some(End::Code(code)) => Ending::new(
            code,
            Class::Script,
            Id::RankExit,
            Some(rank.0),
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
            Ending::new(128 + signal, Class::Script, Id::RankSignal, Some(rank.0), text, hint)
        }
        None => Ending::new(
            137,
            Class::Launcher,
            Id::ShimKilled,
            Some(rank.0),
            text!(
                "the shim of rank {rank} was killed, so the rank was ended with it",
                "rank {rank} 的 shim 被杀死，该 rank 已随之终止"
            ),
            text!(
                "SIGKILL was sent to `ranklaunch rank` from outside, or the node ran out of memory",
                "`ranklaunch rank` 收到了来自外部的 SIGKILL，或节点内存耗尽"
            ),
        ),
    }
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
