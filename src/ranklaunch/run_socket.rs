//! The run's socket, which answers `ranklaunch ps`, `logs`, `top`, `stacks` and `dump` from the first moment of a
//! launch to its end.
//!
//! Before ranks run, and between two attempts, the socket gives the status of this node alone. It answers in threads
//! and blocks nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use monitor::socket::{About, Answer, Ask, Everywhere, Job, Refused, RunServer, RunningRanks};
use monitor::status::StatusBoard;
use muster::{MemberKind, Packed};
use report::runs::view::{JobStatus, PackedStatus, View, ViewAsk};
use text::run_id::RunId;

/// The sources of the answers; None while no ranks run.
type Attempt = Arc<Mutex<Option<(RunningRanks, Everywhere)>>>;

/// The socket, which answers until it is dropped.
pub(super) struct RunSocket {
    attempt: Attempt,
    _server: RunServer,
}

/// An attempt that is served until this is dropped.
#[must_use]
pub(super) struct Serving(Attempt);

impl Drop for Serving {
    fn drop(&mut self) {
        *held(&self.0) = None;
    }
}

impl RunSocket {
    pub(super) fn start(board: StatusBoard, about: About) -> RunSocket {
        let attempt = Attempt::default();
        let which = {
            let (attempt, board) = (Arc::clone(&attempt), board.clone());
            move || {
                let running = held(&attempt).as_ref().map(|(ranks, _)| ranks.clone());
                let job = running.map_or_else(|| planned(&board), |ranks| ranks.job());
                Job { about: about.clone(), ..job }
            }
        };
        let everywhere = {
            let attempt = Arc::clone(&attempt);
            move |ask| {
                let running = held(&attempt).as_ref().map(|(_, everywhere)| Arc::clone(everywhere));
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
        *held(&self.attempt) = Some((ranks, everywhere));
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
        about: About::default(),
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
