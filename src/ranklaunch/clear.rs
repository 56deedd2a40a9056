//! The clearing phase: ends stale processes after all nodes have agreed, so that a refused launch
//! has ended nothing. [`preflight::clear`] decides which processes are stale, and which may be
//! ended.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::agree::Agreed;
use super::collect;
use super::context::Context;
use super::stale::{end, find};
use plan::{Plan, Scope};
use preflight::clear::Request;
use preflight::decide::{Decided, Stage, decide};
use verdict::Refusal;

/// Time limit for the driver to free the GPU memory of ended processes.
const DRAIN: Duration = Duration::from_secs(30);
const DRAIN_PAUSE: Duration = Duration::from_millis(250);

/// Proof that every process that had to end before the start has ended.
pub(super) struct Cleared {
    /// The new plan of a single node on which processes were ended. The plan of several nodes
    /// stays as agreed.
    pub(super) plan: Option<Plan>,
}

/// Ends stale processes, now that the nodes have agreed.
///
/// # Errors
/// As [`clear`].
pub(super) async fn carry_out(context: &Context, agreed: &Agreed) -> Result<Cleared, Refusal> {
    let none = Cleared { plan: None };
    let Some(duty) = &agreed.duty else { return Ok(none) };
    if !duty.acts {
        wait_until_clear(context, &duty.request).await?;
        return Ok(none);
    }
    match clear(context, &duty.request).await? {
        Some(decided) if agreed.plan.membership.members() == 1 => {
            Ok(Cleared { plan: Some(decided.plan(Stage::BeforeStart)?) })
        }
        _ => Ok(none),
    }
}

/// Waits for the task that ends these processes. If it cannot end one, it stops all tasks.
async fn wait_until_clear(context: &Context, request: &Request) -> Result<(), Refusal> {
    let deadline = Instant::now() + request.term_wait + request.kill_wait + DRAIN;
    loop {
        let found = find(&context.host, request).await?;
        let over = Instant::now() >= deadline;
        if over || !found.iter().any(|one| one.is_ended_by(request.mode)) {
            return Ok(());
        }
        sleep(DRAIN_PAUSE).await;
    }
}

/// Ends the processes that the mode allows and waits until the driver has freed their memory.
/// Gives the decision for the node after that, or None if nothing was ended.
///
/// # Errors
/// When a process cannot be ended, or when memory of the chosen GPUs is still in use and the
/// check `gpu.busy` has the severity fail.
#[tracing::instrument(name = "stale.end", skip_all)]
async fn clear(context: &Context, request: &Request) -> Result<Option<Decided>, Refusal> {
    if !end(context, request).await? {
        return Ok(None);
    }
    let deadline = Instant::now() + DRAIN;
    loop {
        let facts = collect::observe(&context.host, &context.settings).await;
        let decided = decide(&context.settings, &facts, Scope::Alone);
        let (busy, refusal) = decided.memory_in_use();
        let late = Instant::now() >= deadline;
        if !busy || late {
            return refusal.map_or(Ok(Some(decided)), Err);
        }
        sleep(DRAIN_PAUSE).await;
    }
}
