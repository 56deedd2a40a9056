//! Node 0 before the launch: lets the nodes in, finds out who is missing, agrees.

use rustix::process::{Resource, getrlimit};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::compare::{self, Difference};
use super::excuse::tell_the_rest;
use super::hall::{Hall, Turn};
use super::hub;
use super::listen::Door;
use super::session::Session;
use super::silence::BEAT;
use super::types::{Agreement, Card, Config, Decide};
use super::wire::Frame;
use super::words::{cannot_listen, too_few_files};
use crate::lang::Text;
use crate::pace::Lines;
use crate::text;
use crate::verdict::{Id, Refusal};

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
    // Also where a muster is not required: the others would wait for one that never comes.
    if let Some(refusal) = too_few_files(config.nnodes, getrlimit(Resource::Nofile).current) {
        return Err(refusal);
    }
    let (door, ear) = Door::open(config.port, config.nnodes, config.secret.clone())
        .map_err(|error| cannot_listen(config.port, &error))?;
    let mut hall = Hall::new(config, own, door, ear);
    let end = Instant::now() + config.patience;
    let mut lines = Lines::begin(config.pace);
    let mut tick = beat();
    while !hall.is_complete() {
        let challenge = hall.next_challenge();
        let turn = tokio::select! {
            Some((id, said)) = hall.ear.recv() => hall.hear(id, said, say),
            _ = tick.tick() => {
                hall.beat();
                hall.end_knocks()
            }
            () = sleep_until(challenge) => hall.end_challenges(say),
            () = sleep_until(lines.due().min(end)) => {
                if Instant::now() >= end {
                    hall.say_strangers(say);
                    Err(hall.missing())
                } else {
                    say(hall.progress(lines.waited()));
                    lines.said();
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
                if refusal.id != Id::MusterMissing {
                    let mut told = hall.members.keys().copied().collect();
                    tell_the_rest(config, &mut hall.ear, &refusal, &mut told).await;
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
        let who = hall.config.unit;
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
                () = sleep_until(challenge) => hall.end_challenges(say),
            };
            match turn {
                Ok(Turn::Wait) => {}
                Ok(Turn::Left(node)) => {
                    hall.leave().await;
                    let Text { en, zh } = who.named(node);
                    return Ok(Settled::Lost(text!(
                        "{en} vanished during the agreement; gathering again",
                        "{zh} 在协商过程中消失；重新集结"
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

fn beat() -> tokio::time::Interval {
    let mut tick = interval(BEAT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}
