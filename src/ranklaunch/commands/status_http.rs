//! Asks a node for its status over HTTP.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use linux::deadline::read_by;
use monitor::status::NodeStatus;
use text::lang::failure;
use text::text;

/// Time limit to connect, to ask, and of each part of the answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Time limit of the whole answer: a peer that sends a byte now and then blocks nobody.
const WHOLE: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer with its head.
const LARGEST: usize = 16 << 20;
const FIELDS: usize = 64;

/// # Errors
/// No answer, or an answer that is not a status.
pub(super) fn get(at: SocketAddr) -> io::Result<NodeStatus> {
    let mut stream = TcpStream::connect_timeout(&at, ANSWER)?;
    stream.set_write_timeout(Some(ANSWER))?;
    let asked = format!(
        "GET /status HTTP/1.1\r\nHost: {at}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(asked.as_bytes())?;
    let answer = read(&mut stream, WHOLE)?;
    body(&answer).and_then(NodeStatus::read).ok_or_else(|| {
        failure(
            io::ErrorKind::InvalidData,
            text!("it answers, but not as ranklaunch does", "有应答，但不是 ranklaunch 的格式"),
        )
    })
}

/// All bytes that are sent within this time.
fn read(stream: &mut TcpStream, within: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + within;
    let (mut answer, mut part) = (Vec::new(), vec![0_u8; 64 << 10]);
    while answer.len() < LARGEST {
        match read_by(stream, until.min(Instant::now() + ANSWER), &mut part)? {
            0 => break,
            count => answer.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
    Ok(answer)
}

/// Body of an answer with status 200.
fn body(answer: &[u8]) -> Option<&[u8]> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(length) = head.parse(answer).ok()? else { return None };
    (head.code == Some(200)).then(|| answer.get(length..)).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn endless_answer_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("it has one");
        let mut ours = TcpStream::connect(at).expect("connected");
        let (mut theirs, _) = listener.accept().expect("it is in the queue");
        let sends = std::thread::spawn(move || {
            // The peer sends until the reader has gone.
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let read = read(&mut ours, Duration::from_millis(200)).map_err(|error| error.kind());
        assert_eq!(read, Err(io::ErrorKind::TimedOut));
        drop(ours);
        sends.join().expect("it ends");
    }

    #[test]
    fn only_a_status_body_is_read() {
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
