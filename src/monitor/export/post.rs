//! Posts one document by plain HTTP/1.1.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use text::lang::{Text, cause};
use text::letters::is_hidden;
use text::mask::mask_value;
use text::text;

/// Bytes of an answer that are read: its first line tells enough.
const READ: usize = 4096;

/// Why a document was not taken.
#[derive(Debug)]
pub enum PostError {
    /// The URL, without its secrets.
    Url(String),
    /// The time limit.
    Late(Duration),
    Io(io::Error),
    /// The first line of the server's answer.
    Refused(String),
}

impl From<io::Error> for PostError {
    fn from(error: io::Error) -> PostError {
        PostError::Io(error)
    }
}

impl PostError {
    pub fn text(&self) -> Text {
        match self {
            PostError::Url(url) => text!(
                "{url} is not of the form http://HOST:PORT/PATH",
                "{url} 不符合 http://HOST:PORT/PATH 的形式"
            ),
            PostError::Late(limit) => text!("no answer within {limit:?}", "{limit:?} 内无应答"),
            PostError::Io(error) => cause(error),
            PostError::Refused(answer) => {
                text!("the server answered {answer}", "服务器应答 {answer}")
            }
        }
    }
}

/// A URL as it may be quoted: it may hold a password or a token.
pub(super) fn without_secrets(url: &str) -> String {
    mask_value("", url.as_ref()).to_string_lossy().into_owned()
}

/// A URL of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpUrl {
    pub host: String,
    pub port: u16,
    pub path: String,
    pub is_tls: bool,
}

impl HttpUrl {
    /// # Errors
    /// When it is none.
    pub fn parse(url: &str) -> Result<HttpUrl, PostError> {
        let wrong = || PostError::Url(without_secrets(url));
        let of_tls = url.strip_prefix("https://");
        let rest = of_tls.or_else(|| url.strip_prefix("http://")).ok_or_else(wrong)?;
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = settings::endpoint::split(authority);
        let port = port
            .map_or(Ok(if of_tls.is_some() { 443 } else { 80 }), str::parse)
            .map_err(|_| wrong())?;
        let odd = |text: &str| text.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
        if host.is_empty() || host.contains('@') || odd(url) {
            return Err(wrong());
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(HttpUrl { host: host.to_owned(), port, path, is_tls: of_tls.is_some() })
    }

    /// `collector:4318`, `[::1]:4318`
    pub fn authority(&self) -> String {
        let HttpUrl { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Posts JSON by plain HTTP to the first of these addresses that answers.
///
/// # Errors
/// When it was not taken within the time.
pub async fn post(
    url: &HttpUrl,
    addresses: &[IpAddr],
    headers: &[(String, String)],
    body: &[u8],
    within: Duration,
) -> Result<(), PostError> {
    let sending = async {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect(SocketAddr::new(*address, url.port)).await {
                Ok(stream) => return exchange(stream, url, headers, body).await,
                Err(error) => last = error,
            }
        }
        Err(last.into())
    };
    timeout(within, sending).await.unwrap_or(Err(PostError::Late(within)))
}

/// Whether the first line of an answer has a code of success.
pub(super) fn is_success(line: &str) -> bool {
    let code = line.split(' ').nth(1).unwrap_or_default();
    code.len() == 3 && code.starts_with('2')
}

async fn exchange(
    mut stream: TcpStream,
    url: &HttpUrl,
    headers: &[(String, String)],
    body: &[u8],
) -> Result<(), PostError> {
    let (path, authority) = (&url.path, url.authority());
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    for (name, value) in headers {
        // A line break would begin another header.
        let plain = |text: &str| text.chars().filter(|letter| !is_hidden(*letter)).collect();
        let (name, value): (String, String) = (plain(name), plain(value));
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head += "\r\n";
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    let mut answer = Vec::new();
    while answer.len() < READ && !answer.contains(&b'\n') {
        if stream.read_buf(&mut answer).await? == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let line = text.lines().next().unwrap_or_default();
    if is_success(line) {
        return Ok(());
    }
    Err(PostError::Refused(line.chars().filter(|letter| !is_hidden(*letter)).take(80).collect()))
}
