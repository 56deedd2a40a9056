//! The conductor: the order of the phases of a launch, and nothing else.
//!
//! Takes [`Phases`], each of which takes what only the one before it gives; gives the [`Ending`]
//! of the last attempt. What a phase does is in its own file. Every phase before the ranks start
//! ends at once when a stop is asked for.

use super::clock::Clock;
use super::end::Rest;
use crate::lang::Text;
use crate::muster::Again;
use crate::report::Ending;
use crate::supervise::Halt;
use crate::verdict::Refusal;

/// The phases of one launch on this node.
pub(super) trait Phases {
    /// The node as it was seen.
    type Observed;
    /// What this node would do by itself.
    type OwnPlan;
    /// What all nodes do.
    type Agreed;
    /// What earlier runs left is gone.
    type Cleared;
    /// A node that may start.
    type Ready;
    /// What an attempt of all nodes takes from the one before.
    type Next;

    async fn observe(&self) -> Self::Observed;

    /// `next`: an attempt went before.
    async fn plan(
        &self,
        observed: &Self::Observed,
        next: Option<&Self::Next>,
    ) -> Result<Self::OwnPlan, Refusal>;

    /// Tells the other nodes of a refusal before they meet this one.
    async fn notify_peers(&self, observed: &Self::Observed, refusal: &Refusal);

    async fn agree(
        &self,
        observed: Self::Observed,
        own: Self::OwnPlan,
        next: Option<Self::Next>,
    ) -> Result<Self::Agreed, Refusal>;

    async fn clear(&self, agreed: &Self::Agreed) -> Result<Self::Cleared, Refusal>;

    /// Tells the other nodes of an ending after they agreed; the ending that all share.
    async fn share(&self, agreed: Self::Agreed, ending: Ending) -> Ending;

    fn ready(&self, agreed: Self::Agreed, cleared: Self::Cleared) -> Self::Ready;

    /// One attempt, to the closing block.
    async fn run(&self, ready: &mut Self::Ready) -> Ended;

    /// Writes what is slower than the verdict, and leaves the other nodes.
    async fn finish(&self, ready: &mut Self::Ready, rest: Option<Rest>);

    /// What a further attempt begins with.
    fn start_again(&self, ready: Self::Ready, again: Again) -> Start<Self::Ready, Self::Next>;

    /// Says that a further attempt follows, and waits until it is due.
    async fn pause(&self, start: &Start<Self::Ready, Self::Next>, again: Again);

    /// Runs `phase`, unless a stop is asked for meanwhile: then what asked for it.
    async fn until_stop<T>(&self, phase: impl Future<Output = T>) -> Result<T, Halt>;

    fn say(&self, line: &Text);

    /// Says the refusal, and makes it an ending.
    fn refused(&self, refusal: &Refusal) -> Ending;

    /// Says that a stop came before ranks ran, and makes it an ending.
    fn stopped(&self, halt: Halt) -> Ending;

    /// Writes the termination message. From here on the exit code is fixed.
    fn announce(&self, ending: &Ending, node: Option<u32>, clock: Option<Clock>);

    /// The node rank of a node that may start.
    fn node(&self, ready: &Self::Ready) -> u32;
}

/// Where an attempt begins.
pub(super) enum Start<Ready, Next> {
    /// From the first phase.
    Observe(Option<Next>),
    /// From what this node, which is alone, did before.
    Run(Ready),
}

/// An attempt that is over, its verdict said.
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) again: Option<Again>,
    /// Why no attempt follows, where some were asked for.
    pub(super) why_not: Option<Text>,
    /// A stop was asked for meanwhile.
    pub(super) told: bool,
    pub(super) clock: Clock,
    /// None where nothing was started.
    pub(super) rest: Option<Rest>,
}

/// Attempts until one ends well, is stopped, or no restart is left.
pub(super) async fn conduct<P: Phases>(phases: &P) -> Ending {
    let mut start = Start::Observe(None);
    let mut node = None;
    loop {
        let mut ready = match start {
            Start::Run(ready) => ready,
            Start::Observe(next) => match prepare(phases, next, node).await {
                Ok(ready) => ready,
                Err(ending) => return ending,
            },
        };
        node = Some(phases.node(&ready));
        let Ended { ending, again, why_not, told, clock, rest } = phases.run(&mut ready).await;
        // A node that was told to stop takes part in no further attempt.
        let again = again.filter(|_| !told);
        if again.is_none() {
            phases.announce(&ending, node, Some(clock));
        }
        phases.finish(&mut ready, rest).await;
        let Some(again) = again else {
            if let Some(why) = why_not.filter(|_| !told) {
                phases.say(&why);
            }
            return ending;
        };
        start = phases.start_again(ready, again);
        if let Err(halt) = phases.until_stop(phases.pause(&start, again)).await {
            let ending = phases.stopped(halt);
            phases.announce(&ending, node, None);
            return ending;
        }
    }
}

/// Everything before the first process; an ending is announced.
async fn prepare<P: Phases>(
    phases: &P,
    next: Option<P::Next>,
    node: Option<u32>,
) -> Result<P::Ready, Ending> {
    let early = |ended: Result<Refusal, Halt>| {
        let ending = match ended {
            Ok(refusal) => phases.refused(&refusal),
            Err(halt) => phases.stopped(halt),
        };
        phases.announce(&ending, node, None);
        ending
    };
    let agreed = match phases.until_stop(agree(phases, next)).await {
        Ok(Ok(agreed)) => agreed,
        Ok(Err(refusal)) => return Err(early(Ok(refusal))),
        Err(halt) => return Err(early(Err(halt))),
    };
    let cleared = phases.until_stop(phases.clear(&agreed)).await;
    let ending = match cleared {
        Ok(Ok(cleared)) => return Ok(phases.ready(agreed, cleared)),
        Ok(Err(refusal)) => early(Ok(refusal)),
        Err(halt) => early(Err(halt)),
    };
    // The others have agreed and wait for this node.
    Err(phases.share(agreed, ending).await)
}

async fn agree<P: Phases>(phases: &P, next: Option<P::Next>) -> Result<P::Agreed, Refusal> {
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
