//! Names the program that holds the port of node 0, from its answer.
//!
//! Sends an HTTP request, which changes nothing and which neither a store nor ranklaunch mistakes for a message of its
//! own. The answer proves nothing about node 0, which may come later; it only names the obstacle.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::net::connect;
use crate::protocol::Stream;
use text::lang::Text;
use text::text;

const QUESTION: &[u8] = b"HEAD / HTTP/1.0\r\nUser-Agent: ranklaunch\r\n\r\n";
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(1);
/// Bytes of an answer to read: a status line and the first headers.
const READ: usize = 1024;
/// Characters of a server's own name that are printed.
const SHOWN: usize = 60;

/// The program that holds the port; None if it does not identify itself.
pub(crate) async fn name(peer: SocketAddr) -> Option<Text> {
    let mut stream = connect(peer, CONNECT).await.ok()?;
    let mut answer = Vec::with_capacity(READ);
    // The answer is read to its end or until the buffer is full.
    let asked = async {
        stream.write_all(QUESTION).await?;
        while answer.len() < READ && stream.read_buf(&mut answer).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    let _ = timeout(ANSWER, asked).await;
    program(&answer)
}

/// Whether the connection is such a request from a node. A node sends it if node 0 answers late.
pub(crate) async fn is_question(first: &[u8], stream: &mut impl Stream) -> bool {
    let Some(expected) = QUESTION.strip_prefix(first) else { return false };
    let mut rest = vec![0; expected.len()];
    let read = timeout(ANSWER, stream.read_exact(&mut rest)).await;
    matches!(read, Ok(Ok(_))) && rest == expected
}

/// The program, identified by the first bytes of its answer.
fn program(answer: &[u8]) -> Option<Text> {
    if answer.starts_with(b"HTTP/") {
        let server = server(answer);
        return Some(text!("an HTTP server{server}", "HTTP 服务器{server}"));
    }
    if answer.starts_with(b"SSH-") {
        return Some(text!("an SSH server", "SSH 服务器"));
    }
    // The peer answers with a TLS alert, because our request was not a handshake.
    if answer.starts_with(&[0x15, 0x03]) {
        return Some(text!("a TLS server", "TLS 服务器"));
    }
    None
}

/// The server header, such as ` (nginx/1.25.3)`.
fn server(answer: &[u8]) -> String {
    let answer = String::from_utf8_lossy(answer);
    let mut headers = answer.lines().skip(1).take_while(|line| !line.is_empty());
    let named = headers.find_map(|line| {
        let (header, value) = line.split_once(':')?;
        header.eq_ignore_ascii_case("server").then(|| value.trim().to_owned())
    });
    let named: String = named
        .unwrap_or_default()
        .chars()
        .filter(|letter| letter.is_ascii_graphic() || *letter == ' ')
        .take(SHOWN)
        .collect();
    if named.is_empty() { named } else { format!(" ({named})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_identified_by_its_first_bytes() {
        let rows: [(&[u8], Option<&str>); 7] = [
            (
                b"HTTP/1.0 501 No\r\nserver: Simple/0.6 \x1b[31m\xffx\r\n\r\n",
                Some("an HTTP server (Simple/0.6 [31mx)"),
            ),
            (b"HTTP/1.1 400 Bad Request\r\n\r\nServer: body", Some("an HTTP server")),
            (b"HTTP/1.1 400 Bad Request\r\n", Some("an HTTP server")),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Some("an SSH server")),
            (b"\x15\x03\x01\x00\x02\x02\x46", Some("a TLS server")),
            (b"rkl/mu\x03\x00\x01", None),
            (b"", None),
        ];
        for (answer, name) in rows {
            assert_eq!(program(answer).map(|name| name.en.into_owned()).as_deref(), name);
        }
    }
}
