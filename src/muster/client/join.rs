//! Joins the muster on every node but node 0: finds node 0, sends the summary, gets the
//! agreement.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connection::Connection;
use super::identify::Holder;
use super::measure::MeasureSession;
use super::offer::Offer;
use super::problem::{self, JoinProblem, incompatible};
use super::resume::{Resumption, spread};
use super::second_port;
use crate::clock::{millis, now};
use crate::config::Config;
use crate::foreign::ForeignAction;
use crate::names::LastResort;
use crate::net::{DialError, Dialer, Seen, Target, jitter};
use crate::protocol::handshake::{self, Rejection};
use crate::protocol::{Channel, FromMember, FromNode0, NodeSummary};
use linux::host::Host;
use linux::pace::with_lines;
use text::lang::Text;
use verdict::{Id, Refusal, Verdict};

/// Silence after which a node asks whether the peer is a store.
const ANSWER: Duration = Duration::from_secs(2);
/// Interval of attempts on the second port while the first port is silent.
const PAUSE: Duration = Duration::from_secs(1);

/// Result of joining.
#[derive(Debug)]
pub enum Joined {
    Offer(Box<Offer>),
    /// Node 0 requests a measurement of the links (`Purpose::Check`).
    Measure(Box<MeasureSession>),
    /// Node 0 runs without a muster, so this node continues by itself.
    Alone(Text),
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
    let target =
        Target { host, address: &config.master_addr, port: config.port, last_resort, deadline };
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

    async fn on_second_port(&self, peer: SocketAddr) -> Option<Refusal> {
        second_port::refusal(self.config, &self.summary.hostname, peer.ip()).await
    }

    async fn once(&mut self, stream: TcpStream, peer: SocketAddr) -> Step {
        let local = stream.local_addr().ok();
        let local = local.map(|local| SocketAddr::new(local.ip().to_canonical(), local.port()));
        match self.shake_hands(peer, stream).await {
            Ok(channel) => {
                self.holder.answered();
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
            rejection => return Err(Step::NotAdmitted(Some(incompatible(peer, &rejection)))),
        }
        Err(Step::NotAdmitted(None))
    }

    /// Sends this node's identity and waits for node 0's decision.
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
        let refusal = loop {
            match connection.next().await {
                Ok(FromNode0::Welcome { at, wall }) => {
                    self.holder.let_in();
                    self.seen.note(JoinProblem::Gathering(peer));
                    let way = now().saturating_sub(asked);
                    offset = Some(behind(at, asked, way));
                    let clock_offset = behind(wall, asked_wall, way);
                    let alive = connection.open_port();
                    let summary = NodeSummary { clock_offset, alive, ..self.summary.clone() };
                    connection.send(&FromMember::Summary(summary)).await;
                }
                Ok(FromNode0::Agreed { agreement, differences, said, resume }) => {
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
                        me,
                    };
                    return Step::Joined(Joined::Offer(Box::new(offer)));
                }
                Ok(FromNode0::Measure { token }) => {
                    let session = MeasureSession { connection, hostname, token };
                    return Step::Joined(Joined::Measure(Box::new(session)));
                }
                Ok(FromNode0::Alone(text)) => return Step::Joined(Joined::Alone(text)),
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
            // Node 0 runs `check`, and may launch the job afterwards.
            Id::MusterJob => {
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
