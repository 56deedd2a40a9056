//! The command's side: finds the jobs of this node and asks their agents.
//!
//! Every user of the network namespace may take a name like that of a run's socket. So no name and
//! no answer is trusted beyond the owner that the kernel reports. An answer has a form, a size and
//! a deadline as a whole. Few sockets of another user are asked, for a shorter time.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use memchr::memchr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Answer, Ask, OTHERS, PREFIX, READING, Refused};
use linux::deadline::{read_by, spawn_detached};
use linux::sys::Peer;
use text::lang::failure;
use text::text;

/// Margin on top of the time that the agent takes for another question and for this one.
const MARGIN: Duration = Duration::from_secs(2);
/// Time limit for a socket of another user to name its job.
const STRANGER: Duration = Duration::from_secs(2);
/// Maximum bytes of an answer: a thousand threads with many frames.
const LONGEST_ANSWER: usize = 256 * 1024 * 1024;
/// Maximum bytes of the answer that names a job: the numbers of its ranks here.
const LONGEST_JOB: usize = 64 * 1024;
/// Maximum number of sockets that are asked: of one other user, and of all other users.
const OF_A_STRANGER: usize = 8;
const OF_STRANGERS: usize = 64;

/// A socket with the name of an agent's socket in this network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The name without the leading `@`, by which the kernel marks an abstract name.
    pub name: String,
    /// The owner of the socket, once the kernel was asked.
    pub peer: Option<Peer>,
}

impl Listener {
    /// The agent's pid in its own PID namespace, as in the name.
    pub fn pid(&self) -> &str {
        let rest = self.name.strip_prefix(PREFIX).unwrap_or_default();
        rest.split('-').next().unwrap_or_default()
    }

    /// The owner of the socket, unless it is the user who asks.
    pub fn stranger(&self) -> Option<u32> {
        self.peer.map(|peer| peer.uid).filter(|uid| *uid != us())
    }

    /// The pid of the agent in this PID namespace; None if it has none here, or if the kernel was not asked.
    pub fn pid_here(&self) -> Option<i32> {
        self.peer.map(|peer| peer.pid).filter(|pid| *pid > 0)
    }
}

fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The agents of this network namespace, from `/proc/net/unix` below `proc`.
///
/// # Errors
/// If that table cannot be read.
pub fn jobs(proc: &Path) -> io::Result<Vec<Listener>> {
    let table = std::fs::read(proc.join("self/net/unix"))?;
    Ok(named(&String::from_utf8_lossy(&table)))
}

/// unix(7): the path is the last field. A connection has the name of its listener, so a name may
/// appear several times.
fn named(table: &str) -> Vec<Listener> {
    let mut names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'))
        .filter(|name| is_of_an_agent(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| Listener { name: name.to_owned(), peer: None }).collect()
}

/// Whether a name has a pid and random digits behind the prefix. Other names with the prefix belong
/// to no agent.
fn is_of_an_agent(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(pid, random)| {
        let is_of = |part: &str, is_digit: fn(&u8) -> bool| {
            (1..=32).contains(&part.len()) && part.as_bytes().iter().all(is_digit)
        };
        is_of(pid, u8::is_ascii_digit) && is_of(random, u8::is_ascii_hexdigit)
    })
}

/// Answers of the sockets.
#[derive(Debug, Default)]
pub struct Asked {
    pub answers: Vec<(Listener, io::Result<Answer>)>,
    /// Number of sockets of other users that were not asked, by user.
    pub unasked: BTreeMap<u32, usize>,
}

/// Asks all sockets side by side for their jobs.
pub fn ask_all(listeners: Vec<Listener>) -> Asked {
    let (tell, told) = mpsc::channel();
    let mut asked = Asked::default();
    let mut of: BTreeMap<u32, usize> = BTreeMap::new();
    let mut strangers = 0;
    for mut listener in listeners {
        // The queue of the socket may be full, which says nothing about its owner.
        let stream = match connect(&mut listener, None) {
            Ok(stream) => stream,
            Err(error) => {
                asked.answers.push((listener, Err(error)));
                continue;
            }
        };
        if let Some(uid) = listener.stranger() {
            let own = of.entry(uid).or_default();
            if *own >= OF_A_STRANGER || strangers >= OF_STRANGERS {
                *asked.unasked.entry(uid).or_default() += 1;
                continue;
            }
            *own += 1;
            strangers += 1;
        }
        let tell = tell.clone();
        spawn_detached(move || {
            let answer = ask_on(&stream, &listener, &Ask::Job);
            let _ = tell.send((listener, answer));
        });
    }
    drop(tell);
    asked.answers.extend(told);
    asked
}

/// Asks one agent.
///
/// # Errors
/// If the agent is gone, or does not give its whole answer in time.
pub fn ask(listener: &Listener, ask: &Ask) -> io::Result<Answer> {
    let mut now = listener.clone();
    let stream = connect(&mut now, Some(limit(listener, ask)))?;
    // The agent that was asked before has ended, and another user took its name.
    if listener.peer.is_some_and(|before| now.peer.is_some_and(|peer| peer.uid != before.uid)) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    ask_on(&stream, &now, ask)
}

fn limit(listener: &Listener, ask: &Ask) -> Duration {
    match ask {
        Ask::Job if listener.stranger().is_some() => STRANGER,
        Ask::View { .. } if listener.stranger().is_some() => OTHERS + MARGIN,
        Ask::Job => READING + MARGIN,
        Ask::Stacks(_) => READING + OTHERS + MARGIN,
        Ask::Dump | Ask::View { .. } => READING + OTHERS + 2 * MARGIN,
    }
}

/// Connects, and asks the kernel for the owner of the socket. `wait`: time limit for room in the
/// queue of the socket.
fn connect(listener: &mut Listener, wait: Option<Duration>) -> io::Result<UnixStream> {
    let flags = match wait {
        None => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(_) => SocketFlags::CLOEXEC,
    };
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // unix(7): connect(2) waits as long as a write may.
    set_socket_timeout(&socket, Timeout::Send, wait)?;
    let address = SocketAddrUnix::new_abstract_name(listener.name.as_bytes())?;
    rustix::net::connect(&socket, &address).map_err(|error| match wait {
        Some(limit) => in_words(error.into(), limit),
        None => in_words(error.into(), Duration::ZERO),
    })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    listener.peer = Some(Peer::of(&stream)?);
    Ok(stream)
}

/// Asks on a connection. Only root takes an answer from a socket of another user.
fn ask_on(mut stream: &UnixStream, listener: &Listener, ask: &Ask) -> io::Result<Answer> {
    let limit = limit(listener, ask);
    let until = Instant::now() + limit;
    if let (Some(owner), true) = (listener.stranger(), us() != 0) {
        return Ok(Answer::Refused(Refused::User { uid: us(), owner }));
    }
    stream.set_write_timeout(Some(limit))?;
    let mut question = serde_json::to_vec(ask)?;
    question.push(b'\n');
    // An agent that refuses may have closed its end already; its answer can still be read.
    let asked = stream.write_all(&question);
    let most = if matches!(ask, Ask::Job) { LONGEST_JOB } else { LONGEST_ANSWER };
    let line = line(stream, until, most).map_err(|error| in_words(error, limit))?;
    if line.is_empty() {
        asked.map_err(|error| in_words(error, limit))?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(|_| {
        let why = text!(
            "its answer is not understood; it may be of another version of ranklaunch",
            "无法理解其应答，可能属于另一个版本的 ranklaunch"
        );
        failure(io::ErrorKind::InvalidData, why)
    })
}

/// One line, or the bytes before the end of the stream. The whole line must arrive until `until`,
/// with at most `most` bytes.
fn line(mut stream: &UnixStream, until: Instant, most: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut part = vec![0; 64 * 1024];
    loop {
        let read = read_by(&mut stream, until, &mut part)?;
        let got = part.get(..read).unwrap_or_default();
        let end = memchr(b'\n', got);
        line.extend_from_slice(got.get(..end.unwrap_or(read)).unwrap_or_default());
        if line.len() > most {
            let why = text!("its answer is longer than any", "其应答超出了应有的长度");
            return Err(failure(io::ErrorKind::InvalidData, why));
        }
        if end.is_some() || read == 0 {
            return Ok(line);
        }
    }
}

/// A time limit of a socket ends with `EAGAIN`, which would explain nothing.
fn in_words(error: io::Error, limit: Duration) -> io::Error {
    if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return error;
    }
    let seconds = limit.as_secs();
    let why = match seconds {
        0 => text!("it takes no connection", "它不接受连接"),
        _ => text!(
            "its agent did not answer within {seconds} s; it may be stopped",
            "其 agent 在 {seconds} 秒内没有应答，可能已被暂停"
        ),
    };
    failure(io::ErrorKind::TimedOut, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_socket_table_lists_agents() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 4711 @ranklaunch-stacks-12-ab
0000000000000000: 00000003 00000000 00000000 0001 03 4712 @ranklaunch-stacks-12-ab
0000000000000000: 00000002 00000000 00010000 0005 01 4713 @ranklaunch-cafe
0000000000000000: 00000002 00000000 00010000 0001 01 4714 /tmp/ranklaunch-stacks-1
0000000000000000: 00000002 00000000 00010000 0001 01 4716 @ranklaunch-stacks-x-ab
0000000000000000: 00000002 00000000 00010000 0001 01 4717 @ranklaunch-stacks-1-\u{1b}[2J
0000000000000000: 00000002 00000000 00010000 0001 01 4718 @ranklaunch-stacks-1
0000000000000000: 00000003 00000000 00000000 0001 03 4715
";
        let names: Vec<_> = named(table).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["ranklaunch-stacks-12-ab"]);
        assert_eq!(named(table).first().map(Listener::pid), Some("12"));
        assert_eq!(named(""), []);
    }

    /// A socket that answers each connection with `respond`, until the test ends.
    fn answered(respond: impl Fn(UnixStream) + Send + 'static) -> Listener {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let random = linux::random::hex::<8>().expect("random digits");
        let name = format!("{PREFIX}{}-{random}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixListener::bind_addr(&address).expect("bound");
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming().flatten() {
                open.push(stream.try_clone());
                respond(stream);
            }
        });
        Listener { name, peer: None }
    }

    fn job_named(run_id: &str) -> Vec<u8> {
        let job = serde_json::json!(
            {"answer": "job", "run_id": run_id, "attempt": 0, "node": 0, "nodes": 1}
        );
        [job.to_string().as_bytes(), b"\n"].concat()
    }

    /// `(one byte each 50 ms)`: each read is in time, the answer is not.
    #[test]
    fn answer_deadline_covers_the_whole_answer() {
        let drip = answered(|mut stream| {
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let began = Instant::now();
        let stream = connect(&mut drip.clone(), Some(MARGIN)).expect("connected");
        let until = began + Duration::from_millis(400);
        let error = line(&stream, until, LONGEST_JOB).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn endless_answer_is_refused() {
        let flood = answered(|mut stream| while stream.write_all(&[b'x'; 4096]).is_ok() {});
        let error = ask(&flood, &Ask::Job).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }

    #[test]
    fn invalid_run_id_is_refused_as_answer() {
        for (run_id, is_one) in [
            ("job-20260101-000000-ab12", true),
            ("", true),
            ("x/../../pwn", false),
            (".hidden", false),
            ("a\u{1b}[2J", false),
            (&"x".repeat(129), false),
        ] {
            let reply = job_named(run_id);
            let agent = answered(move |mut stream| drop(stream.write_all(&reply)));
            let answer = ask(&agent, &Ask::Job);
            assert_eq!(answer.is_ok(), is_one, "{run_id}: {answer:?}");
        }
    }

    #[test]
    fn full_queue_blocks_no_client() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let name = format!("{PREFIX}1-{}", linux::random::hex::<8>().expect("random digits"));
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        rustix::net::bind(&socket, &address).expect("bound");
        rustix::net::listen(&socket, 0).expect("listening");
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let _first = UnixStream::connect_addr(&address).expect("the only place");
        let asked = ask_all(vec![Listener { name, peer: None }]);
        let errors: Vec<_> = asked.answers.iter().filter_map(|(_, it)| it.as_ref().err()).collect();
        assert_eq!(errors.len(), 1);
    }
}
