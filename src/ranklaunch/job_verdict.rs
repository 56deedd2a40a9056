//! The shared verdict of a job, as seen by each of its nodes.
//!
//! Pure: takes this node's own ending and the first failure of the job; gives the exit code,
//! text and last lines for this node.

use super::restart::FailedAttempt;
use linux::sys::Signal;
use muster::{Again, Cause};
use report::Ending;
use text::lang::Text;
use text::text;
use verdict::outcome::End;
use verdict::{Class, Id, Refusal, Verdict, Why};

/// The code that operators read as "try again".
pub(super) const RETRYABLE: i32 = End::Signal(Signal::TERM.as_raw()).shell_code();

/// An attempt after which the nodes were to start again.
pub(super) struct Earlier {
    pub(super) attempt: u32,
    pub(super) ending: Ending,
}

/// The end of this node, and the lines to show.
pub(super) struct JudgedEnding {
    pub(super) ending: Ending,
    /// If another node failed: the last lines of its rank.
    pub(super) lines: Option<Vec<String>>,
    pub(super) again: Option<Again>,
}

/// The end of node `node` (for a task: on node `on`) under the shared verdict; without a verdict it would end with
/// `local`.
pub(super) fn judged(
    node: u32,
    on: Option<u32>,
    local: Ending,
    verdict: Option<&(Cause, Option<Again>)>,
) -> JudgedEnding {
    let Some((cause, again)) = verdict else {
        return JudgedEnding { ending: local, lines: None, again: None };
    };
    // Node 0 ends a job that stands still; the fault is on the node of the culprit.
    let ends_hang = cause.id == Id::Hang && cause.class == Class::Launcher;
    let culprit = cause.on.filter(|_| ends_hang).unwrap_or(cause.node);
    let place = on.filter(|_| ends_hang).unwrap_or(node);
    let own = culprit == place && cause.loss.is_none();
    // A stop from outside keeps its code, whichever node failed first.
    let keeps_code = own || local.class == Class::Stopped;
    // Operators start a job again by the codes of all its nodes: a node without a failure must not permanently end
    // a job that another attempt may help.
    let helps = cause.is_retryable() || FailedAttempt::from(cause).may_be_helped();
    let (code, class) = match (keeps_code, helps) {
        // The attempts of the job make no progress, whichever rank failed.
        _ if cause.id == Id::CheckpointStuck => (cause.code, cause.class),
        // This node reported the output of its ranks before they were stopped.
        (true, _) if local.id == Id::NodeOther => (cause.code, cause.class),
        (true, _) => (local.code, local.class),
        (false, true) => (RETRYABLE, Class::Launcher),
        (false, false) => (Verdict::OtherNode.code(), Class::Launcher),
    };
    let Cause { hostname, text: said, .. } = cause;
    let node = cause.on.unwrap_or(cause.node);
    // The text of a node that did not see the failure names the place itself.
    let names_node = cause.loss.is_some() || cause.id == Id::Hang;
    let text = if names_node { said.clone() } else { placed(said, cause.rank, node, hostname) };
    let ending = if local.names_survivors() && local.id != cause.id {
        // Only this node knows the survivors, and the nodes had agreed before they were known.
        let (Text { en, zh }, Text { en: first, zh: first_zh }) = (local.text, text);
        let text = text!("{en}; the job ended for: {first}", "{zh}；任务结束的原因：{first_zh}");
        Ending { text, ..local }
    } else {
        let why = retold(cause.why.clone(), said, &text);
        Ending {
            code,
            class,
            id: cause.id,
            rank: cause.rank,
            node: Some(node),
            text,
            why,
            hint: cause.hint.clone(),
            consequence: cause.consequence,
        }
    };
    JudgedEnding { ending, lines: Some(cause.lines.clone()), again: *again }
}

/// The end of the job for a node whose next attempt did not begin because other nodes stayed away: the first cause
/// counts, and a retry may help. None for any other refusal.
pub(super) fn unreplaced(earlier: &Earlier, refusal: &Refusal) -> Option<Ending> {
    let is_absence = matches!(
        refusal.id,
        Id::MusterMissing | Id::MasterReach | Id::MasterResolve | Id::MusterAttempt
    );
    let Earlier { attempt, ending } = earlier;
    if !is_absence {
        return None;
    }
    let (Text { en, zh }, missing) = (&ending.text, &refusal.text);
    let (missing, missing_zh) = (&missing.en, &missing.zh);
    let text = text!(
        "attempt {attempt} ended: {en}; no replacement came: {missing}",
        "第 {attempt} 次尝试的结局：{zh}；没有替补节点到达：{missing_zh}"
    );
    let why = retold(ending.why.clone(), &ending.text, &text);
    let (code, class, hint) = (RETRYABLE, Class::Launcher, refusal.hint.clone());
    Some(Ending { code, class, text, why, hint, ..ending.clone() })
}

/// The cause in the new words of an ending that itself names the cause.
fn retold(mut why: Option<Box<Why>>, said: &Text, text: &Text) -> Option<Box<Why>> {
    if let Some(why) = why.as_mut().filter(|why| why.text == *said) {
        why.text = text.clone();
    }
    why
}

/// `said`, with the node where it happened.
fn placed(said: &Text, rank: Option<u32>, node: u32, hostname: &str) -> Text {
    let (en, zh) = (&said.en, &said.zh);
    // The name of a node's command already contains the node.
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
    use muster::Loss;
    use verdict::{Confidence, Owner, Retry, Why};

    fn ending(code: i32, class: Class, id: Id, text: &str) -> Ending {
        let text = Text::same(text.to_owned());
        let hint = Text::same("");
        Ending {
            code,
            class,
            id,
            rank: None,
            node: None,
            text,
            hint,
            why: None,
            consequence: false,
        }
    }

    /// A failure of node 2, as all nodes receive it.
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
            why: None,
            consequence: false,
        }
    }

    #[test]
    fn every_node_gets_the_cause_and_its_code() {
        let exit = || cause(3, Class::Script, Id::RankExit, "rank 5 exited with code 3");
        let kill = || cause(137, Class::Script, Id::RankSignal, "rank 5 was killed by SIGKILL");
        let lost = |loss| Cause {
            loss: Some(loss),
            ..cause(137, Class::Launcher, Id::NodeDied, "the agent of node 2 (h) died")
        };
        let failed = || ending(3, Class::Script, Id::RankExit, "rank 5 exited with code 3");
        let told = || ending(92, Class::Launcher, Id::NodeOther, "another node failed");
        let stopped = || ending(143, Class::Stopped, Id::StoppedSignal, "stopped from outside");
        // Node, its own ending and the shared cause; then code, class and text.
        let ecc = || Cause {
            why: Some(Box::new(Why::fixture(
                "cuda_ecc",
                Confidence::Certain,
                Owner::Node,
                Retry::OtherNode,
            ))),
            ..exit()
        };
        let never = || Cause {
            why: Some(Box::new(Why::fixture(
                "module_missing",
                Confidence::Certain,
                Owner::Code,
                Retry::Never,
            ))),
            ..exit()
        };
        let usage = || cause(2, Class::Script, Id::RankExit, "rank 5 exited with code 2");
        let hang = || Cause {
            on: Some(2),
            node: 0,
            ..cause(91, Class::Launcher, Id::Hang, "the job stood still")
        };
        // A rank of node 1 gave up its wait for one of node 2.
        let waited = || Cause {
            on: Some(2),
            node: 1,
            ..cause(1, Class::Script, Id::Hang, "the job stood still")
        };
        let gave_up = || ending(1, Class::Script, Id::Hang, "the job stood still");
        let stood = || ending(91, Class::Launcher, Id::Hang, "the job stood still");
        for (node, local, heard, code, class, text) in [
            // The failing node keeps its code, which its cause replaces later.
            (2, failed(), ecc(), 3, Class::Script, "rank 5 on node 2 (h) exited with code 3"),
            (0, told(), ecc(), 143, Class::Launcher, "rank 5 on node 2 (h) exited with code 3"),
            (2, failed(), exit(), 3, Class::Script, "rank 5 on node 2 (h) exited with code 3"),
            // Failures that a restart may help, and failures that it does not help.
            (0, told(), exit(), 143, Class::Launcher, "rank 5 on node 2 (h) exited with code 3"),
            (0, told(), usage(), 92, Class::Launcher, "rank 5 on node 2 (h) exited with code 2"),
            (0, told(), never(), 92, Class::Launcher, "rank 5 on node 2 (h) exited with code 3"),
            // Node 0 reports a hang, and the code of the hang belongs to its culprit's node.
            (2, told(), hang(), 91, Class::Launcher, "the job stood still"),
            (1, gave_up(), waited(), 1, Class::Script, "the job stood still"),
            (2, told(), waited(), 143, Class::Launcher, "the job stood still"),
            (0, stood(), hang(), 143, Class::Launcher, "the job stood still"),
            (1, told(), hang(), 143, Class::Launcher, "the job stood still"),
            (0, told(), kill(), 143, Class::Launcher, "rank 5 on node 2 (h) was killed by SIGKILL"),
            // A node that was also stopped from outside keeps that code.
            (0, stopped(), exit(), 143, Class::Stopped, "rank 5 on node 2 (h) exited with code 3"),
            // The text already names the lost node.
            (0, told(), lost(Loss::Died), 143, Class::Launcher, "the agent of node 2 (h) died"),
            // The node counted as lost but is alive; it did not report the loss itself.
            (2, failed(), lost(Loss::Silent), 143, Class::Launcher, "the agent of node 2 (h) died"),
        ] {
            let again = Some(Again { attempt: 1, pause: 10, tally: muster::Tally::default() });
            let heard = (heard, again);
            let JudgedEnding { ending, lines, again: next } =
                judged(node, None, local, Some(&heard));
            assert_eq!(
                (ending.code, ending.class, &*ending.text.en),
                (code, class, text),
                "{node}"
            );
            assert_eq!((ending.node, ending.rank), (Some(2), heard.0.rank));
            assert_eq!((&ending.id, &*ending.hint.en), (&heard.0.id, "look there"));
            assert_eq!((lines, next), (Some(heard.0.lines), again));
        }
        // Without a shared cause, the node keeps its own ending.
        let JudgedEnding { ending, lines, again } = judged(2, None, failed(), None);
        assert_eq!((ending, lines, again), (failed(), None, None));
    }

    #[test]
    fn unreplaced_node_keeps_the_first_cause() {
        let earlier = |code| {
            let text = "the agent of node 2 (h) died";
            Earlier { attempt: 1, ending: ending(code, Class::Launcher, Id::NodeDied, text) }
        };
        let refusal = |id| Refusal::new(id, Text::same("2 of 3 nodes arrived"), Text::same("look"));
        for (code, id, kept) in [
            (143, Id::MusterMissing, true),
            (3, Id::MusterMissing, true),
            (143, Id::MasterReach, true),
            (143, Id::PortFree, false),
            (143, Id::MusterEngine, false),
        ] {
            let found = unreplaced(&earlier(code), &refusal(id));
            let said = found.map(|one| (one.code, one.id, one.text.en, one.hint.en));
            let text = "attempt 1 ended: the agent of node 2 (h) died; no replacement came: 2 of 3 nodes arrived";
            let expected = (143, Id::NodeDied, text.into(), "look".into());
            assert_eq!(said, kept.then_some(expected), "{id}");
        }
    }

    #[test]
    fn verdict_names_its_node_after_the_subject() {
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
