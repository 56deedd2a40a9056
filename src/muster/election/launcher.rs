//! The launchers of a simulated job. Their voters are the real ones; the rest is as simple here as the rules that it
//! keeps:
//!
//! - ranks of a node that hears nothing of its leader end within `SILENCE` and `GRACE`, and at once if its host stood
//!   still for so long that others may have given it up;
//! - a leader without contact to a majority of the voters ends its attempt, if they are not proven to be dead;
//! - nobody begins an attempt before the ranks of the last one have ended, or the time is over in which they do so, from
//!   the moment when the last of those who are there lost the leader;
//! - an attempt begins once it is decided. Only the leader of the last one needs no decision, if a majority of the voters
//!   died that had never left it;
//! - a leader has others vote in place of those that are gone, while a majority can still decide that;
//! - another launcher of a node has no vote until then.

use std::collections::BTreeSet;

use super::world::*;
use super::{Election, voters};

/// Who is there, the leader first and then those that had a seat: the order of seats and votes.
fn order(leader: u32, agreed: &Agreed, there: &BTreeSet<u32>) -> Vec<u32> {
    let mut order = vec![leader];
    order.extend(agreed.seats.iter().copied().filter(|seat| there.contains(seat)));
    let rest: Vec<u32> = there.iter().copied().filter(|one| !order.contains(one)).collect();
    order.extend(rest);
    order
}

impl World {
    pub(super) fn begin(&mut self, node: u32, agreed: Agreed, votes: bool) {
        let known = self.began.entry(agreed.attempt).or_insert_with(|| agreed.clone()).clone();
        let left_out =
            agreed.attempt.checked_sub(1).is_some_and(|one| !self.began.contains_key(&one));
        let distinct: BTreeSet<u32> = agreed.seats.iter().copied().collect();
        if (known.run, &known.seats) != (agreed.run, &agreed.seats) {
            self.failure =
                Some(format!("two agreements for one attempt: {known:?} and {agreed:?}"));
        } else if left_out {
            self.failure = Some(format!("an attempt was left out: {agreed:?}"));
        } else if distinct.len() != self.seats {
            self.failure = Some(format!("a seat is taken twice: {agreed:?}"));
        }
        self.note_majority();
        let Agreed { attempt, leader, voters, .. } = &agreed;
        self.log(format!(
            "{node} begins attempt {attempt} of {leader}, with the votes of {voters:?}"
        ));
        self.adopt(node, agreed, votes);
        let now = self.now;
        let one = &mut self.nodes[index(node)];
        one.ranks = one.agreed.as_ref().is_some_and(|agreed| agreed.seats.contains(&node));
        one.doing = Doing::Follows;
        one.unsure_since = None;
        let members: BTreeSet<u32> = one.members.clone();
        one.heard = members.into_iter().map(|member| (member, now)).collect();
        let leader = one.agreed.as_ref().map_or(0, |agreed| agreed.leader);
        one.heard.insert(leader, now);
    }

    /// Takes part in the agreement, without ranks.
    pub(super) fn adopt(&mut self, node: u32, agreed: Agreed, votes: bool) {
        let one = &mut self.nodes[index(node)];
        one.election = Election::new(node, &agreed.voters).filter(|_| votes);
        if agreed.leader != node {
            one.members.clear();
        }
        one.dead.clear();
        one.lost.clear();
        one.unsure_since = None;
        one.renews = false;
        one.votes = one.members.clone();
        one.agreed = Some(agreed);
    }

    pub(super) fn token(&self, node: u32) -> Option<u64> {
        self.nodes[index(node)].agreed.as_ref().map(|agreed| agreed.token)
    }

    /// The leader that a node follows, or is.
    pub(super) fn leader_of(&self, node: u32) -> Option<u32> {
        let one = &self.nodes[index(node)];
        match &one.doing {
            Doing::Leads { .. } => Some(node),
            Doing::Joined { leader } => Some(*leader),
            Doing::Follows => one.agreed.as_ref().map(|agreed| agreed.leader),
            Doing::Ends { .. } | Doing::Looks { .. } => None,
        }
    }

    pub(super) fn ends(&mut self, node: u32, leads: bool) {
        self.log(format!("{node} ends its ranks"));
        let until = self.now + self.random.below(GRACE);
        let one = &mut self.nodes[index(node)];
        one.doing = Doing::Ends { until, leads };
        if one.was_frozen(self.now) {
            // Whoever was given up long ago must not even save.
            one.ranks = false;
        }
    }

    pub(super) fn look(&mut self, node: u32) {
        let now = self.now;
        self.log(format!("{node} looks for a leader"));
        let one = &mut self.nodes[index(node)];
        one.doing = Doing::Looks { since: now };
        if let Some(election) = &mut one.election {
            election.look();
        }
    }

    pub(super) fn join(&mut self, node: u32, leader: u32) {
        self.log(format!("{node} joins {leader}"));
        let (now, join) = (self.now, self.joining(node));
        let one = &mut self.nodes[index(node)];
        one.doing = Doing::Joined { leader };
        one.heard.insert(leader, now);
        one.asked = now;
        if let Some(election) = &mut one.election {
            election.follow(leader);
        }
        self.say(node, leader, join);
    }

    pub(super) fn joining(&self, node: u32) -> Say {
        let Node { unsure_since, election, agreed, .. } = &self.nodes[index(node)];
        let (ended, votes) = (agreed.clone().map(Box::new), election.is_some());
        Say::Join { ended, votes, unsure_since: *unsure_since }
    }

    /// A node that gives up says so by its end.
    pub(super) fn gives_up(&mut self, node: u32) {
        self.log(format!("{node} gives up"));
        self.crash(node, true);
        self.nodes[index(node)].gave_up = true;
    }

    /// On `at`: the process of a node has ended. `followed`: until then it followed this one.
    pub(super) fn died(&mut self, at: u32, dead: u32, followed: bool) {
        let one = &mut self.nodes[index(at)];
        // Nobody knows what others did while this one was frozen.
        let is_unbroken = followed && !one.was_frozen(self.now) && !one.lost.contains(&dead);
        match &mut one.doing {
            Doing::Follows => {
                let Some(agreed) = one.agreed.clone() else { return };
                if agreed.leader == dead {
                    // Only its own leader is proven to be dead, and others may be anywhere.
                    one.dead.insert(dead);
                    self.ends(at, false);
                } else if agreed.leader == at && one.members.contains(&dead) {
                    if is_unbroken {
                        one.dead.insert(dead);
                    }
                    self.lose(at, dead);
                }
            }
            Doing::Leads { joined, voted, offered, accepted, .. } => {
                voted.remove(&dead);
                if joined.remove(&dead) {
                    if is_unbroken {
                        one.dead.insert(dead);
                    }
                    accepted.clear();
                    *offered = None;
                }
            }
            Doing::Joined { leader } if *leader == dead => self.look(at),
            _ => {}
        }
    }

    /// The leader has lost a member: a seat is free, or too few voters are left.
    pub(super) fn lose(&mut self, leader: u32, member: u32) {
        let now = self.now;
        let one = &mut self.nodes[index(leader)];
        one.members.remove(&member);
        one.votes.remove(&member);
        let Some(agreed) = one.agreed.clone() else { return };
        let is_dead = one.dead.contains(&member);
        if !is_dead {
            one.lost.insert(member);
        }
        let is_vote = |node: &&u32| agreed.voters.contains(node);
        let unknown = one.lost.iter().filter(is_vote).count();
        let is_outvoted = self.rules.needs_a_majority && unknown * 2 > agreed.voters.len();
        if !agreed.seats.contains(&member) && !is_outvoted {
            return;
        }
        if !is_dead {
            one.unsure_since = Some(now);
        }
        let members = one.members.clone();
        for node in members {
            self.say(leader, node, Say::Stop { token: agreed.token });
        }
        self.ends(leader, true);
    }

    pub(super) fn tick(&mut self, node: u32) {
        let now = self.now;
        let is_beat = (now / TICK).is_multiple_of(HEARTBEAT / TICK);
        if self.nodes[index(node)].was_frozen(now) {
            // Nobody knows what the others did meanwhile.
            self.nodes[index(node)].dead.clear();
            if matches!(self.nodes[index(node)].doing, Doing::Leads { .. } | Doing::Joined { .. }) {
                self.look(node);
            }
        }
        let doing = self.nodes[index(node)].doing.clone();
        match doing {
            Doing::Follows => {
                let Some(agreed) = self.nodes[index(node)].agreed.clone() else { return };
                let token = agreed.token;
                if self.nodes[index(node)].was_frozen(now) {
                    // What it reads now was said before.
                    let one = &mut self.nodes[index(node)];
                    one.unsure_since = Some(now);
                    one.lost.extend(agreed.voters.iter().copied());
                    for member in one.members.clone() {
                        self.say(node, member, Say::Stop { token });
                    }
                    return self.ends(node, agreed.leader == node);
                }
                if agreed.leader == node {
                    let one = &self.nodes[index(node)];
                    let (members, silent): (Vec<u32>, Vec<u32>) = one
                        .members
                        .iter()
                        .partition(|member| !is_silent(&one.heard, **member, now));
                    if is_beat {
                        members.iter().for_each(|to| self.say(node, *to, Say::Heartbeat));
                    }
                    silent.iter().for_each(|member| self.lose(node, *member));
                    if matches!(self.nodes[index(node)].doing, Doing::Follows) {
                        self.renews_voters(node, agreed);
                    }
                } else if is_silent(&self.nodes[index(node)].heard, agreed.leader, now) {
                    let one = &mut self.nodes[index(node)];
                    one.unsure_since = Some(now);
                    one.lost.insert(agreed.leader);
                    self.ends(node, false);
                } else if is_beat {
                    self.say(node, agreed.leader, Say::Heartbeat);
                }
            }
            Doing::Ends { until, leads } if until <= now => {
                self.nodes[index(node)].ranks = false;
                if leads {
                    let one = &mut self.nodes[index(node)];
                    one.doing = Doing::leads(now);
                    if let Some(election) = &mut one.election {
                        election.stand();
                    }
                } else {
                    self.look(node);
                }
            }
            Doing::Ends { .. } => {}
            Doing::Joined { leader } => {
                let heard = self.nodes[index(node)].heard.get(&leader).copied().unwrap_or(0);
                if now > heard + SILENCE {
                    self.look(node);
                } else if is_beat {
                    let join = self.joining(node);
                    self.say(node, leader, join);
                }
            }
            Doing::Looks { since } => {
                if now > since + GIVES_UP {
                    return self.gives_up(node);
                }
                self.looks(node);
            }
            Doing::Leads { since, .. } => {
                if now > since + GIVES_UP {
                    return self.gives_up(node);
                }
                self.leads(node, is_beat);
            }
        }
        self.votes(node);
    }

    /// The leader of a running attempt has others vote in place of those that are gone, while a majority can still agree.
    pub(super) fn renews_voters(&mut self, node: u32, agreed: Agreed) {
        if let Some(next) = self.decided(node) {
            if next.leader != node || next.run != agreed.run {
                // Others went on without this node.
                return self.ends(node, true);
            }
            return self.tells_voters(node, next);
        }
        let token = self.random.next();
        let one = &mut self.nodes[index(node)];
        // A launcher that came while the attempt runs has no vote, although it has the number of one.
        let is_gone = |vote: &&u32| **vote != node && !one.votes.contains(vote);
        let is_whole = agreed.voters.iter().filter(is_gone).count() == 0;
        if one.renews || (is_whole && !agreed.voters.is_empty()) {
            return;
        }
        let order = order(node, &agreed, &one.members);
        let voters = order[..voters(order.len())].to_vec();
        if voters.is_empty() {
            return;
        }
        let next = Agreed { voters, token, revision: agreed.revision + 1, ..agreed };
        let Some(election) = &mut one.election else {
            // Where nobody else voted, the leader may give the others their votes.
            return self.tells_voters(node, next);
        };
        one.renews = true;
        election.stand();
        election.propose(serde_json::to_string(&next).expect("plain"));
    }

    pub(super) fn tells_voters(&mut self, node: u32, next: Agreed) {
        self.log(format!("{node} has the votes of {:?} from now on", next.voters));
        for member in self.nodes[index(node)].members.clone() {
            self.say(node, member, Say::Voters(Box::new(next.clone())));
        }
        self.adopt(node, next, true);
    }

    /// The decision of the agreement before, where this node had missed it.
    pub(super) fn decided(&mut self, node: u32) -> Option<Agreed> {
        let decision = self.nodes[index(node)].election.as_ref()?.decision()?;
        Some(serde_json::from_str(&decision).expect("as it was proposed"))
    }

    pub(super) fn looks(&mut self, node: u32) {
        if let Some(next) = self.decided(node) {
            // Its leader was lost before it could tell; who heard it may run ranks.
            self.log(format!(
                "{node} takes over that attempt {} was agreed, with the votes of {:?}",
                next.attempt, next.voters
            ));
            let (now, votes) = (self.now, next.voters.contains(&node));
            self.began.entry(next.attempt).or_insert_with(|| next.clone());
            let one = &self.nodes[index(node)];
            let is_same = one.agreed.as_ref().is_some_and(|agreed| agreed.run == next.run);
            let unsure_since = one.unsure_since.filter(|_| is_same).unwrap_or(now);
            self.adopt(node, next, votes);
            self.nodes[index(node)].unsure_since = Some(unsure_since);
            return self.look(node);
        }
        let now = self.now;
        let one = &mut self.nodes[index(node)];
        let elected = one.election.as_mut().and_then(|election| {
            election.tick();
            election.leader()
        });
        match elected {
            Some(leader) if leader == node && now >= one.rests_until => {
                if let Some(election) = &mut one.election {
                    election.stand();
                }
                one.doing = Doing::leads(now);
                self.log(format!("{node} leads"));
            }
            Some(leader) if leader != node => self.join(node, leader),
            _ if now >= one.asked + HEARTBEAT => {
                one.asked = now;
                let all = u64::try_from(self.nodes.len()).expect("small");
                let other = u32::try_from(self.random.below(all)).expect("small");
                self.say(node, other, Say::WhoLeads);
            }
            _ => {}
        }
    }

    pub(super) fn leads(&mut self, node: u32, is_beat: bool) {
        let now = self.now;
        let rules = self.rules;
        let Some(agreed) = self.nodes[index(node)].agreed.clone() else { return };
        if let Some(next) = self.decided(node) {
            let Doing::Leads { offered, .. } = self.nodes[index(node)].doing.clone() else {
                return;
            };
            if offered.as_ref() == Some(&next) {
                return self.go(node, next);
            }
            self.log(format!("{node} sees that another one leads"));
            return self.look(node);
        }
        let elected = self.nodes[index(node)].election.as_ref().and_then(Election::leader);
        if let Some(other) = elected.filter(|leader| *leader != node) {
            self.log(format!("{node} sees that {other} was elected"));
            return self.join(node, other);
        }
        let seats = self.seats;
        let token = self.random.next();
        let one = &mut self.nodes[index(node)];
        let Doing::Leads { since: since_when, joined, voted, offered, accepted, proposed } =
            &mut one.doing
        else {
            return;
        };
        let silent: Vec<u32> =
            joined.iter().copied().filter(|member| is_silent(&one.heard, *member, now)).collect();
        for member in silent {
            joined.remove(&member);
            voted.remove(&member);
            one.lost.insert(member);
            *offered = None;
            accepted.clear();
        }
        let heard: Vec<u32> = joined.iter().copied().collect();
        // Who had a seat, and is neither here nor dead, may still run ranks.
        let is_unsure =
            |seat: &&u32| **seat != node && !joined.contains(seat) && !one.dead.contains(seat);
        let unsure = agreed.seats.iter().filter(is_unsure).count() > 0;
        let since = *one.unsure_since.get_or_insert(now);
        let is_over = !unsure || now > since + CUT_OFF || !rules.waits_for_the_cut_off;
        if !unsure && one.lost.is_empty() {
            one.unsure_since = None;
        }
        // The votes that count are those of nodes that are here and said since when they are without the leader. Where a
        // majority is dead that never left this leader, there is nobody who could agree on something else.
        let dead = agreed.voters.iter().filter(|vote| one.dead.contains(vote)).count();
        let needs_no_vote = !rules.needs_a_majority
            || agreed.voters.is_empty()
            || (agreed.leader == node && dead * 2 > agreed.voters.len());
        let here =
            agreed.voters.iter().filter(|vote| **vote == node || voted.contains(vote)).count();
        let is_majority = needs_no_vote || here * 2 > agreed.voters.len();
        if !is_majority && now > *since_when + ALONE {
            // Those that are missing may have a leader that knows more, and those that are here may be missing there.
            one.rests_until = now + ALONE;
            return self.look(node);
        }
        let is_enough = joined.len() + 1 >= seats && is_over && is_majority;
        if is_enough && offered.is_none() {
            let order = order(node, &agreed, joined);
            let voting = voters(order.len());
            let next = Agreed {
                attempt: agreed.attempt + 1,
                leader: node,
                seats: order[..seats].to_vec(),
                voters: order[..voting].to_vec(),
                revision: 0,
                token,
                run: token,
            };
            *offered = Some(next);
            *proposed = false;
            accepted.clear();
        }
        let is_accepted = offered.as_ref().is_some_and(|next| {
            next.seats.iter().all(|seat| *seat == node || accepted.contains(seat))
        });
        let proposal = offered.clone().filter(|_| is_accepted && is_enough);
        // Again and again: a seat that looked for another leader when it was asked did not hear that.
        let open = offered.clone();
        let seats = open.iter().flat_map(|next| &next.seats);
        let asked: Vec<u32> = seats.copied().filter(|seat| !accepted.contains(seat)).collect();
        let is_first =
            proposal.is_some() && !std::mem::replace(proposed, *proposed || proposal.is_some());
        if let Some(election) = &mut one.election {
            if is_first {
                election.stand();
            }
            election.tick();
        }
        if is_beat {
            for to in heard {
                self.say(node, to, Say::Heartbeat);
            }
        }
        for seat in asked {
            if let Some(next) = &open {
                self.say(node, seat, Say::Offer(Box::new(next.clone())));
            }
        }
        let Some(next) = proposal else { return };
        if needs_no_vote {
            return self.go(node, next);
        }
        if is_first && let Some(election) = &mut self.nodes[index(node)].election {
            election.propose(serde_json::to_string(&next).expect("plain"));
        }
    }

    pub(super) fn go(&mut self, node: u32, next: Agreed) {
        let Doing::Leads { joined, .. } = self.nodes[index(node)].doing.clone() else { return };
        self.nodes[index(node)].members = joined.clone();
        self.begin(node, next.clone(), true);
        for member in joined {
            let agreed = Box::new(next.clone());
            let say = match next.seats.contains(&member) {
                true => Say::Go(agreed),
                false => Say::Park { agreed, votes: true },
            };
            self.say(node, member, say);
        }
    }

    pub(super) fn hear(&mut self, node: u32, from: u32, say: Say) {
        let now = self.now;
        let token = self.token(node);
        // Votes have connections of their own.
        // A new connection needs both ways.
        let connects = matches!(say, Say::Join { .. } | Say::WhoLeads);
        if connects && self.cut.contains(&(node, from)) {
            return;
        }
        let is_member = matches!(say, Say::Heartbeat | Say::Stop { .. } | Say::Accept { .. });
        let of_leader =
            matches!(say, Say::Offer(_) | Say::Go(_) | Say::Park { .. } | Say::Voters(_));
        if is_member || of_leader {
            self.nodes[index(node)].heard.insert(from, now);
        }
        let leader = self.leader_of(node);
        match say {
            Say::Heartbeat => {}
            Say::Stop { token: of } if token == Some(of) && leader == Some(from) => {
                if matches!(self.nodes[index(node)].doing, Doing::Follows) {
                    // Somebody may be lost who still runs ranks.
                    self.nodes[index(node)].unsure_since = Some(now);
                    self.ends(node, false);
                }
            }
            Say::Stop { .. } => {}
            Say::Vote { token: of, vote } => {
                if token == Some(of)
                    && let Some(election) = &mut self.nodes[index(node)].election
                {
                    election.hear(from, vote);
                    self.votes(node);
                }
            }
            Say::WhoLeads => {
                // Who only hopes to have found it spreads no rumour.
                let hopes = matches!(self.nodes[index(node)].doing, Doing::Joined { .. });
                if let Some(leader) = leader.filter(|_| !hopes) {
                    self.say(node, from, Say::Leads { leader });
                }
            }
            Say::Leads { leader } => {
                if matches!(self.nodes[index(node)].doing, Doing::Looks { .. }) && leader != node {
                    self.join(node, leader);
                }
            }
            Say::Join { ended, votes, unsure_since } => {
                self.joins(node, from, ended.as_deref(), votes, unsure_since);
            }
            Say::Offer(next) => {
                if leader == Some(from)
                    && matches!(self.nodes[index(node)].doing, Doing::Joined { .. })
                {
                    self.say(node, from, Say::Accept { token: next.token });
                }
            }
            Say::Accept { token: of } => {
                if let Doing::Leads { offered: Some(next), accepted, .. } =
                    &mut self.nodes[index(node)].doing
                    && next.token == of
                {
                    accepted.insert(from);
                }
            }
            Say::Go(next) => {
                if leader == Some(from)
                    && matches!(self.nodes[index(node)].doing, Doing::Joined { .. })
                {
                    self.begin(node, *next, true);
                }
            }
            Say::Voters(next) => {
                let is_newer =
                    |one: &Agreed| (one.attempt, one.revision) < (next.attempt, next.revision);
                let agreed = &self.nodes[index(node)].agreed;
                if leader == Some(from) && agreed.as_ref().is_some_and(is_newer) {
                    let (votes, unsure_since) =
                        (next.voters.contains(&node), self.nodes[index(node)].unsure_since);
                    self.adopt(node, *next, votes);
                    let one = &mut self.nodes[index(node)];
                    one.unsure_since = unsure_since;
                    if let Some(election) = &mut one.election {
                        election.follow(from);
                    }
                }
            }
            Say::Park { agreed, votes } => {
                if leader == Some(from)
                    && matches!(self.nodes[index(node)].doing, Doing::Joined { .. })
                {
                    self.adopt(node, *agreed, votes);
                    self.nodes[index(node)].doing = Doing::Follows;
                }
            }
        }
    }

    pub(super) fn joins(
        &mut self,
        node: u32,
        from: u32,
        ended: Option<&Agreed>,
        votes: bool,
        unsure_since: Option<Time>,
    ) {
        let own = self.nodes[index(node)].agreed.clone();
        let one = &mut self.nodes[index(node)];
        match &mut one.doing {
            Doing::Leads { joined, voted, .. } => {
                let age = |agreed: &Agreed| (agreed.attempt, agreed.revision);
                if ended.map(age) > own.as_ref().map(age) {
                    // The job went on without this node, which was there before: it votes if it is named.
                    let Some(newer) = ended.cloned() else { return };
                    let (now, votes) = (self.now, newer.voters.contains(&node) && own.is_some());
                    self.adopt(node, newer, votes);
                    self.nodes[index(node)].unsure_since = Some(now);
                    return self.look(node);
                }
                joined.insert(from);
                one.heard.insert(from, self.now);
                // The leader of before goes on as long as a majority is with it: until the last of them lost it.
                one.unsure_since = one.unsure_since.max(unsure_since);
                let (Some(ended), Some(own)) = (ended, own) else { return };
                if ended.token == own.token {
                    // Another launcher of the node has no vote.
                    if votes {
                        voted.insert(from);
                    }
                } else if own.voters.contains(&from) {
                    // It has not heard yet that it votes.
                    self.say(node, from, Say::Voters(Box::new(own)));
                }
            }
            // A launcher of before, whose seat is free then.
            Doing::Follows if one.agreed.as_ref().is_some_and(|agreed| agreed.leader == node) => {
                let agreed = one.agreed.clone().expect("as was seen");
                if agreed.seats.contains(&from) {
                    if ended.map(|one| one.token) != own.map(|one| one.token)
                        || !one.members.contains(&from)
                    {
                        return;
                    }
                    one.dead.insert(from);
                    return self.lose(node, from);
                }
                one.members.insert(from);
                one.heard.insert(from, self.now);
                self.say(node, from, Say::Park { agreed: Box::new(agreed), votes: false });
            }
            _ => {}
        }
    }
}
