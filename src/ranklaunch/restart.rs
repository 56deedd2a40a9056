//! Whether a further attempt follows a failure, when it begins, and why not.
//!
//! Takes the end of an attempt, its cause as far as the output shows it, and its duration; gives
//! the pause before the next one. The first row that fits decides:
//!
//! | cause | another attempt | pause |
//! |---|---|---|
//! | the last attempts saved no newer checkpoint | no: exit code 93 | |
//! | a notice that a node ends soon, for whose seat another one waits | yes | none |
//! | a notice that this node or the job ends soon | no | |
//! | `--no-retry-on` names it | no | |
//! | `--retry-on` names it | yes | as below |
//! | the job stood still, with `--on-hang end` | no | |
//! | certain, never | no | |
//! | certain, other-node | no: exit code 90 | |
//! | certain, same-nodes | yes, unless three quick ends are equal | 1 s |
//! | certain, wait | yes | 30 s |
//! | a rank is killed by a signal, without a certain cause | yes | none, then as below |
//! | a node is lost | yes, without a node for its seat unless three quick ends are equal | none if its agent died, else the time in which it stops its ranks, with spares |
//! | likely, or none | by class and code, unless three quick ends are equal | 1 s, 2 s … 30 s, from 1 s on when a checkpoint was saved |
//!
//! `--max-restarts` bounds all of them, counted anew when a checkpoint was saved. One policy serves single-node and multi-node jobs: with
//! several nodes the leader decides, and the muster carries the decision; once it is lost each node decides by itself. Never starts anything itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::notices::Notices;
use super::open::{RetryRule, RetryRules};
use super::saves::Saves;
use muster::{Again, Cause, Decide, Loss, Seating, Tally};
use plan::RunIdentity;
use report::Ending;
use text::lang::Text;
use text::text;
use verdict::{Class, Confidence, Id, Retry, Verdict, Why};

/// An attempt that ends sooner counts as one without progress.
const QUICK: Duration = Duration::from_secs(60);
/// So many consecutive quick attempts with the same end stop the restarts.
const REPEATS: usize = 3;
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The part of an ending that decides about a restart.
#[derive(Debug, Clone)]
pub(super) struct FailedAttempt {
    rank: Option<u32>,
    id: Id,
    class: Class,
    code: i32,
    /// A node is lost; another one may take its place.
    lost: Option<Loss>,
    /// Another node waits for the seat of the one that failed.
    another_waits: bool,
    /// Cause of the end according to the output of the ranks.
    cause: Option<Box<Why>>,
}

impl From<&Ending> for FailedAttempt {
    fn from(ending: &Ending) -> FailedAttempt {
        let Ending { rank, class, code, .. } = *ending;
        let cause = ending.why.clone();
        let (lost, another_waits) = (None, false);
        FailedAttempt { rank, id: ending.id, class, code, lost, another_waits, cause }
    }
}

impl From<&Cause> for FailedAttempt {
    fn from(cause: &Cause) -> FailedAttempt {
        let Cause { rank, class, code, .. } = *cause;
        let (id, lost, another_waits) = (cause.id, cause.loss, false);
        let cause = cause.why.clone();
        FailedAttempt { rank, id, class, code, lost, another_waits, cause }
    }
}

impl FailedAttempt {
    /// The id of the cause, else that of the verdict.
    pub(super) fn name(&self) -> &str {
        self.cause.as_ref().map_or(self.id.as_str(), |cause| &cause.id)
    }

    /// How it ended, behind the cause that the output shows.
    pub(super) fn said(&self, end: &Text) -> Text {
        let cause = self.cause.as_ref().map(|cause| &cause.text).filter(|text| *text != end);
        let (Some(Text { en, zh }), Text { en: end, zh: end_zh }) = (cause, end) else {
            return end.clone();
        };
        text!("{en} ({end})", "{zh}（{end_zh}）")
    }

    /// The retry that the cause asks for, if the cause is certain.
    fn asks_for(&self) -> Option<Retry> {
        let certain = |cause: &&Why| cause.confidence == Confidence::Certain;
        self.cause.as_deref().filter(certain).map(|cause| cause.retry)
    }

    fn ended_like(&self, other: &FailedAttempt) -> bool {
        let of = |one: &FailedAttempt| (one.rank, one.id, one.class, one.code, one.lost.is_some());
        of(self) == of(other) && self.name() == other.name()
    }

    /// Whether another attempt can succeed.
    pub(super) fn may_be_helped(&self) -> bool {
        self.asks_for().map_or_else(|| self.retry_helps(), |retry| retry != Retry::Never)
    }

    /// Whether the node that failed is no place for the next attempt.
    pub(super) fn calls_for_another_node(&self) -> bool {
        self.lost.is_some() || self.is_of_its_node()
    }

    /// Whether it is certain that the node itself is at fault.
    pub(super) fn is_of_its_node(&self) -> bool {
        self.asks_for() == Some(Retry::OtherNode)
    }

    /// Whether another attempt can succeed, by what is known without a cause.
    fn retry_helps(&self) -> bool {
        match self.class {
            // 2 is a usage error of nearly every program; 126 and 127: not executable, not found.
            Class::Script => !matches!(self.code, 0 | 2 | 126 | 127) && self.id != Id::RankExec,
            // The engine would get the same request again, and its own files are the same.
            Class::Engine => self.id != Id::EngineRanks,
            Class::Launcher => self.lost.is_some() || self.code >= 128 || self.id == Id::Hang,
            Class::Done | Class::Stopped => false,
        }
    }
}

/// Whether the node that leads is no place for the next attempt. Where it is lost, or stood still, that says nothing of it.
pub(super) fn calls_for_another_leader(cause: &Cause, leader: u32) -> bool {
    cause.node == leader
        && cause.loss.is_none()
        && FailedAttempt::from(cause).calls_for_another_node()
}

/// The limits of restarts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// `--max-restarts`
    pub(super) most: u32,
    /// `--max-restarts-without-progress`; 0: none.
    pub(super) without_progress: u32,
    /// The time in which a node that is cut off has ended its ranks; zero where no other node waits for its seat.
    pub(super) cut_off: Duration,
}

/// Too many attempts in a row ended before a newer checkpoint was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stuck {
    attempts: u32,
    /// The newest checkpoint; None: there is none.
    newest: Option<String>,
}

impl Stuck {
    /// Text and hint of the verdict. `last`: how the last attempt ended.
    pub(super) fn words(&self, last: &Text) -> (Text, Text) {
        let (attempts, Text { en, zh }) = (self.attempts, last);
        let text = match &self.newest {
            Some(newest) => text!(
                "{attempts} attempts in a row ended before a checkpoint newer than {newest} was saved; the last one: {en}",
                "连续 {attempts} 次尝试都在保存比 {newest} 更新的检查点之前结束；最后一次：{zh}"
            ),
            None => text!(
                "{attempts} attempts in a row ended before any checkpoint was saved; the last one: {en}",
                "连续 {attempts} 次尝试都在保存任何检查点之前结束；最后一次：{zh}"
            ),
        };
        let hint = text!(
            "mend the cause, or let the program save more often; --max-restarts-without-progress allows more attempts",
            "请修复该原因，或让程序更频繁地保存；--max-restarts-without-progress 可允许更多次尝试"
        );
        (text, hint)
    }

    /// The verdict in place of that of the last attempt.
    pub(super) fn ending(&self, last: Ending) -> Ending {
        let (text, hint) = self.words(&last.text);
        let (id, class) = (Id::CheckpointStuck, Class::Launcher);
        Ending { id, class, code: Verdict::WithoutProgress.code(), text, hint, ..last }
    }
}

/// A notice that this node or the job ends soon.
struct PendingNotice {
    reason: Text,
    /// Only some nodes end.
    lets_others_go_on: bool,
}

/// The attempts so far, and the decision that follows from them.
#[derive(Debug, Clone)]
struct RestartPolicy {
    limits: Limits,
    /// `--retry-on` and `--no-retry-on`
    rules: RetryRules,
    /// Number of the current attempt, from 0.
    attempt: u32,
    /// Ends of the last quick attempts, oldest first.
    quick: Vec<FailedAttempt>,
    tally: Tally,
    why_not: Option<Text>,
}

impl RestartPolicy {
    /// The rule of the user for this end: the cause's own wins over that of the verdict.
    fn rule<'f>(&self, failure: &'f FailedAttempt) -> Option<(RetryRule, &'f str)> {
        let ids = [failure.name(), failure.id.as_str()];
        ids.into_iter().find_map(|id| Some((self.rules.get(id)?, id)))
    }

    fn forbids(&self, failure: &FailedAttempt) -> Option<Text> {
        let name = failure.name();
        let useless = match (self.rule(failure), failure.asks_for()) {
            (Some((RetryRule::Never, id)), _) => {
                Some(text!("not started again: --no-retry-on {id}", "不再重启：--no-retry-on {id}"))
            }
            (Some((RetryRule::Ends, _)), _) => {
                Some(text!("not started again: --on-hang end", "不再重启：--on-hang end"))
            }
            (Some((RetryRule::Always, _)), _) | (None, Some(Retry::Wait)) => None,
            (None, Some(Retry::Never)) if failure.id == Id::WatchRule => Some(text!(
                "not started again: a breach of the rule {name} ends the job; on = \"restart\" starts again",
                "不再重启：违反规则 {name} 即终止任务；on = \"restart\" 时会重启"
            )),
            (None, Some(Retry::Never)) => Some(text!(
                "not started again: {name} would fail again the same way; --retry-on {name} starts anyway",
                "不再重启：{name} 重启后结果相同；加上 --retry-on {name} 则仍会重启"
            )),
            (None, Some(Retry::OtherNode)) if failure.another_waits => None,
            (None, Some(Retry::OtherNode)) => Some(text!(
                "not started again: {name} needs another node; --retry-on {name} starts on the same nodes anyway",
                "不再重启：{name} 需要换节点；加上 --retry-on {name} 则仍在原节点上重启"
            )),
            (None, None) if !failure.retry_helps() => Some(text!(
                "not started again: it would end the same way ({name}); --retry-on {name} starts anyway",
                "不再重启：重启后结果相同（{name}）；加上 --retry-on {name} 则仍会重启"
            )),
            // One lost node after the other says nothing about the next one.
            (None, Some(Retry::SameNodes) | None)
                if failure.lost.is_some() && failure.another_waits =>
            {
                None
            }
            (None, Some(Retry::SameNodes) | None) if self.quick.len() >= REPEATS => {
                let seconds = QUICK.as_secs();
                Some(text!(
                    "not started again: the last {REPEATS} attempts ended the same way ({name}), each within {seconds} s; --retry-on {name} starts anyway",
                    "不再重启：最近 {REPEATS} 次尝试均在 {seconds} 秒内以同样方式结束（{name}）；加上 --retry-on {name} 则仍会重启"
                ))
            }
            (None, Some(Retry::SameNodes) | None) => None,
        };
        useless.or_else(|| self.used_up())
    }

    fn used_up(&self) -> Option<Text> {
        let most = self.limits.most;
        (self.tally.restarts >= most).then(|| {
            text!(
                "not started again: --max-restarts is {most}",
                "不再重启：--max-restarts 为 {most}"
            )
        })
    }

    /// The pause before the next attempt.
    fn pause(&self, failure: &FailedAttempt) -> Duration {
        match failure.lost {
            // Its processes have ended, and another node may be waiting.
            Some(Loss::Died) => return Duration::ZERO,
            // Silence proves no end: a node that was only cut off stops its ranks by then.
            Some(Loss::Silent | Loss::Cut) => return self.limits.cut_off.max(SHORTEST_PAUSE),
            None => {}
        }
        // The nodes that go on after a notice have waited for those that save.
        if failure.class == Class::Stopped {
            return Duration::ZERO;
        }
        // A kill from outside says nothing about the next attempt, unless it comes again soon.
        // That SIGKILL came from somewhere is no more than likely.
        let is_killed = failure.id == Id::RankSignal && failure.asks_for().is_none();
        if is_killed && self.quick.len() <= 1 {
            return Duration::ZERO;
        }
        match failure.asks_for() {
            Some(Retry::SameNodes) => SHORTEST_PAUSE,
            Some(Retry::Wait) => LONGEST_PAUSE,
            Some(Retry::Never | Retry::OtherNode) | None => {
                // A job that saves begins anew with the shortest one.
                let doubled = 2u32.saturating_pow(self.tally.restarts);
                SHORTEST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
            }
        }
    }

    /// Counts an attempt that ended after `moved` of the newest checkpoint; None: no checkpoint is looked for. A job
    /// that saves has all its restarts again. Whether too many attempts in a row saved nothing.
    fn counts(&mut self, failure: &FailedAttempt, moved: Option<bool>) -> bool {
        match moved {
            // What a platform ends says nothing about the job.
            None | Some(_) if matches!(failure.class, Class::Done | Class::Stopped) => {
                return false;
            }
            None => return false,
            Some(true) => {
                self.tally = Tally::default();
                // Attempts that save are not the same one again.
                self.quick.clear();
            }
            Some(false) => self.tally.without_progress += 1,
        }
        let most = self.limits.without_progress;
        most > 0 && self.tally.without_progress >= most
    }

    /// `notice`: why this node or the job is to end soon.
    fn after(
        &mut self,
        failure: FailedAttempt,
        lasted: Duration,
        notice: Option<PendingNotice>,
    ) -> Option<Again> {
        let goes_on =
            failure.another_waits && notice.as_ref().is_some_and(|one| one.lets_others_go_on);
        let ends = matches!(failure.class, Class::Done | Class::Stopped) && !goes_on;
        if self.limits.most == 0 || ends {
            return None;
        }
        if lasted >= QUICK || self.quick.last().is_some_and(|last| !last.ended_like(&failure)) {
            self.quick.clear();
        }
        if lasted < QUICK {
            self.quick.push(failure.clone());
        }
        let noticed = notice.filter(|_| !goes_on).map(|notice| {
            let Text { en, zh } = notice.reason;
            text!("not started again after a notice: {en}", "收到通知后不再重启：{zh}")
        });
        let used_up = || self.used_up().filter(|_| goes_on);
        let forbidden = || if goes_on { None } else { self.forbids(&failure) };
        self.why_not = noticed.or_else(forbidden).or_else(used_up);
        if self.why_not.is_some() {
            return None;
        }
        let pause = self.pause(&failure);
        self.attempt += 1;
        self.tally.restarts += 1;
        let pause = u64::try_from(pause.as_millis()).unwrap_or_default();
        Some(Again { attempt: self.attempt, pause, tally: self.tally })
    }
}

/// The restart policy of a job, shared by the muster's task and the conductor.
#[derive(Clone)]
pub(super) struct Restarts {
    policy: Arc<Mutex<RestartPolicy>>,
    /// While one of them is pending, nothing starts again.
    notices: Option<Notices>,
    /// The checkpoints by which progress is seen.
    saves: Option<Saves>,
}

impl Restarts {
    pub(super) fn new(limits: Limits, rules: RetryRules) -> Restarts {
        let (quick, tally) = (Vec::new(), Tally::default());
        let policy = RestartPolicy { limits, rules, attempt: 0, quick, tally, why_not: None };
        Restarts { policy: Arc::new(Mutex::new(policy)), notices: None, saves: None }
    }

    /// The same policy, which starts nothing again while a notice is pending, and sees progress by checkpoints.
    pub(super) fn with(self, notices: Notices, saves: Option<Saves>) -> Restarts {
        Restarts { notices: Some(notices), saves, ..self }
    }

    /// A policy for a node that does not decide.
    pub(super) fn none() -> Restarts {
        Restarts::new(Limits::default(), RetryRules::default())
    }

    fn policy(&self) -> MutexGuard<'_, RestartPolicy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end of the attempt. Gives the next attempt, if the policy allows one; else the verdict that
    /// replaces this one, if the attempts make no progress.
    pub(super) fn after(
        &self,
        failure: impl Into<FailedAttempt>,
        lasted: Duration,
    ) -> Result<Option<Again>, Stuck> {
        let notice = self.notices.as_ref().and_then(|notices| {
            let lets_others_go_on = notices.lets_others_go_on();
            Some(PendingNotice { reason: notices.reason()?, lets_others_go_on })
        });
        let moved = self.saves.as_ref().and_then(Saves::have_moved);
        let (failure, mut policy) = (failure.into(), self.policy());
        let is_stuck = policy.counts(&failure, moved);
        if let Some(saves) = &self.saves {
            saves.record(policy.tally);
        }
        if is_stuck {
            policy.why_not = None;
            let newest = self.saves.as_ref().and_then(Saves::newest_name);
            return Err(Stuck { attempts: policy.tally.without_progress, newest });
        }
        Ok(policy.after(failure, lasted, notice))
    }

    /// The reason why there is no further attempt although restarts were requested.
    pub(super) fn why_not(&self) -> Option<Text> {
        self.policy().why_not.clone()
    }

    /// Continues the count from `attempt`, which another node has reached: a new node 0 does not
    /// start the count again. Gives the number of the attempt.
    pub(super) fn count_on(&self, attempt: u32, tally: Tally) -> u32 {
        let mut policy = self.policy();
        policy.why_not = None;
        if attempt > policy.attempt {
            // A version without a tally, whose restarts all count.
            let is_told = tally != Tally::default();
            let counted = Tally { restarts: attempt, ..tally };
            (policy.attempt, policy.tally) = (attempt, if is_told { tally } else { counted });
        }
        policy.attempt
    }

    /// Continues the count of attempts that saved nothing from an earlier launch of this job.
    pub(super) fn without_progress(&self, attempts: u32) {
        self.policy().tally.without_progress = attempts;
    }

    pub(super) fn tally(&self) -> Tally {
        self.policy().tally
    }

    /// The decision function for the muster, which calls it once per attempt.
    pub(super) fn decide(&self) -> Decide {
        let restarts = self.clone();
        Box::new(move |cause, lasted, another_waits| {
            let failure = FailedAttempt { another_waits, ..FailedAttempt::from(&*cause) };
            restarts.after(failure, lasted).unwrap_or_else(|stuck| {
                let (text, hint) = stuck.words(&cause.text);
                let (id, class) = (Id::CheckpointStuck, Class::Launcher);
                let code = Verdict::WithoutProgress.code();
                *cause = Cause { id, class, code, text, hint, ..cause.clone() };
                None
            })
        })
    }
}

/// Data that an attempt of several nodes takes over from the previous attempt.
pub(super) struct NextAttempt {
    pub(super) attempt: u32,
    /// None: this node had no seat, and so no run.
    pub(super) identity: Option<RunIdentity>,
    pub(super) restarts: Restarts,
    pub(super) tally: Tally,
    pub(super) seating: Seating,
    /// What failed calls for another node than the one that led: it leads no more.
    pub(super) leader_resigns: bool,
}

#[cfg(test)]
mod tests;
