//! Asks a node for its status over HTTP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::lang::failure;
use crate::status::NodeStatus;
use crate::text;

/// Time limit to connect, and of each part of the answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Bytes of an answer with its head.
const LARGEST: u64 = 16 << 20;
const FIELDS: usize = 64;

/// # Errors
/// If nobody answers, or not with a status.
pub(super) fn get(at: SocketAddr) -> io::Result<NodeStatus> {
    let mut stream = TcpStream::connect_timeout(&at, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let asked = format!(
        "GET /status HTTP/1.1\r\nHost: {at}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(asked.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer)?;
    body(&answer).and_then(NodeStatus::read).ok_or_else(|| {
        failure(
            io::ErrorKind::InvalidData,
            text!("it answers, but not as ranklaunch does", "有应答，但不是 ranklaunch 的格式"),
        )
    })
}

/// What follows the head of an answer that is well.
fn body(answer: &[u8]) -> Option<&[u8]> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(length) = head.parse(answer).ok()? else { return None };
    (head.code == Some(200)).then(|| answer.get(length..)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_status_is_read() {
        let status = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"host\":\"here\"}";
        let read = body(status).and_then(NodeStatus::read).expect("a status");
        assert_eq!(read.host, "here");
        for other in [
            &b""[..],
            b"HTTP/1.1 404 Not Found\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\n\r\n<html>",
            b"SSH-2.0-OpenSSH_9\r\n",
        ] {
            assert!(body(other).and_then(NodeStatus::read).is_none());
        }
    }
}
