//! The session on every node but node 0 while the job runs: reports failures to node 0 and
//! receives its verdict.

use std::time::Duration;

use tokio::time::sleep;

use super::connection::{Connection, ConnectionLost, Received};
use crate::muster::clock::now;
use crate::muster::protocol::{Cause, FromMember, FromNode0, MemberKind, Memory};
use crate::muster::session::{Ends, SessionCommand, SessionEvent};

/// Interval of reading our memory use.
const WATCH: Duration = Duration::from_millis(500);

/// Runs until the conductor leaves. `offset`: milliseconds from our clock to node 0's.
pub(crate) async fn run(mut connection: Connection, offset: i64, ends: Ends) {
    let mut own = None;
    if let Err(lost) = follow(&mut connection, offset, ends.commands, &ends.events, &mut own).await
    {
        let _ = ends.events.send(SessionEvent::Stop);
        // Our own failure came before the loss of node 0.
        let cause = own.unwrap_or_else(|| node_0_lost(&connection, &lost, offset));
        let _ = ends.events.send(SessionEvent::Verdict { cause: Box::new(cause), again: None });
    }
    connection.close().await;
}

/// Runs until the verdict, or until the conductor leaves. `own` is this node's last report.
async fn follow(
    connection: &mut Connection,
    offset: i64,
    mut commands: tokio::sync::mpsc::UnboundedReceiver<SessionCommand>,
    events: &tokio::sync::mpsc::UnboundedSender<SessionEvent>,
    own: &mut Option<Cause>,
) -> Result<(), ConnectionLost> {
    let watch = WATCH.min(connection.config.heartbeat());
    loop {
        let other = async {
            tokio::select! {
                command = commands.recv() => Some(command),
                () = sleep(watch) => None,
            }
        };
        match connection.next_or(other).await? {
            Received::Frame(frame) => match *frame {
                FromNode0::Stop => drop(events.send(SessionEvent::Stop)),
                FromNode0::Verdict { cause, again } => {
                    let _ = events.send(SessionEvent::Verdict { cause: Box::new(cause), again });
                    return Ok(());
                }
                FromNode0::AllDone => {
                    let _ = events.send(SessionEvent::AllDone);
                    return Ok(());
                }
                _ => {}
            },
            Received::Other(Some(Some(SessionCommand::Failed(cause)))) => {
                let cause = Cause { at: cause.at.saturating_add(offset), ..*cause };
                *own = Some(cause.clone());
                connection.send(&FromMember::Failed(cause)).await;
            }
            Received::Other(Some(Some(SessionCommand::Done))) => {
                connection.send(&FromMember::Done).await
            }
            Received::Other(Some(None)) => return Ok(()),
            // Memory can run out between two heartbeats.
            Received::Other(None) => {
                let is_short = |memory: Option<Memory>| memory.is_some_and(Memory::is_short);
                if is_short((connection.config.memory)()) && !is_short(connection.reported) {
                    connection.heartbeat.is_due_now();
                }
            }
        }
    }
}

fn node_0_lost(connection: &Connection, lost: &ConnectionLost, offset: i64) -> Cause {
    let config = &connection.config;
    let at = now().saturating_add(offset);
    let on = (config.unit == MemberKind::Task).then_some(0);
    let (host, silence) = (&config.master_addr, config.peer_timeout);
    Cause::lost((0, on), host, lost.loss(), connection.memory, silence, at)
}
