//! What the port of a peer tells after its connection was cut.
//!
//! A cut connection does not tell whether the peer died or something between the nodes cut it: a
//! sidecar, a firewall that lost its table, a load balancer. Each side therefore has a port that is
//! open as long as its agent lives, and both sides dial. A connection that was closed, as a kernel does
//! it for a process that ended, and a port that was reached before and is closed now prove a death. A
//! connection that was reset does not: what resets connections may refuse them as well.

use std::net::SocketAddr;
use std::time::Duration;

use crate::net::connect;
use crate::protocol::{ChannelError, Loss};

/// Time limit of one dial.
const DIAL: Duration = Duration::from_secs(1);
/// Interval of dials.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
/// A peer whose port does not answer for so long is lost.
pub(crate) const UNANSWERED: Duration = Duration::from_secs(2);
/// A process that dies closes its connections one after the other, so an open port proves nothing
/// for so long.
const DYING: Duration = Duration::from_millis(300);

/// The answer to a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Open,
    Closed,
    /// Nothing, or an error on the way.
    Unanswered,
}

/// Dials the port, and hangs up.
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

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// In order, as after the end of a process.
    Closed,
    /// By a reset, or in the middle of a frame.
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

/// What the dials after a cut have shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sight {
    /// Whether a closed port proves a death.
    proves: bool,
    lives: bool,
    /// The peer timeout.
    longest: Duration,
}

impl Sight {
    /// `was_reached`: the port was reached before; otherwise a firewall may be what closes it.
    pub(crate) fn new(was_reached: bool, cut: Cut, longest: Duration) -> Sight {
        Sight { proves: was_reached && cut == Cut::Closed, lives: false, longest }
    }

    /// How the peer was lost, by the answer that came `after` the cut. None: it may come back.
    pub(crate) fn judge(&mut self, port: Port, after: Duration) -> Option<Loss> {
        match port {
            Port::Open => self.lives |= after > DYING,
            // A peer that was still there has ended since, perhaps because it could not reach us.
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
    fn only_a_port_that_was_open_and_closed_proves_a_death() {
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
