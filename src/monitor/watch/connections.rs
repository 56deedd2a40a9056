//! Bytes that TCP connections carried, from the kernel's socket diagnosis (sock_diag(7)).
//!
//! /proc does not count bytes that recv(2) and send(2) move, and a thread that waits for bytes looks the same
//! whether they come or not. Only the connections tell the two apart.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
    sockopt,
};

/// Time limit for all answers. The kernel gives them without waiting for anything.
const ANSWER: Duration = Duration::from_millis(200);
/// Maximum bytes of answers: enough for some ten thousand connections.
const MOST: usize = 8 << 20;
/// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x1 | 0x300;
const INET_DIAG_INFO: u16 = 2;
/// `struct inet_diag_msg`: its size, port and address of each end, the bytes of the send queue, and the inode.
const MESSAGE: usize = 72;
const LOCAL: (usize, usize) = (4, 8);
const PEER: (usize, usize) = (6, 24);
const SEND_QUEUE: usize = 60;
const INODE: usize = 68;
/// Offsets in `struct tcp_info` (linux/tcp.h), since Linux 4.1.
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

/// A TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) inode: u32,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Bytes received, and bytes sent that have arrived.
    pub(super) bytes: u64,
    /// Bytes sent that have not arrived, as far as known.
    pub(super) unheard: u32,
}

/// The open files of a process, as far as they carry bytes to other ranks.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    /// Inodes.
    pub(super) sockets: BTreeSet<u32>,
    /// An accelerator, over which the process may speak by NCCL or its like.
    pub(super) has_accelerator: bool,
}

impl OpenFiles {
    pub(super) fn of(process: &Path) -> OpenFiles {
        const DEVICES: &[&str] =
            &["/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/dxg", "/dev/accel", "/dev/davinci"];
        let mut open = OpenFiles::default();
        let entries = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        for link in entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
            let Some(link) = link.to_str() else { continue };
            let socket = link.strip_prefix("socket:[").and_then(|link| link.strip_suffix(']'));
            open.sockets.extend(socket.and_then(|inode| inode.parse::<u32>().ok()));
            open.has_accelerator |= DEVICES.iter().any(|device| link.starts_with(device));
        }
        open
    }
}

/// The TCP connections of this network namespace. None if the kernel does not report them.
pub(super) fn connections() -> Option<Vec<Connection>> {
    let mut found = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        // A machine may have no IPv6.
        if let Ok(of_family) = of_family(family) {
            found.extend(of_family);
        } else if family == AddressFamily::INET {
            return None;
        }
    }
    Some(found)
}

fn of_family(family: AddressFamily) -> io::Result<Vec<Connection>> {
    let until = Instant::now() + ANSWER;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER))?;
    send(&socket, &request(family), SendFlags::empty())?;
    answers(&socket, until)
}

fn answers(socket: &OwnedFd, until: Instant) -> io::Result<Vec<Connection>> {
    let mut found = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut read = 0;
    while read < MOST && Instant::now() < until {
        let (_, length) = recv(socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        read += length;
        if length == 0 {
            break;
        }
        if !messages(buffer.get(..length).unwrap_or_default(), &mut found)? {
            return Ok(found);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// `struct nlmsghdr`, then `struct inet_diag_req_v2`: all connections, with their `tcp_info`.
fn request(family: AddressFamily) -> Vec<u8> {
    const IPPROTO_TCP: u8 = 6;
    const LENGTH: u32 = 72;
    /// Bits of the states: all but those of listeners and of connections that nobody has open.
    const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8;
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    let mut bytes = Vec::with_capacity(LENGTH as usize);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST_DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    bytes.extend(STATES.to_ne_bytes());
    bytes.resize(LENGTH as usize, 0);
    bytes
}

/// Parses messages of an answer; false after the last one.
fn messages(mut bytes: &[u8], found: &mut Vec<Connection>) -> io::Result<bool> {
    while bytes.len() >= HEADER {
        let length = number(bytes, 0).map_or(0, |length| length as usize);
        let Some(message) = bytes.get(HEADER..length) else { break };
        match half(bytes, 4) {
            Some(NLMSG_DONE) => return Ok(false),
            Some(NLMSG_ERROR) => return Err(io::ErrorKind::Unsupported.into()),
            Some(SOCK_DIAG_BY_FAMILY) => found.extend(connection(message)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

fn connection(message: &[u8]) -> Option<Connection> {
    let inode = number(message, INODE)?;
    let (local, peer) = (end(message, LOCAL)?, end(message, PEER)?);
    let mut attributes = message.get(MESSAGE..)?;
    loop {
        let (length, kind) = (usize::from(half(attributes, 0)?), half(attributes, 2)?);
        let info = attributes.get(4..length)?;
        if kind == INET_DIAG_INFO {
            let bytes = long(info, BYTES_ACKED)?.wrapping_add(long(info, BYTES_RECEIVED)?);
            let unheard = number(message, SEND_QUEUE)?;
            return Some(Connection { inode, local, peer, bytes, unheard });
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Both ends compare as equal, whichever address family each has chosen.
fn end(message: &[u8], (port, address): (usize, usize)) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*message.get(port..)?.first_chunk()?);
    let address = message.get(address..)?;
    let address = if u16::from(*message.first()?) == AddressFamily::INET6.as_raw() {
        IpAddr::from(Ipv6Addr::from(*address.first_chunk::<16>()?)).to_canonical()
    } else {
        IpAddr::from(Ipv4Addr::from(*address.first_chunk::<4>()?))
    };
    Some(SocketAddr::new(address, port))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn open_accelerator_is_seen() {
        let process = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(process.path().join("fd")).expect("made");
        let link = |fd: &str, to: &str| {
            std::os::unix::fs::symlink(to, process.path().join("fd").join(fd)).expect("a link");
        };
        link("0", "/dev/null");
        link("1", "socket:[7]");
        assert!(!OpenFiles::of(process.path()).has_accelerator);
        link("2", "/dev/nvidiactl");
        let open = OpenFiles::of(process.path());
        assert!(open.has_accelerator);
        assert_eq!(open.sockets, BTreeSet::from([7]));
    }

    #[test]
    fn bytes_carried_by_a_connection_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = listener.local_addr().expect("an address");
        let mut stream = TcpStream::connect(at).expect("connected");
        let (mut other, _) = listener.accept().expect("accepted");
        let own = OpenFiles::of(Path::new("/proc/self")).sockets;
        // A sandbox may have no socket diagnosis.
        if connections().is_none() {
            return;
        }
        let of = |stream: &TcpStream| {
            let all = connections().expect("as before");
            let ends =
                (stream.local_addr().expect("bound"), stream.peer_addr().expect("connected"));
            all.into_iter().find(|one| (one.local, one.peer) == ends).expect("there")
        };
        let before = [of(&stream), of(&other)];
        assert!(before.iter().all(|one| own.contains(&one.inode)), "{before:?}");
        stream.write_all(&[7; 40_000]).expect("sent");
        other.read_exact(&mut [0; 40_000]).expect("received");
        assert!(of(&stream).bytes >= before[0].bytes + 40_000, "{before:?}");
        assert!(of(&other).bytes >= before[1].bytes + 40_000, "{before:?}");
        assert_eq!(of(&stream).unheard, 0, "all has arrived");
        // More than the kernel takes for a program that does not read.
        stream.set_nonblocking(true).expect("set");
        while stream.write(&[7; 40_000]).is_ok() {}
        assert!(of(&stream).unheard > 0);
    }

    #[test]
    fn malformed_netlink_replies_yield_no_connections() {
        let mut found = Vec::new();
        for length in 0..200_u32 {
            // Truncated input, with lengths of a message and of an attribute that lead beyond its end.
            for fill in [0, 1, 0xff] {
                let head = [&length.to_ne_bytes()[..], &SOCK_DIAG_BY_FAMILY.to_ne_bytes()].concat();
                let mut bytes = head;
                bytes.resize((length as usize).max(8), fill);
                assert!(messages(&bytes, &mut found).is_ok());
            }
        }
        let error = [&20_u32.to_ne_bytes()[..], &NLMSG_ERROR.to_ne_bytes(), &[0; 14]].concat();
        assert!(messages(&error, &mut found).is_err());
        let done = [&16_u32.to_ne_bytes()[..], &NLMSG_DONE.to_ne_bytes(), &[0; 10]].concat();
        assert!(!messages(&done, &mut found).expect("read"));
        assert_eq!(found, []);
    }
}
