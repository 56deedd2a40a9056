//! TCP to and from other nodes: a name is resolved and dialed until something answers, and a
//! port is listened on for IPv4 and IPv6.
//!
//! Takes addresses, ports and deadlines; gives connections and listeners, and of what failed
//! a [`DialError`]. Knows no protocol, never decides what a connection means.

mod dial;
mod listen;

pub(crate) use dial::{DialError, Dialer, Observation, Seen, Target, connect, jitter};
pub(crate) use listen::on_all_addresses;
