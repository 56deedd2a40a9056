//! Implements the conductor's [`Phases`] on a real node.

use std::time::Duration;

use super::agree::Agreed;
use super::conductor::{Ended, Met, Phases, Start};
use super::context::{Clock, Context, GuardChannel, until_stop};
use super::end::Rest;
use super::job_verdict::{Earlier, unreplaced};
use super::own_plan::OwnPlan;
use super::restart::NextAttempt;
use super::status_feed::run_status;
use super::{agree, attempt, end, notify_peers, own_plan, stale, warm};
use linux::sys::Dispositions;
use monitor::status::Phase;
use muster::Again;
use node::observe::Facts;
use plan::Plan;
use report::{Ending, closing, files};
use supervise::EndStep;
use text::lang::{Lang, Text};
use text::text;
use verdict::outcome::Halt;
use verdict::{Id, Refusal};

/// This node.
pub(super) struct Live<'a> {
    pub(super) context: &'a Context,
    pub(super) guard: GuardChannel<'a>,
    pub(super) dispositions: Dispositions,
}

impl Live<'_> {
    fn clock(&self) -> Clock {
        Clock::of(self.context.settings.grace.value, None)
    }

    /// Says the last words of a launch, and gives them to the run whose last attempt ended with others.
    fn end_early(&self, ending: &Ending, code: i32, words: impl Fn(Lang) -> String) {
        self.context.console.say(&words(self.context.lang()));
        let closing = closing::both(words);
        let time_left = self.clock().left_for_answer(EndStep::Record);
        end::amend(self.context, ending, &closing, code, time_left);
        self.context.journal.keeper()(files::refused(ending, &closing, code));
    }
}

impl Phases for Live<'_> {
    type Observed = Facts;
    type OwnPlan = OwnPlan;
    type Agreed = Agreed;
    type Cleared = Option<Plan>;
    type Ready = Agreed;
    type Next = NextAttempt;

    async fn observe(&self) -> Facts {
        self.context.enter(Phase::Observing);
        own_plan::observe(self.context).await
    }

    async fn plan(&self, facts: &Facts, next: Option<&NextAttempt>) -> Result<OwnPlan, Refusal> {
        self.context.enter(Phase::Planning);
        let own = own_plan::plan(self.context, facts, next.is_none()).await?;
        self.context.notices.on_node(own.plan.membership.node_rank);
        warm::begin(self.context, facts, &own, self.dispositions);
        let attempt = next.map_or(0, |next| next.attempt);
        let identity = next.and_then(|next| next.identity.as_ref());
        self.context.board.run(run_status(self.context, &own.plan, identity, attempt, None));
        Ok(own)
    }

    async fn notify_peers(&self, facts: &Facts, refusal: &Refusal) {
        notify_peers::planned(self.context, facts, refusal).await;
    }

    async fn leave(&self, halt: Halt) {
        if halt == Halt::Noticed {
            notify_peers::noticed(self.context).await;
        }
    }

    async fn agree(
        &self,
        facts: Facts,
        own: OwnPlan,
        next: Option<NextAttempt>,
    ) -> Result<Met<Agreed, NextAttempt>, Refusal> {
        self.context.enter(Phase::Agreeing);
        let met = agree::agree(self.context, facts, own, next.as_ref()).await;
        self.context.console.status(None);
        let met = met?;
        if let Met::Agreed(Agreed { plan, identity, attempt, .. }) = &met {
            self.context.board.run(run_status(self.context, plan, Some(identity), *attempt, None));
        }
        Ok(met)
    }

    fn over(&self, ending: &Ending) {
        let code = self.context.exit_code(ending);
        self.end_early(ending, code, |lang| closing::ended_early(ending, code, lang));
    }

    async fn clear(&self, agreed: &Agreed) -> Result<Option<Plan>, Refusal> {
        self.context.enter(Phase::Clearing);
        let cleared =
            stale::carry_out(self.context, agreed.duty.as_ref(), agreed.plan.membership.members())
                .await?;
        warm::required(self.context, &agreed.plan).await?;
        Ok(cleared)
    }

    async fn share(&self, agreed: Agreed, ending: Ending) -> Ending {
        let Some(mut session) = agreed.session else { return ending };
        let time_left = self.clock().left(EndStep::LastWords);
        let (context, commands) = (self.context, self.guard.commands);
        let judged =
            session.judge(&context.speaker(), commands, ending, Vec::new(), time_left).await;
        session.close().await;
        judged.ending
    }

    fn ready(&self, agreed: Agreed, cleared: Option<Plan>) -> Agreed {
        Agreed { plan: cleared.unwrap_or(agreed.plan), ..agreed }
    }

    async fn run(&self, ready: &mut Agreed) -> Ended {
        attempt::run(self.context, ready, self.guard, self.dispositions).await
    }

    async fn finish(&self, ready: &mut Agreed, rest: Option<Rest>, is_last: bool) {
        self.context.enter(Phase::Finishing);
        let clock = rest.as_ref().map_or_else(|| self.clock(), |rest| rest.clock);
        let session = ready.session.take();
        if is_last && let Some(rest) = rest {
            rest.finish(self.context, true).await;
            end::write_report(self.context, session, clock).await;
            return;
        }
        let close = async {
            match session {
                Some(session) if is_last => session.close().await,
                Some(session) => session.close_to_return().await,
                None => {}
            }
        };
        let write = async {
            if let Some(rest) = rest {
                rest.finish(self.context, false).await;
            }
        };
        tokio::join!(close, write);
    }

    fn start_again(&self, ready: Agreed, again: Again) -> Start<Agreed, NextAttempt> {
        ready.start_again(again)
    }

    async fn pause(&self, start: &Start<Agreed, NextAttempt>, again: Again) {
        self.context.enter(Phase::Pausing);
        let (seconds, attempt) = (again.pause.div_ceil(1000), again.attempt);
        self.say(&match start {
            Start::Observe(_) if seconds == 0 => text!(
                "all nodes start again: attempt {attempt}",
                "所有节点重新启动：第 {attempt} 次尝试"
            ),
            Start::Run(_) if seconds == 0 => {
                text!("starting again: attempt {attempt}", "重新启动：第 {attempt} 次尝试")
            }
            Start::Observe(_) => text!(
                "all nodes start again in {seconds} s: attempt {attempt}",
                "所有节点将在 {seconds} 秒后重新启动：第 {attempt} 次尝试"
            ),
            Start::Run(_) => text!(
                "starting again in {seconds} s: attempt {attempt}",
                "将在 {seconds} 秒后重新启动：第 {attempt} 次尝试"
            ),
        });
        tokio::time::sleep(Duration::from_millis(again.pause)).await;
    }

    async fn until_stop<T>(&self, phase: impl Future<Output = T>) -> Result<T, Halt> {
        tokio::select! {
            done = until_stop(self.guard.commands, phase) => done,
            () = self.context.notices.came_at_all() => Err(Halt::Noticed),
        }
    }

    fn say(&self, line: &Text) {
        self.context.say(line);
    }

    fn refused(&self, refusal: &Refusal, earlier: Option<&Earlier>) -> Ending {
        let noticed = (refusal.id == Id::StoppedNotice).then(|| Ending::noticed_by(refusal));
        let kept = noticed.or_else(|| earlier.and_then(|earlier| unreplaced(earlier, refusal)));
        let is_kept = kept.is_some();
        let ending = kept.unwrap_or_else(|| Ending::refused(refusal));
        let code = self.context.exit_code(&ending);
        self.end_early(&ending, code, |lang| match is_kept {
            true => closing::ended_early(&ending, code, lang),
            false => closing::refusal(refusal, code, lang),
        });
        ending
    }

    fn stopped(&self, halt: Halt) -> Ending {
        // The interrupted phase may have shown the status line of a wait.
        self.context.console.status(None);
        let announced = self.context.notices.announced();
        let ending = Ending::halted(halt).of_notice(announced.as_ref());
        let code = self.context.exit_code(&ending);
        self.end_early(&ending, code, |lang| closing::ended_early(&ending, code, lang));
        ending
    }

    fn announce(&self, ending: &Ending, node: Option<u32>, clock: Option<Clock>) {
        let clock = clock.unwrap_or_else(|| self.clock());
        self.context.show_verdict(ending);
        self.context.announce(self.guard.link, ending, node, clock);
    }

    async fn close(&self, clock: Option<Clock>) {
        let clock = clock.unwrap_or_else(|| self.clock());
        self.context.enter(Phase::Ended);
        if let Some(Ok(warmed)) = self.context.warm.get() {
            // Ranks that it has forked go on.
            warmed.end();
        }
        self.context.journal.close(clock.left_for_answer(EndStep::Record));
        self.context.run.remove_mark(clock.left_for_answer(EndStep::Record));
        end::write_late(self.context, clock);
    }

    fn node(&self, agreed: &Agreed) -> u32 {
        agreed.plan.membership.node_rank
    }
}
