//! Any other node before the launch: finds node 0, shows its card, gets the plan.
//!
//! A node leaves the muster on proof alone: a store that answers as torch's does,
//! that carries no job's key, and that outlives whatever an attempt leaves behind.
//! With a secret nothing that is not proven by it changes what this node does.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout, timeout_at};

use super::channel::Channel;
use super::handshake::{self, Stranger};
use super::holder;
use super::key::JobKey;
use super::listen::connect;
use super::obstacle::{Obstacle, Seen, Whose, shut_out, taken};
use super::offer::Offer;
use super::second;
use super::silence::BEAT;
use super::store::{self, Found};
use super::survey::Visit;
use super::types::{BEFORE_THE_START, Card, Config, Purpose, Without, millis, now};
use super::wire::Frame;
use crate::host::Host;
use crate::lang::Text;
use crate::lang::cause;
use crate::names::{self, LastResort};
use crate::pace::Lines;
use crate::text;
use crate::verdict::{Id, Refusal, Verdict};

const CONNECT: Duration = Duration::from_secs(5);
const RESOLVE: Duration = Duration::from_secs(8);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this silence a node asks whether it talks to a store.
const ANSWER: Duration = Duration::from_secs(2);
/// Another job must hold the port for so long: it may be about to end.
const FOREIGN: Duration = Duration::from_secs(3);

/// How joining ended.
#[derive(Debug)]
pub enum Joined {
    Offer(Box<Offer>),
    /// Node 0 has the links measured ([`Purpose::Check`]).
    Visit(Box<Visit>),
    /// Node 0 runs without a muster: this node goes on by itself.
    Alone(Text),
}

/// Joins the muster of node 0.
///
/// # Errors
/// At the deadline, with what stood in the way; at once when node 0 refuses, or its
/// port belongs to another job.
pub async fn join(
    host: &Host,
    config: &Config,
    card: &Card,
    last_resort: Option<&LastResort>,
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Joined, Refusal> {
    let seen = Seen::nothing();
    let mut lines = Lines::begin(config.pace);
    let search = Search {
        config,
        card,
        seen: &seen,
        end: Instant::now() + config.patience,
        unmarked: None,
        foreign: None,
        program: None,
    };
    let search = search.run(host, last_resort);
    tokio::pin!(search);
    loop {
        tokio::select! {
            found = &mut search => return found,
            () = sleep_until(lines.due()) => {
                say(seen.progress(config, lines.waited()));
                lines.said();
            }
        }
    }
}

/// Over how long the nodes of a job that are started in one instant spread their
/// first dial: about what each costs node 0, so that its queue does not overflow.
fn herd(config: &Config) -> Duration {
    let each = if config.secret.is_some() { 200 } else { 100 };
    Duration::from_micros(u64::from(config.nnodes) * each)
}

/// Somewhere between nothing and `most`.
fn jitter(most: Duration) -> Duration {
    let mut random = [0u8; 4];
    // Without randomness all wait alike, which is only slower.
    let _ = crate::random::fill(&mut random);
    most.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
}

/// What one dial came to.
enum Step {
    Joined(Joined),
    /// Nobody is there yet.
    Retry,
    /// Somebody is there, and no node 0 that lets us in.
    Held(Option<Refusal>),
}

struct Search<'a> {
    config: &'a Config,
    card: &'a Card,
    seen: &'a Seen,
    end: Instant,
    /// Since when a store that nobody marked has been there.
    unmarked: Option<Instant>,
    /// Since when another job has been there.
    foreign: Option<Instant>,
    /// The other program that was there last.
    program: Option<(SocketAddr, Text)>,
}

impl Search<'_> {
    async fn run(
        mut self,
        host: &Host,
        last_resort: Option<&LastResort>,
    ) -> Result<Joined, Refusal> {
        let config = self.config;
        let mut pause = FIRST_PAUSE;
        sleep(jitter(herd(config))).await;
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            match names::resolve(host, &config.master_addr, left.min(RESOLVE), last_resort).await {
                // A look-up that our own deadline cut short says nothing.
                Err(_) if Instant::now() >= self.end => {}
                Err(error) => self.seen.note(Obstacle::Name(error.text())),
                Ok(addresses) => {
                    for address in addresses {
                        match self.once(SocketAddr::new(address, config.port)).await? {
                            Step::Joined(joined) => return Ok(joined),
                            Step::Retry => {}
                            Step::Held(Some(refusal)) if refusal.verdict == Verdict::PortInUse => {
                                return Err(refusal);
                            }
                            Step::Held(end) => {
                                let host = &self.card.hostname;
                                let told = second::refusal(config, host, address).await;
                                if let Some(refusal) = told.or(end) {
                                    return Err(refusal);
                                }
                            }
                        }
                    }
                }
            }
            if Instant::now() >= self.end {
                return Err(self.seen.refuse(config));
            }
            let next = Instant::now() + pause / 2 + jitter(pause);
            sleep_until(next.min(self.end)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn once(&mut self, peer: SocketAddr) -> Result<Step, Refusal> {
        let stream = match connect(peer, CONNECT).await {
            Ok(stream) => stream,
            Err(error) => {
                let obstacle = Obstacle::Connection(peer, error.kind(), cause(&error));
                return Ok(self.retry(obstacle));
            }
        };
        let local = stream
            .local_addr()
            .ok()
            .map(|local| SocketAddr::new(local.ip().to_canonical(), local.port()));
        match self.dial(peer, stream).await {
            Ok(channel) => {
                self.unmarked = None;
                self.meet(peer, local, channel).await
            }
            Err(step) => Ok(step),
        }
    }

    /// Nobody whom we know holds the port.
    fn retry(&mut self, obstacle: Obstacle) -> Step {
        (self.unmarked, self.foreign) = (None, None);
        self.seen.note(obstacle);
        Step::Retry
    }

    /// The channel to node 0, or who was there in its place.
    async fn dial(&mut self, peer: SocketAddr, stream: TcpStream) -> Result<Channel, Step> {
        let secret = self.config.secret.as_ref();
        let dial = handshake::dial(stream, secret);
        tokio::pin!(dial);
        // A store closes the connection or keeps silent, depending on its version.
        let dialed = match timeout(ANSWER, &mut dial).await {
            Ok(Err(Stranger::Unknown(cause))) => match self.look_around(peer).await {
                Some(step) => return Err(step),
                None => Err(Stranger::Unknown(cause)),
            },
            Ok(dialed) => dialed,
            Err(_) => {
                self.note_other(peer, Obstacle::Mute(peer));
                if let Some(step) = self.look_around(peer).await {
                    return Err(step);
                }
                // A node 0 that has thousands of handshakes to do answers late, and one
                // whose port somebody else holds is on the second.
                loop {
                    let pause = (Instant::now() + LONGEST_PAUSE).min(self.end);
                    if let Ok(late) = timeout_at(pause, &mut dial).await {
                        break late;
                    }
                    let told = second::refusal(self.config, &self.card.hostname, peer.ip()).await;
                    if told.is_some() {
                        return Err(Step::Held(told));
                    }
                    if Instant::now() >= self.end {
                        break Err(Stranger::Silent);
                    }
                }
            }
        };
        let stranger = match dialed {
            Ok(channel) => return Ok(channel),
            Err(stranger) => stranger,
        };
        self.unmarked = None;
        self.foreign = None;
        Err(match stranger {
            Stranger::Silent => {
                self.note_other(peer, Obstacle::Mute(peer));
                Step::Held(None)
            }
            Stranger::Unknown(cause) => {
                self.note_other(peer, Obstacle::Odd(peer, cause));
                Step::Held(None)
            }
            // A word that nothing proves: with a secret, and of a version, it is waited out.
            stranger if secret.is_some() || stranger == Stranger::Version => {
                self.seen.note(Obstacle::Stranger(peer, stranger));
                Step::Held(None)
            }
            stranger => Step::Held(Some(shut_out(peer, &stranger))),
        })
    }

    /// Who is there in the place of node 0: torch's store, or another program. Some: the
    /// store, and this is what it means.
    async fn look_around(&mut self, peer: SocketAddr) -> Option<Step> {
        let seen = self.seen;
        let program = async {
            let name = holder::name(peer).await;
            if let Some(name) = &name {
                seen.note(Obstacle::Program(peer, name.clone()));
            }
            name
        };
        let store = store::ask(peer, self.config.node);
        tokio::pin!(program, store);
        // A store is the answer at once, and whatever else is there says nothing to one of the two.
        let found = tokio::select! {
            found = &mut store => found,
            name = &mut program => {
                self.program = name.map(|name| (peer, name));
                return self.judge(peer, store.await);
            }
        };
        if matches!(found, Found::Silent | Found::No) {
            self.program = program.await.map(|name| (peer, name));
        }
        self.judge(peer, found)
    }

    /// What a program is that says so, and else how it behaves.
    fn note_other(&self, peer: SocketAddr, otherwise: Obstacle) {
        let named = self.program.as_ref().filter(|(at, _)| *at == peer);
        self.seen.note(match named {
            Some((_, name)) => Obstacle::Program(peer, name.clone()),
            None => otherwise,
        });
    }

    /// What a store means that was found; None: there is none.
    fn judge(&mut self, peer: SocketAddr, found: Found) -> Option<Step> {
        let config = self.config;
        let whose = match found {
            Found::Marked(key) if JobKey::of(config).is_of_other_job(&key) => Whose::Other(key),
            Found::Marked(_) => Whose::Ours,
            Found::Unmarked { taken: true } => Whose::Full,
            Found::Unmarked { taken: false } => Whose::Nobodys,
            Found::Silent | Found::No => return None,
        };
        self.seen.note(Obstacle::Store(peer, whose.clone()));
        let node = config.node;
        let by = match &whose {
            Whose::Other(key) => Some(key.words()),
            Whose::Full => Some(text!(
                "a torchrun that has a node {node} already",
                "一个已有节点 {node} 的 torchrun"
            )),
            Whose::Ours | Whose::Nobodys => None,
        };
        let end = by.and_then(|by| self.foreign_since(peer, &by));
        if whose != Whose::Nobodys {
            self.unmarked = None;
            return Some(Step::Held(end));
        }
        let since = *self.unmarked.get_or_insert_with(Instant::now);
        // With a secret an unproven word must not end the muster.
        let may_leave = config.without == Without::Follow && config.secret.is_none();
        if may_leave && since.elapsed() >= config.proof() {
            return Some(Step::Joined(Joined::Alone(text!(
                "node 0 ({peer}) runs torchrun without ranklaunch or without a muster, so this node goes on without one",
                "节点 0（{peer}）直接运行 torchrun 或未启用集结，因此本节点跳过集结继续运行"
            ))));
        }
        Some(Step::Held(None))
    }

    /// Another job is there; the refusal once it has been for long enough.
    fn foreign_since(&mut self, peer: SocketAddr, by: &Text) -> Option<Refusal> {
        let since = *self.foreign.get_or_insert_with(Instant::now);
        let proven = self.config.secret.is_none() && since.elapsed() >= FOREIGN;
        proven.then(|| taken(self.config, peer, by))
    }

    /// Says who we are and waits for what node 0 makes of it.
    async fn meet(
        &mut self,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        mut channel: Channel,
    ) -> Result<Step, Refusal> {
        let (config, card) = (self.config, self.card);
        if config.purpose == Purpose::Check && channel.version() < 2 {
            return Ok(Step::Joined(Joined::Alone(text!(
                "node 0 runs an older ranklaunch that does not measure links, so this node is checked alone",
                "节点 0 的 ranklaunch 版本较旧，不支持链路测量，因此仅检查本节点"
            ))));
        }
        let (asked, asked_wall) = (now(), millis(std::time::SystemTime::now()));
        if let Err(error) = channel.send(&second::hello(config, &card.hostname)).await {
            return Ok(self.retry(Obstacle::Odd(peer, error.text())));
        }
        let mut offset = 0;
        let mut is_in = false;
        let mut tick = interval(BEAT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let lost = loop {
            let sent = tokio::select! {
                frame = channel.receive() => {
                    heard = Instant::now();
                    match frame {
                        Ok(Frame::Welcome { at, wall }) => {
                            is_in = true;
                            self.foreign = None;
                            self.seen.note(Obstacle::Gathering(peer));
                            let way = now().saturating_sub(asked);
                            offset = behind(at, asked, way);
                            let wall = behind(wall.unwrap_or(at), asked_wall, way);
                            let card = Card { clock_offset: wall, ..card.clone() };
                            channel.send(&Frame::Card(card)).await
                        }
                        Ok(Frame::Agreed { agreement, differences }) => {
                            let config = config.clone();
                            let offer = Offer { agreement, differences, local, config, channel, offset };
                            return Ok(Step::Joined(Joined::Offer(Box::new(offer))));
                        }
                        Ok(Frame::Measure { token }) => {
                            let hostname = card.hostname.clone();
                            let config = config.clone();
                            let visit = Visit { config, hostname, channel, token };
                            return Ok(Step::Joined(Joined::Visit(Box::new(visit))));
                        }
                        Ok(Frame::Alone(text)) => return Ok(Step::Joined(Joined::Alone(text))),
                        // A node 0 that is about to end may hold the port.
                        Ok(Frame::Refuse(refusal)) if refusal.id == Id::MusterOtherJob => {
                            let since = *self.foreign.get_or_insert_with(Instant::now);
                            let end = (since.elapsed() >= FOREIGN)
                                .then(|| taken(config, peer, &refusal.text));
                            self.seen.note(Obstacle::Refused(refusal));
                            return Ok(Step::Held(end));
                        }
                        // It examines the nodes, and may launch the job afterwards.
                        Ok(Frame::Refuse(refusal)) if refusal.id == Id::MusterJob => {
                            self.seen.note(Obstacle::Refused(refusal));
                            return Ok(Step::Held(None));
                        }
                        Ok(Frame::Refuse(refusal)) => return Ok(Step::Held(Some(refusal))),
                        Ok(Frame::Ping) => channel.send(&Frame::Pong).await,
                        Ok(_) => Ok(()),
                        Err(error) => Err(error),
                    }
                }
                _ = tick.tick() => channel.send(&Frame::Beat { memory: (config.memory)() }).await,
                () = sleep_until(heard + config.peer_timeout * BEFORE_THE_START) => {
                    break text!("it fell silent", "不再应答");
                }
            };
            if let Err(error) = sent {
                break error.text();
            }
        };
        Ok(self.retry(if is_in { Obstacle::Left(peer, lost) } else { Obstacle::Odd(peer, lost) }))
    }
}

/// By how much a clock that said `theirs` is ahead of ours, which said `asked`; `way`:
/// the journey there and back. Within that time nothing can be said of the clocks, and a
/// slow one must not turn the order of two failures around.
fn behind(theirs: i64, asked: i64, way: i64) -> i64 {
    let offset = theirs.saturating_sub(asked.saturating_add(way / 2));
    if offset.unsigned_abs() <= way.unsigned_abs() { 0 } else { offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node 0 sees a herd as a trickle: in no part of the time much more than its share.
    #[test]
    fn a_herd_spreads_over_its_time_and_no_longer() {
        const NODES: usize = 10_000;
        const PARTS: usize = 20;
        let most = Duration::from_secs(1);
        let mut dials = [0usize; PARTS + 1];
        for _ in 0..NODES {
            let at = jitter(most);
            assert!(at <= most, "{at:?}");
            dials[usize::try_from(at.as_millis()).expect("short") * PARTS / 1000] += 1;
        }
        // Twelve standard deviations: chance does not fail this, a lump does.
        let (share, slack) = (NODES / PARTS, 260);
        for part in &dials[..PARTS] {
            assert!(part.abs_diff(share) < slack, "{dials:?}");
        }
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn the_time_of_a_herd_grows_with_the_job_and_with_what_a_node_costs() {
        let of =
            |nnodes, secret| herd(&Config { secret, ..super::super::tests::config(1, nnodes, 1) });
        assert_eq!(of(10_000, None), Duration::from_secs(1));
        assert_eq!(of(10_000, Some(super::super::Secret::of_test(1))), Duration::from_secs(2));
        assert!(of(8, None) < Duration::from_millis(1), "a small job does not wait");
    }
}
