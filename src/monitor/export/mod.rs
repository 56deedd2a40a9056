//! The known state of a running job, for other systems: metrics, probes and the status of a TrainJob.
//!
//! Takes the [`StatusBoard`] and the progress of the job; gives answers over HTTP
//! and the status of a TrainJob. Never asks the job: a client that floods, is slow or sends garbage costs a
//! bounded amount of memory, and never time of a rank or of the supervision.

use std::io::{self, ErrorKind, PipeWriter, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::status::{NodeStatus, Phase, StatusBoard};
use linux::sys::{self, PollFd, PollFlags};
use openmetrics::{Format, render};

#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod openmetrics;
#[cfg(test)]
mod tests;
mod trainjob;

pub use trainjob::{TrainJobTarget, is_taken, trainer_status};

/// Connections at the same time.
const MOST: usize = 32;
/// Time limit of a client for each of: its request, taking the answer, and closing.
const CLIENT: Duration = Duration::from_secs(5);
const CLOSING: Duration = Duration::from_secs(1);
/// Connections that are accepted before the others go on.
const AT_ONCE: usize = 8;
/// Pause of the listener when descriptors are short.
const REST: Duration = Duration::from_millis(500);
/// The nice value of the thread.
const LOWEST: i32 = 19;

/// Serves until it is dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    /// Closed at the end, which wakes the thread.
    _open: PipeWriter,
}

impl HttpServer {
    /// # Errors
    /// When the address cannot be bound, or no thread is left.
    pub fn start(address: SocketAddr, board: StatusBoard) -> io::Result<HttpServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (closed, open) = io::pipe()?;
        let pages = Pages::new(board, address.ip().is_loopback());
        let mut serving =
            Serving { listener, closed, pages, connections: Vec::new(), rests_until: None };
        let thread = std::thread::Builder::new().name("http".into()).stack_size(256 * 1024);
        thread.spawn(move || {
            // Linux sets the nice value of the calling thread alone. If this fails, a flood only costs more.
            let _ = rustix::process::setpriority_process(None, LOWEST);
            while serving.turn() {}
        })?;
        Ok(HttpServer { address, _open: open })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Serving {
    listener: TcpListener,
    closed: io::PipeReader,
    pages: Pages,
    connections: Vec<Connection>,
    rests_until: Option<Instant>,
}

struct Connection {
    stream: TcpStream,
    until: Instant,
    state: Exchange,
}

enum Exchange {
    Asking(Vec<u8>),
    /// The answer, and how much of it is sent.
    Taking(Vec<u8>, usize),
    /// All is sent. If the server closed before the client, the answer could be lost with the bytes that the
    /// client still sends.
    Closing,
}

impl Serving {
    /// One turn of the loop; false at the end.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        self.connections.retain(|one| one.until > now);
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
        }
        let listens = self.rests_until.is_none();
        let times = self.connections.iter().map(|one| one.until).chain(self.rests_until);
        let timeout = times.min().map(|until| until.saturating_duration_since(now));
        let mut fds = vec![PollFd::new(&self.closed, PollFlags::IN)];
        fds.extend(self.connections.iter().map(|one| PollFd::new(&one.stream, one.wants())));
        if listens {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let _ = sys::poll(&mut fds, timeout);
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ready = ready.into_iter();
        if ready.next() == Some(true) {
            return false;
        }
        let pages = &mut self.pages;
        self.connections.retain_mut(|one| ready.next() != Some(true) || one.go_on(pages).is_ok());
        if ready.next() == Some(true) {
            self.accept();
        }
        true
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            match self.listener.accept() {
                Ok((stream, _)) => self.begin(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The peer has already left.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // Out of descriptors: the peer stays in the queue, so poll would spin.
                    self.rests_until = Some(Instant::now() + REST);
                    return;
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.connections.len() >= MOST {
            // The oldest connection has had the most time.
            self.connections.remove(0);
        }
        let until = Instant::now() + CLIENT;
        self.connections.push(Connection { stream, until, state: Exchange::Asking(Vec::new()) });
    }
}

impl Connection {
    fn wants(&self) -> PollFlags {
        match self.state {
            Exchange::Asking(_) | Exchange::Closing => PollFlags::IN,
            Exchange::Taking(..) => PollFlags::OUT,
        }
    }

    /// Reads and writes as far as possible without waiting.
    ///
    /// # Errors
    /// When the connection is over.
    fn go_on(&mut self, pages: &mut Pages) -> io::Result<()> {
        loop {
            let mut bytes = [0; 2048];
            let moved = match &mut self.state {
                Exchange::Taking(answer, sent) => {
                    self.stream.write(answer.get(*sent..).unwrap_or_default())
                }
                Exchange::Asking(_) | Exchange::Closing => self.stream.read(&mut bytes),
            };
            let count = match moved {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            match &mut self.state {
                Exchange::Asking(_) | Exchange::Closing if count == 0 => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Exchange::Asking(request) => {
                    request.extend_from_slice(bytes.get(..count).unwrap_or_default());
                    request.truncate(LARGEST);
                    if let Some(request) = parse(request).transpose() {
                        self.state = Exchange::Taking(pages.answer(request), 0);
                        self.until = Instant::now() + CLIENT;
                    }
                }
                Exchange::Taking(answer, sent) => {
                    *sent += count;
                    if *sent >= answer.len() {
                        self.stream.shutdown(Shutdown::Write)?;
                        self.state = Exchange::Closing;
                        self.until = Instant::now() + CLOSING;
                    }
                }
                // A client that keeps sending already has its answer. The time limit ends the connection.
                Exchange::Closing => return Ok(()),
            }
        }
    }
}

/// Minimum age of a status before it is read again, so that a flood costs no more than that.
const FRESH: Duration = Duration::from_millis(200);

/// Answers requests from the board.
#[derive(Debug)]
struct Pages {
    board: StatusBoard,
    /// Only requests under names of this machine are answered.
    only_loopback: bool,
    taken: Option<(Instant, NodeStatus)>,
}

impl Pages {
    fn new(board: StatusBoard, only_loopback: bool) -> Pages {
        Pages { board, only_loopback, taken: None }
    }

    /// The whole answer to a request, with its head.
    fn answer(&mut self, request: Result<Request, Bad>) -> Vec<u8> {
        let text = "text/plain; charset=utf-8";
        let (request, bad) = match request {
            Ok(request) => (request, None),
            Err(bad) => (Request::default(), Some(bad)),
        };
        let foreign = self.only_loopback
            && request.host.as_ref().is_some_and(|host| !host.is_empty() && !is_loopback(host));
        let page = |code, body: &str| (code, text, body.to_owned());
        let (code, kind, body) = match (bad, request.path.as_str()) {
            (Some(Bad::Garbage), _) => page("400 Bad Request", "not a request of HTTP/1.1\n"),
            (Some(Bad::TooLong), _) => {
                page("431 Request Header Fields Too Large", "the head is too long\n")
            }
            (Some(Bad::Method), _) => {
                page("405 Method Not Allowed", "only GET and HEAD are answered\n")
            }
            (None, _) if foreign => page(
                "403 Forbidden",
                "listens on a loopback address, so only its names are answered: localhost\n",
            ),
            (None, "/") => page("200 OK", "/metrics\n/status\n/healthz\n/readyz\n"),
            (None, "/healthz") => page("200 OK", "ok\n"),
            (None, "/readyz") => {
                let phase = self.status().phase;
                let runs = phase == Phase::Running;
                let code = if runs { "200 OK" } else { "503 Service Unavailable" };
                page(code, &format!("{}\n", phase.name()))
            }
            (None, "/metrics") => {
                let format = Format::wanted(&request.accept);
                ("200 OK", format.media_type(), render(self.status(), format))
            }
            (None, "/status") => ("200 OK", "application/json", self.status_json()),
            (None, _) => page("404 Not Found", "known are /metrics /status /healthz /readyz\n"),
        };
        let length = body.len();
        let allow = if bad == Some(Bad::Method) { "Allow: GET, HEAD\r\n" } else { "" };
        let mut answer = format!(
            "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        );
        if !request.only_head {
            answer.push_str(&body);
        }
        answer.into_bytes()
    }

    fn status(&mut self) -> &NodeStatus {
        let taken = self.taken.take().filter(|(at, _)| at.elapsed() < FRESH);
        let taken = taken.unwrap_or_else(|| (Instant::now(), self.board.snapshot()));
        &self.taken.insert(taken).1
    }

    fn status_json(&mut self) -> String {
        let status = self.status();
        let goodput = status.ledger.goodput();
        let mut document = serde_json::to_value(status).unwrap_or_default();
        if let Some(fields) = document.as_object_mut() {
            fields.insert("goodput".to_owned(), json!(goodput));
        }
        format!("{document:#}\n")
    }
}

/// Maximum bytes of the head of a request.
const LARGEST: usize = 8 * 1024;
/// Maximum number of headers that are read.
const HEADERS: usize = 64;

/// The request of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Request {
    /// The path without the query.
    path: String,
    /// HEAD in place of GET.
    only_head: bool,
    host: Option<String>,
    /// The value of `Accept`.
    accept: String,
}

/// Why a request is not answered with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bad {
    /// The bytes are not HTTP.
    Garbage,
    TooLong,
    Method,
}

/// None means that more bytes are needed.
///
/// # Errors
/// The fault in the bytes so far.
fn parse(bytes: &[u8]) -> Result<Option<Request>, Bad> {
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
fn is_loopback(host: &str) -> bool {
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
