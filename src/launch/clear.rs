//! Ending what earlier runs left, once all nodes have agreed, so that a launch that comes to
//! nothing has ended nothing. What a process is, and who may end it, is in [`crate::clear`].

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::agree::Agreed;
use super::collect;
use super::context::Context;
use super::stale::{end, find};
use crate::clear::Request;
use crate::decide::{Decided, Stage, decide};
use crate::plan::{Plan, Scope};
use crate::verdict::Refusal;

/// How long the driver may take to give the memory of ended processes back.
const DRAIN: Duration = Duration::from_secs(30);
const DRAIN_PAUSE: Duration = Duration::from_millis(250);

/// Nothing that is to be ended before the start is left.
pub(super) struct Cleared {
    /// The plan of a node whose processes were ended; that of several nodes stays as agreed.
    pub(super) plan: Option<Plan>,
}

/// Ends what earlier runs left, now that the nodes have agreed.
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

/// Waits for the task that ends these; what cannot be ended stops all tasks from there.
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

/// Ends what the mode ends and waits until the driver has given its memory back.
/// The decision for the node as it is after that; None where nothing was ended.
///
/// # Errors
/// When something cannot be ended, or when the chosen GPUs' memory is still in use and the
/// check `gpu.busy` fails a launch.
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
