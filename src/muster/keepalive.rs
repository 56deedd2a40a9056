//! Time between two nodes: the clock with which they compare times, heartbeats and silence, the socket options that
//! make them hold, and conclusions from the port of a peer after its connection was cut.
//!
//! Guarantees that a partition shorter than the peer timeout is survived. The silence is longer than the partition for
//! two reasons. First, the last frame before the partition may have been a heartbeat interval old. Second, the kernel
//! retransmits after pauses that double: a frame of the first second is sent again after 0.2, 0.6, 1.4, 3.0, 6.2, 12.6
//! and 25.4 s, so after a cut of 13 s the connection would stay silent for 12 s more.
//!
//! A cut connection does not tell whether the peer died or something between the nodes cut it: a sidecar, a firewall
//! that lost its table, a load balancer. Each side therefore has a port that is open as long as its agent lives, and
//! both sides dial. Two facts together prove a death: the connection was closed in the way a kernel does it for a
//! process that ended, and a port that was reached before is closed now. A connection that was reset proves nothing,
//! since a device that resets connections may refuse them as well.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, sleep_until};

use crate::net::connect;
use crate::protocol::{ChannelError, Loss};
use linux::sys::{self, Clocks};

/// Network partitions shorter than this are survived; a node that is silent for longer is lost.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(15);
/// Factor for the silence before the start: no job runs that could hang, and node 0 may have thousands of handshakes to
/// do.
pub(crate) const BEFORE_THE_START: u32 = 4;
/// Longest interval between heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// The longest retransmission pause. It is the smallest value that the kernel accepts.
const RETRANSMISSION: Duration = Duration::from_secs(1);
/// Time for which the kernel retransmits, in milliseconds. It is long so that we decide when a node is lost: with a
/// capped pause the kernel's own 15 attempts (tcp_retries2) would end after 14.4 s.
const KERNEL: u32 = 120_000;
/// Time limit for the end of processes that were killed after their grace period.
const KILLED: Duration = Duration::from_secs(5);
/// Allowance for a busy node on either side.
const ALLOWANCE: Duration = Duration::from_secs(1);

/// The silence after which a node is lost: the peer timeout, the possible age of the last heartbeat, and the time until the
/// next retransmission.
pub(crate) fn longest_silence(peer_timeout: Duration) -> Duration {
    let again = if is_capped() { RETRANSMISSION } else { peer_timeout };
    peer_timeout + heartbeat(peer_timeout) + again + ALLOWANCE
}

/// The interval of heartbeats: at least four within the peer timeout.
pub(crate) fn heartbeat(peer_timeout: Duration) -> Duration {
    HEARTBEAT.min(peer_timeout / 4)
}

/// Time after which a node has ended its ranks that was cut off when the others lost it: it notices that as late as they
/// may have noticed it, and its ranks have their grace period then.
pub fn cut_off(grace: Duration) -> Duration {
    proof(PEER_TIMEOUT, grace)
}

/// Time after which a store that still answers does not belong to an attempt that is being ended: by then a lost node was
/// noticed, and the grace period is over.
pub(crate) fn proof(peer_timeout: Duration, grace: Duration) -> Duration {
    longest_silence(peer_timeout) + grace + KILLED
}

/// Schedule of this side's heartbeats; the first heartbeat is due at once.
#[derive(Debug)]
pub struct Heartbeat {
    every: Duration,
    next: Instant,
}

impl Heartbeat {
    /// A schedule with the interval for the time before the start.
    pub(crate) fn before_start() -> Heartbeat {
        Heartbeat::every(HEARTBEAT)
    }

    pub fn every(every: Duration) -> Heartbeat {
        Heartbeat { every, next: Instant::now() }
    }

    pub(crate) fn is_due_now(&mut self) {
        self.next = Instant::now();
    }

    /// Time by which the next heartbeat is overdue.
    pub(crate) fn overdue(&self) -> Duration {
        self.next.elapsed()
    }

    /// Waits until the next heartbeat is due, and gives its delay. A process that is not running receives nothing, and
    /// that time does not count as silence of its peers. Cancel-safe.
    pub async fn due(&mut self) -> Duration {
        sleep_until(self.next).await;
        let late = self.next.elapsed();
        self.next = Instant::now() + self.every;
        late
    }
}

/// The last pause of this process in which its peers may have given it up.
#[derive(Debug)]
pub struct Pause {
    peer_timeout: Duration,
    looked: Clocks,
    last: Option<(Duration, Instant)>,
}

impl Pause {
    pub fn none(peer_timeout: Duration) -> Pause {
        Pause { peer_timeout, looked: Clocks::now(), last: None }
    }

    /// Notes that a heartbeat was `late`. Must also be called when a frame was received: the clock of the heartbeats
    /// may have stood still, and then no heartbeat is late.
    pub fn note(&mut self, late: Duration) {
        self.note_at(Clocks::now(), late);
    }

    fn note_at(&mut self, now: Clocks, late: Duration) {
        let before = std::mem::replace(&mut self.looked, now);
        let pause = late + now.unseen_since(&before);
        // The last heartbeat before the pause may have been an interval old.
        if pause + heartbeat(self.peer_timeout) >= longest_silence(self.peer_timeout) {
            self.last = Some((pause, Instant::now()));
        }
    }

    /// The length of the pause if it has just ended: observations about the peers at that time are its consequence.
    pub(crate) fn just_over(&self) -> Option<Duration> {
        let brief = 2 * heartbeat(self.peer_timeout);
        self.last.filter(|(_, at)| at.elapsed() < brief).map(|(pause, _)| pause)
    }
}

/// Sets the socket options. Must be called once for each connection between nodes.
pub(crate) fn prepare(stream: &TcpStream) {
    // Each option improves the connection, but none is required.
    let _ = stream.set_nodelay(true);
    let _ = sys::cap_retransmission(stream, RETRANSMISSION);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, KERNEL);
}

/// Whether this kernel can cap the pause (Linux 6.15).
fn is_capped() -> bool {
    static CAPPED: OnceLock<bool> = OnceLock::new();
    *CAPPED.get_or_init(|| {
        TcpSocket::new_v4()
            .is_ok_and(|socket| sys::cap_retransmission(&socket, RETRANSMISSION).is_ok())
    })
}

/// The wall clock at one moment, and the steady clock from then on. A step of the wall clock between two failures must
/// not reverse the order of the failures.
#[derive(Debug, Clone, Copy)]
struct Clock {
    wall: i64,
    since: std::time::Instant,
}

impl Clock {
    fn set(wall: SystemTime) -> Clock {
        Clock { wall: millis(wall), since: std::time::Instant::now() }
    }

    fn now(self) -> i64 {
        let since = i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.wall.saturating_add(since)
    }
}

/// Milliseconds since 1970 by this process's steady clock, which was set from the wall clock
/// once. The handshake measures the offset between two nodes.
pub fn now() -> i64 {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(|| Clock::set(SystemTime::now())).now()
}

/// Milliseconds since 1970.
pub(crate) fn millis(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Time limit of one dial.
const DIAL: Duration = Duration::from_secs(1);
/// Interval of dials.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
/// Time without an answer of the port after which a peer is lost.
pub(crate) const UNANSWERED: Duration = Duration::from_secs(2);
/// Time after a cut in which an open port proves nothing, since a process that dies closes its connections one after
/// the other, and on a node without a free core takes its time.
const DYING: Duration = Duration::from_secs(1);

/// The answer to a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Open,
    Closed,
    /// The dial got no answer, or an error on the way.
    Unanswered,
}

/// Dials the port, and closes the connection at once.
pub(crate) async fn port(peer: SocketAddr) -> Port {
    match connect(peer, DIAL).await {
        Ok(_) => Port::Open,
        Err(error) => Port::of(&error),
    }
}

impl Port {
    pub(crate) fn of(error: &std::io::Error) -> Port {
        match error.kind() {
            std::io::ErrorKind::ConnectionRefused => Port::Closed,
            _ => Port::Unanswered,
        }
    }
}

/// The way in which a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Closed in order, as after the end of a process.
    Closed,
    /// Ended by a reset, or with something that is no frame.
    Reset,
}

impl From<&ChannelError> for Cut {
    fn from(error: &ChannelError) -> Cut {
        match error {
            ChannelError::Closed => Cut::Closed,
            _ => Cut::Reset,
        }
    }
}

/// The findings of the dials after a cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sight {
    /// Whether a closed port proves a death.
    proves: bool,
    lives: bool,
    /// How long a peer that lives may take to come back, and one that does not answer.
    longest: [Duration; 2],
}

impl Sight {
    /// `was_reached`: the port was reached before; otherwise a firewall may be the reason why it is closed.
    pub(crate) fn new(was_reached: bool, cut: Cut, longest: Duration) -> Sight {
        let longest = [longest, UNANSWERED.min(longest)];
        Sight { proves: was_reached && cut == Cut::Closed, lives: false, longest }
    }

    /// The same for a peer that does not come back: only whether it died is of interest.
    pub(crate) fn of_lost(was_reached: bool, cut: Cut) -> Sight {
        let longest = [Duration::ZERO, UNANSWERED];
        Sight { longest, ..Sight::new(was_reached, cut, UNANSWERED) }
    }

    /// The peer was closed in order over its lifeline, whatever ended the other connection.
    pub(crate) fn note(&mut self, was_closed: bool) {
        self.proves |= was_closed;
    }

    /// The way in which the peer was lost, judged by the answer that came `after` the cut. None: the peer may come
    /// back.
    pub(crate) fn judge(&mut self, port: Port, after: Duration) -> Option<Loss> {
        match port {
            Port::Open => self.lives |= after > DYING,
            // A peer that still ran after the cut has ended since, perhaps because it could not reach us.
            Port::Closed if self.proves && self.lives => return Some(Loss::Cut),
            Port::Closed if self.proves => return Some(Loss::Died),
            Port::Closed | Port::Unanswered => {}
        }
        let [living, unanswered] = self.longest;
        let limit = if self.lives { living } else { unanswered };
        (after >= limit).then_some(Loss::Cut)
    }

    /// Dials the peer's port until the peer is lost; without a port it does not answer.
    pub(crate) async fn until_lost(
        mut self,
        peer: Option<SocketAddr>,
        was_closed: impl Fn() -> bool,
    ) -> Loss {
        let cut = Instant::now();
        loop {
            let found = match peer {
                Some(peer) => port(peer).await,
                None => Port::Unanswered,
            };
            self.note(was_closed());
            if let Some(loss) = self.judge(found, cut.elapsed()) {
                tracing::info!(?peer, ?loss, sight = ?self, "its connection was cut");
                return loss;
            }
            sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Config;
    use crate::tests::config;

    #[test]
    fn partition_below_the_timeout_is_allowed() {
        let config = Config { peer_timeout: Duration::from_secs(15), ..config(1, 2, 29500) };
        // The last heartbeat left 3 s before the partition began; the next attempt comes 1 s after it.
        let silence = config.peer_timeout + config.heartbeat() + RETRANSMISSION;
        assert_eq!(silence, Duration::from_secs(19));
        let capped = silence + ALLOWANCE;
        // A pause that cannot be capped may be as long as the time before it.
        let doubled = capped - RETRANSMISSION + config.peer_timeout;
        let expected = if is_capped() { capped } else { doubled };
        assert_eq!(config.longest_silence(), expected);
    }

    /// The steady clock stands still while the machine is suspended. All clocks stand still while a VM is paused; its
    /// wall clock is set afterwards.
    #[tokio::test(start_paused = true)]
    async fn pause_is_recognised_briefly_by_any_clock() {
        let config = config(1, 2, 29500);
        let silence = config.longest_silence();
        let beat = Duration::from_secs(1);
        let none = Duration::ZERO;
        for (what, late, slept, set, is_known) in [
            ("nothing", none, none, none, false),
            ("SIGSTOP", silence, none, none, true),
            ("a suspended machine", none, silence, silence, true),
            ("a paused VM", none, none, silence, true),
            ("a short sleep", none, beat, beat, false),
        ] {
            let mut pause = Pause::none(config.peer_timeout);
            let before = pause.looked;
            let now = Clocks {
                steady: before.steady + beat + late,
                since_boot: before.since_boot + beat + late + slept,
                wall: before.wall + beat + late + set,
            };
            pause.note_at(now, late);
            assert_eq!(pause.just_over().is_some(), is_known, "{what}");
            // Later events are not a consequence of the pause, and a wall clock that is set back is not a pause.
            tokio::time::advance(2 * config.heartbeat()).await;
            pause.note_at(Clocks { wall: before.wall, ..now }, none);
            assert_eq!(pause.just_over(), None, "{what}");
        }
    }

    #[tokio::test]
    async fn retransmission_pause_is_capped_where_supported() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let peer = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(peer).await.expect("a connection");
        prepare(&stream);
        assert!(stream.nodelay().expect("an option"));
        let timeout = rustix::net::sockopt::tcp_user_timeout(&stream).expect("an option");
        assert_eq!(timeout, KERNEL);
        // A value below the kernel's minimum: either the value or the option is rejected.
        let refused = sys::cap_retransmission(&stream, Duration::from_millis(1));
        let errno = refused.expect_err("1 ms is too short").raw_os_error();
        let unknown = errno == Some(rustix::io::Errno::NOPROTOOPT.raw_os_error());
        assert_eq!(is_capped(), !unknown, "{errno:?}");
    }

    #[test]
    fn stepped_wall_clock_changes_no_order() {
        let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let clock = Clock::set(an_hour_ago);
        let (first, second) = (clock.now(), clock.now());
        // The wall clock has jumped an hour ahead in the meantime.
        assert!(first <= second && second - millis(an_hour_ago) < 60_000, "{first} {second}");
        let before = now();
        std::thread::sleep(Duration::from_millis(5));
        assert!((5..5000).contains(&(now() - before)));
    }

    #[test]
    fn death_needs_a_reached_port_that_closed() {
        use Port::{Closed, Open, Unanswered};
        let (cut, died) = (Some(Loss::Cut), Some(Loss::Died));
        type Row<'a> = (bool, Cut, &'a [(Port, u64)], Option<Loss>);
        let table: [Row<'_>; 11] = [
            (true, Cut::Closed, &[(Closed, 0)], died),
            (true, Cut::Closed, &[(Open, 900), (Closed, 1_000)], died),
            (true, Cut::Closed, &[(Open, 1_100), (Closed, 1_200)], cut),
            (true, Cut::Reset, &[(Closed, 0)], None),
            (true, Cut::Reset, &[(Closed, 2_000)], cut),
            (false, Cut::Closed, &[(Closed, 0)], None),
            (false, Cut::Closed, &[(Closed, 2_000)], cut),
            (true, Cut::Closed, &[(Unanswered, 1_000)], None),
            (true, Cut::Closed, &[(Unanswered, 2_000)], cut),
            (true, Cut::Reset, &[(Open, 1_100), (Unanswered, 14_000)], None),
            (true, Cut::Closed, &[(Open, 1_100), (Unanswered, 15_000)], cut),
        ];
        for (was_reached, how, answers, expected) in table {
            let mut sight = Sight::new(was_reached, how, Duration::from_secs(15));
            let judge =
                |(port, after): &(Port, u64)| sight.judge(*port, Duration::from_millis(*after));
            let last = answers.iter().map(judge).last().flatten();
            assert_eq!(last, expected, "{was_reached} {how:?} {answers:?}");
        }
    }
}
