//! Endings because fewer ranks started than planned, or a rank found another world size.

use super::types::Ending;
use text::lang::Text;
use text::text;
use verdict::outcome::{OtherWorld, Outcome};
use verdict::{Class, Id, Verdict};

/// All ranks that started ended well, but they were not the planned job.
pub(super) fn not_as_planned(outcome: &Outcome) -> Ending {
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
    Ending::new(Verdict::EngineStart.code(), Class::Engine, Id::EngineRanks, None, text, own_mode())
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

/// The ending with a more specific hint `cure`, if the engine started another job than the
/// planned one.
pub fn with_cure(ending: Ending, outcome: &Outcome, cure: Option<Text>) -> Ending {
    let blamed = ending.id == Id::EngineRanks
        || (ending.class == Class::Script && outcome.other_world.is_some());
    match cure {
        Some(hint) if blamed => Ending { hint, ..ending },
        _ => ending,
    }
}

/// The remedy for an engine that starts another number of ranks.
pub(super) fn own_mode() -> Text {
    text!(
        "the engine's own arguments or configuration request another number of processes: correct them, set that number with --nnodes and --nproc-per-node, or use --engine command for a program that starts its ranks itself",
        "启动引擎自身的参数或配置文件指定了不同的进程数：请修正它们，或用 --nnodes 与 --nproc-per-node 指定该数目；若程序自行启动各 rank，请使用 --engine command"
    )
}

/// Number of ranks that started on this node.
pub(super) fn began(outcome: &Outcome) -> u32 {
    u32::try_from(outcome.ranks.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::rank;
    use super::*;
    use crate::ending::ending;
    use text::rank::GlobalRank;
    use verdict::outcome::{End, Planned, StopReason};

    fn planned(local: u32, world: u32) -> Planned {
        Planned { local, world: Some(world), ..Planned::default() }
    }

    #[test]
    fn job_of_wrong_size_is_never_done() {
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
                "rank 0 found no WORLD_SIZE, so it ran by itself, but world size 2 was planned",
            ),
            (
                began(2, planned(2, 4), two),
                68,
                "rank 2 found WORLD_SIZE=2, but world size 4 was planned",
            ),
            // An elastic job has no fixed size, but a fixed number of ranks per node.
            (began(1, elastic, None), 68, "only 1 of the 2 ranks of this node ever began"),
        ];
        for (outcome, code, words) in rows {
            let ending = ending(&outcome);
            assert_eq!((ending.code, &*ending.text.en), (code, words));
            assert_eq!(ending.class == Class::Done, code == 0);
        }
    }

    #[test]
    fn hint_mentions_the_missing_world_size() {
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
}
