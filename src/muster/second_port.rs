//! The second port: where node 0 refuses when another process holds the first.
//!
//! A node 0 whose port is taken could tell no node, and its nodes would dial the
//! holder until their deadline. It waits for them on a port that both sides derive
//! from the first one. Only a refusal is ever said there.

/// A distance that keeps both ports off the ephemeral ones wherever the first is.
const DISTANCE: u16 = 10_000;

/// 10 000 below the first port, and above it where there is no room below.
pub(crate) fn second_port(port: u16) -> u16 {
    if port >= 2 * DISTANCE { port - DISTANCE } else { port + DISTANCE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_port_is_one_and_never_the_first() {
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
