//! Puts the recorder's judgement and the stacks together.
//!
//! The recorder knows which rank has not come to a collective; the stacks show the position of that rank. If no rank
//! has a record, the stacks alone decide: the rank outside every collective is the one that the others wait for. If
//! neither names a rank, NCCL may.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::doing::{self, Doing};
use super::suspects::{self, Scene, Suspect};
use super::words::{self, Kind, Sign, signs};
use super::{NodeEvidence, RankEvidence};
use diagnose::Frame;
use diagnose::recorder::{Collective, HangKind};
use text::lang::Text;
use text::order::{InOrder, Ordered};
use verdict::Confidence;

/// A rank that the others wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Culprit {
    /// Rank of its node. None if no single rank shows it, or the node was not seen.
    pub node: Option<u32>,
    pub rank: Option<u32>,
    pub kind: Kind,
    /// The line of the user's own code at which the rank is.
    pub frame: Option<Frame>,
    /// The collective that the rank did not enter, or the one that it entered in place of another.
    pub collective: Option<Collective>,
    pub text: Text,
}

/// A job that stands still.
#[derive(Debug, Clone, PartialEq)]
pub struct Hang {
    pub culprits: Vec<Culprit>,
    /// Ranks that only wait, by node.
    pub waiting: BTreeMap<u32, Vec<u32>>,
    /// Ranks wait for others, culprits among them; otherwise each culprit is stuck by itself.
    pub is_awaited: bool,
    pub confidence: Confidence,
    /// Other signs of something abnormal.
    pub signs: Vec<Sign>,
    /// Nodes that did not answer.
    pub silent: Vec<u32>,
    /// The position of a culprit was not read within the time. Another look may show it, or another culprit.
    pub late: bool,
}

/// The culprit as the ending of a job reports it, on all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstCulprit {
    pub node: Option<u32>,
    pub rank: Option<u32>,
    /// `train.py:41 load_batch`
    pub frame: Option<String>,
    pub text: Text,
    pub hint: Text,
    pub confidence: Confidence,
    /// Global ranks that only wait, of all nodes.
    pub waiting: Vec<u32>,
}

impl Hang {
    /// The culprit that reports name.
    pub fn first(&self) -> Option<FirstCulprit> {
        let first = self.culprits.first()?;
        // If no side is odd, one sentence describes all sides, and no rank is the first.
        let is_alone = self.culprits.get(1).is_none_or(|other| other.text != first.text);
        let of_one = Some(first).filter(|_| is_alone);
        Some(FirstCulprit {
            node: of_one.and_then(|one| one.node),
            rank: of_one.and_then(|one| one.rank),
            frame: of_one
                .and_then(|one| one.frame.as_ref())
                .map(|frame| format!("{frame} {}", frame.function)),
            text: first.text.clone(),
            hint: first.kind.hint(),
            confidence: self.confidence,
            waiting: self.waiting.values().flatten().copied().collect(),
        })
    }
}

/// The conclusion from the evidence.
#[derive(Debug, Clone, PartialEq)]
pub enum Judgement {
    Hangs(Hang),
    /// Ranks wait only for a rank that is at work. `gives_up_ns`: time at which torch itself ends the wait, in ns
    /// since 1970. `seen`: the waiting ranks and the rank that they wait for, if that is certain.
    HeldUp {
        by: Vec<u32>,
        gives_up_ns: Option<i64>,
        seen: Option<Hang>,
    },
    /// No rank waits for another, so nothing is reported.
    Idle,
}

/// `silent`: nodes that did not answer. `patient`: a rank at work may go on; otherwise that rank is named as well,
/// since torch is about to end the wait.
pub fn judge(nodes: &[NodeEvidence], silent: &[u32], patient: bool) -> Judgement {
    let scene = Scene::of(nodes);
    let mut blamed = scene.by_record();
    let mut waiting = scene.waiting(&blamed);
    // If some rank is elsewhere, the others do not wait for the link.
    if scene.ranks.keys().any(|rank| !waiting.contains(rank)) {
        blamed.retain(|one| one.kind != HangKind::Link);
    }
    if blamed.is_empty() {
        blamed = scene.by_stacks(&waiting);
    }
    if blamed.is_empty() {
        blamed = scene.at_other_lines(&waiting);
    }
    // Torch itself ends a wait whose members have all come, unless bytes still flow.
    let moves = nodes.iter().any(|node| node.traffic);
    if moves {
        blamed.retain(|one| one.kind != HangKind::Link);
    }
    scene.only_the_odd(&mut blamed, &mut waiting);
    let numbers = || blamed.iter().filter_map(|suspect| suspect.rank);
    let at_work = |rank: &u32| scene.is_at_work(*rank);
    let by_person = |rank| matches!(scene.doing(rank), Some(Doing::Debugged | Doing::Serves));
    if numbers().any(by_person) {
        return Judgement::HeldUp { by: numbers().collect(), gives_up_ns: None, seen: None };
    }
    let gives_up_ns = scene.recorded.as_ref().and_then(|hang| hang.gives_up_ns);
    // If all only wait, those that were at work until now may just have come, and all are about to go on.
    let only_waits =
        |suspect: &Suspect| suspect.rank.is_none() || suspect.kind == HangKind::Deadlock;
    if patient && blamed.iter().all(only_waits) {
        let came = |rank: &u32| scene.evidence(*rank).is_some_and(|of| of.may_have_come);
        let by: BTreeSet<u32> = waiting.iter().copied().chain(numbers()).filter(came).in_set();
        if !by.is_empty() {
            return Judgement::HeldUp { by: by.into_iter().collect(), gives_up_ns, seen: None };
        }
    }
    let held_up: Option<Vec<u32>> =
        Some(numbers().filter(at_work).collect()).filter(|by: &Vec<u32>| patient && !by.is_empty());
    if let Some(by) = &held_up {
        blamed.retain(|suspect| suspect.rank.is_some_and(|rank| by.contains(&rank)));
        // A rank that has entered a collective and goes on does not wait in it.
        waiting
            .retain(|rank| scene.doing(*rank).is_some_and(Doing::awaits_ranks) || !at_work(rank));
    }
    let ended = |rank| scene.evidence(rank).is_some_and(|of| of.ended_ms.is_some());
    let of_nccl = suspects::merged_verdict(nodes, ended);
    let by_nccl = held_up.is_none()
        && !moves
        && !waiting.is_empty()
        && scene.name_by_nccl(&of_nccl, &mut blamed);
    let mut culprits: Vec<Culprit> = blamed
        .into_iter()
        .map(|suspect| culprit(suspect, &scene, &waiting, held_up.is_some()))
        .collect();
    // The line of a message does not show its other end, so no rank is the first.
    let is_in_message = |one: &Culprit| one.rank.is_some_and(|rank| scene.is_in_message(rank));
    if culprits.len() > 1
        && culprits.iter().all(|one| one.kind == Kind::Deadlock && is_in_message(one))
    {
        let operations = scene.seen.values().any(|seen| seen.doing == Doing::Operation);
        let waiting = culprits.iter().filter_map(|one| Some((one.rank?, one.frame.as_ref())));
        let text = words::messages(&waiting.collect::<Vec<_>>(), operations);
        culprits.iter_mut().for_each(|one| one.text = text.clone());
    }
    if culprits.is_empty() {
        return Judgement::Idle;
    }
    let certain = !by_nccl
        && scene.recorded.as_ref().is_some_and(|hang| hang.confidence == Confidence::Certain);
    let known = culprits.iter().all(|one| one.kind != Kind::Unknown);
    let confidence = if certain && known { Confidence::Certain } else { Confidence::Likely };
    let named: BTreeSet<u32> = culprits.iter().filter_map(|one| one.rank).in_set();
    let mut by_node: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for rank in waiting.iter().filter(|rank| !named.contains(rank)) {
        if let Some((node, _)) = scene.ranks.get(rank) {
            by_node.entry(*node).or_default().push(*rank);
        }
    }
    // A rank that has not come because it waits for a message may be a victim.
    culprits.order_by_key(|one| (one.kind, is_in_message(one), one.rank));
    let places: Vec<_> = culprits.iter().map(|one| (one.node, one.rank)).collect();
    let is_link = culprits.iter().any(|one| one.kind == Kind::Link);
    let signs = signs(nodes, &of_nccl, &places, is_link);
    let late = named.iter().filter_map(|rank| scene.evidence(*rank)).any(RankEvidence::is_late);
    let silent = silent.to_vec();
    let is_awaited = !waiting.is_empty();
    let hang = Hang { culprits, waiting: by_node, is_awaited, confidence, signs, silent, late };
    match held_up {
        Some(by) => {
            Judgement::HeldUp { by, gives_up_ns, seen: Some(hang).filter(|hang| hang.is_awaited) }
        }
        None => Judgement::Hangs(hang),
    }
}

impl Scene<'_> {
    fn is_at_work(&self, rank: u32) -> bool {
        let Some(evidence) = self.evidence(rank) else { return false };
        match self.doing(rank) {
            Some(Doing::Stopped) => false,
            // Disk writes on this node say nothing about other machines, or about ranks that do not wait for a disk.
            Some(Doing::Uninterruptible { is_remote, call, .. })
                if *is_remote || !call.as_deref().is_none_or(doing::may_wait_for_disk) =>
            {
                evidence.busy
            }
            doing => evidence.busy || evidence.drains || doing::runs(evidence, doing),
        }
    }
}

fn culprit(suspect: Suspect, scene: &Scene<'_>, waiting: &BTreeSet<u32>, is_slow: bool) -> Culprit {
    let of = suspect.rank.and_then(|rank| scene.ranks.get(&rank));
    let (node, evidence) = (of.map(|(node, _)| *node), of.map(|(_, evidence)| *evidence));
    let of_messages = waiting.iter().all(|rank| scene.is_in_message(*rank));
    let seen = suspect.rank.and_then(|rank| scene.seen.get(&rank));
    let doing = seen.map_or(&Doing::Hidden, |seen| &seen.doing);
    let has_ended = evidence.is_some_and(|rank| rank.ended_ms.is_some());
    let kind = match suspect.kind {
        _ if is_slow => Kind::Slow,
        HangKind::OtherCollective => Kind::OtherCollective,
        HangKind::OtherShape => Kind::OtherShape,
        HangKind::Deadlock => Kind::Deadlock,
        HangKind::Link => Kind::Link,
        HangKind::NeverEntered | HangKind::Unknown if has_ended => Kind::Ended,
        HangKind::NeverEntered | HangKind::Unknown => match doing {
            Doing::Stopped => Kind::Stopped,
            Doing::Uninterruptible { .. } => Kind::BlockedIo,
            Doing::DeadChild { .. } => Kind::WorkerDied,
            Doing::Lock | Doing::Gil => Kind::Deadlock,
            Doing::Hidden => Kind::Unknown,
            _ => Kind::NeverEntered,
        },
    };
    let own = seen.and_then(|seen| seen.frame.clone()).filter(|_| kind != Kind::Ended);
    let frame = own.or_else(|| suspect.frame.clone());
    let text = words::sentence(&words::Facts {
        kind,
        of_messages,
        suspect: &suspect,
        node,
        doing,
        frame: frame.as_ref(),
        evidence,
        is_awaited: !waiting.is_empty(),
    });
    Culprit { node, rank: suspect.rank, kind, frame, collective: suspect.collective, text }
}
