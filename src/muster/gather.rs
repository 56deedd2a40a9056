//! Node 0 before the launch: lets the nodes in, finds out who is missing, agrees.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::compare::{self, Difference};
use super::hall::{Hall, MISSING, Turn, is_of_other_job};
use super::hub;
use super::listen::{Door, Ear, Said};
use super::session::Session;
use super::silence::BEAT;
use super::types::{Agreement, Card, Config, Decide};
use super::wire::{self, Frame};
use super::words::{cannot_listen, declined, too_few_files};
use crate::lang::Text;
use crate::text;
use crate::verdict::Refusal;

/// How the wait ended.
#[derive(Debug)]
pub enum Assembly {
    All(Box<Gathered>),
    /// A node runs without ranklaunch: everybody goes on without a muster.
    Alone(Text),
}

/// How the agreement ended.
#[derive(Debug)]
pub enum Settled {
    Session(Session),
    /// A node vanished in between; the others come back by themselves.
    Lost(Text),
}

/// All nodes are there.
#[derive(Debug)]
pub struct Gathered {
    pub(super) hall: Hall,
    pub(super) cards: Vec<Card>,
    pub(super) differences: Vec<Difference>,
}

/// Waits for all nodes. The own card is node 0's.
///
/// # Errors
/// When this process may not open a file per node, the port cannot be listened on,
/// a node is missing at the deadline, or nodes do not fit together. All that have
/// arrived are told.
pub async fn gather(
    config: &Config,
    own: Card,
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Assembly, Refusal> {
    match too_few_files(config.nnodes, getrlimit(Resource::Nofile).current) {
        Some(refusal) if config.may_fall_back => return Ok(Assembly::Alone(refusal.text)),
        Some(refusal) => return Err(refusal),
        None => {}
    }
    let (door, ear) = Door::open(config.port, config.nnodes, config.secret.clone())
        .map_err(|error| cannot_listen(config.port, &error))?;
    let mut hall = Hall::new(config, own, door, ear);
    let end = Instant::now() + config.patience;
    let mut next_line = Instant::now() + config.progress_every;
    let mut tick = beat();
    while !hall.is_complete() {
        let challenge = hall.next_challenge();
        let turn = tokio::select! {
            Some((id, said)) = hall.ear.recv() => hall.hear(id, said, say),
            _ = tick.tick() => {
                hall.beat();
                Ok(Turn::Wait)
            }
            () = sleep_until(challenge) => hall.end_challenges(),
            () = sleep_until(next_line.min(end)) => {
                next_line = Instant::now() + config.progress_every;
                if Instant::now() >= end {
                    hall.say_strangers(say);
                    Err(hall.missing())
                } else {
                    say(hall.progress());
                    Ok(Turn::Wait)
                }
            }
        };
        match turn {
            Ok(Turn::Wait | Turn::Left(_)) => {}
            Ok(Turn::Alone(text)) => {
                hall.broadcast(&Frame::Alone(text.clone()));
                hall.leave().await;
                return Ok(Assembly::Alone(text));
            }
            Err(refusal) => {
                hall.broadcast(&Frame::Refuse(refusal.clone()));
                if refusal.id != MISSING {
                    let mut told = hall.seen.keys().copied().collect();
                    tell_latecomers(config, &mut hall.ear, &refusal, &mut told).await;
                }
                hall.leave().await;
                return Err(refusal);
            }
        }
    }
    let mut cards = vec![hall.own.clone()];
    cards.extend(hall.members.values().filter_map(|member| member.card.clone()));
    if let Err(refusal) = compare::check_all(&cards) {
        hall.broadcast(&Frame::Refuse(refusal.clone()));
        hall.leave().await;
        return Err(refusal);
    }
    let differences = compare::differences(&cards);
    Ok(Assembly::All(Box::new(Gathered { hall, cards, differences })))
}

impl Gathered {
    /// All cards, in the order of the node rank.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// The least that one node can carry, with what somebody fixed counted as such.
    pub fn fewest(&self) -> u32 {
        compare::fewest(&self.cards)
    }

    /// The heads, where at least one node knows them.
    pub fn heads(&self) -> Option<u32> {
        compare::heads(&self.cards)
    }

    /// Tells all nodes that nothing comes of it.
    pub async fn refuse(self, refusal: &Refusal) {
        self.hall.broadcast(&Frame::Refuse(refusal.clone()));
        self.hall.leave().await;
    }

    /// Proposes; when all nodes can follow, frees the port and lets everybody go.
    ///
    /// # Errors
    /// When the proposal does not fit what a node was told, or a node cannot follow.
    pub async fn agree(
        self,
        agreement: Agreement,
        decide: Decide,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Settled, Refusal> {
        let Gathered { mut hall, cards, differences } = self;
        if let Err(refusal) = compare::check_exact(&cards, agreement.nproc) {
            hall.broadcast(&Frame::Refuse(refusal.clone()));
            hall.leave().await;
            return Err(refusal);
        }
        hall.broadcast(&Frame::Agreed { agreement, differences });
        let mut tick = beat();
        while !hall.all_accepted() {
            let challenge = hall.next_challenge();
            let turn = tokio::select! {
                Some((id, said)) = hall.ear.recv() => hall.hear(id, said, say),
                _ = tick.tick() => Ok(hall.beat().map_or(Turn::Wait, Turn::Left)),
                () = sleep_until(challenge) => hall.end_challenges(),
            };
            match turn {
                Ok(Turn::Wait) => {}
                Ok(Turn::Left(node)) => {
                    hall.leave().await;
                    return Ok(Settled::Lost(text!(
                        "node {node} vanished during the agreement; gathering again",
                        "节点 {node} 在协商过程中消失；重新集结"
                    )));
                }
                // A plain torchrun now is nobody whom we wait for.
                Ok(Turn::Alone(_)) => {}
                Err(refusal) => {
                    hall.broadcast(&Frame::Refuse(refusal.clone()));
                    hall.leave().await;
                    return Err(refusal);
                }
            }
        }
        hall.say_strangers(say);
        let Hall { config, own, door, ear, members, .. } = hall;
        // First the port, then the word: torch's store binds it at once.
        door.shut().await;
        for member in members.values() {
            member.tell(&Frame::Go);
        }
        Ok(Settled::Session(Session::start(|ends| {
            hub::run(config, own.hostname, ear, members, decide, ends)
        })))
    }
}

/// Node 0 cannot take part: tells those who come within a few seconds; how many.
pub async fn turn_away(config: &Config, hostname: &str, refusal: &Refusal) -> usize {
    let opened = Door::open(config.port, config.nnodes, config.secret.clone());
    let Ok((door, mut ear)) = opened else { return 0 };
    let mut told = BTreeSet::new();
    tell_latecomers(config, &mut ear, &declined(0, hostname, refusal), &mut told).await;
    door.shut().await;
    let drained = async { while ear.recv().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
    told.len()
}

/// Refuses nodes that are a little later than the refusal; else each would dial a node 0
/// that is gone until its own deadline.
async fn tell_latecomers(
    config: &Config,
    ear: &mut Ear,
    refusal: &Refusal,
    told: &mut BTreeSet<u32>,
) {
    /// Nodes of one job start within seconds, and dial about once a second.
    const PATIENCE: Duration = Duration::from_secs(5);
    let answer: Arc<[u8]> = wire::encode(&Frame::Refuse(refusal.clone())).into();
    let others = usize::try_from(config.nnodes.saturating_sub(1)).unwrap_or(usize::MAX);
    let tell = async {
        while told.len() < others {
            match ear.recv().await {
                Some((_, Said::Arrived { hello, out, .. }))
                    if hello.purpose == config.purpose && !is_of_other_job(config, &hello) =>
                {
                    let _ = out.send(Arc::clone(&answer));
                    told.insert(hello.node);
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, tell).await;
}

fn beat() -> tokio::time::Interval {
    let mut tick = interval(BEAT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}
