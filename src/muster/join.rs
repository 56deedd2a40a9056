//! Any other node before the launch: finds node 0, shows its card, gets the plan.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::channel::Channel;
use super::compare::Difference;
use super::handshake::{self, Store, Stranger};
use super::listen::connect;
use super::member;
use super::obstacle::{Obstacle, progress, refuse, shut_out};
use super::session::Session;
use super::silence::BEAT;
use super::survey::Visit;
use super::types::{Agreement, BEFORE_THE_START, Card, Config, Purpose, now_millis};
use super::wire::{Frame, Hello};
use crate::host::Host;
use crate::lang::Text;
use crate::names::{self, LastResort};
use crate::text;
use crate::verdict::Refusal;

const CONNECT: Duration = Duration::from_secs(5);
const RESOLVE: Duration = Duration::from_secs(8);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A store must be seen for so long before the muster is given up: it may be that
/// of an attempt that is just being ended.
const STORE_STAYS: Duration = Duration::from_secs(3);

/// After this silence a node asks whether it talks to a store.
const ANSWER: Duration = Duration::from_secs(2);

/// How joining ended.
#[derive(Debug)]
pub enum Joined {
    Offer(Box<Offer>),
    /// Node 0 has the links measured ([`Purpose::Check`]).
    Visit(Box<Visit>),
    /// Node 0 runs without a muster: this node goes on by itself.
    Alone(Text),
}

/// What node 0 proposes.
#[derive(Debug)]
pub struct Offer {
    pub agreement: Agreement,
    pub differences: Vec<Difference>,
    /// Our side of the connection: the address by which node 0 sees us.
    pub local: Option<SocketAddr>,
    config: Config,
    channel: Channel,
    offset: i64,
}

/// How the agreement ended.
#[derive(Debug)]
pub enum Accepted {
    Session(Session),
    /// Node 0 begins the gathering anew, or died: join again.
    Lost,
    Alone(Text),
}

/// What one attempt gave.
enum Step {
    Offer(Box<Offer>),
    Visit(Box<Visit>),
    Alone(Text),
    Retry(Obstacle),
}

/// Joins the muster of node 0.
///
/// # Errors
/// At the deadline, with what stood in the way; at once when node 0 refuses.
pub async fn join(
    host: &Host,
    config: &Config,
    card: &Card,
    last_resort: Option<&LastResort>,
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Joined, Refusal> {
    let start = Instant::now();
    let end = start + config.patience;
    let mut next_line = start + config.progress_every;
    let mut pause = FIRST_PAUSE;
    let mut store_since: Option<Instant> = None;
    sleep(jitter(herd(config))).await;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let obstacle =
            match names::resolve(host, &config.master_addr, left.min(RESOLVE), last_resort).await {
                Err(error) => Obstacle::Name(error.to_string()),
                Ok(addresses) => {
                    let mut obstacle = Obstacle::Name("no address".to_owned());
                    for address in addresses {
                        let peer = SocketAddr::new(address, config.port);
                        match once(config, card, peer, &mut store_since).await? {
                            Step::Offer(offer) => return Ok(Joined::Offer(offer)),
                            Step::Visit(visit) => return Ok(Joined::Visit(visit)),
                            Step::Alone(text) => return Ok(Joined::Alone(text)),
                            Step::Retry(why) => obstacle = why,
                        }
                    }
                    obstacle
                }
            };
        let now = Instant::now();
        if now >= end {
            return Err(refuse(config, obstacle));
        }
        if now >= next_line {
            say(progress(config, &obstacle));
            next_line = now + config.progress_every;
        }
        sleep_until((now + pause / 2 + jitter(pause)).min(end)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
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
    let _ = getrandom::fill(&mut random);
    most.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
}

async fn once(
    config: &Config,
    card: &Card,
    peer: SocketAddr,
    store: &mut Option<Instant>,
) -> Result<Step, Refusal> {
    let retry = |cause: String| Ok(Step::Retry(Obstacle::Connection(peer, cause)));
    let stream = match connect(peer, CONNECT).await {
        Ok(stream) => stream,
        Err(error) => return retry(error.to_string()),
    };
    let local = stream
        .local_addr()
        .ok()
        .map(|local| SocketAddr::new(local.ip().to_canonical(), local.port()));
    let dialed = {
        let dial = handshake::dial(stream, config.secret.as_ref());
        tokio::pin!(dial);
        // A store closes the connection or keeps silent, depending on its version.
        match timeout(ANSWER, &mut dial).await {
            Ok(Err(Stranger::Unknown(cause))) => {
                if let Some(text) = seen_store(config, peer, store).await {
                    return Ok(Step::Alone(text));
                }
                Err(Stranger::Unknown(cause))
            }
            Ok(dialed) => dialed,
            Err(_) => {
                if let Some(text) = seen_store(config, peer, store).await {
                    return Ok(Step::Alone(text));
                }
                if store.is_some() {
                    return retry("it takes connections and says nothing".to_owned());
                }
                dial.await
            }
        }
    };
    let mut channel = match dialed {
        Ok(channel) => channel,
        Err(Stranger::Version) if config.may_fall_back => {
            return Ok(Step::Alone(text!(
                "node 0 runs a ranklaunch whose version does not fit this one, so this node goes on without a muster",
                "节点 0 的 ranklaunch 版本与本节点不兼容，因此本节点跳过集结继续运行"
            )));
        }
        Err(Stranger::Unknown(cause)) => return retry(cause),
        Err(stranger) => return Err(shut_out(peer, &stranger)),
    };
    *store = None;
    if config.purpose == Purpose::Check && channel.version() < 2 {
        return Ok(Step::Alone(text!(
            "node 0 runs an older ranklaunch that does not measure links, so this node is checked alone",
            "节点 0 的 ranklaunch 版本较旧，不支持链路测量，因此仅检查本节点"
        )));
    }
    let hello = Frame::Hello(Hello {
        node: config.node,
        nnodes: config.nnodes,
        job: config.job.clone(),
        port: config.port,
        hostname: card.hostname.clone(),
        purpose: config.purpose,
    });
    let asked = now_millis();
    if let Err(error) = channel.send(&hello).await {
        return retry(error.to_string());
    }
    let mut offset = 0;
    let mut tick = interval(BEAT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        let sent = tokio::select! {
            frame = channel.receive() => {
                heard = Instant::now();
                match frame {
                    Ok(Frame::Welcome { at }) => {
                        let answered = now_millis();
                        let way = answered.saturating_sub(asked);
                        offset = at.saturating_sub(asked.saturating_add(way / 2));
                        // Within the time of the journey nothing can be said of the clocks,
                        // and a slow one must not turn the order of two failures around.
                        if offset.unsigned_abs() <= way.unsigned_abs() {
                            offset = 0;
                        }
                        let card = Card { clock_offset: offset, ..card.clone() };
                        channel.send(&Frame::Card(card)).await
                    }
                    Ok(Frame::Agreed { agreement, differences }) => {
                        return Ok(Step::Offer(Box::new(Offer {
                            agreement, differences, local, config: config.clone(), channel, offset,
                        })));
                    }
                    Ok(Frame::Measure { token }) => {
                        let hostname = card.hostname.clone();
                        let config = config.clone();
                        let visit = Visit { config, hostname, channel, token };
                        return Ok(Step::Visit(Box::new(visit)));
                    }
                    Ok(Frame::Alone(text)) => return Ok(Step::Alone(text)),
                    // It may be the node 0 of an earlier run that is about to end.
                    Ok(Frame::Refuse(refusal)) if refusal.id == "muster.job" => {
                        return Ok(Step::Retry(Obstacle::Refused(refusal)));
                    }
                    Ok(Frame::Refuse(refusal)) => return Err(refusal),
                    Ok(Frame::Ping) => channel.send(&Frame::Pong).await,
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            _ = tick.tick() => channel.send(&Frame::Beat { memory: (config.memory)() }).await,
            () = sleep_until(heard + config.peer_timeout * BEFORE_THE_START) => return retry("node 0 fell silent".to_owned()),
        };
        if let Err(error) = sent {
            return retry(error.to_string());
        }
    }
}

/// Why this node goes on by itself: a store was there long enough to be believed.
async fn seen_store(
    config: &Config,
    peer: SocketAddr,
    since: &mut Option<Instant>,
) -> Option<Text> {
    // With a secret an unproven word must not end the muster.
    if config.secret.is_some() || !config.may_fall_back {
        return None;
    }
    let stream = connect(peer, CONNECT).await.ok()?;
    let stays = match handshake::ask_store(stream).await {
        Store::Proven => STORE_STAYS,
        Store::Likely => STORE_STAYS * 5,
        Store::No => return None,
    };
    let since = *since.get_or_insert_with(Instant::now);
    (since.elapsed() >= stays).then(|| {
        text!(
            "node 0 ({peer}) runs torchrun without ranklaunch or without a muster, so this node goes on without one",
            "节点 0（{peer}）直接运行 torchrun 或未启用集结，因此本节点跳过集结继续运行"
        )
    })
}

impl Offer {
    /// This node can follow. Waits until all others can.
    ///
    /// # Errors
    /// When another node cannot.
    pub async fn accept(self) -> Result<Accepted, Refusal> {
        let Offer { config, mut channel, offset, .. } = self;
        if channel.send(&Frame::Accept).await.is_err() {
            return Ok(Accepted::Lost);
        }
        let mut tick = interval(BEAT);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                frame = channel.receive() => {
                    heard = Instant::now();
                    match frame {
                        Ok(Frame::Go) => break,
                        Ok(Frame::Refuse(refusal)) => return Err(refusal),
                        Ok(Frame::Alone(text)) => return Ok(Accepted::Alone(text)),
                        Ok(Frame::Ping) => drop(channel.send(&Frame::Pong).await),
                        Ok(_) => {}
                        Err(_) => return Ok(Accepted::Lost),
                    }
                }
                _ = tick.tick() => drop(channel.send(&Frame::Beat { memory: (config.memory)() }).await),
                () = sleep_until(heard + config.peer_timeout * BEFORE_THE_START) => return Ok(Accepted::Lost),
            }
        }
        let master = config.master_addr.clone();
        Ok(Accepted::Session(Session::start(|ends| {
            member::run(config, master, channel, offset, ends)
        })))
    }

    /// This node cannot follow: node 0 tells the others.
    pub async fn decline(mut self, refusal: &Refusal) {
        if self.channel.send(&Frame::Decline(refusal.clone())).await.is_ok() {
            let _ = timeout(Duration::from_secs(2), self.channel.close()).await;
        }
    }
}

/// Tells node 0, where it can be reached at once, that this node cannot take part.
///
/// # Errors
/// What stood in the way last, when node 0 was not told within a few seconds.
pub async fn excuse(
    host: &Host,
    config: &Config,
    hostname: &str,
    refusal: &Refusal,
) -> Result<(), Text> {
    /// Node 0 may start a little later than this node.
    const PATIENCE: Duration = Duration::from_secs(5);
    let mut obstacle = Text::same("no answer");
    let tell = async {
        loop {
            let addresses = match names::resolve(host, &config.master_addr, RESOLVE, None).await {
                Ok(addresses) => addresses,
                Err(error) => {
                    obstacle = Text::same(error.to_string());
                    Vec::new()
                }
            };
            for address in addresses {
                match excuse_to(config, hostname, refusal, SocketAddr::new(address, config.port))
                    .await
                {
                    Ok(()) => return,
                    Err(why) => obstacle = why,
                }
            }
            sleep(LONGEST_PAUSE / 4).await;
        }
    };
    // Whoever is not there hears of it when it dials a node that is gone.
    match timeout(PATIENCE, tell).await {
        Ok(()) => Ok(()),
        Err(_) => Err(obstacle),
    }
}

async fn excuse_to(
    config: &Config,
    hostname: &str,
    refusal: &Refusal,
    peer: SocketAddr,
) -> Result<(), Text> {
    let failed = |why: String| Text::same(why);
    let stream = connect(peer, CONNECT).await.map_err(|error| failed(error.to_string()))?;
    let dialed = handshake::dial(stream, config.secret.as_ref()).await;
    let mut channel = dialed.map_err(|stranger| match stranger {
        Stranger::Unknown(why) => failed(why),
        known => shut_out(peer, &known).text,
    })?;
    let hello = Frame::Hello(Hello {
        node: config.node,
        nnodes: config.nnodes,
        job: config.job.clone(),
        port: config.port,
        hostname: hostname.to_owned(),
        purpose: config.purpose,
    });
    channel.send(&hello).await.map_err(|error| failed(error.to_string()))?;
    match channel.receive().await {
        Ok(Frame::Welcome { .. }) => {}
        Ok(Frame::Refuse(other)) => return Err(other.text),
        Ok(_) => return Err(failed("an answer that does not fit".to_owned())),
        Err(error) => return Err(failed(error.to_string())),
    }
    let decline = Frame::Decline(refusal.clone());
    channel.send(&decline).await.map_err(|error| failed(error.to_string()))?;
    channel.close().await;
    Ok(())
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
