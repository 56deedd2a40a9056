//! TCP between nodes: dialing a name until the peer answers, and listening for IPv4 and IPv6.
//!
//! Takes addresses, ports and deadlines; gives connections and listeners, or a [`DialError`].
//! Knows no protocol.

mod dial;
mod listen;

pub(crate) use dial::jitter;
pub use dial::{DialError, Dialer, Observation, Seen, Target, connect};
pub use listen::on_all_addresses;
