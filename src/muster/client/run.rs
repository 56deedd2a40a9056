//! The session on every node but node 0 while the job runs: reports failures to node 0 and
//! receives its verdict.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, sleep};

use super::connection::{Connection, Received, Resumption};
use crate::keepalive::{Cut, now};
use crate::protocol::{
    Cause, Channel, ChannelError, Decide, FromMember, FromNode0, Loss, MemberKind, Memory,
};
use crate::questions::frames::QuestionFrame;
use crate::questions::{Event, Outgoing};
use crate::session::{Ends, SessionCommand, SessionEvent};
use crate::succession::Succession;

/// Interval at which this node reads its memory use.
const WATCH: Duration = Duration::from_millis(500);

/// This node's reports about its ranks. They are repeated after the connection was cut, since node 0 may not have heard
/// them.
#[derive(Debug, Default)]
struct Said {
    failed: Option<Cause>,
    done: bool,
    /// Not a report: a node may still run ranks of which nobody knows.
    is_unsure: bool,
}

impl Said {
    fn note(&mut self, command: SessionCommand, offset: i64) -> FromMember {
        match command {
            SessionCommand::Failed(cause) => {
                let cause = Cause { at: cause.at.saturating_add(offset), ..*cause };
                self.failed = Some(cause.clone());
                FromMember::Failed(cause)
            }
            SessionCommand::Done => {
                self.done = true;
                FromMember::Done
            }
        }
    }

    fn frames(&self) -> impl Iterator<Item = FromMember> {
        let done = self.done.then_some(FromMember::Done);
        done.into_iter().chain(self.failed.clone().map(FromMember::Failed))
    }
}

/// This node's host name, and for a task the node rank of its node.
pub(crate) type Me = (String, Option<u32>);

/// Runs until the conductor leaves. `offset`: milliseconds from our clock to node 0's clock.
/// `decide`: what follows if node 0 is lost.
pub(crate) async fn run(
    (mut connection, offset, resumption): (Connection, i64, Option<Resumption>),
    me: Me,
    mut decide: Option<Decide>,
    mut ends: Ends,
) {
    let began = Instant::now();
    let (mut said, mut is_leaderless) = (Said::default(), false);
    if let Some(resumption) = &resumption {
        resumption.reach(&connection.config);
    }
    let succession = connection.config.succession.as_ref();
    let lifeline = succession.and_then(|one| Some(one.lifeline(one.leaders_place()?)));
    while let Err(lost) = follow(&mut connection, offset, &mut ends, &mut said).await {
        let pause = connection.pause.just_over();
        let loss = match (&lost, &resumption) {
            (ChannelError::Silent, _) | (_, None) => lost.loss(),
            (error, Some(resumption)) => {
                let how = (Cut::from(error), lifeline.as_ref());
                let dial = resumption.dial(how, &connection.config);
                match resumed(dial, offset, &mut ends, &mut said).await {
                    Some(Ok(channel)) => {
                        tracing::warn!("the connection to node 0 was cut, and is there again");
                        connection.resume(channel);
                        for frame in said.frames() {
                            connection.send(&frame).await;
                        }
                        continue;
                    }
                    Some(Err(loss)) => loss,
                    None => break,
                }
            }
        };
        let _ = ends.events.send(SessionEvent::Stop);
        let loss = loss.beside(said.is_unsure);
        let host = resumption.as_ref().map(|one| one.hostname.as_str());
        let mut lost = node_lost(&connection, &me, host, loss, pause, offset);
        let succession = connection.config.succession.as_ref();
        let decide = decide.as_mut().filter(|_| succession.is_some_and(Succession::can_go_on));
        // A node that stood still for long may have been the only one that was lost.
        is_leaderless = true;
        // Ranks that fail when their peers are gone say nothing about the next attempt.
        let again = decide.and_then(|decide| decide(&mut lost, began.elapsed(), true));
        // Otherwise our own failure precedes the loss of node 0.
        let own = said.failed.take().filter(|_| again.is_none());
        let cause = own.unwrap_or(lost);
        let _ = ends.events.send(SessionEvent::Verdict { cause: Box::new(cause), again });
        break;
    }
    if let Some(succession) = &connection.config.succession {
        succession.ended(is_leaderless);
    }
    let returns = ends.returns.load(Ordering::Relaxed);
    connection.send(&FromMember::Bye { returns }).await;
    connection.close().await;
}

/// A new connection to node 0. None: the conductor has left in the meantime.
async fn resumed(
    dial: impl Future<Output = Result<Channel<FromNode0>, Loss>>,
    offset: i64,
    ends: &mut Ends,
    said: &mut Said,
) -> Option<Result<Channel<FromNode0>, Loss>> {
    tokio::pin!(dial);
    loop {
        tokio::select! {
            dialed = &mut dial => return Some(dialed),
            command = ends.commands.recv() => drop(said.note(command?, offset)),
        }
    }
}

/// The next task of this node itself.
enum Own {
    /// None: the conductor has left.
    Command(Option<SessionCommand>),
    /// None: only time has passed.
    Question(Option<Event>),
    /// No other task is pending, so a part of an answer may be sent.
    Idle,
    Watch,
}

/// Runs until the conductor leaves, or after the verdict until node 0 leaves, which may still ask questions. `said`
/// holds this node's reports.
async fn follow(
    connection: &mut Connection,
    offset: i64,
    ends: &mut Ends,
    said: &mut Said,
) -> Result<(), ChannelError> {
    let Ends { events, commands, desk, .. } = ends;
    let watch = WATCH.min(connection.config.heartbeat());
    let mut later: VecDeque<QuestionFrame> = VecDeque::new();
    let mut is_judged = false;
    loop {
        let has_later = !later.is_empty();
        // Frames of answers may come without a pause; our own commands must not wait for their end.
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
                FromNode0::Unsure(is_unsure) => said.is_unsure = is_unsure,
                FromNode0::Verdict { cause, again } => {
                    let cause = explained(cause, connection);
                    let _ = events.send(SessionEvent::Verdict { cause: Box::new(cause), again });
                    is_judged = true;
                }
                FromNode0::AllDone => {
                    let _ = events.send(SessionEvent::AllDone);
                    is_judged = true;
                }
                FromNode0::Missed(electorate) => connection.renewed(*electorate),
                FromNode0::Question(frame) => {
                    queue(&mut later, desk.hear(connection.config.leader, frame, &|_| true))
                }
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
            Received::Other(Own::Command(Some(command))) => {
                connection.send(&said.note(command, offset)).await;
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

/// Queues frames, all of which go to node 0.
fn queue(later: &mut VecDeque<QuestionFrame>, frames: Vec<Outgoing>) {
    later.extend(frames.into_iter().map(|(_, frame)| frame));
}

/// The verdict. If it names this node because of a pause of this process, the pause is added as the reason.
fn explained(cause: Cause, connection: &Connection) -> Cause {
    let config = &connection.config;
    match connection.pause.just_over() {
        Some(pause) if cause.node == config.node && cause.loss.is_some() => cause.of_pause(pause),
        _ => cause,
    }
}

/// The cause when node 0 is lost, or when this node is lost because it paused for so long that the others gave it up.
fn node_lost(
    connection: &Connection,
    me: &Me,
    host: Option<&str>,
    loss: Loss,
    pause: Option<Duration>,
    offset: i64,
) -> Cause {
    let config = &connection.config;
    let (at, silence) = (now().saturating_add(offset), config.peer_timeout);
    match pause {
        Some(pause) => {
            let (host, on) = me;
            let lost = Cause::lost((config.node, *on), host, Loss::Silent, None, silence, at);
            lost.of_pause(pause)
        }
        None => {
            let on = (config.unit == MemberKind::Task).then_some(0);
            let host = host.unwrap_or(&config.master_addr);
            Cause::lost((config.leader, on), host, loss, connection.memory, silence, at)
        }
    }
}
