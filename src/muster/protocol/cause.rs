//! The first failure of a job, in the form that all nodes receive, and the limits of text from other nodes, which may be
//! printed to a terminal: no control or invisible characters, bounded length.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use text::lang::{Text, spaced};
use text::letters::is_hidden;
use text::text;
use verdict::{Class, Id, Refusal, Why};

/// The kind of a member of the muster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// Each member counts as a node of the job.
    Node,
    /// Several members are on one node, since the platform starts the command once per rank.
    Task,
}

impl MemberKind {
    /// `node 3`
    pub fn named(self, number: impl Display) -> Text {
        match self {
            MemberKind::Node => text!("node {number}", "节点 {number}"),
            MemberKind::Task => text!("task {number}", "task {number}"),
        }
    }

    /// `nodes`
    pub fn plural(self) -> Text {
        match self {
            MemberKind::Node => text!("nodes", "节点"),
            MemberKind::Task => text!("tasks", " task "),
        }
    }
}

/// Number of last lines in a cause, so that a cause always fits into a frame.
pub(crate) const LINES: usize = 20;
/// Number of last lines if the cause has a reason, which needs room in the frame as well.
const LINES_BESIDE_WHY: usize = 14;

/// From this percentage of the memory limit an OOM kill is the likely cause of death.
const SHORT: u64 = 90;

/// Bytes in use and the limit of the tightest cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub used: u64,
    pub limit: u64,
}

impl Memory {
    /// Whether the use is so close to the limit that a death is probably an OOM kill.
    pub fn is_short(self) -> bool {
        self.percent() >= SHORT
    }

    /// Percent in use, rounded down.
    pub fn percent(self) -> u64 {
        u64::try_from(u128::from(self.used) * 100 / u128::from(self.limit.max(1))).unwrap_or(100)
    }
}

/// The first failure of the job: the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    pub node: u32,
    /// For a task: the node rank of its node.
    #[serde(default)]
    pub on: Option<u32>,
    pub hostname: String,
    /// Global rank of the rank that failed.
    pub rank: Option<u32>,
    /// `rank.exit`, `node.died`…
    pub id: Id,
    /// Class as in the verdict of the node itself.
    pub class: Class,
    /// Exit code of that node's launcher.
    pub code: i32,
    pub text: Text,
    pub hint: Text,
    /// Milliseconds since 1970 by node 0's clock.
    pub at: i64,
    /// Last lines of the rank that failed, oldest first.
    pub lines: Vec<String>,
    /// The report is complete; before that it only names the rank and its end.
    pub whole: bool,
    /// Set if the node was lost and could not report itself.
    pub loss: Option<Loss>,
    /// The root cause, if the output of the node's processes shows it.
    #[serde(default)]
    pub why: Option<Box<Why>>,
    /// The output shows only that something failed elsewhere.
    #[serde(default)]
    pub consequence: bool,
}

/// The way in which a node was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// The node's connection was closed without a farewell, and its port is closed as well.
    Died,
    /// The node's connection was closed without a farewell; it is unknown whether the node still runs.
    Cut,
    /// Nothing was heard from the node for the peer timeout.
    Silent,
}

impl Loss {
    /// The loss of a leader, where `is_unsure` whether another node still runs ranks: its own end is proven, but not that
    /// of all ranks.
    pub(crate) fn beside(self, is_unsure: bool) -> Loss {
        if is_unsure && self == Loss::Died { Loss::Cut } else { self }
    }
}

impl Cause {
    /// The cause when a node is lost.
    pub fn lost(
        (node, on): (u32, Option<u32>),
        hostname: &str,
        loss: Loss,
        memory: Option<Memory>,
        silence: Duration,
        at: i64,
    ) -> Cause {
        let seconds = silence.as_secs();
        let unit = if on.is_some() { MemberKind::Task } else { MemberKind::Node };
        let Text { en: who, zh: who_zh } = unit.named(node);
        let with_zh = spaced(&who_zh);
        let full = memory.filter(|memory| memory.is_short()).map(Memory::percent);
        let (id, text, hint) = match (loss, full) {
            (Loss::Died | Loss::Cut, Some(percent)) => (
                Id::NodeDied,
                text!(
                    "the agent of {who} ({hostname}) died; last seen at {percent} % of its memory limit: probably OOM-killed",
                    "{who_zh}（{hostname}）的 agent 进程已终止；最后一次心跳时内存已达上限的 {percent} %：很可能被 OOM 杀死"
                ),
                text!(
                    "raise that pod's memory limit, or use less host memory (data loader workers, pinned memory, checkpoints in RAM)",
                    "请提高该 Pod 的内存限制，或减少主机内存占用（数据加载进程、锁页内存、内存中的检查点）"
                ),
            ),
            (Loss::Died, None) => (
                Id::NodeDied,
                text!(
                    "the agent of {who} ({hostname}) died",
                    "{who_zh}（{hostname}）的 agent 进程已终止"
                ),
                text!(
                    "look at that node: its pod may have been deleted, evicted or killed for memory (kubectl describe pod)",
                    "请检查该节点：其 Pod 可能被删除、驱逐或因内存不足被杀（kubectl describe pod）"
                ),
            ),
            (Loss::Cut, None) => (
                Id::NodeCut,
                text!(
                    "the connection to {who} ({hostname}) was cut: its agent ended, or something between the nodes cut it",
                    "与{with_zh}（{hostname}）的连接中断：其 agent 进程已终止，或连接被节点之间的设备切断"
                ),
                text!(
                    "look at that node (kubectl describe pod); if it ran on, a sidecar, a firewall or a load balancer between the nodes resets connections",
                    "请检查该节点（kubectl describe pod）；若其仍在运行，则是节点之间的 sidecar、防火墙或负载均衡重置了连接"
                ),
            ),
            (Loss::Silent, _) => (
                Id::NodeSilent,
                text!(
                    "nothing was heard from {who} ({hostname}) for {seconds} s",
                    "已有 {seconds} 秒未收到{with_zh}（{hostname}）的任何消息"
                ),
                text!(
                    "that node lost power or its network, or this node lost the network to it",
                    "该节点断电或断网，或本节点到它的网络中断"
                ),
            ),
        };
        Cause {
            node,
            on,
            hostname: hostname.to_owned(),
            rank: None,
            id,
            class: Class::Launcher,
            code: 137,
            text,
            hint,
            at,
            lines: Vec::new(),
            whole: true,
            loss: Some(loss),
            why: None,
            consequence: false,
        }
    }

    /// The cause for a lost node that knows why the others heard nothing from it.
    pub(crate) fn of_pause(self, pause: Duration) -> Cause {
        let (Text { en, zh }, seconds) = (self.text, pause.as_secs());
        let text = text!("{en}: it did not run for {seconds} s", "{zh}：该节点停顿了 {seconds} 秒");
        let hint = text!(
            "its processes or its machine were stopped (SIGSTOP, a paused container or VM, a live migration)",
            "其进程或机器曾被暂停（SIGSTOP、容器或虚拟机被暂停、热迁移）"
        );
        Cause { text, hint, ..self }
    }

    /// The cause, given the memory use. If memory was short, an OOM kill explains a lost guard: the kernel kills the
    /// guard before the agent, which may just have time to report that.
    pub(crate) fn seen_with(self, memory: Option<Memory>) -> Cause {
        if self.id != Id::GuardKilled || !memory.is_some_and(Memory::is_short) {
            return self;
        }
        let (who, at) = ((self.node, self.on), self.at);
        Cause::lost(who, &self.hostname, Loss::Died, memory, Duration::ZERO, at)
    }

    /// Sort key that puts the first failure to the front. A lost agent is never the consequence of a rank that failed
    /// elsewhere, although its loss reaches us after the errors that its ranks cause on other nodes. A node whose
    /// output shows only consequences is not the first.
    pub fn order(&self) -> (bool, bool, i64, u32) {
        (!matches!(self.loss, Some(Loss::Died | Loss::Cut)), self.consequence, self.at, self.node)
    }

    /// Whether operators should start the job again: by convention, exit codes from 128 are retryable.
    pub fn is_retryable(&self) -> bool {
        self.code >= 128
    }

    /// Cuts a received cause to the size that a frame can carry.
    pub(crate) fn sanitize(&mut self) {
        sanitize(&mut self.hostname);
        sanitize_text(&mut self.text);
        sanitize_text(&mut self.hint);
        let most = if self.why.is_some() { LINES_BESIDE_WHY } else { LINES };
        let surplus = self.lines.len().saturating_sub(most);
        self.lines.drain(..surplus);
        self.lines.iter_mut().for_each(sanitize);
        if let Some(why) = &mut self.why {
            sanitize_why(why);
        }
    }

    pub(crate) fn without_lines(&self) -> Cause {
        Cause { lines: Vec::new(), ..self.clone() }
    }
}

/// Maximum characters of a word.
pub(crate) const LETTERS: usize = 400;
/// Maximum characters of a sentence.
const SENTENCE: usize = 3 * LETTERS;

pub(crate) fn sanitize(word: &mut String) {
    if word.len() > LETTERS || word.chars().any(is_hidden) {
        *word = word
            .chars()
            .take(LETTERS)
            .map(|letter| if is_hidden(letter) { '\u{fffd}' } else { letter })
            .collect();
    }
}

pub(crate) fn sanitize_text(text: &mut Text) {
    for sentence in [&mut text.en, &mut text.zh] {
        if sentence.len() > SENTENCE || sentence.chars().any(is_hidden) {
            let shown = sentence.chars().take(SENTENCE);
            let shown = shown.map(|letter| if is_hidden(letter) { ' ' } else { letter });
            *sentence = Cow::Owned(shown.collect());
        }
    }
}

/// Bounds of the parts of a failure's reason that are sent, so that a frame can carry the reason.
const RANKS: usize = 64;
const VICTIMS: usize = 2;
const ALSO: usize = 2;
/// Maximum bytes of one sentence of the reason, and of one word.
const REASON: usize = 600;
const WORD: usize = 100;

/// Cuts a reason to about 12 kB.
pub(crate) fn sanitize_why(why: &mut Why) {
    let Why { id, text, remedy, frame, log, evidence, missing, victims, also, .. } = why;
    missing.truncate(RANKS);
    victims.truncate(VICTIMS);
    also.truncate(ALSO);
    victims.iter_mut().for_each(|victims| victims.ranks.truncate(RANKS));
    let ids = victims.iter_mut().map(|victims| &mut victims.id);
    let ids = ids.chain(also.iter_mut().map(|other| &mut other.id));
    ids.chain([id, log]).for_each(|word| fit(word, WORD));
    [evidence].into_iter().chain(frame).for_each(|words| fit(words, REASON));
    let victims = victims.iter_mut().map(|victims| &mut victims.text);
    let also = also.iter_mut().map(|other| &mut other.text);
    for sentence in [text, remedy].into_iter().chain(victims).chain(also) {
        for words in [&mut sentence.en, &mut sentence.zh] {
            fit(words.to_mut(), REASON);
        }
    }
}

/// Cuts a text to at most `bytes`, and removes control characters.
fn fit(words: &mut String, bytes: usize) {
    if words.len() > bytes {
        let end = (0..=bytes).rev().find(|at| words.is_char_boundary(*at)).unwrap_or(0);
        words.truncate(end);
    }
    if words.chars().any(is_hidden) {
        *words = words.chars().map(|letter| if is_hidden(letter) { ' ' } else { letter }).collect();
    }
}

pub(crate) fn sanitize_refusal(refusal: &mut Refusal) {
    sanitize_text(&mut refusal.text);
    sanitize_text(&mut refusal.hint);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn killed_guard_with_short_memory_suggests_oom() {
        let said = |id: Id, used: Option<u64>| {
            let lost = Cause::lost((1, None), "h", Loss::Died, None, Duration::ZERO, 7);
            let own = Cause { id, loss: None, ..lost };
            own.seen_with(used.map(|used| Memory { used, limit: 100 }))
        };
        let taken = said(Id::GuardKilled, Some(93));
        assert_eq!((taken.id, taken.at, taken.node), (Id::NodeDied, 7, 1));
        assert!(taken.text.en.contains("at 93 % of its memory limit"), "{taken:?}");
        for (id, used) in
            [(Id::GuardKilled, Some(50)), (Id::GuardKilled, None), (Id::RankExit, Some(93))]
        {
            assert_eq!(said(id, used).id, id);
        }
    }
}
