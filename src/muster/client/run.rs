//! The session on every node but node 0 while the job runs: reports failures to node 0 and
//! receives its verdict.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::sleep;

use super::connection::{Connection, ConnectionLost, Received};
use crate::muster::clock::now;
use crate::muster::protocol::{Cause, FromMember, FromNode0, MemberKind, Memory, QuestionFrame};
use crate::muster::questions::desk::{Event, Outgoing};
use crate::muster::session::{Ends, SessionCommand, SessionEvent};

/// Interval of reading our memory use.
const WATCH: Duration = Duration::from_millis(500);

/// Runs until the conductor leaves. `offset`: milliseconds from our clock to node 0's.
pub(crate) async fn run(mut connection: Connection, offset: i64, ends: Ends) {
    let mut own = None;
    let events = ends.events.clone();
    if let Err(lost) = follow(&mut connection, offset, ends, &mut own).await {
        let _ = events.send(SessionEvent::Stop);
        // Our own failure came before the loss of node 0.
        let cause = own.unwrap_or_else(|| node_0_lost(&connection, &lost, offset));
        let _ = events.send(SessionEvent::Verdict { cause: Box::new(cause), again: None });
    }
    connection.close().await;
}

/// What this node itself has to do.
enum Own {
    /// None: the conductor has left.
    Command(Option<SessionCommand>),
    /// None: only time has passed.
    Question(Option<Event>),
    /// Nothing else is to do, so a part of an answer may be sent.
    Idle,
    Watch,
}

/// Runs until the conductor leaves, or after the verdict until node 0 does, which may still ask.
/// `own` is this node's last report.
async fn follow(
    connection: &mut Connection,
    offset: i64,
    ends: Ends,
    own: &mut Option<Cause>,
) -> Result<(), ConnectionLost> {
    let Ends { events, mut commands, mut desk } = ends;
    let watch = WATCH.min(connection.config.heartbeat());
    let mut later: VecDeque<QuestionFrame> = VecDeque::new();
    let mut is_judged = false;
    loop {
        let has_later = !later.is_empty();
        // Frames of answers may come without a pause; what is ours must not wait for their end.
        let received = match commands.try_recv() {
            Ok(command) => Received::Other(Own::Command(Some(command))),
            Err(TryRecvError::Disconnected) => Received::Other(Own::Command(None)),
            Err(TryRecvError::Empty) => {
                let other = async {
                    tokio::select! {
                        biased;
                        command = commands.recv() => Own::Command(command),
                        event = desk.next() => Own::Question(event),
                        () = std::future::ready(()), if has_later => Own::Idle,
                        () = sleep(watch) => Own::Watch,
                    }
                };
                match connection.next_or(other).await {
                    Err(_) if is_judged => return Ok(()),
                    received => received?,
                }
            }
        };
        match received {
            Received::Frame(frame) => match *frame {
                FromNode0::Stop => drop(events.send(SessionEvent::Stop)),
                FromNode0::Verdict { cause, again } => {
                    let _ = events.send(SessionEvent::Verdict { cause: Box::new(cause), again });
                    is_judged = true;
                }
                FromNode0::AllDone => {
                    let _ = events.send(SessionEvent::AllDone);
                    is_judged = true;
                }
                FromNode0::Question(frame) => queue(&mut later, desk.hear(0, frame, &|_| true)),
                _ => {}
            },
            Received::Other(Own::Question(event)) => {
                queue(&mut later, desk.follow(event, &|_| true));
            }
            Received::Other(Own::Idle) => {
                if let Some(frame) = later.pop_front() {
                    connection.send(&FromMember::Question(frame)).await;
                }
            }
            Received::Other(Own::Command(Some(SessionCommand::Failed(cause)))) => {
                let cause = Cause { at: cause.at.saturating_add(offset), ..*cause };
                *own = Some(cause.clone());
                connection.send(&FromMember::Failed(cause)).await;
            }
            Received::Other(Own::Command(Some(SessionCommand::Done))) => {
                connection.send(&FromMember::Done).await
            }
            Received::Other(Own::Command(None)) => return Ok(()),
            // Memory can run out between two heartbeats.
            Received::Other(Own::Watch) => {
                let is_short = |memory: Option<Memory>| memory.is_some_and(Memory::is_short);
                if is_short((connection.config.memory)()) && !is_short(connection.reported) {
                    connection.heartbeat.is_due_now();
                }
            }
        }
    }
}

/// All of them go to node 0.
fn queue(later: &mut VecDeque<QuestionFrame>, frames: Vec<Outgoing>) {
    later.extend(frames.into_iter().map(|(_, frame)| frame));
}

fn node_0_lost(connection: &Connection, lost: &ConnectionLost, offset: i64) -> Cause {
    let config = &connection.config;
    let at = now().saturating_add(offset);
    let on = (config.unit == MemberKind::Task).then_some(0);
    let (host, silence) = (&config.master_addr, config.peer_timeout);
    Cause::lost((0, on), host, lost.loss(), connection.memory, silence, at)
}
