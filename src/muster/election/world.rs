//! The hosts and cables of a simulated job, the faults that a seed gives them, and what must hold at each moment.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use serde::{Deserialize, Serialize};

use super::{Election, Vote, voters};

/// Random numbers that a seed gives (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    pub(super) fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// Milliseconds.
pub(super) type Time = u64;

pub(super) const TICK: Time = 200;
pub(super) const HEARTBEAT: Time = 1_000;
pub(super) const SILENCE: Time = 5_000;
pub(super) const GRACE: Time = 2_000;
/// Until then a node that was cut off has ended its ranks: it heard a heartbeat as late as its leader heard the last of
/// it, and a heartbeat takes its time.
pub(super) const CUT_OFF: Time = SILENCE + GRACE + HEARTBEAT + 2 * SLOWEST;
/// Slowest way of a message.
pub(super) const SLOWEST: Time = 300;
/// A node that finds no leader for so long gives up.
pub(super) const GIVES_UP: Time = 120_000;
/// A leader without a majority looks for another one after so long.
pub(super) const ALONE: Time = 20_000;
/// The faults end then, and the rest of the time shows progress.
pub(super) const FAULTS: Time = 90_000;
/// Longest time until a node is back, or a cable is mended.
pub(super) const MENDED: Time = 25_000;
pub(super) const END: Time = 300_000;

/// What a job agreed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agreed {
    pub(super) attempt: u32,
    pub(super) leader: u32,
    pub(super) seats: Vec<u32>,
    pub(super) voters: Vec<u32>,
    /// How often its voters were changed.
    pub(super) revision: u32,
    /// Tells agreements apart: one attempt has another one whenever its voters change.
    pub(super) token: u64,
    /// The first token of the attempt.
    pub(super) run: u64,
}

#[derive(Debug, Clone)]
pub(super) enum Say {
    Heartbeat,
    Stop {
        token: u64,
    },
    Vote {
        token: u64,
        vote: Vote,
    },
    WhoLeads,
    Leads {
        leader: u32,
    },
    /// A node wants a seat. `ended`: the agreement whose ranks it has ended. `votes`: it has a vote on what follows that.
    /// `unsure_since`: when it lost its leader, which may still run ranks.
    Join {
        ended: Option<Box<Agreed>>,
        votes: bool,
        unsure_since: Option<Time>,
    },
    Offer(Box<Agreed>),
    Accept {
        token: u64,
    },
    Go(Box<Agreed>),
    /// A node waits for a seat of a running attempt. `votes`: it was there when that was agreed.
    Park {
        agreed: Box<Agreed>,
        votes: bool,
    },
    /// Others vote from now on; nothing else changes.
    Voters(Box<Agreed>),
}

/// What a launcher does.
#[derive(Debug, Clone)]
pub(super) enum Doing {
    /// Its ranks run, or it waits for a seat.
    Follows,
    /// Its ranks end until then. `leads`: afterwards it gathers.
    Ends { until: Time, leads: bool },
    /// Looks for the leader of the next attempt.
    Looks { since: Time },
    /// Waits in the muster of this leader.
    Joined { leader: u32 },
    /// Gathers. `accepted`: those that accepted the offer.
    Leads {
        since: Time,
        joined: BTreeSet<u32>,
        /// Those of them that have a part in the agreement before.
        voted: BTreeSet<u32>,
        offered: Option<Agreed>,
        accepted: BTreeSet<u32>,
        proposed: bool,
    },
}

impl Doing {
    pub(super) fn leads(since: Time) -> Doing {
        let (joined, voted, accepted) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Doing::Leads { since, joined, voted, offered: None, accepted, proposed: false }
    }
}

pub(super) struct Node {
    /// Its launchers so far.
    pub(super) instance: u32,
    pub(super) lives: bool,
    pub(super) frozen_since: Time,
    pub(super) frozen_until: Time,
    pub(super) agreed: Option<Agreed>,
    pub(super) election: Option<Election>,
    pub(super) ranks: bool,
    pub(super) doing: Doing,
    /// When each other node was last heard.
    pub(super) heard: BTreeMap<u32, Time>,
    /// Nodes that were here without a break until they were proven to be dead.
    pub(super) dead: BTreeSet<u32>,
    /// Nodes with which the contact broke since the agreement.
    pub(super) lost: BTreeSet<u32>,
    /// On the leader: those that follow it.
    pub(super) members: BTreeSet<u32>,
    /// On the leader: those of them that vote.
    pub(super) votes: BTreeSet<u32>,
    /// On the leader: it has proposed other voters.
    pub(super) renews: bool,
    /// Since when a silent or cut node may still run ranks.
    pub(super) unsure_since: Option<Time>,
    pub(super) asked: Time,
    /// It led without a majority, and does so no more until then.
    pub(super) rests_until: Time,
    pub(super) gave_up: bool,
}

impl Node {
    /// A launcher that knows nothing.
    fn new(instance: u32, doing: Doing) -> Node {
        Node {
            instance,
            lives: true,
            frozen_since: 0,
            frozen_until: 0,
            agreed: None,
            election: None,
            ranks: false,
            doing,
            heard: BTreeMap::new(),
            dead: BTreeSet::new(),
            lost: BTreeSet::new(),
            members: BTreeSet::new(),
            votes: BTreeSet::new(),
            renews: false,
            unsure_since: None,
            asked: 0,
            rests_until: 0,
            gave_up: false,
        }
    }

    /// Whether its host has just come out of a standstill after which others may have given it up.
    pub(super) fn was_frozen(&self, now: Time) -> bool {
        let is_long = self.frozen_until > self.frozen_since + SILENCE - 2 * HEARTBEAT - SLOWEST;
        is_long && self.frozen_until + TICK >= now
    }
}

pub(super) enum Event {
    Arrives {
        from: u32,
        to: u32,
        instances: (u32, u32),
        say: Say,
    },
    /// The connections of a dead process close. `followed`: its leader; to one that it had left it had said so before.
    Closes {
        dead: u32,
        at: u32,
        followed: Option<u32>,
        instances: (u32, u32),
    },
    Ticks(u32, u32),
    Fault,
    Revives(u32),
    /// This cut is mended.
    Mends(Vec<(u32, u32)>),
}

/// What protects the job; the controls leave one out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) waits_for_the_cut_off: bool,
    pub(super) needs_a_majority: bool,
}

pub(super) const ALL: Rules = Rules { waits_for_the_cut_off: true, needs_a_majority: true };

pub(super) struct World {
    pub(super) random: Random,
    pub(super) rules: Rules,
    pub(super) seats: usize,
    pub(super) now: Time,
    pub(super) events: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) waiting: BTreeMap<u64, Event>,
    pub(super) count: u64,
    pub(super) nodes: Vec<Node>,
    /// Links that are cut, one way.
    pub(super) cut: BTreeSet<(u32, u32)>,
    /// When the last message of a link arrives, since it keeps the order.
    pub(super) last: BTreeMap<(u32, u32), Time>,
    /// The agreements that began, by attempt.
    pub(super) began: BTreeMap<u32, Agreed>,
    pub(super) log: Vec<String>,
    pub(super) failure: Option<String>,
    /// A majority of the voters was dead at once.
    pub(super) was_lost: bool,
}

/// Whether nothing was heard of this node for too long.
pub(super) fn is_silent(heard: &BTreeMap<u32, Time>, node: u32, now: Time) -> bool {
    now > heard.get(&node).map_or(0, |at| at + SILENCE)
}

pub(super) fn index(node: u32) -> usize {
    usize::try_from(node).expect("small")
}

impl World {
    pub(super) fn new(seed: u64, rules: Rules) -> World {
        let mut random = Random(seed);
        let seats = 1 + usize::try_from(random.below(4)).expect("small");
        let all = (seats + 1 + usize::try_from(random.below(3)).expect("small")).max(3);
        let numbers: Vec<u32> = (0..u32::try_from(all).expect("small")).collect();
        let voting = voters(all);
        let first = Agreed {
            attempt: 0,
            leader: 0,
            seats: numbers[..seats].to_vec(),
            voters: numbers[..voting].to_vec(),
            revision: 0,
            token: 0,
            run: 0,
        };
        let nodes = numbers.iter().map(|node| Node {
            agreed: Some(first.clone()),
            election: Election::new(*node, &first.voters),
            ranks: index(*node) < seats,
            ..Node::new(0, Doing::Follows)
        });
        let mut world = World {
            seats,
            rules,
            now: 0,
            events: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            count: 0,
            nodes: nodes.collect(),
            cut: BTreeSet::new(),
            last: BTreeMap::new(),
            began: BTreeMap::from([(0, first)]),
            log: Vec::new(),
            failure: None,
            was_lost: false,
            random,
        };
        for node in numbers.clone() {
            world.nodes[index(node)].heard = numbers.iter().map(|one| (*one, 0)).collect();
        }
        world.nodes[0].members = numbers[1..].iter().copied().collect();
        world.nodes[0].votes = world.nodes[0].members.clone();
        for node in numbers {
            let offset = world.random.below(TICK);
            world.after(offset, Event::Ticks(node, 0));
        }
        world.after(3_000, Event::Fault);
        world
    }

    pub(super) fn after(&mut self, delay: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((self.now + delay, self.count)));
        self.waiting.insert(self.count, event);
    }

    pub(super) fn say(&mut self, from: u32, to: u32, say: Say) {
        if from == to || self.cut.contains(&(from, to)) {
            return;
        }
        let slow = if self.random.is_one_in(20) { SLOWEST } else { 20 };
        let delay = 1 + self.random.below(slow);
        let arrives = (self.now + delay).max(self.last.get(&(from, to)).map_or(0, |last| last + 1));
        self.last.insert((from, to), arrives);
        let instances = (self.nodes[index(from)].instance, self.nodes[index(to)].instance);
        self.after(arrives - self.now, Event::Arrives { from, to, instances, say });
    }

    pub(super) fn votes(&mut self, node: u32) {
        let Some(token) = self.nodes[index(node)].agreed.as_ref().map(|agreed| agreed.token) else {
            return;
        };
        let Some(election) = &mut self.nodes[index(node)].election else { return };
        for (to, vote) in election.outgoing() {
            self.say(node, to, Say::Vote { token, vote });
        }
    }

    pub(super) fn fault(&mut self) {
        let all = u64::try_from(self.nodes.len()).expect("small");
        let node = |random: &mut Random| u32::try_from(random.below(all)).expect("small");
        let one = node(&mut self.random);
        let heals = 500 + self.random.below(MENDED);
        match self.random.below(10) {
            // A whole node loses its power, or a process dies.
            0..=3 => {
                let is_process = self.random.is_one_in(2);
                self.crash(one, is_process);
                self.after(heals, Event::Revives(one));
            }
            4..=5 => {
                let other = node(&mut self.random);
                self.log(format!("cut {one} to {other}, one way"));
                self.cuts(vec![(one, other)], heals);
            }
            6..=7 => {
                let both: Vec<u32> = (0..u32::try_from(all).expect("small")).collect();
                let side: BTreeSet<u32> =
                    both.iter().copied().filter(|_| self.random.is_one_in(2)).collect();
                self.log(format!("halves: {side:?}"));
                let pairs = both.iter().flat_map(|from| both.iter().map(move |to| (*from, *to)));
                let is_between = |(from, to): &(u32, u32)| side.contains(from) != side.contains(to);
                self.cuts(pairs.filter(is_between).collect(), heals);
            }
            _ => {
                // Ranks of a frozen host do not run either, and go on with it.
                let until = self.now + heals;
                self.log(format!("{one} frozen until {until}"));
                let node = &mut self.nodes[index(one)];
                if node.frozen_until < self.now {
                    node.frozen_since = self.now;
                }
                node.frozen_until = until.max(node.frozen_until);
            }
        }
        if self.now < FAULTS {
            let pause = 500 + self.random.below(15_000);
            self.after(pause, Event::Fault);
        }
    }

    pub(super) fn cuts(&mut self, links: Vec<(u32, u32)>, heals: Time) {
        self.cut.extend(&links);
        self.after(heals, Event::Mends(links));
    }

    pub(super) fn crash(&mut self, one: u32, closes: bool) {
        if !self.nodes[index(one)].lives {
            return;
        }
        self.log(format!("{one} dies{}", if closes { "" } else { ", and nothing says so" }));
        let (instance, followed) = (self.nodes[index(one)].instance, self.leader_of(one));
        (self.nodes[index(one)].lives, self.nodes[index(one)].ranks) = (false, false);
        self.note_majority();
        if !closes {
            return;
        }
        for other in 0..u32::try_from(self.nodes.len()).expect("small") {
            if other != one
                && !self.cut.contains(&(one, other))
                && !self.cut.contains(&(other, one))
            {
                let delay = 1 + self.random.below(20);
                let instances = (instance, self.nodes[index(other)].instance);
                self.after(
                    delay + SLOWEST,
                    Event::Closes { dead: one, at: other, followed, instances },
                );
            }
        }
    }

    /// Notes whether so many voters of the last agreement are gone for good that nobody can decide what follows.
    pub(super) fn note_majority(&mut self) {
        let Some((_, last)) = self.began.last_key_value() else { return };
        let leader = &self.nodes[index(last.leader)];
        let last = leader.agreed.as_ref().filter(|one| one.run == last.run).unwrap_or(last);
        let votes = |vote: &&u32| {
            let one = &self.nodes[index(**vote)];
            let is_of_it = |agreed: &Agreed| agreed.attempt + 1 >= last.attempt;
            one.lives && one.election.is_some() && one.agreed.as_ref().is_some_and(is_of_it)
        };
        let has_majority = last.voters.iter().filter(votes).count() * 2 > last.voters.len();
        self.was_lost |= !has_majority;
    }

    /// The platform starts the launcher again, which knows nothing.
    pub(super) fn revive(&mut self, one: u32) {
        let now = self.now;
        let node = &mut self.nodes[index(one)];
        if node.lives || node.gave_up {
            return;
        }
        let instance = node.instance + 1;
        *node = Node::new(instance, Doing::Looks { since: now });
        self.log(format!("{one} comes back"));
        self.after(TICK, Event::Ticks(one, instance));
    }

    pub(super) fn log(&mut self, what: String) {
        self.log.push(format!("{:>7} {what}", self.now));
    }

    pub(super) fn run(mut self) -> Result<World, String> {
        while let Some(Reverse((at, number))) = self.events.pop() {
            if at > END {
                break;
            }
            let event = self.waiting.remove(&number).expect("each comes once");
            // A host that is frozen does everything later.
            let of = match &event {
                Event::Arrives { to, .. } => Some(*to),
                Event::Closes { at, .. } | Event::Ticks(at, _) => Some(*at),
                Event::Fault | Event::Revives(_) | Event::Mends(_) => None,
            };
            let frozen = of.map_or(0, |node| self.nodes[index(node)].frozen_until);
            if frozen > at {
                self.events.push(Reverse((frozen, number)));
                self.waiting.insert(number, event);
                continue;
            }
            self.now = at;
            match event {
                Event::Fault => self.fault(),
                Event::Revives(node) => self.revive(node),
                Event::Mends(links) => {
                    self.log("cables are back".to_owned());
                    self.cut.retain(|link| !links.contains(link));
                }
                Event::Ticks(node, instance) => {
                    if self.nodes[index(node)].lives && self.nodes[index(node)].instance == instance
                    {
                        self.tick(node);
                        self.after(TICK, Event::Ticks(node, instance));
                    }
                }
                Event::Closes { dead, at, followed, instances } => {
                    let of = (self.nodes[index(dead)].instance, self.nodes[index(at)].instance);
                    // Another launcher of the node may be there already: the old one is dead all the same.
                    if instances.1 == of.1 && self.nodes[index(at)].lives {
                        self.died(at, dead, followed == Some(at));
                    }
                }
                Event::Arrives { from, to, instances, say } => {
                    let of = (self.nodes[index(from)].instance, self.nodes[index(to)].instance);
                    if instances == of
                        && self.nodes[index(to)].lives
                        && !self.cut.contains(&(from, to))
                    {
                        self.hear(to, from, say);
                    }
                }
            }
            self.check().map_err(|why| format!("{why}\n{}", self.log.join("\n")))?;
        }
        Ok(self)
    }

    /// Never two attempts at once; each as it was decided.
    pub(super) fn check(&mut self) -> Result<(), String> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        // A host that was frozen for long learns at its next tick that it was given up.
        let running =
            |node: &&Node| node.lives && node.ranks && node.frozen_until + TICK <= self.now;
        let running = (0_u32..).zip(&self.nodes).filter(|(_, node)| running(node));
        let mut attempts: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (number, node) in running {
            attempts.entry(node.agreed.as_ref().map_or(0, |one| one.run)).or_default().push(number);
        }
        if attempts.len() > 1 {
            return Err(format!("two attempts at once, on these nodes: {:?}", attempts.values()));
        }
        Ok(())
    }

    /// What came of it in the end: the attempts, and whether the job runs.
    pub(super) fn ended(self) -> Result<Simulated, String> {
        let attempts = self.began.keys().next_back().copied().unwrap_or(0);
        let runs = self.began.get(&attempts).is_some_and(|agreed| {
            let is_running = |seat: &u32| {
                let one = &self.nodes[index(*seat)];
                one.lives
                    && one.ranks
                    && one.agreed.as_ref().is_some_and(|one| one.run == agreed.run)
            };
            agreed.seats.iter().all(is_running)
        });
        if !runs && !self.was_lost {
            return Err(format!("no progress although a majority lived:\n{}", self.log.join("\n")));
        }
        Ok(Simulated { attempts, runs })
    }
}

pub(super) struct Simulated {
    pub(super) attempts: u32,
    pub(super) runs: bool,
}

/// How a simulated job went.
pub(super) fn simulated(seed: u64, rules: Rules) -> Result<Simulated, String> {
    let world = World::new(seed, rules).run();
    world.and_then(World::ended).map_err(|why| format!("seed {seed}: {why}"))
}
