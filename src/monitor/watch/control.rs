//! Asks the worker servers of the ranks (see `inject`) over their Unix sockets.
//!
//! HTTP/1.1 with one request per connection. Every answer has a deadline and a size limit: a rank
//! may be stopped, and what listens may be anything that the job has put there.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memchr::memmem;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::held;
use linux::deadline::read_by;
use text::order::Ordered;
use text::rank::GlobalRank;

/// The largest answer: a full flight recorder of torch has some 2000 entries of 1 KB.
const LARGEST: u64 = 64 << 20;
/// The head of an answer, and how many fields are read of it.
const LARGEST_HEAD: usize = 16 << 10;
const FIELDS: usize = 32;

/// Marker in each entry of gloo's recorder.
const OF_GLOO: &[u8] = br#""profiling_name":"gloo:"#;

/// Threads that ask at the same time.
const ASKERS: usize = 8;

/// The socket of a process of a rank.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControlSocket {
    /// RANK of the process; None without one.
    pub rank: Option<GlobalRank>,
    pub pid: i32,
    /// The `calls.py` of `inject` answers instead of torch, for a gloo that keeps no record.
    pub is_calls: bool,
    path: PathBuf,
}

impl ControlSocket {
    /// The sockets in a folder, by rank and pid. They may include sockets of processes that have ended.
    pub fn all(folder: &Path) -> Vec<ControlSocket> {
        let mut found: Vec<ControlSocket> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| ControlSocket::of(entry.ok()?.path()))
            .collect();
        found.sort();
        found
    }

    fn of(path: PathBuf) -> Option<ControlSocket> {
        let (rank, pid) = path.file_name()?.to_str()?.split_once('-')?;
        let calls = pid.strip_suffix(".calls");
        Some(ControlSocket {
            rank: rank.parse().ok().map(GlobalRank),
            pid: calls.unwrap_or(pid).parse().ok()?,
            is_calls: calls.is_some(),
            path,
        })
    }

    /// A process that is stopped takes no connection out of its queue, and the next one after a full
    /// queue would wait for ever.
    fn connect(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// The dumps of its flight recorders, for a query such as `includecollectives=false`. Each backend has its own
    /// recorder, and a dump without entries is empty:
    ///
    /// - `fr_trace_json` (torch 2.8 and newer) answers with the recorder of gloo; since 2.15 with the recorder of the
    ///   named backend (a job gets `nccl2` as `nccl`). Older versions ignore the name.
    /// - `dump_nccl_trace_json` answers with the recorder of any other NCCL.
    ///
    /// # Errors
    /// As [`ControlSocket::ask`], if a recorder does not answer, since the collective in which a rank waits may be
    /// there; NotFound if this version has no recorder.
    pub fn records(&self, query: &str, timeout: Duration) -> io::Result<Vec<Vec<u8>>> {
        let began = Instant::now();
        let of = |handler: &str, query: &[&str]| {
            let left = timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            match self.ask(&format!("{handler}?{}", query.join("&")), left) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                answer => answer.map(Some),
            }
        };
        let query: Vec<&str> = Some(query).filter(|query| !query.is_empty()).into_iter().collect();
        let named = of("fr_trace_json", &[&query[..], &["backend=nccl2"]].concat())?;
        let is_of_gloo = named.as_ref().is_some_and(|dump| memmem::find(dump, OF_GLOO).is_some());
        let plain = if is_of_gloo { None } else { of("fr_trace_json", &query)? };
        let of_nccl = of("dump_nccl_trace_json", &query)?;
        let mut dumps: Vec<Vec<u8>> = Vec::new();
        for dump in [named, plain, of_nccl].into_iter().flatten() {
            if !dumps.contains(&dump) {
                dumps.push(dump);
            }
        }
        if dumps.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(dumps) }
    }

    /// The answer of a handler such as `ping`, with its query.
    ///
    /// # Errors
    /// No answer within `timeout`, none that is HTTP, or another status than 200: NotFound where
    /// this version has no such handler.
    pub fn ask(&self, handler: &str, timeout: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        let mut stream = self.connect()?;
        stream.set_write_timeout(Some(timeout))?;
        let request = format!(
            "POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut part = vec![0; 64 << 10];
        loop {
            if let Some(body) = whole(&answer)? {
                answer.drain(..body.start);
                answer.truncate(body.len());
                return Ok(answer);
            }
            match read_by(&mut stream, deadline, &mut part)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => answer.extend_from_slice(&part[..read]),
            }
        }
    }
}

/// Asks all sockets of a folder for their records side by side; gives those that answer within `one`, and all within
/// `all`, by rank and pid. A thread that waits for a stopped process ends by its own deadline.
pub(crate) fn asked(
    folder: &Path,
    query: &'static str,
    one: Duration,
    all: Duration,
) -> Vec<(ControlSocket, Vec<Vec<u8>>)> {
    let until = Instant::now() + all;
    let sockets = Arc::new(Mutex::new(VecDeque::from(ControlSocket::all(folder))));
    let (tell, told) = channel();
    let askers = held(&sockets).len().min(ASKERS);
    for _ in 0..askers {
        let (sockets, tell) = (Arc::clone(&sockets), tell.clone());
        let ask = move || {
            let next = || held(&sockets).pop_front();
            while let Some(socket) = next() {
                let left = until.saturating_duration_since(Instant::now()).min(one);
                if left.is_zero() {
                    return;
                }
                if let Ok(answers) = socket.records(query, left)
                    && tell.send((socket, answers)).is_err()
                {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("ask-rank".into()).stack_size(256 * 1024);
        if thread.spawn(ask).is_err() {
            break;
        }
    }
    drop(tell);
    let mut answers = Vec::new();
    while let Ok(answer) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        answers.push(answer);
    }
    answers.order_by(|(one, _), (other, _)| one.cmp(other));
    answers
}

/// The range of the body in a complete answer. None while the answer is incomplete.
fn whole(answer: &[u8]) -> io::Result<Option<std::ops::Range<usize>>> {
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()));
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let start = match head.parse(answer) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) if answer.len() <= LARGEST_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) => return refuse("a head without an end"),
        Err(error) => return refuse(&error.to_string()),
    };
    if head.code == Some(404) {
        return Err(io::ErrorKind::NotFound.into());
    }
    if head.code != Some(200) {
        return refuse(&format!("status {}", head.code.unwrap_or_default()));
    }
    let length = head
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-length"))
        .and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse::<u64>().ok());
    let Some(length) = length.filter(|length| *length <= LARGEST) else {
        return refuse("no length, or too large a one");
    };
    let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
    Ok((answer.len() >= end).then_some(start..end))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A socket that answers each connection with these bytes, then stays open.
    fn server(answer: &'static [u8]) -> (tempfile::TempDir, ControlSocket) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("3-17");
        let listener = UnixListener::bind(&path).expect("bound");
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let _ = stream.write_all(answer);
                open.push(stream);
            }
        });
        let found = ControlSocket::all(folder.path());
        assert_eq!(
            found,
            [ControlSocket { rank: Some(GlobalRank(3)), pid: 17, is_calls: false, path }]
        );
        let [socket] = <[_; 1]>::try_from(found).expect("one");
        (folder, socket)
    }

    fn asked(answer: &'static [u8], timeout: u64) -> Result<Vec<u8>, io::ErrorKind> {
        let (_folder, socket) = server(answer);
        socket.ask("ping", Duration::from_millis(timeout)).map_err(|error| error.kind())
    }

    #[test]
    fn answer_ends_at_its_content_length() {
        let body = asked(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong and more", 5000);
        assert_eq!(body.as_deref(), Ok(&b"pong"[..]));
    }

    #[test]
    fn invalid_or_incomplete_answer_is_refused_in_time() {
        use io::ErrorKind::{InvalidData, NotFound, TimedOut};
        for (answer, wrong) in [
            (&b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"[..], NotFound),
            (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", InvalidData),
            (b"HTTP/1.1 200 OK\r\n\r\n", InvalidData),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", InvalidData),
            (b"\x80\x02}q\x00.", InvalidData),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npon", TimedOut),
            (b"", TimedOut),
        ] {
            let timeout = if wrong == TimedOut { 50 } else { 5000 };
            let said = asked(answer, timeout);
            assert_eq!(said, Err(wrong), "{}", String::from_utf8_lossy(answer));
        }
    }

    const BUSY: &str = "busy";

    /// `handlers`: the beginning of each request line that the rank knows, with its answer. [`BUSY`] has an empty
    /// answer. No other request is known.
    fn records_of(handlers: &[(&'static str, &'static str)]) -> Option<Vec<String>> {
        let handlers = handlers.to_vec();
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("0-1")).expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut asked = [0; 4096];
                let length = stream.read(&mut asked).unwrap_or_default();
                let known = |(request, _): &&(&str, &str)| {
                    asked[..length].starts_with(format!("POST /handler/{request} HTTP").as_bytes())
                };
                let (status, body) = match handlers.iter().find(known) {
                    Some((_, BUSY)) => ("503 Busy", ""),
                    Some((_, body)) => ("200 OK", *body),
                    None => ("404 Not Found", ""),
                };
                let length = body.len();
                let _ =
                    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            }
        });
        let [socket] = <[_; 1]>::try_from(ControlSocket::all(folder.path())).expect("one");
        let dumps = socket.records("a=b", Duration::from_secs(30)).ok()?;
        Some(dumps.into_iter().map(|dump| String::from_utf8(dump).expect("text")).collect())
    }

    #[test]
    fn flight_records_of_every_backend_are_collected() {
        const GLOO: &str = r#"{"entries":[{"profiling_name":"gloo:all_reduce"}]}"#;
        const NCCL: &str = r#"{"entries":[{"profiling_name":"nccl:all_reduce"}]}"#;
        const NCCL2: &str = r#"{"entries":[{"profiling_name":"nccl2:all_reduce"}]}"#;
        const NONE: &str = r#"{"pg_status":{}}"#;
        let (plain, named, old) =
            ("fr_trace_json?a=b", "fr_trace_json?a=b&backend=nccl2", "dump_nccl_trace_json?a=b");
        // torch 2.6, whose gloo records nothing.
        assert_eq!(records_of(&[(old, NCCL)]), Some(vec![NCCL.to_owned()]));
        // 2.11, which ignores the name, and on a CPU-only build of it.
        let both = records_of(&[(named, GLOO), (plain, "asked for twice"), (old, NCCL)]);
        assert_eq!(both, Some(vec![GLOO.to_owned(), NCCL.to_owned()]));
        let nccl = records_of(&[(named, NONE), (plain, NONE), (old, NCCL)]);
        assert_eq!(nccl, Some(vec![NONE.to_owned(), NCCL.to_owned()]));
        assert_eq!(records_of(&[(named, GLOO)]), Some(vec![GLOO.to_owned()]));
        // 2.15.
        let both = records_of(&[(named, NCCL2), (plain, GLOO), (old, NONE)]);
        assert_eq!(both, Some(vec![NCCL2.to_owned(), GLOO.to_owned(), NONE.to_owned()]));
        assert_eq!(records_of(&[("ping", "pong")]), None);
        // An empty record is no proof that nothing was entered if another recorder does not answer.
        assert_eq!(records_of(&[(named, NONE), (plain, NONE), (old, BUSY)]), None);
        assert_eq!(records_of(&[(named, NONE), (plain, BUSY), (old, NONE)]), None);
    }

    #[test]
    fn full_accept_queue_fails_without_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let _never_accepts = UnixListener::bind(folder.path().join("0-1")).expect("bound");
        let [socket] = <[_; 1]>::try_from(ControlSocket::all(folder.path())).expect("one");
        let waiting: Vec<UnixStream> = std::iter::from_fn(|| socket.connect().ok()).collect();
        assert!(!waiting.is_empty());
        let error = socket.ask("ping", Duration::from_secs(3600)).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn files_with_other_names_are_not_sockets() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["x", "1-", "-", "1-x"] {
            std::fs::write(folder.path().join(name), "").expect("written");
        }
        assert_eq!(ControlSocket::all(folder.path()), []);
        assert_eq!(ControlSocket::all(&folder.path().join("none")), []);
        std::fs::write(folder.path().join("-8"), "").expect("written");
        let found = ControlSocket::all(folder.path());
        assert_eq!(found.iter().map(|one| (one.rank, one.pid)).collect::<Vec<_>>(), [(None, 8)]);
        assert!(found[0].ask("ping", Duration::from_secs(5)).is_err(), "nobody listens");
    }
}
