//! Attributes a SIGKILL to the out-of-memory killer, or rules it out.

use std::time::Duration;

use super::Ending;
use linux::pace::spell;
use node::observe::{OomAccount, OomKills, OomPlace, Suspect};
use text::lang::{Text, bytes, leading};
use text::text;
use verdict::outcome::{End, Outcome, RankUnit, StopReason};
use verdict::{Class, Id};

/// SIGKILL, the signal of the out-of-memory killer, which others send as well.
const KILL: i32 = 9;

impl Ending {
    /// Completes the ending with the out-of-memory kills that the kernel counted and logged during the
    /// job. A SIGKILL without a count, or of a process that outlived the counted kills, came from
    /// elsewhere.
    pub fn attributed(self, outcome: &Outcome, account: &OomAccount) -> Ending {
        let Some(kills) = account.kills(pid(outcome, &self)) else {
            let killed = account.counts && self.id == Id::RankSignal && self.code == 128 + KILL;
            return if killed { Ending { hint: not_for_memory(), ..self } } else { self };
        };
        match victim(outcome, self.rank) {
            Some((victim, suspect)) if account.was_killed(suspect) => {
                self.of_oom_victim(&victim, &kills)
            }
            Some(_) => self.after_oom_of_another(&kills, account.since_last()),
            None => beside(self, outcome, &kills),
        }
    }

    /// The kills for the record of the run.
    pub fn kills(&self, outcome: Option<&Outcome>, account: &OomAccount) -> Option<OomKills> {
        account.kills(outcome.and_then(|outcome| pid(outcome, self)))
    }

    /// The ending of a process that was killed while the kernel counted a kill.
    pub fn of_oom_victim(self, victim: &Text, kills: &OomKills) -> Ending {
        let (en, zh) = (&victim.en, leading(&victim.zh));
        let Text { en: limit, zh: limit_zh } = limit(kills);
        Ending {
            id: Id::MemoryOom,
            text: text!(
                "{en} was killed by the kernel's out-of-memory killer: {limit}",
                "{zh}被内核 OOM killer 杀死：{limit_zh}"
            ),
            hint: advice(kills),
            ..self
        }
    }

    /// The ending of a process that was killed by SIGKILL after the kernel had killed others. `ago`: the
    /// time between the last of these kills and this end.
    pub fn after_oom_of_another(self, kills: &OomKills, ago: Option<Duration>) -> Ending {
        let (Text { en: sent, zh: sent_zh }, Text { en, zh }) = (from_outside(), limit(kills));
        let (ago, ago_zh) = match ago.map(spell) {
            Some(ago) => (format!("{ago} before"), format!("在此 {ago} 之前")),
            None => ("before".to_owned(), "在此之前".to_owned()),
        };
        let count = kills.processes;
        let hint = text!(
            "{sent}; {ago}, the kernel's out-of-memory killer had ended {count} processes of this container, not this one: {en}",
            "{sent_zh}；{ago_zh}，内核 OOM killer 杀死过本容器中的另外 {count} 个进程：{zh}"
        );
        Ending { hint, ..self }
    }
}

/// The pid of the rank that the ending names.
fn pid(outcome: &Outcome, ending: &Ending) -> Option<i32> {
    let rank = ending.rank?;
    outcome.ranks.iter().find(|seen| seen.id.global.0 == rank)?.pid
}

/// The process that got a SIGKILL from elsewhere.
fn victim(outcome: &Outcome, rank: Option<u32>) -> Option<(Text, Suspect)> {
    if outcome.stop == Some(StopReason::EngineGone(End::Signal(KILL))) {
        return Some((text!("the engine", "启动引擎"), Suspect::Engine));
    }
    // The ending of a node's command names no rank.
    let command = match outcome.stop {
        Some(StopReason::RankFailed(node)) if is_command(outcome) => Some(node.0),
        _ => None,
    };
    let failed = outcome.ranks.iter().find(|seen| Some(seen.id.global.0) == command.or(rank))?;
    let rank = failed.id.global;
    let name = match failed.end {
        Some(End::Signal(KILL)) if command.is_some() => {
            text!("the command on node {rank}", "节点 {rank} 上的命令")
        }
        None if command.is_some() => {
            text!("the shim of the command on node {rank}", "节点 {rank} 上命令的 shim")
        }
        Some(End::Signal(KILL)) => text!("rank {rank}", "rank {rank}"),
        None => text!("the shim of rank {rank}", "rank {rank} 的 shim"),
        Some(_) => return None,
    };
    let suspect = match failed.end {
        Some(_) => Suspect::Process(failed.pid),
        None => Suspect::ShimOf(failed.pid),
    };
    Some((name, suspect))
}

/// Whether the node runs the user's own launcher, which starts the ranks.
fn is_command(outcome: &Outcome) -> bool {
    outcome.planned.what == RankUnit::Command
}

/// A rank or a command ended by itself after the kernel had killed another process. The hint names
/// that kill, since the loss of a data loader's worker, or of a rank, may have caused the end.
fn beside(ending: Ending, outcome: &Outcome, kills: &OomKills) -> Ending {
    let of_command = is_command(outcome) && ending.class == Class::Script;
    let by_itself = matches!(outcome.stop, Some(StopReason::RankFailed(_)) | None);
    if !by_itself || (ending.rank.is_none() && !of_command) {
        return ending;
    }
    let (whose, whose_zh) = if of_command {
        ("ranks that the command started", "该命令启动的 rank")
    } else {
        ("workers of this rank", "该 rank 的子进程")
    };
    let count = kills.processes;
    let Text { en, zh } = limit(kills);
    let Text { en: advice, zh: advice_zh } = advice(kills);
    let hint = text!(
        "before that the kernel's out-of-memory killer ended {count} processes of this container, perhaps {whose}: {en}; {advice}",
        "在此之前，内核 OOM killer 杀死了本容器中的 {count} 个进程，可能是{whose_zh}：{zh}；{advice_zh}"
    );
    Ending { hint, ..ending }
}

fn not_for_memory() -> Text {
    let Text { en, zh } = from_outside();
    text!(
        "the kernel recorded no out-of-memory kill here, so {en}",
        "内核在此没有 OOM 终止记录，因此 {zh}"
    )
}

fn from_outside() -> Text {
    text!(
        "SIGKILL was sent from outside: by hand, by a watchdog, or by what manages the node",
        "SIGKILL 来自外部：手动发送、看门狗程序或节点管理组件"
    )
}

fn limit(kills: &OomKills) -> Text {
    match kills.place {
        OomPlace::Limit { limit, peak: Some(peak) } => {
            let (limit, peak) = (bytes(limit), bytes(peak));
            text!(
                "the container's limit is {limit}, and its use peaked at {peak}",
                "容器内存限制为 {limit}，使用峰值 {peak}"
            )
        }
        OomPlace::Limit { limit, peak: None } => {
            let limit = bytes(limit);
            text!("the container's limit is {limit}", "容器内存限制为 {limit}")
        }
        OomPlace::InnerLimit => text!(
            "the limit of a control group inside this container was reached",
            "本容器内部的一个控制组达到了内存限制"
        ),
        OomPlace::OuterLimit => text!(
            "the kernel's log says that the limit of a control group around this container was reached, such as the pod's",
            "内核日志表明本容器外层的控制组（如 Pod）达到了内存限制"
        ),
        OomPlace::Node => text!(
            "the kernel's log says that the node itself ran out of memory",
            "内核日志表明是节点自身内存耗尽"
        ),
        OomPlace::Open => text!(
            "no limit seen here was reached, so it was that of an outer group, such as the pod's, or the memory of the node",
            "此处可见的内存限制均未达到，因此是外层控制组（如 Pod）的限制或节点内存耗尽"
        ),
    }
}

fn advice(kills: &OomKills) -> Text {
    match kills.place {
        OomPlace::InnerLimit => text!(
            "raise the limit of that group (memory.max), or load less at a time",
            "请提高该控制组的限制（memory.max），或减少同时加载的数据"
        ),
        OomPlace::Limit { .. } | OomPlace::OuterLimit => text!(
            "raise the limit (resources.limits.memory, docker run --memory), or load less at a time; files in /dev/shm count towards it",
            "请提高限制（resources.limits.memory、docker run --memory），或减少同时加载的数据；/dev/shm 中的文件也计入"
        ),
        OomPlace::Node => text!(
            "check what else runs on the node; a memory request (resources.requests.memory) reserves memory for this container",
            "请检查该节点上的其他负载；设置内存请求（resources.requests.memory）可为本容器预留内存"
        ),
        OomPlace::Open => text!(
            "dmesg on the node says which: CONSTRAINT_MEMCG is the limit of a group, which can be raised; CONSTRAINT_NONE is the node, and a memory request (resources.requests.memory) reserves memory there",
            "节点上的 dmesg 可以区分：CONSTRAINT_MEMCG 表示控制组的限制，可提高该限制；CONSTRAINT_NONE 表示节点内存耗尽，可设置内存请求（resources.requests.memory）预留内存"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::causes::tests::rank;
    use super::*;
    use text::rank::GlobalRank;
    use verdict::outcome::Planned;

    fn outcome(end: Option<End>, stop: Option<StopReason>) -> Outcome {
        Outcome { ranks: vec![rank(3, end)], stop, ..Outcome::default() }
    }

    #[test]
    fn only_kernel_counted_kills_are_out_of_memory() {
        const LIMIT: OomPlace = OomPlace::Limit { limit: 64 << 20, peak: Some(64 << 20) };
        const BOX: OomKills = OomKills { processes: 1, place: LIMIT };
        const NODE: OomKills = OomKills { processes: 1, place: OomPlace::Node };
        const OPEN: OomKills = OomKills { processes: 1, place: OomPlace::Open };
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
            (Some(End::Signal(9)), failed, Some(OPEN), Id::MemoryOom, "or the memory of the node"),
            (Some(End::Signal(9)), failed, None, Id::RankSignal, "SIGKILL"),
            (None, failed, Some(BOX), Id::MemoryOom, "the shim of rank 3"),
            (Some(End::Code(0)), engine, Some(BOX), Id::MemoryOom, "the engine was killed"),
            (Some(End::Code(1)), failed, Some(BOX), Id::RankExit, "exited with code 1"),
            (Some(End::Signal(9)), told, Some(BOX), Id::StoppedSignal, "SIGTERM"),
        ];
        for (end, stop, kills, id, words) in rows {
            let outcome = outcome(end, stop);
            let plain = Ending::of(&outcome);
            let code = plain.code;
            let ending = plain.attributed(&outcome, &OomAccount::of(kills, true));
            assert_eq!((ending.id, ending.code), (id, code), "{ending:?}");
            assert!(ending.text.en.contains(words), "{ending:?}");
            let says = ending.hint.en.contains("limits.memory");
            assert_eq!(says, kills == Some(BOX) && stop != told, "{ending:?}");
        }
        // Without a counting kernel, a count of 0 proves nothing.
        for counts in [false, true] {
            let outcome = outcome(Some(End::Signal(9)), failed);
            let ending = Ending::of(&outcome).attributed(&outcome, &OomAccount::of(None, counts));
            assert_eq!(
                ending.hint.en.contains("recorded no out-of-memory kill"),
                counts,
                "{ending:?}"
            );
        }
    }

    /// Each kind of victim, after it has outlived the kill of a helper process.
    #[test]
    fn survivor_of_oom_kills_was_killed_from_outside() {
        const LIMIT: OomPlace = OomPlace::Limit { limit: 64 << 20, peak: Some(64 << 20) };
        let kills = OomKills { processes: 2, place: LIMIT };
        let rank = Some(StopReason::RankFailed(GlobalRank(3)));
        let engine = Some(StopReason::EngineGone(End::Signal(9)));
        let of_command = Planned { what: RankUnit::Command, local: 1, ..Planned::default() };
        for (end, stop, planned, id) in [
            (Some(End::Signal(9)), rank, Planned::default(), Id::RankSignal),
            (None, rank, Planned::default(), Id::ShimKilled),
            (Some(End::Signal(9)), rank, of_command, Id::RankSignal),
            (Some(End::Code(0)), engine, Planned::default(), Id::EngineGone),
        ] {
            let outcome = Outcome { planned, ..outcome(end, stop) };
            for (ago, words) in [
                (Some(Duration::from_secs(3)), "; 3s before, the kernel's"),
                (None, "; before, the kernel's"),
            ] {
                let account = OomAccount::of(Some(kills), true).outlived_by(&[1], ago);
                let found = Ending::of(&outcome).attributed(&outcome, &account);
                assert_eq!((found.id, found.code), (id, 137), "{found:?}");
                let Text { en, zh } = &found.hint;
                assert!(en.starts_with("SIGKILL was sent from outside"), "{en}");
                assert!(en.contains(words) && en.contains("ended 2 processes"), "{en}");
                assert!(en.ends_with("limit is 64 MiB, and its use peaked at 64 MiB"), "{en}");
                assert!(zh.contains("OOM killer 杀死过本容器中的另外 2 个进程"), "{zh}");
                // The control: one more process was killed since.
                let account = OomAccount::of(Some(kills), true);
                let found = Ending::of(&outcome).attributed(&outcome, &account);
                assert_eq!(found.id, Id::MemoryOom, "{found:?}");
            }
        }
    }

    /// A launcher is small, so the kernel mostly kills the processes that it started.
    #[test]
    fn node_command_ending_mentions_oom_kills() {
        let place = OomPlace::Limit { limit: 64 << 20, peak: None };
        let kills = OomKills { processes: 2, place };
        let planned = Planned { what: RankUnit::Command, local: 1, ..Planned::default() };
        for (end, id, said) in [
            (Some(End::Signal(9)), Id::MemoryOom, "the command on node 3 was killed by the kernel"),
            (None, Id::MemoryOom, "the shim of the command on node 3 was killed by the kernel"),
            (
                Some(End::Code(1)),
                Id::RankExit,
                "ended 2 processes of this container, perhaps ranks",
            ),
        ] {
            let stop = Some(StopReason::RankFailed(GlobalRank(3)));
            let outcome = Outcome { planned, ..outcome(end, stop) };
            let account = OomAccount::of(Some(kills), true);
            let ending = Ending::of(&outcome).attributed(&outcome, &account);
            assert_eq!((ending.id, ending.rank), (id, None), "{ending:?}");
            let words = format!("{}; {}", ending.text.en, ending.hint.en);
            assert!(words.contains(said) && words.contains("limits.memory"), "{words}");
        }
    }
}
