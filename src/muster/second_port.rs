//! The second port, on which node 0 sends a refusal if another process holds the first.
//!
//! If its port is taken, node 0 cannot notify any node, and the nodes would dial the holder until their deadline. So
//! node 0 waits for them on a port that both sides derive from the first. It sends only a refusal there.

/// Distance between the ports, which keeps the second port outside of the ephemeral range.
const DISTANCE: u16 = 10_000;

/// The second port: 10 000 below the first port, or above it if there is no room below.
pub(crate) fn second_port(port: u16) -> u16 {
    if port >= 2 * DISTANCE { port - DISTANCE } else { port + DISTANCE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_port_is_valid_and_never_the_first() {
        for (first, other) in [
            (29500, 19500),
            (7777, 17777),
            (20000, 10000),
            (19999, 29999),
            (65535, 55535),
            (1, 10001),
        ] {
            assert_eq!(second_port(first), other);
        }
    }
}
