//! A listener for IPv4 and IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// Listens on all addresses in the same way as torch's store: IPv6 with IPv4 if there is IPv6, with SO_REUSEADDR.
/// Non-blocking. The kernel limits the queue to net.core.somaxconn.
///
/// # Errors
/// If the port is taken, or this user may not bind it.
pub fn on_all_addresses(port: u16) -> Result<TcpListener> {
    let open = |family, address: IpAddr| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if family == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        bind(&socket, &SocketAddr::new(address, port))?;
        // With SO_REUSEADDR two sockets can bind; only the listen call fails.
        listen(&socket, i32::from(u16::MAX))?;
        Ok(TcpListener::from(socket))
    };
    match open(AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()) {
        // This kernel or namespace has no IPv6.
        Err(error) if error != Errno::ADDRINUSE => {
            open(AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into())
        }
        result => result,
    }
}
