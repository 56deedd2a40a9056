//! The session of the nodes while the job runs: a failure on one node reaches all, and all end
//! with one verdict. Hands the pipes of the ranks to the logs, whose last lines the verdict shows.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::job_verdict::{JudgedEnding, judged};
use super::live_diagnosis::{LiveDiagnosis, explained, known_end, raised};
use linux::sys;
use logs::Logs;
use muster::{Again, Cause, LostNodes, NodeSummary, Questions, Session, SessionEvent, StoreMark};
use report::Ending;
use report::ending::Speaker;
use supervise::{GuardCommands, Launch, Streams};
use text::lang::{Text, cause};
use text::text;
use verdict::outcome::{Notice, Outcome, Owner, Planned, RankEnd, StopReason, Stream};
use verdict::{Class, Id};

/// After the first report of a failure, the time limit for reading the rank's last lines.
const SETTLE: Duration = Duration::from_millis(150);
/// Time limit of the search for the cause before the report. With the time to settle it is less
/// than node 0 waits for the report.
const EXPLAINED: Duration = Duration::from_secs(4);
/// Time for which a node that failed waits for the verdict of node 0, which waits for the reports.
const VERDICT: Duration = Duration::from_secs(8);
/// Interval of the line that reports that other nodes still run.
const PROGRESS: Duration = Duration::from_secs(30);

/// Time and form of the end of this node's ranks, beside their own actions.
pub(super) struct JobEnd<'a> {
    /// The ending of the ranks, as far as it is seen.
    pub(super) ending: &'a (dyn Fn(&Outcome) -> Ending + Sync),
    /// The same ending with the other known facts about its cause.
    pub(super) cause: &'a (dyn Fn(Ending) -> Ending + Sync),
    /// Gives a reason when the job is to end although no rank failed.
    pub(super) halts: mpsc::UnboundedReceiver<StopReason>,
    /// The other end of `halts`.
    pub(super) halt: mpsc::UnboundedSender<StopReason>,
    /// The other nodes may start again without this one.
    pub(super) others_go_on: bool,
}

type Explaining<'a> = Pin<Box<dyn Future<Output = Option<Ending>> + Send + 'a>>;

/// The result of the future; without a future this never completes.
async fn done(explaining: &mut Option<Explaining<'_>>) -> Option<Ending> {
    match explaining {
        Some(explaining) => explaining.await,
        None => std::future::pending().await,
    }
}

/// The session of one attempt with the other nodes.
#[derive(Debug)]
pub(super) struct JobSession {
    session: Session,
    node: u32,
    /// Whether this node leads the job.
    leads: bool,
    /// How long a node waits for a verdict that comes even if the leader is lost.
    longest_verdict: Option<Duration>,
    /// For a task: the node rank of its node.
    on: Option<u32>,
    hostname: String,
    /// Only on node 0: the mark by which a late node recognises the store of this run.
    mark: Option<StoreMark>,
    /// The cause that this node reported.
    reported: Option<Cause>,
    verdict: Option<(Cause, Option<Again>)>,
    all_done: bool,
}

impl JobSession {
    /// `own` is the summary that this node sent to the others.
    pub(super) fn new(
        session: Session,
        (own, leads): (&NodeSummary, bool),
        mark: Option<StoreMark>,
        longest_verdict: Option<Duration>,
    ) -> JobSession {
        JobSession {
            session,
            node: own.node,
            leads,
            longest_verdict,
            on: own.seat.map(|seat| seat.node),
            hostname: own.hostname.clone(),
            mark,
            reported: None,
            verdict: None,
            all_done: false,
        }
    }

    /// The channel by which this node asks all nodes, and answers them.
    pub(super) fn questions(&self) -> Questions {
        self.session.questions()
    }

    /// Runs the attempt. Sends the first failure of this node to all nodes at once, and stops at
    /// a failure of another node.
    pub(super) async fn accompany(
        &mut self,
        launch: &Launch,
        commands: &GuardCommands,
        pipes: &mut Pipes<'_>,
        narrate: &mut (dyn FnMut(Notice) + Send),
        end: JobEnd<'_>,
    ) -> Result<Outcome, (std::path::PathBuf, std::io::Error)> {
        let JobEnd { ending, cause, halts, halt, others_go_on } = end;
        let (noticed, mut notices) = mpsc::unbounded_channel();
        let (mut is_elsewhere, mut stop_at) = (false, None);
        let mut notice = |notice: Notice| {
            let _ = noticed.send(notice.clone());
            narrate(notice);
        };
        let (logs, diagnosis) = (pipes.logs, pipes.diagnosis);
        let run = supervise::run(launch, commands, pipes, &mut notice, halts);
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
        let mut explaining: Option<Explaining<'_>> = None;
        loop {
            let lines_due = lines_at.unwrap_or_else(Instant::now);
            let stop_due = stop_at.unwrap_or_else(Instant::now);
            tokio::select! {
                outcome = &mut run => {
                    let ending = match explaining {
                        Some(search) => search.await,
                        None => None,
                    };
                    self.report_explained(ending.map(cause), launch, logs);
                    return outcome;
                }
                never = &mut marking => match never {},
                Some(notice) = notices.recv() => match notice {
                    Notice::RankEnded { rank, end } => {
                        let at = SystemTime::now();
                        seen.ranks.push(RankEnd { id: rank, pid: None, end, at });
                    }
                    Notice::OtherWorld(other) => seen.other_world = Some(other),
                    // Ranks that save after a notice have not ended: the other nodes hear of it when they have.
                    Notice::Stopping {
                        reason: StopReason::OtherNode | StopReason::GivenUp | StopReason::Noticed(_),
                    } => {}
                    Notice::Stopping { reason } => {
                        seen.stop = Some(reason);
                        self.report(&ending(&seen), Vec::new(), false);
                        lines_at = Some(Instant::now() + SETTLE);
                    }
                    _ => {}
                },
                () = sleep_until(stop_due), if stop_at.is_some() => {
                    stop_at = None;
                    let _ = halt.send(StopReason::OtherNode);
                }
                () = sleep_until(lines_due), if lines_at.is_some() => {
                    lines_at = None;
                    let ending = ending(&seen);
                    let end = known_end(&ending, &seen);
                    let search = explained(ending, end, diagnosis, EXPLAINED);
                    explaining = Some(Box::pin(async { Some(search.await) }));
                }
                ending = done(&mut explaining) => {
                    explaining = None;
                    self.report_explained(ending.map(cause), launch, logs);
                }
                event = self.session.next_event() => {
                    self.note(event);
                    if others_go_on && self.is_given_up() {
                        let _ = halt.send(StopReason::GivenUp);
                    }
                    if !self.all_done && !is_elsewhere {
                        is_elsewhere = true;
                        // The rank that failed elsewhere may be a victim of one here that has not
                        // ended yet.
                        if self.reported.is_none() && self.verdict.is_none() {
                            explaining = Some(Box::pin(raised(diagnosis, EXPLAINED)));
                        }
                        stop_at = Some(Instant::now() + (launch.patience.0)());
                    }
                }
            }
        }
    }

    /// Whether the other nodes lost this one.
    fn is_given_up(&self) -> bool {
        let cause = self.verdict.as_ref().map(|(cause, _)| cause);
        cause.is_some_and(|cause| cause.node == self.node && cause.loss.is_some())
    }

    fn note(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Stop => {}
            SessionEvent::Verdict { cause, again } => {
                self.verdict = Some((*cause, again));
            }
            SessionEvent::AllDone => self.all_done = true,
        }
    }

    fn report_explained(&mut self, ending: Option<Ending>, launch: &Launch, logs: &Logs) {
        if let Some(ending) = ending {
            let lines = last_lines(logs, launch.planned, &ending);
            self.report(&ending, lines, true);
        }
    }

    fn report(&mut self, ending: &Ending, lines: Vec<String>, whole: bool) {
        let now = muster::now();
        let cause = Cause {
            node: self.node,
            // Node 0 reports a hang, whose culprit may be on any node.
            on: ending.node.filter(|_| ending.id == Id::Hang).or(self.on),
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
            why: ending.why.clone(),
            consequence: ending.consequence,
        };
        self.session.failed(cause.clone());
        self.reported = Some(cause);
    }

    /// The verdict that all nodes share. `local` is the verdict of this node; it is kept if no
    /// other arrives within `time_left`.
    pub(super) async fn judge(
        &mut self,
        say: &(dyn Fn(&Text) + Sync),
        commands: &GuardCommands,
        local: Ending,
        lines: Vec<String>,
        time_left: Duration,
    ) -> JudgedEnding {
        let mut local = local;
        let well = local.class == Class::Done;
        // Stopped because of another node, so this node has nothing to report.
        let other = local.id == Id::NodeOther;
        if well {
            self.session.done();
            if let Some(stopped) = self.wait_for_others(say, commands).await {
                self.report(&stopped, Vec::new(), true);
                local = stopped;
            }
        } else if !other && self.reported.as_ref().is_none_or(|reported| !reported.whole) {
            self.report(&local, lines, true);
        }
        if !self.all_done && self.verdict.is_none() {
            let longest = match self.longest_verdict {
                // A stop from outside leaves no time for another leader.
                Some(longest) if !matches!(local.class, Class::Stopped) => longest,
                _ => VERDICT.min(time_left),
            };
            let _ = timeout(longest, async {
                while !self.all_done && self.verdict.is_none() {
                    let event = self.session.next_event().await;
                    self.note(event);
                }
            })
            .await;
        }
        judged(self.node, self.on, local, self.verdict.as_ref())
    }

    /// Waits until the ranks of all nodes are done, since the job has one end. Some: a stop from
    /// outside came meanwhile.
    async fn wait_for_others(
        &mut self,
        say: &(dyn Fn(&Text) + Sync),
        commands: &GuardCommands,
    ) -> Option<Ending> {
        let mut next_line = Instant::now() + PROGRESS;
        let node = self.node;
        while !self.all_done && self.verdict.is_none() {
            tokio::select! {
                event = self.session.next_event() => self.note(event),
                command = commands.next() => if let Some(halt) = command.halt() {
                    return Some(Ending::halted(halt));
                },
                () = sleep_until(next_line) => {
                    next_line = Instant::now() + PROGRESS;
                    say(&match self.on {
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

    /// The first failure of the job, once it is known.
    pub(super) fn cause(&self) -> Option<&Cause> {
        self.verdict.as_ref().map(|(cause, _)| cause)
    }

    /// The nodes that node 0 loses, also after the verdict; on other nodes none.
    pub(super) fn lost(&self) -> LostNodes {
        self.session.lost()
    }

    pub(super) fn leads(&self) -> bool {
        self.leads
    }

    /// Answers node 0 until it leaves, at most `timeout`.
    pub(super) async fn stay(&mut self, timeout: Duration) {
        self.session.stay(timeout).await;
    }

    pub(super) async fn close(self) {
        self.session.close().await;
    }

    /// Closes the session before the next attempt.
    pub(super) async fn close_to_return(self) {
        self.session.close_to_return().await;
    }
}

/// Number of last lines of the failed rank that all nodes print.
const LAST_LINES: usize = 20;

/// Hands pipes to the log room.
pub(super) struct Pipes<'a> {
    pub(super) logs: &'a Logs,
    pub(super) diagnosis: &'a Arc<LiveDiagnosis>,
    pub(super) say: &'a (dyn Fn(&Text) + Sync),
}

impl Streams for Pipes<'_> {
    fn attach(&mut self, owner: Owner, stream: Stream, pipe: OwnedFd) {
        let spare = pipe.try_clone();
        if let Err(error) = self.logs.attach(owner, stream, pipe) {
            tracing::error!(%owner, %error, "no reader for a stream");
            // A closed pipe would kill the rank at its next write.
            if let Ok(spare) = spare.and_then(sys::watch) {
                tokio::spawn(swallow(spare));
            }
            let (Text { en, zh }, owner) = (cause(&error), owner.text());
            let (who, who_zh) = (owner.en, owner.zh);
            (self.say)(&text!("the output of {who} is lost: {en}", "输出将丢失（{who_zh}）：{zh}"));
        }
    }

    fn recorded(&mut self, owner: Owner, record: Vec<u8>) {
        self.diagnosis.recorded(owner, record);
    }
}

/// Reads a pipe to its end and discards the content.
async fn swallow(pipe: AsyncFd<OwnedFd>) {
    let mut buffer = vec![0; 16 << 10];
    if rustix::io::ioctl_fionbio(&pipe, true).is_err() {
        return;
    }
    loop {
        let Ok(mut ready) = pipe.readable().await else { return };
        match ready.try_io(|pipe| Ok(rustix::io::read(pipe, &mut buffer)?)) {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

/// The last lines before `ending`, oldest first.
pub(super) fn last_lines(logs: &Logs, planned: Planned, ending: &Ending) -> Vec<String> {
    let owner = match ending.speaker(planned) {
        Some(Speaker::Started(number)) => planned.owner(number),
        Some(Speaker::Engine) => Owner::Engine,
        None => return Vec::new(),
    };
    logs.tail(owner, LAST_LINES).iter().map(|line| line.text().into_owned()).collect()
}
