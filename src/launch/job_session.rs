//! While the job runs on several nodes: every node's failure reaches all, and all
//! end with one verdict.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::context::Context;
use super::job_verdict::{Judged, judged};
use super::pipes::last_lines;
use crate::logs::Logs;
use crate::muster::{self, Again, Cause, Event, Mark, NodeSummary, Session};
use crate::report::{self, Ending};
use crate::supervise::{
    self, GuardCommands, Launch, Notice, Outcome, RankEnd, StopReason, Streams,
};
use crate::text;
use crate::verdict::{Class, Id};

/// After the first word of a failure: how long its last lines may take to be read.
const SETTLE: Duration = Duration::from_millis(150);
/// How long a node that failed waits for the verdict of node 0.
const VERDICT: Duration = Duration::from_secs(5);
/// Between two lines that say that others still run.
const PROGRESS: Duration = Duration::from_secs(30);

/// The session of one attempt with the other nodes.
#[derive(Debug)]
pub(super) struct JobSession {
    session: Session,
    node: u32,
    /// Of a task: the rank of its node.
    on: Option<u32>,
    hostname: String,
    /// Node 0's: by it a node that comes meanwhile knows whose store it found.
    mark: Option<Mark>,
    /// What this node reported.
    reported: Option<Cause>,
    verdict: Option<(Cause, Option<Again>)>,
    all_done: bool,
}

impl JobSession {
    /// `own`: what this node told the others about itself.
    pub(super) fn new(session: Session, own: &NodeSummary, mark: Option<Mark>) -> JobSession {
        JobSession {
            session,
            node: own.node,
            on: own.seat.map(|seat| seat.node),
            hostname: own.hostname.clone(),
            mark,
            reported: None,
            verdict: None,
            all_done: false,
        }
    }

    /// Runs the attempt; the first failure of this node goes to all at once, and
    /// one of another node stops it.
    pub(super) async fn accompany(
        &mut self,
        launch: &Launch,
        commands: &GuardCommands,
        logs: &Logs,
        streams: &mut (dyn Streams + Send),
        narrate: &mut (dyn FnMut(Notice) + Send),
        ending: &(dyn Fn(&Outcome) -> Ending + Sync),
    ) -> Result<Outcome, (std::path::PathBuf, std::io::Error)> {
        let (noticed, mut notices) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut stop = Some(stop);
        let elsewhere = async {
            if stopped.await.is_err() {
                std::future::pending().await
            }
        };
        let mut notice = |notice: Notice| {
            let _ = noticed.send(notice.clone());
            narrate(notice);
        };
        let run = supervise::run(launch, commands, streams, &mut notice, elsewhere);
        tokio::pin!(run);
        let own_store = self.mark.clone();
        let marking = async {
            if let Some(mark) = &own_store {
                muster::mark(mark).await;
            }
            std::future::pending::<Infallible>().await
        };
        tokio::pin!(marking);
        let mut seen = Outcome { planned: launch.planned, ..Outcome::default() };
        let mut lines_at: Option<Instant> = None;
        loop {
            let lines_due = lines_at.unwrap_or_else(Instant::now);
            tokio::select! {
                outcome = &mut run => return outcome,
                never = &mut marking => match never {},
                Some(notice) = notices.recv() => match notice {
                    Notice::RankEnded { rank, end } => {
                        let at = SystemTime::now();
                        seen.ranks.push(RankEnd { id: rank, pid: None, end, at });
                    }
                    Notice::OtherWorld(other) => seen.other_world = Some(other),
                    Notice::Stopping { reason } if reason != StopReason::OtherNode => {
                        seen.stop = Some(reason);
                        self.report(&ending(&seen), Vec::new(), false);
                        lines_at = Some(Instant::now() + SETTLE);
                    }
                    _ => {}
                },
                () = sleep_until(lines_due), if lines_at.is_some() => {
                    lines_at = None;
                    let ending = ending(&seen);
                    let lines = last_lines(logs, launch.planned, &ending);
                    self.report(&ending, lines, true);
                }
                event = self.session.next_event() => {
                    self.note(event);
                    if !self.all_done && let Some(stop) = stop.take() {
                        let _ = stop.send(());
                    }
                }
            }
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Stop => {}
            Event::Verdict { cause, again } => {
                self.verdict = Some((*cause, again));
            }
            Event::AllDone => self.all_done = true,
        }
    }

    fn report(&mut self, ending: &Ending, lines: Vec<String>, whole: bool) {
        let now = muster::now();
        let cause = Cause {
            node: self.node,
            on: self.on,
            hostname: self.hostname.clone(),
            rank: ending.rank,
            id: ending.id,
            class: ending.class,
            code: ending.code,
            text: ending.text.clone(),
            hint: ending.hint.clone(),
            at: self.reported.as_ref().map_or(now, |reported| reported.at),
            lines,
            whole,
            loss: None,
        };
        self.session.failed(cause.clone());
        self.reported = Some(cause);
    }

    /// The verdict that this node shares with the others. `local` is its own; it stands
    /// where there is no other within `patience`.
    pub(super) async fn judge(
        &mut self,
        context: &Context,
        commands: &GuardCommands,
        local: Ending,
        lines: Vec<String>,
        patience: Duration,
    ) -> Judged {
        let mut local = local;
        let well = local.class == Class::Done;
        // Stopped for another node: there is nothing of our own to report.
        let other = local.id == Id::NodeOther;
        if well {
            self.session.done();
            if let Some(stopped) = self.wait_for_others(context, commands).await {
                self.report(&stopped, Vec::new(), true);
                local = stopped;
            }
        } else if !other && self.reported.as_ref().is_none_or(|reported| !reported.whole) {
            self.report(&local, lines, true);
        }
        if !self.all_done && self.verdict.is_none() {
            let _ = timeout(VERDICT.min(patience), async {
                while !self.all_done && self.verdict.is_none() {
                    let event = self.session.next_event().await;
                    self.note(event);
                }
            })
            .await;
        }
        judged(self.node, local, self.verdict.as_ref())
    }

    /// A node whose ranks are done stays until all are: the job has one end.
    /// Some: it was stopped from outside meanwhile.
    async fn wait_for_others(
        &mut self,
        context: &Context,
        commands: &GuardCommands,
    ) -> Option<Ending> {
        let mut next_line = Instant::now() + PROGRESS;
        let node = self.node;
        while !self.all_done && self.verdict.is_none() {
            tokio::select! {
                event = self.session.next_event() => self.note(event),
                command = commands.next() => if let Some(halt) = command.halt() {
                    return Some(report::ending::halted(halt));
                },
                () = sleep_until(next_line) => {
                    next_line = Instant::now() + PROGRESS;
                    context.say(&match self.on {
                        Some(_) => text!(
                            "rank {node} is done; waiting for the others",
                            "rank {node} 已完成；正在等待其他 rank 结束"
                        ),
                        None => text!(
                            "this node is done; waiting for the ranks of the other nodes",
                            "本节点已完成；正在等待其他节点的 rank 结束"
                        ),
                    });
                }
            }
        }
        None
    }

    pub(super) async fn close(self) {
        self.session.close().await;
    }
}
