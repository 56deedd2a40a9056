//! Starts ranks from a warmed interpreter: the shim that an engine has started asks for a rank, and becomes the relay
//! between the engine and another shim, which has the rank as its child.
//!
//! Only a parent learns the exact end of a process and gets its leftovers, and only the interpreter can fork itself.
//! So the interpreter forks a process that forks the rank and then executes this program as the rank's shim, with the
//! environment, folder and streams of the shim that asked ([`Adoption`]). The agent adopts it. The engine's child
//! stays ([`Relay`]): it passes the engine's signals on, and ends as the rank did.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::{Deserialize, Serialize};

use super::forwarded::WATCHED;
use super::isolate::take_over;
use super::socket;
use linux::deadline::in_thread;
use linux::own_executable;
use linux::sys::{self, Dispositions, PollFd, PollFlags, Signal, SignalQueue, SignalSet, poll};
use text::lang::Text;
use text::order::InOrder;
use text::text;
use verdict::outcome::End;

/// `<abstract name> <time limit in ms>` of the interpreter, for the shims that an engine starts.
pub const WARM: &str = "RANKLAUNCH_WARM_SOCKET";
/// `<pid of the rank> <its socket> <socket of the relay> <pid of the engine>`, for the shim of a forked rank.
pub(super) const ADOPTED: &str = "RANKLAUNCH_ADOPTED";
/// Time limit for a forked process to become a rank. It has little to do.
const BEGINS: Duration = Duration::from_secs(30);

/// Shim → relay.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
enum ToRelay {
    /// The shim has a rank, or starts it as usual.
    Adopted,
    Ended {
        end: End,
    },
}

/// The shim that the engine has started, while another shim has the rank.
pub(super) struct Relay {
    shim: OwnedFd,
    engine: i32,
}

/// Asks for a rank in place of `command`. None means that the rank is started as usual, and the interpreter or the
/// agent has reported the reason.
///
/// # Errors
/// There was no answer in time. Only this shim knows that; the rank is started as usual.
pub(super) fn ask(command: &Command) -> Result<Option<Relay>, Text> {
    let Some((shim, limit)) = asked(command) else { return Ok(None) };
    match socket::receive::<ToRelay>(&shim) {
        Ok(Some((ToRelay::Adopted, _))) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late(limit)),
        _ => return Ok(None),
    }
    let is_patient = set_socket_timeout(&shim, Timeout::Recv, None).is_ok();
    Ok(is_patient.then(|| Relay { shim, engine: sys::parent_pid() }))
}

/// The request for `command`, and the time limit of its answer.
fn asked(command: &Command) -> Option<(OwnedFd, Duration)> {
    let offered = std::env::var(WARM).ok()?;
    let (name, limit) = offered.split_once(' ')?;
    let limit = Duration::from_millis(limit.parse().ok()?);
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let shim = send(name, limit, "rank", &request_of_rank(command).ok()?, streams).ok()?;
    Some((shim, limit))
}

fn late(limit: Duration) -> Text {
    let seconds = limit.as_secs();
    text!(
        "the warmed interpreter has not answered within {seconds} s: this rank starts its own",
        "预热的解释器在 {seconds} 秒内没有应答：该 rank 自行启动解释器"
    )
}

/// Sends the request for `what` with our folder and these streams, to be answered within `limit`.
fn send(
    name: &str,
    limit: Duration,
    what: &str,
    request: &OwnedFd,
    streams: [BorrowedFd<'_>; 3],
) -> io::Result<OwnedFd> {
    let interpreter = socket::dial(name)?;
    set_socket_timeout(&interpreter, Timeout::Recv, Some(limit))?;
    let folder = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let [stdin, stdout, stderr] = streams;
    socket::send(&interpreter, &what, &[request.as_fd(), folder.as_fd(), stdin, stdout, stderr])?;
    Ok(interpreter)
}

/// The request of a shim that would start `command`.
fn request_of_rank(command: &Command) -> io::Result<OwnedFd> {
    let executable = own_executable::path()?;
    let argv: Vec<OsString> =
        std::iter::once(executable.into_os_string()).chain(std::env::args_os().skip(1)).collect();
    let shim: BTreeMap<OsString, OsString> = std::env::vars_os().in_map();
    let mut rank = shim.clone();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => rank.insert(name.to_owned(), value.to_owned()),
            None => rank.remove(name),
        };
    }
    let program = std::iter::once(command.get_program()).chain(command.get_args());
    request(&argv, &shim, &rank, &program.map(OsStr::to_owned).collect::<Vec<_>>(), &[])
}

/// The request that `sitecustomize.py` reads, see its `_Request`.
fn request(
    argv: &[OsString],
    shim: &BTreeMap<OsString, OsString>,
    environment: &BTreeMap<OsString, OsString>,
    program: &[OsString],
    ignored: &[Signal],
) -> io::Result<OwnedFd> {
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    let mut fields: Vec<Vec<u8>> = vec![
        format!("{:o}", umask.bits()).into_bytes(),
        sys::parent_pid().to_string().into_bytes(),
        std::fs::read("/proc/self/limits")?,
    ];
    let mut list = |entries: Vec<Vec<u8>>| {
        fields.push(entries.len().to_string().into_bytes());
        fields.extend(entries);
    };
    let number = |number: i32| number.to_string().into_bytes();
    list(sys::Inherited::all().into_iter().map(number).collect());
    let words = |argv: &[OsString]| argv.iter().map(|word| word.as_bytes().to_vec()).collect();
    list(words(argv));
    list(entries(shim));
    list(entries(environment));
    list(words(program));
    list(ignored.iter().map(|signal| number(signal.as_raw())).collect());
    let mut file = std::fs::File::from(rustix::fs::memfd_create("rank", MemfdFlags::CLOEXEC)?);
    for field in &fields {
        file.write_all(field)?;
        file.write_all(b"\0")?;
    }
    file.rewind()?;
    Ok(file.into())
}

/// Time limit for the answer of an interpreter that has imported everything.
const FORKED: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct ForkedEngine {
    pid: i32,
}

/// The request for an engine, a `python -m MODULE`.
pub(super) struct EngineRequest {
    /// The abstract name of the interpreter.
    name: String,
    request: OwnedFd,
    streams: [OwnedFd; 3],
}

impl EngineRequest {
    /// `offered` is the value of [`WARM`]. None means that the engine is started as usual.
    pub(super) fn new(
        offered: &OsStr,
        argv: &[OsString],
        environment: &BTreeMap<OsString, OsString>,
        ignored: &[Signal],
        streams: [OwnedFd; 3],
    ) -> Option<EngineRequest> {
        let (name, _) = offered.to_str()?.split_once(' ')?;
        let request = request(argv, &BTreeMap::new(), environment, &[], ignored).ok()?;
        Some(EngineRequest { name: name.to_owned(), request, streams })
    }

    /// Has the interpreter fork the engine as our child in a session of its own. The runtime goes on meanwhile. Not
    /// cancel-safe: an engine may be forked without anybody knowing it. None means that the engine is started as
    /// usual.
    pub(super) async fn fork(self) -> Option<i32> {
        in_thread(move || {
            let streams = self.streams.each_ref().map(OwnedFd::as_fd);
            let interpreter = send(&self.name, FORKED, "engine", &self.request, streams).ok()?;
            let (forked, _) = socket::receive::<ForkedEngine>(&interpreter).ok()??;
            socket::send(&interpreter, &"begin", &[]).ok()?;
            Some(forked.pid)
        })
        .await
    }
}

fn entries(environment: &BTreeMap<OsString, OsString>) -> Vec<Vec<u8>> {
    let entry =
        |(name, value): (&OsString, &OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    environment.iter().map(entry).collect()
}

impl Relay {
    /// Waits for the end of the rank. Gives the code to end with.
    pub(super) fn stay(self) -> i32 {
        Dispositions::ignore_all();
        let signals = SignalQueue::begin(SignalSet::of(&WATCHED)).ok();
        loop {
            let mut waits = vec![PollFd::new(&self.shim, PollFlags::IN)];
            waits.extend(signals.as_ref().map(|signals| PollFd::new(signals, PollFlags::IN)));
            let _ = poll(&mut waits, None);
            let said = waits.first().is_some_and(|wait| !wait.revents().is_empty());
            while let Some(taken) = signals.as_ref().and_then(SignalQueue::take) {
                // Signals from other senders reach the shim as well.
                if taken.sender == self.engine {
                    let _ = socket::send(&self.shim, &taken.number, &[]);
                }
            }
            if !said {
                continue;
            }
            match socket::receive::<ToRelay>(&self.shim) {
                Ok(Some((ToRelay::Ended { end }, _))) => return take_over(end),
                Ok(Some((ToRelay::Adopted, _))) => {}
                // The shim of the rank was killed, so the engine must see a killed shim as well.
                Ok(None) | Err(_) => return take_over(End::Signal(Signal::KILL.as_raw())),
            }
        }
    }
}

/// A rank that was forked for this shim as its child, and waits for its streams; and the relay for which it was forked.
pub(super) struct Adoption {
    pub(super) rank: i32,
    socket: OwnedFd,
    pub(super) relay: RelaySocket,
    pub(super) engine: i32,
}

impl Adoption {
    /// The adoption in the words of the interpreter; None for a shim that an engine has started.
    pub(super) fn find() -> Option<Adoption> {
        let value = std::env::var(ADOPTED).ok()?;
        let numbers: Vec<i32> = value.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [rank, socket, relay, engine] = *numbers.as_slice() else { return None };
        Some(Adoption {
            rank,
            socket: sys::Inherited(socket).take().ok()?,
            relay: RelaySocket(sys::Inherited(relay).take().ok()?),
            engine,
        })
    }

    /// From here on this shim answers for the rank, and the other shim is the relay.
    pub(super) fn adopt(&self) -> io::Result<()> {
        socket::send(&self.relay, &ToRelay::Adopted, &[])
    }

    /// Lets the child become the rank, with these streams as standard output and standard error.
    ///
    /// # Errors
    /// The child has ended, or cannot become the rank; it is killed.
    pub(super) fn begin(&self, out: BorrowedFd<'_>, err: BorrowedFd<'_>) -> io::Result<()> {
        let begun = self.pass(out, err);
        if begun.is_err() {
            sys::send(self.rank, Signal::KILL.as_raw());
        }
        begun
    }

    fn pass(&self, out: BorrowedFd<'_>, err: BorrowedFd<'_>) -> io::Result<()> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(BEGINS))?;
        socket::send(&self.socket, &"begin", &[out, err])?;
        match socket::receive::<String>(&self.socket)? {
            Some(_ready) => Ok(()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The shim's end of the connection to its relay.
pub(super) struct RelaySocket(OwnedFd);

impl RelaySocket {
    /// A signal that the engine has sent.
    ///
    /// # Errors
    /// The relay has ended: the engine has killed it.
    pub(super) fn signal(&self) -> io::Result<i32> {
        match socket::receive(&self.0)? {
            Some((number, _)) => Ok(number),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    pub(super) fn ended(&self, end: End) {
        let _ = socket::send(&self.0, &ToRelay::Ended { end }, &[]);
    }
}

impl AsFd for RelaySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
