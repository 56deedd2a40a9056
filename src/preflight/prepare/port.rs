//! Finds a free port, and checks whether a port is free and which process has it.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use linux::host::Host;
use linux::procfs::{self, ListeningSocket};
use muster::net::on_all_addresses;
use text::lang::{self, Text};
use text::text;
use verdict::{Id, Refusal};

/// A TCP port of `address` that is free at this moment.
///
/// # Errors
/// When the address is not this node's, or no port is left.
pub fn free_port(address: IpAddr) -> io::Result<u16> {
    TcpListener::bind(SocketAddr::new(address, 0))?.local_addr().map(|bound| bound.port())
}

/// Whether torch's store could listen on `port`.
///
/// # Errors
/// `Verdict::PortInUse`, with the owner if it is visible.
pub fn check_port(host: &Host, port: u16) -> Result<(), Refusal> {
    let Err(error) = on_all_addresses(port) else { return Ok(()) };
    let error = io::Error::from(error);
    let Text { en: cause, zh: cause_zh } = lang::cause(&error);
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Err(Refusal::new(
            Id::PortForbidden,
            text!(
                "master port {port} may not be bound by this user: {cause}",
                "当前用户无权绑定 Master 端口 {port}：{cause_zh}"
            ),
            text!(
                "choose a port above 1023 with --master-port, the same on every node",
                "请在所有节点上用 --master-port 指定同一个大于 1023 的端口"
            ),
        ));
    }
    let (en, zh) = match ListeningSocket::on(host, port) {
        Some(ListeningSocket { owner: Some((pid, argv)), .. }) => {
            let command = procfs::shown(&argv);
            (format!("held by pid {pid} ({command})"), format!("占用者为 pid {pid}（{command}）"))
        }
        Some(_) => (
            "held by a process that is not visible here: another container of this pod or host network, or another user"
                .to_owned(),
            "占用者在此处不可见：同一 Pod 或主机网络中的其他容器，或其他用户".to_owned(),
        ),
        None => (format!("no listener is visible: {cause}"), format!("未见监听者：{cause_zh}")),
    };
    Err(Refusal::new(
        Id::PortFree,
        text!(
            "master port {port} is in use on this node, {en}",
            "本节点的 Master 端口 {port} 已被占用，{zh}"
        ),
        text!(
            "end that process, or choose another port with --master-port, the same on every node",
            "请结束该进程，或在所有节点上用 --master-port 指定同一个其他端口"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn port_bound_on_one_address_names_its_owner() {
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv4Addr::UNSPECIFIED.into()] {
            let listener = TcpListener::bind(SocketAddr::new(address, 0)).expect("bind");
            let port = listener.local_addr().expect("address").port();
            let refusal = check_port(&Host::live(), port).expect_err("in use");
            assert_eq!(refusal.verdict.code(), 87);
            let owner = format!("pid {} (", std::process::id());
            assert!(refusal.text.en.contains(&owner), "{}", refusal.text.en);
            assert!(refusal.hint.en.contains("--master-port"));
        }
    }

    #[test]
    fn port_with_old_connections_is_free() {
        let port = free_port(Ipv4Addr::LOCALHOST.into()).expect("port");
        assert_eq!(check_port(&Host::live(), port), Ok(()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("bind");
        let client = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
        let (served, _) = listener.accept().expect("accept");
        drop(listener);
        // torchrun can bind while connections are still open.
        assert_eq!(check_port(&Host::live(), port), Ok(()));
        // The side that closes first stays in TIME_WAIT.
        drop(served);
        drop(client);
        assert_eq!(check_port(&Host::live(), port), Ok(()));
    }
}
