//! The HTTP server: one thread that serves a bounded number of connections.
//!
//! Each connection gets one answer. It has a time limit for its request and one for taking the
//! answer; when all places are taken, the one that waits longest for its request leaves. The
//! thread has the lowest priority, so that a flood takes no CPU from a rank.

use std::io::{self, ErrorKind, PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::pages::Pages;
use super::request::{LARGEST, parse};
use crate::status::StatusBoard;
use linux::sys::{self, PollFd, PollFlags};

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
    state: State,
}

enum State {
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
        self.connections.push(Connection { stream, until, state: State::Asking(Vec::new()) });
    }
}

impl Connection {
    fn wants(&self) -> PollFlags {
        match self.state {
            State::Asking(_) | State::Closing => PollFlags::IN,
            State::Taking(..) => PollFlags::OUT,
        }
    }

    /// Reads and writes as far as possible without waiting.
    ///
    /// # Errors
    /// When the connection is over.
    fn go_on(&mut self, pages: &mut Pages) -> io::Result<()> {
        loop {
            let stepped = match &mut self.state {
                State::Asking(request) => {
                    let mut bytes = [0; 2048];
                    let read = self.stream.read(&mut bytes);
                    match read {
                        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                        Ok(count) => {
                            request.extend_from_slice(bytes.get(..count).unwrap_or_default());
                            request.truncate(LARGEST);
                            match parse(request).transpose() {
                                None => Ok(()),
                                Some(request) => {
                                    self.state = State::Taking(pages.answer(request), 0);
                                    self.until = Instant::now() + CLIENT;
                                    Ok(())
                                }
                            }
                        }
                        Err(error) => Err(error),
                    }
                }
                State::Taking(answer, sent) => {
                    match self.stream.write(answer.get(*sent..).unwrap_or_default()) {
                        Ok(count) => {
                            *sent += count;
                            if *sent >= answer.len() {
                                self.stream.shutdown(Shutdown::Write)?;
                                self.state = State::Closing;
                                self.until = Instant::now() + CLOSING;
                            }
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                State::Closing => {
                    let mut rest = [0; 2048];
                    match self.stream.read(&mut rest) {
                        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                        // A client that keeps sending already has its answer. The time limit ends the
                        // connection.
                        Ok(_) => return Ok(()),
                        Err(error) => Err(error),
                    }
                }
            };
            match stepped {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
