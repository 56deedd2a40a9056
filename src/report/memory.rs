//! Out of memory, said of an ending: whom the kernel killed, and at which limit.

use super::ending::Ending;
use crate::lang::{Text, bytes};
use crate::observe::OomKills;
use crate::supervise::{End, Outcome, StopReason};
use crate::text;
use crate::verdict::Id;

/// SIGKILL: what the kernel's out-of-memory killer sends, and people too.
const KILL: i32 = 9;

/// The ending in the light of what the kernel counted while the job ran. A process
/// that was killed while nothing was counted was killed by somebody else.
///
/// `counts`: the kernel would have counted a kill here.
pub fn attributed(
    ending: Ending,
    outcome: &Outcome,
    kills: Option<OomKills>,
    counts: bool,
) -> Ending {
    let Some(kills) = kills else {
        let killed = counts && ending.id == Id::RankSignal && ending.code == 128 + KILL;
        return if killed { Ending { hint: not_for_memory(), ..ending } } else { ending };
    };
    match victim(outcome, ending.rank) {
        Some(victim) => of_victim(ending, &victim, &kills),
        None => beside(ending, outcome, &kills),
    }
}

/// The ending of somebody who was killed while the kernel counted a kill.
pub fn of_victim(ending: Ending, victim: &Text, kills: &OomKills) -> Ending {
    let Text { en, zh } = victim;
    let Text { en: limit, zh: limit_zh } = limit(kills);
    Ending {
        id: Id::MemoryOom,
        text: text!(
            "{en} was killed by the kernel's out-of-memory killer: {limit}",
            "{zh} 被内核 OOM killer 杀死：{limit_zh}"
        ),
        hint: advice(kills),
        ..ending
    }
}

/// Who got a SIGKILL that was not ours.
fn victim(outcome: &Outcome, rank: Option<u32>) -> Option<Text> {
    if outcome.stop == Some(StopReason::EngineGone(End::Signal(KILL))) {
        return Some(text!("the engine", "引擎"));
    }
    let failed = outcome.ranks.iter().find(|seen| Some(seen.id.global.0) == rank)?;
    let rank = failed.id.global;
    match failed.end {
        Some(End::Signal(KILL)) => Some(text!("rank {rank}", "rank {rank}")),
        None => Some(text!("the process that watched rank {rank}", "监视 rank {rank} 的进程")),
        Some(_) => None,
    }
}

/// A rank that ended by itself after the kernel had killed something beside it:
/// the hint says so, since a data loader's worker may have been its end.
fn beside(ending: Ending, outcome: &Outcome, kills: &OomKills) -> Ending {
    if !matches!(outcome.stop, Some(StopReason::RankFailed(_)) | None) || ending.rank.is_none() {
        return ending;
    }
    let count = kills.processes;
    let Text { en, zh } = limit(kills);
    let Text { en: advice, zh: advice_zh } = advice(kills);
    let hint = text!(
        "before that the kernel's out-of-memory killer ended {count} other process(es) of this container, perhaps workers of this rank: {en}; {advice}",
        "在此之前，内核 OOM killer 杀死了本容器中的 {count} 个其他进程，可能是该 rank 的子进程：{zh}；{advice_zh}"
    );
    Ending { hint, ..ending }
}

fn not_for_memory() -> Text {
    text!(
        "the kernel counted no kill for memory here, so somebody sent it: a person, a watchdog, or what manages the node",
        "内核未在此记录到 OOM 终止，因此是有人发送的：用户、看门狗程序或节点管理组件"
    )
}

fn limit(kills: &OomKills) -> Text {
    let Some(limit) = kills.limit.map(bytes) else {
        return text!(
            "no limit of this container was hit, the node itself had no memory left",
            "未触及本容器的限制，是节点自身内存耗尽"
        );
    };
    match kills.peak.map(bytes) {
        Some(peak) => text!(
            "the container's limit is {limit}, and its use peaked at {peak}",
            "容器内存限制为 {limit}，使用峰值 {peak}"
        ),
        None => text!("the container's limit is {limit}", "容器内存限制为 {limit}"),
    }
}

fn advice(kills: &OomKills) -> Text {
    if kills.limit.is_none() {
        return text!(
            "look at what else runs on the node; a memory request keeps the room free (resources.requests.memory)",
            "请检查该节点上的其他负载；声明内存请求（resources.requests.memory）可预留内存"
        );
    }
    text!(
        "raise the limit (resources.limits.memory, docker run --memory), or load less at a time; files in /dev/shm count as well",
        "请提高限制（resources.limits.memory、docker run --memory），或减少同时加载的数据；/dev/shm 中的文件也计入"
    )
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::rank::{GlobalRank, LocalRank, RankId};
    use crate::supervise::RankEnd;

    fn outcome(end: Option<End>, stop: Option<StopReason>) -> Outcome {
        let id = RankId { global: GlobalRank(3), local: LocalRank(1) };
        let rank = RankEnd { id, pid: Some(1), end, at: SystemTime::now() };
        Outcome { ranks: vec![rank], stop, ..Outcome::default() }
    }

    #[test]
    fn only_what_the_kernel_counted_is_out_of_memory() {
        const BOX: OomKills =
            OomKills { processes: 1, limit: Some(64 << 20), peak: Some(64 << 20) };
        const NODE: OomKills = OomKills { processes: 1, limit: None, peak: None };
        let failed = Some(StopReason::RankFailed(GlobalRank(3)));
        let engine = Some(StopReason::EngineGone(End::Signal(9)));
        let told = Some(StopReason::Signal(15));
        let rows = [
            (
                Some(End::Signal(9)),
                failed,
                Some(BOX),
                Id::MemoryOom,
                "limit is 64 MiB, and its use peaked",
            ),
            (Some(End::Signal(9)), failed, Some(NODE), Id::MemoryOom, "the node itself"),
            (Some(End::Signal(9)), failed, None, Id::RankSignal, "SIGKILL"),
            (None, failed, Some(BOX), Id::MemoryOom, "the process that watched rank 3"),
            (Some(End::Code(0)), engine, Some(BOX), Id::MemoryOom, "the engine was killed"),
            (Some(End::Code(1)), failed, Some(BOX), Id::RankExit, "exited with code 1"),
            (Some(End::Signal(9)), told, Some(BOX), Id::StoppedSignal, "SIGTERM"),
        ];
        for (end, stop, kills, id, words) in rows {
            let outcome = outcome(end, stop);
            let plain = super::super::ending(&outcome);
            let code = plain.code;
            let ending = attributed(plain, &outcome, kills, true);
            assert_eq!((ending.id, ending.code), (id, code), "{ending:?}");
            assert!(ending.text.en.contains(words), "{ending:?}");
            let says = ending.hint.en.contains("limits.memory");
            assert_eq!(says, kills == Some(BOX) && stop != told, "{ending:?}");
        }
        // Who would count it says whether silence means anything.
        for counts in [false, true] {
            let outcome = outcome(Some(End::Signal(9)), failed);
            let ending = attributed(super::super::ending(&outcome), &outcome, None, counts);
            assert_eq!(ending.hint.en.contains("counted no kill"), counts, "{ending:?}");
        }
    }
}
