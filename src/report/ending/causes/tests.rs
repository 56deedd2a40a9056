//! Endings by the ends of ranks, engines and launchers.

use std::time::SystemTime;

use super::*;
use text::rank::{LocalRank, RankId};
use verdict::outcome::{Planned, RankEnd, Survivor};

#[test]
fn node_command_is_not_called_a_rank() {
    let of = |end| Outcome {
        ranks: vec![rank(1, end)],
        stop: Some(StopReason::RankFailed(GlobalRank(1))),
        planned: Planned { what: RankUnit::Command, local: 1, ..Planned::default() },
        ..Outcome::default()
    };
    for (end, code, words) in [
        (Some(End::Code(7)), 7, "the command on node 1 ended with code 7"),
        (Some(End::Signal(9)), 137, "the command on node 1 was killed by SIGKILL"),
        (None, 137, "the shim of the command on node 1 was killed"),
    ] {
        let ending = Ending::of(&of(end));
        assert_eq!((ending.code, ending.rank), (code, None));
        assert!(ending.text.en.starts_with(words), "{ending:?}");
    }
}

pub(crate) fn rank(rank: u32, end: Option<End>) -> RankEnd {
    let id = RankId { global: GlobalRank(rank), local: LocalRank(rank) };
    RankEnd { id, pid: Some(1), end, at: SystemTime::now() }
}

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
        let ending = Ending::of(&outcome);
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
    let ending = Ending::of(&outcome);
    assert_eq!((ending.code, ending.id), (1, Id::RankExit));
    assert!(ending.hint.en.starts_with("rank 0 found no WORLD_SIZE"), "{ending:?}");
}

#[test]
fn only_crash_signals_blame_the_launcher_itself() {
    let hint = |signal: i32| Ending::agent_killed(signal, None).hint;
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

#[test]
fn only_uninterruptible_survivors_need_a_reboot() {
    let hint = |states: &[char]| {
        let of = |state: &char| Survivor {
            pid: 7,
            comm: "python".to_owned(),
            forbidden: false,
            state: *state,
            wait_channel: None,
        };
        let survivors = states.iter().map(of).collect();
        unkillable(&Outcome { survivors, ..Outcome::default() }).hint.en.into_owned()
    };
    assert!(hint(&['R', 'Z']).contains("overloaded"));
    assert!(hint(&['R', 'D']).contains("reboot"));
}

#[test]
fn exit_code_is_from_the_first_failure() {
    let two =
        |a, b, stop| Outcome { ranks: vec![rank(0, a), rank(1, b)], stop, ..Outcome::default() };
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
        let ending = Ending::of(&outcome);
        assert_eq!((ending.code, ending.id), (code, id), "{outcome:?}");
    }
}

#[test]
fn only_the_master_port_counts_as_lost() {
    for (line, lost) in [
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29890, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            true,
        ),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29890 (errno: 98 - Address already in use).",
            true,
        ),
        (
            "ConnectionError: Tried to launch distributed communication on port `29890`, but another process is utilizing it. Please specify a different port",
            true,
        ),
        ("OSError: [Errno 98] Address already in use: port 129890", false),
        ("OSError: [Errno 98] Address already in use", false),
        ("connecting to 10.0.0.1:29890", false),
    ] {
        assert_eq!(lost_port([line], 29_890), lost, "{line}");
    }
}
