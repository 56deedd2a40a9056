//! The command's side: finds the jobs of this node and asks their agents.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use super::answer::{Answer, Ask};
use super::server::{OTHERS, PREFIX, READING};
use crate::deadline::spawn_detached;
use crate::lang::failure;
use crate::sys::{self, Peer};
use crate::text;

/// Beside the time that the agent takes for another question, and for this one.
const MARGIN: Duration = Duration::from_secs(2);
/// Bytes of an answer: a thousand threads of many frames.
const LONGEST_ANSWER: u64 = 256 * 1024 * 1024;

/// An agent that listens in this network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listener {
    /// Without the leading `@` by which the kernel marks an abstract name.
    pub name: String,
}

impl Listener {
    /// The agent's pid in its own PID namespace, from the name.
    pub(crate) fn pid(&self) -> &str {
        let rest = self.name.strip_prefix(PREFIX).unwrap_or_default();
        rest.split('-').next().unwrap_or_default()
    }
}

/// The agents of this network namespace, from `/proc/net/unix` below `proc`.
///
/// # Errors
/// If that table cannot be read.
pub(crate) fn jobs(proc: &Path) -> io::Result<Vec<Listener>> {
    let table = std::fs::read(proc.join("self/net/unix"))?;
    Ok(named(&String::from_utf8_lossy(&table)))
}

/// unix(7): the path is the last field. A connection has the name of its listener, so a name may
/// appear several times.
fn named(table: &str) -> Vec<Listener> {
    let mut names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'))
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| Listener { name: name.to_owned() }).collect()
}

/// Asks all of them side by side which job they have.
pub(crate) fn ask_all(listeners: Vec<Listener>) -> Vec<(Listener, io::Result<(Peer, Answer)>)> {
    let (tell, told) = std::sync::mpsc::channel();
    for listener in listeners {
        let tell = tell.clone();
        let work = move || {
            let answer = ask(&listener, &Ask::Job);
            let _ = tell.send((listener, answer));
        };
        spawn_detached(work);
    }
    drop(tell);
    told.into_iter().collect()
}

/// Asks one agent; gives whose socket it is as well.
///
/// # Errors
/// If it is gone, does not answer in time, or is another user's and we are not root: any user
/// may take such a name.
pub(crate) fn ask(listener: &Listener, ask: &Ask) -> io::Result<(Peer, Answer)> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&listener.name)?)?;
    let limit = match ask {
        Ask::Job => READING + MARGIN,
        Ask::Stacks(_) => READING + OTHERS + MARGIN,
        Ask::Dump | Ask::View { .. } => READING + OTHERS + 2 * MARGIN,
    };
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let (peer, us) = (sys::peer(&stream)?, rustix::process::geteuid().as_raw());
    if peer.uid != us && us != 0 {
        let refused = super::Refused::User { uid: us, owner: peer.uid };
        return Ok((peer, Answer::Refused(refused)));
    }
    let mut question = serde_json::to_vec(ask)?;
    question.push(b'\n');
    // An agent that refuses may have closed its end already; its answer is there all the same.
    let asked = (&stream).write_all(&question);
    let mut line = Vec::new();
    let read = BufReader::new((&stream).take(LONGEST_ANSWER)).read_until(b'\n', &mut line);
    if line.is_empty() {
        asked.map_err(|error| in_words(error, limit))?;
        read.map_err(|error| in_words(error, limit))?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((peer, serde_json::from_slice(&line)?))
}

/// A time limit of a socket ends with `EAGAIN`, which would say nothing.
fn in_words(error: io::Error, limit: Duration) -> io::Error {
    if error.kind() != io::ErrorKind::WouldBlock {
        return error;
    }
    let seconds = limit.as_secs();
    let why = text!(
        "its agent did not answer within {seconds} s; it may be stopped",
        "其 agent 在 {seconds} 秒内没有应答，可能已被暂停"
    );
    failure(io::ErrorKind::TimedOut, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_names_the_agents() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 4711 @ranklaunch-stacks-12-ab
0000000000000000: 00000003 00000000 00000000 0001 03 4712 @ranklaunch-stacks-12-ab
0000000000000000: 00000002 00000000 00010000 0005 01 4713 @ranklaunch-cafe
0000000000000000: 00000002 00000000 00010000 0001 01 4714 /tmp/ranklaunch-stacks-1
0000000000000000: 00000003 00000000 00000000 0001 03 4715
";
        let names: Vec<_> = named(table).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["ranklaunch-stacks-12-ab"]);
        assert_eq!(named(table).first().map(Listener::pid), Some("12"));
        assert_eq!(named(""), []);
    }
}
