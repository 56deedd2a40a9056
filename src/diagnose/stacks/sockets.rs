//! The two ends of a TCP socket, from `/proc/PID/net/tcp` and `tcp6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub local: String,
    /// None for a listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// The connection of `socket:[INODE]`, in the network namespace of the process.
pub(super) fn connection(process: &Path, link: &str) -> Option<Connection> {
    let inode: u64 = link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
    ["net/tcp", "net/tcp6"].into_iter().find_map(|table| {
        let table = std::fs::read_to_string(process.join(table)).ok()?;
        table.lines().skip(1).find_map(|line| row(line, inode))
    })
}

/// proc_pid_net(5): `sl local_address rem_address st … uid timeout inode`.
fn row(line: &str, inode: u64) -> Option<Connection> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, peer) = (fields.next()?, fields.next()?);
    if fields.nth(6)?.parse() != Ok(inode) {
        return None;
    }
    let peer = address(peer)?;
    let peer = (peer.port() != 0).then(|| peer.to_string());
    Some(Connection { local: address(local)?.to_string(), peer })
}

/// `0100007F:6F99`: words of four bytes in the order of the machine, then the port as a number.
fn address(field: &str) -> Option<SocketAddr> {
    let (host, port) = field.split_once(':')?;
    let word = |at: usize| {
        let digits = host.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let host = match host.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.as_flattened()).for_each(|(byte, from)| *byte = *from);
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(host, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn connection_ends_match_the_socket() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = std::net::TcpListener::bind(host) else { continue };
            let at = listener.local_addr().expect("bound");
            let stream = std::net::TcpStream::connect(at).expect("connected");
            let process = Path::new("/proc/self");
            let seen = |fd: i32| {
                let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("a link");
                connection(process, link.to_str().expect("text"))
            };
            let local = stream.local_addr().expect("bound").to_string();
            let both = Connection { local, peer: Some(at.to_string()) };
            assert_eq!(seen(stream.as_raw_fd()), Some(both));
            let alone = Connection { local: at.to_string(), peer: None };
            assert_eq!(seen(listener.as_raw_fd()), Some(alone));
        }
        for broken in ["", "1", "a b c d e f g h i 7", "0: 0100007F:0016 x:y 0A 0 0 0 0 0 7"] {
            assert_eq!(row(broken, 7), None);
        }
        assert_eq!(connection(Path::new("/proc/self"), "pipe:[7]"), None);
    }
}
