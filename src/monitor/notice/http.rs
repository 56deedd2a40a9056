//! One request to a metadata service and its answer, over a socket of our own.
//!
//! An HTTP client would read proxy variables and follow redirects; a metadata service is always asked itself. An answer
//! has so many bytes and so much time, all together, that a service that is slow, endless or none costs neither.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use text::lang::{Text, cause, failure};
use text::text;

/// Time limit for the connection, the request and its answer together.
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum bytes of an answer with its head. The longest that are known, lists of events, have some hundreds per event.
pub(super) const LARGEST: usize = 64 * 1024;
const HEADERS: usize = 64;

/// What is asked: a method, a path with its query, and headers beside Host and Connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) host: &'a str,
    pub(super) headers: &'a [(&'a str, &'a str)],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_slice())
    }

    /// The body as text, without white space around it.
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_default().trim()
    }
}

/// Asks once.
///
/// # Errors
/// In words, why there is no answer.
pub(super) fn ask(address: SocketAddr, request: Request<'_>) -> Result<Answer, Text> {
    exchange(address, request).map_err(|error| match error.kind() {
        // A read that reaches its time limit ends so.
        ErrorKind::WouldBlock => cause(&ErrorKind::TimedOut.into()),
        _ => cause(&error),
    })
}

fn exchange(address: SocketAddr, request: Request<'_>) -> io::Result<Answer> {
    let until = Instant::now() + LONGEST;
    let left = || {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(ErrorKind::TimedOut)) } else { Ok(left) }
    };
    let Request { method, path, host, headers } = request;
    let mut words = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        words.extend([*name, ": ", *value, "\r\n"]);
    }
    // Without it a PUT waits for its body on some servers.
    if method == "PUT" {
        words.push_str("Content-Length: 0\r\n");
    }
    words.push_str("\r\n");
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(words.as_bytes())?;
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        stream.set_read_timeout(Some(left()?))?;
        let read = match stream.read(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        bytes.extend(part.iter().take(read));
        if let Some(answer) = answer(&bytes, read == 0)? {
            return Ok(answer);
        }
        if bytes.len() > LARGEST {
            return Err(wrong(text!("its answer has no end", "回答没有结尾")));
        }
    }
}

fn wrong(text: Text) -> io::Error {
    failure(ErrorKind::InvalidData, text)
}

/// The answer in these bytes; None while a part of it is missing. `ended`: none will follow.
pub(super) fn answer(bytes: &[u8], ended: bool) -> io::Result<Option<Answer>> {
    let no_http = || wrong(text!("its answer is no HTTP", "回答不是 HTTP"));
    let partial = || if ended { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return partial(),
        Err(_) => return Err(no_http()),
    };
    let rest = bytes.get(length..).unwrap_or_default();
    let named = |header: &httparse::Header<'_>| (header.name.to_owned(), header.value.to_vec());
    let mut found = Answer {
        status: head.code.ok_or_else(no_http)?,
        headers: head.headers.iter().map(named).collect(),
        body: Vec::new(),
    };
    let has_chunks = found
        .header("Transfer-Encoding")
        .is_some_and(|value| String::from_utf8_lossy(value).trim().eq_ignore_ascii_case("chunked"));
    let body = if has_chunks {
        match chunks(rest).map_err(|()| no_http())? {
            Some(body) => body,
            None => return partial(),
        }
    } else if let Some(value) = found.header("Content-Length") {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
        let number: usize = number.ok_or_else(no_http)?;
        if number > LARGEST {
            return Err(wrong(text!("its answer is too large", "回答过大")));
        }
        match rest.get(..number) {
            Some(body) => body.to_vec(),
            None => return partial(),
        }
    } else if ended {
        rest.to_vec()
    } else {
        return Ok(None);
    };
    found.body = body;
    Ok(Some(found))
}

/// The parts of a chunked body (RFC 9112, 7.1); None while one is missing.
fn chunks(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, ()> {
    let mut body = Vec::new();
    loop {
        let (start, size) = match httparse::parse_chunk_size(bytes).map_err(drop)? {
            httparse::Status::Complete(found) => found,
            httparse::Status::Partial => return Ok(None),
        };
        let size = usize::try_from(size).map_err(drop)?;
        if size == 0 {
            return Ok(Some(body));
        }
        if size > LARGEST {
            return Err(());
        }
        // The size in line `start` is followed by that many bytes and a line end.
        let (Some(part), Some(rest)) =
            (bytes.get(start..start + size), bytes.get(start + size + 2..))
        else {
            return Ok(None);
        };
        body.extend(part);
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8], ended: bool) -> Option<(u16, String)> {
        let answer = answer(text, ended).ok()??;
        Some((answer.status, answer.text().to_owned()))
    }

    #[test]
    fn three_ways_to_end_a_body() {
        let of = |status, text: &str| Some((status, text.to_owned()));
        let sized = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE and more";
        assert_eq!(read(sized, false), of(200, "TRUE"));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nTR\r\n2;x=y\r\nUE\r\n0\r\n\r\n";
        assert_eq!(read(chunked, false), of(200, "TRUE"));
        let closed = b"HTTP/1.0 404 Not Found\r\n\r\nno such key";
        assert_eq!((read(closed, false), read(closed, true)), (None, of(404, "no such key")));
        for wrong in [
            &b"<html>"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            b"",
        ] {
            assert!(answer(wrong, true).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        /// Cut anywhere, in parts of any size, an answer is the same.
        #[test]
        fn answers_are_whole_or_missing(body in ".{0,40}", cut in 0_usize..400, parts in 1_usize..9) {
            let head = "HTTP/1.1 200 OK\r\nServer: EC2ws\r\n";
            let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
            for part in body.as_bytes().chunks(parts) {
                chunked.extend(format!("{:x}\r\n", part.len()).into_bytes());
                chunked.extend([part, b"\r\n"].concat());
            }
            chunked.extend(b"0\r\n\r\n");
            let sized = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
            for all in [chunked, sized] {
                let whole = answer(&all, true).expect("HTTP").expect("whole");
                prop_assert_eq!(&whole.body, body.as_bytes());
                let begun = all.get(..cut.min(all.len())).unwrap_or_default();
                if let Ok(Some(early)) = answer(begun, false) {
                    prop_assert_eq!(early, whole);
                }
            }
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), ended: bool) {
            let _ = answer(&bytes, ended);
            let _ = answer(&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &bytes[..]].concat(), ended);
        }
    }
}
