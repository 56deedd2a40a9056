//! Conclusions from the port of a peer after its connection was cut.
//!
//! A cut connection does not tell whether the peer died or something between the nodes cut it: a sidecar, a firewall
//! that lost its table, a load balancer. Each side therefore has a port that is open as long as its agent lives, and
//! both sides dial. Two facts together prove a death: the connection was closed in the way a kernel does it for a
//! process that ended, and a port that was reached before is closed now. A connection that was reset proves nothing,
//! since a device that resets connections may refuse them as well.

use std::net::SocketAddr;
use std::time::Duration;

use crate::net::connect;
use crate::protocol::{ChannelError, Loss};

/// Time limit of one dial.
const DIAL: Duration = Duration::from_secs(1);
/// Interval of dials.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
/// Time without an answer of the port after which a peer is lost.
pub(crate) const UNANSWERED: Duration = Duration::from_secs(2);
/// Time after a cut in which an open port proves nothing, since a process that dies closes its connections one after
/// the other.
const DYING: Duration = Duration::from_millis(300);

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
    /// Ended by a reset, or in the middle of a frame.
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
    /// The peer timeout.
    longest: Duration,
}

impl Sight {
    /// `was_reached`: the port was reached before; otherwise a firewall may be the reason why it is closed.
    pub(crate) fn new(was_reached: bool, cut: Cut, longest: Duration) -> Sight {
        Sight { proves: was_reached && cut == Cut::Closed, lives: false, longest }
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
        let limit = if self.lives { self.longest } else { UNANSWERED.min(self.longest) };
        (after >= limit).then_some(Loss::Cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn death_needs_a_reached_port_that_closed() {
        use Port::{Closed, Open, Unanswered};
        let (cut, died) = (Some(Loss::Cut), Some(Loss::Died));
        type Row<'a> = (bool, Cut, &'a [(Port, u64)], Option<Loss>);
        let table: [Row<'_>; 11] = [
            (true, Cut::Closed, &[(Closed, 0)], died),
            (true, Cut::Closed, &[(Open, 5), (Closed, 105)], died),
            (true, Cut::Closed, &[(Open, 400), (Closed, 500)], cut),
            (true, Cut::Reset, &[(Closed, 0)], None),
            (true, Cut::Reset, &[(Closed, 2_000)], cut),
            (false, Cut::Closed, &[(Closed, 0)], None),
            (false, Cut::Closed, &[(Closed, 2_000)], cut),
            (true, Cut::Closed, &[(Unanswered, 1_000)], None),
            (true, Cut::Closed, &[(Unanswered, 2_000)], cut),
            (true, Cut::Reset, &[(Open, 400), (Unanswered, 14_000)], None),
            (true, Cut::Closed, &[(Open, 400), (Unanswered, 15_000)], cut),
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
