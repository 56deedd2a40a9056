//! Joins the muster on every node but node 0: finds node 0, sends the summary, gets the agreement or the request to
//! measure links, and answers it.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::connection::{Connection, Received, Resumption, spread};
use super::problem::{self, Holder, JoinProblem, incompatible};
use super::run;
use crate::foreign::ForeignAction;
use crate::keepalive::{Cut, Port, Sight, millis, now, port};
use crate::links::endpoint::{MeasureTarget, Measurement, WHOLE};
use crate::links::{ALL_STEPS, STEP};
use crate::names::LastResort;
use crate::net::{DialError, Dialer, Seen, Target, connect, jitter, second_port};
use crate::protocol::handshake::{self, Rejection};
use crate::protocol::{
    Again, Agreement, Cause, Channel, ChannelError, Decide, Difference, Electorate, FromMember,
    FromNode0, Last, Leads, LinkReport, Loss, NodeSummary,
};
use crate::session::{Config, Session};
use crate::succession::{Lifeline, Succession};
use linux::host::Host;
use linux::pace::with_lines;
use text::lang::Text;
use verdict::{Id, Refusal, Verdict};

/// Silence after which a node asks whether the peer is a store, or gives up on the second port.
const ANSWER: Duration = Duration::from_secs(2);
/// Interval of attempts on the second port while the first port is silent, and time limit for connecting to it.
const PAUSE: Duration = Duration::from_secs(1);

/// Result of joining.
#[derive(Debug)]
pub enum Joined {
    Offer(Box<Offer>),
    /// All seats are taken.
    Parked(Box<Parked>),
    /// The nodes see different checkpoints: this one reads the folder again, and joins again.
    Look,
    /// Node 0 requests a measurement of the links (`Purpose::Check`).
    Measure(Box<MeasureSession>),
    /// Node 0 runs without a muster, so this node continues by itself.
    Alone(Text),
    /// Node 0 does not lead the job: this node does, whose launcher listens there.
    Elsewhere(u32, SocketAddr),
}

/// Joins the muster of node 0.
///
/// # Errors
/// At the deadline, with the obstacle; at once if node 0 refuses or its port belongs to another
/// job.
pub async fn join(
    host: &Host,
    config: &Config,
    summary: &NodeSummary,
    last_resort: Option<&LastResort>,
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Joined, Refusal> {
    let seen = Seen::nothing();
    let deadline = Instant::now() + config.wait_timeout;
    let (address, port) = config.leader_address();
    let target = Target { host, address: &address, port, last_resort, deadline };
    let holder = Holder::new(config, &seen);
    let search = Search { config, summary, seen: &seen, deadline, holder };
    let progress = |waited| {
        let progress = problem::progress(config, &seen, waited);
        match &config.live {
            Some(live) => live.show(&progress),
            None => say(progress),
        }
    };
    with_lines(config.pace, search.run(Dialer::new(target)), progress).await
}

/// Result of one connection.
enum Step {
    Joined(Joined),
    /// Nothing listens yet.
    Retry,
    /// The port is held, but not by a node 0 that admits this node.
    NotAdmitted(Option<Refusal>),
}

impl From<ForeignAction> for Step {
    fn from(held: ForeignAction) -> Step {
        match held {
            ForeignAction::Wait => Step::NotAdmitted(None),
            ForeignAction::Refuse(refusal) => Step::NotAdmitted(Some(refusal)),
            ForeignAction::Alone(text) => Step::Joined(Joined::Alone(text)),
        }
    }
}

struct Search<'a> {
    config: &'a Config,
    summary: &'a NodeSummary,
    seen: &'a Seen<JoinProblem>,
    deadline: Instant,
    holder: Holder<'a>,
}

impl Search<'_> {
    async fn run(mut self, mut dialer: Dialer<'_>) -> Result<Joined, Refusal> {
        sleep(jitter(spread(self.config))).await;
        while let Some(dialed) = dialer.next().await {
            let (stream, peer) = match dialed {
                Ok(dialed) => dialed,
                Err(error) => {
                    if !matches!(error, DialError::Name(_)) {
                        self.holder.clear();
                    }
                    self.seen.note(JoinProblem::Dial(error));
                    continue;
                }
            };
            let refusal = match self.once(stream, peer).await {
                Step::Joined(joined) => return Ok(joined),
                Step::Retry => continue,
                Step::NotAdmitted(refusal) => refusal,
            };
            let is_final = |refusal: &Refusal| refusal.verdict == Verdict::PortInUse;
            let refusal = match refusal {
                Some(refusal) if is_final(&refusal) => Some(refusal),
                other => self.on_second_port(peer).await.or(other),
            };
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
        }
        Err(problem::refusal(self.config, self.seen))
    }

    /// The refusal of node 0, if node 0 listens on the second port.
    async fn on_second_port(&self, peer: SocketAddr) -> Option<Refusal> {
        let config = self.config;
        let peer = SocketAddr::new(peer.ip(), second_port(config.port));
        let stream = connect(peer, PAUSE).await.ok()?;
        let asked = async {
            let mut channel = handshake::dial(stream, config.secret.as_ref()).await.ok()?;
            let hello = config.hello(&self.summary.hostname);
            channel.send(&FromMember::Hello(hello)).await.ok()?;
            // The node 0 of another job may gather on this port; its refusals have other ids.
            let is_of_node_0 = |refusal: &Refusal| {
                refusal.verdict == Verdict::PortInUse
                    || [Id::MusterDeclined, Id::StoppedNotice].contains(&refusal.id)
            };
            match channel.receive().await.ok()? {
                FromNode0::Refuse(refusal) => Some(refusal).filter(is_of_node_0),
                _ => None,
            }
        };
        timeout(ANSWER, asked).await.ok().flatten()
    }

    async fn once(&mut self, stream: TcpStream, peer: SocketAddr) -> Step {
        let local = stream.local_addr().ok();
        let local = local.map(|local| SocketAddr::new(local.ip().to_canonical(), local.port()));
        match self.shake_hands(peer, stream).await {
            Ok(channel) => {
                // Node 0 answered, so there is no store.
                self.holder.unmarked = None;
                self.introduce(peer, local, channel).await
            }
            Err(step) => step,
        }
    }

    /// The channel to node 0, or the step that follows from another answer.
    async fn shake_hands(
        &mut self,
        peer: SocketAddr,
        stream: TcpStream,
    ) -> Result<Channel<FromNode0>, Step> {
        let secret = self.config.secret.as_ref();
        let dial = handshake::dial(stream, secret);
        tokio::pin!(dial);
        // A store closes the connection or keeps silent, depending on its version.
        let dialed = match timeout(ANSWER, &mut dial).await {
            Ok(Err(Rejection::Unknown(cause))) => match self.holder.ask(peer).await {
                Some(held) => return Err(held.into()),
                None => Err(Rejection::Unknown(cause)),
            },
            Ok(dialed) => dialed,
            Err(_) => {
                self.holder.note(peer, JoinProblem::Silent(peer));
                if let Some(held) = self.holder.ask(peer).await {
                    return Err(held.into());
                }
                // A node 0 with thousands of handshakes answers late. A node 0 whose port is held by another process
                // listens on the second port.
                loop {
                    let pause = (Instant::now() + PAUSE).min(self.deadline);
                    if let Ok(late) = timeout_at(pause, &mut dial).await {
                        break late;
                    }
                    if let Some(refusal) = self.on_second_port(peer).await {
                        return Err(Step::NotAdmitted(Some(refusal)));
                    }
                    if Instant::now() >= self.deadline {
                        break Err(Rejection::Silent);
                    }
                }
            }
        };
        let rejection = match dialed {
            Ok(channel) => return Ok(channel),
            Err(rejection) => rejection,
        };
        self.holder.clear();
        match rejection {
            Rejection::Silent => self.holder.note(peer, JoinProblem::Silent(peer)),
            Rejection::Unknown(cause) => {
                self.holder.note(peer, JoinProblem::Unexpected(peer, cause))
            }
            // This answer proves nothing: with a secret, or if it is about the version, wait and
            // try again.
            rejection if secret.is_some() || rejection == Rejection::Version => {
                self.seen.note(JoinProblem::Rejected(peer, rejection));
            }
            rejection => {
                return Err(Step::NotAdmitted(Some(incompatible(self.config, peer, &rejection))));
            }
        }
        Err(Step::NotAdmitted(None))
    }

    fn last(&self) -> Option<Box<Last>> {
        self.config.succession.as_ref().and_then(Succession::last).map(Box::new)
    }

    /// Sends this node's identity and waits for the leader's decision.
    async fn introduce(
        &mut self,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        channel: Channel<FromNode0>,
    ) -> Step {
        let hostname = self.summary.hostname.clone();
        let mut connection = Connection::new(channel, self.config);
        let (asked, asked_wall) = (now(), millis(SystemTime::now()));
        connection.send(&FromMember::Hello(self.config.hello(&hostname))).await;
        // Offset from our clock to node 0's, once it has admitted us.
        let mut offset = None;
        let mut sent: Option<NodeSummary> = None;
        let refusal = loop {
            match connection.next().await {
                Ok(FromNode0::Welcome { at, wall }) => {
                    // Node 0 admits this node, so there is no other job.
                    self.holder.other_job = None;
                    self.seen.note(JoinProblem::Gathering(peer));
                    let way = now().saturating_sub(asked);
                    offset = Some(behind(at, asked, way));
                    let clock_offset = behind(wall, asked_wall, way);
                    let alive = connection.open_port();
                    let last = self.last();
                    let summary = NodeSummary { clock_offset, alive, last, ..self.summary.clone() };
                    sent = Some(summary.clone());
                    connection.send(&FromMember::Summary(Box::new(summary))).await;
                }
                Ok(FromNode0::Agreed { agreement, differences, said, resume, electorate }) => {
                    let electorate = electorate.map(|one| Box::new(one.seen_from(peer)));
                    let resume = resume
                        .map(|point| Resumption::new(self.config, &hostname, point, peer.ip()));
                    let offset = offset.unwrap_or_default();
                    let me = (hostname, self.summary.seat.map(|seat| seat.node));
                    let offer = Offer {
                        agreement,
                        differences,
                        said,
                        local,
                        connection,
                        offset,
                        resume,
                        electorate,
                        me,
                    };
                    return Step::Joined(Joined::Offer(Box::new(offer)));
                }
                Ok(FromNode0::Measure { token }) => {
                    let session = MeasureSession { connection, hostname, token };
                    return Step::Joined(Joined::Measure(Box::new(session)));
                }
                // The leader of the next attempt knows one more than this node, which votes on what follows that.
                Ok(FromNode0::Missed(electorate)) => {
                    if let (Some(succession), Some(summary)) = (&self.config.succession, &sent)
                        && succession.learn(*electorate)
                    {
                        succession.follow(self.config.leader);
                        let summary = NodeSummary { last: self.last(), ..summary.clone() };
                        connection.send(&FromMember::Summary(Box::new(summary))).await;
                    }
                }
                Ok(FromNode0::Park { electorate, votes }) => {
                    if let (Some(succession), Some(last)) = (&self.config.succession, electorate) {
                        succession.begin(last.seen_from(peer), votes);
                    }
                    let connection = connection.started();
                    return Step::Joined(Joined::Parked(Box::new(Parked { connection })));
                }
                Ok(FromNode0::Alone(text)) => return Step::Joined(Joined::Alone(text)),
                Ok(FromNode0::Look) => return Step::Joined(Joined::Look),
                Ok(FromNode0::Leads(Leads { leader, place: Some(place), .. }))
                    if leader != self.config.node && self.config.succession.is_some() =>
                {
                    return Step::Joined(Joined::Elsewhere(leader, place));
                }
                Ok(FromNode0::Refuse(refusal)) => break refusal,
                Ok(_) => {}
                Err(lost) => {
                    self.holder.clear();
                    self.seen.note(match offset {
                        Some(_) => JoinProblem::Left(peer, lost.text()),
                        None => JoinProblem::Unexpected(peer, lost.text()),
                    });
                    return Step::Retry;
                }
            }
        };
        match refusal.id {
            // A node 0 that is about to end may hold the port.
            Id::MusterOtherJob => self.holder.other_job(peer, &refusal.text).into(),
            // Node 0 runs `check`, and may launch the job afterwards; or an earlier launcher of this node is still there.
            Id::MusterJob | Id::MusterAttempt => {
                self.seen.note(JoinProblem::Refused(refusal));
                Step::NotAdmitted(None)
            }
            _ => Step::NotAdmitted(Some(refusal)),
        }
    }
}

/// The lead of another clock over ours. The other clock showed `theirs`; ours showed `asked` when the question was
/// sent; `way` is the round trip. An offset within the round trip counts as zero, since a slow answer must not reverse
/// the order of two failures.
fn behind(theirs: i64, asked: i64, way: i64) -> i64 {
    let offset = theirs.saturating_sub(asked.saturating_add(way / 2));
    if offset.unsigned_abs() <= way.unsigned_abs() { 0 } else { offset }
}

/// The proposal of node 0.
#[derive(Debug)]
pub struct Offer {
    pub agreement: Agreement,
    pub differences: Vec<Difference>,
    /// Keys of the warnings that node 0 prints.
    pub said: Vec<u64>,
    /// Local address of the connection.
    pub local: Option<SocketAddr>,
    pub connection: Connection,
    /// Milliseconds from our clock to node 0's clock.
    pub offset: i64,
    pub resume: Option<Resumption>,
    electorate: Option<Box<Electorate>>,
    pub me: run::Me,
}

/// The outcome of the agreement.
#[derive(Debug)]
pub enum Accepted {
    Session(Session),
    /// Node 0 gathers again or died, so this node has to join again.
    Lost,
    Alone(Text),
}

impl Offer {
    /// Where the leader was reached.
    pub fn leader_at(&self) -> Option<IpAddr> {
        self.connection.stream().peer_addr().ok().map(|at| at.ip().to_canonical())
    }

    /// Accepts the offer, and waits until all other nodes have accepted. `decide`: what follows if the leader is lost.
    ///
    /// # Errors
    /// If another node cannot accept.
    pub async fn accept(self, decide: Option<Decide>) -> Result<Accepted, Refusal> {
        let Offer { mut connection, me, offset, resume, agreement, electorate, .. } = self;
        let nodes = agreement.nodes();
        connection.send(&FromMember::Accept).await;
        loop {
            match connection.next().await {
                // It may be old: whoever stood still for long was given up meanwhile.
                Ok(FromNode0::Go) if connection.pause.just_over().is_some() => {
                    return Ok(Accepted::Lost);
                }
                Ok(FromNode0::Go) => break,
                Ok(FromNode0::Refuse(refusal)) => return Err(refusal),
                Ok(FromNode0::Alone(text)) => return Ok(Accepted::Alone(text)),
                Ok(_) => {}
                Err(_) => return Ok(Accepted::Lost),
            }
        }
        let connection = connection.started();
        let Config { node, leader, succession, .. } = &connection.config;
        if let (Some(succession), Some(agreed)) = (succession, electorate) {
            succession.begin(*agreed, true);
        }
        let (node, leader) = (*node, *leader);
        let session = Session::start((node, leader), nodes, |ends| {
            run::run((connection, offset, resume), me, decide, ends)
        });
        Ok(Accepted::Session(session))
    }

    /// Declines the offer; node 0 notifies the others.
    pub async fn decline(mut self, refusal: &Refusal) {
        self.connection.send(&FromMember::Decline(refusal.clone())).await;
        self.connection.close().await;
    }
}

/// A node without a seat.
#[derive(Debug)]
pub struct Parked {
    pub(crate) connection: Connection,
}

/// What ends the wait of a node without a seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unparked {
    /// The ranks of all nodes succeeded.
    AllDone,
    /// The first failure of the attempt, and whether all nodes meet again: then a seat may be free.
    Verdict { cause: Box<Cause>, again: Option<Again> },
    /// The connection to node 0 ended.
    Lost(Loss),
}

impl Parked {
    /// Waits until a seat may be free or the job has ended.
    pub async fn wait(mut self) -> Unparked {
        let succession = self.connection.config.succession.clone();
        let leader = succession.as_ref().and_then(Succession::leaders_place);
        // A port that was never reached proves nothing later.
        let was_reached = match leader {
            Some(leader) => port(leader).await == Port::Open,
            None => false,
        };
        let lifeline = succession.as_ref().zip(leader).map(|(one, leader)| one.lifeline(leader));
        let mut unsure = false;
        let unparked = loop {
            match self.connection.next().await {
                Ok(FromNode0::AllDone) => break Unparked::AllDone,
                Ok(FromNode0::Verdict { cause, again }) => {
                    break Unparked::Verdict { cause: Box::new(cause), again };
                }
                Ok(FromNode0::Missed(electorate)) => self.connection.renewed(*electorate),
                Ok(FromNode0::Unsure(is_unsure)) => unsure = is_unsure,
                Ok(_) => {}
                Err(lost) => {
                    let loss = match (&lost, leader) {
                        (ChannelError::Silent, _) | (_, None) => lost.loss(),
                        (error, leader) => {
                            let sight = Sight::of_lost(was_reached, Cut::from(error));
                            let was_closed = || lifeline.as_ref().is_some_and(Lifeline::was_closed);
                            sight.until_lost(leader, was_closed).await
                        }
                    };
                    break Unparked::Lost(loss.beside(unsure));
                }
            }
        };
        if let Some(succession) = &succession {
            succession.ended(matches!(unparked, Unparked::Lost(_)));
        }
        // Without a farewell it counts as dead.
        if let Unparked::Verdict { again, .. } = &unparked {
            self.connection.send(&FromMember::Bye { returns: again.is_some() }).await;
            self.connection.close().await;
        }
        unparked
    }
}

/// The session of a node that takes part in the measurements.
#[derive(Debug)]
pub struct MeasureSession {
    pub connection: Connection,
    pub hostname: String,
    pub token: String,
}

impl MeasureSession {
    /// Measures as node 0 requests, until node 0 sends the report.
    ///
    /// # Errors
    /// When node 0 is lost.
    pub async fn follow(self, mut target: MeasureTarget) -> Result<LinkReport, Loss> {
        let MeasureSession { mut connection, hostname, token } = self;
        let secret = connection.config.secret.clone();
        target.serve(secret.clone(), token.clone());
        let node_0 = connection.stream().peer_addr().ok();
        let mut running = JoinSet::new();
        let end = Instant::now() + ALL_STEPS + WHOLE + STEP;
        loop {
            let done = async {
                tokio::select! {
                    Some(done) = running.join_next() => Some(done),
                    () = sleep_until(end) => None,
                }
            };
            let frame = match connection.next_or(done).await.map_err(|lost| lost.loss())? {
                Received::Frame(frame) => *frame,
                Received::Other(Some(Ok(link))) => {
                    connection.send(&FromMember::Measured(link)).await;
                    continue;
                }
                Received::Other(Some(Err(_))) => continue,
                Received::Other(None) => return Err(Loss::Silent),
            };
            match frame {
                FromNode0::MeasureTo { to, address } => {
                    // Node 0 listens at the address at which we reached it, unless it names another address.
                    let ip = match node_0 {
                        Some(node_0) if address.ip().is_unspecified() => node_0.ip(),
                        _ => address.ip(),
                    };
                    // One measurement at a time: our node 0 never requests two.
                    running.shutdown().await;
                    let hello = Measurement::hello(&connection.config, &hostname, &token);
                    let address = SocketAddr::new(ip.to_canonical(), address.port());
                    running.spawn(Measurement { hello, to, address, secret: secret.clone() }.run());
                }
                FromNode0::Report(report) => {
                    connection.close().await;
                    return Ok(*report);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Secret;

    #[test]
    fn first_dials_spread_with_nodes_and_handshake_cost() {
        let of = |nnodes, secret| spread(&Config { secret, ..crate::tests::config(1, nnodes, 1) });
        assert_eq!(of(10_000, None), Duration::from_secs(1));
        assert_eq!(of(10_000, Some(Secret::of_test(1))), Duration::from_secs(2));
        assert!(of(8, None) < Duration::from_millis(1), "a small job does not wait");
    }
}
