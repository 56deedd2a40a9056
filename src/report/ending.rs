//! Decides the verdict: one exit code and its cause, from the ends of all processes.
//!
//! Takes the [`Outcome`] of the ranks or a [`Refusal`]; gives an [`Ending`], the same for the
//! console, run.json and the termination message. This file chooses the cause; each file of
//! `ending/` has the text of one group of causes. The table of exit codes is in
//! [`verdict`].

mod command;
mod engine;
#[cfg(test)]
mod fixtures;
mod job_size;
mod launcher;
pub mod memory;
mod rank;
mod stop;
mod survivors;
mod types;
mod words;

pub use engine::port_lost;
pub use job_size::{other_world, with_cure};
pub use launcher::{agent_hung, agent_killed};
pub(crate) use rank::read_log;
pub use rank::{not_executed_hint, rank_raised};
pub use stop::stopped;
pub use types::{Ending, Speaker};
pub use words::describe;

use text::lang::Text;
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::Halt;
use verdict::outcome::{End, Outcome, RankUnit, StopReason};
use verdict::{Class, Id, Refusal};

/// A refusal as an ending.
pub fn refused(refusal: &Refusal) -> Ending {
    Ending::new(
        refusal.verdict.code(),
        Class::Launcher,
        refusal.id,
        None,
        refusal.text.clone(),
        refusal.hint.clone(),
    )
}

/// The ending of a job. The exit code is that of the first failed rank, or 128 plus its signal.
/// After a stop from outside it is 128 plus that signal even if the ranks ended with 0, since an
/// unfinished job must not count as complete.
pub fn ending(outcome: &Outcome) -> Ending {
    if !outcome.survivors.is_empty() {
        return survivors::unkillable(outcome);
    }
    match outcome.stop {
        Some(StopReason::Signal(signal)) => stopped(signal),
        Some(StopReason::GuardGone) => launcher::guard_killed(),
        Some(StopReason::RankFailed(rank)) => rank_failed(outcome, rank),
        Some(StopReason::EngineGone(end)) => engine::gone(end),
        Some(StopReason::OtherNode) => stop::other_node(),
        Some(StopReason::StoodStill) => stop::stood_still(),
        Some(StopReason::RuleBroken) => stop::rule_broken(),
        None => by_itself(outcome),
    }
}

/// The ending if a stop or the loss of the guard came while no rank ran.
pub fn halted(halt: Halt) -> Ending {
    match halt {
        Halt::Signal(signal) => stopped(signal),
        Halt::GuardGone => launcher::guard_killed(),
    }
}

fn rank_failed(outcome: &Outcome, rank: GlobalRank) -> Ending {
    let end = outcome.ranks.iter().find(|seen| seen.id.global == rank).and_then(|seen| seen.end);
    match outcome.planned.what {
        RankUnit::Rank => rank::failed(outcome, rank, end),
        RankUnit::Command => command::failed(outcome, rank, end),
    }
}

/// The ending of a job that was not stopped.
fn by_itself(outcome: &Outcome) -> Ending {
    if let Some(failed) = outcome.ranks.iter().find(|rank| rank.failed()) {
        return rank_failed(outcome, failed.id.global);
    }
    if outcome.ranks.is_empty() {
        return engine::began_none(outcome.engine);
    }
    if outcome.other_world.is_some() || job_size::began(outcome) < outcome.planned.local {
        return job_size::not_as_planned(outcome);
    }
    match outcome.engine {
        None | Some(End::Code(0)) => Ending::new(
            0,
            Class::Done,
            Id::Done,
            None,
            text!("all ranks ended with code 0", "所有 rank 的退出码均为 0"),
            Text::same(""),
        ),
        Some(end) => engine::failed_at_the_end(end),
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::rank;
    use super::*;

    #[test]
    fn exit_code_is_from_the_first_failure() {
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
}
