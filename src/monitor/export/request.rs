//! Reads a request of HTTP/1.x: only what a scraper or a probe sends.

use std::net::IpAddr;

/// Maximum bytes of the head of a request.
pub(super) const LARGEST: usize = 8 * 1024;
/// Maximum number of headers that are read.
const HEADERS: usize = 64;

/// The request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The path without the query.
    pub(super) path: String,
    /// HEAD in place of GET.
    pub(super) only_head: bool,
    pub(super) host: Option<String>,
    /// The value of `Accept`.
    pub(super) accept: String,
}

/// Why a request is not answered with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// The bytes are not HTTP.
    Garbage,
    TooLong,
    Method,
}

/// None means that more bytes are needed.
///
/// # Errors
/// The fault in the bytes so far.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Request>, Bad> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() >= LARGEST => return Err(Bad::TooLong),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Bad::TooLong),
        Err(_) => return Err(Bad::Garbage),
    }
    let only_head = match parsed.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Bad::Method),
    };
    let header = |name: &str| {
        let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        Some(String::from_utf8_lossy(found.value).trim().to_owned())
    };
    let path = parsed.path.unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default().to_owned();
    let accept = header("accept").unwrap_or_default();
    Ok(Some(Request { path, only_head, host: header("host"), accept }))
}

/// Whether a name in `Host` means this machine itself. A page in a browser can reach a loopback
/// address by a name of its own, but not under one of these.
pub(super) fn is_loopback(host: &str) -> bool {
    // Only an address stands in brackets.
    if let Some(rest) = host.strip_prefix('[') {
        // The brackets are followed by a port or by nothing: `[::1].evil.com` is a name that
        // anybody may own.
        let inside = rest.split_once(']').filter(|(_, port)| {
            port.strip_prefix(':').map_or(port.is_empty(), |port| port.parse::<u16>().is_ok())
        });
        let address = inside.and_then(|(address, _)| address.parse::<IpAddr>().ok());
        return address.is_some_and(|address| address.is_loopback());
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
