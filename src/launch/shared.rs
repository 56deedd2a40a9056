//! While the job runs on several nodes: every node's failure reaches all, and all
//! end with one verdict.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::Scene;
use super::node::Next;
use super::restart::Restarts;
use crate::lang::Text;
use crate::logs::Logs;
use crate::muster::{self, Again, Cause, Event, Mark, Session};
use crate::plan::RunIdentity;
use crate::report::{self, Ending, ending::Speaker};
use crate::supervise::{
    self, End, GuardCommands, Launch, Notice, Outcome, Owner, Planned, RankEnd, StopReason, Streams,
};
use crate::sys::Signal;
use crate::text;
use crate::verdict::{Class, Id, Verdict};

/// Lines of the failed rank that all nodes repeat.
const LAST_LINES: usize = 20;
/// After the first word of a failure: how long its last lines may take to be read.
const SETTLE: Duration = Duration::from_millis(150);
/// How long a node that failed waits for the verdict of node 0.
const VERDICT: Duration = Duration::from_secs(5);
/// Between two lines that say that others still run.
const PROGRESS: Duration = Duration::from_secs(30);

/// What operators read as "try again".
const RETRYABLE: i32 = End::Signal(Signal::TERM.as_raw()).shell_code();

/// One attempt's tie to the other nodes.
#[derive(Debug)]
pub(super) struct Together {
    session: Session,
    node: u32,
    /// Of a task: the rank of its node.
    on: Option<u32>,
    hostname: String,
    pub(super) attempt: u32,
    /// Node 0's; the others do not decide.
    restarts: Restarts,
    /// Node 0's: by it a node that comes meanwhile knows whose store it found.
    pub(super) mark: Option<Mark>,
    /// What this node reported.
    reported: Option<Cause>,
    verdict: Option<(Cause, Option<Again>)>,
    all_done: bool,
}

/// How this node ends, with the lines to show.
pub(super) struct Judged {
    pub(super) ending: Ending,
    /// Where another node is to blame: its rank's last lines.
    pub(super) lines: Option<Vec<String>>,
    pub(super) again: Option<Again>,
}

impl Together {
    pub(super) fn new(
        session: Session,
        (node, on): (u32, Option<u32>),
        hostname: String,
        attempt: u32,
        restarts: Restarts,
    ) -> Together {
        Together {
            session,
            node,
            on,
            hostname,
            attempt,
            restarts,
            mark: None,
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
        guard_commands: &GuardCommands,
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
        let run = supervise::run(launch, guard_commands, streams, &mut notice, elsewhere);
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
        scene: &Scene,
        guard_commands: &GuardCommands,
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
            if let Some(stopped) = self.wait_for_others(scene, guard_commands).await {
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
        scene: &Scene,
        guard_commands: &GuardCommands,
    ) -> Option<Ending> {
        let mut next_line = Instant::now() + PROGRESS;
        let node = self.node;
        while !self.all_done && self.verdict.is_none() {
            tokio::select! {
                event = self.session.next_event() => self.note(event),
                word = guard_commands.next() => if let Some(halt) = word.halt() {
                    return Some(report::ending::halted(halt));
                },
                () = sleep_until(next_line) => {
                    next_line = Instant::now() + PROGRESS;
                    scene.say(&match self.on {
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

    /// What the coming attempt inherits.
    pub(super) fn next(&self, again: Again, identity: &RunIdentity) -> Next {
        Next { attempt: again.attempt, identity: identity.clone(), restarts: self.restarts.clone() }
    }

    /// Why node 0 begins no further attempt, where some were asked for.
    pub(super) fn why_not(&self) -> Option<Text> {
        self.restarts.why_not()
    }

    pub(super) async fn close(self) {
        self.session.close().await;
    }
}

/// How node `node` ends, which would end with `local` by itself, under the verdict of all.
fn judged(node: u32, local: Ending, verdict: Option<&(Cause, Option<Again>)>) -> Judged {
    let Some((cause, again)) = verdict else {
        return Judged { ending: local, lines: None, again: None };
    };
    let own = cause.node == node && cause.loss.is_none();
    // Stopped from outside stays what it is, whoever was first.
    let keeps_code = own || local.class == Class::Stopped;
    let (code, class) = match (keeps_code, cause.is_retryable()) {
        (true, _) => (local.code, local.class),
        (false, true) => (RETRYABLE, Class::Launcher),
        (false, false) => (Verdict::OtherNode.code(), Class::Launcher),
    };
    let Cause { hostname, text: said, .. } = cause;
    let node = cause.on.unwrap_or(cause.node);
    let text =
        if cause.loss.is_some() { said.clone() } else { placed(said, cause.rank, node, hostname) };
    let ending = if local.names_survivors() && local.id != cause.id {
        // Nobody else can say it, and the nodes had agreed before it was known.
        let (Text { en, zh }, Text { en: first, zh: first_zh }) = (local.text, text);
        let text = text!("{en}; the job ended for: {first}", "{zh}；任务结束的原因：{first_zh}");
        Ending { text, ..local }
    } else {
        Ending {
            code,
            class,
            id: cause.id,
            rank: cause.rank,
            node: Some(node),
            text,
            hint: cause.hint.clone(),
        }
    };
    Judged { ending, lines: Some(cause.lines.clone()), again: *again }
}

/// What led to `ending`, oldest first.
pub(super) fn last_lines(logs: &Logs, planned: Planned, ending: &Ending) -> Vec<String> {
    let owner = match ending.speaker(planned) {
        Some(Speaker::Started(number)) => planned.owner(number),
        Some(Speaker::Engine) => Owner::Engine,
        None => return Vec::new(),
    };
    logs.tail(owner, LAST_LINES).iter().map(|line| line.text().into_owned()).collect()
}

/// `said` with the node where it happened.
fn placed(said: &Text, rank: Option<u32>, node: u32, hostname: &str) -> Text {
    let (en, zh) = (&said.en, &said.zh);
    // The command of a node has its node in its name.
    let (here, here_zh) = (format!("on node {node} "), format!("节点 {node} "));
    if en.contains(&here) {
        let named = en.replacen(&here, &format!("on node {node} ({hostname}) "), 1);
        let named_zh = zh.replacen(&here_zh, &format!("节点 {node}（{hostname}）"), 1);
        return Text::new(named, named_zh);
    }
    let subject = rank.map(|rank| format!("rank {rank}"));
    match subject.as_deref().and_then(|rank| Some((rank, en.strip_prefix(rank)?))) {
        Some((rank, did)) => Text::new(
            format!("{rank} on node {node} ({hostname}){did}"),
            format!("节点 {node}（{hostname}）的 {zh}"),
        ),
        None if en.contains(": ") => {
            text!("node {node} ({hostname}): {en}", "节点 {node}（{hostname}）：{zh}")
        }
        None => text!("{en} on node {node} ({hostname})", "节点 {node}（{hostname}）：{zh}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::muster::Loss;

    fn ending(code: i32, class: Class, id: Id, text: &str) -> Ending {
        let text = Text::same(text.to_owned());
        let hint = Text::same("");
        Ending { code, class, id, rank: None, node: None, text, hint }
    }

    /// Of node 2, as all nodes hear of it.
    fn cause(code: i32, class: Class, id: Id, text: &str) -> Cause {
        Cause {
            node: 2,
            on: None,
            hostname: "h".to_owned(),
            rank: matches!(id, Id::RankExit | Id::RankSignal).then_some(5),
            id,
            class,
            code,
            text: Text::same(text.to_owned()),
            hint: Text::same("look there"),
            at: 0,
            lines: vec!["its last line".to_owned()],
            whole: true,
            loss: None,
        }
    }

    #[test]
    fn every_node_has_the_cause_and_its_own_code() {
        let exit = || cause(3, Class::Script, Id::RankExit, "rank 5 exited with code 3");
        let kill = || cause(137, Class::Script, Id::RankSignal, "rank 5 was killed by SIGKILL");
        let lost = |loss| Cause {
            loss: Some(loss),
            ..cause(137, Class::Launcher, Id::NodeDied, "the agent of node 2 (h) died")
        };
        let failed = || ending(3, Class::Script, Id::RankExit, "rank 5 exited with code 3");
        let told = || ending(92, Class::Launcher, Id::NodeOther, "another node failed");
        let stopped = || ending(143, Class::Stopped, Id::StoppedSignal, "stopped from outside");
        // The node, its own ending and what all heard; then its code, class and text.
        for (node, local, heard, code, class, text) in [
            (2, failed(), exit(), 3, Class::Script, "rank 5 on node 2 (h) exited with code 3"),
            // A failure that no restart helps, and one that a restart may help.
            (0, told(), exit(), 92, Class::Launcher, "rank 5 on node 2 (h) exited with code 3"),
            (0, told(), kill(), 143, Class::Launcher, "rank 5 on node 2 (h) was killed by SIGKILL"),
            // Whoever was stopped from outside as well keeps that code.
            (0, stopped(), exit(), 143, Class::Stopped, "rank 5 on node 2 (h) exited with code 3"),
            // A lost node is named in the sentence already.
            (0, told(), lost(Loss::Died), 143, Class::Launcher, "the agent of node 2 (h) died"),
            // It was taken for lost and is not: it did not say that itself.
            (2, failed(), lost(Loss::Silent), 143, Class::Launcher, "the agent of node 2 (h) died"),
        ] {
            let again = Some(Again { attempt: 1, pause: 10 });
            let heard = (heard, again);
            let Judged { ending, lines, again: next } = judged(node, local, Some(&heard));
            assert_eq!(
                (ending.code, ending.class, &*ending.text.en),
                (code, class, text),
                "{node}"
            );
            assert_eq!((ending.node, ending.rank), (Some(2), heard.0.rank));
            assert_eq!((&ending.id, &*ending.hint.en), (&heard.0.id, "look there"));
            assert_eq!((lines, next), (Some(heard.0.lines), again));
        }
        // Nothing was heard: its own ending stands.
        let Judged { ending, lines, again } = judged(2, failed(), None);
        assert_eq!((ending, lines, again), (failed(), None, None));
    }

    #[test]
    fn a_verdict_names_its_node_where_the_sentence_has_its_subject() {
        let said = |en: &str, rank| {
            let text = Text::new(en.to_owned(), "甲".to_owned());
            placed(&text, rank, 1, "t-worker-1").en.into_owned()
        };
        for (en, rank, placed) in [
            (
                "rank 0 exited with code 1",
                Some(0),
                "rank 0 on node 1 (t-worker-1) exited with code 1",
            ),
            (
                "the command on node 1 ended with code 7",
                None,
                "the command on node 1 (t-worker-1) ended with code 7",
            ),
            (
                "stopped from outside by SIGTERM",
                None,
                "stopped from outside by SIGTERM on node 1 (t-worker-1)",
            ),
            (
                "the engine ended before any rank began: exit code 1",
                None,
                "node 1 (t-worker-1): the engine ended before any rank began: exit code 1",
            ),
        ] {
            assert_eq!(said(en, rank), placed);
        }
    }
}
