//! torch's TCPStore on the master port: whether one answers, and whose it is.
//!
//! Owns the few words of torch's protocol that ranklaunch speaks, in both of its
//! [`Dialect`]s (TCPStore.cpp, TCPStoreBackend.cpp). Node 0 of a running job writes the
//! job's key into its own store ([`mark`]), and a node that finds a store where it looked
//! for node 0 reads it ([`ask`]). Never touches a key of torch's own, and never speaks the
//! dialect of torch 2.1 to a store that does not know it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::muster::protocol::{JobKey, Stream};
use crate::net::connect;

#[cfg(test)]
pub(crate) mod tests;

/// A client of a store begins with query VALIDATE (0) and this number in the host's
/// byte order (validationMagicNumber), since torch 2.1.
pub(crate) const GREETING: [u8; 5] = [0x00, 0xCE, 0xF7, 0x85, 0x3C];

/// The first question: which dialect is spoken here? A store since torch 2.1 gives the number
/// of its keys (GETNUMKEYS, 7) three times and hangs up on what is no query.
///
/// One of torch 2.0 takes these bytes for a SET and nine of them for its number and the
/// length of the key. It allocates and clears a key before it reads one: of 15 TB, if a
/// COMPARE_SET came here, which kills its process where the kernel grants that
/// (vm.overcommit_memory=1, as the kubelet sets it). No process has room for the length
/// that these bytes are, whose top bit is set: the store hangs up and is as it was.
const WHICH: [u8; 2 * FIRST] = [0x00, 0xCE, 0xF7, 0x85, 0x3C, 7, 7, 7, 0xFF, 0xFF];

/// How a store is spoken to. VALIDATE took the number of SET, and every query moved up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Up to torch 2.0.
    Bare,
    /// Since torch 2.1.
    Validated,
}

impl Dialect {
    /// That of the store at `peer`, if one is there. None: it does not answer.
    async fn at(peer: SocketAddr) -> io::Result<Option<Dialect>> {
        let mut stream = connect(peer, CONNECT).await?;
        let answered = async {
            stream.write_all(&WHICH).await.is_ok() && matches!(stream.peek(&mut [0]).await, Ok(1..))
        };
        Ok(match timeout(ANSWER, answered).await {
            Ok(true) => Some(Dialect::Validated),
            Ok(false) => Some(Dialect::Bare),
            Err(_) => None,
        })
    }

    fn greeting(self) -> &'static [u8] {
        match self {
            Dialect::Bare => &[],
            Dialect::Validated => &GREETING,
        }
    }

    /// The number of a query, from that of torch 2.0.
    fn query(self, number: u8) -> u8 {
        match self {
            Dialect::Bare => number,
            Dialect::Validated => number + 1,
        }
    }
}

const COMPARE_SET: u8 = 1;
const ADD: u8 = 3;
const CHECK: u8 = 4;
const READY: u8 = 0;
const NOT_READY: u8 = 1;

/// Where the key of the job stands. Torch's own keys begin with `/`.
const PLACE: &[u8] = b"ranklaunch/job";
/// Longest value that is read.
const LONGEST: u64 = 4096;
/// How long a store may take to answer: one thread serves all ranks.
const ANSWER: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(2);
/// Between two looks for a store that is not there yet.
const PAUSE: Duration = Duration::from_millis(250);
/// So often something that is no store is asked; it may be the script's own server.
const TRIES: u32 = 3;

/// What answers on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A store into which a ranklaunch wrote the key of its job.
    Marked(JobKey),
    /// A store without such a key.
    Unmarked {
        /// The torchrun there has a node with our rank already.
        taken: bool,
    },
    /// Holds the connection and does not answer.
    Silent,
    No,
}

/// Who dials a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// A ranklaunch that asks whether this is one.
    Asking,
    Torch,
}

/// Bytes by which a client of a store is told from a ranklaunch.
pub(crate) const FIRST: usize = GREETING.len();

/// Which client of a store begins with `first`; None: none that takes us for a store.
pub(crate) async fn client(first: [u8; FIRST], stream: &mut impl Stream) -> Option<Client> {
    /// Clients of torch 2.1 to 2.3 send no ping and wait for their turn.
    const HOLD: Duration = Duration::from_millis(500);
    let said = timeout(HOLD, first_query(first, stream)).await.ok().flatten();
    // A connection that greets so is one, whatever it sends next.
    said.or((first == GREETING).then_some(Client::Torch))
}

async fn first_query(mut first: [u8; FIRST], stream: &mut impl Stream) -> Option<Client> {
    /// What nodes before version 3 asked after the greeting: to send this back.
    const PING: [u8; FIRST] = [13, b'r', b'k', b'l', b'?'];
    let mut dialect = Dialect::Bare;
    if first == GREETING {
        dialect = Dialect::Validated;
        stream.read_exact(&mut first).await.ok()?;
        if first == PING || WHICH.ends_with(&first) {
            return Some(Client::Asking);
        }
    }
    // The length of the key has eight bytes, of which those that follow the first are zero.
    let [number, length, 0, 0, 0] = first else { return None };
    let mut rest = vec![0; 4 + usize::from(length)];
    stream.read_exact(&mut rest).await.ok()?;
    let key = rest.strip_prefix(&[0; 4])?;
    // A client counts itself (`waitForWorkers`), or asks for the state of a c10d rendezvous.
    let counts = number == dialect.query(ADD) && key == b"init/";
    let meets = number == dialect.query(COMPARE_SET) && key.starts_with(b"/torch.rendezvous.");
    match key {
        PLACE => Some(Client::Asking),
        _ => (counts || meets).then_some(Client::Torch),
    }
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_ne_bytes(), bytes].concat()
}

/// COMPARE_SET: writes `new` where the value is `old`, or there is none and `old` is
/// empty. The answer is the value afterwards, and `old` where there is none: so with an
/// `old` that nobody has it reads, writes nothing, and is given back by a store alone.
fn compare_set(dialect: Dialect, old: &[u8], new: &[u8]) -> Vec<u8> {
    let number = [dialect.query(COMPARE_SET)];
    [dialect.greeting(), &number, &counted(PLACE), &counted(old), &counted(new)].concat()
}

/// Where the agent of a plain torchrun registers a node (`_assign_worker_ranks`), below the
/// run id that torchrun has where none is given: today's place, and that of torch before
/// 2.4 (`_share_and_gather`).
fn places_of_node(node: u32) -> [Vec<u8>; 2] {
    ["/", ""].map(|sign| format!("/none/torchelastic/role_info{sign}{node}").into_bytes())
}

/// Asks what answers at `peer`. Changes nothing there.
pub(crate) async fn ask(peer: SocketAddr, node: u32) -> Found {
    let dialect = match Dialect::at(peer).await {
        Ok(Some(dialect)) => dialect,
        Ok(None) => return Found::Silent,
        Err(_) => return Found::No,
    };
    let Ok(mut stream) = connect(peer, CONNECT).await else { return Found::No };
    match timeout(ANSWER, asked(&mut stream, dialect, node)).await {
        Ok(found) => found.unwrap_or(Found::No),
        Err(_) => Found::Silent,
    }
}

/// None where the answer is no store's.
async fn asked(stream: &mut TcpStream, dialect: Dialect, node: u32) -> Option<Found> {
    let mut nonce = [0u8; 16];
    crate::random::fill(&mut nonce).ok()?;
    stream.write_all(&compare_set(dialect, &nonce, b"")).await.ok()?;
    let value = value(stream).await?;
    if value != nonce {
        return JobKey::decode(&value).map(Found::Marked);
    }
    for place in places_of_node(node) {
        let check = [&[dialect.query(CHECK)][..], &1usize.to_ne_bytes(), &counted(&place)].concat();
        stream.write_all(&check).await.ok()?;
        match stream.read_u8().await.ok()? {
            READY => return Some(Found::Unmarked { taken: true }),
            NOT_READY => {}
            _ => return None,
        }
    }
    Some(Found::Unmarked { taken: false })
}

async fn value(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0u8; 8];
    stream.read_exact(&mut length).await.ok()?;
    let length = Some(u64::from_ne_bytes(length)).filter(|length| *length <= LONGEST)?;
    let mut value = vec![0; usize::try_from(length).ok()?];
    stream.read_exact(&mut value).await.ok()?;
    Some(value)
}

/// The store of this node's own job: where it will listen, and what stands in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The master port, on which the engine or rank 0 listens.
    pub port: u16,
    pub key: JobKey,
}

/// Writes the job's key into the store of this node as soon as there is one, and again
/// into each that follows. Ends only where something else holds the port.
pub async fn mark(mark: &Mark) {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, mark.port));
    let mut strange = 0;
    while strange < TRIES {
        match write(peer, &mark.key).await {
            Ok(Some(mut stream)) => {
                strange = 0;
                // Nothing more is said on it: it ends with the store.
                let _ = stream.read(&mut [0; 1]).await;
            }
            Ok(None) => strange += 1,
            Err(_) => {}
        }
        sleep(PAUSE).await;
    }
}

/// The connection by which the key was written; None: what is there is no store.
///
/// # Errors
/// Nothing is there.
async fn write(peer: SocketAddr, key: &JobKey) -> io::Result<Option<TcpStream>> {
    let Some(dialect) = Dialect::at(peer).await? else { return Ok(None) };
    let mut stream = connect(peer, CONNECT).await?;
    let marked = timeout(ANSWER, marked(&mut stream, dialect, key)).await.ok().flatten();
    Ok(marked.map(|()| stream))
}

async fn marked(stream: &mut TcpStream, dialect: Dialect, key: &JobKey) -> Option<()> {
    stream.write_all(&compare_set(dialect, b"", &key.encode())).await.ok()?;
    JobKey::decode(&value(stream).await?).map(drop)
}
