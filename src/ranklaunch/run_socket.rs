//! The run's socket: answers `ranklaunch ps`, `logs`, `top`, `stacks` and `dump` from the first
//! moment of a launch to its end.
//!
//! Takes the status board, and while ranks run the sources that answer for all nodes. Before that,
//! and between two attempts, it gives the status of this node alone. Blocks nothing: it answers in
//! threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::view::{JobStatus, PackedStatus, View, ViewAsk};
use monitor::socket::{Answer, Ask, Everywhere, Job, Refused, RunServer, RunningRanks};
use monitor::status::StatusBoard;
use muster::{MemberKind, Packed};
use text::run_id::RunId;

/// The socket, which answers until it is dropped.
#[derive(Debug)]
pub(super) struct RunSocket {
    attempt: Arc<Mutex<Option<Attempt>>>,
    _server: RunServer,
}

/// Sources of the answers while ranks run.
struct Attempt {
    ranks: RunningRanks,
    everywhere: Everywhere,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Attempt").field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

/// An attempt that is served until this is dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct Serving(Arc<Mutex<Option<Attempt>>>);

impl Drop for Serving {
    fn drop(&mut self) {
        *held(&self.0) = None;
    }
}

impl RunSocket {
    pub(super) fn start(board: StatusBoard) -> RunSocket {
        let attempt: Arc<Mutex<Option<Attempt>>> = Arc::default();
        let which = {
            let (attempt, board) = (Arc::clone(&attempt), board.clone());
            move || {
                let running = held(&attempt).as_ref().map(|attempt| attempt.ranks.clone());
                running.map_or_else(|| planned(&board), |ranks| ranks.job())
            }
        };
        let everywhere = {
            let attempt = Arc::clone(&attempt);
            move |ask| {
                let running = held(&attempt).as_ref().map(|one| Arc::clone(&one.everywhere));
                match running {
                    Some(everywhere) => everywhere(ask),
                    None => alone(&board, &ask),
                }
            }
        };
        let server = RunServer::start(Arc::new(which), Arc::new(everywhere));
        RunSocket { attempt, _server: server }
    }

    /// Lets an attempt answer.
    pub(super) fn serve(&self, ranks: RunningRanks, everywhere: Everywhere) -> Serving {
        *held(&self.attempt) = Some(Attempt { ranks, everywhere });
        Serving(Arc::clone(&self.attempt))
    }
}

fn held<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The job as far as it is known; its run has no id before the nodes agree on one.
fn planned(board: &StatusBoard) -> Job {
    let run = board.snapshot().run.unwrap_or_default();
    Job {
        run_id: run.run_id.and_then(|id| RunId::try_from(id).ok()).unwrap_or_default(),
        attempt: run.attempt,
        node: run.node,
        nodes: run.nodes,
        ranks: Vec::new(),
    }
}

fn alone(board: &StatusBoard, ask: &Ask) -> Answer {
    let Ask::View { of } = ask else { return Answer::Refused(Refused::NotRunning) };
    let Ok(ViewAsk::Status) = serde_json::from_value(of.clone()) else {
        return Answer::Refused(Refused::NotRunning);
    };
    board.look();
    let own = board.snapshot();
    let reaches_all = own.run.as_ref().is_some_and(|run| run.nodes == 1);
    let node = own.run.as_ref().map_or(0, |run| run.node);
    let packed = Packed::Plain(serde_json::to_vec(&own).unwrap_or_default());
    let own = PackedStatus { who: MemberKind::Node.named(node), packed };
    let status = JobStatus { nodes: vec![own], reaches_all, ..JobStatus::default() };
    match serde_json::to_value(View::Status(status)) {
        Ok(what) => Answer::View { what },
        Err(_) => Answer::Refused(Refused::Question),
    }
}
