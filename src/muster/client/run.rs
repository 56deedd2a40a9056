//! Any other node while the job runs: reports to node 0, hears its verdict.

use std::time::Duration;

use tokio::time::sleep;

use super::connection::{Connection, Lost, Received};
use crate::muster::clock::now;
use crate::muster::protocol::{Cause, FromMember, FromNode0, Memory, Unit};
use crate::muster::session::{Command, Ends, Event};

/// Between two readings of our memory.
const WATCH: Duration = Duration::from_millis(500);

/// Runs until the conductor leaves. `offset`: milliseconds from our clock to node 0's.
pub(crate) async fn run(mut connection: Connection, offset: i64, ends: Ends) {
    let mut own = None;
    if let Err(lost) = follow(&mut connection, offset, ends.commands, &ends.events, &mut own).await
    {
        let _ = ends.events.send(Event::Stop);
        // What we know ourselves came first.
        let cause = own.unwrap_or_else(|| node_0_lost(&connection, &lost, offset));
        let _ = ends.events.send(Event::Verdict { cause: Box::new(cause), again: None });
    }
    connection.close().await;
}

/// Until the verdict, or until the conductor leaves. `own`: what this node reported last.
async fn follow(
    connection: &mut Connection,
    offset: i64,
    mut commands: tokio::sync::mpsc::UnboundedReceiver<Command>,
    events: &tokio::sync::mpsc::UnboundedSender<Event>,
    own: &mut Option<Cause>,
) -> Result<(), Lost> {
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
                FromNode0::Stop => drop(events.send(Event::Stop)),
                FromNode0::Verdict { cause, again } => {
                    let _ = events.send(Event::Verdict { cause: Box::new(cause), again });
                    return Ok(());
                }
                FromNode0::AllDone => {
                    let _ = events.send(Event::AllDone);
                    return Ok(());
                }
                _ => {}
            },
            Received::Other(Some(Some(Command::Failed(cause)))) => {
                let cause = Cause { at: cause.at.saturating_add(offset), ..*cause };
                *own = Some(cause.clone());
                connection.send(&FromMember::Failed(cause)).await;
            }
            Received::Other(Some(Some(Command::Done))) => connection.send(&FromMember::Done).await,
            Received::Other(Some(None)) => return Ok(()),
            // Memory that runs out does so between two heartbeats.
            Received::Other(None) => {
                let is_short = |memory: Option<Memory>| memory.is_some_and(Memory::is_short);
                if is_short((connection.config.memory)()) && !is_short(connection.reported) {
                    connection.heartbeat.is_due_now();
                }
            }
        }
    }
}

fn node_0_lost(connection: &Connection, lost: &Lost, offset: i64) -> Cause {
    let config = &connection.config;
    let at = now().saturating_add(offset);
    let on = (config.unit == Unit::Task).then_some(0);
    let (host, silence) = (&config.master_addr, config.peer_timeout);
    Cause::lost((0, on), host, lost.loss(), connection.memory, silence, at)
}
