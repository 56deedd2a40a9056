//! Owns the order of the phases of a launch, and nothing else.
//!
//! Takes [`Phases`]; gives the [`Ending`] of the last attempt. Each phase takes a type that only
//! the phase before it gives, so that another order does not compile. A stop request ends every
//! phase before the ranks start at once.

use super::context::Clock;
use super::end::Rest;
use super::job_verdict::Earlier;
use muster::Again;
use report::Ending;
use text::lang::Text;
use verdict::Refusal;
use verdict::outcome::Halt;

/// The phases of one launch on this node.
pub(super) trait Phases {
    /// The facts of the node.
    type Observed;
    /// The plan of this node on its own.
    type OwnPlan;
    /// The launch on which all nodes agreed.
    type Agreed;
    /// Proof that stale processes have ended.
    type Cleared;
    /// A node that may start.
    type Ready;
    /// Data that an attempt of several nodes takes over from the previous attempt.
    type Next;

    async fn observe(&self) -> Self::Observed;

    /// `next` is set for every attempt but the first.
    async fn plan(
        &self,
        observed: &Self::Observed,
        next: Option<&Self::Next>,
    ) -> Result<Self::OwnPlan, Refusal>;

    /// Notifies the other nodes of a refusal before the muster.
    async fn notify_peers(&self, observed: &Self::Observed, refusal: &Refusal);

    async fn agree(
        &self,
        observed: Self::Observed,
        own: Self::OwnPlan,
        next: Option<Self::Next>,
    ) -> Result<Met<Self::Agreed, Self::Next>, Refusal>;

    async fn clear(&self, agreed: &Self::Agreed) -> Result<Self::Cleared, Refusal>;

    /// The job has ended without this node.
    fn over(&self, ending: &Ending);

    /// A stop came while the nodes met or paused: the others must not wait for this one.
    async fn leave(&self, halt: Halt);

    /// Notifies the other nodes of an ending after they agreed, and returns the ending that all
    /// share.
    async fn share(&self, agreed: Self::Agreed, ending: Ending) -> Ending;

    fn ready(&self, agreed: Self::Agreed, cleared: Self::Cleared) -> Self::Ready;

    /// Runs one attempt up to and including the closing block.
    async fn run(&self, ready: &mut Self::Ready) -> Ended;

    /// Writes the slower files after the verdict, then closes the session with the other nodes.
    /// `is_last`: no attempt follows, so the report of the run is written as well.
    async fn finish(&self, ready: &mut Self::Ready, rest: Option<Rest>, is_last: bool);

    /// Start point of a further attempt.
    fn start_again(&self, ready: Self::Ready, again: Again) -> Start<Self::Ready, Self::Next>;

    /// Announces a further attempt and waits until it is due.
    async fn pause(&self, start: &Start<Self::Ready, Self::Next>, again: Again);

    /// Runs `phase`. If a stop is requested meanwhile, drops it and returns the source of the
    /// stop.
    async fn until_stop<T>(&self, phase: impl Future<Output = T>) -> Result<T, Halt>;

    fn say(&self, line: &Text);

    /// Prints the refusal and turns it into an ending. `earlier`: the attempt before.
    fn refused(&self, refusal: &Refusal, earlier: Option<&Earlier>) -> Ending;

    /// Prints that a stop came before the ranks ran, and turns it into an ending.
    fn stopped(&self, halt: Halt) -> Ending;

    /// Writes the termination message. From here on the exit code is fixed.
    fn announce(&self, ending: &Ending, node: Option<u32>, clock: Option<Clock>);

    /// Waits until the journal is written, as far as the clock allows. Nothing follows. `clock`:
    /// the clock of the last attempt; None if the launch ended before or between attempts.
    async fn close(&self, clock: Option<Clock>);

    /// The rank of this node among those that agreed.
    fn node(&self, agreed: &Self::Agreed) -> u32;
}

/// Start point of an attempt.
pub(super) enum Start<Ready, Next> {
    /// Begins with the first phase.
    Observe(Option<Next>),
    /// Begins with the run phase, on a single node that keeps its plan.
    Run(Ready),
}

/// An attempt that is over and whose verdict is printed.
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) again: Option<Again>,
    /// The reason why no attempt follows although restarts were requested.
    pub(super) why_not: Option<Text>,
    /// A stop was requested during the attempt.
    pub(super) told: bool,
    pub(super) clock: Clock,
    /// None if nothing was started.
    pub(super) rest: Option<Rest>,
}

/// What comes of the wait for the other nodes.
pub(super) enum Met<Agreed, Next> {
    Agreed(Agreed),
    /// This node had no seat, and all nodes meet again.
    Again(Next),
    /// This node had no seat, and the job has ended.
    Over(Ending),
}

/// Runs attempts until one succeeds, is stopped, or no restart is left.
pub(super) async fn conduct<P: Phases>(phases: &P) -> Ending {
    let (ending, clock) = attempts(phases).await;
    phases.close(clock).await;
    ending
}

/// The end of the last attempt, and its clock; None if the launch ended before or between attempts.
async fn attempts<P: Phases>(phases: &P) -> (Ending, Option<Clock>) {
    let mut start = Start::Observe(None);
    let mut node = None;
    let mut earlier: Option<Earlier> = None;
    loop {
        let mut ready = match start {
            Start::Run(ready) => ready,
            Start::Observe(next) => {
                match prepare(phases, next, earlier.as_ref(), &mut node).await {
                    Ok(ready) => ready,
                    Err(ending) => return (ending, None),
                }
            }
        };
        let Ended { ending, again, why_not, told, clock, rest } = phases.run(&mut ready).await;
        // A node that received a stop request takes part in no further attempt.
        let again = again.filter(|_| !told);
        if again.is_none() {
            phases.announce(&ending, node, Some(clock));
        }
        phases.finish(&mut ready, rest, again.is_none()).await;
        let Some(again) = again else {
            if let Some(why) = why_not.filter(|_| !told) {
                phases.say(&why);
            }
            return (ending, Some(clock));
        };
        earlier = Some(Earlier { attempt: again.attempt.saturating_sub(1), ending });
        start = phases.start_again(ready, again);
        if let Err(halt) = phases.until_stop(phases.pause(&start, again)).await {
            phases.leave(halt).await;
            let ending = phases.stopped(halt);
            phases.announce(&ending, node, None);
            return (ending, None);
        }
    }
}

/// All phases before the first process; announces an ending. `node` is the node rank as far as
/// it is known, and is set after the agreement.
async fn prepare<P: Phases>(
    phases: &P,
    mut next: Option<P::Next>,
    earlier: Option<&Earlier>,
    node: &mut Option<u32>,
) -> Result<P::Ready, Ending> {
    let early = |ended: Result<Refusal, Halt>, node| {
        let ending = match ended {
            Ok(refusal) => phases.refused(&refusal, earlier),
            Err(halt) => phases.stopped(halt),
        };
        phases.announce(&ending, node, None);
        ending
    };
    let agreed = loop {
        match phases.until_stop(agree(phases, next)).await {
            Ok(Ok(Met::Agreed(agreed))) => break agreed,
            Ok(Ok(Met::Again(again))) => next = Some(again),
            Ok(Ok(Met::Over(ending))) => {
                phases.over(&ending);
                phases.announce(&ending, *node, None);
                return Err(ending);
            }
            Ok(Err(refusal)) => return Err(early(Ok(refusal), *node)),
            Err(halt) => {
                phases.leave(halt).await;
                return Err(early(Err(halt), *node));
            }
        }
    };
    *node = Some(phases.node(&agreed));
    let cleared = phases.until_stop(phases.clear(&agreed)).await;
    let ending = match cleared {
        Ok(Ok(cleared)) => return Ok(phases.ready(agreed, cleared)),
        Ok(Err(refusal)) => early(Ok(refusal), *node),
        Err(halt) => early(Err(halt), *node),
    };
    // The others have agreed and wait for this node.
    Err(phases.share(agreed, ending).await)
}

async fn agree<P: Phases>(
    phases: &P,
    next: Option<P::Next>,
) -> Result<Met<P::Agreed, P::Next>, Refusal> {
    let observed = phases.observe().await;
    match phases.plan(&observed, next.as_ref()).await {
        Ok(own) => phases.agree(observed, own, next).await,
        Err(refusal) => {
            phases.notify_peers(&observed, &refusal).await;
            Err(refusal)
        }
    }
}

#[cfg(test)]
mod tests;
